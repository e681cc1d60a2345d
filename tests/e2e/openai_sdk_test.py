"""The official Python client against a router: what applications see. With a URL as first argument
(http://127.0.0.1:8080/v1) it tests that server, whose model must have a chat template; without one
it starts a cluster of its own. Needs the `openai` package, else it is skipped."""

import json
import sys
import traceback
import urllib.error
import urllib.request

try:
    import openai
except ImportError:
    print("skipped: the openai package is not installed")
    sys.exit(77)

CHAT = [{"role": "user", "content": "Name three colours of the rainbow."}]
PROMPT = "The three primary colours are"
GREEDY = {"temperature": 0, "seed": 1}
TESTS = []


def test(function):
    TESTS.append(function)
    return function


def equal(found, wanted, what=""):
    assert found == wanted, f"{what}: found {found!r}, wanted {wanted!r}"


class Server:
    def __init__(self, base_url):
        self.base_url = base_url.rstrip("/")
        self.client = openai.OpenAI(
            base_url=self.base_url, api_key="none", max_retries=0, timeout=120
        )
        self.model = self.client.models.list().data[0].id

    def chat(self, **fields):
        fields.setdefault("messages", CHAT)
        fields.setdefault("max_tokens", 16)
        return self.client.chat.completions.create(model=self.model, **fields)

    def complete(self, **fields):
        fields.setdefault("prompt", PROMPT)
        fields.setdefault("max_tokens", 16)
        return self.client.completions.create(model=self.model, **fields)

    def post(self, path, body, content_type="application/json"):
        """Status and parsed body of a request that the client would not send."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(
            self.base_url.removesuffix("/v1") + path, data, {"Content-Type": content_type}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)


def check_usage(usage):
    assert usage.prompt_tokens > 0 and usage.completion_tokens > 0, usage
    equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens, "total_tokens")
    assert 0 <= usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens, usage


def join_chat(stream):
    """Text and finish reason by choice, and the usage; checks the order of chunks."""
    texts, finishes, roles, usage, ids = {}, {}, {}, None, set()
    for chunk in stream:
        equal(chunk.object, "chat.completion.chunk", "object")
        ids.add(chunk.id)
        if not chunk.choices:
            assert usage is None, "one usage chunk"
            usage = chunk.usage
            continue
        for choice in chunk.choices:
            assert choice.index not in finishes, "nothing follows a finish"
            if choice.delta.role:
                assert choice.index not in roles, "the role comes once"
                roles[choice.index] = choice.delta.role
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.finish_reason:
                finishes[choice.index] = choice.finish_reason
    equal(len(ids), 1, "ids")
    equal(set(roles.values()), {"assistant"}, "roles")
    return texts, finishes, usage


@test
def models_are_listed_and_found(server):
    listed = server.client.models.list().data
    assert listed and all(m.object == "model" and isinstance(m.created, int) for m in listed)
    equal(server.client.models.retrieve(server.model).id, server.model, "model")
    expect(openai.NotFoundError, "model_not_found", server.client.models.retrieve, "no-such-model")


@test
def a_chat_answers_with_text_and_usage(server):
    answer = server.chat(**GREEDY)
    choice = answer.choices[0]
    equal((answer.object, choice.index, choice.message.role), ("chat.completion", 0, "assistant"))
    assert choice.message.content and choice.finish_reason in ("stop", "length"), choice
    assert answer.id.startswith("chatcmpl-") and answer.system_fingerprint.startswith("fp_")
    equal(answer.model, server.model, "model")
    check_usage(answer.usage)
    assert answer._request_id, "the SDK finds X-Request-Id"


@test
def a_chat_stream_is_the_same_text(server):
    whole = server.chat(max_tokens=40, **GREEDY)
    texts, finishes, usage = join_chat(
        server.chat(max_tokens=40, stream=True, stream_options={"include_usage": True}, **GREEDY)
    )
    equal(texts[0], whole.choices[0].message.content, "text")
    equal(finishes[0], whole.choices[0].finish_reason, "finish")
    equal(usage.completion_tokens, whole.usage.completion_tokens, "completion_tokens")
    equal(usage.prompt_tokens, whole.usage.prompt_tokens, "prompt_tokens")
    check_usage(usage)
    _, _, none = join_chat(server.chat(stream=True, **GREEDY))
    equal(none, None, "usage that nobody asked for")


@test
def the_streaming_helper_accumulates(server):
    with server.client.chat.completions.stream(
        model=server.model, messages=CHAT, max_tokens=12, **GREEDY
    ) as stream:
        for _ in stream:
            pass
        final = stream.current_completion_snapshot  # The final one is refused for "length"
    equal(final.choices[0].message.role, "assistant", "role")
    equal(
        final.choices[0].message.content,
        server.chat(max_tokens=12, **GREEDY).choices[0].message.content,
        "text",
    )


@test
def completions_take_every_form_of_prompt(server):
    text = server.complete(**GREEDY)
    equal(text.object, "text_completion", "object")
    check_usage(text.usage)
    ids = server.post("/tokenize", {"prompt": PROMPT})[1]["tokens"]
    equal(server.complete(prompt=ids, **GREEDY).choices[0].text, text.choices[0].text, "token ids")
    batch = server.complete(prompt=[PROMPT, "Once upon a time"], n=2, **GREEDY)
    equal([c.index for c in batch.choices], [0, 1, 2, 3], "indices")
    equal(batch.choices[0].text, text.choices[0].text, "first of a batch")
    equal(batch.choices[1].text, text.choices[0].text, "greedy choices are equal")
    lists = server.complete(prompt=[ids, ids], **GREEDY)
    equal({c.text for c in lists.choices}, {text.choices[0].text}, "lists of ids")
    equal(lists.usage.prompt_tokens, 2 * len(ids), "prompt tokens of two prompts")


@test
def a_completion_stream_is_the_same_text(server):
    whole = server.complete(max_tokens=24, **GREEDY)
    texts, finish = [], None
    for chunk in server.complete(max_tokens=24, stream=True, **GREEDY):
        texts.append(chunk.choices[0].text)
        finish = finish or chunk.choices[0].finish_reason
    equal("".join(texts), whole.choices[0].text, "text")
    equal(finish, whole.choices[0].finish_reason, "finish")


@test
def max_tokens_is_exact(server):
    for count in (1, 2, 7):
        for stream in (False, True):
            fields = {"max_tokens": count, "extra_body": {"ignore_eos": True}, "stream": stream}
            if stream:
                fields["stream_options"] = {"include_usage": True}
                _, finishes, usage = join_chat(server.chat(**fields))
                equal(finishes[0], "length", "finish")
            else:
                usage = server.chat(**fields).usage
            equal(usage.completion_tokens, count, f"completion_tokens, stream={stream}")
    equal(server.complete(max_tokens=0, echo=True).choices[0].text, PROMPT, "echo alone")


@test
def several_choices_are_seeded(server):
    fields = {"n": 3, "seed": 42, "temperature": 1.0, "max_tokens": 12}
    first, again = server.chat(**fields), server.chat(**fields)
    texts = [c.message.content for c in first.choices]
    equal(texts, [c.message.content for c in again.choices], "same seed")
    assert len(set(texts)) > 1, "choices have their own randomness"
    streamed, finishes, _ = join_chat(server.chat(stream=True, **fields))
    equal([streamed[i] for i in range(3)], texts, "streamed choices")
    equal(sorted(finishes), [0, 1, 2], "every choice finishes")
    other = server.chat(**{**fields, "seed": 43})
    assert [c.message.content for c in other.choices] != texts, "another seed"
    one = server.chat(**{**fields, "n": 1})
    equal(one.choices[0].message.content, texts[0], "the first choice does not depend on n")


@test
def stop_strings_end_the_text(server):
    free = server.complete(max_tokens=24, **GREEDY).choices[0].text
    stop = free[len(free) // 2 : len(free) // 2 + 3]
    for stream in (False, True):
        stops = [stop, "never-in-there"]
        answer = server.complete(max_tokens=24, stop=stops, stream=stream, **GREEDY)
        chunks = list(answer) if stream else [answer]
        choices = [c.choices[0] for c in chunks]
        equal("".join(c.text for c in choices), free[: free.index(stop)], f"stream={stream}")
        equal(choices[-1].finish_reason, "stop", "finish")
        equal(choices[-1].stop_reason, stop, "stop_reason")
    kept = server.complete(
        max_tokens=24, stop=stop, extra_body={"include_stop_str_in_output": True}, **GREEDY
    )
    equal(kept.choices[0].text, free[: free.index(stop) + len(stop)], "kept stop string")


@test
def chat_logprobs_fit_the_text(server):
    answer = server.chat(logprobs=True, top_logprobs=3, max_tokens=8, **GREEDY)
    content = answer.choices[0].logprobs.content
    equal(len(content), answer.usage.completion_tokens, "an entry per token")
    raw = b"".join(bytes(e.bytes) for e in content if e.token)
    equal(raw.decode(errors="replace"), answer.choices[0].message.content, "bytes")
    for entry in content:
        equal(len(entry.top_logprobs), 3, "alternatives")
        values = [t.logprob for t in entry.top_logprobs]
        equal(values, sorted(values, reverse=True), "order")
        equal(entry.logprob, values[0], "greedy takes the best")
    streamed = []
    for chunk in server.chat(logprobs=True, top_logprobs=3, max_tokens=8, stream=True, **GREEDY):
        if chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    equal([e.token for e in streamed], [e.token for e in content], "streamed tokens")
    plain = server.chat(logprobs=True, max_tokens=4, **GREEDY).choices[0].logprobs.content
    assert all(e.top_logprobs == [] for e in plain), "no alternatives unless wanted"


@test
def completion_logprobs_fit_the_text(server):
    answer = server.complete(logprobs=2, max_tokens=8, extra_body={"ignore_eos": True}, **GREEDY)
    logprobs, text = answer.choices[0].logprobs, answer.choices[0].text
    sizes = {len(logprobs.tokens), len(logprobs.token_logprobs), len(logprobs.top_logprobs)}
    equal(sizes | {len(logprobs.text_offset)}, {8}, "lengths")
    if text.isascii():
        equal("".join(logprobs.tokens), text, "tokens")
        for token, offset in zip(logprobs.tokens, logprobs.text_offset):
            equal(text[offset : offset + len(token)], token, "text_offset")
    for value, top in zip(logprobs.token_logprobs, logprobs.top_logprobs):
        equal(value, max(top.values()), "lm-eval's test of greediness")
    only = server.complete(logprobs=0, max_tokens=4, **GREEDY).choices[0].logprobs
    assert all(len(top) == 1 for top in only.top_logprobs), "logprobs 0: the chosen token"


@test
def tokenize_and_detokenize_are_inverse(server):
    body = {"prompt": "Héllo 😀 world", "add_special_tokens": False}
    status, tokens = server.post("/tokenize", body)
    equal((status, tokens["count"]), (200, len(tokens["tokens"])), "count")
    assert tokens["max_model_len"] > 0
    status, text = server.post("/v1/detokenize", {"tokens": tokens["tokens"]})
    equal((status, text["prompt"]), (200, body["prompt"]), "text")
    equal(server.post("/tokenize", {"content": "a b"})[0], 200, "the other form")
    chat = server.post("/tokenize", {"messages": CHAT})[1]
    equal(chat["count"], server.chat(max_tokens=1).usage.prompt_tokens, "tokens of a chat")
    equal(server.post("/detokenize", {"tokens": [10**9]})[0], 400, "ids out of range")


def expect(kind, code, call, *arguments, **fields):
    try:
        call(*arguments, **fields)
    except kind as error:
        equal(error.code, code, f"code of {error}")
        return error
    raise AssertionError(f"no {kind.__name__} for {fields}")


@test
def bad_values_are_bad_requests(server):
    bad = openai.BadRequestError
    for code, fields in (
        ("decimal_above_max_value", {"temperature": 200}),
        ("decimal_below_min_value", {"top_p": -1}),
        ("integer_below_min_value", {"n": 0}),
        ("integer_below_min_value", {"max_tokens": 0}),
        ("invalid_type", {"max_tokens": "many"}),
        ("invalid_type", {"extra_body": {"logprobs": "x"}}),
        ("invalid_value", {"stop": ""}),
        ("invalid_value", {"top_logprobs": 2}),
        ("array_above_max_length", {"stop": ["x"] * 17}),
        ("integer_above_max_value", {"logprobs": True, "top_logprobs": 21}),
        ("empty_array", {"messages": []}),
        ("invalid_value", {"messages": [{"role": "boss", "content": "x"}]}),
        ("unsupported_value", {"response_format": {"type": "json_object"}}),
        ("invalid_value", {"extra_body": {"logit_bias": {"999999999": 1}}}),
    ):
        for stream in (False, True):
            error = expect(bad, code, server.chat, stream=stream, **fields)
            equal((error.status_code, error.type), (400, "invalid_request_error"), "error")
    expect(bad, "unsupported_value", server.complete, echo=True, logprobs=1)
    expect(bad, "empty_array", server.complete, prompt=[])
    expect(bad, "unsupported_value", server.complete, best_of=3)


@test
def an_unknown_model_and_a_long_prompt_have_their_codes(server):
    expect(
        openai.NotFoundError, "model_not_found",
        server.client.chat.completions.create, model="no-such-model", messages=CHAT,
    )  # fmt: skip
    limit = server.post("/tokenize", {"prompt": "a"})[1]["max_model_len"]
    error = expect(
        openai.BadRequestError, "context_length_exceeded", server.complete, prompt=[1] * (limit + 1)
    )
    assert f"maximum context length is {limit} tokens" in str(error), error
    expect(openai.BadRequestError, "context_length_exceeded", server.chat, max_tokens=limit)


@test
def bodies_that_are_no_json_are_refused(server):
    path = "/v1/chat/completions"
    for body in (b"", b"{", b"[]", b'{"messages":"\xff"}', b"[" * 100000, b'{"n":1e999}'):
        status, answer = server.post(path, body)
        equal((status, answer["error"]["type"]), (400, "invalid_request_error"), repr(body[:20]))
    equal(server.post(path, b"{}", "text/plain")[0], 415, "content type")


@test
def text_of_many_scripts_is_never_cut(server):
    prompt = "Repeat: 日本語テキスト, emoji 😀🎉, العربية, ñandú. Again: 日本語テキスト,"
    fields = {"max_tokens": 40, "extra_body": {"ignore_eos": True}, "temperature": 0.8, "seed": 3}
    whole = server.complete(prompt=prompt, **fields).choices[0].text
    pieces = [c.choices[0].text for c in server.complete(prompt=prompt, stream=True, **fields)]
    equal("".join(pieces), whole, "text")


@test
def token_ids_come_back(server):
    extra = {"return_token_ids": True, "ignore_eos": True}
    answer = server.complete(max_tokens=5, extra_body=extra, **GREEDY)
    ids = answer.choices[0].token_ids
    equal(len(ids), 5, "ids")
    text = server.post("/detokenize", {"tokens": answer.choices[0].prompt_token_ids + ids})[1]
    assert text["prompt"].endswith(PROMPT + answer.choices[0].text), text


def main():
    wanted, passed, failed = sys.argv[1:], 0, 0
    cluster, url = None, wanted.pop(0) if wanted and wanted[0].startswith("http") else None
    if url is None:
        from harness import Cluster

        cluster = Cluster().__enter__()
        url = f"http://{cluster.address['r0']}/v1"
    try:
        server = Server(url)
        for function in TESTS:
            if wanted and function.__name__ not in wanted:
                continue
            try:
                function(server)
                passed += 1
                print(f"ok     {function.__name__}", flush=True)
            except Exception:
                failed += 1
                traceback.print_exc()
                print(f"FAILED {function.__name__}", flush=True)
    finally:
        if cluster is not None:
            cluster.__exit__(None, None, None)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
