"""What goes wrong outside of capture: one clear warning, the right results, and an explanation; the program goes on."""
from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capture.backends.native import artifact, disk_cache, toolchain
from capture.backends.native.artifact import Frozen
from capture.backends.native.serialization import encode
from tests.backends.native.end_to_end.processes import output, run

SHOW = """
for function in f, g:
    use(function)
    capture.wait()
    use(function)
    stats = capture.stats(function)
    print(stats.compiled, *stats.compile_errors)
    assert not stats.compile_errors or stats.compile_errors[0] in capture.explain(function)
"""
COMPILED = ["1", "1"]


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch) -> Iterator[Path]:
    """A C++ compiler that tests write: a script, which CXX names."""
    path = tmp_path / "c++"
    monkeypatch.setenv("CXX", str(path))
    yield path


def real_compiler() -> str:
    return next(path for path in map(shutil.which, toolchain.NAMES) if path)


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)


def uncompiled(lines: list[str], reason: str) -> bool:
    """Whether both functions say that they were not compiled, and why."""
    return len(lines) == 2 and all(line.startswith("0 ") and reason in line for line in lines)


def test_no_compiler(tmp_path: Path) -> None:
    assert uncompiled(output(SHOW, tmp_path / "cache", CXX="/nonexistent", warnings=("/nonexistent",)), "/nonexistent")


def test_a_compiler_that_is_killed(tmp_path: Path, compiler: Path) -> None:
    """It says who it is, but each kernel is too much."""
    script(compiler, f'case "$*" in *capture*.cpp*) kill -9 $$;; *) exec {real_compiler()} "$@";; esac')
    assert uncompiled(output(SHOW, tmp_path / "cache", warnings=("memory ran out",)), "memory ran out")


def test_a_compiler_that_fails(tmp_path: Path, compiler: Path) -> None:
    script(compiler, "echo the reason of it >&2; exit 1")
    trouble = "not a usable C++ compiler"
    lines = output(SHOW + "print('the reason of it' in capture.explain(f))", tmp_path / "cache", warnings=(trouble,))
    assert uncompiled(lines[:2], trouble) and lines[2] == "True"


def test_no_compiling_process(tmp_path: Path) -> None:
    trouble = "the compiling process cannot be started"
    lines = output("sys.executable = '/no/such/python'\nsidecar.close()" + SHOW, tmp_path / "cache", warnings=(trouble,))
    assert uncompiled(lines, trouble)


KILL = """
def kill():
    for _ in range(TIMES):
        while not sidecar.processes(): time.sleep(0.001)
        process, = sidecar.processes()
        os.kill(process, signal.SIGKILL)
        while process in sidecar.processes(): time.sleep(0.001)
threading.Thread(target=kill, daemon=True).start()
"""


def test_a_compiling_process_that_always_dies(tmp_path: Path) -> None:
    lines = output(KILL.replace("TIMES", "1000") + SHOW, tmp_path / "cache", warnings=("SIGKILL",))
    assert uncompiled(lines, "was ended by SIGKILL")


def test_a_compiling_process_that_dies_once(tmp_path: Path) -> None:
    assert output(KILL.replace("TIMES", "1") + SHOW, tmp_path / "cache") == COMPILED


# --- the disk cache

def test_a_cache_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    assert output(SHOW, tmp_path / "cache", warnings=("Not a directory",)) == COMPILED


def test_a_cache_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    """As root too: /proc takes no files."""
    assert output(SHOW, Path("/proc/1/capture"), warnings=("cannot be written to",)) == COMPILED


def test_a_cache_folder_that_others_can_write_to(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    assert output(SHOW, tmp_path / "cache", warnings=("chmod 700",)) == COMPILED
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize("room", ["cache", "scratch"])
def test_a_full_disk(room: str, tmp_path: Path) -> None:
    """Of the cache, or where the compiler writes: a file system of one page."""
    small = tmp_path / room
    small.mkdir(mode=0o700)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,mode=700", "tmpfs", small], capture_output=True)
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        folder = tmp_path if room == "cache" else small
        lines = output(SHOW, tmp_path / "cache", TMPDIR=str(folder), warnings=("No space left",))
        assert lines == COMPILED if room == "cache" else uncompiled(lines, "No space left")
    finally:
        subprocess.run(["umount", small], check=True)


DAMAGES = {"empty": lambda data: b"", "truncated": lambda data: data[:len(data) // 2], "flipped": lambda data: flipped(data, -100),
           "header": lambda data: flipped(data, 3), "longer": lambda data: data + b"x", "text": lambda data: b"hello"}


class Executes:
    """Its pickle calls a function when it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


# What else may lie in an entry whose checksum is right.
CONTENTS = {"no artifact": lambda data, folder: b"hello", "half of one": lambda data, folder: data[:len(data) // 2],
            "another record": lambda data, folder: encode(Frozen(b"", (), ())),
            "an artifact that is longer": lambda data, folder: data + b"x",
            "a pickle": lambda data, folder: pickle.dumps(Executes(folder / "executed")),
            "no library": lambda data, folder: encode(without_library(artifact.read(data)))}


def without_library(compiled: artifact.Artifact) -> artifact.Artifact:
    return replace(compiled, forward=replace(compiled.forward, library=b"no library"))


def flipped(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 1
    return bytes(changed)


# In the place of the prelude's: it has one kernel, and no backward pass.
SMALL = """
program = lambda x: x * 2 + 1

def use(function, calls=3):
    for _ in range(calls):
        torch.testing.assert_close(function(x), x * 2 + 1)

f = capture.compile(program, backend="native", fullgraph=True)
"""


def test_damaged_entries_are_compiled_again(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert output(SMALL + "use(f)\nprint(states())\nuse(f)", cache) == ["(1, [])"]
    entry, = cache.glob("*.capture")
    good = entry.read_bytes()
    folder = tmp_path / "damaged"
    contents = disk_cache._unpacked(entry.stem, good)
    entries = {name: damage(good) for name, damage in DAMAGES.items()}
    entries |= {name: disk_cache._packed(entry.stem, change(contents, tmp_path)) for name, change in CONTENTS.items()}
    for name, data in entries.items():
        (folder / name).mkdir(parents=True, mode=0o700)
        (folder / name / entry.name).write_bytes(data)
    lines = output(SMALL + textwrap.dedent(f"""
        from capture import config
        for name in {list(entries)}:
            with config.CACHE_DIR.set(f"{folder}/{{name}}"):
                function = capture.compile(program, backend="native")
                use(function, 1)
                assert capture.stats(function).pending == 1 and capture.wait() and capture.stats(function).compiled == 1
                use(function)
                function = capture.compile(program, backend="native")
                use(function, 1)
                print(name, capture.stats(function).compiled)
        """), cache)
    assert lines == [f"{name} 1" for name in entries] and not (tmp_path / "executed").exists()


# --- processes

def test_a_warm_process_compiles_nothing(tmp_path: Path) -> None:
    """The first hit runs compiled, with the same result to the bit."""
    results: list[list[str]] = []
    for processes in (1, 0):
        lines = output("""
            torch.manual_seed(0)
            x, w = torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)
            use(f, 1)
            print(len(sidecar._pool.threads), capture.stats(f).compiled, capture.wait())
            use(f)
            print(len(sidecar.processes()), hash(f(x, w).detach().numpy().tobytes()), capture.stats(f).compiled)
            """, tmp_path / "cache", PYTHONHASHSEED="0")
        assert lines[0] == f"{processes} {1 - processes} True" and lines[1].split()[0] == str(processes)
        results.append(lines[1].split()[1:])
    assert results[0] == results[1]


@pytest.mark.parametrize("function", ["f", "g"], ids=["in the background", "while a thread waits"])
def test_a_fork_while_graphs_are_compiled(function: str, tmp_path: Path) -> None:
    lines = output(f"""
        f = {function}
        while not sidecar.processes(): time.sleep(0.001)
        os.kill(sidecar.processes()[0], signal.SIGSTOP)         # what is to be compiled is not so before all forks are made
        f(x, w)
        threading.Thread(target=f, args=(x, w), daemon=True).start()
        while not tiers.pending(): time.sleep(0.001)
        children = []
        for number in range(3):
            child = os.fork()
            if not child:
                status = 1
                try:
                    assert capture.wait() and not sidecar.processes()
                    use(f)
                    assert "forked" in capture.stats(f).compile_errors[0]
                    g = capture.compile(lambda x: x * 2 + number, backend="native")
                    g(x)
                    assert capture.wait() and capture.stats(g).compiled == 1
                    torch.testing.assert_close(g(x), x * 2 + number)
                    sidecar.close()
                    status = 17
                finally:
                    sys.stderr.flush()
                    os._exit(status)
            children.append(child)
        os.kill(sidecar.processes()[0], signal.SIGCONT)
        print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
        print(states())
        use(f)
        """, tmp_path / "cache")
    assert lines == ["[17, 17, 17]", "(1, [])"]


def test_workers_of_a_data_loader(tmp_path: Path) -> None:
    """They are forked while the model is compiled, and call a compiled function of their own."""
    lines = output("""
        from torch.utils.data import DataLoader, Dataset
        scale = capture.compile(lambda x: x * 2 + 1, backend="native")
        class Data(Dataset):
            def __len__(self): return 16
            def __getitem__(self, i): return scale(torch.full((8,), float(i)))
        f(x, w)
        scale(torch.ones(8))
        for _ in range(2):
            batches = list(DataLoader(Data(), batch_size=4, num_workers=2, multiprocessing_context="fork"))
            assert torch.equal(torch.cat(batches)[:, 0], torch.arange(16.) * 2 + 1)
            use(f)
        print(states())
        """, tmp_path / "cache")
    assert lines == ["(1, [])"]


@pytest.mark.parametrize("function", ["f", "g"], ids=["in the background", "while a thread waits"])
def test_a_program_ends_while_a_graph_is_compiled(function: str, tmp_path: Path) -> None:
    """Its thread either waits for the compiler or has ended: one in the middle of an operation of torch can abort the process
    on its own account."""
    lines = output(f"""
        {function}(x, w)
        thread = threading.Thread(target={function}, args=(x, w), daemon=True)
        thread.start()
        thread.join(None if {function} is f else 0.5)
        while not sidecar.processes(): time.sleep(0.01)
        print(sidecar.processes()[0])
        """, tmp_path / "cache")
    with pytest.raises(ProcessLookupError):
        os.kill(int(lines[0]), 0)


def test_interrupting_a_first_hit(tmp_path: Path) -> None:
    """Ctrl-C while the program waits for the compiler ends the wait, not the compiler."""
    lines = output("""
        signal.signal(signal.SIGINT, signal.default_int_handler)    # shells have background jobs ignore it
        g(x, w)
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            g(x, w)
            print("no interrupt")
        except KeyboardInterrupt:
            print("interrupted")
        use(g)
        print(capture.stats(g).compiled)
        """, tmp_path / "cache")
    assert lines == ["interrupted", "1"]


def test_waiting(tmp_path: Path) -> None:
    """Nothing is shown where no terminal is; a time limit is kept."""
    done = run("""
        use(f, 1)
        assert not capture.wait(0) and not capture.wait(timeout=0.01) and capture.stats(f).pending == 1
        assert capture.wait() and capture.wait(0) and capture.stats(f).compiled == 1
        """, tmp_path / "cache")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
