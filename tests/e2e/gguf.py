"""Writes a copy of a GGUF file with one text of its metadata replaced (its chat template, for
instance)."""

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


def with_text(source, target, key, text):
    """Requires: `source` holds a text under `key`."""
    data = source.read_bytes()
    tensors, pairs = struct.unpack_from("<QQ", data, 8)
    at, alignment, cut = 24, 32, None
    for _ in range(pairs):
        name, value = _string(data, at)
        kind = struct.unpack_from("<I", data, value)[0]
        end = _skip(data, value + 4, kind)
        if name == key.encode():
            assert kind == _STRING, kind
            cut = (value + 4, end)
        if name == b"general.alignment":
            alignment = struct.unpack_from("<I", data, value + 4)[0]
        at = end
    assert cut, f"{source} has no {key}"
    for _ in range(tensors):
        _, at = _string(data, at)
        dimensions = struct.unpack_from("<I", data, at)[0]
        at += 4 + 8 * dimensions + 4 + 8
    weights = -(-at // alignment) * alignment
    value = struct.pack("<Q", len(text.encode())) + text.encode()
    head = data[: cut[0]] + value + data[cut[1] : at]
    target.write_bytes(head + b"\0" * (-len(head) % alignment) + data[weights:])
