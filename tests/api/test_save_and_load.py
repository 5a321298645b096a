"""`capture.save` and `capture.load`: what was compiled in one process runs in another that compiles nothing."""
from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

import capture
from capture.errors import ArgumentError
from tests.backends.native.end_to_end.processes import output
from tests.scripts import files, python

# Prints the results of the first calls, whether kernels computed them, and how many compiling processes were started.
SHOW = """
torch.manual_seed(0)
x, w = torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)
use(f, 1)
print(capture.stats(f).compiled, capture.stats(f).pending, capture.wait(), len(sidecar._pool.threads))
use(f)
print(hash(f(x, w).detach().numpy().tobytes()))
"""


def saved(tmp_path: Path, source: str = SHOW, **environment: str) -> tuple[str, list[str]]:
    """The file that a process saved at its end, and what that printed."""
    path = str(tmp_path / "warm")
    *lines, last = output(f"{source}\nprint(capture.save({path!r}))", tmp_path / "ci", PYTHONHASHSEED="0", **environment)
    assert last == "True"
    return path, lines


@pytest.mark.parametrize("caching", ["0", "1"])
def test_a_process_with_a_loaded_cache_compiles_nothing(tmp_path: Path, caching: str) -> None:
    """Its first call is captured, and the second one runs kernels, with the same results to the bit; also without a disk cache."""
    path, (first, result) = saved(tmp_path)
    assert first == "0 1 True 1"
    program = f"sidecar.close()\nassert capture.load({path!r})\n{SHOW}"      # the process that started with `capture.compile`
    lines = output(program, tmp_path / "production", PYTHONHASHSEED="0", CAPTURE_CACHE=caching)
    assert lines == ["1 0 True 0", result]
    assert not list((tmp_path / "production").glob("*.capture"))


def test_sizes_that_change_are_known_as_well(tmp_path: Path) -> None:
    program = """
    h = capture.compile(lambda x: (x * 2 + 1).sum(0), backend="native")
    for size in range(3, 7):
        torch.testing.assert_close(h(torch.ones(size, 4)), torch.full((4,), 3.0 * size))
        capture.wait()
    print(capture.stats(h).captures, len(sidecar._pool.threads))
    """
    path, lines = saved(tmp_path, textwrap.dedent(program))
    assert lines == ["2 1"]
    again = f"sidecar.close()\nassert capture.load({path!r})\n{textwrap.dedent(program)}"
    assert output(again, tmp_path / "production") == ["1 0"]


def test_a_file_that_cannot_be_used_is_told_and_graphs_are_compiled(tmp_path: Path) -> None:
    path, (_, result) = saved(tmp_path)
    with open(path, "r+b") as file:
        file.seek(-1, 2)
        file.write(b"?")
    program = f"print(capture.load({path!r}), capture.load({path + '2'!r}))\n{SHOW}"
    lines = output(program, tmp_path / "production", PYTHONHASHSEED="0",
                   warnings=("is damaged; it is not used. Remedy: copy it again", "cannot be read: No such file or directory"))
    assert lines == ["False False", "0 1 True 1", result]


def test_an_environment_that_differs_is_told(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    assert output(f"print(capture.load({path!r}))", tmp_path / "production", CXX="g++",
                  warnings=("saved with CXX '', and this is CXX 'g++'. Remedy: set CXX as it was then",)) == ["False"]


def test_a_cache_that_cannot_be_saved_is_told(tmp_path: Path) -> None:
    lines = output(f"use(f)\nprint(capture.save({str(tmp_path / 'missing' / 'warm')!r}))\nuse(f)", tmp_path / "ci",
                   warnings=("cannot be written: No such file or directory. Remedy: choose a folder",))
    assert lines == ["False"]


def test_saving_waits_for_graphs_that_are_being_compiled_as_long_as_it_is_told(tmp_path: Path) -> None:
    path = str(tmp_path / "warm")
    lines = output(f"""
        use(g)          # which is compiled at its first hit
        use(f, 1)
        while not sidecar.processes(): time.sleep(0.001)
        h = capture.compile(lambda x: torch.tanh(x) + 2, backend="native")
        os.kill(sidecar.processes()[0], signal.SIGSTOP)
        h(x)
        print(capture.save({path!r}, timeout=0.1))
        os.kill(sidecar.processes()[0], signal.SIGCONT)
        print(capture.save({path!r}, 60), capture.stats(h).compiled)
        """, tmp_path / "ci", warnings=("1 graph is still being compiled and not in",))
    assert lines == ["False", "True 1"]


@pytest.mark.parametrize("path", [None, 3, ["list"], "nul\0"])
def test_paths_that_are_none(path: object) -> None:
    for function in capture.save, capture.load:
        with pytest.raises(ArgumentError, match=f"^{function.__name__} takes the path of a file, got {type(path).__name__}"):
            function(path)


@pytest.mark.parametrize("timeout", ["soon", float("nan")])
def test_timeouts_that_are_none(timeout: object) -> None:
    with pytest.raises(ArgumentError, match="^timeout must be a number of seconds or None"):
        capture.save("file", timeout)


SCRIPT = """
import torch
from torch import nn
from capture.backends.native import sidecar
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
with torch.no_grad():
    for _ in range(4):
        print(f"{net(torch.ones(3, 4)).sum().item():.5f}")
print("processes", len(sidecar._pool.threads))
"""


def test_a_script_is_run_with_a_warm_cache_without_changing_it(tmp_path: Path) -> None:
    script, warm = str(files(tmp_path, script=SCRIPT)), str(tmp_path / "warm")
    outs = [python("-m", "capture", "run", option, warm, script, env={"CAPTURE_CACHE_DIR": str(tmp_path / option)})
            for option in ("--save", "--load")]
    assert [out.returncode for out in outs] == [0, 0], outs
    assert outs[0].stdout.replace("processes 1", "processes 0") == outs[1].stdout and "processes 0" in outs[1].stdout
