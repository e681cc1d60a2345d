"""What the end-to-end tests know about processes, ports, waiting and shared memory; harness.py
builds on it."""

import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
FULL = os.environ.get("TANDEM_FULL") == "1"
SEED = int(os.environ.get("TANDEM_SEED") or random.SystemRandom().randrange(1 << 31))
MARK = (
    f"{os.getpid()}-{SEED}"  # In the environment of every process we start, to find those that stay
)
MODELS = {
    "smollm2": ROOT / "models/smollm2-135m-instruct-q4_0.gguf",
    "gemma": ROOT / "models/gemma-3-270m-q4_k_m.gguf",
}


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def bin_dir():
    named = os.environ.get("TANDEM_BIN")
    found = (
        [pathlib.Path(named)]
        if named
        else sorted(
            (p.parent for p in ROOT.glob("build/*/bin/tandem-router")),
            key=lambda p: p.stat().st_mtime,
        )
    )
    if not found or not (found[-1] / "tandem-router").exists():
        skip("no programs: build them, or set TANDEM_BIN")
    return found[-1].resolve()


_ports_given = set()


def free_port():
    """A port below the ephemeral range that nobody listens on, never the same twice."""
    while True:
        port = random.SystemRandom().randrange(15000, 30000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in _ports_given:
            _ports_given.add(port)
            return port


def wait_until(condition, seconds, what, interval=0.02):
    """Polls until `condition()` is true; its exceptions count as not yet. Returns the seconds it
    took."""
    started = time.monotonic()
    last = None
    while True:
        try:
            last = condition()
            if last:
                return time.monotonic() - started
        except Exception as error:  # The other side may still be starting.
            last = error
        if time.monotonic() - started > seconds:
            raise AssertionError(f"{what}: not within {seconds:.1f} s (last: {last!r})")
        time.sleep(interval)


class Process:
    def __init__(self, name, argv, log_dir, env=None, wrap=()):
        self.name, self.argv = name, [str(a) for a in (*wrap, *argv)]
        self.log_path = pathlib.Path(log_dir) / f"{name}.log"
        self.env = {**os.environ, "TANDEM_E2E_MARK": MARK, **(env or {})}
        self.popen = None

    def start(self):
        with open(self.log_path, "ab") as log:
            self.popen = subprocess.Popen(
                self.argv,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self.env,
                cwd=ROOT,
                start_new_session=True,
            )
        return self

    @property
    def pid(self):
        return self.popen.pid

    def alive(self):
        return self.popen is not None and self.popen.poll() is None

    def signal(self, number):
        if self.alive():
            os.kill(self.pid, number)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.popen.wait(10)

    def stop(self):
        self.signal(signal.SIGSTOP)

    def resume(self):
        self.signal(signal.SIGCONT)

    def wait(self, seconds):
        """The exit status; negative after a signal."""
        return self.popen.wait(seconds)

    def log(self):
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def terminate(self):
        if not self.alive():
            return
        self.resume()
        self.signal(signal.SIGTERM)
        try:
            self.popen.wait(8)
        except subprocess.TimeoutExpired:
            self.kill()


def shared_memory():
    """What is in /dev/shm, and the System V segments that nobody alive has made, or one of us."""
    listed = subprocess.run(["ipcs", "-m", "-p"], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listed.splitlines() if line[:1].isdigit()]
    segments = {f"sysv {row[0]}" for row in rows if not _is_alive(row[2]) or _is_ours(row[2])}
    return set(os.listdir("/dev/shm")) | segments


def _is_alive(pid):
    return os.path.exists(f"/proc/{pid}")


def _is_ours(pid):
    try:
        environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"TANDEM_E2E_MARK={MARK}".encode() in environment.split(b"\0")


def leftover_processes():
    """Processes of this run that still live, wherever they hide in the process tree."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid() and _is_ours(entry.name):
            try:
                found.append((int(entry.name), (entry / "comm").read_text().strip()))
            except OSError:
                pass  # It has just ended.
    return found
