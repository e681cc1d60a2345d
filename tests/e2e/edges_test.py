"""Edges of the hand-over, after faults that other systems shipped: answers that end with the very
first token, stop strings, max_tokens of 1, batches, cancelled prompts that block nobody, floods of
impatient clients, clients that do not read, more requests than room, and routers that are told to
stop."""

import http.client
import json
import signal
import socket

import client
from harness import Cluster, equal, main, test, wait_until
from oracle import sample_text

PROMPT = list(range(100, 700))
GREEDY = {"temperature": 0, "ignore_eos": True}


def kv_bytes(cluster):
    return sum(value for _, value in cluster.metrics().get("tandem_kv_transfer_bytes_total", []))


@test
def an_answer_may_end_with_its_first_token():
    with Cluster(engine="sim") as cluster:
        first, second = cluster.complete(PROMPT, max_tokens=2, **GREEDY).token_ids
        for stream in (False, True):
            for parameters, reason in (
                ({"stop_token_ids": [first], "max_tokens": 9}, "stop"),
                ({"max_tokens": 1}, "length"),
                ({"stop_token_ids": [first], "max_tokens": 1}, "stop"),
            ):
                answer = cluster.complete(PROMPT, stream=stream, **parameters, **GREEDY)
                equal((answer.verdict(), answer.finish[0]), ("full", reason), f"{parameters}")
                assert answer.token_ids in ([first], []), answer.token_ids
                cluster.wait_idle()
        gated = cluster.complete(
            PROMPT, stop_token_ids=[first, second], min_tokens=5, max_tokens=20, **GREEDY
        )
        equal(gated.verdict(), "full", "min_tokens larger than the prefill leg's single token")
        assert len(gated.token_ids) >= 5, gated.token_ids


@test
def one_token_needs_no_transfer():
    with Cluster(engine="sim") as cluster:
        before = kv_bytes(cluster)
        answer = cluster.complete(PROMPT, max_tokens=1, **GREEDY)
        equal((answer.verdict(), len(answer.token_ids)), ("full", 1), "answer")
        cluster.wait_idle()
        equal(kv_bytes(cluster), before, "KV bytes moved")
        cluster.complete(PROMPT, max_tokens=2, **GREEDY)
        wait_until(
            lambda: kv_bytes(cluster) >= len(PROMPT) * 8192, 5, "KV bytes of an ordinary request"
        )


@test
def stop_strings_end_the_work_on_the_decode_worker():
    with Cluster() as cluster:
        free = cluster.complete(sample_text(100, 1), max_tokens=60, **GREEDY)
        for start, length in ((0, 2), (5, 9), (20, 12)):
            stop = free.text[start : start + length]
            for stream in (False, True):
                answer = cluster.complete(
                    sample_text(100, 1),
                    max_tokens=60,
                    stop=[stop, "never"],
                    stream=stream,
                    **GREEDY,
                )
                equal((answer.verdict(), answer.finish[0]), ("full", "stop"), f"stop {stop!r}")
                equal(answer.text, free.text[: free.text.index(stop)], f"text before {stop!r}")
        cluster.wait_idle()


@test
def batches_keep_their_order_and_logprobs_have_one_entry_per_token():
    prompts = [[5, 6, 7], list(range(10, 300)), [9] * 70]
    with Cluster() as cluster:
        alone = [cluster.complete(p, max_tokens=6, **GREEDY).token_ids for p in prompts]
        batch = cluster.complete(prompts, max_tokens=6, n=2, logprobs=2, **GREEDY)
        equal(batch.verdict(6), "full", f"{batch.errors}")
        equal(
            [batch.tokens[i] for i in range(6)],
            [a for a in alone for _ in range(2)],
            "tokens in order",
        )
        for choice in batch.body["choices"]:
            equal(
                len(choice["logprobs"]["token_logprobs"]),
                6,
                "log-probabilities, those of the first token included",
            )
        equal(batch.usage["prompt_tokens"], sum(map(len, prompts)), "prompt tokens count once")
        equal(batch.usage["completion_tokens"], 36, "completion tokens")
        cluster.wait_idle()


@test
def a_cancelled_prompt_blocks_nobody():
    with Cluster(
        engine="sim", set=["sim.prefill_per_token_us=3000"]
    ) as cluster:  # 3,000 tokens: 9 s
        host, port = cluster.address["r0"].rsplit(":", 1)
        body = json.dumps({"prompt": [7] * 3000, "max_tokens": 5}).encode()
        connection = http.client.HTTPConnection(host, int(port), timeout=10)
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        wait_until(lambda: cluster.running("p0") >= 1, 5, "the long prompt runs")
        connection.close()
        took = wait_until(lambda: not cluster.busy(), 2, "everything is free again")
        answer = cluster.complete([5, 6, 7], max_tokens=1, **GREEDY)
        equal(answer.verdict(), "full", "the next request")
        assert answer.seconds < 1.5, f"the next request took {answer.seconds:.2f} s"
        print(f"  idle {took:.2f} s after the disconnect")


@test
def a_flood_of_impatient_clients_leaves_room_for_the_next():
    with Cluster(engine="sim", prefill=1, decode=1) as cluster:
        impatient = [
            lambda: cluster.complete(PROMPT, max_tokens=400, timeout=0.5, **GREEDY)
            for _ in range(200)
        ]
        cluster.finish(cluster.start(impatient), 60)
        answer = cluster.complete([5, 6, 7], max_tokens=4, **GREEDY)
        equal(answer.verdict(), "full", "the next request")
        assert answer.seconds < 5, f"the next request took {answer.seconds:.2f} s"
        cluster.wait_idle(3)


@test
def a_client_that_does_not_read_harms_itself_only():
    with Cluster(
        engine="sim", set=["sim.decode_base_ms=1", "router.write_deadline_ms=1000"]
    ) as cluster:
        host, port = cluster.address["r0"].rsplit(":", 1)
        body = json.dumps(
            {"prompt": [7] * 10, "max_tokens": 4000, "stream": True, "logprobs": 5, **GREEDY}
        ).encode()
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect((host, int(port)))
        deaf.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            + f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        others = [
            lambda i=i: cluster.complete([8 + i] * 20, max_tokens=200, stream=True, **GREEDY)
            for i in range(4)
        ]
        for answer in cluster.finish(cluster.start(others), 30):
            equal(answer.verdict(), "full", "beside a client that does not read")
        cluster.wait_idle(20)
        deaf.close()


@test
def more_than_fits_is_refused_with_a_time_to_come_back():
    with Cluster(
        engine="sim", set=["pools.decode.slots=2", "pools.prefill.slots=2", "scheduler.queue_max=4"]
    ) as cluster:
        flood = [lambda: cluster.complete(PROMPT, max_tokens=60, **GREEDY) for _ in range(40)]
        answers = cluster.finish(cluster.start(flood), 60)
        verdicts = [a.verdict() for a in answers]
        assert set(verdicts) == {"full", "error"}, f"{set(verdicts)}"
        for answer in answers:
            if answer.verdict() == "error":
                equal(answer.status, 503, f"{answer.errors}")
                assert 1 <= int(answer.headers["retry-after"]) <= 60, answer.headers
        cluster.wait_idle()
        print(f"  {verdicts.count('full')} served, {verdicts.count('error')} refused")


@test
def a_router_that_is_told_to_stop_finishes_what_runs():
    with Cluster(engine="sim", set=["router.drain_deadline_ms=10000"]) as cluster:
        begun = []
        running = cluster.start(
            [
                lambda: cluster.complete(
                    PROMPT,
                    max_tokens=150,
                    stream=True,
                    on_frame=lambda a: begun.append(a) and False,
                    **GREEDY,
                )
            ]
        )
        wait_until(lambda: begun, 20, "tokens come")
        cluster["r0"].signal(signal.SIGTERM)
        answer = cluster.finish(running, 20)[0]
        equal((answer.verdict(), len(answer.token_ids)), ("full", 150), "the running stream")
        equal(cluster["r0"].wait(10), 0, "exit status")


@test
def workers_that_are_told_to_stop_finish_what_runs():
    with Cluster(engine="sim", decode=2) as cluster:
        begun = []
        running = cluster.start(
            [
                lambda: cluster.complete(
                    PROMPT,
                    max_tokens=100,
                    stream=True,
                    on_frame=lambda a: begun.append(a) and False,
                    **GREEDY,
                )
            ]
        )
        wait_until(lambda: begun, 20, "tokens come")
        victim = begun[0].decision["decode"]
        cluster[victim].signal(signal.SIGTERM)
        other = cluster.complete(PROMPT, max_tokens=5, **GREEDY)
        equal(other.verdict(), "full", "a request during the drain")
        equal(cluster.finish(running, 30)[0].verdict(), "full", "the running stream")
        equal(cluster[victim].wait(20), 0, "exit status")
        cluster.wait_idle()


@test
def the_path_is_told_in_a_header_and_a_timeline():
    with Cluster(engine="sim") as cluster:
        answer = cluster.complete(
            PROMPT, max_tokens=5, headers={"X-Request-Id": "my-own-7"}, **GREEDY
        )
        equal(answer.request_id, "my-own-7", "request id")
        equal(
            (answer.decision["path"], answer.decision["prefill"], answer.decision["decode"]),
            ("remote", "p0", "d0"),
            "decision",
        )
        entry = cluster.timeline("my-own-7")
        names = (
            "received",
            "queued",
            "dispatched",
            "prefill_start",
            "kv_first",
            "prefill_end",
            "joined",
            "last_token",
        )
        times = {**entry["attempts"][-1]["times_us"], **entry["times_us"]}
        missing = [n for n in names if n not in times]
        equal(missing, [], f"times that are missing from {sorted(times)}")
        in_order = [
            times[n]
            for n in (
                "received",
                "queued",
                "dispatched",
                "prefill_start",
                "prefill_end",
                "joined",
                "last_token",
            )
        ]
        equal(in_order, sorted(in_order), "times in order")
        status = client.request(cluster.address["r0.admin"], "GET", "/v1/requests/nobody")[0]
        equal(status, 404, "an unknown request")


if __name__ == "__main__":
    main()
