"""What is known of the processors."""
from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from capture.backends.native import processor


def test_the_identity_of_the_processor() -> None:
    assert re.fullmatch("[0-9a-f]{64}", processor.identity())


@pytest.mark.parametrize(("before", "after", "same"), [
    ("flags : fpu avx2", "flags : fpu avx2 avx512f", False),
    ("flags : fpu avx2", "Features : asimd sve", False),
    ("cpu MHz : 1000\nflags : fpu", "cpu MHz : 2000\nflags : fpu", True),
    ("flags : fpu\n\nprocessor : 1\nflags : fpu", "flags : fpu", True),
])
def test_the_processor_is_known_by_its_instructions(before: str, after: str, same: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def identity(text: str) -> str:
        monkeypatch.setattr(Path, "read_text", lambda self: text)
        return processor.identity.__wrapped__()
    assert (identity(before) == identity(after)) is same


def test_without_proc_the_processor_still_has_an_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: Path) -> str:
        raise FileNotFoundError(errno.ENOENT, "No such file")
    monkeypatch.setattr(Path, "read_text", missing)
    assert re.fullmatch("[0-9a-f]{64}", processor.identity.__wrapped__())


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
