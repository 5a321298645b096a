"""A compiling process imports torch._dynamo where a job needs it, and then as it is."""
from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys

import torch

from capture.backends.native import dynamo_later, sidecar, transport, worker
from capture.backends.native.job import Job, Modes, TensorSpec
from torch import fx
dynamo_later.postpone()
config, later = torch._dynamo.config, torch._dynamo


def compiled(build, *inputs):
    graph = fx.Graph()
    build(graph, *(graph.placeholder(f"x{place}") for place in range(len(inputs))))
    job = Job(fx.GraphModule(torch.nn.Module(), graph), tuple(map(TensorSpec.of, inputs)), Modes.current(), {})
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
assert torch._dynamo is later and "torch._dynamo.source" not in sys.modules and "torch._inductor" not in sys.modules
compiled(write_to_a_part, x)
assert torch._dynamo is sys.modules["torch._dynamo"] is not later
assert torch._dynamo.config is sys.modules["torch._dynamo.config"] is config
assert torch._dynamo.source is sys.modules["torch._dynamo.source"]
assert torch._dynamo.variables.builder.ConvertIntSource is torch._dynamo.source.ConvertIntSource
assert torch._dynamo.optimize("eager")(lambda: 1)() == 1
"""


def test_a_job_that_aotautograd_traces() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=300)
