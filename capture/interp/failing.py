"""Tensor operations that fail for some values of their arguments, as on a hit they may.

A graph that changes nothing is run again natively when it fails, so that the program's effects and handlers come in their order.
Random numbers that it has drawn are taken back for that. What it has written to tensors cannot be: so where a handler of the
program's is in force, no trace holds such an operation together with a write. Elsewhere effects in Python before the first of these
operations come before the graph, if entry state is all that they need.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from capture.errors import Break, is_internal
from capture.interp import fx_numbers, tensors
from capture.interp.frame import Frame, Value
from capture.interp.instructions import Cover, decode, exception_table
from capture.interp.interpreter import Interpreter
from capture.interp.varying import MAKING, SIZING
from capture.refgraph.effects import CallEffect

# Operations that raise for some values of a tensor: an index out of range, a singular matrix, a negative probability.
FAILING = frozenset("""
    embedding embedding_bag gather scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ index_select index_add
    index_add_ index_copy index_copy_ index_fill index_fill_ index_put index_put_ index_reduce index_reduce_ take take_along_dim
    put put_ masked_scatter masked_scatter_ one_hot bincount repeat_interleave nll_loss cross_entropy multi_margin_loss
    multilabel_margin_loss ctc_loss binary_cross_entropy multinomial bernoulli bernoulli_ poisson normal normal_ histc cholesky
    cholesky_inverse inverse inv linalg_cholesky linalg_inv linalg_solve linalg_solve_ex linalg_eig linalg_eigh linalg_eigvals
    linalg_eigvalsh linalg_svd linalg_svdvals linalg_lu_solve linalg_tensorinv linalg_tensorsolve linalg_qr linalg_lstsq
    linalg_pinv logdet slogdet svd pinverse _assert_async combinations unflatten max_unpool1d max_unpool2d max_unpool3d""".split())
SUBSCRIPTS = frozenset({"getitem", "__getitem__", "setitem", "__setitem__"})


def note(interp: Interpreter, real: Any, args: list[Value]) -> None:
    """Notes an operation that is about to be recorded, if it may fail for values that only a hit meets."""
    if may_fail(real, args):
        if interp.recorder.acted is None:
            interp.recorder.acted = len(interp.graph.effects)
        watched = is_watched(interp.frame)
        interp.recorder.watched |= watched
        interp.recorder.fails |= watched or has_acted(interp)


def may_fail(real: Any, args: list[Value]) -> bool:
    """Whether an operation raises for some values of its arguments. Operators of other libraries may."""
    name = tensors.operation_name(real)
    if name in SUBSCRIPTS:
        return fx_numbers.has_read(args[1].shadow)
    if name in SIZING and any(fx_numbers.has_read(arg.shadow) for arg in args[name not in MAKING:]):
        return True
    return name in FAILING or isinstance(real, torch._ops.OpOverload) and real.namespace != "aten"


def has_acted(interp: Interpreter) -> bool:
    """Whether the trace has effects in Python, which come after its graph."""
    early = interp.graph.early
    return any(effect not in early if isinstance(effect, CallEffect) else not effect.early for effect in interp.graph.effects)


def is_watched(frame: Frame | None) -> bool:
    """Whether code of the program's runs when an exception is raised now: a handler, `finally`, or `with`, but for torch's own."""
    while frame is not None:
        if not is_internal(frame.code.co_filename) and any(is_of_program(frame, cover) for cover in covers(frame)):
            return True
        frame = frame.back
    return False


def covers(frame: Frame) -> Iterator[Cover]:
    """What takes over an exception that is raised now in `frame`, from the inside out."""
    at = frame.pc - 1
    while (cover := next((c for c in exception_table(frame.code) if c.start <= at < c.end), None)) is not None:
        yield cover
        at = cover.target


def is_of_program(frame: Frame, cover: Cover) -> bool:
    """Whether a handler is the program's, neither one that the compiler has added nor a `with` block's of torch, which sets modes
    and puts them back, or of a file."""
    first, second = decode(frame.code)[cover.target:cover.target + 2]
    if first.opname != "PUSH_EXC_INFO" or second.opname != "WITH_EXCEPT_START":
        return first.opname == "PUSH_EXC_INFO"
    exit = frame.stack[cover.depth - 1]
    manager = getattr(None if exit is None else exit.real, "__self__", None)
    return not str(type(manager).__module__).startswith(("torch.", "_io"))


def refusal(interp: Interpreter, real: Any, args: list[Value]) -> Break | None:
    """Why an operation must not follow what the graph has changed; None if it may."""
    drawn = any(effect.stream is not None for effect in interp.graph.early)
    if (interp.recorder.changes or drawn) and may_fail(real, args) and is_watched(interp.frame):
        change = "draw of a number" if drawn else "write to a tensor"
        return Break("failing-operation", f"{tensors.operation_name(real)}() after a {change}")
    return None
