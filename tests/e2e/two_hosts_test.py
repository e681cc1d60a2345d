"""Two hosts: prefill worker and router on one, decode worker on the other, 2 ms of delay each way
and 1% loss between them. Answers are right over tcp and over ucx's own TCP; when the decode
worker's host is cut off in mid-transfer or in mid-answer, the request recovers elsewhere or ends in
one clear error, and nothing stays reserved."""

import pathlib
import tempfile
import time

import two_hosts
from harness import FULL, MODELS, REMOTE, SEED, Cluster, equal, main, test, wait_until
from oracle import Oracle, prompt_of

LENGTHS = (1, 64, 257, 320, 700, 1500) if FULL else (1, 257, 500)
OUTPUT = 16


def cluster(transport, cable, directory, **more):
    """d0 on host B; p0, the router and, where asked for, d1 on host A."""
    secret = pathlib.Path(directory) / "secret"
    secret.write_text("only these two hosts know")
    ucx = {"UCX_TLS": "tcp"} if transport == "ucx" else {}
    hosts = {"p0": cable.address_a, "d0": cable.address_b, "d1": cable.address_a}
    return Cluster(
        host=hosts,
        wrap={"d0": cable.on_b},
        env={"all": ucx},
        set=[f"transfer.transport={transport}", f"link.secret_file={secret}", REMOTE],
        **more,
    )


def check_answers(transport):
    oracle = Oracle(MODELS["smollm2"])
    prompts = [prompt_of(oracle, n, seed=n) for n in LENGTHS]
    references = [oracle.greedy(p, OUTPUT) for p in prompts]
    cable = two_hosts.Cable(delay_ms=2, loss=0.01, seed=SEED)
    try:
        with (
            tempfile.TemporaryDirectory() as directory,
            cluster(transport, cable, directory) as two,
        ):
            for prompt, reference in zip(prompts, references):
                answer = two.complete(
                    prompt, max_tokens=OUTPUT, temperature=0, ignore_eos=True, stream=True
                )
                equal(answer.verdict(), "full", f"{len(prompt)} tokens: {answer.errors}")
                equal(answer.token_ids, reference, f"{len(prompt)} tokens over {transport}")
                equal(answer.decision.get("decode"), "d0", "the decode worker on the other host")
            two.wait_idle(5)
            kilobytes = sum(map(len, prompts)) * 23040 / 1000
            assert cable.carried > kilobytes / 9, f"only {cable.carried} packets crossed the cable"
        print(f"  {transport}: {cable.carried} packets carried, {cable.lost} lost")
    finally:
        cable.close()


@test
def answers_are_right_over_tcp():
    check_answers("tcp")


@test
def answers_are_right_over_ucx():
    check_answers("ucx")


def keep_spare_busy(two):
    """Gives d1 an endless answer, so that the scheduler prefers d0; returns what ends it."""

    def occupy():
        stop, got = [], []
        running = two.start(
            [
                lambda: two.complete(
                    [1, 2, 3],
                    max_tokens=600,
                    ignore_eos=True,
                    stream=True,
                    on_frame=lambda answer: got.append(answer) or bool(stop),
                )
            ]
        )
        wait_until(lambda: got, 60, "a decode worker is busy")
        return got[0].decision["decode"], lambda: (stop.append(1), two.finish(running, 60))

    worker, end = occupy()
    if worker == "d1":
        return end
    _, end_other = occupy()  # On d1, which is emptier now
    end()
    wait_until(lambda: two.running("d0") == 0, 30, "d0 is free again")
    return end_other


def check_cut(transport, spare, when):
    """Cuts host B off `when` ("transfer" or "decode"); `spare`: another decode worker lives on host
    A."""
    oracle = Oracle(MODELS["smollm2"])
    prompt = prompt_of(oracle, 1500, seed=3)
    reference = oracle.greedy(prompt, OUTPUT)
    cable = two_hosts.Cable(delay_ms=2, loss=0.01, seed=SEED)
    try:
        with (
            tempfile.TemporaryDirectory() as directory,
            cluster(transport, cable, directory, decode=2 if spare else 1) as two,
        ):
            busy = keep_spare_busy(two) if spare else None
            carried = cable.carried
            got = []
            running = two.start(
                [
                    lambda: two.complete(
                        prompt,
                        max_tokens=OUTPUT,
                        temperature=0,
                        ignore_eos=True,
                        stream=True,
                        on_frame=lambda a: got.append(a) and False,
                    )
                ]
            )
            if when == "transfer":
                wait_until(lambda: cable.carried > carried + 3000, 60, "the transfer is under way")
            else:
                wait_until(lambda: len(got) > 3, 60, "tokens come")
            cable.cut()
            at = time.monotonic()
            answer = two.finish(running, 60)[0]
            print(
                f"  cut off in mid-{when} over {transport}, {'with' if spare else 'no'} spare: "
                f"{answer.verdict()} after "
                f"{time.monotonic() - at:.1f} s {answer.errors}"
            )
            assert answer.verdict() in ("full", "error"), answer.verdict()
            equal(answer.token_ids, reference[: len(answer.token_ids)], "tokens")
            if spare:
                equal(answer.verdict(), "full", f"with a living spare: {answer.errors}")
                busy()
            wait_until(lambda: "d0" not in two.ready_workers(), 5, "d0's absence is noticed")
            two.wait_idle(5)
            cable.mend()
            wait_until(lambda: "d0" in two.ready_workers(), 30, "d0 is back")
            two.wait_idle(5)
            equal(
                two.complete(prompt[:100], max_tokens=4, temperature=0, ignore_eos=True).token_ids,
                oracle.greedy(prompt[:100], 4),
                "after mending",
            )
    finally:
        cable.close()


@test
def cut_off_in_mid_transfer_over_tcp_with_nobody_left():
    check_cut("tcp", spare=False, when="transfer")


@test
def cut_off_in_mid_transfer_over_ucx_recovers_on_a_spare():
    check_cut("ucx", spare=True, when="transfer")


@test
def cut_off_in_mid_answer_over_tcp_recovers_on_a_spare():
    check_cut("tcp", spare=True, when="decode")


if __name__ == "__main__":
    two_hosts.become_host_a()
    main()
