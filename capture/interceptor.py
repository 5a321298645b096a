"""Compiles the training step, or calls of modules, in a program that does not mention capture: `python -m capture run`."""
from __future__ import annotations

import dataclasses
import functools
import os
import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch

from capture import _C, step_loops
from capture.backends import registry
from capture.config import BACKEND, RECAPTURE_LIMIT
from capture.interp.core.registry import exclusion_of_module
from capture.loop_bodies import LoopBody
from capture.pipeline import compiled_unit
from capture.refgraph.memory import PLAIN_TENSORS
from capture.training_steps import STEP, Finding, Name, StepFinder
from capture.unit import Unit

MODULE_CALL: Any = torch.nn.Module._wrapped_call_impl
BACKWARD = torch.Tensor.backward.__code__.co_qualname
OPTIMIZER = torch.optim.Optimizer.__init__.__code__.co_qualname
MOST_KINDS = 64     # of one class that get compiled functions of their own
MOST_WASTED = 4     # calls of a training step that are no hits, where fewer than LEAST_HITS of all are: it is left to its modules …
LEAST_HITS = 0.25   # … (where every second step updates the parameters, one of the two kinds may wait to be captured, for long)
MOST_BREAKS = 2     # … as one that falls into more graphs: places where these end
LEFT = {"script": "is of TorchScript, and left to it", "torch-compiled": "is compiled by torch.compile, and left to it",
        "disabled-call": "is excluded by torch.compiler.disable"}
Kind = tuple[Any, ...]


def kind_of(module: torch.nn.Module) -> Kind:
    """A key by which modules share their entries: class, shapes and types of parameters and buffers, and the same of all
    submodules."""
    kind: list[Any] = []
    todo, seen = [module], set()
    while todo:
        module = todo.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        state = vars(module)
        kind.append(type(module))
        for table in ("_parameters", "_buffers"):
            for name, tensor in state.get(table, {}).items():
                known = type(tensor) in PLAIN_TENSORS
                kind.append((name, tuple(tensor.shape), tensor.dtype) if known else (name, type(tensor)))
        for name, inner in state.get("_modules", {}).items():
            kind.append(name)
            if isinstance(inner, torch.nn.Module):
                todo.append(inner)
    return tuple(kind)


class Interceptor:
    """Compiled functions for the outermost calls of modules, one for all modules that are built alike, of functions by name, and of
    the function that makes a whole training step, if there is one.

    functions: "module:qualified name"; "__main__" is the script. Nothing of the program changes: the frame hook hands over
    the frames of these calls. Raises BackendError for an unknown backend.
    """

    def __init__(self, functions: Iterable[str] = (), backend: str | None = None) -> None:
        self.compiler = registry.lookup(backend or BACKEND.value, mode=None, dynamic=None, options=None)
        self.modules: dict[int, tuple[weakref.ref[torch.nn.Module], Unit]] = {}     # by identity, while it lives
        self.kinds: dict[Kind, Unit] = {}
        self.functions: dict[types.CodeType, dict[types.FunctionType, Unit]] = {}
        self.made: Counter[types.CodeType] = Counter()      # functions that were compiled, of a code
        self.names: dict[Name, str] = {(module, name): f"{module}:{name}" for module, name in (
            function.split(":") for function in functions)}
        self.finder: StepFinder | None = StepFinder()
        self.found: Finding | None = None       # what makes a training step
        self.step: Name | None = None           # … if that is a function
        self.body: LoopBody | None = None       # … if that is the body of a loop
        self.is_unfit = False                   # it is left to its modules
        self.left: Counter[tuple[str, str]] = Counter()         # calls of modules that are left alone, by class and reason

    def start(self) -> None:
        """Begins to intercept calls."""
        self.look()
        os.register_at_fork(after_in_child=functools.partial(_C.intercept, None))
        os.register_at_fork(after_in_child=step_loops.close)

    def look(self) -> None:
        """Intercepts calls of all that is of interest now."""
        names = [*self.names, *filter(None, [self.step])]
        choosers: dict[str, Callable[[Any, Any], Any]] = {name: self.of_function for _, name in names}
        if self.finder is not None:
            choosers |= {OPTIMIZER: self.of_optimizer, BACKWARD: self.of_backward, STEP: self.of_step}
        _C.intercept({**choosers, MODULE_CALL.__code__.co_qualname: self.of_module})

    def units(self) -> list[Unit]:
        """The compiled functions."""
        bodies = [] if self.body is None else list(self.body.units.values())
        return list(self.kinds.values()) + [unit for units in self.functions.values() for unit in units.values()] + bodies

    def remarks(self) -> list[str]:
        """What makes the training step; and what was not compiled, and why: modules that are left alone, functions that were never
        called. A sentence each."""
        seen = {(function.__module__, function.__qualname__) for units in self.functions.values() for function in units}
        left = [f"{name}: {count} call{'' if count == 1 else 's'} ran natively: it {LEFT[why]}"
                for (name, why), count in self.left.items()]
        if self.found is not None:
            left.append(self.what_was_found(self.found))
        left += [f"--function {name}: never called" for key, name in self.names.items() if key not in seen]
        if not left and not self.units():
            left = ["no module was called in this process; `--function module:qualified.name` names functions to compile, the "
                    "script is `__main__`. In processes that it starts nothing is compiled: start these by `python -m capture run`"]
        return left

    def what_was_found(self, found: Finding) -> str:
        """What makes the training step, and whether it is compiled."""
        if found.why_not:
            where = f" ({found.place})" if found.place else ""
            return f"training step: only the modules that it calls are compiled; {found.why_not}{where}"
        what = "the body of the loop" if found.function is None else ":".join(found.function)
        if not self.is_unfit:
            return f"training step: {what} at {found.place} is compiled as a whole"
        remedy = "" if found.function is None else f" (`--function {what}` has it compiled all the same)"
        return f"training step: {what} at {found.place} takes too many graphs: only the modules that it calls are compiled{remedy}"

    def of_module(self, function: types.FunctionType, module: Any) -> Any:
        """The compiled function for a call of a module. A module of TorchScript, or one that torch.compile has compiled, runs
        natively. None for calls of other functions."""
        if function is not MODULE_CALL:
            return None
        why = "script" if isinstance(module, torch.jit.ScriptModule) else exclusion_of_module(module)
        if why is not None:
            original = vars(module).get("_modules", {}).get("_orig_mod", module)
            self.left[type(original).__name__, why] += 1
            return _C.RUN_NATIVELY
        if (finder := self.finder) is not None:         # another thread may end the search
            finder.called()
            if finder.is_patient and module.training and torch.is_grad_enabled():
                return _C.RUN_NATIVELY          # it will be a part of a training step, perhaps
        known = self.modules.get(id(module))
        if known is None:
            known = self.add_module(function, module)
        return known[1].compiled

    def add_module(self, function: types.FunctionType, module: torch.nn.Module) -> tuple[weakref.ref[torch.nn.Module], Unit]:
        """Notes a module that is called for the first time. Modules that are built alike share what is captured of them."""
        kind, key, name = kind_of(module), id(module), type(module).__name__
        unit = self.kinds.get(kind)
        if unit is None:
            alike = [other for known, other in self.kinds.items() if known[0] is kind[0]]
            unit = alike[0] if len(alike) >= MOST_KINDS else self.kinds.setdefault(
                kind, compiled_unit(function, self.compiler, False, name))
        known = self.modules[key] = weakref.ref(module, functools.partial(self.modules.pop, key)), unit
        return known

    def of_optimizer(self, function: types.FunctionType, optimizer: Any) -> None:
        """Notes that the program will train."""
        if (finder := self.finder) is not None and isinstance(optimizer, torch.optim.Optimizer):
            finder.expect_steps()

    def of_backward(self, function: types.FunctionType, tensor: Any) -> None:
        """Notes a backward pass."""
        if (finder := self.finder) is not None and function is torch.Tensor.backward:
            self.compile_found(finder.passed())

    def of_step(self, function: types.FunctionType, first: Any) -> None:
        """Notes an optimizer's step, and looks for the function that makes the whole of it."""
        if (finder := self.finder) is not None:
            self.compile_found(finder.stepped())

    def compile_found(self, found: Finding | None) -> None:
        """Compiles what makes a whole training step, if that was found."""
        if found is None:
            return
        self.finder, self.found = None, None if found.function in self.names else found
        if found.function is not None:
            self.step = None if found.function in self.names else found.function
        elif found.loop is not None and found.frame is not None:
            self.found = dataclasses.replace(found, frame=None)
            try:
                self.body = LoopBody(found.loop, found.frame.f_code, self.unit_of_body, self.is_left_alone)
            except ValueError as error:
                self.found = dataclasses.replace(self.found, why_not=f"the body of that loop cannot be a function: {error}")
            else:
                self.body.open(found.frame.f_globals)
        self.look()

    def unit_of_body(self, function: types.FunctionType, name: str) -> Unit:
        """A compiled function for the body of a loop."""
        return compiled_unit(function, self.compiler, False, name)

    def is_left_alone(self, unit: Unit) -> bool:
        """Whether a training step is left to its modules from now on, since it takes too many graphs."""
        self.is_unfit = self.is_unfit or is_unfit(unit)
        return self.is_unfit

    def of_function(self, function: types.FunctionType, first: Any) -> Any:
        """The compiled function for a call of one of the names. If functions of that name are made again and again, only the first
        few are compiled; of training steps only the latest is kept, since what its variables hold lives as long. A training step
        that takes too many graphs is left to its modules."""
        name = function.__module__, function.__qualname__
        if name not in self.names and name != self.step:
            return None
        units = self.functions.setdefault(function.__code__, {})
        unit = units.get(function)
        if unit is None:
            if name == self.step:
                units.clear()
            if self.made[function.__code__] >= RECAPTURE_LIMIT.value:
                return None
            self.made[function.__code__] += 1
            unit = units.setdefault(function, compiled_unit(function, self.compiler, False, function.__name__,
                                                            looks_first=name == self.step))
        if name == self.step and self.is_left_alone(unit):
            self.step = None
            self.look()
            return None
        return unit.compiled


def is_unfit(unit: Unit) -> bool:
    """Whether a training step takes too many graphs, or calls of it run otherwise than as a hit too often. What follows a break may
    run natively for as long as captures have taken too much of the time."""
    counts = unit.counts
    wasted = unit.captures + counts.native_calls - unit.looked_at
    varies = wasted > MOST_WASTED and counts.hits < LEAST_HITS * (counts.hits + wasted)
    return bool(unit.bailouts) or len(unit.resumptions) > MOST_BREAKS or varies
