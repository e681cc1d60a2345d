#!/usr/bin/env python3
"""Renders chat templates for the router, one request at a time.

Standard input is a socket and the only way in or out. Both directions carry frames: u32 length
(little endian), then JSON. First the helper sends {"ready": true}. A request is
{"template": source, "context": object}; the answer is {"text": rendered} or
{"error": reason, "raised": whether the template refused the messages}.

Templates are untrusted: they run in Jinja2's immutable sandbox, in a process that holds no other
descriptor, may use only so much memory, and is killed by the router when it takes too long.
"""

import json
import os
import resource
import socket
import sys
from collections import OrderedDict
from datetime import datetime

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

FRAME_BYTES_MAX = 256 << 20
TEMPLATES_MAX = 8
REASON_CHARS_MAX = 500


class Raised(jinja2.exceptions.TemplateError):
    """The template called raise_exception()."""


class Generation(jinja2.ext.Extension):
    """{% generation %} marks what a model wrote, for training; rendering only needs its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def raise_exception(message):
    raise Raised(str(message))


def strftime_now(pattern):
    return datetime.now().strftime(pattern)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    # Jinja2's own filter escapes HTML, which no model was trained on.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def make_environment():
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


class Renderer:
    def __init__(self, output_bytes_max):
        self.environment = make_environment()
        self.compiled = OrderedDict()
        self.output_bytes_max = output_bytes_max

    def template(self, source):
        if source not in self.compiled:
            self.compiled[source] = self.environment.from_string(source)
            if len(self.compiled) > TEMPLATES_MAX:
                self.compiled.popitem(last=False)
        self.compiled.move_to_end(source)
        return self.compiled[source]

    def render(self, source, context):
        pieces, size = [], 0
        for piece in self.template(source).generate(context):
            size += len(piece)
            if size > self.output_bytes_max:
                raise ValueError("the rendered text is too long")
            pieces.append(piece)
        return "".join(pieces)

    def answer(self, body):
        try:
            request = json.loads(body)
            text = self.render(request["template"], request["context"])
            return {"text": text.encode("utf-8", "replace").decode("utf-8")}
        except Raised as error:
            return {"error": str(error)[:REASON_CHARS_MAX], "raised": True}
        except Exception as error:  # Whatever a template can do wrong is the answer.
            reason = f"{type(error).__name__}: {error}"
            return {"error": reason[:REASON_CHARS_MAX], "raised": False}


def read_exactly(channel, count):
    data = bytearray()
    while len(data) < count:
        piece = channel.recv(min(count - len(data), 1 << 20))
        if not piece:
            sys.exit(0)  # The router is gone.
        data += piece
    return bytes(data)


def send_frame(channel, message):
    body = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")
    channel.sendall(len(body).to_bytes(4, "little") + body)


def limit_resources(memory_bytes):
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))


def main():
    limit_resources(int(sys.argv[1]))
    renderer = Renderer(int(sys.argv[2]))
    channel = socket.socket(fileno=os.dup(0))
    send_frame(channel, {"ready": True})
    while True:
        size = int.from_bytes(read_exactly(channel, 4), "little")
        if size > FRAME_BYTES_MAX:
            sys.exit(1)
        send_frame(channel, renderer.answer(read_exactly(channel, size)))


if __name__ == "__main__":
    main()
