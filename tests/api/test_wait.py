"""`capture.wait`: what a terminal shows while it blocks, and what it says."""
from __future__ import annotations

import io
import sys

import pytest

import capture
from capture.reports import progress


class Screen(io.StringIO):
    """A stderr that may be a terminal."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize("terminal", [False, True])
def test_a_line_tells_how_many_graphs_are_left(terminal: bool, monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen(terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    with progress.status() as show:
        for count in (2, 1):
            show(count)
    assert ("compiling" in screen.getvalue()) == terminal


def test_no_stderr_at_all(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert capture.wait()


def test_without_graphs_it_returns_at_once() -> None:
    assert capture.wait() is True and capture.wait(timeout=0) is True
