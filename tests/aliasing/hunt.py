"""A case in two worlds, eager and compiled, compared after each step."""
from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

import capture
from capture import _C
from capture.backends.aot import trace
from capture.backends.native import tiers
from capture.backends.native.runtime import make_callable
from capture.backends.native.signature import Unsupported
from tests.aliasing.programs import Case
from tests.backends.native.traced import fx_backward, fx_forward

CALLS = 3           # the capture and hits
# That is read when the error is raised: others after a write, and the compiled graph's own for what code outside of it has saved.
ORIGIN = re.compile(r", which is output \d+ of \w+,")


class Traced:
    """A backend: graphs traced as for kernels, but run by torch. graphs: how many it was given; compiled: how many it took."""

    def __init__(self) -> None:
        self.graphs = self.compiled = 0

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graphs += 1
        if gm.meta["modes"] != _C.modes():          # as `tiers` refuses it
            return gm.forward
        try:
            traced = trace(gm, tiers.specs(gm, inputs))
        except (Unsupported, TypeError):
            return gm.forward
        self.compiled += 1
        backward = fx_backward(traced.backward) if traced.backward else None
        return make_callable(gm, traced.signature, fx_forward(traced.forward), backward, tail=traced.tail)


def differences(case: Case, **compile: Any) -> list[str]:
    """What differs between the worlds: nothing, or the first step after which something does."""
    scope: dict[str, Any] = {"torch": torch, "F": F}
    exec(case.source, scope)
    compiled = capture.compile(scope["f"], **compile)
    for call in range(CALLS):
        for step, theirs, ours in zip(["call", *case.plan], _run(case, scope["f"], call), _run(case, compiled, call), strict=False):
            found = [f"{key}: eager {value}, compiled {ours.get(key)}" for key, value in theirs.items()
                     if not _same(value, ours.get(key))]
            if found:
                return [f"call {call + 1}, after {step}", *found]
    return []


def _run(case: Case, function: Callable[..., Any], call: int) -> Iterator[dict[str, Any]]:
    """What can be seen after the call, and after each step of the plan."""
    torch.manual_seed(call)
    scope: dict[str, Any] = {"torch": torch, "F": F}
    scope["a"] = arguments = [eval(text, scope) for text in case.inputs]
    error = None
    try:
        scope["r"] = function(*arguments)
    except (RuntimeError, IndexError) as raised:
        error = raised
    yield _seen(scope, error)
    for step in case.plan if error is None else ():
        error = None
        try:
            exec(step, scope)
        except (RuntimeError, IndexError, TypeError, ValueError) as raised:
            error = raised
        yield _seen(scope, error)


def _seen(scope: dict[str, Any], error: Exception | None) -> dict[str, Any]:
    tensors = [*scope["a"], *scope.get("r", ())]
    seen: dict[str, Any] = {"exception": error and f"{type(error).__name__}: {error}"}
    for i, t in enumerate(tensors):
        base = t._base
        seen[f"tensor {i}"] = {
            "values": t.detach().clone(), "layout": _layout(t), "version": t._version, "view": t._is_view(),
            "base": base is not None and (_layout(base), base._version, base.requires_grad,
                                          [k for k, other in enumerate(tensors) if other is base]),
            "autograd": (t.requires_grad, _node(t), t.dtype),
            "shared": [(k, other is t, other._base is base) for k, other in enumerate(tensors)
                       if other.untyped_storage()._cdata == t.untyped_storage()._cdata],
            "gradient": t.grad if _node(t) == "leaf" else base.grad if base is not None and _node(base) == "leaf" else None}
    seen["gradients"] = scope.get("g")
    return seen


def _node(t: Tensor) -> str:
    """Whether a tensor has a node of autograd, or the error of one that may not be asked."""
    try:
        return "leaf" if t.is_leaf else "none" if t.grad_fn is None else "node"
    except RuntimeError as error:
        return str(error)


def _layout(t: Tensor) -> Any:
    return tuple(t.shape), t.stride(), t.storage_offset(), t.untyped_storage().nbytes()


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, str) and isinstance(b, str):
        return ORIGIN.sub("", a) == ORIGIN.sub("", b)
    return type(a) is type(b) and bool(a == b)
