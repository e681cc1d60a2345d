"""Measures the balance of supply and consumption on live clusters.

    roles       8 simulated workers started at 7:1 under `ratio.mode: auto`; the load switches each
                minute between long prompts and long answers. From 30 s after a switch: goodput
                against that of the best static split of that phase
    prediction  the real engine: predicted against measured time to first token
    overload    three times the capacity: goodput against its peak, refusals, and what becomes of
                clients that wait as they are told
    fairness    a tenant beside another one that sends a hundred times its load

    .venv/bin/python bench/balance_bench.py roles [--bin build/release/bin] [--json FILE]

Prints one table with figures and limits; exits 1 when a limit is missed.
"""

import argparse
import asyncio
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/e2e"))

TTFT_MS, TPOT_MS = 2000, 60
# A prompt token takes 0.4 ms, a decode step 40 ms for up to 16 sequences, whatever their context.
SIM = (
    "model.engine=sim",
    "model.name=sim",
    "model.context=4096",
    "sim.prefill_base_ms=5",
    "sim.prefill_per_token_us=400",
    "sim.prefill_per_token2_us=0",
    "sim.decode_base_ms=40",
    "sim.decode_per_sequence_ms=0.05",
    "sim.decode_per_context_us=0",
    "sim.layers=8",
    "sim.kv_bytes_per_token=2048",
    "pools.prefill.slots=16",
    "pools.decode.slots=16",
    "transfer.landing_bytes=16MiB",
    "transfer.segment_bytes=1MiB",
    f"slo.ttft_ms={TTFT_MS}",
    f"slo.tpot_ms={TPOT_MS}",
)
# Input and output tokens, requests per second, best split: 80% of what that split can do. Prefill
# takes 0.6 and 0.13 worker seconds, decoding 0.2 and 0.2: 6:2 and 3:5 balance them.
PHASES = {"long prompts": (1500, 80, 7.5, (6, 2)), "long answers": (300, 80, 18.0, (3, 5))}
PHASE_SECONDS, SETTLE_SECONDS = 60, 30
GOODPUT_LIMIT = 0.9


class Report:
    def __init__(self):
        self.rows = []

    def row(self, what, figure, limit="", good=True):
        self.rows.append((what, figure, limit, "" if not limit else "ok" if good else "MISSED"))
        print("  ".join(str(cell) for cell in self.rows[-1]), file=sys.stderr, flush=True)

    def print(self):
        widths = [max(len(str(row[i])) for row in self.rows) for i in range(4)]
        for row in self.rows:
            print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths)).rstrip())

    def good(self):
        return all(row[3] != "MISSED" for row in self.rows)


def within(run, begin, end, seconds):
    """Requests per second that began in [begin, end) and met both limits."""
    good = 0
    for i, start in enumerate(run["start_times"]):
        tokens = run["output_lens"][i]
        if not begin <= start < end or tokens == 0:
            continue
        ttft = run["ttfts"][i]
        tpot = (run["latencies"][i] - ttft) / (tokens - 1) if tokens > 1 else 0
        good += ttft * 1e3 <= TTFT_MS and tpot * 1e3 <= TPOT_MS
    return good / seconds


class Load:
    """tandem-bench in the background; result() waits for it."""

    def __init__(self, cluster, phase, seconds, seed):
        inputs, outputs, rate, _ = PHASES[phase]
        self.file = tempfile.NamedTemporaryFile(suffix=".json")
        command = [
            cluster.bin / "tandem-bench", "--url", f"http://{cluster.address['r0']}",
            "--request-rate", rate, "--duration", seconds, "--seed", seed,
            "--input-len", inputs, "--output-len", outputs, "--no-progress",
            "--save-detailed", "--json", self.file.name,
        ]  # fmt: skip
        self.process = subprocess.Popen([str(w) for w in command], stdout=subprocess.DEVNULL)

    def result(self):
        self.process.wait(300)
        return json.load(open(self.file.name))


def static_goodput(phase):
    """Of the phase's best split, once its first seconds are over."""
    from harness import Cluster

    prefill, decode = PHASES[phase][3]
    with Cluster(engine="sim", prefill=prefill, decode=decode, set=SIM) as cluster:
        run = Load(cluster, phase, PHASE_SECONDS, 1).result()
    return within(run, SETTLE_SECONDS, PHASE_SECONDS, PHASE_SECONDS - SETTLE_SECONDS)


def bench_roles(report, options):
    from harness import Cluster

    best = {phase: static_goodput(phase) for phase in PHASES}
    for phase, value in best.items():
        split = "%d:%d" % PHASES[phase][3]
        report.row(f"goodput, {phase}, static {split}", f"{value:.2f} req/s")
    auto = (*SIM, "ratio.mode=auto")
    failed, runs, roles = 0, [], []
    with Cluster(engine="sim", prefill=7, decode=1, set=auto) as cluster:
        begin = time.monotonic()
        for index in range(options.phases):
            phase = list(PHASES)[index % 2]
            load = Load(cluster, phase, PHASE_SECONDS, 10 + index)
            seen = {name: w["role"] for name, w in cluster.workers().items()}
            moves = {name: 0 for name in seen}
            while time.monotonic() < begin + (index + 1) * PHASE_SECONDS:
                for name, worker in cluster.workers().items():
                    if worker["role"] != seen[name]:
                        seen[name] = worker["role"]
                        moves[name] += 1
                        roles.append((time.monotonic() - begin, name, worker["role"]))
                time.sleep(0.25)
            runs.append((phase, load, moves))
            split = "%d:%d" % tuple(
                sum(r == role for r in seen.values()) for role in ("prefill", "decode")
            )
            print(f"{phase}: ends at {split}, moves {sum(moves.values())}", file=sys.stderr)
        for index, (phase, load, moves) in enumerate(runs):
            run = load.result()
            failed += run["failed"]
            value = within(run, SETTLE_SECONDS, PHASE_SECONDS, PHASE_SECONDS - SETTLE_SECONDS)
            report.row(
                f"phase {index + 1}, {phase}: goodput / best static",
                f"{value / best[phase]:.2f}",
                f"at least {GOODPUT_LIMIT}",
                value >= GOODPUT_LIMIT * best[phase],
            )
            most = max(moves.values())
            moved = f"{sum(moves.values())}, {most}"
            report.row("  moves, most by one worker", moved, "1", most <= 1)
    report.row("failed requests", failed, "0", failed == 0)
    if options.svg:
        draw_roles(options.svg, 7, roles, [phase for phase, _, _ in runs])
    for at, name, role in roles:
        print(f"  {at:6.1f} s  {name} becomes {role}", file=sys.stderr)


def draw_roles(file, start, moves, phases):
    """Prefill workers over time, as an SVG. `moves`: (second, worker, new role)."""
    width, height, left, top = 760, 220, 52, 34
    across = (width - left - 12) / (len(phases) * PHASE_SECONDS)
    up = (height - top - 34) / 8

    def x(second):
        return left + second * across

    def y(workers):
        return height - 34 - workers * up

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12" fill="#445">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        '<text x="52" y="16" font-size="13">Prefill workers of 8 under ratio.mode: auto '
        "(the others decode); dashed: the best static split</text>",
    ]
    for index, phase in enumerate(phases):
        begin, end = x(index * PHASE_SECONDS), x((index + 1) * PHASE_SECONDS)
        best = y(PHASES[phase][3][0])
        fill = "#eef3fb" if index % 2 == 0 else "#fdf3ea"
        out.append(
            f'<rect x="{begin:.0f}" y="{top}" width="{end - begin:.0f}" height="{8 * up:.0f}" '
            f'fill="{fill}"/><text x="{begin + 6:.0f}" y="{height - 38}">{phase}</text>'
            f'<path d="M{begin:.0f} {best:.1f}H{end:.0f}" stroke="#889" stroke-dasharray="5 4"/>'
        )
    for workers in range(0, 9, 2):
        at = y(workers) + 4
        out.append(f'<text x="{left - 8}" y="{at:.0f}" text-anchor="end">{workers}</text>')
    for minute in range(len(phases) + 1):
        at = x(minute * PHASE_SECONDS)
        out.append(f'<text x="{at:.0f}" y="{height - 14}" text-anchor="middle">{minute} min</text>')
    line, count = f"M{x(0):.1f} {y(start):.1f}", start
    for second, _, role in moves:
        count += 1 if role == "prefill" else -1
        line += f"H{x(second):.1f}V{y(count):.1f}"
    line += f"H{x(len(phases) * PHASE_SECONDS):.1f}"
    out.append(f'<path d="{line}" fill="none" stroke="#2463d1" stroke-width="2.5"/></svg>')
    pathlib.Path(file).write_text("\n".join(out) + "\n")


# ---- One client per request, over plain asyncio -------------------------------------------------


class Call:
    """One streamed request as its client saw it."""

    def __init__(self):
        self.began = self.first = self.last = 0.0
        self.status = self.tokens = 0
        self.headers = {}

    @property
    def ttft_ms(self):
        return (self.first - self.began) * 1e3

    def good(self):
        if self.status != 200 or not self.tokens:
            return False
        tpot = (self.last - self.first) / max(1, self.tokens - 1)
        return self.ttft_ms <= TTFT_MS and tpot * 1e3 <= TPOT_MS


def prompt_of(tokens):
    """The sim tokenizer takes a byte for a token; no two prompts begin alike."""
    return f"{random.getrandbits(64):016x}".ljust(tokens, "x")[:tokens]


async def call(address, prompt_tokens, output_tokens, headers=(), seconds=120, prompt=None):
    host, port = address.rsplit(":", 1)
    body = json.dumps(
        {
            "prompt": prompt or prompt_of(prompt_tokens),
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
    head += "Content-Type: application/json\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers)
    head += f"Content-Length: {len(body)}\r\n\r\n"
    seen = Call()
    seen.began = time.monotonic()
    async with asyncio.timeout(seconds):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(head.encode() + body)
            line = await reader.readline()
            seen.status = int(line.split()[1])
            while (line := await reader.readline()).strip():
                name, _, value = line.decode().partition(":")
                seen.headers[name.strip().lower()] = value.strip()
            if seen.status != 200:
                seen.first = seen.last = time.monotonic()
                return seen
            async for line in reader:
                if line.startswith(b"data: {") and b'"text":""' not in line:
                    seen.last = time.monotonic()
                    seen.first = seen.first or seen.last
                    seen.tokens += 1
        finally:
            writer.close()
    return seen


async def poisson(rate, seconds, make, rng):
    """Starts make() at random times; returns what all of them return."""
    tasks, at = [], 0.0
    begin = time.monotonic()
    while (at := at + rng.expovariate(rate)) < seconds:
        await asyncio.sleep(max(0.0, begin + at - time.monotonic()))
        tasks.append(asyncio.create_task(make()))
    return await asyncio.gather(*tasks)


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# ---- Prediction -----------------------------------------------------------------------------


def bench_prediction(report, options):
    from harness import Cluster

    rng = random.Random(options.seed)
    with Cluster(engine="llama", prefill=1, decode=1) as cluster:

        async def run(rate, seconds):
            async def one():
                return await call(cluster.address["r0"], rng.choice((64, 300, 900, 2400, 5000)), 24)

            return await poisson(rate, seconds, one, rng)

        asyncio.run(run(options.rate, 20))  # Teaches the cost models
        calls = asyncio.run(run(options.rate, options.seconds))
        ratios, inside = [], 0
        for done in calls:
            if done.status != 200:
                continue
            timeline = cluster.timeline(done.headers["x-request-id"])
            ratios.append(abs(timeline["predicted_ttft_ms"] - done.ttft_ms) / done.ttft_ms)
            inside += done.ttft_ms <= timeline["predicted_ttft_bound_ms"]
        report.row("requests", len(ratios))
        median = statistics.median(ratios)
        report.row("predicted TTFT, median error", f"{median:.1%}", "at most 15%", median <= 0.15)
        share = inside / len(ratios)
        report.row("within the 90% bound", f"{share:.1%}", "85% to 95%", 0.85 <= share <= 0.95)


# ---- Overload -------------------------------------------------------------------------------

OVERLOAD_PREFILL, OVERLOAD_DECODE = 4, 4
OVERLOAD_INPUT, OVERLOAD_OUTPUT = 500, 40
# Prefill: 4 / 0.205 s; decode: 4 * 16 / (40 * 0.041 s).
OVERLOAD_CAPACITY = 4 / 0.205


def bench_overload(report, options):
    from harness import Cluster

    rng = random.Random(options.seed)
    settings = (*SIM, "slo.on_miss=refuse")
    with Cluster(
        engine="sim", prefill=OVERLOAD_PREFILL, decode=OVERLOAD_DECODE, set=settings
    ) as cluster:
        address = cluster.address["r0"]
        refused = []  # (call, told seconds, second call)

        async def patient():
            prompt = prompt_of(OVERLOAD_INPUT)

            async def ask():
                return await call(address, OVERLOAD_INPUT, OVERLOAD_OUTPUT, prompt=prompt)

            seen = await ask()
            if seen.status in (429, 503):
                told = float(seen.headers["retry-after-ms"]) / 1e3
                await asyncio.sleep(told)
                refused.append((seen, told, await ask()))
            return seen

        async def once():
            return await call(address, OVERLOAD_INPUT, OVERLOAD_OUTPUT)

        def goodput(calls, begin, end):
            return sum(c.good() for c in calls if begin <= c.began < end) / (end - begin)

        peak = 0.0
        for share in (0.6, 0.8, 0.9, 1.0, 1.1):
            begin = time.monotonic()
            calls = asyncio.run(poisson(share * OVERLOAD_CAPACITY, options.seconds, once, rng))
            value = goodput(calls, begin + 5, begin + options.seconds)
            report.row(f"goodput at {share:g} of capacity", f"{value:.1f} req/s")
            peak = max(peak, value)
        begin = time.monotonic()
        calls = asyncio.run(poisson(3 * OVERLOAD_CAPACITY, options.seconds, patient, rng))
        second = [again for _, _, again in refused]
        value = goodput([*calls, *second], begin + 5, begin + options.seconds)
        report.row("goodput at 3 times the capacity / peak", f"{value / peak:.2f}",
                   "at least 0.9", value >= 0.9 * peak)  # fmt: skip
        slow = percentile([first.ttft_ms for first, _, _ in refused], 0.99)
        report.row("refused", len(refused))
        report.row("refusal, 99th percentile", f"{slow:.0f} ms", "at most 50 ms", slow <= 50)
        admitted = sum(again.status == 200 for again in second) / len(second)
        good = admitted >= 0.9
        report.row("admitted at the first retry", f"{admitted:.0%}", "at least 90%", good)
        # What had to be waited: those promised a place before, at the peak's rate.
        waits = []
        for first, told, _ in refused:
            ahead = sum(
                other.began <= first.began < other.began + wait for other, wait, _ in refused
            )
            waits.append(told / max(1.0, ahead / peak))
        worst = percentile(waits, 0.9)
        good = worst <= 2
        report.row("told to wait / needed, 90th percentile", f"{worst:.2f}", "at most 2", good)


# ---- Fairness -------------------------------------------------------------------------------


def bench_fairness(report, options):
    from harness import Cluster

    small, seconds = OVERLOAD_CAPACITY / 20, options.seconds

    def delays(prefill, decode, crowd):
        rng = random.Random(options.seed)
        with Cluster(engine="sim", prefill=prefill, decode=decode, set=SIM) as cluster:
            address = cluster.address["r0"]

            async def both():
                async def one(tenant):
                    headers = [("X-Tenant", tenant)]
                    return await call(address, OVERLOAD_INPUT, OVERLOAD_OUTPUT, headers)

                loads = [poisson(small, seconds, lambda: one("small"), rng)]
                if crowd:
                    other = random.Random(options.seed + 1)
                    loads.append(poisson(100 * small, seconds, lambda: one("big"), other))
                return (await asyncio.gather(*loads))[0]

            calls = asyncio.run(both())
        failed = sum(c.status != 200 for c in calls)
        return statistics.mean((c.last - c.began) for c in calls if c.status == 200), failed

    alone, _ = delays(OVERLOAD_PREFILL // 2, OVERLOAD_DECODE // 2, False)
    crowded, failed = delays(OVERLOAD_PREFILL, OVERLOAD_DECODE, True)
    report.row("mean time of an answer, alone on its half", f"{alone * 1e3:.0f} ms")
    report.row("beside 100 times its load / alone", f"{crowded / alone:.2f}", "at most 1.2",
               crowded <= 1.2 * alone)  # fmt: skip
    report.row("of its requests failed or refused", failed, "0", failed == 0)


BENCHES = {
    "roles": bench_roles,
    "prediction": bench_prediction,
    "overload": bench_overload,
    "fairness": bench_fairness,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", nargs="*", choices=[*BENCHES, []], default=list(BENCHES))
    parser.add_argument("--bin", help="folder of the programs; default build/release/bin")
    parser.add_argument("--json", help="file for the rows")
    parser.add_argument("--svg", help="roles: file for a plot of the prefill workers over time")
    parser.add_argument("--phases", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=30, help="of one load; default 30")
    parser.add_argument("--rate", type=float, default=0.6, help="prediction: requests per second")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.bin:
        os.environ["TANDEM_BIN"] = str(pathlib.Path(options.bin).resolve())
    report = Report()
    for name in options.what or BENCHES:
        BENCHES[name](report, options)
    report.print()
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report.rows, indent=1))
    sys.exit(0 if report.good() else 1)


if __name__ == "__main__":
    main()
