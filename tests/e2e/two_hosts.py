"""Two network hosts on one machine, without leaving a trace: this process becomes host A, a child
holds host B, each in its own network namespace, joined by a cable that delays and loses packets.

    two_hosts.become_host_a()  # First thing in main: runs the script again in new namespaces
    cable = two_hosts.Cable(delay_ms=2, loss=0.01)
    Cluster(wrap={"d0": cable.on_b}, host={"d0": cable.address_b, ...})
    cable.cut(); cable.mend()

The cable is a pair of TAP devices and a thread that carries frames between them: the kernels of
many small machines come without the netem queue discipline, and TCP cannot tell the difference."""

import ctypes
import fcntl
import heapq
import os
import random
import select
import signal
import struct
import subprocess
import sys
import threading
import time

from process import skip

_INSIDE = "TANDEM_E2E_HOST_A"
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000


def become_host_a():
    """Runs the calling script again in fresh network and mount namespaces (and, without root, a
    user namespace)."""
    if os.environ.get(_INSIDE):
        subprocess.run(["mount", "-t", "sysfs", "none", "/sys"], check=False, capture_output=True)
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return
    unshare = ["unshare", "--net", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        skip("no /dev/net/tun")
    try:
        probe = subprocess.run(
            [*unshare, "ip", "tuntap", "add", "probe0", "mode", "tap"],
            capture_output=True,
            text=True,
        )
    except FileNotFoundError as error:
        skip(f"{error.filename} is missing")
    if probe.returncode != 0:
        skip(f"no right to make network namespaces and devices: {probe.stderr.strip()}")
    os.environ[_INSIDE] = "1"
    os.execvp("unshare", [*unshare, sys.executable, *sys.argv])


def _open_tap(name):
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    return tap


class Cable:
    address_a, address_b = "10.77.0.1", "10.77.0.2"

    def __init__(self, delay_ms, loss, seed):
        self.delay, self.loss, self.random = delay_ms / 1000, loss, random.Random(seed)
        self.carried = self.lost = 0
        self._cut = self._stop = False
        self._holder = subprocess.Popen(
            [
                "unshare",
                "--net",
                "--mount",
                "sh",
                "-c",
                "mount -t sysfs none /sys; echo ready; exec sleep 100000",
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._holder.stdout.readline()
        self.on_b = ("nsenter", "-t", str(self._holder.pid), "-n", "-m")
        self._tap_a, taps = _open_tap("wire0"), []
        thread = threading.Thread(target=lambda: taps.append(self._tap_in_b()))
        thread.start()
        thread.join()
        self._tap_b = taps[0]
        for wrap, address in (((), self.address_a), (self.on_b, self.address_b)):
            for command in (
                f"ip addr add {address}/24 dev wire0",
                "ip link set wire0 up",
                "ip link set lo up",
            ):
                subprocess.run([*wrap, *command.split()], check=True)
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def cut(self):
        """Both hosts stay up, nothing gets through, and nobody is told."""
        self._cut = True

    def mend(self):
        self._cut = False

    def close(self):
        self._stop = True
        self._thread.join(5)
        self._holder.send_signal(signal.SIGKILL)
        self._holder.wait(5)
        self._holder.stdout.close()
        os.close(self._tap_a)
        os.close(self._tap_b)

    def _tap_in_b(self):
        # Entering a namespace concerns the calling thread only; this one ends right after.
        with open(f"/proc/{self._holder.pid}/ns/net") as namespace:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        return _open_tap("wire0")

    def _carry(self):
        other = {self._tap_a: self._tap_b, self._tap_b: self._tap_a}
        on_the_way, order = [], 0
        while not self._stop:
            now = time.monotonic()
            while on_the_way and on_the_way[0][0] <= now:
                _, _, target, frame = heapq.heappop(on_the_way)
                try:
                    os.write(target, frame)
                except BlockingIOError:
                    self.lost += 1  # A full queue loses packets too.
            wait = min(0.1, on_the_way[0][0] - now) if on_the_way else 0.1
            for tap in select.select([self._tap_a, self._tap_b], [], [], max(0, wait))[0]:
                for _ in range(64):
                    try:
                        frame = os.read(tap, 65536)
                    except BlockingIOError:
                        break
                    if self._cut or self.random.random() < self.loss:
                        self.lost += 1
                        continue
                    self.carried += 1
                    order += 1
                    heapq.heappush(
                        on_the_way, (time.monotonic() + self.delay, order, other[tap], frame)
                    )
