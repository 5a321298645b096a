"""The debug folder, and what a terminal shows while a capture takes long."""
from __future__ import annotations

import bdb
import os
import pty
import weakref
from pathlib import Path

import pytest
import torch

import capture
from capture import config, debug
from capture.reports import progress
from tests import compiling

X = torch.ones(3)


@pytest.fixture
def folder(tmp_path: Path):
    with config.DEBUG_DIR.set(str(tmp_path)):
        yield tmp_path


class Stops(bdb.Bdb):
    """Notes every line at which the debugger stops in a file; goes on line by line."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file, self.lines = self.canonic(file), []

    def user_line(self, frame) -> None:
        if self.canonic(frame.f_code.co_filename) == self.file:
            self.lines.append(frame.f_lineno)
            self.set_next(frame)
        else:
            self.set_continue()


def scaled(x, state):
    state["calls"] = state["calls"] + 1
    return x * 2


def test_mock_functions_are_files_that_debuggers_stop_in(folder: Path) -> None:
    compiled, state = capture.compile(scaled), {"calls": 0}
    compiled(X, state)
    file = folder / "scaled" / "0.mock.py"
    source = file.read_text()
    assert "graph(x)" in source and "state" in source
    debugger = Stops(str(file))
    first = next(n for n, line in enumerate(source.splitlines(), 1) if line.startswith("    "))
    assert debugger.set_break(str(file), first) is None
    debugger.runcall(compiled, X, state)
    assert len(debugger.lines) >= 3 and set(debugger.lines) <= set(range(first, len(source.splitlines()) + 1)), debugger.lines
    assert state == {"calls": 2}


def test_a_mock_function_says_what_its_names_stand_for(folder: Path) -> None:
    class Box:
        pass

    weight, box = torch.ones(3), Box()

    def f(x):
        box.seen = x
        return x * weight
    capture.compile(f, backend="eager")(X)
    source = (folder / "f" / "0.mock.py").read_text()
    names = dict(line.removeprefix("# ").split(maxsplit=1) for line in source.splitlines() if line.startswith("#"))
    assert names["graph"] == "the tensor operations", source
    assert names["lifted[0]"] == "x" and names["lifted[1]"].endswith(".cell_contents"), source
    assert source.startswith("def f_0(x, lifted):\n") and "cell_contents" in names["lifted[2]"], source


def test_no_code_of_the_programs_runs_for_that() -> None:
    class Meta(type):
        def __getattribute__(cls, name):
            raise AssertionError(name)

    class Odd(metaclass=Meta):
        def __getattr__(self, name):
            raise AssertionError(name)
    odd = Odd()
    assert debug.described(odd) == f"an instance of {__name__}.test_no_code_of_the_programs_runs_for_that.<locals>.Odd"
    assert debug.described(weakref.ref(Odd)).startswith("a weak reference to ")
    assert debug.described(list.append) == "builtins.list.append" and debug.described(len) == "builtins.len"


def test_each_entry_has_its_files_and_each_frame_its_folder(folder: Path) -> None:
    for _ in range(2):
        compiled = capture.compile(scaled)
        for n in (2, 3):
            compiled(torch.ones(n), {"calls": 0})
    kinds = [f"{number}.{kind}" for number in (0, 1) for kind in ("graph.py", "guards.txt", "mock.py")]
    folders = sorted(path.name for path in folder.iterdir())
    assert len(folders) == 2 and all(name.startswith("scaled") for name in folders)
    assert all(sorted(os.listdir(folder / name)) == kinds for name in folders)
    assert "tensor_properties(x)" in (folder / folders[0] / "0.guards.txt").read_text()


def test_names_of_folders_are_harmless(folder: Path) -> None:
    def f(x):
        return x + 1
    f.__name__ = "../../evil name"
    capture.compile(f)(X)
    name, = os.listdir(folder)
    assert "/" not in name and " " not in name


def test_frames_have_folders_of_their_own_after_others_have_died(folder: Path) -> None:
    names = {f"frame_{number}" for number in range(20)}
    for name in sorted(names):
        def f(x):
            return x + 1
        f.__name__ = name
        capture.compile(f)(X)
    assert set(os.listdir(folder)) == names


def test_a_folder_that_cannot_be_written_to_is_told_and_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with config.DEBUG_DIR.set(str(tmp_path / "file")):
        compiled = capture.compile(lambda x: x + 1)
        with pytest.warns(UserWarning, match="CAPTURE_DEBUG_DIR=.* cannot be written to: Not a directory; set it to"):
            assert torch.equal(compiled(X), X + 1)
        assert torch.equal(compiled(X), X + 1) and capture.stats(compiled).hits == 1


SLOW = """
import random, sys
import torch, capture
from capture.reports import progress
from tests import compiling
progress.DELAY = 0.0
streams, state = (sys.stdout, sys.stderr), random.getstate()

@capture.compile(backend="eager")
def program(x):
    for _ in range(500):
        x = x + 1
    return x

program(torch.ones(2))
assert (sys.stdout, sys.stderr) == streams and random.getstate() == state
print("done")
"""


def test_long_captures_are_told_on_a_terminal_only(tmp_path: Path) -> None:
    run = ["-c", SLOW]
    plain = compiling.programs().run(run, timeout=100)
    assert (plain.stdout, plain.stderr, plain.returncode) == ("done\n", "", 0)
    parent, child = pty.openpty()
    with open(tmp_path / "output", "w") as output, open(child, "w") as stderr:
        terminal = compiling.programs().start(run, output, stderr, environment={**os.environ, "TERM": "xterm"})
    shown = b""
    while True:
        try:
            part = os.read(parent, 4096)
        except OSError:         # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(parent)
    assert terminal.wait(100) == 0 and (tmp_path / "output").read_text() == "done\n", shown
    assert b"capturing program" in shown


def test_one_line_is_shown_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []

    class Line:
        def __init__(self, text: str) -> None:
            self.text = text

        def __enter__(self) -> None:
            shown.append(self.text)

        def __exit__(self, *exception) -> None:
            shown.append("over")

    monkeypatch.setattr(progress, "on_terminal", lambda: True)
    monkeypatch.setattr(progress, "line", Line)
    monkeypatch.setattr(progress, "DELAY", 0.0)
    with progress.capturing("outer"), progress.capturing("inner"):
        while not shown:
            pass
    assert shown == ["capturing outer", "over"]
    with pytest.raises(KeyError), progress.capturing("again"):
        raise KeyError
