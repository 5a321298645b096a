"""Lowers graphs and compares what the program means with what ATen computes."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from capture.backends.decompositions import decompositions
from capture.backends.native.evaluate import evaluate
from capture.backends.native.ir import Extern, Nest, Program, forget_interned
from capture.backends.native.lowering import lower
from capture.backends.native.verify import verify

aten = torch.ops.aten


def traced(fn: Callable[..., Any], *inputs: Any, dynamic: bool = False, decompose: bool = True) -> GraphModule:
    """The ATen graph of `fn`, functional as far as `fn` is; with symbolic sizes where `dynamic`."""
    table = dict(decompositions()) if decompose else {}
    mode = "symbolic" if dynamic else "fake"
    gm = make_fx(fn, decomposition_table=table, tracing_mode=mode)(*inputs)
    gm.graph.eliminate_dead_code()
    return gm


def check(fn: Callable[..., Any], *inputs: Any, dynamic: bool = False, decompose: bool = True, rtol: float | None = None,
          atol: float | None = None, others: Sequence[Sequence[Any]] = ()) -> Program:
    """Traces `fn` on `inputs`, lowers it, and checks the program against the graph on `inputs`, and on the `others`."""
    return check_graph(traced(fn, *inputs, dynamic=dynamic, decompose=decompose), [inputs, *others], rtol, atol)


def check_graph(gm: GraphModule, calls: Sequence[Sequence[Any]], rtol: float | None = None, atol: float | None = None) -> Program:
    """Checks results (values, dtypes, strides) and mutated inputs."""
    program = lower(gm)
    verify(program)
    for inputs in calls:
        theirs, ours = [copied(inputs) for _ in range(2)]
        state = torch.get_rng_state()
        expected = gm(*theirs)
        torch.set_rng_state(state)
        results = evaluate(program, ours)
        expected = list(expected) if isinstance(expected, (tuple, list)) else [expected]
        assert len(results) == len(expected)
        for a, b in zip([*results, *ours], [*expected, *theirs], strict=True):
            if not isinstance(b, torch.Tensor):
                assert a == b
                continue
            assert isinstance(a, torch.Tensor)
            assert relevant(a) == relevant(b)
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)
    forget_interned()
    return program


def relevant(tensor: torch.Tensor) -> tuple[Any, ...]:
    """dtype, shape, and the strides that matter."""
    strides = [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]
    return tensor.dtype, tuple(tensor.shape), strides if tensor.numel() else []


def copied(inputs: Sequence[Any]) -> list[Any]:
    """Inputs of their own memory, with the same strides."""
    return [torch.empty_strided(i.shape, i.stride(), dtype=i.dtype).copy_(i) if isinstance(i, torch.Tensor) else i for i in inputs]


def nests(program: Program) -> int:
    return sum(isinstance(statement, Nest) for statement in program.body)


def calls(program: Program) -> list[str]:
    """The ATen operators that the program calls."""
    return [statement.op for statement in program.body if isinstance(statement, Extern)]
