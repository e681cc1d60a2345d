"""Roles of live workers: a partitioned worker gives the answers of a single context, and workers
change to every role under load, by `tandem role`, while no request fails and no token changes."""

import itertools
import json
import random
import subprocess
import threading
import time

import client
from harness import FULL, MODELS, SEED, Cluster, bin_dir, equal, main, test, wait_until
from oracle import Oracle, prompt_of

OUTPUT = 24
ROLES = ("prefill", "decode", "coupled", "partitioned")


def role_command(cluster, worker, role, *more):
    return subprocess.run(
        [
            bin_dir() / "tandem",
            "role",
            worker,
            role,
            "--admin",
            cluster.address["r0.admin"],
            *more,
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def change(cluster, worker, role, seconds=60):
    """Returns once the router sees the worker serve in its new role."""
    done = role_command(cluster, worker, role)
    equal(done.returncode, 0, f"tandem role {worker} {role}: {done.stderr}")

    def there():
        listed = cluster.workers()[worker]
        return listed["role"] == role and listed["state"] == "ready"

    wait_until(there, seconds, f"{worker} is a {role} worker", 0.05)


def check_against_oracle(cluster, oracle, sizes):
    prompts = [prompt_of(oracle, n, seed=n) for n in sizes]
    jobs = [
        lambda p=p: cluster.complete(
            p, max_tokens=OUTPUT, temperature=0, ignore_eos=True, stream=True
        )
        for p in prompts
    ]
    for prompt, answer in zip(prompts, cluster.finish(cluster.start(jobs), 240)):
        what = f"{len(prompt)} tokens by {answer.decision}"
        equal(answer.verdict(), "full", f"{what}: {answer.errors}")
        equal(answer.token_ids, oracle.greedy(prompt, OUTPUT), what)


@test
def a_partitioned_worker_answers_as_a_single_context():
    oracle = Oracle(MODELS["smollm2"])
    sizes = (1, 63, 257, 320, 321, 577, 1000, 1500, 2047) if FULL else (1, 257, 321, 700)
    with Cluster(prefill=0, decode=0, partitioned=1) as cluster:
        check_against_oracle(cluster, oracle, sizes)
        cluster.wait_idle()
        metrics = cluster.metrics()
        moved = sum(v for _, v in metrics["tandem_kv_transfer_bytes_total"])
        assert moved > 0, "no row crossed between the halves"
        assert "tandem_kv_transfer_exposed_seconds_bucket" in metrics, "no histogram"
        states = {labels["state"] for labels, _ in metrics["tandem_landing_bytes"]}
        equal(states, {"used", "capacity"}, "states of landing memory")
        assert "event=partition " in cluster["v0"].log(), "the partition is not in the log"


@test
def a_real_worker_changes_to_every_role_and_answers_the_same():
    oracle = Oracle(MODELS["smollm2"])
    with Cluster(prefill=1, decode=1, coupled=1) as cluster:
        for role in ("partitioned", "prefill", "decode", "coupled"):
            change(cluster, "c0", role, 120)
            check_against_oracle(cluster, oracle, (63, 321, 400))
        cluster.wait_idle()


class Load:
    """Clients that ask again and again until told to stop; every answer is compared with the first
    one to the same question."""

    def __init__(self, cluster, clients, seed):
        rng = random.Random(seed)
        self.cluster, self.stopped, self.wrong, self.count = cluster, threading.Event(), [], 0
        self.questions = []
        for index in range(24):
            length, outputs = rng.choice((20, 90, 300, 800)), rng.choice((2, 20, 60))
            prompt = [rng.randrange(300, 30000) for _ in range(length)]
            ask = {"prompt": prompt, "max_tokens": outputs, "temperature": 0.8, "seed": index}
            ask |= {"ignore_eos": True, "n": 2 if index % 8 == 7 else 1}
            first = cluster.complete(stream=False, **ask)
            equal(first.verdict(ask["n"]), "full", f"question {index}: {first.errors}")
            self.questions.append((ask, first.tokens))
        self.lock = threading.Lock()
        self.threads = [
            threading.Thread(target=self.run, args=(random.Random(seed + 1 + i),), daemon=True)
            for i in range(clients)
        ]
        for thread in self.threads:
            thread.start()

    def run(self, rng):
        while not self.stopped.is_set():
            ask, expected = rng.choice(self.questions)
            answer = self.cluster.complete(stream=rng.random() < 0.7, **ask)
            with self.lock:
                self.count += 1
                if answer.verdict(ask["n"]) != "full":
                    self.wrong.append(f"{answer.verdict(ask['n'])}: {answer.errors}")
                elif answer.tokens != expected:
                    self.wrong.append(f"other tokens, by {answer.decision}")

    def finish(self):
        self.stopped.set()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive(), "a client hangs"
        assert not self.wrong, f"{len(self.wrong)} of {self.count} went wrong: {self.wrong[:5]}"
        return self.count


@test
def workers_change_to_every_role_under_load_and_nothing_fails():
    settings = ["worker.role_drain_ms=400", "pools.partitioned.slots=8"]
    with Cluster(engine="sim", prefill=2, decode=2, coupled=1, set=settings) as cluster:
        load = Load(cluster, clients=12, seed=SEED % 100000)
        # Every role after every other, on workers that began as each.
        turns = [(a, b) for a, b in itertools.permutations(ROLES, 2)]
        for index, (first, second) in enumerate(turns if FULL else turns[:6]):
            worker = ("p1", "d1", "c0")[index % 3]
            change(cluster, worker, first)
            time.sleep(0.3)
            change(cluster, worker, second)
        count = load.finish()
        print(f"  {count} answers")
        cluster.wait_idle()


@test
def a_command_that_cannot_be_is_refused_with_a_reason():
    with Cluster(engine="sim") as cluster:
        unknown = role_command(cluster, "d7", "prefill")
        assert unknown.returncode != 0 and "d7" in unknown.stderr, unknown.stderr
        odd = role_command(cluster, "d0", "king")
        assert odd.returncode != 0 and "king" in odd.stderr, odd.stderr
        status, _, body = client.request(
            cluster.address["r0.admin"], "POST", "/v1/workers/d0/role/king"
        )
        assert status in (400, 404), status
        assert json.loads(body)["error"]["message"], body


@test
def the_status_shows_a_change_while_it_lasts():
    settings = ["worker.role_drain_ms=60000"]
    with Cluster(engine="sim", prefill=1, decode=2, set=settings) as cluster:
        jobs = [
            lambda i=i: cluster.complete([400 + i] * 40, max_tokens=150, ignore_eos=True)
            for i in range(6)
        ]
        running = cluster.start(jobs)
        cluster.wait_running("d1", 1)
        equal(role_command(cluster, "d1", "prefill").returncode, 0, "tandem role")
        wait_until(lambda: cluster.workers()["d1"]["state"] == "switching", 5, "d1 is switching")
        second = role_command(cluster, "d1", "coupled")
        assert second.returncode != 0, "a second change at the same time is taken"
        for answer in cluster.finish(running, 60):
            equal(answer.verdict(), "full", f"{answer.errors}")
        wait_until(lambda: cluster.workers()["d1"]["role"] == "prefill", 30, "d1 is prefill")


if __name__ == "__main__":
    main()
