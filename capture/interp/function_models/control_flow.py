"""Operators of torch that call functions of the program: `torch.cond`, `map`, `while_loop`, `scan`, `associative_scan`.

In eager mode torch compiles such a call, to trace the functions; here they are inlined and become graphs
(`control_flow_bodies.py`). Calls that torch cannot trace, or that it makes without these operators, are made by torch itself
between two traces.
"""
from __future__ import annotations

import operator as operator_module
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._higher_order_ops import utils
from torch._higher_order_ops.associative_scan import AssociativeScanOp
from torch._higher_order_ops.cond import CondOp, cond_op
from torch._higher_order_ops.map import MapImpl
from torch._higher_order_ops.scan import ScanOp
from torch._higher_order_ops.while_loop import WhileLoopOp
from torch.utils import _pytree as pytree

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Abandoned, Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import model, polyfill
from capture.interp.function_models.shadows import items_of
from capture.interp.recording import control_flow_bodies
from capture.interp.recording.control_flow_bodies import Body
from capture.interp.recording.fx_recorder import tensors_in
from capture.interp.recording.writes import versions_of
from capture.refgraph.identical import LISTS, Classes, is_one_of
from capture.refgraph.memory import PLAIN_TENSORS
from capture.refgraph.node import Build, Const, RefNode, Shadow, TensorState
from capture.torch_versions import existing


class _Compiling(threading.local):
    """Whether torch would compile the call that is being made: else an operator calls what it is given."""

    depth = 0


COMPILING = _Compiling()


def enter() -> None:
    """What torch would compile begins."""
    COMPILING.depth += 1


def leave() -> None:
    """It is over."""
    COMPILING.depth -= 1


def is_nested() -> bool:
    """Whether what torch would compile is part of a function that it compiles as well."""
    return COMPILING.depth > 1


@model(enter)
def entered(interp: Interpreter, result: None) -> Shadow:
    """Nothing may be cut before `leave`."""
    interp.opened(interp.graph.create(object()))
    interp.try_out()
    return Const(None)


@model(leave)
def left(interp: Interpreter, result: None) -> Shadow:
    interp.blocks.end()
    interp.tried_out()
    return Const(None)


@model(is_nested)
def asked_for_nesting(interp: Interpreter, result: bool) -> Shadow:
    return Const(result)


def is_compiling(*args: Any, **kwargs: Any) -> bool:
    """Whether the trace is in a call that torch would compile."""
    return COMPILING.depth > 0


def takes_graphs(functions: Sequence[Any]) -> bool:
    """Whether torch has traced what an operator calls: with us as a backend of `torch.compile`."""
    return bool(functions) and all(isinstance(function, fx.GraphModule) for function in functions)


def attempt(fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], whole: Callable[..., Any], *given: Any) -> Any:
    """A call that torch would compile. Where it is abandoned, torch makes the call of which it is a part: `whole(*given)`, the
    outermost one. (Only torch knows what Dynamo makes of a function that raises, writes to its operands, or does not fit.)"""
    enter()
    try:
        return fn(*args, **kwargs)
    except Abandoned:
        if is_nested():
            raise
    finally:
        leave()
    return natively(whole, *given)


def compile_and_call(fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> Any:
    """The call of a function that torch would compile."""
    return attempt(fn, args, kwargs or {}, COMPILE_AND_CALL[0], fn, args, kwargs)


# In torch 2.11 each operator calls `torch.compile` itself, which is left to torch.
COMPILE_AND_CALL = existing(utils, "_hop_compile_and_call")
for _function in COMPILE_AND_CALL:
    polyfill(_function, applies=lambda fn, args, kwargs=None: True)(compile_and_call)


CONTAINERS = Classes((tuple, list, dict))        # those that torch takes apart; of others it says that they are no operands


def is_valid(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> bool:
    """Whether `torch.cond` finds nothing wrong with its arguments, and takes both branches."""
    return is_a(pred, torch.Tensor) and pred.numel() == 1 and callable(true_fn) and callable(false_fn) and (
        type(operands) in LISTS and _consists_of_tensors(operands))


def _consists_of_tensors(tree: Any) -> bool:
    if type(tree) in CONTAINERS:
        return all(map(_consists_of_tensors, tree.values() if is_one_of(type(tree), dict) else tree))
    return is_a(tree, torch.Tensor)


@polyfill(torch.cond, applies=is_valid)
def conditionally(pred: torch.Tensor, true_fn: Any, false_fn: Any, operands: Sequence[Any] = ()) -> Any:
    """`torch.cond(…)`, which imports Dynamo to ask whether that can be used. Its operator takes a list of tensors."""
    given = pred, true_fn, false_fn, operands
    leaves, spec = pytree.tree_flatten(operands)
    if len(leaves) == len(operands) and all(map(operator_module.is_, leaves, operands)):
        return attempt(cond_op, given, {}, torch.cond, *given)
    return attempt(cond_op, (pred, of_leaves(true_fn, spec), of_leaves(false_fn, spec), leaves), {}, torch.cond, *given)


def of_leaves(function: Callable[..., Any], spec: Any) -> Callable[..., Any]:
    """The function, given the leaves of its arguments. It may not change these: torch refuses that."""
    def called(*leaves: Any) -> Any:
        arguments = pytree.tree_unflatten(leaves, spec)
        result = function(*arguments)
        after, as_is = pytree.tree_flatten(arguments)
        if as_is != spec or any(map(operator_module.is_not, after, leaves)):
            raise Abandoned
        return result
    return called


# -- operators ---------------------------------------------------------------------------------------------------------

def operator(cls: Any, *, functions: int, first: int = 0) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers what an operator means: `shape(*lists)` gives the operands of its functions, and which of them are slices; it takes
    `functions` callables after so many other arguments, and then lists of tensors."""
    def register(shape: Callable[..., tuple[tuple[Any, ...], tuple[bool, ...]]]) -> Callable[..., Any]:
        @polyfill(cls.__call__, applies=is_compiling)
        def call(op: Any, *args: Any, **named: Any) -> Any:
            callables, lists = args[first:first + functions], (*args[first + functions:], *named.values())
            operands, sliced = shape(*lists)
            made = []
            try:
                for function in callables:
                    body, samples = begin(sliced, *operands)
                    try:
                        leaves, spec = pytree.tree_flatten(function(*samples))
                        end(body, first == 0, spec, *leaves)
                    except Exception:
                        abandon(body)
                        raise Abandoned from None
                    except BaseException:
                        abandon(body)
                        raise
                    made.append(body)
            except Exception:
                raise Abandoned from None
            leaves, spec = apply(op, tuple(made), spec, args[:first], tuple(map(tuple, lists)))
            return pytree.tree_unflatten(leaves, spec)

        @polyfill(cls.__call__, applies=lambda op, *args, **named: takes_graphs(args[first:first + functions]))
        def call_traced(op: Any, *args: Any, **named: Any) -> Any:
            return attempt(op, args, named, op, *args, *named.values())
        return shape
    return register


@operator(CondOp, first=1, functions=2)
def cond(operands: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[bool, ...]]:
    """`cond(pred, true_fn, false_fn, operands)`: of the operands it takes those that a branch uses, as all else from around it."""
    if type(operands) not in LISTS:
        raise Abandoned
    return tuple(operands), (False,) * len(operands)


@operator(MapImpl, functions=1)
def map_over(xs: Sequence[Any], others: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[bool, ...]]:
    """`map_impl(f, xs, pos_args)`."""
    return (*xs, *others), (True,) * len(xs) + (False,) * len(others)


@operator(WhileLoopOp, functions=2)
def while_loop(carried: Sequence[Any], others: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[bool, ...]]:
    """`while_loop(cond_fn, body_fn, carried_inputs, additional_inputs)`."""
    return (*carried, *others), (False,) * (len(carried) + len(others))


@operator(ScanOp, functions=1)
def scan(init: Sequence[Any], xs: Sequence[Any], others: Sequence[Any] = ()) -> tuple[tuple[Any, ...], tuple[bool, ...]]:
    """`scan(combine_fn, init, xs, additional_inputs)`."""
    return (*init, *xs, *others), (False,) * len(init) + (True,) * len(xs) + (False,) * len(others)


@operator(AssociativeScanOp, functions=1)
def associative_scan(xs: Sequence[Any], others: Sequence[Any] = ()) -> tuple[tuple[Any, ...], tuple[bool, ...]]:
    """`associative_scan(combine_fn, xs, additional_inputs)`."""
    return (*xs, *xs, *others), (True,) * (2 * len(xs)) + (False,) * len(others)


# -- their functions ---------------------------------------------------------------------------------------------------

def begin(sliced: tuple[bool, ...], *operands: torch.Tensor) -> tuple[Body, tuple[torch.Tensor, ...]]:
    """A function is about to be called, on copies of operands."""
    body = Body(sliced, operands)
    return body, body.samples


def end(body: Body, has_parameters: bool, spec: Any, *outputs: Any) -> None:
    """It has returned."""
    body.undo()


def abandon(body: Body) -> None:
    """It has raised, or is not to be recorded."""
    body.undo()


def natively(function: Callable[..., Any], *args: Any) -> Any:
    """What torch itself does."""
    return function(*args)


def not_to_be_copied(interp: Interpreter, sliced: Value, *operands: Value) -> Break | None:
    """Why an operator is left to torch."""
    for value in operands:
        known = isinstance(value.shadow, RefNode) and type(value.shadow.state) is TensorState
        if not known or type(value.real) not in PLAIN_TENSORS or value.real.layout is not torch.strided:
            return Break("opaque-call", f"torch's control flow on a {type(value.real).__name__}")
    return None


@model(begin, refuses=not_to_be_copied)
def began(interp: Interpreter, result: tuple[Body, tuple[torch.Tensor, ...]], sliced: Value, *operands: Value) -> Shadow:
    """What follows, up to `end`, is the function's."""
    result[0].depth = interp.frame.depth  # type: ignore[union-attr]
    samples = control_flow_bodies.begin(interp.recorder, result[0], sliced.real, [value.shadow for value in operands])  # type: ignore[misc]
    return Build(tuple, (interp.graph.create(result[0]), Build(tuple, tuple(samples))))


def take_out(interp: Interpreter, body: Value, has_parameters: Value, spec: Value, *outputs: Value) -> None:
    """Before `end`."""
    if not all(is_a(value.real, torch.Tensor) for value in outputs):
        raise Break("opaque-call", "a body of torch's control flow returns what is no tensor")
    control_flow_bodies.end(interp.recorder, body.real, spec.real, [value.real for value in outputs], has_parameters.real)


@model(end, prepare=take_out)
def ended(interp: Interpreter, result: None, *args: Value) -> Shadow:
    return Const(None)


@model(abandon)
def abandoned(interp: Interpreter, result: None, body: Value) -> Shadow:
    control_flow_bodies.abandon(interp.recorder)
    return Const(None)


@model(natively, refuses=lambda interp, *args: Break("opaque-call", "a function called by torch's control flow raised"))
def left_to_torch(interp: Interpreter, result: Any, *args: Value) -> Shadow:
    raise Break("opaque-call", "torch's control flow")


def apply(op: Any, made: tuple[Body, ...], spec: Any, before: tuple[Any, ...], lists: tuple[Any, ...]) -> tuple[list[Any], Any]:
    """The results of an operator, as a list, and the structure that they make."""
    plan = made[0].plan
    if plan is None:                # the trace was dropped
        raise Abandoned
    lifted = tuple(node.real for node in plan.lifted)
    return list(op(*before, *plan.modules, *lists[:-1], (*(() if is_a(op, CondOp) else lists[-1]), *lifted))), spec


def apart(op: Any, lists: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor] | None:
    """The operands that Dynamo gives a body as they are, or in slices, and not as copies. It refuses a body if two of the tensors
    that it takes share memory; None if it takes any."""
    if is_a(op, AssociativeScanOp) or is_a(op, CondOp) and not torch.is_grad_enabled():
        return None
    return [operand for operands in lists for operand in operands] if is_a(op, MapImpl) else []


def prepare(interp: Interpreter, op: Value, made: Value, spec: Value, before: Value, lists: Value) -> None:
    """Before `apply`: makes modules of the functions. Raises Break where they do not fit each other, or the operands."""
    recorded = [body.recorded for body in made.real]
    bare = [is_a(op.real, WhileLoopOp) and place == 0 for place in range(len(recorded))]
    last = recorded[-1].outputs
    expected = {CondOp: lambda: recorded[0].outputs, WhileLoopOp: lambda: lists.real[0],
                ScanOp: lambda: lists.real[0]}.get(type(op.real))
    carried = last[:len(lists.real[0])] if is_a(op.real, ScanOp) else last
    alike = expected is None or control_flow_bodies.agree(carried, expected())
    if not alike or is_a(op.real, CondOp) and recorded[0].spec != spec.real:
        raise Break("opaque-call", "the results of functions which torch's control flow calls are not alike")
    made.real[0].plan = control_flow_bodies.plan(interp.recorder, made.real, bare, apart(op.real, lists.real))


@model(apply, prepare=prepare)
def applied(interp: Interpreter, result: tuple[list[Any], Any], op: Value, made: Value, spec: Value, before: Value,
            lists: Value) -> Shadow:
    """One operation of the graph."""
    plan = made.real[0].plan
    lifted = [Value(node.real, node) for node in plan.lifted]
    modules = [Value(module, Const(node)) for module, node in zip(plan.modules, plan.nodes, strict=True)]
    given = [Value(real, shadow) for real, shadow in zip(lists.real, items_of(interp, lists), strict=True)]
    last = given.pop()
    own = [] if is_a(op.real, CondOp) else list(zip(last.real, items_of(interp, last), strict=True))
    operands = tuple(real for real, _ in own) + tuple(value.real for value in lifted)
    given.append(Value(operands, Build(tuple, (*(shadow for _, shadow in own), *plan.lifted))))
    first = [Value(real, shadow) for real, shadow in zip(before.real, items_of(interp, before), strict=True)]
    values = [*first, *modules, *given]
    control_flow_bodies.made(interp.recorder, result[0])
    results = interp.recorder.record("call_function", op.real, values, {}, result[0], versions_of(tensors_in(values)))
    return Build(tuple, (results, spec.shadow))
