"""What a GGUF file holds: its tensors' types, and copies of it with a text of its metadata replaced
(the chat template, for instance)."""

import struct

_FIXED = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9


def _string(data, at):
    length = struct.unpack_from("<Q", data, at)[0]
    return data[at + 8 : at + 8 + length], at + 8 + length


def _skip(data, at, kind):
    if kind in _FIXED:
        return at + _FIXED[kind]
    if kind == _STRING:
        return _string(data, at)[1]
    inner, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if inner in _FIXED:
        return at + _FIXED[inner] * count
    for _ in range(count):
        at = _skip(data, at, inner)
    return at


class _Head:
    """Where things are in the file's bytes before its weights."""

    def __init__(self, data):
        tensors, pairs = struct.unpack_from("<QQ", data, 8)
        at, self.alignment, self.values = 24, 32, {}
        for _ in range(pairs):
            name, value = _string(data, at)
            kind = struct.unpack_from("<I", data, value)[0]
            at = _skip(data, value + 4, kind)
            self.values[name.decode()] = (kind, value + 4, at)
        if "general.alignment" in self.values:
            where = self.values["general.alignment"][1]
            self.alignment = struct.unpack_from("<I", data, where)[0]
        self.tensors = {}  # Name -> (dimensions, type)
        for _ in range(tensors):
            name, at = _string(data, at)
            dimensions = struct.unpack_from("<I", data, at)[0]
            kind = struct.unpack_from("<I", data, at + 4 + 8 * dimensions)[0]
            self.tensors[name.decode()] = (dimensions, kind)
            at += 4 + 8 * dimensions + 4 + 8
        self.end = at


def tensors(source):
    """{name: (number of dimensions, ggml type)}"""
    return _Head(source.read_bytes()).tensors


def with_text(source, target, key, text):
    """Requires: `source` holds a text under `key`."""
    data = source.read_bytes()
    head = _Head(data)
    kind, first, last = head.values[key]
    assert kind == _STRING, kind
    weights = -(-head.end // head.alignment) * head.alignment
    value = struct.pack("<Q", len(text.encode())) + text.encode()
    front = data[:first] + value + data[last : head.end]
    target.write_bytes(front + b"\0" * (-len(front) % head.alignment) + data[weights:])
