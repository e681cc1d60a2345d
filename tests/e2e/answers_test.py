"""Right answers: greedy tokens through prefill, transfer and decode equal a single-context libllama
run on the same chunk grid, token for token. Prompts of 1 to 4,000 tokens with the grid's edges,
both models, ucx and tcp, alone and several at once. The reference is oracle.py, which shares no
code with Tandem."""

import functools

from harness import FULL, MODELS, REMOTE, Cluster, equal, main, test
from oracle import Oracle, prompt_of

# Edges of the grid (chunks of 256; a remainder below 64 joins the chunk before it), and long ones.
LENGTHS = (
    1,
    2,
    63,
    64,
    65,
    255,
    256,
    257,
    319,
    320,
    321,
    511,
    513,
    575,
    576,
    577,
    1000,
    1500,
    2047,
    4000,
)
LENGTHS_QUICK = {"smollm2": (1, 2, 63, 257, 320, 321, 700), "gemma": (1, 319, 700)}
OUTPUT = 24


@functools.cache
def oracle(model):
    return Oracle(MODELS[model])


def lengths(model):
    return LENGTHS if FULL else LENGTHS_QUICK[model]


def wanted(model, prompt, count=OUTPUT):
    return oracle(model).greedy(prompt, count)


def ask(cluster, prompt, **params):
    return cluster.complete(prompt, max_tokens=OUTPUT, temperature=0, ignore_eos=True, **params)


def check_prompts(model, transport):
    prompts = [prompt_of(oracle(model), n, seed=n) for n in lengths(model)]
    references = [wanted(model, p) for p in prompts]
    with Cluster(model=model, set=[f"transfer.transport={transport}", REMOTE]) as cluster:
        for index, (prompt, reference) in enumerate(zip(prompts, references)):
            answer = ask(cluster, prompt, stream=index % 2 == 0)
            equal(answer.verdict(), "full", f"{len(prompt)} tokens over {transport}")
            equal(answer.token_ids, reference, f"{model}, {len(prompt)} tokens over {transport}")
            equal(answer.decision.get("path"), "remote", "the prompt ran on the prefill worker")
            if not answer.streamed:
                equal(
                    (answer.usage["prompt_tokens"], answer.usage["completion_tokens"]),
                    (len(prompt), OUTPUT),
                    "usage",
                )
        moved = sum(
            v
            for labels, v in cluster.metrics()["tandem_kv_transfer_bytes_total"]
            if labels.get("direction") != "out"
        )
        assert moved > 0, "no KV byte was transferred"
        cluster.wait_idle()
        logs = cluster["d0"].log() + cluster["p0"].log()
        assert transport in logs, f"the workers' logs do not name {transport}"


@test
def smollm2_over_ucx_equals_a_single_context():
    check_prompts("smollm2", "ucx")


@test
def smollm2_over_tcp_equals_a_single_context():
    check_prompts("smollm2", "tcp")


@test
def gemma_with_its_sliding_window_over_ucx_equals_a_single_context():
    check_prompts("gemma", "ucx")


@test
def gemma_with_its_sliding_window_over_tcp_equals_a_single_context():
    check_prompts("gemma", "tcp")


def check_together(model, count):
    sizes = [40 + 97 * i for i in range(count)]
    prompts = [prompt_of(oracle(model), n, seed=1000 + n) for n in sizes]
    references = [wanted(model, p) for p in prompts]
    with Cluster(model=model) as cluster:
        running = cluster.start([lambda p=p: ask(cluster, p, stream=True) for p in prompts])
        for size, answer, reference in zip(sizes, cluster.finish(running, 180), references):
            equal(answer.verdict(), "full", f"{size} tokens")
            equal(answer.token_ids, reference, f"{model}, {size} tokens beside {count - 1} others")
        cluster.wait_idle()


@test
def smollm2_answers_do_not_depend_on_what_else_runs():
    check_together("smollm2", 12 if FULL else 6)


@test
def gemma_answers_do_not_depend_on_what_else_runs():
    check_together("gemma", 8 if FULL else 6)


@test
def an_answer_ends_at_the_models_end_token():
    """Without ignore_eos, the answer is the reference cut at its first end token (chat prompts end
    soon)."""
    text = "<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant\n"
    with Cluster() as cluster:
        free = cluster.complete(text, max_tokens=64, temperature=0, ignore_eos=True)
        cut = cluster.complete(text, max_tokens=64, temperature=0)
        equal((free.verdict(), cut.verdict()), ("full", "full"), "verdicts")
        equal(free.finish[0], "length", "finish with ignore_eos")
        if cut.finish[0] == "stop":
            equal(cut.token_ids, free.token_ids[: len(cut.token_ids)], "tokens before the end")
            equal(cut.usage["completion_tokens"], len(cut.token_ids), "the end token is counted")
        one = cluster.complete(text, max_tokens=1, temperature=0)
        equal(one.token_ids, free.token_ids[:1], "max_tokens=1")
        equal(one.finish[0], "length", "finish of max_tokens=1")
        cluster.wait_idle()


if __name__ == "__main__":
    main()
