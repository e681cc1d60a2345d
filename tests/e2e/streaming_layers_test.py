"""Layers really stream: for a prompt of 1,500 tokens the first KV bytes land before 10% of the
prefill time has passed and at least 95% of them when prefill ends; over ucx and tcp, with an idle
and a busy decode worker."""

from harness import FULL, MODELS, Cluster, equal, main, test
from oracle import Oracle, prompt_of
from timeline import Timeline

PROMPT = 1500
ROUNDS = 5 if FULL else 1


def check(transport, busy):
    oracle = Oracle(MODELS["smollm2"])
    with Cluster(set=[f"transfer.transport={transport}", "pools.decode.slots=8"]) as cluster:
        cluster.complete(prompt_of(oracle, 300, 5), max_tokens=2, ignore_eos=True)  # First touches.
        for round_index in range(ROUNDS):
            others = [
                lambda i=i: cluster.complete(
                    [10 + i, 20, 30],
                    max_tokens=900,
                    ignore_eos=True,
                    stream=True,
                    on_frame=lambda _: stop,
                )
                for i in range(4 if busy else 0)
            ]
            stop = False
            running = cluster.start(others)
            if busy:
                cluster.wait_running("d0", 4)
            answer = cluster.complete(
                prompt_of(oracle, PROMPT, 77 + round_index),
                max_tokens=8,
                temperature=0,
                ignore_eos=True,
            )
            still_busy = not busy or cluster.running("d0") >= 1
            stop = True
            cluster.finish(running, 60)
            equal(answer.verdict(), "full", f"the long prompt {answer.errors}")
            assert still_busy, (
                "the decode worker was no longer busy: give the other streams more tokens"
            )
            line = Timeline(cluster.timeline(answer.request_id))
            first, landed = line.first_byte_share(), line.landed_share_at_prefill_end()
            print(
                f"  {transport}, {'busy' if busy else 'idle'}: prefill {line.prefill_ms:.0f} ms, "
                f"first byte at {first:.1%} of it, {landed:.1%} of {line.bytes / 1e6:.1f} MB "
                f"landed at its end, joined {line.join_ms:.1f} ms after it"
            )
            assert first < 0.10, f"first bytes landed after {first:.1%} of the prefill time"
            assert landed >= 0.95, f"only {landed:.1%} landed when prefill ended"
            cluster.wait_idle(5)


@test
def over_ucx_to_an_idle_decode_worker():
    check("ucx", busy=False)


@test
def over_ucx_to_a_busy_decode_worker():
    check("ucx", busy=True)


@test
def over_tcp_to_an_idle_decode_worker():
    check("tcp", busy=False)


@test
def over_tcp_to_a_busy_decode_worker():
    check("tcp", busy=True)


if __name__ == "__main__":
    main()
