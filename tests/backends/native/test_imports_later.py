"""A compiling process imports Dynamo, symbols and distributed tensors where a job needs them, and then as they are."""
from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.fx.experimental import symbolic_shapes

from capture.backends.native.imports_later import OF_NUMBERS

PROGRAM = """
import sys
from dataclasses import replace

import torch

from capture.backends.native import imports_later, sidecar, transport, worker
from capture.backends.native.job import Job, Modes, TensorSpec
from torch import fx
imports_later.postpone()
config, later, symbols = torch._dynamo.config, torch._dynamo, torch.fx.experimental.symbolic_shapes


def compiled(build, *inputs, free=None):
    graph = fx.Graph()
    build(graph, *(graph.placeholder(f"x{place}") for place in range(len(inputs))))
    specs = [replace(TensorSpec.of(x), free=free) for x in inputs]
    job = Job(fx.GraphModule(torch.nn.Module(), graph), tuple(specs), Modes.current(), {})
    made = worker.attempt(sidecar.COMPILE_JOB, transport.encode(job))
    assert isinstance(made, bytes), made.details


def product(graph, x, w):
    graph.output((graph.call_method("sum", (graph.call_function(torch.matmul, (x, graph.call_function(torch.tanh, (w,)))), -1)),))


def write_to_a_part(graph, x):
    y = graph.call_function(torch.mul, (x, 2))
    graph.call_method("zero_", (graph.call_method("select", (y, 0, 1)),))
    graph.output((y,))


x = torch.randn(3, 3, requires_grad=True)
compiled(product, x, torch.randn(3, 3, requires_grad=True))
assert torch._dynamo is later and torch.fx.experimental.symbolic_shapes is symbols
assert {"torch._dynamo.source", "torch._inductor", "sympy.core", "torch.distributed.tensor._ops"}.isdisjoint(sys.modules)
compiled(write_to_a_part, x)
assert torch._dynamo is sys.modules["torch._dynamo"] is not later
assert torch._dynamo.config is sys.modules["torch._dynamo.config"] is config
assert torch._dynamo.source is sys.modules["torch._dynamo.source"]
assert torch._dynamo.variables.builder.ConvertIntSource is torch._dynamo.source.ConvertIntSource
assert torch._dynamo.optimize("eager")(lambda: 1)() == 1


def doubled(graph, x):
    graph.output((graph.call_function(torch.tanh, (graph.call_function(torch.cat, ([x, x],)),)),))


compiled(doubled, x, free=((-1, 3), (3, 1)))
assert torch.fx.experimental.symbolic_shapes is sys.modules["torch.fx.experimental.symbolic_shapes"] is not symbols
import sympy
import torch.distributed.tensor
assert torch.fx.experimental.symbolic_shapes.sympy.Basic is sympy.Basic is symbols.sympy.Basic
assert symbols.sympy.__version__ == sympy.__version__ and symbols.sympy.__path__ == sympy.__path__
assert symbols.ShapeEnv is torch.fx.experimental.symbolic_shapes.ShapeEnv
assert torch.distributed.tensor.DTensor.__module__ == "torch.distributed.tensor"
compiled(doubled, x, free=((-1, -2), (-2, 1)))
compiled(product, x, torch.randn(3, 3, requires_grad=True))
"""

NUMBERS: list[Any] = [
    True, False, 0, 1, 7, -2.5, (), (1, 2), [1, 2], (1, 3), [], torch.ones(2, 3), (torch.ones(2), torch.ones(2, 1))]


@pytest.mark.parametrize("name", " ".join(OF_NUMBERS.values()).split())
def test_functions_of_numbers_are_those_of_torch(name) -> None:
    """Where torch's function has an answer at all."""
    answer = next(answer for answer, names in OF_NUMBERS.items() if name in names.split())
    theirs = getattr(symbolic_shapes, name)
    found = 0
    for args in itertools.chain.from_iterable(itertools.product(NUMBERS, repeat=count) for count in (1, 2)):
        first = (None, *args) if name == "compute_unbacked_bindings" else args
        try:
            expected = theirs(*first)
            expected = list(expected) if name.startswith(("_iterate", "free")) else expected
        except (AssertionError, AttributeError, TypeError, ValueError, RuntimeError):
            continue
        if name.startswith("_iterate"):         # of numbers in lists, which tracing does not look at
            expected = [one for one in expected if not isinstance(one, (int, float))]
        made = answer(*first)
        made = list(made) if name.startswith(("_iterate", "free")) else made
        assert (type(made), repr(made)) == (type(expected), repr(expected)), args
        found += 1
    assert found


def test_jobs_that_need_them() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=300)
