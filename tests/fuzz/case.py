"""One case: a world, and steps in it, run eagerly and captured; everything that can be observed must be equal."""
from __future__ import annotations

import ast
import contextlib
import copy
import gc
import linecache
import math
import random
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules import module as module_hooks
from torch.utils.hooks import RemovableHandle

import capture
from capture.errors import CaptureError
from tests import helpers
from tests.fuzz import models, objects, pieces, stdlib, steps, users, writer
from tests.snapshot import Snapshot, differences, take

# (`shown` keeps a memory of what it dispatched, which polyfills do without.)
HIDDEN = {"__builtins__", "__warningregistry__", "program", "compiled", "shown"}
PATCHED = (torch, torch.nn.functional, torch.Tensor, torch.nn.Module, torch.nn.Linear, torch.nn.LayerNorm, torch.nn.Dropout,
           math, copy, random)
MODULE = "fuzzed_world"                 # not in sys.modules: what it defines is state, see tests/snapshot.py
PIECES = objects.PIECES | models.PIECES | users.PIECES | stdlib.PIECES
MODULES = "net", "tower", "bank"
TARGETS = ["program"] * 8 + ["box.bump", "helper", "net", "closure", "managed", "driven", "fit", "accumulate", *MODULES]


@dataclass(frozen=True)
class Case:
    """`source` makes a world in which `program` is what is compiled; each of `steps` is a statement in that world."""

    source: str
    steps: tuple[str, ...]

    @property
    def calls(self) -> int:
        return sum("program(" in step for step in self.steps)

    def __str__(self) -> str:
        return "\n".join(["# world", self.source, "", "# steps", *self.steps])


@dataclass
class Outcome:
    """What one step did: its exception and output, and, of a call, the state of the whole world behind it."""

    exception: Any
    output: str
    world: Snapshot


@dataclass
class Counts:
    """What became of calls, summed up over cases."""

    calls: int = 0
    captures: int = 0
    hits: int = 0
    native: int = 0

    def add(self, other: Counts) -> None:
        self.calls, self.captures = self.calls + other.calls, self.captures + other.captures
        self.hits, self.native = self.hits + other.hits, self.native + other.native


@dataclass
class Engine:
    """How programs are compiled: arguments of `capture.compile`. `tolerance`: of values, where kernels round otherwise."""

    arguments: dict[str, Any] = field(default_factory=lambda: {"backend": "eager"})
    tolerance: float | None = None
    counts: Counts = field(default_factory=Counts)


def draw(seed: int, number: int, calls: int = 8) -> Case:
    """The case of a number, among those of a seed."""
    rng = random.Random(f"{seed}:{number}")
    names = [name for name in PIECES if rng.random() < 0.3]
    texts, places = pieces.world(PIECES[name] for name in names)
    pen = writer.Writer(rng, places)
    source = "\n\n".join([*map(pen.fill, texts), steps.PRELUDE.strip(), pen.program()])
    target = rng.choice(TARGETS)
    named = places.globals + places.objects + places.modules + places.classes + places.functions
    if target != "program" and target.split(".")[0] in named:
        source += f"\n\nprogram = {target}"
    drawn = steps.Stepper(rng, places).steps(rng.randint(2, calls))
    if source.endswith(tuple(f"program = {name}" for name in MODULES)):
        # a compiled module keeps its class, and the `__call__` of that: docs/limits.md
        drawn = [step for step in drawn if not any(name in step for name in ("__class__", "__bases__", "__call__"))]
    return Case(declare_globals(source), tuple(drawn))


def declare_globals(source: str) -> str:
    """The source, with a `global` statement in each function that assigns a name of the module level."""
    tree = ast.parse(source)
    names = {name for statement in tree.body for name in _assigned(statement)}
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
            declared = {name for node in ast.walk(function) if isinstance(node, ast.Nonlocal) for name in node.names}
            written = sorted({name for statement in function.body for name in _assigned(statement)} & names - arguments - declared)
            if written:
                function.body.insert(0, ast.Global(written))
    return ast.unparse(ast.fix_missing_locations(tree))


def _assigned(statement: ast.stmt) -> Iterator[str]:
    """The variables that a statement assigns or deletes, but for those of scopes within it."""
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.GeneratorExp, ast.ListComp, ast.SetComp,
             ast.DictComp)
    queue: list[ast.AST] = [] if isinstance(statement, inner) else [statement]
    while queue:
        node = queue.pop()
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        queue += [child for child in ast.iter_child_nodes(node) if not isinstance(child, inner)]


def run(case: Case, engine: Callable[[Any], Any] = lambda program: program) -> list[Outcome]:
    """The outcome of each step of a case, in a world of its own. `compiled` is the engine's name in it."""
    with fresh_process():
        world: dict[str, Any] = {"__name__": MODULE, "backward": helpers.backpropagate, "compiled": engine}
        with contextlib.redirect_stdout(None):
            exec(_compiled(case.source, "<world>"), world)
        world["program"] = engine(world["program"])
        outcomes = []
        for number, step in enumerate(case.steps, 1):
            with helpers.observed() as seen:
                try:
                    exec(_compiled(step, f"<step {number}>"), world)
                except CaptureError:
                    raise
                except Exception as error:
                    seen.error = error
                raised = helpers.describe_exception(seen.error)
                if isinstance(seen.error, UnboundLocalError):
                    del raised["lines"]     # CPython names a line too early once it has specialised the code
                if raised:
                    seen.error = None       # an exception holds the frames that it left, eager ones with their locals, …
                    gc.collect()            # … and these may lead to it
            state = {name: value for name, value in world.items() if name not in HIDDEN}
            observes = "program(" in step or "backward(" in step
            snapshot = take({"world": state}, helpers.modes()) if observes else Snapshot()
            snapshot.alive.clear()          # what the program drops dies, in both worlds
            outcomes.append(Outcome(raised, helpers.without_addresses(seen.output.getvalue()), snapshot))
        return outcomes


def compare(case: Case, engine: Engine) -> list[str]:
    """One line for each difference between the eager and the captured run of a case, up to the first step that shows some."""
    compiled: list[Any] = []

    def compile(program: Any) -> Any:
        compiled.append(capture.compile(program, **engine.arguments))
        return compiled[-1]
    expected = run(case)
    if any(step.exception and step.exception["type"] == "RecursionError" for step in expected):
        return []           # how deep it comes depends on what called it
    try:
        found = run(case, compile)
    except CaptureError as error:
        return [f"{type(error).__name__}: {error}"]
    if compiled:
        stats = capture.stats(compiled[0])
        engine.counts.add(Counts(case.calls, stats.captures, stats.hits, stats.native_calls))
    return first_difference(case, expected, found, engine.tolerance)


def first_difference(case: Case, expected: list[Outcome], found: list[Outcome], tolerance: float | None = None) -> list[str]:
    """One line for each difference in the first step that shows some."""
    for number, (step, left, right) in enumerate(zip(case.steps, expected, found, strict=True), 1):
        lines = [f"{name}: eager {getattr(left, name)}, captured {getattr(right, name)}" for name in ("exception", "output")
                 if getattr(left, name) != getattr(right, name)]
        lines = lines or differences(left.world, right.world, tolerance)
        if lines:
            return [f"step {number} ({step}): {line}" for line in lines]
    return []


def is_deterministic(case: Case) -> bool:
    """Whether two eager runs agree: else a difference says nothing."""
    return not first_difference(case, run(case), run(case))


@contextlib.contextmanager
def fresh_process() -> Iterator[None]:
    """The same start for each world: seeds, numbers of hooks; afterwards none of torch's modes and hooks outlives it, nor what it
    put in the library's modules and classes. What earlier worlds have left behind is collected before, and nothing meanwhile: a
    generator that dies may draw random numbers, and so change those of another world."""
    gc.collect()
    gc.disable()
    _set_modes_back()
    helpers.seed()
    RemovableHandle.next_id = helpers.FIRST_HOOK
    library = [(owner, dict(vars(owner))) for owner in PATCHED]
    try:
        yield
    finally:
        gc.enable()
        for owner, names in library:
            for name, value in dict(vars(owner)).items():
                if name not in names and not isinstance(value, types.ModuleType):       # which was imported meanwhile
                    delattr(owner, name)
            for name, value in names.items():
                if vars(owner).get(name) is not value:
                    setattr(owner, name, value)
        _set_modes_back()


def _set_modes_back() -> None:
    """Torch's modes, and hooks of all modules, as they are in a new process."""
    torch.set_default_device(None)
    torch.set_autocast_enabled("cpu", False)
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    torch.set_printoptions(profile="default")
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    torch.set_autocast_cache_enabled(True)
    torch.set_float32_matmul_precision("highest")
    torch._C.set_anomaly_enabled(False, True)
    torch._C._set_deterministic_algorithms(False, warn_only=False)     # torch's own function imports inductor
    for name, hooks in vars(module_hooks).items():
        if name.startswith("_global_") and isinstance(hooks, dict):
            hooks.clear()
    module_hooks._global_is_full_backward_hook = None


def _compiled(source: str, name: str) -> Any:
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    return compile(source, name, "exec", dont_inherit=True)
