"""Calls that act on the world or ask it: printing, logging, warnings, clocks, random numbers, files.

Such a call is made for real while the trace is recorded, and by the mock function on every hit, in the program's order. So it needs
no model of what it does, only of what it may look at (`snapshot`) and of the frames that it is called from. It must not change
objects that the program reads elsewhere.
"""
from __future__ import annotations

import csv
import datetime
import inspect
import io
import json
import logging
import operator
import os
import pathlib
import random
import secrets
import sys
import time
import traceback
import types
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from capture._C import is_a
from capture.errors import Break
from capture.interp.core import program_frames, scope
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import FAMILIES, NAMED_EFFECTS, PURE, SEES_CALLERS, SIDE_EFFECTS, hashable, model, polyfill
from capture.interp.core.special import in_python
from capture.interp.function_models import effect_callbacks, seeded
from capture.interp.function_models.replays import MOST_ITEMS, snapshot
from capture.interp.function_models.shadows import items_of
from capture.interp.recording import may_raise
from capture.refgraph.effects import Replayed, is_foreign
from capture.refgraph.identical import LISTS, Classes
from capture.refgraph.lookup import instance_dict, lookup_class
from capture.refgraph.node import SCALARS, Build, Const, DictState, Expr, ListState, RefNode, Shadow
from capture.refgraph.runtime import CallFrom, shuffled, text_of_exception
from capture.refgraph.source import Computed, Literal

STREAM: Any = io.IOBase.__base__        # C's class of all streams; `io.IOBase` itself asks a class for its hash


@dataclass(frozen=True, slots=True)
class Traits:
    """What is known of functions whose calls every hit repeats."""

    returns: type | None = None         # the type of every result, if it is always the same
    fresh: bool = False                 # each result is a new object, which nobody else knows
    clock: bool = False                 # they tell the time, and do nothing else
    ahead: bool = False                 # they come before the graph, wherever they stand, and again if the call runs again
    callers: bool = False               # they look at the frames of their callers
    owner: bool = False                 # they act through their first argument (a stream, a logger), and do not show it
    changes: bool = False               # they change attributes of the owner …
    keeps: frozenset[str] = frozenset()         # … except these
    require: Callable[..., None] | None = None  # guards, given their arguments, that they run no code of the program
    fails: bool = False                 # whether they raise depends on the world: a file, the user's filters of warnings
    draws: bool = False                 # they draw random numbers from the owner; the type of a number follows from the arguments'
    makes: bool = False                 # they make a stream of random numbers, from a seed if one is given

    @property
    def shows(self) -> bool:
        """Whether they may print their arguments."""
        return not (self.draws or self.makes or self.clock or self.ahead)


def shown_to(traits: Traits, args: Iterable[Value], kwargs: dict[str, Value]) -> list[Value]:
    """The arguments that such a call may look into."""
    return [value for value in [*args, *kwargs.values()][traits.owner:] if not is_a(value.real, STREAM)]


def effect(*functions: Any, applies: Callable[..., bool] | None = None, **traits: Any) -> None:
    """Registers functions whose calls are repeated on every hit, and their `Traits`; `applies`: see `Meaning`."""
    known = Traits(**traits)
    for function in functions:
        prepare = seeded.hold_arguments if known.draws else None
        model(function, prepare=prepare, applies=applies, refuses=_refusal(function, known))(_model(function, known))
        if known.callers:
            SEES_CALLERS.add(function)
    SIDE_EFFECTS.update(functions)


def _refusal(function: Any, traits: Traits) -> Callable[..., Break | None]:
    """What tells why a call cannot be repeated where it is in the trace."""
    def no_clock(interp: Interpreter, *args: Value, **kwargs: Value) -> Break | None:
        worked = interp.recorder.operations or interp.graph.waited
        return Break("clock", f"{function.__qualname__}()") if worked else None

    def no_stack(interp: Interpreter, *args: Value, **kwargs: Value) -> Break | None:
        stack = "stack_info" in kwargs and kwargs["stack_info"].real
        asked = stack or tells_of_handled(function, kwargs) and interp.graph.find(sys.exception()) is None
        if function is warnings.warn and is_recorded(interp):
            return Break("side-effect-call", "warnings are recorded by the program")
        return Break("side-effect-call", f"{function.__qualname__}() is to show the stack") if asked else None

    def no_handler(interp: Interpreter, *args: Value, **kwargs: Value) -> Break | None:
        watched = may_raise.is_watched(interp.frame)
        return Break("failing-operation", f"{function.__qualname__}() where a handler is in force") if watched else None

    def no_arguments(interp: Interpreter, *args: Value, **kwargs: Value) -> Break | None:
        changing = any(not isinstance(value.shadow, Const) for value in (*args[1:], *kwargs.values()))      # it may refuse others
        return no_handler(interp) if changing else None

    def no_objects(interp: Interpreter, *args: Value, **kwargs: Value) -> Break | None:
        containers = [value.real for value in args if is_a(value.real, (list, tuple, dict, deque))]
        apart = any(type(item) not in SCALARS for container in containers for item in container)    # a hit would draw from copies
        return Break("side-effect-call", f"{function.__qualname__}() among objects") if apart else None

    def not_too_early(interp: Interpreter, *args: Value, **kwargs: Value) -> Break | None:
        late = interp.early_breaks is not None and interp.early_breaks.is_too_early(interp)
        return Break("late-change", f"{function.__qualname__}() was shown an object which changed after it") if late else None
    def no_own_code(interp: Interpreter, *args: Value, **kwargs: Value) -> Break | None:
        return effect_callbacks.refusal(function, list(args), kwargs, shown_to(traits, args, kwargs))
    known = (no_clock, traits.clock), (no_stack, traits.callers), (no_handler, traits.fails), (no_arguments, traits.draws), (
        no_objects, traits.draws), (no_own_code, traits.shows)
    rules = [rule for rule, holds in known if holds]

    def refuse(interp: Interpreter, *args: Value, **kwargs: Value) -> Break | None:
        return next((reason for rule in (*rules, not_too_early) if (reason := rule(interp, *args, **kwargs)) is not None), None)
    return refuse


def _model(function: Any, traits: Traits) -> Callable[..., Shadow]:
    def replay(interp: Interpreter, result: Any, *args: Value, **kwargs: Value) -> Shadow:
        graph = interp.graph
        if traits.draws and seeded.is_seeded(args):
            return seeded.drawn(interp, function, result, args[0])
        if traits.makes and (stream := seeded.make(interp, result, [*args, *kwargs.values()])) is not None:
            return stream
        for name in SHOWS.intersection(kwargs):
            if type(kwargs[name].real) in SCALARS:
                graph.depend(kwargs[name].shadow, kwargs[name].real)
        if tells_of_handled(function, kwargs):      # on a hit no exception is being handled
            kwargs["exc_info"] = Value(sys.exception(), graph.find(sys.exception()))
        if function is print:
            require_open(interp, kwargs.get("file"))
        if traits.require is not None:
            traits.require(interp, *args, **kwargs)
        if traits.shows:
            effect_callbacks.require(interp, function, list(args), kwargs, shown_to(traits, args, kwargs))
        values = [*args, *kwargs.values()]
        if function in WAITING:
            graph.note_wait()
        own = args[0] if args and result is args[0].real else None
        if own is None and type(result) not in SCALARS and (not traits.fresh or graph.find(result) is not None):
            raise Break("side-effect-call", f"{function.__qualname__}() returned a {type(result).__name__}")
        given: tuple[Shadow, ...] = tuple(snapshot(interp, value) for value in values)
        shown = tuple(item for item, value in list(zip(given, values))[traits.owner:] if not is_a(value.real, STREAM))
        target: Shadow = Const(function)
        if traits.callers:
            target, given = called_from(interp, target, given)
        stream = stream_of(interp, function, args) if traits.draws else None
        call = graph.call_effect(target, given, tuple(kwargs), shown, traits.clock or traits.ahead, interp.positions(), stream)
        if traits.changes:
            note_change(interp, args[0], traits.keeps)
        if own is not None or traits.returns is type(None):
            return own.shadow if own is not None else Const(None)
        returns = traits.returns or (type_drawn(interp, values[1:], result) if stream is not None else None)
        if type(result) in SCALARS:
            return Replayed(call, (), returns, result)
        whole = Replayed(call, (), None if type(result) is list else returns)
        if stream is not None and type(result) is list and is_of_scalars(result):
            for value in values[1:]:                # the length follows from one of them
                if type(value.real) in SCALARS:
                    graph.depend(value.shadow, value.real)
            return graph.create(result, ListState(drawn_items(whole, result, returns)))
        return new_object(interp, result, whole)
    return replay


def note_change(interp: Interpreter, value: Value, kept: frozenset[str] = frozenset()) -> None:
    """A repeated call may change attributes of an object: what is known of them, except for those `kept`, is no longer valid."""
    attributes = interp.graph.attributes(value.shadow) if isinstance(value.shadow, RefNode) else None
    if attributes is not None:
        interp.graph.note_volatile(attributes, kept)
        if isinstance(attributes.state, DictState) and (attributes.source is not None or is_foreign(attributes)):
            known = {name: attributes.state.items[name] for name in kept if name in attributes.state.items}
            attributes.state = DictState(known, complete=False)


def stream_of(interp: Interpreter, function: Any, args: tuple[Value, ...]) -> RefNode | None:
    """The stream of random numbers that a call draws from; None where the program may have written its own."""
    if function in OWN_STREAM:
        return interp.graph.constant(OWN_STREAM[function])  # type: ignore[return-value]
    node = args[0].shadow if args else None
    return node if isinstance(node, RefNode) and node.cls in GENERATORS else None


def is_of_scalars(items: Any) -> bool:
    """Whether a container holds scalars alone, and not too many of them to be known one by one."""
    return len(items) <= MOST_ITEMS and all(type(item) in SCALARS for item in items)


def type_drawn(interp: Interpreter, args: list[Value], result: Any) -> type | None:
    """The type of a scalar that was drawn, or of each scalar in a list, if it follows from the types of the arguments: of scalars,
    or of what a container holds."""
    for arg in args:
        shadows, real = [arg.shadow], arg.real
        if is_a(real, (tuple, list)):
            if not is_of_scalars(real) or has_unknown_items(interp, arg):
                return None
            shadows = items_of(interp, arg)
        kinds = {interp.graph.type_of(shadow) for shadow in shadows}
        if None in kinds or len(kinds) != 1:
            return None
    found = set(map(type, result)) if type(result) is list else {type(result)}
    return found.pop() if len(found) == 1 else None


def has_unknown_items(interp: Interpreter, value: Value) -> bool:
    """Whether a list's items cannot be known, or should not be guarded: one from outside that has grown since the first capture."""
    node = value.shadow
    if not isinstance(node, RefNode) or isinstance(node.state, ListState):
        return False
    return node.source is None or interp.recorder.seen.varies(Computed(len, (node.source,)), len(value.real))


def drawn_items(whole: Replayed, result: list[Any], kind: type | None) -> list[Shadow]:
    """The items of a list that a draw returned; `kind`: the type of all of them, if that is known."""
    items = [Expr(operator.getitem, (whole, Const(index))) for index in range(len(result))]
    return [Expr(kind, (item,)) for item in items] if kind in (int, float, str) else items  # type: ignore[return-value]


def new_object(interp: Interpreter, real: Any, value: Replayed) -> RefNode:
    """The node of an object that a call effect returned. Its attributes are what they are on each hit."""
    node = interp.graph.create(real, origin=value)
    namespace = instance_dict(real)
    if namespace is not None:
        own = Expr(instance_dict, (node,))
        items: dict[Any, Shadow] = {name: Expr(dict.__getitem__, (own, Const(name))) for name in namespace}
        node.attrs = interp.graph.create(namespace, DictState(items, complete=True), origin=node)
    return node


def called_from(interp: Interpreter, function: Shadow, args: tuple[Shadow, ...]) -> tuple[Shadow, tuple[Shadow, ...]]:
    """The same call from frames that are like the user's present ones."""
    frames = program_frames.program_frames(interp)
    scopes = tuple(scope.globals_node(interp, frame) for frame in frames)
    return Const(CallFrom(tuple(map(program_frames.stand_in_of, frames)))), (Build(tuple, scopes), function, *args)  # type: ignore[arg-type]


def methods(cls: type, *names: str) -> list[Any]:
    """Methods of a class, as its instances find them."""
    return [next(base.__dict__[name] for base in cls.__mro__ if name in base.__dict__) for name in names]


# -- printing ----------------------------------------------------------------------------------------------------------

effect(print, returns=type(None))


def is_open(stream: Any) -> bool:
    """Whether a stream of C is known to be open, for guards. Raises ValueError for one without a buffer."""
    closed = lookup_class(type(stream), "closed")
    return type(closed) is types.GetSetDescriptorType and not closed.__get__(stream)


def is_output_open() -> bool:
    """Whether what is printed goes to a stream that is known to be open."""
    return is_open(sys.stdout)


def require_open(interp: Interpreter, file: Value | None) -> None:
    """Guards that no code of the program's writes to the stream and, where a handler of the program's is in force, that it is open,
    or not."""
    source = None if file is None else getattr(file.shadow, "source", None)
    if file is None or file.real is None:
        interp.graph.require(Computed(effect_callbacks.writes_by_own_code, ()), "VALUE", False)
        if in_python(sys.stdout, "write"):
            names = interp.graph.attributes(interp.graph.constant(sys))  # type: ignore[arg-type]
            note_change(interp, Value(sys.stdout, interp.graph.dict_get(names, "stdout")))  # type: ignore[arg-type]
    elif source is not None:
        interp.graph.require(source, "TYPE", type(file.real))
    if file is not None and in_python(file.real, "write"):
        if source is None:
            raise Break("side-effect-call", f"print() to a {type(file.real).__name__} that the call makes")
        interp.graph.require(Computed(effect_callbacks.is_own_stream, (source,)), "VALUE", False)
        note_change(interp, file)
    if may_raise.is_watched(interp.frame):
        if file is None or file.real is None:
            interp.graph.require(Computed(is_output_open, ()), "VALUE", is_output_open())
        elif source is not None:
            interp.graph.require(Computed(is_open, (source,)), "VALUE", is_open(file.real))


@polyfill(print, applies=effect_callbacks.writes_by_own_code)
def print_(*args: Any, sep: Any = " ", end: Any = "\n", file: Any = None, flush: Any = False) -> None:
    """`print`, to a stream that the program has written."""
    stream = sys.stdout if file is None else file
    for index, arg in enumerate(args):
        if index:
            stream.write(" " if sep is None else sep)
        stream.write(str(arg))
    stream.write("\n" if end is None else end)
    if flush:
        stream.flush()


def prints_own_text(*args: Any, **kwargs: Any) -> bool:
    return any(map(effect_callbacks.has_own_text, args))


@polyfill(print, applies=prints_own_text)
def print_texts(*args: Any, sep: Any = " ", end: Any = "\n", file: Any = None, flush: Any = False) -> None:
    """`print` of objects whose text code of the program's writes."""
    stream = sys.stdout if file is None else file
    if stream is None:
        return
    for index, arg in enumerate(args):
        if index:
            print(end=" " if sep is None else sep, file=stream)
        print(str(arg), end="", file=stream)
    print(end="\n" if end is None else end, file=stream, flush=flush)


# -- logging and warnings ----------------------------------------------------------------------------------------------

effect(*methods(logging.Logger, "debug", "info", "warning", "warn", "error", "critical", "fatal", "log"), returns=type(None),
       callers=True, owner=True)
effect(*methods(logging.Logger, "exception"), returns=type(None), callers=True, owner=True)
effect(logging.exception, returns=type(None), callers=True)
effect(logging.debug, logging.info, logging.warning, logging.warn, logging.error, logging.critical, logging.fatal, logging.log,
       returns=type(None), callers=True)
effect(warnings.warn, returns=type(None), callers=True, fails=True)
effect(warnings._filters_mutated, returns=type(None))  # type: ignore[attr-defined]


def tells_of_handled(function: Any, kwargs: dict[str, Value]) -> bool:
    """Whether a call of logging is to tell of the exception that is being handled."""
    told = kwargs["exc_info"].real if "exc_info" in kwargs else function in TELL_OF_HANDLED
    return bool(told) and not is_a(told, (BaseException, tuple))


SHOWS = frozenset({"exc_info", "stack_info"})
TELL_OF_HANDLED = frozenset({logging.Logger.exception, logging.exception})


def no_exception(interp: Interpreter, *args: Value, **kwargs: Value) -> Break | None:
    """Why a call that tells of the exception being handled cannot be repeated, if it cannot."""
    known = interp.graph.find(sys.exception()) is not None
    return None if known else Break("side-effect-call", "the exception being handled was raised before the call")


@model(traceback.print_exc, traceback.format_exc, refuses=no_exception)
def tell_of_handled(interp: Interpreter, result: str | None, *args: Value, **kwargs: Value) -> Shadow:
    """`traceback.print_exc()` and `format_exc()`: the same of the exception itself, since on a hit none is being handled."""
    graph, function = interp.graph, traceback.print_exc if result is None else traceback.format_exc
    given = {**dict(zip(inspect.signature(function).parameters, args)), **kwargs}
    exception: Shadow = graph.find(sys.exception())  # type: ignore[assignment]
    target = Const(traceback.print_exception if result is None else text_of_exception)
    shown = exception, *(snapshot(interp, value) for value in given.values())
    call = graph.call_effect(target, shown, tuple(given), (exception,), positions=interp.positions())
    return Const(None) if result is None else Replayed(call, (), str, result)


def is_recorded(interp: Interpreter) -> bool:
    """Whether warnings are put into a list whose items the trace knows: one that `catch_warnings` of the program has made."""
    node = interp.graph.find(getattr(warnings._showwarnmsg_impl, "__self__", None))  # type: ignore[attr-defined]
    return node is not None and node.state is not None


def is_enabled(name: str, level: int) -> bool:
    """`logging.getLogger(name).isEnabledFor(level)`, for guards."""
    return logging.getLogger(name).isEnabledFor(level)


def can_be_found(logger: logging.Logger, level: Any) -> bool:
    return type(level) is int and logging.getLogger(logger.name) is logger


@model(logging.Logger.isEnabledFor, applies=can_be_found)
def is_enabled_for(interp: Interpreter, result: bool, logger: Value, level: Value) -> Shadow:
    """`logger.isEnabledFor(level)` is state that is read."""
    for value in (logger, level):
        interp.graph.depend(value.shadow, value.real)
    interp.graph.require(Computed(is_enabled, (Literal(logger.real.name), Literal(level.real))), "VALUE", result)
    return Const(result)


@model(logging.getLogger, applies=lambda name: type(name) is str)
def get_logger(interp: Interpreter, result: logging.Logger, name: Value) -> Shadow:
    """`logging.getLogger(name)`: always the same object."""
    interp.graph.depend(name.shadow, name.real)
    return interp.graph.external(result, Computed(logging.getLogger, (Literal(name.real),)))


# -- clocks ------------------------------------------------------------------------------------------------------------

WAITING = frozenset({time.sleep})
effect(time.time, time.perf_counter, time.monotonic, time.process_time, time.thread_time, returns=float, clock=True)
effect(time.time_ns, time.perf_counter_ns, time.monotonic_ns, time.process_time_ns, time.thread_time_ns, returns=int, clock=True)
effect(time.sleep, returns=type(None))
effect(time.strftime, time.ctime, time.asctime, returns=str)
effect(time.localtime, time.gmtime, datetime.datetime.now, datetime.datetime.utcnow, datetime.date.today, fresh=True)
PURE.update(methods(datetime.datetime, "strftime", "isoformat", "timestamp", "__str__", "__format__"))

# -- random numbers ----------------------------------------------------------------------------------------------------

effect(*methods(random.Random, "random", "uniform", "triangular", "gauss", "normalvariate", "lognormvariate", "expovariate",
                "vonmisesvariate", "gammavariate", "betavariate", "paretovariate", "weibullvariate"), returns=float, owner=True,
       draws=True)
effect(*methods(random.Random, "randint", "randrange", "getrandbits"), returns=int, owner=True, draws=True)
effect(*methods(random.Random, "choice", "seed", "randbytes"), owner=True, draws=True)
effect(*methods(random.Random, "sample", "choices"), fresh=True, owner=True, draws=True)
effect(os.urandom, secrets.token_bytes, returns=bytes)
effect(secrets.token_hex, secrets.token_urlsafe, returns=str)
effect(secrets.randbelow, secrets.randbits, returns=int)
effect(secrets.choice)
effect(uuid.uuid1, uuid.uuid4, fresh=True)

# -- files -------------------------------------------------------------------------------------------------------------

STREAMS = (io.TextIOWrapper, io.StringIO, io.BytesIO, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO)
STREAM_METHODS = ("read readline readlines readall read1 write writelines seek tell truncate flush close getvalue fileno isatty "
                  "readable writable seekable __enter__ __exit__").split()
effect(open, fresh=True, fails=True)
effect(*{method for cls in STREAMS for name in STREAM_METHODS if hasattr(cls, name) for method in methods(cls, name)},
       owner=True, fails=True)
effect(io.StringIO, io.BytesIO, fresh=True)
effect(*methods(pathlib.Path, "read_text", "write_text", "read_bytes", "write_bytes", "touch", "unlink"), fails=True)
effect(json.dump, applies=lambda *args, cls=None, default=None, **kwargs: len(args) == 2 and cls is None is default)
# What writes rows: to a stream of C, since what one in Python does to the program's objects would not be seen.
effect(csv.writer, fresh=True, owner=True, applies=lambda csvfile, *args, **kwargs: is_a(csvfile, STREAMS) and not (
    in_python(csvfile, "write")))
effect(type(csv.writer(io.StringIO())).writerow, returns=int, owner=True, fails=True,
       applies=lambda writer, row: type(row) in LISTS)
effect(*methods(pathlib.Path, "exists", "is_file", "is_dir", "is_symlink"), os.path.exists, os.path.lexists, os.path.isfile,
       os.path.isdir, os.path.islink, returns=bool, owner=True)
effect(os.path.getsize, returns=int, owner=True)
effect(os.path.getmtime, os.path.getctime, os.path.getatime, returns=float, owner=True)
effect(warnings._filters_mutated, os.putenv, os.unsetenv, returns=type(None), owner=True)  # type: ignore[attr-defined]
effect(os.mkdir, os.makedirs, os.remove, os.unlink, os.rmdir, os.rename, os.replace,
       *methods(pathlib.Path, "mkdir", "rmdir"), returns=type(None), owner=True, fails=True)
SIDE_EFFECTS.update({torch.save, torch.load})       # which run code of all kinds: as a whole, between two traces
PURE.add(os.fspath)
effect(os.getppid, returns=int)
effect(os.getcwd, returns=str)
effect(os.listdir, fresh=True, owner=True, fails=True)


# -- libraries that may be installed -----------------------------------------------------------------------------------

def named(module: str, cls: str, names: str) -> None:
    """Registers methods of a library by their names, for when the program calls them."""
    for name in names.split():
        NAMED_EFFECTS[module, f"{cls}.{name}"] = lambda function: effect(function, owner=True, changes=True)


for _module in ("torch.utils.tensorboard.writer", "tensorboardX.writer"):
    named(_module, "SummaryWriter", "add_scalar add_scalars add_histogram add_text add_image add_images add_figure add_hparams "
                                    "flush close")
named("wandb.sdk.wandb_run", "Run", "log")


def of_stream(function: types.FunctionType) -> Callable[[Any], None] | None:
    """What registers a method by which an installed package's stream is written to."""
    if function.__name__ not in WRITING or effect_callbacks.is_own(function):
        return None
    owner: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split(".")[:-1]:
        owner = getattr(owner, name, None)
    is_stream = is_a(owner, type) and issubclass(owner, io.IOBase)
    return (lambda method: effect(method, owner=True, changes=True, fails=True, applies=to_stream)) if is_stream else None


def to_stream(stream: Any, *args: Any) -> bool:
    return not effect_callbacks.is_own_stream(stream)


WRITING = frozenset({"write", "writelines", "flush"})
FAMILIES.append(of_stream)


def numpy_draws() -> Iterable[Any]:
    """The functions of numpy that draw from a stream and change nothing else."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return ()
    names = ("rand randn randint random random_sample random_integers uniform normal standard_normal permutation permuted integers "
             "beta binomial exponential gamma laplace poisson multinomial bytes seed choice triangular lognormal chisquare "
             "dirichlet logistic multivariate_normal geometric rayleigh standard_exponential standard_gamma weibull "
             "vonmises").split()
    return {*(function for cls in (numpy.random.RandomState, numpy.random.Generator) for name in names
            if hashable(function := getattr(cls, name, None)) and function is not None)}


effect(*numpy_draws(), fresh=True, owner=True, draws=True)


def streams() -> Iterable[type]:
    """The classes of streams of random numbers, whose methods do nothing but draw from them."""
    numpy = sys.modules.get("numpy")
    return random.Random, random.SystemRandom, *((numpy.random.RandomState, numpy.random.Generator) if numpy is not None else ())


GENERATORS = Classes(streams())


def makers() -> Iterable[Any]:
    """What makes streams that a seed tells all of."""
    numpy = sys.modules.get("numpy")
    return random.Random, *((numpy.random.RandomState, numpy.random.default_rng) if numpy is not None else ())


effect(*makers(), fresh=True, makes=True)
# Functions that act on one stream, which is not among their arguments.
OWN_STREAM = {module.seed: module.mtrand._rand for module in [sys.modules.get("numpy.random")] if module is not None}
effect(*OWN_STREAM, returns=type(None), draws=True)
SHUFFLES = [vars(cls)["shuffle"] for cls in GENERATORS if "shuffle" in vars(cls)]
SIDE_EFFECTS.update(SHUFFLES)


def prepare_shuffle(interp: Interpreter, stream: Value, items: Value) -> None:
    """Before items are moved about: which there are; and all about them, if where they go is constant."""
    items_of(interp, items)
    seeded.hold_arguments(interp, stream, items)


@model(*SHUFFLES, applies=lambda stream, items: type(stream) in GENERATORS and type(items) is list and is_of_scalars(items),
       prepare=prepare_shuffle)
def shuffle(interp: Interpreter, result: None, stream: Value, items: Value) -> Shadow:
    """`stream.shuffle(items)` of a list of scalars."""
    graph, state = interp.graph, items_of(interp, items)
    if seeded.is_seeded((stream,)):
        state[:] = map(Const, items.real)
        graph.effect(list.__setitem__, items.shadow, Const(slice(None)), Build(tuple, tuple(state)))  # type: ignore[arg-type]
        return seeded.drawn(interp, shuffle, None, stream)
    kinds = {graph.type_of(item) for item in state}
    given = stream.shadow, Build(tuple, tuple(state))
    call = graph.call_effect(Const(shuffled), given, (), (), False, interp.positions(), stream_of(interp, shuffle, (stream,)))
    state[:] = drawn_items(Replayed(call, ()), items.real, kinds.pop() if len(kinds) == 1 else None)
    graph.effect(list.__setitem__, items.shadow, Const(slice(None)), Build(tuple, tuple(state)))  # type: ignore[arg-type]
    return Const(None)
