"""HTTP as the tests speak it: completions (streamed or not) over the standard library, and raw
sockets.

An Answer says what one client saw: `verdict` is "full" (a complete, well-formed answer), "error"
(exactly one clear error in OpenAI's form) or "broken: why" (anything else, which no test accepts).
"""

import http.client
import json
import re
import socket
import time


class Answer:
    def __init__(self):
        self.status = 0
        self.headers = {}
        self.body = None  # Parsed JSON of an unstreamed answer or error
        self.texts = {}  # index -> text
        self.tokens = {}  # index -> token ids
        self.finish = {}  # index -> finish_reason
        self.usage = None
        self.errors = []  # Error objects, from the body or from frames
        self.done = False  # [DONE] was seen
        self.frames = []
        self.started = time.monotonic()
        self.token_times = []  # When each frame with text or tokens came
        self.failure = None  # A transport-level surprise
        self.streamed = False

    @property
    def text(self):
        return self.texts.get(0, "")

    @property
    def token_ids(self):
        return self.tokens.get(0, [])

    @property
    def request_id(self):
        return self.headers.get("x-request-id", "")

    @property
    def decision(self):
        """X-Tandem-Decision as a dict: path, prefill, decode, ..."""
        return dict(
            p.split("=", 1) for p in self.headers.get("x-tandem-decision", "").split() if "=" in p
        )

    def verdict(self, choices=1):
        if self.failure:
            return f"broken: {self.failure}"
        finished = {i for i, reason in self.finish.items() if reason in ("stop", "length")}
        if self.errors:
            error = self.errors[0]
            clear = (
                len(self.errors) == 1
                and isinstance(error, dict)
                and error.get("message")
                and error.get("type")
                and (error.get("code") is None or isinstance(error["code"], str))
            )
            if not clear:
                return f"broken: errors {self.errors}"
            if self.streamed and not self.done:
                return "broken: error frame without [DONE]"
            if self.status == 200 and not self.streamed:
                return "broken: error with status 200"
            return "error"
        if self.status != 200:
            return f"broken: status {self.status} without an error object: {self.body!r}"
        if self.streamed and not self.done:
            return "broken: stream ended without [DONE]"
        if finished != set(range(choices)):
            return f"broken: finish reasons {self.finish}"
        return "full"


def request(address, method, path, body=None, headers=None, timeout=60):
    """One request; returns (status, lower-case headers, body bytes)."""
    host, port = address.rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=timeout)
    try:
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
        connection.request(
            method,
            path,
            body,
            headers or ({"Content-Type": "application/json"} if body is not None else {}),
        )
        response = connection.getresponse()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
    finally:
        connection.close()


def get_json(address, path, timeout=5):
    status, _, body = request(address, "GET", path, timeout=timeout)
    if status != 200:
        raise RuntimeError(f"GET {path}: {status} {body[:200]!r}")
    return json.loads(body)


def complete(
    address, prompt=None, on_frame=None, timeout=120, path="/v1/completions", headers=None, **params
):
    """One completion. `prompt`: text or token ids (chat: pass messages=). `on_frame(answer)` runs
    after each frame of a stream; when it returns True the client hangs up and the answer's failure
    is "hung up"."""
    body = dict(params)
    if prompt is not None:
        body["prompt"] = prompt
    if path.endswith("/completions") and "chat" not in path:
        body.setdefault("return_token_ids", True)
    answer = Answer()
    answer.streamed = bool(body.get("stream"))
    host, port = address.rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=timeout)
    try:
        connection.request(
            "POST",
            path,
            json.dumps(body).encode(),
            {"Content-Type": "application/json", **(headers or {})},
        )
        response = connection.getresponse()
        answer.status = response.status
        answer.headers = {k.lower(): v for k, v in response.getheaders()}
        if answer.streamed and response.status == 200:
            _read_stream(response, answer, on_frame)
        else:
            answer.streamed = False
            _read_body(response.read(), answer)
    except (OSError, http.client.HTTPException, ValueError) as error:
        answer.failure = f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    answer.seconds = time.monotonic() - answer.started
    return answer


def _read_body(data, answer):
    answer.body = json.loads(data)
    if "error" in answer.body:
        answer.errors.append(answer.body["error"])
        return
    answer.usage = answer.body.get("usage")
    for choice in answer.body.get("choices", []):
        index = choice["index"]
        answer.texts[index] = choice["text"] if "text" in choice else choice["message"]["content"]
        answer.tokens[index] = choice.get("token_ids") or []
        answer.finish[index] = choice["finish_reason"]


def _read_stream(response, answer, on_frame):
    while line := response.readline():
        if not line.strip() or line.startswith(b":"):
            continue
        if not line.startswith(b"data: ") or not line.endswith(b"\n"):
            raise ValueError(f"not an event-stream line: {line[:80]!r}")
        data = line[6:].strip()
        if answer.done:
            raise ValueError("a frame after [DONE]")
        if data == b"[DONE]":
            answer.done = True
            continue
        frame = json.loads(data)
        answer.frames.append(frame)
        _take_frame(frame, answer)
        if on_frame and on_frame(answer):
            response.close()
            raise ValueError("hung up")


def _take_frame(frame, answer):
    if frame.get("error"):
        answer.errors.append(frame["error"])
        return
    if answer.errors:
        raise ValueError("content after an error frame")
    answer.usage = frame.get("usage") or answer.usage
    for choice in frame.get("choices", []):
        index = choice["index"]
        text = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
        if index in answer.finish:
            raise ValueError("content after finish_reason")
        answer.texts[index] = answer.texts.get(index, "") + text
        answer.tokens.setdefault(index, []).extend(choice.get("token_ids") or [])
        if text or choice.get("token_ids"):
            answer.token_times.append(time.monotonic())
        if choice.get("finish_reason"):
            answer.finish[index] = choice["finish_reason"]


def raw(address, data, timeout=5, read=True):
    """Sends bytes on a fresh connection and returns what comes back until the other side closes or
    `timeout`."""
    host, port = address.rsplit(":", 1)
    received = b""
    with socket.create_connection((host, int(port)), timeout=timeout) as connection:
        try:
            connection.sendall(data)
            deadline = time.monotonic() + timeout
            while read and time.monotonic() < deadline:
                connection.settimeout(max(0.01, deadline - time.monotonic()))
                part = connection.recv(65536)
                if not part:
                    break
                received += part
        except (socket.timeout, ConnectionError):
            pass
    return received


_SERIES = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def parse_metrics(text):
    """{name: [(labels dict, value)]} of Prometheus' text format."""
    series = {}
    for line in text.splitlines():
        match = None if line.startswith("#") else _SERIES.match(line)
        if match:
            labels = dict(_LABEL.findall(match.group(2) or ""))
            series.setdefault(match.group(1), []).append((labels, float(match.group(3))))
    return series
