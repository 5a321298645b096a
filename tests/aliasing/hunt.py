"""A case in two worlds, eager and compiled, compared after each step."""
from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch import Tensor, fx

import capture
from capture import _C
from capture.backends.aot.symbols import Symbols
from capture.backends.native import tiers
from capture.backends.native.by_size import free_places, graph_with_carriers, inputs_with_carriers, number_places
from capture.backends.native.index import LEAST_SIZE
from capture.backends.native.job import Modes
from capture.backends.native.piecewise import Piecewise, apart, divisible
from capture.backends.native.sampling import trace
from capture.backends.native.signature import Signature, Unsupported
from capture.backends.native.transport import NotPortable, decode_graph, encode_graph
from tests.aliasing.programs import Case, make_inputs, make_scope
from tests.backends.native.cuts import drawn
from tests.backends.native.traced import fx_callable

EXPECTED = (RuntimeError, IndexError, TypeError, ValueError, AttributeError, NameError, AssertionError)     # what a plan may raise
CHANGED = "one of the inputs of a compiled graph, needed to compute gradients of gradients, has been modified"    # eager goes on
CALLS = 3           # the capture and hits …
HIT = 1             # the first of these
NUMBERED = 4        # … where numbers change …
CUT = 5             # … of graphs in pieces, which are compiled at their second calls
# Runs of eager mode on inputs whose last bits differ, and how many times as much as in these values may differ.
NUDGES, MOVED = 4, 4
SCALES = (1.5, -0.75, 0.25, 3.0, -1.25)        # of each call
# Of a tensor that a backward pass needs, and of which `.data` was set: eager mode tells of the operator that cannot use it.
MISFIT = re.compile(
    r"RuntimeError: (\w+ is \w+\[.*, not \w+\[|a tensor has \d+ dimensions; the plan asks |the `.data` of an input )")


class Traced:
    """A backend: graphs traced as for kernels, but run by torch. graphs: how many it was given; compiled: how many it took;
    numbers: how many of these take numbers; sized: how many are for all sizes. cuts: where from to draw operations around which
    graphs are divided, if they are."""

    takes_numbers = takes_sizes = True
    signature: Signature        # of the last graph

    def __init__(self, cuts: Random | None = None) -> None:
        self.cuts = cuts
        self.graphs = self.compiled = self.numbers = self.sized = 0

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        if self.cuts is not None and not apart(gm) and divisible(gm, nodes := drawn(gm, self.cuts)):
            return Piecewise(gm, nodes, lambda piece, given: _C.Switch(self._traced(piece, given)))
        return self._traced(gm, inputs)

    def _traced(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graphs += 1
        if gm.meta.get("modes", _C.modes()) != _C.modes() or apart(gm):        # as `tiers` refuses it
            return gm.forward
        sizes, symbols = number_places(gm), Symbols()
        if not free_places(gm) and not sizes:
            return self._compiled(gm, inputs, symbols) or gm.forward
        if any(value is None or value < LEAST_SIZE for value in (inputs[place] for place in sizes)):
            return gm.forward
        whole = graph_with_carriers(gm, sizes)
        call = self._compiled(whole, inputs_with_carriers(inputs, sizes), symbols)
        if call is None:
            return gm.forward
        self.sized += 1

        def run(*inputs: Any) -> Any:
            if all(inputs[place] >= LEAST_SIZE for place in sizes) and covers(given := inputs_with_carriers(inputs, sizes)):
                return call(*given)
            return gm.forward(*inputs)
        covers = self.signature.size_check()
        return run

    def _compiled(self, gm: fx.GraphModule, inputs: Sequence[Any], symbols: Symbols) -> Callable[..., Any] | None:
        try:
            traced = trace(decode_graph(encode_graph(gm)), tiers.specs(gm, inputs, True), Modes.current(), symbols)
            self.signature = symbols.closed(traced.signature)
            traced = replace(traced, signature=self.signature)
        except (Unsupported, NotPortable, TypeError):
            return None
        self.compiled += 1
        self.numbers += bool(traced.signature.numbers)
        return fx_callable(gm, traced)


def differences(case: Case, calls: int = CALLS, further: Sequence[tuple[str, ...]] = (), **compile: Any) -> list[str]:
    """What differs between the worlds: nothing, or the first step after which something does. further: other plans, each of which
    then follows a hit of the same compiled function."""
    theirs_scope, ours_scope = make_scope(case.module), make_scope(case.module)
    for scope in (theirs_scope, ours_scope):
        exec(case.source, scope)
    ours_scope["f"] = capture.compile(ours_scope["f"], **compile)
    first = [(case, call) for call in range(max(NUMBERED, calls) if case.numbered or case.sized else calls)]
    for case, call in first + [(replace(case, plan=plan), HIT) for plan in further]:
        worlds = _run(case, theirs_scope, call), _run(case, ours_scope, call)
        for number, (step, theirs, ours) in enumerate(zip(["call", *case.plan], *worlds, strict=False)):
            found = [key for key, value in theirs.items() if not _same(value, ours.get(key))]
            if ours["exception"] and CHANGED in ours["exception"]:
                break
            if found and not _is_rounding(case, call, number, found, theirs, ours):
                return [f"call {call + 1}, after {step}", f"plan: {'; '.join(case.plan)}",
                        *(f"{key}: eager {theirs[key]}, compiled {ours.get(key)}" for key in found)]
    return []


def _is_rounding(case: Case, call: int, step: int, found: Sequence[str], theirs: dict[str, Any], ours: dict[str, Any]) -> bool:
    """Whether all that differs are values that move as much in eager mode where the inputs change in their last bits."""
    nudged = []
    for nudge in range(1, NUDGES + 1):
        scope = make_scope(case.module)
        exec(case.source, scope)
        for number in range(call + 1):
            seen = list(_run(case, scope, number, nudge if number == call else 0))
        if len(seen) <= step:
            return False
        nudged.append(seen[step])
    return all(_same(theirs[key], ours.get(key), [other[key] for other in nudged]) for key in found)


def _nudge(arguments: Sequence[Any], nudge: int) -> None:
    """Changes numbers by at most one last bit."""
    draws = torch.Generator().manual_seed(nudge)
    for t in arguments:
        if isinstance(t, Tensor) and t.is_floating_point():
            steps = torch.randint(-1, 2, t.shape, generator=draws).to(t.dtype)
            t.data.copy_(t.data * (1 + steps * torch.finfo(t.dtype).eps))       # which counts no version


def _run(case: Case, scope: dict[str, Any], call: int, nudge: int = 0) -> Iterator[dict[str, Any]]:
    """What can be seen after the call, and after each step of the plan. nudge: by which seed inputs are changed, 0: not at all."""
    for name in ("r", "q", "g"):
        scope.pop(name, None)
    scope["log"].clear()
    scope["S"], scope["N"] = SCALES[call], call + 3
    torch.manual_seed(call)
    arguments = make_inputs(case.inputs_of(call), scope)
    if nudge:
        _nudge(arguments, nudge)
    steps = iter(case.plan)
    step: str | None = "r = f(*a)"
    state = torch.get_rng_state()
    while step is not None:
        error = None
        torch.set_rng_state(state)          # the other world has drawn since
        try:
            if step == "r = f(*a)":
                scope["r"] = scope["f"](*arguments)
            else:
                exec(_statement(step), scope)
        except EXPECTED as raised:
            error = raised
        state = torch.get_rng_state()
        yield _seen(scope, error) | {"random numbers": state}
        step = next(steps, None) if "r" in scope else None


@functools.lru_cache(maxsize=256)
def _statement(step: str) -> Any:
    return compile(step, "<string>", "exec")


def _seen(scope: dict[str, Any], error: Exception | None) -> dict[str, Any]:
    module = scope["m"]
    state = [] if module is None else [*module.parameters(), *module.buffers()]
    tensors = [*scope["a"], *scope.get("r", ()), *scope.get("q", ()), *state]
    seen: dict[str, Any] = {"exception": error and f"{type(error).__name__}: {error}"}
    for i, t in enumerate(tensors):
        base = t._base
        seen[f"tensor {i}"] = {
            "values": _values(t), "layout": _layout(t), "version": _version(t), "view": t._is_view(),
            "base": base is not None and (_layout(base), _version(base), base.requires_grad,
                                          [k for k, other in enumerate(tensors) if other is base]),
            "autograd": (t.requires_grad, _node(t), t.dtype, t.retains_grad, t.is_inference()),
            "shared": [(k, other is t, other._base is base) for k, other in enumerate(tensors)
                       if other.untyped_storage()._cdata == t.untyped_storage()._cdata],
            "gradient": t.grad if _node(t) == "leaf" or t.retains_grad else base.grad if base is not None and _node(base) == "leaf"
            else None}
    seen["gradients"] = scope.get("g")
    seen["seen by hooks"] = sorted(scope["log"], key=operator.itemgetter(0))        # autograd comes to leaves in some order
    inner = {f"r[{i}]" for i, t in enumerate(scope.get("r", ())) if _node(t) == "node"}
    seen["order of hooks"] = [name for name, _ in scope["log"] if name in inner]
    return seen


def _values(t: Tensor) -> Tensor:
    """What a tensor holds; of negated bools, which torch cannot read, what lies in memory."""
    t = t.detach()
    return (torch._neg_view(t) if t.is_neg() and t.dtype is torch.bool else t).clone()


def _version(t: Tensor) -> int | None:
    try:
        return None if t.is_inference() else t._version
    except RuntimeError:        # an inference tensor that was given the `.data` of another
        return None


def _node(t: Tensor) -> str:
    """Whether a tensor has a node of autograd, or the error of one that may not be asked."""
    try:
        return "leaf" if t.is_leaf else "none" if t.grad_fn is None else "node"
    except RuntimeError as error:
        return str(error)


def _layout(t: Tensor) -> Any:
    return tuple(t.shape), t.stride(), t.storage_offset(), t.dim() and t.untyped_storage().nbytes(), t.is_conj(), t.is_neg()


is_batched = torch._C._functorch.is_legacy_batchedtensor        # by `is_grads_batched=True`


def _same(a: Any, b: Any, nudged: Sequence[Any] = ()) -> bool:
    """Whether `a` of eager mode and `b` are the same, as far as values are that do not move more in eager mode: to `nudged`."""
    if a is b:
        return True
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        if is_batched(a) or is_batched(b):          # a hook has kept it; there are no values without the pass
            return is_batched(a) and is_batched(b)
        return torch.equal(a, b) or _close(a, b, nudged)        # most are equal, which costs a fifth to tell
    if isinstance(a, dict) and isinstance(b, dict):
        others = [other for other in nudged if isinstance(other, dict) and a.keys() == other.keys()]
        return a.keys() == b.keys() and all(_same(a[key], b[key], [other[key] for other in others]) for key in a)
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        if not nudged:
            return len(a) == len(b) and all(map(_same, a, b))
        others = [other for other in nudged if isinstance(other, (tuple, list)) and len(a) == len(other)]
        return len(a) == len(b) and all(_same(x, y, [other[i] for other in others]) for i, (x, y) in enumerate(zip(a, b)))
    if isinstance(a, str) and isinstance(b, str):
        return a == b or a.startswith("RuntimeError: ") and MISFIT.match(b) is not None
    return type(a) is type(b) and bool(a == b)


def _close(a: Tensor, b: Tensor, nudged: Sequence[Any]) -> bool:
    """The same of tensors of one shape and dtype that are not equal."""
    if not a.is_floating_point() and not a.is_complex():
        return False
    narrow = a.dtype in (torch.bfloat16, torch.float16)        # batch_norm rounds mean and variance to these, kernels do not
    rtol, atol = (5e-2, 5e-2) if narrow else (1e-4, 1e-5)
    alike = [other for other in nudged if isinstance(other, Tensor) and a.shape == other.shape and a.numel()]
    moves = [float((a - other).abs().max()) for other in alike]
    atol += MOVED * max((move for move in moves if math.isfinite(move)), default=0.0)
    return torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
