"""Every flag of capture, declared once, with its environment variable and meaning.

Read a flag as `config.STRICT.value`; set it for a while with `with config.STRICT.set(True):`.
"""
from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

T = TypeVar("T", int, str)
FLAGS: dict[str, Flag[Any]] = {}


def _working_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:       # it was deleted
        return ""


START = _working_folder()           # what relative paths are relative to, also after the program has changed its working folder


class Flag(Generic[T]):
    """A setting, an int or a str as its default is, read from `CAPTURE_<name>` at import. The path of a folder is made absolute.

    Raises ValueError if the default is an integer and the environment's text is not.
    """

    def __init__(self, name: str, default: T, meaning: str, folder: bool = False) -> None:
        self.name, self.default, self.meaning, self.folder = name, default, meaning, folder
        self.value: T = self.read()
        FLAGS[name] = self

    def read(self) -> T:
        """The value that the environment gives now."""
        text = os.environ.get(f"CAPTURE_{self.name}", self.default)
        if self.folder and isinstance(text, str) and text:
            text = os.path.join(START, os.path.expanduser(text))
        try:
            return type(self.default)(text)
        except ValueError:
            raise ValueError(f"CAPTURE_{self.name}={text!r} is not an integer; set it to a number ({self.meaning})") from None

    def __bool__(self) -> bool:
        return bool(self.value)

    @contextmanager
    def set(self, value: T) -> Iterator[None]:
        """Sets the value for a `with` block, in all threads."""
        before, self.value = self.value, value
        try:
            yield
        finally:
            self.value = before


DISABLE = Flag("DISABLE", 0, "1: nothing is captured, and every call runs natively; 0: as usual")
STRICT = Flag("STRICT", 0, "1: an internal fault raises InternalError; 0: the program goes on natively, with a warning")
DEBUG = Flag("DEBUG", 0, "1: cache decisions and tiers, 2: also guards, graphs and mock functions, "
                         "3: also fusion and the IR, 4: also kernels and plans")
DEBUG_DIR = Flag("DEBUG_DIR", "", "folder to which mock function, graph and guards of every entry are written; empty: none",
                 folder=True)
BACKEND = Flag("BACKEND", "native",
               "the backend of `capture.compile` where none is given: native, eager, or one of torch.compile's")
RECAPTURE_LIMIT = Flag("RECAPTURE_LIMIT", 8,
                       "how many entries a compiled function may have for calls of one kind (modes, types and structure of the "
                       "arguments), and how many kinds, at most 64 entries in all; further variants run natively")
CAPTURING_SHARE = Flag("CAPTURING_SHARE", 10,
                       "the percentage of the time since a function's first capture that its captures may take, once they have "
                       "taken two seconds: then others wait, and their calls run natively meanwhile; 100: no capture waits")
FREE_SIZES = Flag("FREE_SIZES", 1,
                  "1: a size that was seen to change is captured once more, for all sizes (with dynamic=True already in the first "
                  "capture); 0: each size is captured by itself, unless dynamic=True")
CACHE = Flag("CACHE", 1, "0: compiled graphs are neither read from nor written to disk")
CACHE_DIR = Flag("CACHE_DIR", "", "folder of the disk cache, private to the user; empty: capture/ in $XDG_CACHE_HOME or ~/.cache",
                 folder=True)
CACHE_SIZE = Flag("CACHE_SIZE", 1024, "MB that the disk cache may take; the least recently used files are deleted first")
COMPILE_TIMEOUT = Flag("COMPILE_TIMEOUT", 120, "seconds after which one run of the C++ compiler is given up")
JOB_TIMEOUT = Flag("JOB_TIMEOUT", 300, "seconds after which the compiling process gives up on a graph")
NICENESS = Flag("NICENESS", 0, "how much lower the priority of compiling is than the program's, 0 to 19: with 10 calls take hardly "
                               "longer meanwhile where the program uses all processors, and kernels come many times later")
COMPILE_AFTER = Flag("COMPILE_AFTER", 100,
                     "where the program uses all processors, a graph is compiled once its calls have run for this percentage of "
                     "the time that compiling it will take; 0: every graph is compiled at once, whatever that takes of the "
                     "program's time")
TRIAL_CALLS = Flag("TRIAL_CALLS", 5, "how many calls of a graph are timed uncompiled, and how many compiled, to keep the faster "
                                     "way; 0: kernels are used without timing")
TARGET = Flag("TARGET", "", "for developers: with cuda-on-cpu, graphs on the CPU are compiled to CUDA kernels, which an emulator "
                            "runs on the CPU, slowly; empty: kernels for the CPU")
EMULATED_ORDER = Flag("EMULATED_ORDER", 0, "for developers: the order in which the emulator runs the threads of a block. "
                                           "0: forward, 1: backward, others: random")
