"""The processors on which this process runs."""
from __future__ import annotations

import functools
import hashlib
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
def identity() -> str:
    """A hash of the processor's model and instruction sets: code for one processor must not be loaded on another."""
    rows = [f"{name}:{value}" for name, value in _rows() if name in TELLING]
    text = "\n".join([platform.machine(), *(rows or [platform.processor()])])
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def vendor() -> str:
    """Who made it, as an x86 processor names itself ("GenuineIntel", "AuthenticAMD"); empty where that is not known."""
    return dict(_rows()).get("vendor_id", "")
