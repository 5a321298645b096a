"""The C++ compiler: which one it is, and from source text to the bytes of a shared library.

What one compile costs was measured on a kernel of a softmax's size, and decided the flags; ratios are of the whole compile.

- Kept: `-nostdlib` with the three libraries that a kernel can need (linking takes 0.6 of the time with all of libstdc++,
  and a missing function is found here, not by the loader: `-z defs`); `-pipe` (0.97, and no file between the stages);
  compiler and linker in one run when there is one unit. Debug information is off by default.
- Kept although it costs: `-O3` (1.09 of `-O2 -ftree-vectorize`) and wide vectors (1.3 of narrow ones), for the kernel's own speed.
- Left out, within noise: `-fno-asynchronous-unwind-tables`, `-fno-exceptions`, `-fno-rtti`; gold in the place of bfd is slower.
  A precompiled header would save a quarter of an empty unit, which is little of a real one, for a file to keep valid.
- Far more than any flag: `<cmath>` doubles the compile (the special functions of C++17 bring half of the standard library
  with them). Kernels and their header use the compiler's `__builtin_` functions instead.
"""
from __future__ import annotations

import errno
import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from capture import config
from capture.backends.native import processor
from capture.backends.native.messages import signal_name
from capture.errors import ToolchainError

T = TypeVar("T")

INCLUDE = Path(__file__).parent / "include"
NAMES = ("g++", "clang++", "c++")  # tried in this order when CXX does not name one
COMPILE = ("-std=c++17", "-O3", "-fopenmp-simd", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-pipe")
LINK = ("-shared",)
# Without this, GCC 12 computes wrong sums: it makes two of the statement that adds to a sum, one for each outcome of a condition
# before it, so that the vectorized loop reads the sum under a mask; where the loop has several vectors of sums, such a read takes
# the first of them for all (`.MASK_LOAD (&sums, …)`, not `&sums + 32B`). Weighted losses were wrong by some percent. (All threading
# of jumps off would do as well, but padding and argmax would take 1.5 to 1.9 times as long; so padding by itself takes 1.3.)
WHOLE_LOOPS = ("--param=max-jump-thread-duplication-stmts=0",)
# Each only where the compiler knows it.
TARGET = (("-march=native",), ("-mprefer-vector-width=512",), WHOLE_LOOPS)
LIBRARIES = (("-nostdlib", "-Wl,-z,defs", "-lm", "-lc", "-lgcc"),)     # together or not at all; else the compiler's own choice
PROBE = 'extern "C" int capture_probe() { return 0; }\n'
LIBRARY = "kernels.so"

FULL_DISK = re.compile(r"No space left on device|Disk quota exceeded")
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)                       # as Python says it, and as a shell around the compiler does
KILLED_PASS = re.compile(r"Killed signal terminated program|unable to execute command: Killed")  # GCC, clang
OTHER = "set CXX to another compiler"           # how to have another one
COMPLAINT = re.compile(r"(?<!collect2: )error:|undefined reference")


@dataclass(frozen=True)
class Flags:
    """What goes before the sources of a compile, and after the objects of a link."""

    compile: tuple[str, ...]
    link: tuple[str, ...]


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler that works: its command (absolute path, then fixed arguments) and its answer to `-v`."""

    command: tuple[str, ...]
    version: str  # name, version, target and configuration

    def __str__(self) -> str:
        return shlex.join(self.command)

    @functools.cached_property
    def identity(self) -> str:
        """All of the compiler and its flags that decides what comes out, for the keys of caches. Runs nothing."""
        return repr((self.command, self.version, COMPILE, LINK, TARGET, LIBRARIES))

    @functools.cached_property
    def flags(self) -> Flags:
        """The flags, without those that this compiler refuses: found by compiling an empty unit, once.

        Raises ToolchainError when it cannot compile that at all.
        """
        if self._accepts(Flags(COMPILE + _flat(TARGET), LINK + _flat(LIBRARIES))):
            return Flags(COMPILE + _flat(TARGET), LINK + _flat(LIBRARIES))
        self._build([PROBE], None, Flags(COMPILE, LINK))  # says what is wrong when even this fails
        return Flags(COMPILE + _flat(flag for flag in TARGET if self._accepts(Flags(COMPILE + flag, LINK))),
                     LINK + _flat(group for group in LIBRARIES if self._accepts(Flags(COMPILE, LINK + group))))

    def compile(self, sources: Sequence[str], folder: Path | None = None) -> bytes:
        """The shared library made of one or more units of C++, each compiled by a process of its own, side by side.

        Sources and objects lie in `folder`, an existing one, and stay there; without it, in a temporary one. Raises
        ToolchainError, with one sentence that holds the remedy and the compiler's output as `log`, when a unit does not
        compile or link, the compiler is killed or takes longer than CAPTURE_COMPILE_TIMEOUT, or the disk is full.
        """
        if not sources:
            raise ValueError("a library needs at least one unit")
        return self._build(sources, folder, self.flags)

    def _accepts(self, flags: Flags) -> bool:
        try:
            return bool(self._build([PROBE], None, flags))
        except ToolchainError:
            return False

    def _build(self, sources: Sequence[str], folder: Path | None, flags: Flags) -> bytes:
        try:
            with nullcontext(folder) if folder else tempfile.TemporaryDirectory(prefix="capture-") as place:
                return self._build_in(Path(place), sources, flags)
        except OSError as error:
            raise _no_room(str(folder or tempfile.gettempdir()), error) from error

    def _build_in(self, folder: Path, sources: Sequence[str], flags: Flags) -> bytes:
        names = [f"kernels_{number}" for number in range(len(sources))]
        for name, source in zip(names, sources, strict=True):
            (folder / f"{name}.cpp").write_text(source)
        (folder / LIBRARY).unlink(missing_ok=True)
        first = (*self.command, *flags.compile, f"-I{INCLUDE}")
        if len(names) == 1:
            run((*first, f"{names[0]}.cpp", "-o", LIBRARY, *flags.link), folder)
        else:
            each([functools.partial(run, (*first, "-c", f"{name}.cpp", "-o", f"{name}.o"), folder) for name in names])
            run((*first, *(f"{name}.o" for name in names), "-o", LIBRARY, *flags.link), folder)
        if not (folder / LIBRARY).exists():
            raise ToolchainError(f"{self} reported success but wrote no library; set CXX to a C++ compiler, or unset it")
        return (folder / LIBRARY).read_bytes()


def find_compiler() -> Compiler:
    """The compiler that the variable CXX names (with arguments and wrappers such as ccache), else the first of g++, clang++ and c++
    on PATH that works. Found once per value of CXX and PATH. Raises ToolchainError if there is none."""
    return _find(os.environ.get("CXX", "").strip(), os.environ.get("PATH", os.defpath))


@functools.lru_cache(maxsize=8)
def _find(cxx: str, path: str) -> Compiler:
    if cxx:
        try:
            return _identified(shlex.split(cxx), path)
        except (ValueError, ToolchainError) as error:
            cause = str(error).partition(";")[0]        # without its own remedy
            raise ToolchainError(f"CXX={cxx!r} is not a usable C++ compiler ({cause}); set CXX to g++ or clang++, or unset it",
                                 getattr(error, "log", "")) from error
    broken = []
    for name in NAMES:
        if shutil.which(name, path=path):
            try:
                return _identified([name], path)
            except ToolchainError as error:
                broken.append(str(error))
    found = f" that works ({'; '.join(broken)})" if broken else ""
    raise ToolchainError(f"no C++ compiler{found} was found on PATH (looked for {', '.join(NAMES)}); "
                         f"install g++ or clang++, or name one in CXX")


def _identified(words: Sequence[str], path: str) -> Compiler:
    """The compiler of a command line. Raises ToolchainError when there is no such program or it is no compiler."""
    program = shutil.which(words[0], path=path)
    if program is None:
        raise ToolchainError(f"there is no program {words[0]!r}")
    command = (os.path.abspath(program), *words[1:])
    version = run((*command, "-v"), None).strip()
    if "version" not in version:
        raise ToolchainError(f"its answer to -v was {version.partition(chr(10))[0][:80]!r}", version)
    return Compiler(command, version)


def run(command: tuple[str, ...], folder: Path | None, remedy: str = OTHER) -> str:
    """What a compiler prints when it succeeds. Raises ToolchainError when it cannot be run, fails, is killed or takes too long;
    `remedy`: how to have another one."""
    environment = {**os.environ, "LC_ALL": "C"}
    if folder:
        environment["TMPDIR"] = str(folder)  # what a killed compiler leaves behind goes away with the folder
    program, limit = os.path.basename(command[0]), config.COMPILE_TIMEOUT.value
    try:  # a group of its own, so that the passes which a compiler starts can be killed with it
        with _starting:
            if _closed:
                raise ToolchainError("the compiling process is ending")
            process = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, encoding="utf-8", errors="replace", process_group=0)
    except OSError as error:
        raise ToolchainError(f"{command[0]} cannot be run ({error.strerror}); {remedy}") from error
    try:
        log, _ = process.communicate(timeout=limit)
    except BaseException as error:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        raise ToolchainError(f"{program} took longer than {limit} seconds; set CAPTURE_COMPILE_TIMEOUT to more, or "
                             f"{remedy}", (error.output or b"").decode(errors="replace")) from error
    if process.returncode:
        raise ToolchainError(_failure(program, process.returncode, log, folder, remedy), log)
    return log


def close() -> None:
    """Starts no compiler any more: who then ends those that run has ended all."""
    global _closed
    with _starting:
        _closed = True


_starting = threading.RLock()       # a signal may call `close` in the middle of a start
_closed = False


def _failure(program: str, status: int, log: str, folder: Path | None, remedy: str) -> str:
    """One sentence for a compiler which did not succeed, with the remedy. A negative status is the signal that killed it."""
    if FULL_DISK.search(log):
        place = folder.parent if folder else tempfile.gettempdir()
        return str(_no_room(str(place), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    if status in KILLED or KILLED_PASS.search(log):
        return f"{program} was killed, most often because memory ran out; free memory, or let fewer programs compile at a time"
    if status < 0:
        return f"{program} was ended by {signal_name(-status)}; {remedy}"
    first = complaint(log) or f"exit status {status}"
    return f"{program} failed with `{first}`; {remedy}, or report this with the log of the exception"


def complaint(log: str) -> str:
    """The line of a compiler's output that most likely says what is wrong."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next(filter(COMPLAINT.search, lines), lines[0] if lines else "")


def _no_room(folder: str, error: OSError) -> ToolchainError:
    return ToolchainError(f"the compiler cannot write to {folder} ({error.strerror or error}); make room there, or set TMPDIR to "
                          f"another folder")


def each(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """Runs all jobs, at most one per processor at a time. After one has failed no other starts, and its exception is raised."""
    if not jobs:
        return []
    with ThreadPoolExecutor(min(len(jobs), max(1, int(processor.count())))) as pool:
        futures = [pool.submit(job) for job in jobs]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()


def _flat(groups: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(flag for group in groups for flag in group)
