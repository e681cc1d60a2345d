"""Measures how one router scales. Workers are simulated; links, transfer and router are real.

    scale   2,000 streams at once on configs/sim_cluster.yaml: no error, router below 300 MB
    delay   100 running streams while 128 KB prompts arrive: 99th percentile of the gaps between
            tokens at most twice that of the same run without them

    python3 bench/scale_bench.py [scale] [delay] [--bin build/release/bin] [--json FILE]
    python3 bench/scale_bench.py scale --url http://host:8080 --rss-pid PID   one that runs already

Prints one table with figures and limits; exits 1 when a limit is missed.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
STREAMS, RSS_LIMIT_MB = 2000, 300.0
DELAY_STREAMS, DELAY_LIMIT, PROMPT_BYTES = 100, 2.0, 128 * 1024
READY_SECONDS, STOP_SECONDS, BENCH_SECONDS = 120, 30, 600
SAMPLE_SECONDS = 0.1

# The sim tokenizer takes every byte for a token, so that 128 KB are 131,072 tokens of context.
# Their computing is made short: what is measured is the router.
DELAY_SETTINGS = (
    "model.context=132096",
    "pools.prefill.replicas=4",
    "pools.decode.replicas=4",
    "pools.decode.slots=64",
    "sim.layers=1",
    "sim.kv_bytes_per_token=32",
    "sim.prefill_base_ms=1",
    "sim.prefill_per_token_us=4",
    "sim.prefill_per_token2_us=0",
    "sim.decode_base_ms=30",
    "sim.decode_per_context_us=0",
)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def pid_listening_on(port):
    """The process with a listening TCP socket on `port`, from /proc."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in pathlib.Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].split(":")[-1], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                if os.readlink(descriptor) in inodes:
                    return int(process.name)
    sys.exit(f"no process of yours listens on port {port}: give --rss-pid")


def memory_mb(pid, field):
    """VmRSS (now) or VmHWM (the most so far) of a process."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    return 0.0


class MemorySampler:
    """Samples a process's resident memory while the block runs."""

    def __init__(self, pid):
        self.pid, self.samples, self.done = pid, [memory_mb(pid, "VmRSS")], threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        while not self.done.wait(SAMPLE_SECONDS):
            with contextlib.suppress(OSError):
                self.samples.append(memory_mb(self.pid, "VmRSS"))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()
        with contextlib.suppress(OSError):
            self.samples.append(memory_mb(self.pid, "VmHWM"))


@contextlib.contextmanager
def cluster(programs, settings):
    """`tandem up` on the sim configuration and free ports; yields the address of the router."""
    port = free_port()
    settings = [
        f"router.listen=127.0.0.1:{port}",
        f"router.admin=127.0.0.1:{free_port()}",
        *settings,
    ]
    command = [programs / "tandem", "up", "-c", ROOT / "configs/sim_cluster.yaml"]
    command += [word for setting in settings for word in ("--set", setting)]
    with tempfile.NamedTemporaryFile("w+", suffix=".log", prefix="tandem-scale-") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=ROOT, start_new_session=True
        )
        try:
            wait_until_ready(process, port, log.name)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_until_ready(process, port, log):
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError, urllib.error.URLError):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        time.sleep(0.2)
    tail = pathlib.Path(log).read_text(errors="replace")[-2000:]
    sys.exit(f"the cluster is not ready:\n{tail}")


def bench(programs, url, *arguments):
    """Runs tandem-bench; its JSON. Failed requests are in it, and in the table it prints."""
    command = [programs / "tandem-bench", "--url", url, "--json", "-", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=BENCH_SECONDS, text=True)
    if not done.stdout:
        sys.exit("tandem-bench failed")
    return json.loads(done.stdout)


def scale(options):
    settings = ("log.level=warn", *options.set)
    running = (
        contextlib.nullcontext(options.url) if options.url else cluster(options.bin, settings)
    )
    with running as url:
        port = int(url.rsplit(":", 1)[-1].split("/")[0])
        pid = options.rss_pid or pid_listening_on(port)
        idle = memory_mb(pid, "VmRSS")
        with MemorySampler(pid) as memory:
            result = bench(
                options.bin, url, "--concurrency", STREAMS, "--num-prompts", 2 * STREAMS,
                "--input-len", 200, "--output-len", options.output_len, "--max-seconds", 400,
            )  # fmt: skip
    peak = max(memory.samples)
    failed = result["failed"]
    return [
        (f"{STREAMS} streams at once: failed requests", str(failed), "none", failed == 0),
        ("  most at once, seen by the client", str(result["peak_in_flight"]), f"{STREAMS}",
         result["peak_in_flight"] >= STREAMS),
        ("  most between first and last token", str(result["peak_running"]), "", True),
        ("  router's resident memory", f"{peak:.0f} MB (idle {idle:.0f})",
         f"below {RSS_LIMIT_MB:.0f} MB", peak < RSS_LIMIT_MB),
        ("  output", f"{result['output_throughput']:.0f} tokens/s", "", True),
        ("  gap between tokens", f"median {result['median_itl_ms']:.0f} ms, "
         f"p99 {result['p99_itl_ms']:.0f} ms", "", True),
    ]  # fmt: skip


def delay(options):
    settings = ("log.level=warn", *DELAY_SETTINGS, *options.set)
    runs = {}
    with cluster(options.bin, settings) as url:
        for name, every in (("without", 0), ("with", 0.5), ("without again", 0)):
            runs[name] = bench(
                options.bin, url, "--scenario", "mixed", "--streams", DELAY_STREAMS,
                "--duration", options.seconds, "--long-every", every, "--long-len", PROMPT_BYTES,
                "--long-output", 4, "--input-len", 100, "--output-len", 200, "--max-seconds", 300,
            )  # fmt: skip
    failed = sum(run["failed"] for run in runs.values())
    gaps = {name: run["interference"] for name, run in runs.items()}
    quiet = [gaps[name]["p99_gap_ms"] for name in ("without", "without again")]
    ratio = gaps["with"]["p99_gap_ms"] / (sum(quiet) / len(quiet))
    return [
        (f"{DELAY_STREAMS} streams, {gaps['with']['long_prompts']} prompts of "
         f"{PROMPT_BYTES // 1024} KB: failed requests", str(failed), "none", failed == 0),
        ("  p99 gap without", " and ".join(f"{gap:.1f}" for gap in quiet) + " ms", "", True),
        ("  p99 gap with", f"{gaps['with']['p99_gap_ms']:.1f} ms = {ratio:.2f}x",
         f"at most {DELAY_LIMIT:g}x", ratio <= DELAY_LIMIT),
        ("  largest gap with", f"{gaps['with']['max_gap_ms']:.1f} ms", "", True),
    ]  # fmt: skip


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", help="scale, delay; default: both")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--url", help="scale only: a router that runs already")
    parser.add_argument("--rss-pid", type=int, help="its process; default: found by its port")
    parser.add_argument("--set", action="append", default=[], help="a key of the configuration")
    parser.add_argument("--output-len", type=int, default=500, help="scale: tokens per stream")
    parser.add_argument("--seconds", type=int, default=20, help="delay: of each of three runs")
    parser.add_argument("--json", help="write the rows there")
    options = parser.parse_args()
    options.bin = options.bin.resolve()
    parts = {"scale": scale, "delay": delay}
    unknown = [name for name in options.what if name not in parts]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; allowed: scale, delay")
    rows = [row for name in options.what or parts for row in parts[name](options)]
    width = max(len(row[0]) for row in rows)
    for what, figure, limit, good in rows:
        verdict = ("ok" if good else "MISSED") if limit else ""
        print(f"{what:<{width}}  {figure:<28} {limit:<16} {verdict}".rstrip())
    if options.json:
        keys = ("what", "figure", "limit", "ok")
        pathlib.Path(options.json).write_text(
            json.dumps([dict(zip(keys, row)) for row in rows], indent=2) + "\n"
        )
    sys.exit(0 if all(row[3] for row in rows) else 1)


if __name__ == "__main__":
    main()
