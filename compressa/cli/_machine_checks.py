"""What the machine is: cores and threads, clock, and what the testbed may do."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from compressa.cli._finding import Finding, noted

_FEATURES = ("avx2", "avx512f", "avx512bw", "avx512_vnni", "asimd")
_CLOCK = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_SLOW_CLOCKS = ("acpi_pm", "hpet", "jiffies")
_SHAPED = (
    "ip link add dev left type veth peer name right && "
    "tc qdisc add dev left root tbf rate 1mbit burst 16kb latency 25ms"
)
_WAIT_S = 20.0


def machine(ranks: int | None) -> Iterator[Finding]:
    """Yield what is found of this machine.

    Args:
        ranks: How many are to run on it; None for as many as a launcher says.
    """
    yield _processor()
    yield _cores(ranks)
    yield _clock()
    yield _testbed()


def _processor() -> Finding:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    listed = (line for line in lines if line.startswith(("flags", "Features")))
    flags = set(next(listed, "").partition(":")[2].split())
    features = ", ".join(feature for feature in _FEATURES if feature in flags)
    return Finding("processor", f"{platform.machine()}, {features or 'vector units not known'}")


def _cores(wanted: int | None) -> Finding:
    from compressa.engine.start.cores import launched_here, own_host

    usable, ranks = own_host().usable, wanted or launched_here()
    each = max(1, usable // ranks)
    said = os.environ.get("OMP_NUM_THREADS", "")
    found = f"{usable} for ranks: {ranks}, OMP_NUM_THREADS {said or 'not set'}"
    if ranks > usable:
        return noted("cores", f"{found}: ranks wait for one another", f"start {usable} at most")
    threads = int(said) if said.isdecimal() else None
    if ranks > 1 and (threads is None or threads * ranks > usable):
        why = "each rank would take all of them" if threads is None else "more threads than cores"
        return noted("cores", f"{found}: {why}", f"export OMP_NUM_THREADS={each}")
    return Finding("cores", found)


def _clock() -> Finding:
    source = _CLOCK.read_text(encoding="utf-8").strip() if _CLOCK.exists() else ""
    if source in _SLOW_CLOCKS:
        advice = "boot with a faster one, such as tsc; until then leave traces off"
        return noted("clock", f"{source}: each look at it takes a microsecond or more", advice)
    return Finding("clock", source or "the system's")


def _testbed() -> Finding:
    missing = [program for program in ("ip", "tc", "unshare") if shutil.which(program) is None]
    if missing:
        advice = "install iproute2 and util-linux; until then the hosts are processes over loopback"
        return noted("testbed", f"needs {', '.join(missing)}", advice)
    root = os.geteuid() == 0
    ways = [["--net"], ["--map-root-user", "--net"]] if root else [["--map-root-user", "--net"]]
    refused = ""
    for way in ways:
        done = _tried(["unshare", *way, "sh", "-c", _SHAPED])
        if done.returncode == 0:
            how = "root" if way == ["--net"] else "user namespaces"
            return Finding("testbed", f"shaped network namespaces, by {how}")
        refused = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no answer"
    advice = (
        "run as root, or allow user namespaces (sysctl user.max_user_namespaces); until then the "
        "hosts are processes over loopback, which shape no network"
    )
    return noted("testbed", f"no network namespaces with shaped links: {refused}", advice)


def _tried(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_WAIT_S, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer in {_WAIT_S:g} s")
