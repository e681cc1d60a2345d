"""Two routers share one pool of workers: 500 requests go through each, one router is killed half
way, and none of the other's requests is affected; the dead router's reservations come back."""

import random
import threading
import time

from harness import SEED, Cluster, equal, main, test, wait_until

REQUESTS = 500
CLIENTS = 20  # Per router
CASES = 20


class Load:
    """CLIENTS threads that send requests through one router until REQUESTS are answered or `halt`
    is set."""

    def __init__(self, cluster, router, cases):
        self.cluster, self.router, self.cases = cluster, router, cases
        self.lock, self.sent, self.answers, self.halt = threading.Lock(), 0, [], False
        self.threads = [threading.Thread(target=self.run, daemon=True) for _ in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def run(self):
        while True:
            with self.lock:
                if self.sent == REQUESTS or self.halt:
                    return
                index, self.sent = self.sent, self.sent + 1
            parameters, expected = self.cases[index % len(self.cases)]
            answer = self.cluster.complete(router=self.router, stream=index % 3 != 0, **parameters)
            with self.lock:
                self.answers.append((answer, expected))

    def join(self, seconds):
        deadline = time.monotonic() + seconds
        for thread in self.threads:
            thread.join(max(0, deadline - time.monotonic()))
        assert not any(t.is_alive() for t in self.threads), f"clients of {self.router} hang"


@test
def one_router_dies_and_the_others_requests_are_not_affected():
    rng = random.Random(SEED)
    cases = [
        {
            "prompt": [rng.randrange(10, 30000) for _ in range(rng.randrange(20, 600))],
            "seed": i,
            "temperature": 1,
            "max_tokens": rng.randrange(4, 40),
            "ignore_eos": True,
        }
        for i in range(CASES)
    ]
    with Cluster(
        engine="sim",
        prefill=2,
        decode=2,
        routers=2,
        set=["pools.decode.slots=32", "sim.prefill_per_token_us=60"],
    ) as cluster:
        known = []
        for parameters in cases:
            answer = cluster.complete(**parameters)
            equal(answer.verdict(), "full", "reference")
            known.append((parameters, answer.tokens))
        loads = {router: Load(cluster, router, known) for router in ("r0", "r1")}
        wait_until(
            lambda: len(loads["r0"].answers) >= REQUESTS // 2,
            120,
            "half of the requests are answered",
        )
        before = list(loads["r0"].answers)
        cluster["r0"].kill()
        loads["r0"].halt = True
        loads["r1"].join(180)
        loads["r0"].join(30)
        equal(len(loads["r1"].answers), REQUESTS, "answers through the living router")
        for answer, expected in loads["r1"].answers:
            equal(answer.verdict(), "full", f"{answer.decision} {answer.errors}")
            equal(answer.tokens, expected, f"tokens by {answer.decision}")
        for answer, expected in before:
            equal((answer.verdict(), answer.tokens), ("full", expected), "answers before the death")
        cluster.wait_idle(5, routers=["r1"])
        slowest = max(a.seconds for a, _ in loads["r1"].answers)
        print(f"  slowest answer through the living router: {slowest:.1f} s")
        cluster["r0"].start()
        wait_until(
            lambda: cluster.ready_workers("r0") == {"p0", "p1", "d0", "d1"},
            15,
            "the router is back",
        )
        equal(
            cluster.complete(router="r0", **cases[0]).tokens,
            known[0][1],
            "through the restarted router",
        )


if __name__ == "__main__":
    main()
