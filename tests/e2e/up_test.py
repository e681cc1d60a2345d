"""`tandem up` runs a whole cluster from one file: it serves, restarts what dies, stops everything
on SIGINT or SIGTERM and leaves no process behind; `tandem status --json` says what runs."""

import json
import os
import signal
import subprocess
import tempfile

import client
from harness import ROOT, bin_dir, equal, free_port, leftover_processes, main, test, wait_until
from process import Process


class Up:
    def __init__(self, config, *arguments):
        self.directory = tempfile.TemporaryDirectory(prefix="tandem-up-")
        self.address, self.admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.process = Process(
            "up",
            [
                bin_dir() / "tandem",
                "up",
                "-c",
                ROOT / config,
                "--set",
                f"router.listen={self.address}",
                "--set",
                f"router.admin={self.admin}",
                *arguments,
            ],
            self.directory.name,
        )

    def __enter__(self):
        self.process.start()
        try:
            wait_until(lambda: "Tandem is ready" in self.process.log(), 90, "tandem up is ready")
            equal(client.request(self.address, "GET", "/health")[0], 200, "health")
        except AssertionError:
            print(self.process.log()[-3000:])
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.terminate()
        for pid, _ in leftover_processes():
            os.kill(pid, signal.SIGKILL)
        self.directory.cleanup()

    def ready(self):
        return {
            w["name"]: w
            for w in client.get_json(self.admin, "/v1/workers")["data"]
            if w["state"] == "ready"
        }

    def status(self):
        run = subprocess.run(
            [bin_dir() / "tandem", "status", "--json", "--admin", self.admin],
            capture_output=True,
            text=True,
            timeout=20,
        )
        return run.returncode, run.stdout + run.stderr


def pids(program):
    return [pid for pid, name in leftover_processes() if name == program[:15]]


@test
def local_yaml_serves_and_sigint_leaves_nothing():
    for sign in (signal.SIGINT, signal.SIGTERM):
        with Up("configs/local.yaml") as up:
            answer = client.complete(
                up.address,
                path="/v1/chat/completions",
                max_tokens=8,
                temperature=0,
                messages=[{"role": "user", "content": "Say hello."}],
            )
            equal(answer.verdict(), "full", f"{answer.errors}")
            equal(
                (answer.decision["path"], answer.decision["prefill"], answer.decision["decode"]),
                ("remote", "p0", "d0"),
                "decision",
            )
            status, output = up.status()
            equal(status, 0, f"tandem status: {output}")
            assert {"p0", "d0"} <= {w["name"] for w in json.loads(output)["workers"]}, output
            os.kill(up.process.pid, sign)
            equal(up.process.wait(20), 0, "exit status")
            wait_until(
                lambda: not leftover_processes(), 3, f"no process is left: {leftover_processes()}"
            )
            status, output = up.status()
            assert status != 0, "tandem status succeeds with nothing there"


@test
def coupled_yaml_serves():
    with Up("configs/coupled.yaml") as up:
        answer = client.complete(up.address, "Hello", max_tokens=4, ignore_eos=True)
        equal((answer.verdict(), answer.decision["path"]), ("full", "local"), "answer")


@test
def a_killed_worker_is_restarted():
    with Up(
        "configs/ratio.yaml",
        "--set",
        "pools.prefill.total=3",
        "--set",
        "ratio=1:2",
        "--set",
        "sim.workers_per_process=1",
    ) as up:
        wait_until(lambda: set(up.ready()) == {"p0", "d0", "d1"}, 30, "3 workers")
        for program, role in (
            ("tandem-prefill-worker", "prefill"),
            ("tandem-decode-worker", "decode"),
        ):
            epochs = {w["epoch"] for w in up.ready().values() if w["role"] == role}
            os.kill(pids(program)[0], signal.SIGKILL)
            wait_until(
                lambda: (
                    len(up.ready()) == 3
                    and {w["epoch"] for w in up.ready().values() if w["role"] == role} != epochs
                ),
                20,
                f"{program} is back",
            )
            equal(
                client.complete(up.address, "Hello", max_tokens=3, ignore_eos=True).verdict(),
                "full",
                "after that",
            )


@test
def a_worker_that_dies_at_once_again_and_again_does_not_spin():
    with tempfile.TemporaryDirectory() as directory:
        up = Process(
            "up",
            [
                bin_dir() / "tandem",
                "up",
                "-c",
                ROOT / "configs/local.yaml",
                "--set",
                "model.path=/nowhere.gguf",
                "--set",
                f"router.listen=127.0.0.1:{free_port()}",
                "--set",
                f"router.admin=127.0.0.1:{free_port()}",
            ],
            directory,
        ).start()
        try:
            status = up.wait(30)
            assert status > 0, f"tandem up without a model: status {status}"
            assert "/nowhere.gguf" in up.log(), up.log()[-500:]
            assert len(up.log()) < 200_000, "the log grows without end"
        finally:
            up.terminate()
    wait_until(lambda: not leftover_processes(), 5, "no process is left")


@test
def a_second_up_on_the_same_ports_fails_and_disturbs_nobody():
    with Up("configs/ratio.yaml", "--set", "pools.prefill.total=2", "--set", "ratio=1:1") as up:
        before = set(leftover_processes())
        second = Process("second", [*up.process.argv], up.directory.name).start()
        try:
            assert second.wait(40) > 0, "the second one thinks that it serves"
            assert up.address in second.log() or up.admin in second.log(), second.log()[-800:]
        finally:
            second.terminate()
        wait_until(
            lambda: set(leftover_processes()) == before,
            5,
            "only the first one's processes are there",
        )
        equal(
            client.complete(up.address, "Hello", max_tokens=3, ignore_eos=True).verdict(),
            "full",
            "the first one",
        )


if __name__ == "__main__":
    main()
