"""Streams that installed packages write in Python, as Jupyter's: writing to them is an effect, as to a file."""
from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import capture

SOURCE = '''
import io, threading

class OutStream(io.TextIOBase):
    """Gathers text, and sends it from another thread."""

    encoding = "UTF-8"

    def __init__(self, echo=None):
        self.buffer_, self.lock, self.sent, self.count, self.echo = [], threading.RLock(), [], 0, echo

    def flush(self):
        with self.lock:
            self.sent.append("".join(self.buffer_))
            self.buffer_.clear()

    def write(self, string):
        if not isinstance(string, str):
            raise TypeError(f"write() argument must be str, not {type(string)}")
        if self.echo is not None:
            self.echo.write(string)
        with self.lock:
            self.buffer_.append(string)
        self.count += 1
        if "\\n" in string:
            sender = threading.Thread(target=self.flush)
            sender.start()
            sender.join()
        return len(string)
'''


@pytest.fixture
def OutStream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type]:
    """The class of a package that is installed elsewhere than in this environment, as by `pip install --user`."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "streams_of_a_package.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(packages))
    yield importlib.import_module("streams_of_a_package").OutStream
    del sys.modules["streams_of_a_package"]


def run(make: Callable[[], Any], program: Callable, calls: int, engine: Callable, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What some calls of a program return and write."""
    stream, results = make(), []
    compiled = engine(program)
    for number in range(calls):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            results.append((compiled(torch.full((2,), float(number)), stream)[1:], list(stream.sent), stream.count))
    return results


def agrees(make: Callable[[], Any], program: Callable, monkeypatch: pytest.MonkeyPatch) -> capture.Stats:
    """The statistics of a captured program whose stream gets what it does in eager mode."""
    compiled = []

    def engine(program: Callable) -> Callable:
        compiled.append(capture.compile(program, backend="eager"))
        return compiled[0]
    eager = run(make, program, 5, lambda program: program, monkeypatch)
    assert run(make, program, 5, engine, monkeypatch) == eager
    return capture.stats(compiled[0])


def prints(x, stream):
    y = x + 1
    print("sum", x.sum().item(), x.shape)
    return y * 2, 0


def prints_to_file(x, stream):
    y = x + 1
    print("sum", x.sum().item(), file=stream)
    return y * 2, 0


def writes(x, stream):
    y = x + 1
    written = sys.stdout.write(f"{x.sum().item()}\n")
    sys.stdout.flush()
    return y * 2, written


def reads_afterwards(x, stream):
    y = x + 1
    print("text")
    return y * 2, sys.stdout.count, stream.count


@pytest.mark.parametrize("program", [prints, prints_to_file, writes])
def test_one_graph(program: Callable, OutStream: type, monkeypatch: pytest.MonkeyPatch) -> None:
    stats = agrees(OutStream, program, monkeypatch)
    assert (stats.captures, stats.hits, stats.breaks) == (1, 4, 0), stats


def test_what_a_stream_holds_is_read_after_a_call(OutStream: type, monkeypatch: pytest.MonkeyPatch) -> None:
    agrees(OutStream, reads_afterwards, monkeypatch)


@pytest.mark.parametrize("program", [prints, prints_to_file, writes, reads_afterwards])
def test_code_of_the_program_takes_part(program: Callable, OutStream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Own(OutStream):
        def write(self, string):
            seen.append(string)
            return super().write(string)

    class Echo(io.StringIO):
        def write(self, string):
            seen.append(string)
            return 0

    def counting(x, stream):
        before = len(seen)
        result = program(x, stream)
        return *result, len(seen) - before
    agrees(Own, counting, monkeypatch)
    agrees(lambda: OutStream(Echo()), counting, monkeypatch)


def test_another_stream(OutStream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Own:
        def __init__(self):
            self.texts = []

        def write(self, string):
            self.texts.append(string)
    compiled = capture.compile(prints, backend="eager")
    x = torch.ones(2)
    for stream, text in ((OutStream(), lambda s: "".join(s.sent)), (io.StringIO(), io.StringIO.getvalue),
                         (Own(), lambda s: "".join(s.texts)), (OutStream(), lambda s: "".join(s.sent))):
        monkeypatch.setattr(sys, "stdout", stream)
        for number in range(1, 4):
            compiled(x, None)
            assert text(stream) == "sum 2.0 torch.Size([2])\n" * number
