"""Sampled answers: the same seed gives the same tokens with and without a transfer, on another day,
and when the decode worker is killed at a random token: the text is byte-equal to the undisturbed
run. Penalties, min_p, bias, n of 2 and seeds drawn by the router are among them."""

import random
import threading
import time

from harness import FULL, SEED, REMOTE, Cluster, equal, main, test
from oracle import sample_text

ROUNDS = 200 if FULL else 6
OUTPUT = 40

CASES = [
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.9, "top_k": 40},
    {"temperature": 1.2, "min_p": 0.05, "repetition_penalty": 1.1},
    {"temperature": 0.9, "frequency_penalty": 0.7, "presence_penalty": 0.4},
    {"temperature": 1.0, "n": 2},
    {"temperature": 0.7, "n": 2, "repetition_penalty": 1.2, "top_p": 0.95},
    {"temperature": 1.0, "logit_bias": {"260": 3, "28": -100}},
    {"temperature": 0},
]


def case(index, rng):
    prompt = sample_text(rng.choice((5, 60, 200, 300)), seed=index)
    return {
        "prompt": prompt,
        "max_tokens": OUTPUT,
        "ignore_eos": True,
        "seed": rng.randrange(1 << 40),
        **CASES[index % len(CASES)],
    }


def content(answer, parameters):
    n = parameters.get("n", 1)
    equal(answer.verdict(n), "full", f"{parameters} -> {answer.errors or answer.failure}")
    return [(answer.texts[i], answer.tokens[i], answer.finish[i]) for i in range(n)]


@test
def a_seed_gives_the_same_tokens_with_and_without_transfer():
    rng = random.Random(SEED)
    cases = [case(i, rng) for i in range(24 if FULL else 8)]
    with Cluster(prefill=1, decode=1, set=[REMOTE]) as cluster:
        apart = [content(cluster.complete(**c), c) for c in cases]
        again = [content(cluster.complete(stream=True, **c), c) for c in cases[:4]]
        equal(again, apart[:4], "streamed again")
        cluster.wait_idle()
    with Cluster(prefill=0, decode=0, coupled=1) as cluster:
        for parameters, expected in zip(cases, apart):
            answer = cluster.complete(**parameters)
            equal(content(answer, parameters), expected, f"without transfer: {parameters}")
            equal(answer.decision.get("path"), "local", "path")
        cluster.wait_idle()


@test
def choices_differ_and_unseeded_answers_differ():
    with Cluster() as cluster:
        two = cluster.complete(
            "Once upon a time", max_tokens=24, n=2, seed=5, temperature=1, ignore_eos=True
        )
        assert two.tokens[0] != two.tokens[1], "both choices drew the same tokens"
        texts = {
            cluster.complete("Once upon a time", max_tokens=24, temperature=1, ignore_eos=True).text
            for _ in range(3)
        }
        assert len(texts) > 1, "the router draws the same seed every time"


def run_and_kill(cluster, parameters, kill_at):
    """Streams a request and kills its decode worker when `kill_at` tokens are out."""
    killed = []

    def on_frame(answer):
        victim = answer.decision.get("decode")
        if not killed and victim and sum(map(len, answer.tokens.values())) >= kill_at:
            killed.append(victim)
            threading.Thread(target=cluster[victim].kill).start()
        return False

    return cluster.complete(stream=True, on_frame=on_frame, **parameters), killed


@test
def killing_the_decode_worker_changes_no_byte():
    rng = random.Random(SEED + 1)
    cases = [case(i, rng) for i in range(len(CASES) * (3 if FULL else 1))]
    disturbed = 0
    with Cluster(prefill=1, decode=2, set=["pools.decode.slots=4", REMOTE]) as cluster:
        expected = {}
        for round_index in range(ROUNDS):
            which = round_index % len(cases) if not FULL else rng.randrange(len(cases))
            parameters = cases[which]
            if which not in expected:
                expected[which] = content(cluster.complete(**parameters), parameters)
            kill_at = rng.randrange(1, OUTPUT * parameters.get("n", 1))
            answer, killed = run_and_kill(cluster, parameters, kill_at)
            equal(
                content(answer, parameters),
                expected[which],
                f"round {round_index}, {killed} killed at token {kill_at}: {parameters}",
            )
            disturbed += bool(killed)
            for name in killed:
                cluster.restart(name)
        cluster.wait_idle()
        recovered = sum(v for _, v in cluster.metrics().get("tandem_recovered_total", []))
    print(f"  {ROUNDS} rounds, {disturbed} kills, {recovered:g} recoveries")
    assert disturbed >= ROUNDS * 0.9 and recovered >= 1, "hardly any request was disturbed"


@test
def killing_the_prefill_worker_changes_no_byte():
    rng = random.Random(SEED + 2)
    with Cluster(prefill=2, decode=1, set=[REMOTE]) as cluster:
        for round_index in range(20 if FULL else 2):
            parameters = {**case(round_index, rng), "prompt": sample_text(700, seed=round_index)}
            expected = content(cluster.complete(**parameters), parameters)
            running = cluster.start([lambda: cluster.complete(stream=True, **parameters)])
            time.sleep(rng.uniform(0.05, 0.8))  # Somewhere in the prompt; where does not matter.
            victim = next(
                (
                    n
                    for n, w in cluster.workers().items()
                    if n[0] == "p" and w.get("load", w)["prefill_backlog_tokens"]
                ),
                "p0",
            )
            cluster[victim].kill()
            equal(
                content(cluster.finish(running, 60)[0], parameters),
                expected,
                f"round {round_index}, {victim} killed: {parameters}",
            )
            cluster.restart(victim)
        cluster.wait_idle()


@test
def with_nobody_left_the_client_gets_one_clear_error():
    with Cluster(prefill=1, decode=1) as cluster:
        answer, killed = run_and_kill(cluster, case(0, random.Random(3)), 5)
        equal(
            (answer.verdict(), killed),
            ("error", ["d0"]),
            f"after the only decode worker's death: {answer.errors}",
        )
        assert answer.text, "the text before the death is missing"
        refused = cluster.complete("Hello", max_tokens=4, timeout=60)
        equal((refused.status, refused.verdict()), (503, "error"), "a new request")


if __name__ == "__main__":
    main()
