"""What is known of the processors."""
from __future__ import annotations

import errno
import os
import platform
import re
from pathlib import Path

import pytest

from capture.backends.native import processor


def test_the_features_of_the_processor() -> None:
    assert re.fullmatch(r"\S+( \S+)+", processor.features()) and processor.name()


@pytest.mark.parametrize(("before", "after", "same"), [
    ("flags : fpu avx2", "flags : fpu avx2 avx512f", False),
    ("flags : fpu avx2", "Features : asimd sve", False),
    ("cpu MHz : 1000\nflags : fpu", "cpu MHz : 2000\nflags : fpu", True),
    ("flags : fpu\n\nprocessor : 1\nflags : fpu", "flags : fpu", True),
])
def test_the_processor_is_known_by_its_instructions(before: str, after: str, same: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def features(text: str) -> str:
        monkeypatch.setattr(Path, "read_text", lambda self: text)
        return processor.features.__wrapped__()
    assert (features(before) == features(after)) is same


def test_without_proc_the_machine_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: Path) -> str:
        raise FileNotFoundError(errno.ENOENT, "No such file")
    monkeypatch.setattr(Path, "read_text", missing)
    assert processor.features.__wrapped__().startswith(platform.machine()) and processor.name.__wrapped__()


def test_a_processor_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "cpu family\t: 6\nmodel\t\t: 85\nmodel name\t: Some CPU @ 2.00GHz\nflags\t\t: fpu avx2\n"
    monkeypatch.setattr(Path, "read_text", lambda self: text)
    assert processor.features.__wrapped__() == f"{platform.machine()} cpu_family=6 model=85 fpu avx2"
    assert processor.name.__wrapped__() == "Some CPU @ 2.00GHz"


@pytest.mark.parametrize(("text", "expected"), [("vendor_id\t: GenuineIntel\nmodel\t: 1", "GenuineIntel"),
                                               ("Features : asimd", "")])
def test_the_vendor(text: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self: text)
    assert processor.vendor.__wrapped__() == expected


@pytest.mark.parametrize(("quota", "expected"), [("max 100000", 3), ("150000 100000", 1.5), ("800000 100000", 3), ("odd", 3)])
def test_how_many_processors_there_are(quota: str, expected: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2, 5})
    monkeypatch.setattr(Path, "read_text", lambda self: quota)
    assert processor.count() == expected


def test_how_many_processors_there_are_without_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: Path) -> str:
        raise FileNotFoundError(errno.ENOENT, "No such file")
    monkeypatch.setattr(Path, "read_text", missing)
    assert processor.count() == len(os.sched_getaffinity(0))
