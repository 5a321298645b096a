"""The public functions: `compile`, `stats`, `explain`, `report`, `wait`, `save`, `load`, `reset` and `disable`."""
from __future__ import annotations

import copyreg
import functools
import importlib
import os
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from capture import _C
from capture.backends import registry
from capture.backends.native import tiers as native
from capture.backends.native import warm_cache
from capture.backends.native.tiers import UNDECIDED, Stage
from capture.config import BACKEND
from capture.errors import ArgumentError, described, shown, warn
from capture.history import total
from capture.interp.core.registry import DISABLED, exclusion, exclusion_of_module
from capture.modules import CompiledModule, compiled_module, plain_call
from capture.pipeline import compiled_unit, is_capturing
from capture.refgraph import shape_specs
from capture.reports import progress
from capture.reports.build import report_of
from capture.reports.tree import Report
from capture.unit import GONE, Unit, units

MakeUnit = Callable[[types.FunctionType, str], Unit]      # of a function, and by a name unless the user gave one


def compile(model: Any = None, *, fullgraph: bool = False, dynamic: bool | None = None,
            backend: str | Callable[..., Any] | None = None, mode: str | None = None,
            options: Mapping[str, Any] | None = None, name: str | None = None, disable: bool = False,
            recompile_limit: int | None = None, isolate_recompiles: bool = False, shapes_spec: Any = None,
            dynamic_shapes: Any = None) -> Any:
    """Captures a function or `nn.Module` on its first call and replays it on later ones. Same meaning as `torch.compile`.

    model: a function, a method, a module, or anything else that can be called; of a class, the calls of its instances are
    compiled. Without it, a decorator is returned.
    fullgraph: raise GraphBreakError where the graph would break.
    backend: a name of ours ("native" compiles, "eager" does not), of torch.compile's registry, or `(gm, example_inputs) ->
    callable`. mode, options: as torch.compile's, passed to the backend. dynamic: True: one capture holds for all sizes of tensors,
    False: each is captured by itself, None: one holds for all once sizes were seen to change. disable: return `model` as it is.
    name: what reports call it. recompile_limit: how many variants are captured, 64 at most (CAPTURE_RECAPTURE_LIMIT, if None).
    shapes_spec, or dynamic_shapes, as torch has called it since: which sizes and integers vary, by what names, in which ranges and
    relations; what it does not mention is as with `dynamic=None`. isolate_recompiles: taken for the sake of torch.compile's
    signature, and without effect: nothing compiled shares its entries.

    The native backend compiles in the background: calls run uncompiled until its code is ready (see `wait`), and also after
    that if it is measured to be slower. `options={"background": False}` waits for the compiler at the first hit.

    A module comes back as an object that shares the module's state and is of its class. A function that is excluded from
    capture comes back as it is. Raises ArgumentError for what cannot be compiled, BackendError for an unknown backend.
    """
    _check(fullgraph=fullgraph, disable=disable, isolate_recompiles=isolate_recompiles)
    if name is not None and not isinstance(name, str):
        raise ArgumentError(f"name must be a string or None, got {described(name)}")
    if recompile_limit is not None and (type(recompile_limit) is not int or recompile_limit < 1):
        raise ArgumentError(f"recompile_limit must be an integer of at least 1, or None, got {shown(recompile_limit)}; "
                            f"to run natively, pass disable=True")
    if shapes_spec is not None and dynamic_shapes is not None:
        raise ArgumentError("shapes_spec and dynamic_shapes are two names of one argument; pass one of them")
    said = dynamic_shapes if shapes_spec is None else shapes_spec
    if said is not None and dynamic is not None:
        raise ArgumentError("dynamic and shapes_spec both say which sizes vary; pass one of them")
    backend = BACKEND.value if backend is None else backend
    compiler = registry.lookup(backend, mode=mode, dynamic=dynamic, options=options)
    settings: dict[str, Any] = {"fullgraph": fullgraph, "dynamic": dynamic, "backend": backend, "mode": mode, "options": options,
                                "name": name, "recompile_limit": recompile_limit, "shapes_spec": said}
    if model is None:
        return functools.partial(compile, **settings, disable=disable)
    excluded = exclusion_of_module(model) if isinstance(model, torch.nn.Module) else exclusion(getattr(model, "__func__", model))
    if disable or excluded == "disabled-call":
        return model
    if excluded is not None:
        subject = getattr(model, "__qualname__", type(model).__name__)
        raise ArgumentError(f"{subject} was compiled by torch.compile; pass the original function or module")
    rebuild = functools.partial(compile, **settings)

    forward = model.forward if isinstance(model, torch.nn.Module) else None
    if isinstance(model, type) and issubclass(model, torch.nn.Module):
        forward = types.MethodType(model.forward, model)
    if said is None and dynamic is None:
        said = getattr(forward or model, "_dynamic_spec", None)     # of the decorator that newer versions of torch have

    def make_unit(function: types.FunctionType, its_name: str) -> Unit:
        spec = None if said is None else shape_specs.read(said, function.__code__, forward)
        return compiled_unit(function, compiler, fullgraph, name or its_name, most=recompile_limit, dynamic=dynamic, spec=spec)
    if isinstance(model, _C.CompiledFunction):
        model = model.__wrapped__
    if isinstance(model, torch.nn.Module):
        return compiled_module(model, make_unit, rebuild)
    if isinstance(model, type):
        return _class(model, make_unit, rebuild)
    if not callable(model):
        raise ArgumentError(f"capture.compile takes a function, a method, a class, a callable object or an nn.Module, "
                            f"got {described(model)}")
    function, *bound = (model.__func__, model.__self__) if isinstance(model, types.MethodType) else (model,)
    if not isinstance(function, types.FunctionType | _C.CompiledFunction) and not bound:
        function, *bound = type(model).__call__, model
    if isinstance(function, _C.CompiledFunction):
        function = function.__wrapped__
    if not isinstance(function, types.FunctionType):
        function, bound = _call_of(model), []
        rebuild = functools.partial(rebuild, model)
    compiled = _function(function, make_unit, rebuild)
    return types.MethodType(compiled, *bound) if bound else compiled


def _check(**flags: Any) -> None:
    """Raises ArgumentError for a flag that is not True or False."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ArgumentError(f"{name} must be True or False, got {described(flag)}")


def _class(cls: type, make_unit: MakeUnit, rebuild: Callable[..., Any]) -> type:
    """Compiles the calls of all instances of a class, by a `__call__` of its own. Returns the class."""
    function = plain_call(cls)
    if not isinstance(function, types.FunctionType):
        raise ArgumentError(f"instances of {cls.__name__} have no __call__ written in Python; compile a method, or the function "
                            f"that uses them")
    cls.__call__ = _function(function, make_unit, rebuild)  # type: ignore[method-assign]
    return cls


def _call_of(target: Callable[..., Any]) -> types.FunctionType:
    """A Python function that calls something which has no Python frame to capture: a builtin, a partial function, a C method."""
    def call(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)
    call.__name__ = call.__qualname__ = getattr(target, "__name__", type(target).__name__)
    call.__annotations__ = {}
    return functools.update_wrapper(call, target)  # type: ignore[return-value]


def _function(function: types.FunctionType, make_unit: MakeUnit, rebuild: Callable[..., Any]) -> Any:
    unit = make_unit(function, function.__name__)
    unit.compiled.capture_unit, unit.compiled.capture_rebuild = unit, rebuild
    unit.compiled._torchdynamo_inline = function        # of which a torch.compile around it makes a part of its own graph
    return unit.compiled


def _reduced(compiled: Any) -> str | tuple[Any, ...]:
    """How pickle stores a compiled function: by name if the name leads to it, as for any function; else as the original, to be
    compiled again."""
    found: Any = sys.modules.get(compiled.__module__)
    for part in compiled.__qualname__.split("."):
        found = getattr(found, part, None)
    rebuild = compiled.capture_rebuild      # what has no Python frame to capture stands in it
    return compiled.__qualname__ if found is compiled else (rebuild, () if rebuild.args else (compiled.__wrapped__,))


copyreg.pickle(_C.CompiledFunction, _reduced)


@dataclass(frozen=True, slots=True)
class Stats:
    """What happened to a compiled function and to the continuations that follow its breaks: a call that is cut k times counts k + 1
    captures or hits. `misses`: for each call after the first that no entry fitted, the guard that failed. `raised`: captures that
    ended in an exception of the program's own, of which nothing is replayed; later calls like these count as `native_calls` or, if
    they may well end otherwise, are captured again.

    `compiled`, `pending`: graphs for which the native backend has code, and for which it is making it (a graph whose code
    was slower counts as neither). `compile_errors`: why graphs could not be compiled.
    """

    captures: int
    hits: int
    native_calls: int
    raised: int
    breaks: int
    bailouts: int
    graphs: int
    operations: int
    guards: int
    misses: list[str]
    compiled: int
    pending: int
    compile_errors: list[str]


def unit_of(compiled: Any) -> Unit:
    """The record of a compiled function, method or module. Raises ArgumentError for anything else."""
    if isinstance(compiled, types.MethodType):
        compiled = compiled.__func__
    if not isinstance(compiled, (CompiledModule, _C.CompiledFunction)):
        raise ArgumentError(f"expected a function or module that capture.compile returned, got {described(compiled)}")
    return compiled.capture_unit


def stats(compiled: Any) -> Stats:
    """Counts for one compiled function or module, with its continuations. Raises ArgumentError for anything else."""
    family = unit_of(compiled).family
    alive, counts = total(unit.alive for unit in family), total(unit.counts for unit in family)
    captured = [entry for unit in family for entry in unit.tree.entries if entry.payload.graph_module is not None]
    graphs = [entry.payload.tier for entry in captured if entry.payload.tier is not None]
    tiers = [tier for graph in graphs for tier in graph.all()]
    return Stats(
        captures=sum(unit.captures for unit in family), hits=counts.hits, native_calls=counts.native_calls,
        raised=sum(unit.raised for unit in family), breaks=sum(len(unit.breaks) for unit in family),
        bailouts=sum(len(unit.bailouts) for unit in family),
        graphs=alive.graphs, operations=alive.operations, guards=sum(entry.guard_count for entry in captured),
        misses=[str(miss) for unit in family for miss in unit.misses],
        compiled=sum(tier.stage in (Stage.TRIAL, Stage.COMPILED) for tier in tiers),
        pending=sum(tier.stage in UNDECIDED for tier in tiers),
        compile_errors=[tier.reason for tier in tiers if tier.stage in (Stage.UNSUPPORTED, Stage.FAILED)])


def explain(function: Any, *args: Any, **kwargs: Any) -> str:
    """A text that explains one compiled function or module: what was captured and how it runs, its breaks and recaptures with
    remedies, then guards, graph and mock function of every entry.

    With arguments, `function` is called with them first; a function that is not compiled yet is then compiled with the default
    backend. Raises what that call raises, and ArgumentError for something that cannot be compiled, or that is not compiled and gets
    no arguments.
    """
    target = function.__func__ if isinstance(function, types.MethodType) else function
    if args or kwargs:
        function = function if isinstance(target, (CompiledModule, _C.CompiledFunction)) else compile(function)
        function(*args, **kwargs)
    return str(report(function).frames[0])


def report(*compiled: Any) -> Report:
    """The report, as data, on what was captured so far and what was not: on these compiled functions or modules, or on all of this
    process.

    `str` of it is a summary; `write("report.html")` writes a page. Raises ArgumentError for anything that `compile` has not
    returned.
    """
    return report_of(map(unit_of, compiled)) if compiled else report_of(units(), GONE)


def wait(timeout: float | None = None) -> bool:
    """Has all graphs compiled that are to be, and blocks until that is done, or for `timeout` seconds. Returns whether it is done.
    The next call uses their kernels. On a terminal a line shows how many graphs are left.

    Raises ArgumentError for a timeout that is no number, and in strict mode InternalError if compiling failed by a bug in capture.
    """
    if timeout is not None and (not isinstance(timeout, (int, float)) or timeout != timeout):
        raise ArgumentError(f"timeout must be a number of seconds or None, got {described(timeout)}")
    with progress.status() as show:
        return native.wait(timeout, show)


def save(path: str | os.PathLike[str], timeout: float | None = None) -> bool:
    """Writes the kernels of all graphs that this process has compiled, or found on disk, to one file, which `load` reads in another
    process or on another machine. Waits as `wait` does for graphs that are being compiled, for `timeout` seconds at most.

    Returns whether all are saved. If not, a warning says why (no kernels so far, no permission, a full disk, …) and what to do, and
    the program goes on; a file that was there stays as it was if it cannot be replaced. Raises ArgumentError for what is no path of
    a file, or no timeout; in strict mode InternalError as `wait` does.
    """
    name = _file_name("save", path)
    done = wait(timeout)
    try:
        warm_cache.save(name)
    except warm_cache.CacheFileError as error:
        warn(str(error))
        return False
    if not done:
        count = native.pending()
        warn(f"{count} graph{' is' if count == 1 else 's are'} still being compiled and not in {name}. Remedy: give capture.save "
             f"more time.")
    return done


def load(path: str | os.PathLike[str]) -> bool:
    """Makes the kernels of a file that `save` wrote available to this process. Graphs that are captured from now on, and that the
    file has kernels for, are not compiled: call it before compiled functions are called.

    The file holds machine code: load only files that you trust. Nothing in it is unpickled, and a hash of all of it is checked.
    Returns whether it is used. If not, a warning says why and what to do, and graphs are compiled as without it: the file cannot be
    read, or is damaged; or it was saved with another version of capture, torch or Python, another processor, GPUs of another
    architecture, or another setting of CXX. Raises ArgumentError for what is no path of a file.
    """
    try:
        warm_cache.load(_file_name("load", path))
    except warm_cache.CacheFileError as error:
        warn(str(error))
        return False
    return True


def package(function: Any, inputs: Sequence[Any], path: str | os.PathLike[str]) -> None:
    """Writes a function or module as a file that a C or C++ program runs without Python (docs/packages.md): its plan, kernels and
    weights, for inference.

    inputs: arguments of one call, as a list or tuple. The tensors among them, in the order in which containers hold them, are what
    the program passes, of these sizes and dtypes; anything else is part of the package. Results are the tensors that the function
    returns.

    Raises GraphBreakError if the function is not one graph; PackageError if it does more than to compute tensors on the processor
    (prints, changes its own buffers, draws random numbers), cannot be compiled, or the file cannot be written; ArgumentError for
    what is no list of arguments, or no path of a file.
    """
    if type(inputs) not in (list, tuple):
        raise ArgumentError(f"package takes the arguments of a call as a list or tuple, got {described(inputs)}")
    name = _file_name("package", path)
    packages = importlib.import_module("capture.packages")      # and the compiler, which else works in a process of its own
    packages.write(compile, report, function, inputs, name)


def _file_name(function: str, path: Any) -> str:
    """A path as text."""
    try:
        name = os.fsdecode(path)
    except TypeError:
        name = "\0"
    if "\0" in name:
        raise ArgumentError(f"{function} takes the path of a file, got {described(path)}")
    return name


def reset() -> None:
    """Forgets all captures of all compiled functions and modules, and frees the memory that compiled graphs work in."""
    for unit in units():
        unit.forget()
    GONE.clear()
    _C.release_workspaces()


def disable(function: Any = None) -> Any:
    """Excludes a Python function from capture: calls of it break the graph. Usable as a decorator. Of a compiled function it
    returns the original."""
    if function is None:
        return disable
    if isinstance(function, _C.CompiledFunction):
        function = function.__wrapped__
    if not isinstance(function, types.FunctionType):
        raise ArgumentError(f"capture.disable takes a Python function, got {described(function)}; "
                            f"to exclude a module, disable one of its methods, or call torch.compiler.disable on it")
    DISABLED.add(function)
    return function


__all__ = ["Stats", "compile", "disable", "explain", "is_capturing", "load", "report", "reset", "save", "stats", "unit_of",
           "wait"]
