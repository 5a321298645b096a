"""Finds the function of a program that makes a whole training step: `python -m capture run` compiles it in place of its modules.

That is the innermost function in which a module was called, a backward pass was run, and an optimizer now makes its step. If it is
a library's, or does so in a loop, there is none: what is compiled must begin and end with one step.
"""
from __future__ import annotations

import dis
import inspect
import site
import sys
import sysconfig
import types

MOST_STEPS = 10         # of optimizers that are looked at
MOST_CALLS = 16         # of modules that wait for one
NO_FUNCTION = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
INSTALLED = tuple({*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_paths()["stdlib"]})

Name = tuple[str, str]          # module, qualified name
Frames = frozenset[tuple[int, int]]     # by identity: themselves would keep tensors alive


class StepFinder:
    """Told of the calls of modules, of backward passes and of steps, from the frames that make them. expects_steps: there is an
    optimizer."""

    def __init__(self) -> None:
        self.expects_steps = False
        self.calls = self.steps = 0
        self._called: Frames = frozenset()
        self._passed: Frames = frozenset()

    def called(self) -> None:
        """A module is about to be called."""
        self.calls += 1
        self._called |= frames()

    def passed(self) -> None:
        """A backward pass is about to run."""
        self._passed |= frames()

    def stepped(self) -> tuple[bool, Name | None]:
        """An optimizer is about to make a step. Returns whether to look no further, and what the function is."""
        self.steps += 1
        both, self._called, self._passed = self._called & self._passed, frozenset(), frozenset()
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and key_of(frame) not in both:
            frame = frame.f_back
        if frame is None:
            return self.steps >= MOST_STEPS, None
        return True, (frame.f_globals.get("__name__", ""), frame.f_code.co_qualname) if makes_one_step(frame) else None

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


def makes_one_step(frame: types.FrameType) -> bool:
    """Whether a frame is that of a function of the program, and not in a loop now."""
    code = frame.f_code
    if not code.co_flags & inspect.CO_NEWLOCALS or code.co_flags & NO_FUNCTION or code.co_filename.startswith(INSTALLED):
        return False
    return not any("BACKWARD" in instruction.opname and instruction.argval <= frame.f_lasti <= instruction.offset
                   for instruction in dis.get_instructions(code))
