"""Nothing leaks: after each of many random faults, the death is noticed within 3 s, every KV token,
transfer and credit is back at its idle value 2 s later, shared memory is as before, and every
client got its full and right answer or one clear error. Faults: SIGKILL or SIGSTOP of a prefill
worker in mid-prefill and of a decode worker in mid-decode, a client that hangs up in each phase, a
refused grant, corrupt units. Most rounds run on the sim engine (real protocol, simulated
computing), some on the real one."""

import json
import random
import socket
import threading
import time

from harness import FULL, SEED, Cluster, equal, main, shared_memory, test, wait_until
from oracle import sample_text

ROUNDS_SIM = 180 if FULL else 22
ROUNDS_LLAMA = 24 if FULL else 4
NOTICED_SECONDS = 3.0
IDLE_SECONDS = 2.0
SLACK_SECONDS = 0.3  # Of polling, on a busy machine
# p1 corrupts some of its units; d1 has room for one transfer at a time and refuses soon.
EACH = {
    "p1": [f"transfer.fault=seed={SEED % 1000},corrupt=0.004"],
    "d1": [
        "transfer.landing_bytes=1MiB",
        "transfer.segment_bytes=1MiB",
        "transfer.grant_deadline_ms=150",
    ],
}


class Chaos:
    def __init__(self, cluster, rng, cases):
        self.cluster, self.rng, self.cases = cluster, rng, cases
        self.counts, self.verdicts = {}, {}
        self.slowest_notice = 0.0

    def run(self, rounds):
        kinds = [
            self.kill_prefill,
            self.stop_prefill,
            self.kill_decode,
            self.stop_decode,
            self.disconnect,
            self.disconnect,
            self.refused_grant,
            self.corrupt_unit,
        ]
        order = []
        while len(order) < rounds:
            order += self.rng.sample(kinds, len(kinds))
        for index, fault in enumerate(order[:rounds]):
            try:
                fault()
                self.cluster.wait_idle(IDLE_SECONDS + SLACK_SECONDS)
            except AssertionError as error:
                raise AssertionError(
                    f"round {index} of {rounds}, {fault.__name__}: {error}"
                ) from error
            self.counts[fault.__name__] = self.counts.get(fault.__name__, 0) + 1
        print(
            f"  {self.counts}, answers {self.verdicts}, slowest notice {self.slowest_notice:.2f} s"
        )

    # ---- clients ----

    def client(self, on_frame=None):
        parameters, expected = self.rng.choice(self.cases)
        stream = self.rng.random() < 0.7
        return lambda: (
            self.cluster.complete(stream=stream, on_frame=on_frame, **parameters),
            parameters,
            expected,
        )

    def start(self, count):
        return self.cluster.start([self.client() for _ in range(count)])

    def check(self, running):
        for answer, parameters, expected in self.cluster.finish(running, 60):
            n = parameters.get("n", 1)
            verdict = answer.verdict(n)
            self.verdicts[verdict] = self.verdicts.get(verdict, 0) + 1
            assert verdict in ("full", "error"), f"{verdict} ({answer.decision}, {answer.errors})"
            for i in range(n if verdict == "full" else 0):
                equal(answer.tokens[i], expected[i], f"tokens of choice {i} by {answer.decision}")
            for i, tokens in answer.tokens.items():
                equal(
                    tokens,
                    expected[i][: len(tokens)],
                    f"tokens before an error, by {answer.decision}",
                )

    # ---- faults ----

    def lose(self, name, sign, running):
        """Kills or stops a worker, checks that its death is noticed, that clients end well, and
        brings it back."""
        at = time.monotonic()
        getattr(self.cluster[name], sign)()
        wait_until(
            lambda: name not in self.cluster.ready_workers(),
            NOTICED_SECONDS + SLACK_SECONDS - 0.001,
            f"the router notices that {name} is gone",
        )
        self.slowest_notice = max(self.slowest_notice, time.monotonic() - at)
        self.check(running)
        self.cluster.wait_idle(IDLE_SECONDS + SLACK_SECONDS)
        if sign == "stop":
            self.cluster[name].resume()
            wait_until(
                lambda: name in self.cluster.ready_workers(), 10, f"{name} is back after SIGCONT"
            )
        else:
            self.cluster.restart(name)

    def lose_prefill(self, sign):
        running = self.start(5)
        time.sleep(self.rng.uniform(0.02, 0.4))  # Where in the prompt is what is random here.
        busy = [
            n
            for n, w in self.cluster.workers().items()
            if n[0] == "p" and w.get("load", w)["prefill_backlog_tokens"] > 0
        ]
        self.lose(self.rng.choice(busy or ["p0"]), sign, running)

    def kill_prefill(self):
        self.lose_prefill("kill")

    def stop_prefill(self):
        self.lose_prefill("stop")

    def lose_decode(self, sign):
        started, at, victim = threading.Event(), self.rng.randrange(1, 12), []

        def on_frame(answer):
            if sum(map(len, answer.tokens.values())) >= at and not started.is_set():
                victim.append(answer.decision.get("decode"))
                started.set()

        parameters, expected = self.rng.choice(self.cases)
        jobs = [
            lambda: (
                self.cluster.complete(stream=True, on_frame=on_frame, **parameters),
                parameters,
                expected,
            )
        ]
        running = self.cluster.start(jobs + [self.client() for _ in range(3)])
        wait_until(
            lambda: started.is_set() or not running.threads[0].is_alive(), 60, "tokens or an end"
        )
        self.lose((victim and victim[0]) or "d0", sign, running)

    def kill_decode(self):
        self.lose_decode("kill")

    def stop_decode(self):
        self.lose_decode("stop")

    def disconnect(self):
        """Hangs up while sending the body, while queued, in prefill and transfer, and while tokens
        come."""
        running = self.start(2)
        phase = self.rng.choice(("body", "queued", "prefill", "decode", "decode, unstreamed"))
        if phase == "decode":
            parameters, expected = self.rng.choice(self.cases)
            at = self.rng.randrange(1, min(15, sum(map(len, expected.values()))))
            answer = self.cluster.complete(
                stream=True, on_frame=lambda a: sum(map(len, a.tokens.values())) >= at, **parameters
            )
            assert "hung up" in (answer.failure or ""), (
                f"the client should have hung up: {answer.verdict()}"
            )
        else:
            stay = {
                "body": 0.0,
                "queued": self.rng.uniform(0, 0.01),
                "prefill": self.rng.uniform(0.02, 0.5),
                "decode, unstreamed": self.rng.uniform(0.4, 1.0),
            }[phase]
            self.hang_up(
                stay,
                half=phase == "body",
                stream=phase != "decode, unstreamed" and self.rng.random() < 0.5,
            )
        self.counts[f"({phase})"] = self.counts.get(f"({phase})", 0) + 1
        self.check(running)

    def hang_up(self, stay, half, stream):
        parameters, _ = self.rng.choice(self.cases)
        body = json.dumps({**parameters, "stream": stream}).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        host, port = self.cluster.address["r0"].rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(head + body[: len(body) // 2 if half else None])
            time.sleep(stay)  # The length of the stay is what is random here.

    def refused_grant(self):
        self.check(self.start(8))

    def corrupt_unit(self):
        self.check(self.start(6))


def references(cases, **cluster):
    """What a coupled worker answers: no transfer, no faults."""
    with Cluster(prefill=0, decode=0, coupled=1, **cluster) as quiet:
        out = []
        for parameters in cases:
            answer = quiet.complete(**parameters)
            equal(answer.verdict(parameters.get("n", 1)), "full", f"reference for {parameters}")
            out.append((parameters, answer.tokens))
        return out


def chaos(engine, rounds, cases, seed, **more):
    rng = random.Random(seed)
    cases = references(cases, engine=engine)
    before = shared_memory()
    with Cluster(
        engine=engine,
        prefill=2,
        decode=2,
        each=EACH,
        set=["scheduler.retries_max=5", "transfer.fault=seed=1"],
        **more,
    ) as cluster:
        chaos_run = Chaos(cluster, rng, cases)
        chaos_run.run(rounds)
        failures = {
            labels.get("reason"): value
            for labels, value in cluster.metrics().get("tandem_kv_transfer_failures_total", [])
        }
        print(f"  transfer failures by reason: {failures}")
        full = chaos_run.verdicts.get("full", 0)
        assert full >= 0.8 * sum(chaos_run.verdicts.values()), (
            f"too few full answers: {chaos_run.verdicts}"
        )
    wait_until(lambda: not shared_memory() - before, 2, "shared memory is as before")


@test
def faults_at_random_on_the_sim_engine_leak_nothing():
    rng = random.Random(SEED)
    cases = [
        {
            "prompt": [rng.randrange(10, 30000) for _ in range(rng.randrange(64, 2500))],
            "seed": 7 + i,
            "max_tokens": rng.randrange(10, 50),
            "ignore_eos": True,
            "temperature": i % 2,
            "n": 1 + (i % 5 == 0),
        }
        for i in range(12)
    ]
    chaos("sim", ROUNDS_SIM, cases, SEED)


@test
def faults_at_random_on_the_real_engine_leak_nothing():
    rng = random.Random(SEED + 1)
    cases = [
        {
            "prompt": sample_text(rng.randrange(40, 500), seed=i),
            "seed": i,
            "max_tokens": rng.randrange(8, 24),
            "ignore_eos": True,
            "temperature": i % 2,
            "n": 1 + (i == 3),
        }
        for i in range(6)
    ]
    chaos("llama", ROUNDS_LLAMA, cases, SEED + 1)


if __name__ == "__main__":
    main()
