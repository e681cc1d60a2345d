"""Peers that send garbage or lie: frames of random bytes, false lengths, wrong secrets, bodies of
wrong types and sizes, a worker with another model or another KV layout. Every one is refused with a
reason, the workers go on serving, and their memory does not grow."""

import pathlib
import random
import socket
import struct
import tempfile

import client
import link_peer
from harness import FULL, MODELS, SEED, Cluster, equal, main, test, wait_until
from link_peer import Peer, frame, pack

TRIES = 400 if FULL else 60


def resident_mb(process):
    for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024


def still_serves(cluster):
    answer = cluster.complete(list(range(10, 300)), max_tokens=4, ignore_eos=True)
    equal(answer.verdict(), "full", f"after the attack {answer.errors} {answer.failure}")
    cluster.wait_idle()
    for name in cluster.processes:
        assert cluster[name].alive(), f"{name} died"


def throw(address, data):
    """Sends and hangs up, whatever the other side does meanwhile."""
    try:
        client.raw(address, data, timeout=0.2)
    except ConnectionError:
        pass


@test
def garbage_on_a_link_port_harms_nobody():
    rng = random.Random(SEED)
    with Cluster(engine="sim") as cluster:
        still_serves(cluster)
        before = {n: resident_mb(cluster[n]) for n in ("p0", "d0")}
        for index in range(TRIES):
            target = cluster.address[("p0", "d0")[index % 2]]
            throw(
                target,
                rng.choice(
                    (
                        rng.randbytes(rng.randrange(1, 4000)),
                        struct.pack(
                            "<IB",
                            rng.choice((0, 0xFFFFFFFF, 0x7FFFFFFF, 1 << 20)),
                            rng.randrange(256),
                        )
                        + b"x" * 50,
                        frame(link_peer.HELLO, rng.randbytes(200)),
                        frame(link_peer.HELLO, b"\xdf\xff\xff\xff\xff"),  # A map of 4 billion
                        frame(link_peer.HELLO, b"\x91" * 5000),  # Arrays in arrays
                        frame(link_peer.LOAD, b""),
                        frame(link_peer.OPEN, pack({"transfer": 1})),
                        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                        b"",
                    )
                ),
            )
        still_serves(cluster)
        for name, megabytes in before.items():
            assert resident_mb(cluster[name]) < megabytes + 40, f"{name} grew from {megabytes} MB"


@test
def an_authenticated_peer_that_lies_is_cut_off_and_harms_nobody():
    rng = random.Random(SEED + 1)
    kinds = (
        link_peer.PREFILL,
        link_peer.DECODE,
        link_peer.CANCEL,
        link_peer.CONTROL,
        link_peer.OPEN,
        link_peer.LANDED,
        link_peer.SEAL,
        link_peer.ABORT,
        link_peer.QUIESCED,
        link_peer.CREDIT,
        200,
        0,
    )
    bodies = (
        b"",
        b"\x80",
        pack({}),
        pack([1, 2]),
        pack({"transfer": -1}),
        pack({"transfer": 5, "units": [[1 << 60] * 9]}),
        pack({"leg": {"transfer": 1, "tokens": [1 << 40], "prompt_count": 1}}),
        pack("text"),
        b"\xc1",
        b"\x91" * 900,
        pack(
            {"transfer": 9, "token": b"\0" * 16, "tokens": 1 << 50, "layout": "x", "address": "y"}
        ),
    )
    with Cluster(engine="sim") as cluster:
        for index in range(TRIES):
            peer = Peer(cluster.address[("p0", "d0")[index % 2]])
            equal(peer.answer[0], link_peer.WELCOME, "handshake")
            kind, body = rng.choice(kinds), rng.choice(bodies)
            try:
                peer.send(
                    kind,
                    body,
                    length=None if rng.random() < 0.8 else rng.choice((0, 1 << 31, 0xFFFFFFFF)),
                )
            except ConnectionError:
                pass
            peer.close()
        still_serves(cluster)


@test
def a_false_length_is_answered_with_a_reason():
    with Cluster(engine="sim") as cluster:
        peer = Peer(cluster.address["d0"])
        peer.send(link_peer.DECODE, b"", length=1 << 31)
        frames = peer.read_to_end()
        assert frames and frames[-1][0] in (link_peer.GOODBYE, link_peer.REFUSE), (
            f"closed without a reason: {frames}"
        )
        peer.close()
        still_serves(cluster)


@test
def a_wrong_secret_is_refused_on_both_ends():
    with tempfile.TemporaryDirectory() as directory:
        right, wrong = pathlib.Path(directory) / "right", pathlib.Path(directory) / "wrong"
        right.write_text("the right secret, long enough")
        wrong.write_text("another secret, as long")
        with Cluster(
            engine="sim",
            decode=2,
            each={n: [f"link.secret_file={right}"] for n in ("p0", "d0", "r0", "d1")},
        ) as cluster:
            still_serves(cluster)
            for secret in (b"", b"another secret, as long"):
                peer = Peer(cluster.address["d0"], secret=secret)
                equal(peer.answer[0], link_peer.REFUSE, f"answer to secret {secret!r}")
                peer.close()
            cluster["d1"].kill()
            cluster["d1"].argv = [a.replace(str(right), str(wrong)) for a in cluster["d1"].argv]
            cluster["d1"].start()
            wait_until(lambda: "secret" in str(cluster.workers()["d1"]), 10, "the reason is shown")
            assert "d1" not in cluster.ready_workers()
            still_serves(cluster)


def check_refused(reason_words, **more):
    """d1 differs from the others: it is refused, /v1/workers says why, and the rest serves."""
    cluster = Cluster(decode=2, **more)
    try:
        # The first worker that joins says what the cluster serves: d1 comes last.
        for name, process in cluster.processes.items():
            if name != "d1":
                process.start()
        cluster.wait_ready(workers=["p0", "d0"])
        cluster["d1"].start()
        address = cluster.address["d1"]

        def reason():
            shown = [
                w
                for w in client.get_json(cluster.address["r0.admin"], "/v1/workers")["data"]
                if w.get("name") == "d1" or address in str(w)
            ]
            return (
                shown
                and any(word in str(shown[0]).lower() for word in reason_words)
                and shown[0]["state"] != "ready"
            )

        wait_until(reason, 30, f"/v1/workers names one of {reason_words}")
        answers = {
            cluster.complete([5, 6, 7 + i], max_tokens=3, ignore_eos=True).decision.get("decode")
            for i in range(4)
        }
        equal(answers, {"d0"}, "workers that serve")
    finally:
        cluster.__exit__(None, None, None)


@test
def a_worker_with_another_layout_is_refused_with_the_reason():
    check_refused(("layout",), engine="sim", each={"d1": ["sim.kv_bytes_per_token=16384"]})


@test
def a_worker_with_another_model_is_refused_with_the_reason():

    check_refused(
        ("model", "tokenizer"),
        engine="llama",
        each={"d1": [f"model.path={MODELS['gemma']}", "model.name=smollm2-135m-instruct-q4_0"]},
    )


@test
def a_peer_that_connects_and_says_nothing_holds_nothing():
    with Cluster(engine="sim", set=["link.connections_max=16"]) as cluster:
        silent = [
            socket.create_connection(tuple(cluster.address["d0"].rsplit(":", 1)), timeout=5)
            for _ in range(40)
        ]
        cluster["r0"].kill()
        cluster["r0"].start()
        wait_until(
            lambda: cluster.ready_workers() == {"p0", "d0"},
            15,
            "the router gets in past silent peers",
        )
        still_serves(cluster)
        for connection in silent:
            connection.close()


if __name__ == "__main__":
    main()
