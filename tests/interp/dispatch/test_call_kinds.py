"""What a call of a C function is to a trace: one kind for each, decided before it is made."""
from __future__ import annotations

import functools
import operator
import time
from typing import Any

import numpy as np
import pytest
import torch

from capture.interp import function_models, opcodes  # noqa: F401  (what they register)
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.dispatch import kind_handlers  # noqa: F401  (what they register)
from capture.interp.dispatch.call_kinds import Kind, understand
from capture.interp.function_models.shadows import is_constant, shadow_of
from capture.interp.recording.fx_recorder import FxRecorder
from capture.interp.recording.scalar_specialization import Numbers
from capture.refgraph.graph import RefGraph
from capture.refgraph.node import Build, Const, RefNode
from capture.refgraph.source import Local

X = torch.ones(3)


@functools.lru_cache
def remembered(n):
    return n + 1


class Opaque:
    pass


@pytest.fixture
def interp() -> Interpreter:
    graph = RefGraph()
    return Interpreter(graph, FxRecorder(graph, Numbers()))


def kind_of(interp: Interpreter, function: Any, *args: Any, **kwargs: Any) -> Kind:
    values = [Value(arg, interp.graph.external(arg, Local(f"a{i}", i))) for i, arg in enumerate(args)]
    named = {name: Value(real, interp.graph.external(real, Local(name, 9))) for name, real in kwargs.items()}
    call = understand(interp, Value(function, Const(function)), values, named)
    assert (call.meaning is not None) == (call.kind is Kind.MODEL)
    return call.kind


@pytest.mark.parametrize(("function", "args", "kind"), [
    (torch.relu, (X,), Kind.OPERATION),
    (operator.add, (X, 1), Kind.OPERATION),
    (torch.Tensor.size, (X,), Kind.METADATA),
    (len, (X,), Kind.METADATA),
    (torch.Tensor.item, (X,), Kind.VALUE),
    (float, (X,), Kind.VALUE),
    (torch._C._set_grad_enabled, (True,), Kind.MODE),
    (torch.is_grad_enabled, (), Kind.GETTER),
    (list.append, ([1], 2), Kind.MODEL),
    (operator.add, (1, 2), Kind.LAZY),
    (str.upper, ("a",), Kind.PURE),
    (remembered, (1,), Kind.PURE),
    (operator.add, (np.float32(1), np.float32(2)), Kind.NUMPY),
    (str.upper, (Opaque(),), Kind.UNKNOWN),
    (list.__reduce__, ([],), Kind.UNKNOWN),
])
def test_kinds(interp: Interpreter, function: Any, args: tuple[Any, ...], kind: Kind) -> None:
    assert kind_of(interp, function, *args) is kind


def test_an_expression_takes_no_names(interp: Interpreter) -> None:
    assert kind_of(interp, round, 2.5) in (Kind.LAZY, Kind.PURE) and kind_of(interp, round, 2.5, ndigits=1) is not Kind.LAZY


def test_known_values(interp: Interpreter) -> None:
    stat = time.gmtime(0)
    assert isinstance(shadow_of(interp, stat), Const) and isinstance(shadow_of(interp, (1, ("a",))), Const)
    info = functools._CacheInfo(1, 2, 3, 4)
    assert isinstance(shadow_of(interp, info), Build) and not is_constant(info)      # of a class of Python's: made anew
    known = shadow_of(interp, [1], new=True)
    assert isinstance(known, RefNode) and known.created
    new, old = Opaque(), Opaque()
    assert shadow_of(interp, new, new=True).created and not shadow_of(interp, old).created


def test_a_list_that_is_known_is_no_other_one(interp: Interpreter) -> None:
    items = [1, 2]
    known = interp.graph.create(items)
    assert shadow_of(interp, items, new=True) is known


def test_every_kind_of_call_has_a_handler():
    assert set(kind_handlers.HANDLERS) == set(Kind)
