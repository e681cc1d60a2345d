"""Real processes for the end-to-end tests: `Cluster` starts workers and routers, waits until they
serve, kills and stops them by pid, and leaves nothing behind.

    with Cluster(engine="sim", prefill=2, decode=2) as cluster:
        answer = cluster.complete([1, 2, 3], max_tokens=8, stream=True)
        cluster["d0"].kill()

Tests register with @test and end with `main()`, which prints "N passed, N failed" and exits 0, 1
or, when something that they need is missing, 77. TANDEM_BIN names the folder of the programs,
TANDEM_SEED replays a run's randomness, TANDEM_FULL=1 asks for the full counts.
"""

import collections
import pathlib
import sys
import tempfile
import threading
import time
import traceback

import client
from process import (
    FULL,
    MODELS,
    ROOT,
    SEED,
    Process,
    bin_dir,
    free_port,
    leftover_processes,
    shared_memory,
    skip,
    wait_until,
)

# Short durations and small caches: the protocol is real, only computing is simulated.
SIM = (
    "model.engine=sim",
    "model.name=sim",
    "model.context=4096",
    "sim.prefill_base_ms=4",
    "sim.prefill_per_token_us=300",
    "sim.prefill_per_token2_us=0",
    "sim.decode_base_ms=8",
    "sim.decode_per_sequence_ms=0.05",
    "sim.decode_per_context_us=0",
    "sim.layers=8",
    "sim.kv_bytes_per_token=8192",
    "sim.vocab=32000",
)
IDLE_GAUGES = (
    "tandem_kv_tokens",
    "tandem_transfers_in_flight",
    "tandem_requests_running",
    "tandem_router_queue",
    "tandem_router_requests",
)
IDLE_LOAD = (
    "running",
    "waiting",
    "kv_tokens_used",
    "kv_tokens_reserved",
    "transfers_in_flight",
    "prefill_backlog_tokens",
)
# The prompt runs on a prefill worker, whatever the policy would rather do.
REMOTE = "scheduler.policy=static_split"
Running = collections.namedtuple("Running", "threads answers")


class Cluster:
    """Workers p0.., d0.., c0.., v0.. (partitioned) and routers r0... `set`: for all; `each`:
    {process name: settings} more for one."""

    def __init__(
        self,
        engine="llama",
        model="smollm2",
        prefill=1,
        decode=1,
        coupled=0,
        partitioned=0,
        routers=1,
        set=(),
        each=None,
        env=None,
        wrap=None,
        host=None,
        ready_seconds=240,
    ):
        self.dir = tempfile.TemporaryDirectory(prefix="tandem-e2e-")
        self.bin, self.each, self.env, self.wrap = bin_dir(), each or {}, env or {}, wrap or {}
        self.settings = [*(SIM if engine == "sim" else (f"model.path={MODELS[model]}",)), *set]
        self.ready_seconds, self.host = ready_seconds, host or {}
        self.config = pathlib.Path(self.dir.name) / "cluster.yaml"
        self.config.write_text("log: { level: info }\n")
        if engine != "sim" and not MODELS[model].exists():
            skip(f"{MODELS[model]} is missing")
        self.processes, self.address = {}, {}
        for kind, count in (
            ("p", prefill),
            ("d", decode),
            ("c", coupled),
            ("v", partitioned),
        ):
            for index in range(count):
                self._add_worker(f"{kind}{index}")
        for index in range(routers):
            self._add_router(f"r{index}")

    def _sets(self, name):
        return [part for s in (*self.settings, *self.each.get(name, ())) for part in ("--set", s)]

    def _add(self, name, argv):
        env = {**self.env.get("all", {}), **self.env.get(name, {})}
        self.processes[name] = Process(name, argv, self.dir.name, env, self.wrap.get(name, ()))

    def _add_worker(self, name):
        program = {
            "p": ["tandem-prefill-worker"],
            "d": ["tandem-decode-worker"],
            "c": ["tandem-decode-worker", "--role", "coupled"],
            "v": ["tandem-decode-worker", "--role", "partitioned"],
        }[name[0]]
        self.address[name] = f"{self.host.get(name, '127.0.0.1')}:{free_port()}"
        self._add(
            name,
            [
                self.bin / program[0],
                *program[1:],
                "-c",
                self.config,
                "--name",
                name,
                "--listen",
                self.address[name],
                *self._sets(name),
            ],
        )

    def _add_router(self, name):
        pools = {"p": "prefill", "d": "decode", "c": "coupled", "v": "partitioned"}
        sets = []
        for kind, pool in pools.items():
            members = ",".join(f'"tcp://{a}"' for n, a in self.address.items() if n[0] == kind)
            if members:
                sets += ["--set", f"pools.{pool}.workers=[{members}]"]
        self.address[name] = f"127.0.0.1:{free_port()}"
        self.address[name + ".admin"] = f"127.0.0.1:{free_port()}"
        self._add(
            name,
            [
                self.bin / "tandem-router",
                "-c",
                self.config,
                *self._sets(name),
                *sets,
                "--set",
                f"router.listen={self.address[name]}",
                "--set",
                f"router.admin={self.address[name + '.admin']}",
            ],
        )

    def __getitem__(self, name):
        return self.processes[name]

    def __enter__(self):
        try:
            for process in self.processes.values():
                process.start()
            self.wait_ready()
        except BaseException:
            self.print_logs()
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind, *_):
        if kind and not issubclass(kind, SystemExit):
            self.print_logs()
        for process in sorted(self.processes.values(), key=lambda p: p.name, reverse=True):
            process.terminate()
        self.dir.cleanup()

    def print_logs(self, lines=25):
        for name, process in self.processes.items():
            print(f"--- {name}\n" + "\n".join(process.log().splitlines()[-lines:]), file=sys.stderr)

    def routers(self):
        return [n for n, p in self.processes.items() if n[0] == "r" and p.alive()]

    def worker_names(self):
        return [n for n in self.processes if n[0] != "r"]

    def wait_ready(self, seconds=None, workers=None):
        """Until every router accepts on every one of `workers` (default: all). A worker that exits
        fails at once."""

        def ready():
            gone = [n for n in workers or self.worker_names() if not self[n].alive()]
            if gone:
                raise SystemError(f"{gone} exited")
            return all(
                self.ready_workers(r) >= set(workers or self.worker_names()) for r in self.routers()
            )

        wait_until(ready, seconds or self.ready_seconds, "workers are ready", 0.05)

    def workers(self, router="r0"):
        """What /v1/workers says, by name."""
        listed = client.get_json(self.address[router + ".admin"], "/v1/workers")
        return {w["name"]: w for w in listed["data"]}

    def ready_workers(self, router="r0"):
        return {n for n, w in self.workers(router).items() if w["state"] == "ready"}

    def running(self, worker, router="r0"):
        """Sequences that `worker` runs now."""
        entry = self.workers(router)[worker]
        return entry.get("load", entry)["running"]

    def wait_running(self, worker, count, seconds=30):
        wait_until(
            lambda: self.running(worker) >= count, seconds, f"{worker} runs {count} sequences"
        )

    def restart(self, name, seconds=30):
        if self[name].alive():
            self[name].kill()
        self[name].start()
        wait_until(
            lambda: all(name in self.ready_workers(r) for r in self.routers()),
            seconds,
            f"{name} is back",
        )

    def complete(self, prompt=None, router="r0", **params):
        return client.complete(self.address[router], prompt, **params)

    def start(self, jobs):
        """Runs callables that return answers, each in its own thread."""
        answers = [None] * len(jobs)

        def run(index):
            answers[index] = jobs[index]()

        threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(jobs))]
        for thread in threads:
            thread.start()
        return Running(threads, answers)

    def finish(self, running, seconds):
        deadline = time.monotonic() + seconds
        for thread in running.threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        hanging = sum(t.is_alive() for t in running.threads)
        assert not hanging, f"{hanging} clients hang after {seconds} s"
        return running.answers

    def timeline(self, request_id, router="r0"):
        return client.get_json(self.address[router + ".admin"], f"/v1/requests/{request_id}")

    def metrics(self, router="r0"):
        status, _, body = client.request(
            self.address[router + ".admin"], "GET", "/metrics", timeout=5
        )
        assert status == 200, status
        return client.parse_metrics(body.decode())

    def busy(self, router="r0"):
        """What is not at its idle value, as text; empty when all is."""
        metrics, workers = self.metrics(router), self.workers(router)
        found = [
            f"{name}{labels}={value:g}"
            for name in IDLE_GAUGES
            for labels, value in metrics.get(name, [])
            if labels.get("state") != "capacity" and value != 0
        ]
        ready = {n: w for n, w in workers.items() if w["state"] == "ready"}
        # Workers' series leave with their workers.
        found += [f"no metric {n}" for n in IDLE_GAUGES if n not in metrics and ready]
        for name, worker in ready.items():
            load = worker.get("load", worker)
            found += [f"{name}.{key}={load[key]}" for key in IDLE_LOAD if load[key] != 0]
            if load["slots_free"] != worker["slots"]:
                found.append(f"{name}.slots_free={load['slots_free']} of {worker['slots']}")
        return ", ".join(found)

    def wait_idle(self, seconds=2.0, routers=None):
        """Every KV token, transfer and credit is back, on routers, prefill and decode workers."""
        for router in routers or self.routers():
            try:
                wait_until(lambda: not self.busy(router), seconds, "idle")
            except AssertionError as late:
                raise AssertionError(f"{late}; {router} still sees {self.busy(router)}") from None


_tests = []


def test(function):
    _tests.append(function)
    return function


def equal(found, wanted, what):
    assert found == wanted, f"{what}:\n  found  {found!r}\n  wanted {wanted!r}"


def main(finish=lambda: None):
    """Runs the tests (those named on the command line, or all), then `finish`, and exits."""
    print(f"seed {SEED} (TANDEM_SEED replays it), programs {bin_dir()}", flush=True)
    before, wanted, failed, passed = shared_memory(), sys.argv[1:], 0, 0
    for function in _tests:
        if wanted and function.__name__ not in wanted:
            continue
        started = time.monotonic()
        try:
            function()
            passed += 1
            verdict = "ok"
        except Exception:
            failed += 1
            verdict = "FAILED"
            traceback.print_exc()
        print(f"{verdict:6} {function.__name__} ({time.monotonic() - started:.1f} s)", flush=True)
    finish()
    try:
        wait_until(
            lambda: not leftover_processes() and not shared_memory() - before,
            3,
            "nothing is left behind",
        )
    except AssertionError:
        failed += 1
        print(
            f"FAILED processes left: {leftover_processes()}; "
            f"shared memory: {shared_memory() - before}"
        )
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)
