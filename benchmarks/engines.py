"""The engines that are compared: each runs one model in a process of its own, which measures what it is told to.

The processes are forked from one that has built the model: importing libraries and drawing weights would else take most of
a benchmark's time. That process has computed on one thread alone, hence has no thread that a fork would lack.
"""
from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.common import peak, seconds
from benchmarks.workloads import STEPS, Inputs

FORK = multiprocessing.get_context("fork")
LEAST_SECONDS = 0.2         # of one measurement in the steady state
MEMORY_CALLS = 7            # of which the median counts: Linux counts resident pages roughly, by some 0.2 MB
OWN_MAPPINGS = {-3: 16384, -1: 0, -4: 1_000_000}        # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_MMAP_MAX of mallopt(3)


class EngineError(Exception):
    """An engine failed, or took longer than it may."""


class Eager:
    """The model as it is; and what the other engines have in common."""

    frozen = False              # parameters do not change
    background = False          # compiles beside the calls
    settling = 3                # calls until nothing changes any more

    def compile(self, module: nn.Module) -> Callable[..., Any]:
        return module

    def finish(self) -> None:
        """Waits for what compiles in the background."""

    def note(self) -> str:
        """What a reader of the figures must know, or ""."""
        return ""

    def release(self) -> None:
        """Frees memory that is kept from call to call."""


class Inductor(Eager):
    """torch.compile. `frozen`: parameters may be folded into constants."""

    def __init__(self, frozen: bool = False) -> None:
        self.frozen = frozen

    def compile(self, module: nn.Module) -> Callable[..., Any]:
        import torch._dynamo.config
        import torch._inductor.config
        torch._inductor.config.freezing = self.frozen
        # By default it compiles the demo's GPT, which counts its tokens in an attribute, anew in each call until it gives up: no
        # steady state to compare with.
        torch._dynamo.config.allow_unspec_int_on_nn_module = True
        return torch.compile(module)


class Capture(Eager):
    """capture with its native backend. `frozen`: what depends on parameters alone is computed once."""

    background = True
    settling = 20               # the trial of its tiers takes 14 calls

    def __init__(self, frozen: bool = False) -> None:
        self.frozen = frozen

    def compile(self, module: nn.Module) -> Callable[..., Any]:
        import capture  # now: it reads its flags from the environment, which `_serve` has set
        self.capture = capture
        self.program = capture.compile(module, backend="native", options={"freezing": True} if self.frozen else None)
        return self.program

    def finish(self) -> None:
        self.capture.wait()

    def note(self) -> str:
        stats = self.capture.stats(self.program)
        graphs = [line.partition("the graph ")[2] for line in self.capture.explain(self.program).splitlines()
                  if "backend: the graph " in line]
        return "; ".join([*([f"{stats.native_calls} native calls"] if stats.native_calls else []),
                          *([f"{stats.graphs} graphs"] if stats.graphs != 1 else []),
                          *(line for line in graphs if not line.startswith("runs compiled"))])

    def release(self) -> None:
        from capture._C import release_workspaces
        release_workspaces()


# In the order in which they compile: the slowest last, so that it is the one that a row's time does not suffice for.
ENGINES: dict[str, Callable[[], Eager]] = {
    "eager": Eager, "capture": Capture, "capture_frozen": lambda: Capture(frozen=True),
    "inductor": Inductor, "inductor_frozen": lambda: Inductor(frozen=True)}


@dataclass(frozen=True)
class Setting:
    """What all engines of one row have in common. `cache`: the folder of their caches on disk, one for each."""

    module: nn.Module
    inputs: Inputs
    mode: str
    threads: int
    cache: Path


class EngineProcess:
    """An engine in a process of its own. own_mappings: each of its tensors gets a mapping from malloc, so that the
    resident memory of the process is that of what is alive."""

    def __init__(self, name: str, setting: Setting, own_mappings: bool = False) -> None:
        self.name = name
        self.connection, theirs = FORK.Pipe()
        self.process = FORK.Process(target=_serve, args=(name, setting, own_mappings, theirs))
        self.process.start()
        theirs.close()

    def ask(self, command: str, deadline: float) -> Any:
        """The answer to a command of `_Commands`. Raises EngineError when it fails, or at `deadline` (time.monotonic())."""
        self.connection.send(command)
        if not self.connection.poll(max(0.0, deadline - time.monotonic())):
            raise EngineError(f"{command}: out of time")
        try:
            answer, error = self.connection.recv()
        except EOFError:
            raise EngineError(f"{command}: the process died") from None
        if error:
            raise EngineError(f"{command}: {error}")
        return answer

    def close(self) -> None:
        """Ends the process, at once."""
        self.connection.close()
        self.process.kill()
        self.process.join()


class _Commands:
    """What the process of an engine answers, by name."""

    def __init__(self, engine: Eager, setting: Setting) -> None:
        self.engine, self.setting = engine, setting
        self.step = STEPS[setting.mode]
        self.program: Callable[..., Any] = setting.module
        self.calls = 0

    def start(self) -> dict[str, float]:
        """Compiles. Seconds from then on until the `first` call has ended, and until one by `compiled` code has."""
        self._call()                            # as it is: what the libraries do on their first use is not the engine's
        self.setting.module.zero_grad()
        begin = time.perf_counter()
        self.program = self.engine.compile(self.setting.module)
        self._call()
        first = compiled = time.perf_counter() - begin
        if self.engine.background:
            self.engine.finish()
            self._call()
            compiled = time.perf_counter() - begin
        return {"first": first, "compiled": compiled}

    def settle(self) -> str:
        """Calls until all that an engine decides by the calls is decided. Returns the engine's note."""
        once = seconds(self._call, self.engine.settling)
        self.calls = max(1, int(LEAST_SECONDS / once))
        return self.engine.note()

    def steady(self) -> float:
        """Seconds of a call."""
        return seconds(self._call, self.calls)

    def memory(self) -> float:
        """Kilobytes that a call needs beyond what stays."""
        return statistics.median(self._peak() for _ in range(MEMORY_CALLS))

    def _peak(self) -> float:
        self.engine.release()
        ctypes.CDLL(None).malloc_trim(0)
        return peak(self._call)

    def _call(self) -> None:
        self.step(self.program, self.setting.inputs)


def _serve(name: str, setting: Setting, own_mappings: bool, connection: Connection) -> None:
    if own_mappings:
        for parameter, value in OWN_MAPPINGS.items():
            ctypes.CDLL(None).mallopt(parameter, value)
    _environment(setting.cache / name, setting.threads)
    engine = ENGINES[name]()
    setting.module.requires_grad_(not engine.frozen)
    commands = _Commands(engine, setting)
    with contextlib.suppress(EOFError):
        while True:
            command = getattr(commands, connection.recv())
            try:
                connection.send((command(), ""))
            except Exception as error:
                traceback.print_exc()
                connection.send((None, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]))


def _environment(cache: Path, threads: int) -> None:
    """Caches and threads, of this process and of those that it starts."""
    for path in (cache, cache / "capture"):
        path.mkdir(mode=0o700, exist_ok=True)
    os.environ |= {"OMP_NUM_THREADS": str(threads), "CAPTURE_STRICT": "0", "CAPTURE_CACHE_DIR": str(cache / "capture"),
                   "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor")}
    torch.set_num_threads(threads)
    log = os.open(cache / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
