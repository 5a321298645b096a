"""Finding a compiler, what it makes, and one clear sentence for every way in which it can fail."""
from __future__ import annotations

import ctypes
import errno
import math
import os
import pickle
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from capture import config
from capture.backends.native import toolchain
from capture.backends.native.disk_cache import open_library
from capture.errors import BackendError, ToolchainError
from tests import compile_once

UNIT = 'extern "C" int answer{0}() {{ return {0}; }}\n'
ANSWERS = 'if [ "$1" = -v ]; then echo "fake version 1"; exit 0; fi\n'  # what a compiler says when asked who it is


@pytest.fixture(autouse=True)
def compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are all run."""
    monkeypatch.setenv("PATH", compile_once.WITHOUT)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes a shell script the compiler (CXX) and returns it."""
    def make(body: str) -> toolchain.Compiler:
        path = tmp_path / "fake-c++"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        return toolchain.find_compiler()
    return make


def load(library: bytes) -> ctypes.CDLL:
    file = open_library(library)
    return ctypes.CDLL(os.fspath(file))


def made_by(name: str, source: str, monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    """The library that the compiler of this name makes of a source."""
    if shutil.which(name) is None:
        pytest.skip("not on this machine")
    monkeypatch.setenv("CXX", name)
    return load(toolchain.find_compiler().compile([source]))


KERNEL = """
#include "capture_kernel.h"
#include "loops.h"
extern "C" float most(const float* values, int64_t count) {
    float most = identity_max<float>();
    #pragma omp simd reduction(capture_max: most)
    for (int64_t i = 0; i < count; ++i) most = reduce_max(most, op_lgamma(values[i]));
    return most;
}
"""

# Sums of what a condition chooses, of several vectors in turn, as weighted losses have them.
CONDITIONAL_SUMS = """
#include "capture_kernel.h"
extern "C" void sums(const int64_t* classes, const float* weights, const float* values, double* out) {
    double a = 0, b = 0;
    uint8_t invalid = 0;
    #pragma omp simd reduction(+: a) reduction(+: b) reduction(|: invalid)
    for (int64_t i = 0; i < 96; ++i) {
        const int64_t given = classes[i];
        const bool counted = given != -100;
        const int64_t known = counted ? given : 0;
        const bool valid = uint64_t(known) < 4;
        invalid |= !valid;
        const float weight = valid ? weights[known] : 0.0f;
        a += double(counted ? weight : 0.0f);
        b += double(counted ? -((valid ? values[known * 96 + i] : 0.0f) * weight) : 0.0f);
    }
    out[0] = a, out[1] = b, out[2] = invalid;
}
"""


# --- what works

@pytest.mark.parametrize("name", toolchain.NAMES)
def test_kernels_compile_with_every_compiler_that_is_looked_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = made_by(name, KERNEL, monkeypatch)
    library.most.restype = ctypes.c_float
    assert library.most((ctypes.c_float * 5)(3, 7, 2, 1, 4), ctypes.c_int64(5)) == pytest.approx(math.lgamma(7))


@pytest.mark.parametrize("name", toolchain.NAMES)
def test_sums_of_what_a_condition_chooses_are_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = made_by(name, CONDITIONAL_SUMS, monkeypatch)
    classes, weights, values = [i * i // 7 % 4 for i in range(96)], [1.5, 2.25, 3, 7], [i % 17 / 4 for i in range(4 * 96)]
    out = (ctypes.c_double * 3)()
    library.sums((ctypes.c_int64 * 96)(*classes), (ctypes.c_float * 4)(*weights), (ctypes.c_float * 384)(*values), out)
    products = [values[known * 96 + i] * weights[known] for i, known in enumerate(classes)]
    assert list(out) == [sum(weights[known] for known in classes), -sum(products), 0]


def test_one_unit_becomes_a_library() -> None:
    assert load(toolchain.find_compiler().compile([UNIT.format(7)])).answer7() == 7


def test_several_units_become_one_library(tmp_path: Path) -> None:
    library = load(toolchain.find_compiler().compile([UNIT.format(n) for n in range(5)], tmp_path))
    assert [library[f"answer{n}"]() for n in range(5)] == [0, 1, 2, 3, 4]
    assert {"kernels_0.cpp", "kernels_4.o", "kernels.so"} <= set(os.listdir(tmp_path))


def test_the_same_sources_become_the_same_bytes() -> None:
    compiler, sources = toolchain.find_compiler(), [UNIT.format(1), UNIT.format(2)]
    assert compiler.compile(sources) == compiler.compile(sources)


def test_units_are_compiled_side_by_side(script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # each unit waits until the other one has begun; one after the other, both would wait for ever
    meet = tmp_path / "meet"
    meet.mkdir()
    compiler = script(ANSWERS + f'''case "$*" in *" -c "*)
        touch {meet}/$$; until [ $(ls {meet} | wc -l) -ge 2 ]; do sleep 0.01; done;; esac
        for word; do case $last in -o) echo made > $word;; esac; last=$word; done''')
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert compiler.compile([UNIT.format(1), UNIT.format(2)]) == b"made\n"


def test_at_most_one_compiler_per_processor(script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, crowd = tmp_path / "lock", tmp_path / "crowd"
    compiler = script(ANSWERS + f'''case "$*" in *" -c "*)
        mkdir {lock} || touch {crowd}; sleep 0.02; rmdir {lock};; esac
        for word; do case $last in -o) echo made > $word;; esac; last=$word; done''')
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    compiler.compile([UNIT.format(n) for n in range(4)])
    assert not crowd.exists()


def test_arithmetic_is_exact_and_instructions_are_this_machines() -> None:
    flags = toolchain.find_compiler().flags
    assert "-ffp-contract=off" in flags.compile and "-ffast-math" not in flags.compile
    library = load(toolchain.find_compiler().compile(
        ['extern "C" double f(double a, double b, double c) { return a * b + c; }']))
    library.f.restype, library.f.argtypes = ctypes.c_double, [ctypes.c_double] * 3
    a = 1 + 2.0 ** -30
    assert library.f(a, a, -1.0) == a * a - 1.0


def test_flags_that_the_compiler_refuses_are_left_out(script) -> None:
    real = toolchain.find_compiler()
    compiler = script(f'''case "$*" in *-march=*|*-nostdlib*) echo "error: unrecognized option" >&2; exit 1;; esac
        exec {real} "$@"''')
    assert not {"-march=native", "-nostdlib", "-lgcc"} & {*compiler.flags.compile, *compiler.flags.link}
    assert "-mprefer-vector-width=512" in compiler.flags.compile or "-mprefer-vector-width=512" not in real.flags.compile
    assert load(compiler.compile([UNIT.format(3)])).answer3() == 3


def test_work_folders_are_private_and_go_away(script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setattr(toolchain.tempfile, "tempdir", str(work))
    compiler = script(ANSWERS + f'''stat -c %a . >> {tmp_path}/modes
        test "$TMPDIR" = "$(pwd)" || touch {tmp_path}/elsewhere
        exit 1''')
    with pytest.raises(ToolchainError):
        compiler.compile([UNIT.format(1)])
    assert set((tmp_path / "modes").read_text().split()) == {"700"}
    assert not (tmp_path / "elsewhere").exists()
    assert list(work.iterdir()) == []


def test_nothing_to_compile_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one unit"):
        toolchain.find_compiler().compile([])


# --- which compiler

def test_found_once_and_again_when_the_environment_changes(script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = toolchain.find_compiler()
    assert toolchain.find_compiler() is first
    other = script(ANSWERS)
    assert other.command == (os.environ["CXX"],) and other.version == "fake version 1"
    assert other.identity != first.identity
    monkeypatch.delenv("CXX")
    (tmp_path / "fake-c++").rename(tmp_path / "g++")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert toolchain.find_compiler().command == (str(tmp_path / "g++"),)


def test_a_broken_compiler_on_the_path_is_passed_over(script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = toolchain.find_compiler()
    for name, body in (("g++", "exit 1"), ("clang++", f'exec {real} "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert toolchain.find_compiler().command == (str(tmp_path / "clang++"),)


def test_cxx_may_hold_a_wrapper_and_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    real = toolchain.find_compiler()
    monkeypatch.setenv("CXX", f"env {real} '-DANSWER=\"4 2\"'")
    compiler = toolchain.find_compiler()
    assert compiler.command == (shutil.which("env"), *real.command, '-DANSWER="4 2"')
    library = load(compiler.compile(['extern "C" const char* answer() { return ANSWER; }']))
    library.answer.restype = ctypes.c_char_p
    assert library.answer() == b"4 2"


def test_a_relative_path_is_that_of_the_caller(script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(ANSWERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CXX", "./fake-c++")
    assert toolchain.find_compiler().command == (str(tmp_path / "fake-c++"),)


# --- what goes wrong

def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendError, match=r"^no C\+\+ compiler was found on PATH .*; install g\+\+ or clang\+\+"):
        toolchain.find_compiler()


@pytest.mark.parametrize(("value", "sentence"), [
    ("/no/such/compiler", "there is no program '/no/such/compiler'"),
    ("true", "its answer to -v was ''"),
    ("false", "false failed with `exit status 1`"),
    ("'g++", "No closing quotation"),
    ("/", "there is no program '/'"),
])
def test_cxx_nonsense(value: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", value)
    with pytest.raises(ToolchainError, match=re.escape(sentence)) as raised:
        toolchain.find_compiler()
    assert str(raised.value).startswith(f"CXX={value!r} is not a usable C++ compiler")
    assert "set CXX to g++ or clang++, or unset it" in str(raised.value)


def test_a_script_without_its_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c++").write_text("#!/no/such/shell\n")
    (tmp_path / "c++").chmod(0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    with pytest.raises(ToolchainError, match=r"cannot be run \(No such file or directory\)\); set CXX"):
        toolchain.find_compiler()


def test_a_compiler_that_goes_away(script, tmp_path: Path) -> None:
    compiler = script(ANSWERS)
    (tmp_path / "fake-c++").unlink()
    with pytest.raises(ToolchainError, match="cannot be run"):
        compiler.compile([UNIT.format(1)])


def test_a_unit_that_does_not_compile() -> None:
    with pytest.raises(ToolchainError, match=r"failed with `kernels_0.cpp:2:5: error: .*`; set CXX to another compiler") as raised:
        toolchain.find_compiler().compile(["int a;\nint a;\nint b = c;\n"])
    assert "\n" not in str(raised.value)
    assert "redefinition" in raised.value.log and "'c'" in raised.value.log


def test_the_one_of_several_units_that_does_not_compile() -> None:
    with pytest.raises(ToolchainError, match="kernels_1.cpp:1:"):
        toolchain.find_compiler().compile([UNIT.format(1), "nonsense", UNIT.format(2)])


def test_a_missing_function_is_found_when_linking() -> None:
    with pytest.raises(ToolchainError, match="undefined reference to .*missing"):
        toolchain.find_compiler().compile(["int missing(); int f() { return missing(); }"])


def test_a_compiler_that_makes_nothing(script) -> None:
    with pytest.raises(ToolchainError, match="reported success but wrote no library; set CXX"):
        script(ANSWERS).compile([UNIT.format(1)])


def test_a_library_of_an_earlier_run_is_not_taken_for_this_ones(script, tmp_path: Path) -> None:
    (tmp_path / "kernels.so").write_bytes(b"old")
    compiler = script(ANSWERS)
    compiler.__dict__["flags"] = toolchain.Flags((), ())
    with pytest.raises(ToolchainError, match="wrote no library"):
        compiler.compile([UNIT.format(1)], tmp_path)


@pytest.mark.parametrize("death", ["kill -9 $$", "exit 137",
                                   "echo 'g++: fatal error: Killed signal terminated program cc1plus'; exit 1"])
def test_a_killed_compiler(script, death: str) -> None:
    with pytest.raises(ToolchainError, match=r"fake-c\+\+ was killed, most often because memory ran out; free memory"):
        script(ANSWERS + death).compile([UNIT.format(1)])


def test_a_crashed_compiler(script) -> None:
    with pytest.raises(ToolchainError, match=r"was ended by SIGSEGV; set CXX to another compiler"):
        script(ANSWERS + "kill -SEGV $$").compile([UNIT.format(1)])


def test_a_compiler_that_hangs_is_killed_with_its_children(script, tmp_path: Path) -> None:
    compiler = script(ANSWERS + f"echo working; sleep 600 & echo $! > {tmp_path}/child; wait")
    compiler.__dict__["flags"] = toolchain.Flags((), ())
    sentence = "longer than 1 seconds; set CAPTURE_COMPILE_TIMEOUT"
    with config.COMPILE_TIMEOUT.set(1), pytest.raises(ToolchainError, match=sentence) as raised:
        compiler.compile([UNIT.format(1)])
    assert raised.value.log == "working\n"
    child = int((tmp_path / "child").read_text())
    for _ in range(500):
        if not alive(child):
            break
        time.sleep(0.01)
    assert not alive(child)


def test_an_interrupted_compile_leaves_no_process(script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = script(ANSWERS + "sleep 600")
    compiler.__dict__["flags"] = toolchain.Flags((), ())
    processes = []

    class Interrupted(subprocess.Popen):
        def communicate(self, *args, **kwargs):
            processes.append(self)
            raise KeyboardInterrupt
    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        compiler.compile([UNIT.format(1)])
    assert processes[0].returncode == -signal.SIGKILL


@pytest.mark.parametrize("text", ["No space left on device", "Disk quota exceeded"])
def test_a_full_disk_that_the_compiler_meets(script, text: str) -> None:
    with pytest.raises(ToolchainError, match=r"cannot write to .*; make room there, or set TMPDIR"):
        script(ANSWERS + f"echo 'fatal error: error writing to x.o: {text}' >&2; exit 1").compile([UNIT.format(1)])


def test_a_full_disk_that_we_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = toolchain.find_compiler()
    compiler.flags

    def full(self: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ToolchainError, match=r"cannot write to .*No space left on device.*make room there"):
        compiler.compile([UNIT.format(1)])


def test_no_folder_to_work_in(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"cannot write to .*missing \(No such file or directory\)"):
        toolchain.find_compiler().compile([UNIT.format(1)], tmp_path / "missing")


def test_errors_cross_processes_whole() -> None:
    error = pickle.loads(pickle.dumps(ToolchainError("sentence", "log")))
    assert (str(error), error.log) == ("sentence", "log")


def alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_process_that_ends_starts_no_compiler(monkeypatch) -> None:
    monkeypatch.setattr(toolchain, "_closed", False)
    toolchain.close()
    with pytest.raises(ToolchainError, match="is ending"):
        toolchain.run(("true",), None)
