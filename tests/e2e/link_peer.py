"""The control link as an adversary speaks it: frames, the handshake and just enough MessagePack,
after docs/wire_format.md. A test can be a peer that proves it knows the secret and then lies."""

import hashlib
import os
import socket
import struct

HELLO, CHALLENGE, PROOF, WELCOME, REFUSE, PING, GOODBYE = range(1, 8)
PREFILL, DECODE, CANCEL, CONTROL, LOAD, TOKENS = 16, 17, 18, 19, 32, 34
OPEN, GRANTED, DENIED, LANDED, CREDIT, SEAL, DONE, ABORT, QUIESCED = range(48, 57)


def pack(value):
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return (
            b"\xcf" + struct.pack(">Q", value) if value >= 0 else b"\xd3" + struct.pack(">q", value)
        )
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        return b"\xdb" + struct.pack(">I", len(value.encode())) + value.encode()
    if isinstance(value, bytes):
        return b"\xc6" + struct.pack(">I", len(value)) + value
    if isinstance(value, (list, tuple)):
        return b"\xdd" + struct.pack(">I", len(value)) + b"".join(map(pack, value))
    return (
        b"\xdf"
        + struct.pack(">I", len(value))
        + b"".join(pack(k) + pack(v) for k, v in value.items())
    )


def unpack_bin(body, key):
    """The binary value of `key` in a packed map, found by its packed name."""
    name = bytes([0xA0 | len(key)]) + key.encode()
    at = body.index(name) + len(name)
    kind, (size, skip) = body[at], {0xC4: (1, 2), 0xC5: (2, 3), 0xC6: (4, 5)}[body[at]]
    length = int.from_bytes(body[at + 1 : at + 1 + size], "big")
    assert kind in (0xC4, 0xC5, 0xC6)
    return body[at + skip : at + skip + length]


def frame(kind, body=b"", length=None):
    return struct.pack("<IB", len(body) + 1 if length is None else length, kind) + body


def proof(secret, side, dialer, listener):
    key = hashlib.blake2b(secret, digest_size=32).digest()
    state = hashlib.blake2b(key=key, digest_size=32)
    for part in (side, dialer, listener):
        state.update(struct.pack("<Q", len(part)) + part)
    return state.digest()


HELLO_ROUTER = {
    "protocol": 2,
    "kind": "router",
    "name": "router-liar",
    "build": "",
    "epoch": 7,
    "model": "",
    "model_digest": "",
    "tokenizer_digest": "",
    "kv_layout_digest": "",
    "engine": "sim",
    "role": "decode",
    "listen": "",
    "slots": 0,
    "kv_tokens": 0,
    "kv_bytes_per_token": 0,
    "context": 0,
    "chunk_tokens": 0,
    "exact_batch_max": 1,
    "transports": [],
}


class Peer:
    """A session that has been opened with a worker."""

    def __init__(self, address, secret=b"", **hello):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=5)
        own = pack({**HELLO_ROUTER, "nonce": os.urandom(16), **hello})
        self.send(HELLO, own)
        kind, body = self.receive()
        assert kind == CHALLENGE, (kind, body)
        theirs = unpack_bin(body, "hello")
        self.send(PROOF, proof(secret, b"d", own, theirs))
        self.answer = self.receive()

    def send(self, kind, body=b"", length=None):
        self.socket.sendall(frame(kind, body, length))

    def receive(self):
        head = self._exactly(5)
        length, kind = struct.unpack("<IB", head)
        return kind, self._exactly(length - 1)

    def read_to_end(self):
        """(kind, body) of everything until the other side closes; raises TimeoutError if it does
        not."""
        frames = []
        while True:
            try:
                frames.append(self.receive())
            except (ConnectionError, EOFError):
                return frames

    def close(self):
        self.socket.close()

    def _exactly(self, count):
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise EOFError("closed")
            data += part
        return data
