"""The differential helper: a program is run eagerly and captured, and everything that can be observed is compared.

    def make():                                   # fresh program state, built once for each of the two worlds
        state = SimpleNamespace(scale=2.0)
        def f(x): return x * state.scale
        return f, state

    check(make, call(torch.ones(3)), lambda state: setattr(state, "scale", 3.0), call(torch.ones(3)), captures=2)

After every call a `Snapshot` is taken of the result, the arguments, the state, the results of the calls just before (after the last
call, of all), the exception, the output and the modes of the process; two worlds agree if each pair of snapshots does. Modelled on
byterun's `assert_ok`.
"""
from __future__ import annotations

import contextlib
import copy
import io
import os
import random
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from torch.utils.hooks import RemovableHandle

import capture
from capture.errors import CaptureError
from tests.snapshot import Snapshot, differences, take, tensors

CAPTURE_FOLDER = os.path.dirname(sys.modules[CaptureError.__module__].__file__)
TORCH_FOLDER = os.path.dirname(torch.__file__)
OWN_FILES = (CAPTURE_FOLDER, TORCH_FOLDER, __file__, "<capture")
FIRST_HOOK = 1_000_000  # hooks are numbered process-wide: the same hook must get the same number in both worlds
MOST_LINES = 20
RECENT = 3              # so many results of earlier calls are looked at after each call: to look at all takes time to the square
_ADDRESS = re.compile("0x[0-9a-f]+")  # in default representations: never the same twice
_STACK = re.compile(
    r"(\\n|\n)Exception raised from [^\n]*?\(most recent call first\):((\\n|\n)(frame #|<omitting)((?!\\n)[^\n])*)*")
Program = Callable[..., Any]
Engine = Callable[[Program], Program]


@dataclass(frozen=True)
class Call:
    """One call of the program; `arguments(state)` builds its arguments anew in each world."""

    arguments: Callable[[Any], tuple[tuple, dict[str, Any]]]


@dataclass(frozen=True)
class Captured:
    """How often the program was captured by now, as one graph each time; all other calls were hits. Checked between calls."""

    times: int


Step = Call | Captured | Callable[[Any], Any]  # a call, a check, or a change of the state between calls


def call(*args: Any, **kwargs: Any) -> Call:
    """A call with these arguments; each world gets its own copy, with aliasing among the arguments kept."""
    return Call(lambda state: copy.deepcopy((args, kwargs)))


def call_with(arguments: Callable[[Any], tuple]) -> Call:
    """A call whose positional arguments are built by `arguments(state)`: to pass objects of the state itself."""
    return Call(lambda state: (arguments(state), {}))


def check(make: Callable[[], Any], *steps: Step, captures: int | None = 1, hits: int | None = None, breaks: int = 0,
          graphs: int | None = None, fullgraph: bool = True, backend: Any = "eager", backward: bool = False,
          tolerance: float | None = None, **compile_arguments: Any) -> Any:
    """Runs `steps` on `make()` eagerly and captured, and raises AssertionError with all differences between the two.

    `make` returns the program, a function or module, or `(program, state)`; a module is its own state. `captures=None`
    leaves the cache unchecked; `hits=None` expects every other call that returned to be a hit, if `fullgraph`.
    `backward` runs a backward pass after each call, so that gradients are compared. Values must be equal bit for bit,
    or within `tolerance` (relative and absolute). Returns the statistics of the compiled program.
    """
    compiled: list[Program] = []

    def engine(program: Program) -> Program:
        compiled.append(capture.compile(program, fullgraph=fullgraph, backend=backend, **compile_arguments))
        return compiled[0]

    def counted(step: Step, number: int) -> Step:
        def checked(state: Any) -> None:
            found, calls = capture.stats(compiled[0]), sum(isinstance(before, Call) for before in steps[:number])
            counts = found.captures, found.graphs, found.hits, found.bailouts
            assert counts == (step.times, step.times, calls - step.times, 0), f"after {calls} calls: {found}"
        return checked if isinstance(step, Captured) else step

    eager = run(make, tuple(step for step in steps if not isinstance(step, Captured)), backward=backward)
    captured = run(make, tuple(map(counted, steps, range(len(steps)))), engine, backward=backward)
    stats = capture.stats(compiled[0])
    problems = compare(eager, captured, tolerance)
    returned = sum(world.returned for world in eager)
    if captures is not None:
        if hits is None and fullgraph:
            hits = returned - captures
        expected = {"captures": captures, "hits": hits, "breaks": breaks, "graphs": graphs, "bailouts": 0}
        problems += [f"stats.{name}: expected {value}, got {getattr(stats, name)}"
                     for name, value in expected.items() if value is not None and getattr(stats, name) != value]
    assert not problems, "\n".join(["eager and captured differ:", *problems[:MOST_LINES],
                                     *([f"… and {len(problems) - MOST_LINES} more"] if problems[MOST_LINES:] else []),
                                     f"misses: {stats.misses}"])
    return stats


@dataclass
class Outcome:
    """What one call did in one world."""

    returned: bool
    snapshot: Snapshot


def run(make: Callable[[], Any], steps: tuple[Step, ...], engine: Engine = lambda program: program,
        backward: bool = False) -> list[Outcome]:
    """The outcome of each call among `steps`, on a program of its own and from the same seeds every time."""
    seed()
    RemovableHandle.next_id = FIRST_HOOK
    program, state = _unpack(make())
    program = engine(program)
    outcomes: list[Outcome] = []
    results: list[Any] = []
    last = max((number for number, step in enumerate(steps) if isinstance(step, Call)), default=0)
    for number, step in enumerate(steps):
        if not isinstance(step, Call):
            step(state)
            continue
        args, kwargs = step.arguments(state)
        with observed() as seen:
            seen.result = _attempt(program, args, kwargs, seen)
            if backward and seen.error is None:
                backpropagate(seen.result)
        results.append(seen.result)
        earlier = results[:-1] if number == last else results[-1 - RECENT:-1]
        roots = {"result": seen.result, "args": args, "kwargs": kwargs, "state": state, "earlier": earlier}
        world = {"exception": describe_exception(seen.error), "output": without_addresses(seen.output.getvalue()),
                 "warnings": seen.warnings, **modes()}
        outcomes.append(Outcome(seen.error is None, take(roots, world)))
    return outcomes


def compare(eager: list[Outcome], captured: list[Outcome], tolerance: float | None = None) -> list[str]:
    """One line for each difference between two worlds, with the number of the call at which it was seen first."""
    problems: list[str] = []
    for number, (left, right) in enumerate(zip(eager, captured, strict=True), 1):
        lines = differences(left.snapshot, right.snapshot, tolerance)
        if left.returned != right.returned:  # then all results differ too, which says nothing more
            lines = [line for line in lines if line.startswith("exception")]
        problems += [f"call {number}: {line}" for line in lines]
        if problems:
            break  # what differs once differs in all later calls as well
    return problems


def backpropagate(result: Any) -> None:
    """A backward pass from every differentiable tensor of `result`, with a gradient that is different everywhere.

    Raises AssertionError when there is none. (A gradient of ones would hide errors: softmax sums to a constant.)
    """
    outputs = [t for t in tensors(result) if t.requires_grad and t.grad_fn is not None]
    assert outputs, "nothing in the result requires a gradient"
    gradients = [torch.arange(t.numel(), dtype=torch.float64).cos().to(t.dtype).view(t.shape) for t in outputs]
    torch.autograd.backward(outputs, gradients)


def describe_exception(error: BaseException | None) -> Any:
    """Type, arguments, user lines, cause and context of an exception, as plain data."""
    if error is None:
        return None
    lines = [(frame.filename, frame.name, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)
             if not frame.filename.startswith(OWN_FILES)]
    if type(error) is UnboundLocalError and sys.version_info < (3, 12) and lines:
        # Once CPython 3.11 has run code often, it tells the line of the instruction before, joined with the one that raises.
        lines[-1] = (*lines[-1][:2], None)
    return {"type": type(error).__qualname__, "args": without_addresses(repr(error.args)), "lines": lines,
            "cause": describe_exception(error.__cause__), "context": describe_exception(error.__context__),
            "suppressed": error.__suppress_context__}


def modes() -> dict[str, Any]:
    """The state of the process and thread which a program may change without touching any of its objects."""
    _, key, *rest = numpy.random.get_state()
    return {
        "grad enabled": torch.is_grad_enabled(), "inference mode": torch.is_inference_mode_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "default dtype": torch.get_default_dtype(), "default device": torch.get_default_device(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "torch RNG": torch.get_rng_state().numpy().tobytes(), "random": random.getstate(),
        "numpy RNG": (key.tobytes(), *rest),
    }


def without_addresses(text: str) -> str:
    """The text without addresses of objects, as default representations show them, and without the stack of C++ functions that
    torch puts into some errors, which is also that of the interpreter."""
    return _STACK.sub("", _ADDRESS.sub("0x…", text))


def seed(value: int = 0) -> None:
    """The same start for torch's, Python's and numpy's random numbers. (`torch.manual_seed` also formats the stack, three times,
    for devices that are not there.)"""
    torch.default_generator.manual_seed(value)
    random.seed(value)
    numpy.random.seed(value)


@dataclass
class Seen:
    """What can be seen of one call from outside, besides objects."""

    result: Any = None
    error: Exception | None = None
    output: io.StringIO = field(default_factory=io.StringIO)
    warnings: list[tuple[str, str]] = field(default_factory=list)


@contextlib.contextmanager
def observed() -> Iterator[Seen]:
    """Collects standard output and warnings. Those of installed packages are left out: some are given only once."""
    seen = Seen()
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(seen.output):
        warnings.simplefilter("always")
        yield seen
    seen.warnings = [(w.category.__name__, str(w.message)) for w in caught if "site-packages" not in w.filename]


def _attempt(program: Program, args: tuple, kwargs: dict[str, Any], seen: Seen) -> Any:
    """The result of the program, or None when it raised. Errors of capture itself are not the program's: they pass."""
    try:
        return program(*args, **kwargs)
    except CaptureError:
        raise
    except Exception as error:
        seen.error = error
        return None


def _unpack(made: Any) -> tuple[Program, Any]:
    if isinstance(made, tuple):
        return made
    return made, made if isinstance(made, torch.nn.Module) else None
