"""Values that only a hit can compute: what a tensor holds, what a call effect returned, and all that follows from them.

They may be passed on, stored, formatted and calculated with: the mock function does the same again. What the program
decides by one of them no guard can hold: `RefGraph.depend` ends the trace there.
"""
from __future__ import annotations

import numbers
import operator
import types
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._tensor_str import PRINT_OPTS

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import DISABLED, hashable, model
from capture.interp.core.special import CONTAINERS, is_plain
from capture.interp.function_models.shadows import depend_type, elements, items_of, shadow_of
from capture.interp.recording.constant_tensors import is_fixed
from capture.interp.recording.fx_recorder import tensors_in
from capture.operators.properties import REPEATABLE_READERS
from capture.refgraph.effects import Keywords, Replayed, arranged, is_foreign
from capture.refgraph.graph import RefGraph
from capture.refgraph.identical import FORMS, LISTS, Classes, is_one_of
from capture.refgraph.keys import KeyTable, held_by, table
from capture.refgraph.lookup import lookup_class, maxlen_of, parts
from capture.refgraph.memory import ADDRESSES, PLAIN_TENSORS, storage_id, storage_of
from capture.refgraph.ndarrays import plain_number
from capture.refgraph.node import (
    SCALARS,
    Build,
    Const,
    DictState,
    Display,
    Expr,
    External,
    ListState,
    RefNode,
    SetState,
    Shadow,
    TensorState,
    WrittenDict,
    source_of,
)
from capture.refgraph.result_types import RETURNS
from capture.refgraph.runtime import dress, frozen
from capture.refgraph.set_orders import filled, filling
from capture.refgraph.source import Computed, Literal, Source
from capture.refgraph.state_queries import joined

# What asks a tensor for its values in a way that can be asked again of a copy: not for its memory, not for its identity.
BUILTIN_READERS = frozenset({int, float, complex, bool, operator.not_, operator.index, str, repr, format})
# What the program decides by (branches ask for the `truth`), and containers in which a key decides.
DECIDERS = frozenset({operator.truth, range})
MEASURES = frozenset({len, bool, operator.truth, operator.not_})
TYPE_QUESTIONS = frozenset({isinstance, type, callable, operator.is_, operator.is_not})
LOOK_UPS = frozenset({operator.getitem, operator.setitem, operator.delitem, operator.contains})
# Functions of C: those written in Python do not run inside of guards.
COMPUTING = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, type)
KEYS = Classes((tuple, torch.Size))         # that are looked up as what they hold
LOOKED_UP = (list, tuple, dict, set, frozenset, deque)
MOST_ITEMS = 256        # of a list that `tolist` returned and that are known one by one
DEEPEST = 8


def is_replayed(shadow: Shadow | None) -> bool:
    """Whether a value is computed anew on every hit."""
    if isinstance(shadow, Expr):
        return shadow.op is not id and source_of(shadow) is None
    if isinstance(shadow, Build):
        return shadow.source is None and any(map(is_replayed, shadow.items))
    if isinstance(shadow, RefNode) and shadow.created:
        state, items = shadow.state, ()
        if isinstance(state, WrittenDict):
            return True
        if isinstance(state, (ListState, DictState, SetState)):
            items = state.distinct if isinstance(state, ListState) else (  # type: ignore[assignment]
                state.items.values() if isinstance(state.items, dict) else state.items)
        return is_foreign(shadow) or any(is_replayed(item) for item in items if not isinstance(item, RefNode))
    return False


def is_measured(function: Callable[..., Any], values: Sequence[Value]) -> bool:
    """Whether a call only asks for the length of a list, tuple or dict of the trace, which its items do not change."""
    if function not in MEASURES or len(values) != 1:
        return False
    shadow, real = values[0].shadow, values[0].real
    if type(real) is tuple:
        return isinstance(shadow, Build)
    if not isinstance(shadow, RefNode) or not shadow.created or is_foreign(shadow) or isinstance(shadow.origin, Expr):
        return False
    return type(real) is list and type(shadow.state) is ListState or type(real) is dict and type(shadow.state) is DictState


def lazily(interp: Interpreter, function: Callable[..., Any], args: tuple[Value, ...], kwargs: dict[str, Value],
           result: Any) -> Shadow | None:
    """The shadow of the result of a pure function, if an argument changes from call to call (a replayed value, or one that an
    earlier capture found to differ); else None."""
    values = [*args, *kwargs.values()]
    if (function is float or function is int) and len(values) == 1 and is_number_of_numpy(values[0]):
        node = interp.graph.touch(args[0].shadow)  # type: ignore[arg-type]
        if node.source is not None:
            return Expr(function, (External(Computed(plain_number, (node.source,)), args[0].real.item()),))
        interp.recorder.arrays.keep(node)
        return Expr(function, (node.origin if isinstance(node.origin, Replayed) else node,))
    if type(result) not in SCALARS or is_measured(function, values):
        return None
    known = is_a(function, COMPUTING) and function not in DECIDERS
    # All of them are asked: each is remembered.
    changing = known and any([varies(interp, value.shadow, value.real) for value in values])  # noqa: C419
    replayed = any(is_replayed(value.shadow) for value in values)
    decides = type(result) is bool and not all(is_read_by_guards(value.shadow) for value in values)
    if not replayed and (decides or not changing):
        return None
    operands = tuple(snapshot(interp, value, entry=True) for value in values)
    op, operands = arranged(Keywords(function, tuple(kwargs)) if kwargs else function, operands)
    computed = interp.graph.computed(op, operands, result)
    source = source_of(computed)
    if source is not None and function not in RETURNS:      # it may raise
        interp.graph.require(source, "TYPE", type(result))
    return computed


def is_read_by_guards(shadow: Shadow | None) -> bool:
    """Whether guards can compute a value: one that is made of scalars which were there at entry."""
    if isinstance(shadow, Build):
        return all(map(is_read_by_guards, shadow.items))
    if isinstance(shadow, Const) and type(shadow.value) is tuple:
        return all(is_read_by_guards(Const(item)) for item in shadow.value)
    return shadow is not None and source_of(shadow) is not None


def varies(interp: Interpreter, shadow: Shadow | None, real: Any) -> bool:
    """Whether a value from outside, or a part of a composite, differed in an earlier capture, or follows from sizes that did."""
    if isinstance(shadow, External) and interp.recorder.seen.varies(shadow.source, real) or interp.graph.sizes.is_free(shadow):
        return True
    if isinstance(shadow, Expr):
        return any([varies(interp, arg, getattr(arg, "value", None)) for arg in shadow.args if isinstance(arg, (External, Expr))])  # noqa: C419
    if isinstance(shadow, Build) and shadow.source is None:
        items = zip(shadow.items, parts(real), strict=True)
    elif isinstance(shadow, RefNode) and shadow.created and type(real) is list and isinstance(shadow.state, ListState):
        items = zip(shadow.state.distinct, real)
    else:
        return False
    return any([varies(interp, item, part) for item, part in items])  # noqa: C419


def path_of_key(interp: Interpreter, key: Value) -> Source | None:
    """The path of a key that differed in an earlier capture or is computed from such; None for others. It is a scalar, or a tuple
    of scalars, dtypes, devices and such tuples."""
    if type(key.real) not in SCALARS and not isinstance(key.shadow, Build):
        return None
    return path_of_part(key) if any([varies(interp, part.shadow, part.real) for part in parts_of_key(key)]) else None  # noqa: C419


def path_of_part(part: Value) -> Source | None:
    """The path of a key, or of a part of one."""
    shadow, real = part.shadow, part.real
    if type(real) in KEYS:
        sources = [path_of_part(item) for item in items_of_key(part)]
        return None if None in sources else Computed(joined, tuple(sources))  # type: ignore[arg-type]
    if type(real) in FORMS:
        return Literal(real) if isinstance(shadow, Const) else shadow.source if isinstance(shadow, RefNode) else None
    return source_of(shadow) if type(real) in SCALARS and shadow is not None else None


def items_of_key(key: Value) -> list[Value]:
    """The items of a key that is a tuple; it itself stands for all where nothing is known of them."""
    if isinstance(key.shadow, Build):
        return [Value(item, part) for item, part in zip(key.real, key.shadow.items, strict=True)]
    return [Value(item, Const(item)) for item in key.real] if isinstance(key.shadow, Const) else [Value(0, None)]


def parts_of_key(key: Value) -> list[Value]:
    """All that a key holds, in tuples that it consists of."""
    return [part for item in items_of_key(key) for part in parts_of_key(item)] if type(key.real) in KEYS else [key]


def is_changing(interp: Interpreter, key: Value) -> bool:
    """Whether a scalar, or a tuple as `path_of_key` has them, that is only used as a key or index differs from call to call; then
    its type is guarded, which hashes it."""
    shadow, sizes = key.shadow, interp.graph.sizes
    if isinstance(shadow, Build):
        if path_of_key(interp, key) is None:
            return False
    else:
        if not isinstance(shadow, (External, Expr)) or type(key.real) not in SCALARS:
            return False
        varies(interp, shadow, key.real)
        source = source_of(shadow)
        if not (is_replayed(shadow) if source is None else sizes.is_free(shadow) or interp.recorder.seen.varies(source, key.real)):
            return False
    for part in parts_of_key(key):
        if not sizes.is_free(part.shadow):      # an int, as all sizes are
            depend_type(interp, part)
    return True


def is_number_of_numpy(value: Value) -> bool:
    """Whether a value is an immutable number of numpy, which is a new object each time."""
    return isinstance(value.shadow, RefNode) and type(value.real).__module__ == "numpy" and is_a(value.real, numbers.Real)


# -- what is shown to others -------------------------------------------------------------------------------------------

def snapshot(interp: Interpreter, value: Value, depth: int = DEEPEST, entry: bool = False) -> Shadow:
    """A value as it is now, for a call that the mock function makes later: tensors, and containers that the trace made, may
    change until then. The copies are for being looked at: their identity is another. entry: containers from outside may change as
    well, since the call does not keep its place among the effects."""
    shadow, real = value.shadow, value.real
    if isinstance(shadow, External):
        depend_type(interp, value)
        return shadow
    if depth == 0:
        raise Break("opaque-call", "a deeply nested or recursive container was printed")
    if isinstance(shadow, RefNode) and type(shadow.state) is TensorState:
        return show_tensor(interp, shadow, real)
    if isinstance(shadow, Build) and issubclass(shadow.cls, tuple):
        items = snapshots(interp, shadow.items, parts(real), depth, entry)
        return shadow if items == shadow.items else Build(shadow.cls, items, None, shadow.maker)
    if not isinstance(shadow, RefNode) or not shadow.created and not entry:
        return shadow
    if is_one_of(type(real), list, deque) and (isinstance(shadow.state, ListState) or not shadow.created):
        shown = snapshots(interp, items_of(interp, value), real, depth, entry)
        return Display(list, shown) if type(real) is list else Expr(deque, (Build(tuple, shown), Const(maxlen_of(real))))
    if type(real) is set and (isinstance(shadow.state, SetState) or not shadow.created):
        shadows = table(real, zip(real, elements(interp, value), strict=True))
        known = table(real, ((member, shadows[member]) for member in (shadow.state.items if shadow.created else real)))
        return filled(set, filling(real, known))
    if type(real) is dict and (isinstance(shadow.state, DictState) or not shadow.created):
        held = held_by(real)
        if isinstance(held, KeyTable):
            raise Break("opaque-call", "a dict was formatted whose keys Python code hashes")
        return Display(dict, tuple(part for key in interp.graph.dict_keys(shadow) for part in (
            shadow_of(interp, key), snapshot(interp, Value(held[key], interp.graph.dict_get(shadow, key)), depth - 1, entry))))
    if entry and is_a(real, CONTAINERS):
        raise Break("opaque-call", f"a {type(real).__name__} was formatted")
    return shadow


def snapshots(interp: Interpreter, shadows: Iterable[Shadow], reals: Iterable[Any], depth: int, entry: bool) -> tuple[Shadow, ...]:
    """The items of a container of this depth, as they are now."""
    return tuple(snapshot(interp, Value(real, shadow), depth - 1, entry) for shadow, real in zip(shadows, reals, strict=True))


def show_tensor(interp: Interpreter, node: RefNode, real: torch.Tensor) -> Shadow:
    """A tensor as it is now, which prints as it prints now."""
    interp.graph.touch(node)
    values = interp.recorder.snapshot(node, real)
    if not real.requires_grad and type(real) is torch.Tensor:
        return values
    if type(real) is torch.nn.Parameter and not real.requires_grad:
        return Expr(frozen, (values,))
    if not real.requires_grad or type(real) not in PLAIN_TENSORS:
        if values.cls is not type(real) or lookup_class(type(real), "__repr__") is not torch.Tensor.__repr__:
            raise Break("opaque-call", f"a {type(real).__name__} was printed")
        if not real.requires_grad:
            return values
    name: Shadow = Const(name_of_grad_fn(real))
    if node.source is not None and not interp.graph.written_since(0, storage_id(real)):
        name = interp.graph.external(name_of_grad_fn(real), Computed(name_of_grad_fn, (node.source,)))     # another one's, perhaps
    return Expr(dress, (values, Const(type(real)), name))


def name_of_grad_fn(tensor: torch.Tensor) -> str | None:
    """The name of a tensor's autograd node, as torch prints it."""
    grad_fn = tensor.grad_fn
    if grad_fn is None:
        return None
    name = type(grad_fn).__name__
    return grad_fn.name().rpartition("::")[2] if name == "CppFunction" else name


# -- text --------------------------------------------------------------------------------------------------------------

def is_text_of_tensors(*args: Any, **kwargs: Any) -> bool:
    """Whether tensors are among what is formatted, in containers too, and besides them only plain data."""
    found: list[bool] = []

    def is_known(x: Any, depth: int) -> bool:
        if type(x) in PLAIN_TENSORS:
            found.append(True)
        elif (type(x) is dict or type(x) in LISTS) and depth:
            return all(is_known(item, depth - 1) for item in (x.items() if type(x) is dict else x))
        else:
            return is_plain(x)
        return True
    return all(is_known(x, DEEPEST) for x in (*args, *kwargs.values())) and bool(found)


# Sets how tensors are printed. A hit writes their texts at its end: no trace can hold that.
DISABLED.add(torch.set_printoptions)


def print_options() -> tuple[Any, ...]:
    """How tensors are printed."""
    return PRINT_OPTS.precision, PRINT_OPTS.threshold, PRINT_OPTS.edgeitems, PRINT_OPTS.linewidth, PRINT_OPTS.sci_mode


def depend_options(graph: RefGraph) -> None:
    """Guards how tensors are printed: as when the trace wrote a text."""
    graph.require(Computed(print_options, ()), "VALUE", print_options())


def text(function: Callable[..., Any], applies: Callable[..., bool] = is_text_of_tensors) -> None:
    """Registers a function that formats what it is given: it is called again on every hit."""
    @model(function, applies=applies)
    def write(interp: Interpreter, result: str, *args: Value, **kwargs: Value) -> Shadow:
        depend_options(interp.graph)
        operands = tuple(snapshot(interp, value, entry=True) for value in (*args, *kwargs.values()))
        return Expr(Keywords(function, tuple(kwargs)) if kwargs else function, operands)


for _function in (str, repr, ascii, format, str.format):
    text(_function)
for _function in (operator.mod, operator.imod, str.__mod__):  # type: ignore[assignment]
    text(_function, lambda template, values: type(template) is str and is_text_of_tensors(values))


# -- what tensors hold -------------------------------------------------------------------------------------------------

# Methods of storages, which tensors may share with others that capture does not know.
SIZES = frozenset({torch.UntypedStorage.nbytes, torch.UntypedStorage.size, torch.UntypedStorage.__len__})
TEXT = frozenset({str, repr, format, torch.Tensor.__repr__, torch.Tensor.__format__})


def is_repeatable(function: Callable[..., Any], name: str, kwargs: dict[str, Value]) -> bool:
    """Whether a hit can read the same out of a tensor by calling `function` (of this name) again."""
    if kwargs:
        return False
    known = any(function in readers for readers in (ADDRESSES, SIZES, BUILTIN_READERS))
    return known or function not in DECIDERS and name in REPEATABLE_READERS


def is_known(interp: Interpreter, args: list[Value]) -> bool:
    """Whether what is read out of these tensors follows from constants."""
    found = list(tensors_in(args))
    return bool(found) and all(is_fixed(interp.graph, tensor) for tensor in found) and all(
        is_a(arg.real, torch.Tensor) or is_plain(arg.real) and isinstance(arg.shadow, Const) for arg in args)


def decides(interp: Interpreter, function: Callable[..., Any], values: list[Value]) -> bool:
    """Whether a call is certain to end the trace, because a replayed value decides what it does."""
    if not hashable(function) or not values:
        return False
    if function in LOOK_UPS:
        stores = function is operator.setitem and is_a(values[0].real, dict)
        return len(values) > 1 and is_a(values[0].real, LOOKED_UP) and is_replayed(values[1].shadow) and not stores
    if function in TYPE_QUESTIONS:
        exprs = [value.shadow for value in values if isinstance(value.shadow, Expr)]
        return any(is_replayed(shadow) and interp.graph.type_of(shadow) is None for shadow in exprs)
    return function in DECIDERS and not is_measured(function, values) and any(is_replayed(value.shadow) for value in values)


def read(interp: Interpreter, function: Callable[..., Any], args: list[Value], result: Any) -> Shadow:
    """The shadow of what `function` has read out of tensors: `t.item()`, `float(t)`, `str(t)`."""
    if function in TEXT:
        depend_options(interp.graph)
        return Expr(function, tuple(snapshot(interp, value) for value in args))
    if function in ADDRESSES and has_moved(args[0]):
        raise Break("data-dependent", "the address of a tensor which was given other memory is asked for")
    if function in ADDRESSES or is_a(args[0].real, torch.UntypedStorage):
        return Expr(function, (args[0].shadow,))
    operands = tuple(interp.recorder.snapshot(value.shadow, value.real) if is_a(value.real, torch.Tensor) else value.shadow  # type: ignore[arg-type]
                     for value in args)
    if type(result) is list:
        tensor = args[0].real
        known = not args[0].shadow.state.dynamic and tensor.numel() <= MOST_ITEMS  # type: ignore[attr-defined]
        whole = Expr(function, operands)
        return listed(interp, whole, result) if known else interp.graph.create(result, origin=whole)
    if type(result) not in SCALARS:
        raise Break("data-dependent", "the values of a tensor are asked for")
    return interp.graph.computed(function, operands, result)


def has_moved(tensor: Value) -> bool:
    """Whether a tensor from outside has other memory than at entry, whose address a path would tell."""
    node = tensor.shadow
    if not isinstance(node, RefNode) or node.source is None or type(node.state) is not TensorState:
        return False
    return storage_of(tensor.real) != node.state.storage


def listed(interp: Interpreter, whole: Shadow, result: list[Any]) -> Shadow:
    """The shadow of a list, which is computed as a whole, item by item."""
    items = [Expr(operator.getitem, (whole, Const(i))) for i in range(len(result))]
    return interp.graph.create(result, ListState([
        listed(interp, item, part) if type(part) is list else item for item, part in zip(items, result)]))
