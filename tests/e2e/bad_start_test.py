"""Starts that cannot succeed end at once with a message that helps: YAML typos, unknown keys and
impossible ratios (file, line, allowed range), missing, truncated or non-GGUF models, ports in use;
and what can still be served is served: /dev/shm too small, no UCX. A chat template that loops for
ever costs its own request only."""

import pathlib
import socket
import subprocess
import tempfile

import client
import gguf
from harness import MODELS, Cluster, bin_dir, equal, free_port, main, test, wait_until
from process import Process

PROGRAMS = {
    "tandem-router": (),
    "tandem-prefill-worker": ("--name", "p0"),
    "tandem-decode-worker": ("--name", "d0"),
}
SIM = "model: { engine: sim }\npools: { prefill: { replicas: 1 }, decode: { replicas: 1 } }\n"


def run(program, config, *arguments, seconds=20):
    """(exit status, output) of a start that should fail by itself."""
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "test.yaml"
        path.write_text(config)
        process = Process(
            program,
            [
                bin_dir() / program,
                *(["up"] if program == "tandem" else []),
                "-c",
                path,
                *PROGRAMS.get(program, ()),
                *arguments,
            ],
            directory,
        ).start()
        try:
            return process.wait(seconds), process.log()
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{program} goes on running with {config!r} {arguments}: {process.log()[-500:]}"
            ) from None
        finally:
            process.terminate()


def fails(program, config, *words, arguments=()):
    status, output = run(program, config, *arguments)
    assert status > 0, (
        f"{program}: status {status} (negative: a signal) with {config!r}: {output[-500:]}"
    )
    for word in words:
        assert word in output, f"{program}: {word!r} is not in the message: {output[-600:]}"


@test
def yaml_mistakes_name_file_line_and_what_is_allowed():
    for program in (*PROGRAMS, "tandem"):
        fails(program, SIM + "rooter: {}\n", "test.yaml:3", "rooter", "router")
        fails(
            program,
            SIM + "router:\n  lisen: 127.0.0.1:1\n",
            "test.yaml:4",
            "lisen",
            "router.listen",
        )
        fails(program, SIM + "slo: [\n", "test.yaml:")
        fails(
            program,
            SIM + "transfer: { streams_max: 0 }\n",
            "test.yaml:3",
            "transfer.streams_max",
            "1 to 65536",
        )
    for line, words in (
        ("transfer: { landing_bytes: lots }", ("landing_bytes", "lots")),
        ("transfer: { transport: pigeon }", ("pigeon", "ucx", "tcp")),
        ("router: { threads: -3 }", ("threads", "-3", "1 to")),
        ("router: { listen: nowhere }", ("listen", "nowhere")),
        ("scheduler: { policy: best }", ("policy", "best", "least_backlog")),
        ('ratio: "0:5"', ("ratio", "0:5")),
        ('ratio: "three:five"', ("ratio", "three:five")),
        ("ratio: { mode: split, prefill: 9, decode: 1, total: 2 }", ("ratio", "at least")),
        ("link: { heartbeat_ms: 5000 }", ("silence_max", "heartbeat")),
    ):
        fails("tandem-router", SIM + line + "\n", "test.yaml:3", *words)
    fails(
        "tandem-router", SIM, "--set", "router.threads", arguments=("--set", "router.threads=many")
    )
    fails("tandem-router", SIM, "nothing.at.all", arguments=("--set", "nothing.at.all=1"))
    status, output = run("tandem-router", SIM, "-c", "/nowhere/at/all.yaml")
    assert status > 0 and "/nowhere/at/all.yaml" in output, output[-300:]


@test
def models_that_cannot_be_loaded():
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        empty, text, truncated = (
            directory / "empty.gguf",
            directory / "text.gguf",
            directory / "truncated.gguf",
        )
        empty.touch()
        text.write_text("This is not a model.\n" * 1000)
        with open(MODELS["smollm2"], "rb") as model:
            truncated.write_bytes(model.read(5_000_000))
        header = directory / "header.gguf"
        header.write_bytes(b"GGUF" + b"\xff" * 60)
        for program in PROGRAMS:
            for path in (directory / "missing.gguf", empty, text, header, directory):
                fails(
                    program, f"model: {{ path: {path} }}\n", path.name, arguments=_listen(program)
                )
            if (
                program != "tandem-router"
            ):  # The router reads the vocabulary alone, which is all there.
                fails(
                    program,
                    f"model: {{ path: {truncated} }}\n",
                    truncated.name,
                    arguments=_listen(program),
                )


def _listen(program):
    if program == "tandem-router":
        return (
            "--set",
            f"router.listen=127.0.0.1:{free_port()}",
            "--set",
            f"router.admin=127.0.0.1:{free_port()}",
        )
    return ("--listen", f"127.0.0.1:{free_port()}")


@test
def ports_in_use_are_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for program in ("tandem-prefill-worker", "tandem-decode-worker"):
            fails(program, SIM, address, arguments=("--listen", address))
        fails("tandem-router", SIM, address, arguments=("--set", f"router.listen={address}"))
        fails(
            "tandem-router",
            SIM,
            address,
            arguments=(
                "--set",
                f"router.listen=127.0.0.1:{free_port()}",
                "--set",
                f"router.admin={address}",
            ),
        )
    fails(
        "tandem-decode-worker", SIM, "secret_file", arguments=("--listen", f"0.0.0.0:{free_port()}")
    )


def serves(cluster):
    answer = cluster.complete(list(range(10, 700)), max_tokens=4, ignore_eos=True)
    equal((answer.verdict(), answer.decision.get("path")), ("full", "remote"), f"{answer.errors}")


@test
def dev_shm_too_small_is_noticed_before_the_first_touch():
    small = (
        "unshare",
        "--mount",
        "sh",
        "-c",
        'mount -t tmpfs -o size=1m none /dev/shm && exec "$0" "$@"',
    )
    if subprocess.run([*small, "true"], capture_output=True).returncode != 0:
        print("  left out: no right to mount a small /dev/shm")
        return
    settings = ["transfer.landing_bytes=32MiB"]
    for transport in ("auto", "ucx"):
        cluster = Cluster(
            engine="sim", wrap={"d0": small}, set=[*settings, f"transfer.transport={transport}"]
        )
        try:
            for process in cluster.processes.values():
                process.start()
            wait_until(
                lambda: not cluster["d0"].alive() or "d0" in cluster.ready_workers(),
                30,
                "d0 decides",
            )
            if cluster["d0"].alive():
                cluster.wait_ready()
                serves(cluster)  # It found other memory or another transport.
                assert cluster["d0"].alive(), "died of the first touch"
            else:
                assert cluster["d0"].popen.returncode > 0, (
                    f"a signal ended it: {cluster['d0'].popen.returncode}"
                )
                assert "shm" in cluster["d0"].log() or "memory" in cluster["d0"].log(), cluster[
                    "d0"
                ].log()[-500:]
                equal(transport, "ucx", "with transport auto it should have fallen back")
        finally:
            cluster.__exit__(None, None, None)


@test
def without_ucx_it_falls_back_to_tcp_and_says_so():
    broken = {"all": {"UCX_TLS": "no_such_transport"}}
    with Cluster(engine="sim", env=broken) as cluster:
        serves(cluster)
        for name in ("p0", "d0"):
            log = cluster[name].log()
            assert "tcp" in log and "ucx" in log, (
                f"{name} does not say what it chose and why: {log[-800:]}"
            )


@test
def a_template_that_loops_for_ever_costs_its_own_request_only():
    template = (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
        "{% endfor %}{% endfor %}"
        "{% endfor %}{{ messages[0].content }}"
    )
    with tempfile.TemporaryDirectory() as directory:
        looping = pathlib.Path(directory) / MODELS["smollm2"].name
        gguf.with_text(MODELS["smollm2"], looping, "tokenizer.chat_template", template)
        with Cluster(
            prefill=0,
            decode=0,
            coupled=1,
            set=[f"model.path={looping}", "router.template_deadline_ms=500"],
        ) as cluster:
            loops = [
                lambda: cluster.complete(
                    path="/v1/chat/completions",
                    max_tokens=2,
                    messages=[{"role": "user", "content": "Hi"}],
                )
                for _ in range(3)
            ]
            running = cluster.start(loops)
            beside = cluster.complete("Hello", max_tokens=4, ignore_eos=True)
            equal(beside.verdict(), "full", "a completion beside it")
            for answer in cluster.finish(running, 20):
                equal(answer.verdict(), "error", "the looping chat")
                assert answer.status in (400, 500, 503, 504), answer.status
            cluster.wait_idle()


@test
def templates_are_rendered_by_the_models_own_jinja():
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}!"
    with tempfile.TemporaryDirectory() as directory:
        own = pathlib.Path(directory) / MODELS["smollm2"].name
        gguf.with_text(MODELS["smollm2"], own, "tokenizer.chat_template", template)
        with Cluster(prefill=0, decode=0, coupled=1, set=[f"model.path={own}"]) as cluster:
            body = {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": True}
            tokens = client.request(cluster.address["r0"], "POST", "/tokenize", body)[2]
            plain = client.request(
                cluster.address["r0"],
                "POST",
                "/tokenize",
                {"prompt": "<user>Hi!", "add_special_tokens": False},
            )[2]
            equal(tokens, plain, "tokens of the rendered chat")


if __name__ == "__main__":
    main()
