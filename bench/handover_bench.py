"""Measures the hand-over from prefill to decode on this machine: how soon a sequence joins, how
long its joining pauses the others, and what streaming the cache costs the prefill. Prints one table
with figures and limits; exits 1 when a limit is missed.

    .venv/bin/python bench/handover_bench.py [--rounds 10] [--set transfer.transport=tcp]
"""

import argparse
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/e2e"))

from harness import MODELS, REMOTE, Cluster  # noqa: E402
from oracle import Oracle, prompt_of  # noqa: E402
from timeline import Timeline  # noqa: E402

PROMPT = 1500
PAUSE_LENGTHS = (200, 1500, 3500)
BUSY_STREAMS = 6
JOIN_LIMIT_MS, PAUSE_LIMIT_MS, COST_LIMIT = 5.0, 10.0, 0.97


class Bench:
    def __init__(self, cluster, rounds):
        self.cluster, self.rounds, self.rows = cluster, rounds, []
        self.oracle = Oracle(MODELS["smollm2"])
        self.next_seed = 1

    def row(self, what, figure, limit, good):
        self.rows.append((what, figure, limit, "ok" if good else "MISSED"))

    def ask(self, tokens, max_tokens=4):
        """A fresh prompt's timeline."""
        self.next_seed += 1
        prompt = prompt_of(self.oracle, tokens, self.next_seed)
        answer = self.cluster.complete(
            prompt, max_tokens=max_tokens, temperature=0, ignore_eos=True
        )
        assert answer.verdict() == "full", f"{answer.verdict()} {answer.errors}"
        return Timeline(self.cluster.timeline(answer.request_id))

    def join_idle(self):
        joins = [self.ask(PROMPT).join_ms for _ in range(self.rounds)]
        self.row(
            f"join after prefill, {PROMPT} tokens, idle decode worker",
            spread(joins, "ms"),
            f"at most {JOIN_LIMIT_MS:g} ms",
            statistics.median(joins) <= JOIN_LIMIT_MS,
        )

    def beside_others(self, tokens):
        """The timeline of a prompt that joins BUSY_STREAMS running answers, and when tokens of one
        of these came, in ms."""
        halt, times = [], []

        def on_frame(index):
            if index == 0:
                times.append(time.time() * 1000)
            return bool(halt)

        steady = [
            lambda i=i: self.cluster.complete(
                [100 + i, 7, 9],
                max_tokens=3900,
                temperature=0,
                ignore_eos=True,
                stream=True,
                on_frame=lambda _: on_frame(i),
            )
            for i in range(BUSY_STREAMS)
        ]
        running = self.cluster.start(steady)
        self.cluster.wait_running("d0", BUSY_STREAMS)
        line = self.ask(tokens, max_tokens=24)
        halt.append(True)
        self.cluster.finish(running, 60)
        self.cluster.wait_idle(10)
        return line, times

    def busy(self):
        """Joins and pauses while BUSY_STREAMS answers are running."""
        joins, late, pauses = [], [], {n: [] for n in PAUSE_LENGTHS}
        for _ in range(self.rounds):
            for tokens in PAUSE_LENGTHS:
                line, times = self.beside_others(tokens)
                pauses[tokens].append(pause_at(times, line.us("joined") / 1000))
                if tokens == PROMPT:
                    joins.append(line.join_ms)
                    late.append(line.join_ms - step_at(times, line.us("prefill_end") / 1000))
        self.row(
            f"join after prefill, {PROMPT} tokens, {BUSY_STREAMS} others running",
            spread(joins, "ms"),
            "",
            True,
        )
        self.row(
            "  beyond the step that was running",
            spread(late, "ms"),
            f"at most {JOIN_LIMIT_MS:g} ms",
            statistics.median(late) <= JOIN_LIMIT_MS,
        )
        for tokens, found in pauses.items():
            self.row(
                f"pause of the others at a join of {tokens} tokens",
                spread(found, "ms"),
                f"at most {PAUSE_LIMIT_MS:g} ms",
                statistics.median(found) <= PAUSE_LIMIT_MS,
            )

    def cost(self):
        """The same worker, with and without a transfer, in turn."""
        alone, streaming = [], []
        for _ in range(self.rounds):
            alone.append(PROMPT / self.ask(PROMPT, max_tokens=1).prefill_ms * 1000)
            streaming.append(PROMPT / self.ask(PROMPT, max_tokens=2).prefill_ms * 1000)
        ratio = statistics.median(streaming) / statistics.median(alone)
        self.row("prefill without transfer", spread(alone, "tokens/s"), "", True)
        self.row("prefill with transfer", spread(streaming, "tokens/s"), "", True)
        self.row("  with / without", f"{ratio:.3f}", f"at least {COST_LIMIT}", ratio >= COST_LIMIT)

    def print(self):
        widths = [max(len(r[i]) for r in self.rows) for i in range(4)]
        for row in self.rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
        return all(row[3] == "ok" for row in self.rows)


def spread(values, unit):
    worst = max(values) if unit == "ms" else min(values)
    return f"median {statistics.median(values):.1f}, worst {worst:.1f} {unit}"


def step_at(times, at):
    """How long the decode step took that was running at `at`, in ms."""
    return next(b - a for a, b in zip(times, times[1:]) if a <= at <= b)


def pause_at(times, joined):
    """The longest gap between tokens around `joined`, less the usual gap right after it, in ms."""
    last = next(i for i, at in enumerate(times) if at > joined + 5)
    gaps = [b - a for a, b in zip(times, times[1:])]
    return max(gaps[last - 3 : last]) - statistics.median(gaps[last : last + 9])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    settings = ["pools.decode.slots=8", "pools.prefill.slots=2", REMOTE, *arguments.set]
    with Cluster(set=settings) as cluster:
        bench = Bench(cluster, arguments.rounds)
        bench.ask(PROMPT)  # First touches of landing memory.
        bench.join_idle()
        bench.cost()
        bench.busy()
        good = bench.print()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
