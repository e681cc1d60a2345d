"""What the router promises and refuses, on real processes with the sim engine: objectives in
headers, refusals with the time to come back, stages, predictions and the log of decisions."""

import json
import pathlib
import random

import client
from harness import Cluster, equal, main, test, wait_until
from process import SEED

STAGES = ("received", "tokenised", "queued", "prefill", "stream", "land", "join", "decode", "write")


def prompt(tokens, rng):
    return [rng.randrange(300, 32000) for _ in range(tokens)]


def value(metrics, name, **labels):
    """The sum of the series that carry `labels`; 0 when there is none."""
    found = metrics.get(name, [])
    return sum(v for series, v in found if labels.items() <= series.items())


def resident_bytes(process):
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) << 10


@test
def objectives_are_read_from_headers():
    rng = random.Random(SEED)
    with Cluster(engine="sim", prefill=1, decode=1) as cluster:
        address = cluster.address["r0"]
        for name, bad in (
            ("X-SLO-TTFT-Ms", "0"),
            ("X-SLO-TPOT-Ms", "fast"),
            ("X-Deadline-Ms", "-1"),
            ("X-SLO-On-Miss", "maybe"),
            ("X-Priority", "high"),
            ("X-Tenant", "a" * 129),
        ):
            answer = client.complete(address, prompt(8, rng), headers={name: bad}, max_tokens=2)
            equal(answer.status, 400, name)
            equal(answer.errors[0]["param"], name.lower(), "param")
        good = {
            "X-SLO-TTFT-Ms": "900",
            "X-SLO-TPOT-Ms": "40.5",
            "X-Tenant": "gold",
            "X-Priority": "-1",
            "X-Session-Id": "s1",
            "X-Deadline-Ms": "60000",
        }
        answer = client.complete(address, prompt(300, rng), headers=good, max_tokens=4)
        equal(answer.verdict(), "full", "answer")
        assert float(answer.decision["predicted_ttft_ms"]) > 0, answer.decision
        # 600 tokens take 180 ms here, alone on an idle worker.
        hopeless = {"X-SLO-TTFT-Ms": "5", "X-SLO-On-Miss": "refuse"}
        answer = client.complete(address, prompt(600, rng), headers=hopeless, max_tokens=4)
        equal(answer.status, 400, "an objective that no worker can meet")
        assert "ttft_impossible" in answer.errors[0]["message"], answer.errors
        equal(
            client.complete(
                address, prompt(600, rng), headers={"X-SLO-TTFT-Ms": "5"}, max_tokens=4
            ).status,
            200,
            "without a wish to be refused it is served",
        )
        late = client.complete(
            address, prompt(600, rng), headers={"X-Deadline-Ms": "60"}, max_tokens=400
        )
        assert late.status in (503, 504), late.status
        cluster.wait_idle()


@test
def predictions_and_decisions_can_be_looked_at():
    rng = random.Random(SEED)
    with Cluster(engine="sim", prefill=2, decode=2) as cluster:
        log = pathlib.Path(cluster.dir.name) / "decisions.jsonl"
        cluster.each["r0"] = [f"router.decision_log={log}"]
        cluster["r0"].terminate()
        cluster._add_router("r0")
        cluster["r0"].start()
        cluster.wait_ready()
        secret = "a tenant that nobody may read"
        ids = []
        for _ in range(12):
            text = prompt(rng.randrange(64, 900), rng)
            answer = cluster.complete(text, max_tokens=6, user=secret)
            equal(answer.verdict(), "full", "answer")
            ids.append(answer.request_id)
            record = cluster.timeline(answer.request_id)
            assert record["predicted_ttft_ms"] > 0, record
            assert record["predicted_ttft_bound_ms"] >= record["predicted_ttft_ms"], record
            assert record["ttft_ms"] > 0, record
        metrics = cluster.metrics()
        equal(value(metrics, "tandem_ttft_predicted_ratio_count"), 12, "predictions compared")
        equal(value(metrics, "tandem_ttft_predictions_total"), 12, "bounds compared")
        for stage in STAGES:
            arrived = value(metrics, "tandem_stage_arrivals_total", stage=stage)
            served = value(metrics, "tandem_stage_served_total", stage=stage)
            equal(arrived, served, f"arrivals and services of {stage}")
            equal(value(metrics, "tandem_stage_depth", stage=stage), 0, f"depth of {stage}")
            assert value(metrics, "tandem_stage_limit", stage=stage) > 0, stage
        # An attempt that had to be repeated counts twice.
        assert value(metrics, "tandem_stage_served_total", stage="decode") >= 12
        cluster["r0"].terminate()
        text = log.read_text()
        records = [json.loads(line) for line in text.splitlines()]
        equal([r["request"] for r in records], ids, "requests in the log")
        assert secret not in text
        assert all(r["outcome"] == "ok" and r["output_tokens"] == 6 for r in records), records
        assert all(r["candidates"] for r in records), records


@test
def overload_is_refused_at_once_in_the_name_of_the_slow_stage():
    rng = random.Random(SEED)
    slow = {"p0": ["sim.prefill_per_token_us=3000"]}  # Tenfold
    settings = ("scheduler.policy=static_split", "scheduler.queue_max=8")
    with Cluster(engine="sim", prefill=1, decode=1, each=slow, set=settings) as cluster:
        wait_until(
            lambda: value(cluster.metrics(), "tandem_stage_limit", stage="prefill") < 100,
            10,
            "the limits follow the workers",
        )
        text = prompt(128, rng)

        def ask():
            return cluster.complete(text, max_tokens=4)

        filling = cluster.start([ask] * 16)
        wait_until(
            lambda: value(cluster.metrics(), "tandem_stage_depth", stage="queued") >= 8,
            20,
            "the queue is full",
        )
        before = resident_bytes(cluster["r0"])
        slowest, named, refused = 0.0, 0, 0
        for _ in range(150):
            answer = ask()
            if answer.status == 200:
                continue
            refused += 1
            slowest = max(slowest, answer.seconds)
            equal(answer.status, 503, "status")
            seconds = int(answer.headers["retry-after"])
            milliseconds = int(answer.headers["retry-after-ms"])
            assert 1 <= seconds <= 60 and milliseconds <= 1000 * seconds, answer.headers
            named += "stage_prefill" in answer.errors[0]["message"]
        grown = resident_bytes(cluster["r0"]) - before
        assert refused >= 100, refused
        assert named >= 0.9 * refused, f"{named} of {refused} name the stage"
        assert grown < 8 << 20, f"the router grew by {grown} bytes"
        print(f"       slowest of {refused} refusals: {1000 * slowest:.0f} ms, grown {grown} bytes")
        counted = value(cluster.metrics(), "tandem_refused_total", reason="stage_prefill")
        assert counted >= named, counted
        for answer in cluster.finish(filling, 60):
            equal(answer.verdict() in ("full", "error"), True, "those that waited")
        cluster.wait_idle(5)


if __name__ == "__main__":
    main()
