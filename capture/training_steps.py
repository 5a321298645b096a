"""Finds what of a program makes a whole training step: `python -m capture run` compiles that in place of its modules.

That is the innermost function in which a module was called, a backward pass was run, and an optimizer now makes its step; or which
has an optimizer call a closure that does so. If it does so in a loop, it is the body of that loop (`step_loops.py`). What is
compiled begins and ends with one step.
"""
from __future__ import annotations

import dis
import inspect
import os
import site
import sys
import sysconfig
import types
from dataclasses import dataclass

from capture.code_names import SUSPENDS
from capture.step_loops import StepLoop, loop_of

STEP = "Optimizer.profile_hook_step.<locals>.wrapper"       # around the step of each optimizer
MOST_STEPS = 10         # of optimizers that are looked at
MOST_CALLS = 16         # of modules that wait for one
PACKAGES = tuple({os.path.join(folder, "") for folder in (*site.getsitepackages(), site.getusersitepackages())})
PYTHON = os.path.join(sysconfig.get_paths()["stdlib"], "")
TORCH = tuple(os.path.join(folder, "torch", "") for folder in PACKAGES)

Name = tuple[str, str]          # module, qualified name
Frames = frozenset[tuple[int, int]]     # by identity: themselves would keep tensors alive


@dataclass(frozen=True, slots=True)
class Finding:
    """What makes a whole training step, and where: a function of the program, or the body of a loop in a frame. If neither: why."""

    place: str
    why_not: str = ""
    function: Name | None = None
    loop: StepLoop | None = None
    frame: types.FrameType | None = None


class StepFinder:
    """Told of optimizers, and of the calls of modules, of backward passes and of steps, from the frames that make them."""

    def __init__(self) -> None:
        self.expects_steps = False
        self.calls = self.steps = 0
        self._called: Frames = frozenset()
        self._passed: Frames = frozenset()

    def expect_steps(self) -> None:
        """There is an optimizer."""
        self.expects_steps = True

    def called(self) -> None:
        """A module is about to be called."""
        self.calls += 1
        self._called |= frames()

    def passed(self) -> Finding | None:
        """A backward pass is about to run. Returns what makes the whole step, if it is that of an optimizer's closure."""
        self._passed |= frames()
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_qualname != STEP:
            frame = frame.f_back
        while frame is not None and is_of_python_or_torch(frame.f_code.co_filename):
            frame = frame.f_back
        return None if frame is None else finding(frame)

    def stepped(self) -> Finding | None:
        """An optimizer is about to make a step. Returns what makes the whole of it; None: look on."""
        self.steps += 1
        both, self._called, self._passed = self._called & self._passed, frozenset(), frozenset()
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and (key_of(frame) not in both or is_of_python_or_torch(frame.f_code.co_filename)):
            frame = frame.f_back
        if frame is None:
            is_over = self.steps >= MOST_STEPS
            return Finding("", "no function calls a module, runs the backward pass and makes the step") if is_over else None
        return finding(frame)

    @property
    def is_patient(self) -> bool:
        """Whether modules wait for a step."""
        return self.expects_steps and self.calls <= MOST_CALLS


def frames() -> Frames:
    """All frames of this thread."""
    found, frame = [], sys._getframe(2)
    while frame is not None:
        found.append(key_of(frame))
        frame = frame.f_back  # type: ignore[assignment]
    return frozenset(found)


def key_of(frame: types.FrameType) -> tuple[int, int]:
    return id(frame), id(frame.f_code)


def is_of_python_or_torch(filename: str) -> bool:
    """Whether a file is Python's or torch's: not the program's, nor of a package that trains models."""
    return filename.startswith(TORCH) or filename.startswith(PYTHON) and not filename.startswith(PACKAGES)


def finding(frame: types.FrameType) -> Finding:
    """What a frame that makes a whole training step is compiled as."""
    code = frame.f_code
    place = f"{os.path.basename(code.co_filename)}:{frame.f_lineno}"
    if code.co_flags & SUSPENDS:
        return Finding(place, "a generator or coroutine does that")
    if is_in_loop(frame):
        loop = loop_of(frame)
        if loop is None:
            return Finding(place, "the body of that loop cannot be a function: it looks at its own variables, say, or "
                                  "`backward` and `step` are not named in it")
        return Finding(f"{os.path.basename(code.co_filename)}:{loop.line}", loop=loop, frame=frame)
    if not code.co_flags & inspect.CO_NEWLOCALS:
        return Finding(place, "that is neither in a function nor in a loop")
    return Finding(f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}",
                   function=(frame.f_globals.get("__name__", ""), code.co_qualname))


def is_in_loop(frame: types.FrameType) -> bool:
    """Whether what a frame does now may come again."""
    return any(instruction.opcode in dis.hasjrel and instruction.argval <= frame.f_lasti <= instruction.offset
               for instruction in dis.get_instructions(frame.f_code))
