"""The processors on which this process runs."""
from __future__ import annotations

import functools
import os
import platform
import re
from pathlib import Path

TELLING = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU implementer", "CPU part", "isa")


def _rows() -> list[tuple[str, str]]:
    """The facts that Linux gives of the first processor, by name; empty on other systems."""
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return []
    rows = (re.sub(r"\s+", " ", row).partition(":") for row in first.splitlines())
    return [(name.strip(), value.strip()) for name, _, value in rows]


def count() -> float:
    """How many this process may use."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return min(allowed, int(quota) / int(period))
    except (OSError, ValueError):       # no such group, or "max"
        return allowed


@functools.cache
def features() -> str:
    """The processor's model and instruction sets, as words: code for one processor must not be loaded on another."""
    rows = [(name, value) for name, value in _rows() if name in TELLING]
    words = [word if " " in value else f"{name.replace(' ', '_')}={word}" for name, value in rows for word in value.split()]
    return " ".join([platform.machine(), *(words or [platform.processor()])])


@functools.cache
def name() -> str:
    """What it is called."""
    return dict(_rows()).get("model name") or platform.processor() or platform.machine()


@functools.cache
def vendor() -> str:
    """Who made it, as an x86 processor names itself ("GenuineIntel", "AuthenticAMD"); empty where that is not known."""
    return dict(_rows()).get("vendor_id", "")
