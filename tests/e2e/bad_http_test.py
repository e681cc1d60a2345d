"""Bad requests: malformed, truncated, huge or wrongly typed JSON, unknown models, prompts longer
than the context, absurd numbers, invalid UTF-8, broken HTTP. Each gets one error in OpenAI's form
with the right status and code, before any worker is touched, and the next request is served."""

import http.client
import json
import socket

import client
from harness import Cluster, equal, main, test

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BASE = {"prompt": "Hello", "max_tokens": 2}
CHAT_BASE = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
CONTEXT = 512


def post(cluster, path, body, headers=None):
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    status, _, answer = client.request(
        cluster.address["r0"],
        "POST",
        path,
        body,
        headers or {"Content-Type": "application/json"},
        timeout=30,
    )
    return status, json.loads(answer)


def refused(cluster, path, body, status, code=None, param=None, headers=None):
    found, answer = post(cluster, path, body, headers)
    shown = body if isinstance(body, dict) and len(str(body)) < 300 else str(body)[:80]
    equal(found, status, f"status of {shown} -> {str(answer)[:300]}")
    error = answer["error"]
    for name, kinds in (
        ("message", str),
        ("type", str),
        ("code", (str, type(None))),
        ("param", (str, type(None))),
    ):
        assert isinstance(error[name], kinds), f"error.{name} of {shown}: {error}"
    if code:
        equal(error["code"], code, f"code of {shown}: {error}")
    if param:
        equal(error["param"], param, f"param of {shown}: {error}")
    return error


def with_cluster(function):
    """The tests share one cluster: nothing in them may disturb it."""

    def run():
        function(_cluster())
        answer = _cluster().complete("Hello", max_tokens=3, ignore_eos=True)
        equal(answer.verdict(), "full", "the next request")
        _cluster().wait_idle()

    run.__name__ = function.__name__
    return test(run)


_shared = []


def _cluster():
    if not _shared:
        _shared.append(
            Cluster(
                engine="sim",
                set=[
                    f"model.context={CONTEXT}",
                    "router.body_bytes_max=1MiB",
                    "router.read_deadline_ms=1500",
                ],
            ).__enter__()
        )
    return _shared[0]


@with_cluster
def malformed_json(cluster):
    for body in (
        b"",
        b"{",
        b"[",
        b"{}x",
        b'{"prompt": "a",}',
        b"{'prompt': 'a'}",
        b'{"prompt": "a"',
        b"null",
        b"[]",
        b"3",
        b'"text"',
        b'{"prompt": "\\x"}',
        b'{"prompt": "a", "n": 01}',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": 1e999}',
        b"\xef\xbb\xbf",
        b"\x00" * 10,
    ):
        refused(cluster, COMPLETIONS, body, 400)
    refused(cluster, COMPLETIONS, b'{"a":' * 5000 + b"1" + b"}" * 5000, 400)
    refused(cluster, COMPLETIONS, b'{"prompt": ' + b"[" * 20000 + b"]" * 20000 + b"}", 400)


@with_cluster
def invalid_utf8(cluster):
    for bad in (
        b"\xff",
        b"\xc3\x28",
        b"\xe2\x82",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xc0\xaf",
        b"\xf0\x80\x80\xaf",
    ):
        refused(cluster, COMPLETIONS, b'{"prompt": "a' + bad + b'b", "max_tokens": 2}', 400)
        refused(cluster, CHAT, b'{"messages": [{"role": "user", "content": "' + bad + b'"}]}', 400)
    refused(cluster, COMPLETIONS, b'{"prompt": "\\ud800", "max_tokens": 2}', 400)


@with_cluster
def wrong_types_are_named(cluster):
    for field, values in {
        "max_tokens": ("2", True, [2], {}, 1.5),
        "temperature": ("1", True, []),
        "n": ("2", True, 1.5),
        "stop": (3, [1], {}),
        "stream": (1, "true"),
        "seed": ("x", 1.5),
        "logit_bias": ([], "x", [[1, 2]]),
        "logprobs": ("x",),
        "top_p": ("0.5",),
        "ignore_eos": (1,),
        "min_tokens": ("1",),
        "echo": ("no",),
        "stop_token_ids": (5, ["a"]),
    }.items():
        for value in values:
            refused(cluster, COMPLETIONS, {**BASE, field: value}, 400)
            refused(
                cluster,
                COMPLETIONS,
                {**BASE, field: value, "stream": True}
                if field != "stream"
                else {**BASE, field: value},
                400,
            )
    refused(cluster, COMPLETIONS, {**BASE, "n": "2"}, 400, "invalid_type", "n")
    for prompt in (3, True, {"a": 1}, [1, "a"], ["a", 1], [[1], "a"], [1.5], [[]], [None]):
        refused(cluster, COMPLETIONS, {"prompt": prompt}, 400)
    for prompt in (None, "", []):
        refused(cluster, COMPLETIONS, {"prompt": prompt}, 400)
    refused(cluster, COMPLETIONS, {}, 400, "missing_required_parameter", "prompt")
    for messages in (
        None,
        [],
        "hi",
        [3],
        [{}],
        [{"role": "user"}],
        [{"role": "pirate", "content": "x"}],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": [{"type": "image_url"}]}],
    ):
        refused(cluster, CHAT, {"messages": messages}, 400)


@with_cluster
def absurd_numbers(cluster):
    for field, values in {
        "max_tokens": (-1, -(1 << 62), 1 << 62, 10**30),
        "temperature": (-0.1, 2.1, 1e300),
        "n": (0, -1, 17, 1 << 40),
        "top_p": (-0.5, 1.01),
        "top_k": (-2,),
        "min_p": (-0.1, 1.1),
        "frequency_penalty": (-2.1, 2.1),
        "presence_penalty": (-3, 3),
        "repetition_penalty": (0, -1),
        "logprobs": (-1, 21),
        "min_tokens": (-1, 1000),
        "seed": (10**30,),
        "stop": ("", ["a"] * 17, ["x" * 2000]),
        "logit_bias": ({"a": 1}, {"-5": 1}, {"99999999": 1}),
        "best_of": (5,),
        "prompt": ([-1], [1 << 40], [10**9]),
    }.items():
        for value in values:
            refused(cluster, COMPLETIONS, {**BASE, field: value}, 400)
    refused(
        cluster,
        COMPLETIONS,
        {**BASE, "temperature": 200},
        400,
        "decimal_above_max_value",
        "temperature",
    )
    refused(cluster, COMPLETIONS, {**BASE, "n": 0}, 400, "integer_below_min_value", "n")
    refused(cluster, CHAT, {**CHAT_BASE, "max_completion_tokens": 0}, 400)
    refused(cluster, CHAT, {**CHAT_BASE, "top_logprobs": 3}, 400, None, "top_logprobs")
    refused(
        cluster,
        COMPLETIONS,
        {**BASE, "stream_options": {"include_usage": True}},
        400,
        None,
        "stream_options",
    )


@with_cluster
def unknown_model_url_and_method(cluster):
    error = refused(
        cluster, COMPLETIONS, {**BASE, "model": "gpt-9"}, 404, "model_not_found", "model"
    )
    assert "gpt-9" in error["message"]
    refused(cluster, "/v1/nowhere", BASE, 404, "unknown_url")
    status, headers, body = client.request(cluster.address["r0"], "GET", COMPLETIONS)
    equal(
        (status, json.loads(body)["error"]["code"]),
        (405, "method_not_supported"),
        "GET of completions",
    )
    assert "POST" in headers["allow"]
    refused(cluster, COMPLETIONS, BASE, 415, headers={"Content-Type": "text/plain"})


@with_cluster
def a_prompt_longer_than_the_context(cluster):
    for body, path, param in (
        ({"prompt": [5] * (CONTEXT + 1)}, COMPLETIONS, "prompt"),
        ({"prompt": [5] * CONTEXT}, COMPLETIONS, "prompt"),
        ({"prompt": [5] * 500, "max_tokens": 100}, COMPLETIONS, "prompt"),
        ({"prompt": "many words " * 2000}, COMPLETIONS, "prompt"),
        ({"messages": [{"role": "user", "content": "many words " * 2000}]}, CHAT, "messages"),
    ):
        for stream in (False, True):
            error = refused(
                cluster, path, {**body, "stream": stream}, 400, "context_length_exceeded", param
            )
            assert f"maximum context length is {CONTEXT} tokens" in error["message"], error
            assert "5, 5" not in error["message"]
    answer = cluster.complete([5] * (CONTEXT - 1), max_tokens=1, ignore_eos=True)
    equal(answer.verdict(), "full", "the longest prompt that fits")


@with_cluster
def huge_bodies_and_headers(cluster):
    refused(cluster, COMPLETIONS, {"prompt": "x" * (2 << 20)}, 413, "request_too_large")
    status = client.raw(
        cluster.address["r0"],
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: 99999999999\r\n\r\n{}",
        timeout=10,
    )
    assert b" 413 " in status.split(b"\r\n")[0], status[:200]
    status = client.raw(
        cluster.address["r0"],
        b"GET /health HTTP/1.1\r\nX-Long: " + b"a" * (1 << 20) + b"\r\n\r\n",
        timeout=10,
    )
    assert b" 431 " in status.split(b"\r\n")[0] or b" 400 " in status.split(b"\r\n")[0], status[
        :200
    ]


@with_cluster
def broken_http(cluster):
    for data in (
        b"NONSENSE\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"POST /v1/completions HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n",
    ):
        answer = client.raw(cluster.address["r0"], data + b"\r\n" * 4, timeout=5)
        assert (
            answer == b"" or answer.startswith(b"HTTP/1.1 4") or answer.startswith(b"HTTP/1.1 5")
        ), answer[:100]


@with_cluster
def truncated_bodies_do_not_wait_for_ever(cluster):
    host, port = cluster.address["r0"].rsplit(":", 1)
    waiting = socket.create_connection((host, int(port)), timeout=10)
    waiting.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b'Content-Length: 100\r\n\r\n{"prompt":'
    )
    answer = waiting.recv(4096)  # After router.read_deadline_ms
    assert answer == b"" or b" 408 " in answer.split(b"\r\n")[0], answer[:200]
    waiting.close()
    for cut in range(1, 200, 17):  # Hang up in mid-request
        connection = socket.create_connection((host, int(port)), timeout=5)
        whole = (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 40\r\n\r\n"
            + json.dumps({"prompt": "Hello", "max_tokens": 2}).encode()
        )
        connection.sendall(whole[: min(cut, len(whole) - 1)])
        connection.close()


@with_cluster
def unknown_fields_and_nulls_are_no_errors(cluster):
    body = {
        **BASE,
        "metadata": {"a": [1]},
        "user": "me",
        "kv_transfer_params": {"do_remote_prefill": True},
        "stop": None,
        "temperature": None,
        "seed": None,
        "logit_bias": None,
        "stream_options": None,
        "frobnicate": {"x": [[]]},
    }
    status, answer = post(cluster, COMPLETIONS, body)
    equal(status, 200, f"{answer}")
    assert "frobnicate" not in str(answer)


@with_cluster
def health_models_and_tokenize_keep_their_forms(cluster):
    address = cluster.address["r0"]
    models = client.get_json(address, "/v1/models")
    assert (
        models["object"] == "list"
        and models["data"][0]["id"]
        and isinstance(models["data"][0]["created"], int)
    )
    equal(client.get_json(address, "/health")["status"], "ok", "health")
    for path in ("/tokenize", "/detokenize"):
        refused(cluster, path, {"tokens": ["x"], "prompt": 3}, 400)
    equal(
        http.client.responses[client.request(address, "GET", "/v1/models/nobody")[0]],
        "Not Found",
        "unknown model card",
    )


if __name__ == "__main__":
    main(finish=lambda: _shared and _shared[0].__exit__(None, None, None))
