"""What NIXL reaches between two processes of this host, for bench/transfer_race.sh.

nixl_compare.py [MiB of memory, default 1024]
Needs: pip install nixl-cu12 numpy (no dependencies)

Writes blocks of 1 MB from one process into the other's host memory, first over what UCX chooses
within a host, then over TCP alone. Prints `name value` lines as tandem-transfer-bench does. Each
figure is the better of two, each the median of some runs: one block at a time, requests of 16.
"""

import multiprocessing
import os
import sys
import time

BLOCK = 1 << 20
UNIT = 128 << 10
RUNS = 5


def agent_of(name):
    from nixl_cu12._api import nixl_agent, nixl_agent_config

    return nixl_agent(name, nixl_agent_config(backends=["UCX"]))


def region(bytes_count):
    import numpy

    memory = numpy.ones(bytes_count, dtype=numpy.uint8)
    return memory, memory.ctypes.data


def target(pipe, tls, bytes_count):
    if tls:
        os.environ["UCX_TLS"] = tls
    agent = agent_of("target")
    memory, address = region(bytes_count)
    agent.register_memory([(address, bytes_count, 0, "")], "DRAM")
    pipe.send((agent.get_agent_metadata(), address))
    while not pipe.poll(0):
        agent.update_notifs()
        time.sleep(0.0001)
    del memory


def finish(agent, handle):
    state = agent.transfer(handle)
    while state == "PROC":
        state = agent.check_xfer_state(handle)
    if state != "DONE":
        raise RuntimeError("NIXL transfer failed")


def requests(agent, peer, local, remote, bytes_count, block, blocks):
    handles = []
    for first in range(0, bytes_count, block * blocks):
        offsets = range(first, min(first + block * blocks, bytes_count), block)
        mine = agent.get_xfer_descs([(local + o, block, 0) for o in offsets], "DRAM")
        theirs = agent.get_xfer_descs([(remote + o, block, 0) for o in offsets], "DRAM")
        handles.append(agent.initialize_xfer("WRITE", mine, theirs, peer))
    return handles


def measure(tls, label, bytes_count):
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=target, args=(there, tls, bytes_count), daemon=True)
    process.start()
    if tls:
        os.environ["UCX_TLS"] = tls
    agent = agent_of("source")
    memory, address = region(bytes_count)
    agent.register_memory([(address, bytes_count, 0, "")], "DRAM")
    metadata, remote = here.recv()
    peer = agent.add_remote_agent(metadata)
    best = 0.0
    for blocks in (1, 16):
        handles = requests(agent, peer, address, remote, bytes_count, BLOCK, blocks)
        speeds = []
        for run in range(RUNS + 1):  # The first one touches the pages
            begin = time.perf_counter()
            for handle in handles:
                finish(agent, handle)
            if run > 0:
                speeds.append(bytes_count / (time.perf_counter() - begin) / 1e9)
        best = max(best, sorted(speeds)[RUNS // 2])
        for handle in handles:
            agent.release_xfer_handle(handle)
    print(f"nixl_{label}_gb_s {best:.2f}", flush=True)
    [unit] = requests(agent, peer, address, remote, UNIT, UNIT, 1)
    times = []
    for _ in range(2000):
        begin = time.perf_counter()
        finish(agent, unit)
        times.append(time.perf_counter() - begin)
    print(f"nixl_{label}_unit_p50_us {sorted(times)[1000] * 1e6:.2f}", flush=True)
    here.send("end")
    process.join(10)
    del memory


def main():
    bytes_count = (int(sys.argv[1]) if len(sys.argv) > 1 else 1024) << 20
    if len(sys.argv) > 2:  # One measurement per process: UCX reads its environment once
        label = sys.argv[2]
        measure("tcp" if label == "tcp" else "", label, bytes_count)
        return
    for label in ("shared", "tcp"):
        command = [sys.executable, __file__, str(bytes_count >> 20), label]
        os.spawnv(os.P_WAIT, sys.executable, command)


if __name__ == "__main__":
    main()
