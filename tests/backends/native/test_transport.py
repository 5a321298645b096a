"""Jobs as bytes: what comes back is what was sent, equal programs have equal bytes, and what is the user's own is refused."""
from __future__ import annotations

import functools
import hashlib
import math
import operator
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

import capture
from capture import _C
from capture.backends.native import transport, worker
from capture.backends.native.job import Job, Modes, TensorSpec
from capture.backends.native.transport import NotPortable, decode, encode, path_of, resolve
from tests.models.zoo import ZOO

X = torch.randn(2, 4, 6, 6)


def job_of(program: Callable, *inputs: torch.Tensor) -> Job:
    """The job of a program's graph, as capture records it."""
    jobs = []

    def backend(gm, example_inputs):
        jobs.append(Job(gm, tuple(map(TensorSpec.of, example_inputs)), Modes.current(), {"freezing": False}))
        return gm.forward
    capture.compile(program, backend=backend, fullgraph=True)(*inputs)
    return jobs[0]


def graph_of(target: Any, *args: Any, **kwargs: Any) -> fx.GraphModule:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(target, (x, *args), kwargs),))
    return fx.GraphModule(torch.nn.Module(), graph)


def job(gm: fx.GraphModule) -> Job:
    return Job(gm, (TensorSpec.of(X),), Modes.current(), {})


PROGRAMS: dict[str, Callable] = {
    "operators": lambda x: -x + 2 * x @ x.mT,
    "methods": lambda x: x.transpose(1, 2).contiguous(memory_format=torch.channels_last).to(torch.float64, copy=True),
    "attributes": lambda x: x.mT,
    "functions": lambda x: F.max_pool2d(F.gelu(x), 2, stride=(1, 1)),
    "slices": lambda x: x[..., 1:, None, ::2] + x[:, :, [0, 2]][0, 0, 0, 0],
    "lists": lambda x: torch.cat([x, x * 1.5], dim=-1).split([4, 8], -1)[1],
    "factories": lambda x: torch.zeros(2, 4, 6, 6, dtype=torch.float32, device="cpu", layout=torch.strided) + x,
    "infinity": lambda x: x.masked_fill(x > 0, -math.inf).nan_to_num(nan=math.pi),
    "signs": lambda x: x * -0.0 + x * 1e-320,
    "NaN": lambda x: torch.where(x > 0, x, math.nan),
    "complex": lambda x: x * (1 - 2j),
    "shape": lambda x: x.reshape(x.shape[:2] + (36,)).expand(torch.Size([2, 4, 36])),
    "keywords": lambda x: torch.sum(input=x, dim=[1], keepdim=True),
    "mutation": lambda x: x.clone().add_(1, alpha=2).clamp_(min=0),
    "modes": lambda x: torch.no_grad()(torch.sin)(x),
    "einsum": lambda x: torch.einsum("abcd,abed->ce", x, x),
    "operators of torch.ops": lambda x: torch.ops.aten.add.Tensor(x, x, alpha=2) + torch.ops.aten.relu(x),
    "checkpoint": lambda x: torch.utils.checkpoint.checkpoint(lambda y: (y.sin() * 2).cos(), x, use_reentrant=False),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_graph_computes_the_same_after_the_journey(name: str) -> None:
    sent = job_of(PROGRAMS[name], X)
    received = decode(encode(sent))
    expected, got = sent.graph(X), received.graph(X)
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.dtype == theirs.dtype and ours.stride() == theirs.stride()
        assert torch.equal(torch.view_as_real(ours) if ours.is_complex() else ours.nan_to_num(7.0),
                           torch.view_as_real(theirs) if theirs.is_complex() else theirs.nan_to_num(7.0))
    assert (received.inputs, received.modes, received.options) == (sent.inputs, sent.modes, sent.options)
    assert encode(received) == encode(sent)


@pytest.mark.parametrize("name", ["gpt2", "t5", "whisper", "unet", "lstm", "dlrm", "graph_network", "diffusion"])
def test_models_make_the_journey(name: str) -> None:
    module, inputs = ZOO[name].build()
    jobs = []

    def backend(gm, example_inputs):
        jobs.append((gm, tuple(map(TensorSpec.of, example_inputs))))
        return gm.forward
    capture.compile(module, backend=backend)(**inputs(2))
    for gm, specs in jobs:
        data = encode(Job(gm, specs, Modes.current(), {}))
        received = decode(data)
        assert encode(received) == data
        assert [(n.op, n.target) for n in received.graph.graph.nodes if n.op not in ("placeholder", "output")] == [
            (n.op, n.target) for n in gm.graph.nodes if n.op not in ("placeholder", "output")]


def test_names_and_positions_do_not_change_the_bytes() -> None:
    def first(x):
        y = x * 2
        return y.relu()

    def second(other):

        return (other * 2).relu()
    assert encode(job_of(first, X)) == encode(job_of(second, X))


@pytest.mark.parametrize("change", [lambda x: (x * 2.0).relu(), lambda x: (x * 3).relu(), lambda x: (2 * x).relu(),
                                    lambda x: (x * True).relu()], ids=["type", "value", "order", "bool"])
def test_what_changes_the_program_changes_the_bytes(change: Callable) -> None:
    assert encode(job_of(change, X)) != encode(job_of(lambda x: (x * 2).relu(), X))


def test_inputs_modes_and_options_are_in_the_bytes() -> None:
    gm = graph_of(torch.relu)
    base = Job(gm, (TensorSpec.of(X),), Modes.current(), {"freezing": False})
    with torch.autocast("cpu", torch.bfloat16):
        autocast = Modes.current()
    variants = [base, replace(base, modes=autocast), replace(base, options={"freezing": True})]
    variants += [replace(base, inputs=(TensorSpec.of(x),)) for x in (X.mT, X.double(), torch.nn.Parameter(X))]
    assert len({encode(variant) for variant in variants}) == len(variants)


def test_the_bytes_are_the_same_in_every_process() -> None:
    program = ("from capture.backends.native import worker, transport; import hashlib;"
               "print(hashlib.sha256(transport.encode(worker.trial_job())).hexdigest())")
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True,
                           env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "1"}).stdout       # here it is another seed
    assert other.strip() == hashlib.sha256(encode(worker.trial_job())).hexdigest()


@pytest.mark.parametrize("target", [
    operator.getitem, operator.iadd, torch.add, torch.tensor, F.linear, F.gelu, F.dropout, F.max_pool2d, torch._C._nn.gelu,
    torch.Tensor.add, torch.Tensor.view, math.sqrt, getattr, complex, torch.fft.fft, torch.linalg.norm, torch.special.expit,
    torch.ops.aten.add.Tensor, torch.ops.aten.add, torch._C._set_grad_enabled, torch.utils.checkpoint.checkpoint, torch.finfo,
    torch.ops.higher_order.cond], ids=str)
def test_a_path_leads_to_the_very_object(target: Any) -> None:
    assert resolve(path_of(target)) is target


def own(x: torch.Tensor) -> torch.Tensor:
    return x


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


@pytest.mark.parametrize("target", [own, Own.apply, functools.wraps(F.relu)(lambda x: x), functools.partial(F.relu), lambda x: x,
                                    X, object()])
def test_what_torch_does_not_define_is_refused(target: Any) -> None:
    with pytest.raises(NotPortable):
        path_of(target)


def test_functions_of_the_program_are_refused_wherever_they_are() -> None:
    with pytest.raises(NotPortable, match="Own"):
        encode(job_of(lambda x: Own.apply(x) + 1, X))
    with pytest.raises(NotPortable, match="Own"):
        encode(job_of(lambda x: torch.utils.checkpoint.checkpoint(lambda y: Own.apply(y), x, use_reentrant=False), X))


def test_a_function_that_replaced_one_of_torch_is_refused(monkeypatch) -> None:
    replacement = functools.wraps(F.relu)(lambda x: x + 1)
    monkeypatch.setattr(F, "relu", replacement)
    with pytest.raises(NotPortable):
        encode(job(graph_of(F.relu)))


def test_operators_of_libraries_are_refused() -> None:
    with torch.library._scoped_library("capture_tests", "DEF") as library:
        library.define("double(Tensor x) -> Tensor")
        with pytest.raises(NotPortable, match="capture_tests"):
            encode(job(graph_of(torch.ops.capture_tests.double.default)))


def test_tensors_in_the_graph_are_refused() -> None:
    graph = fx.Graph()
    graph.output((graph.get_attr("weight"),))
    root = torch.nn.Module()
    root.weight = torch.nn.Parameter(X)
    with pytest.raises(NotPortable, match="Parameter"):
        encode(job(fx.GraphModule(root, graph)))


def test_another_version_of_torch_is_noticed(monkeypatch) -> None:
    data = encode(job(graph_of(torch.relu)))
    monkeypatch.setattr(transport.torch, "__version__", "1.0")
    with pytest.raises(ValueError, match=r"this is torch 1\.0"):
        decode(data)


# --- modes

def deterministic():
    torch.use_deterministic_algorithms(True, warn_only=True)


@pytest.mark.parametrize("context", [
    torch.no_grad, torch.inference_mode, torch.enable_grad, lambda: torch.autocast("cpu", torch.bfloat16),
    lambda: torch.autocast("cpu", torch.float16, cache_enabled=False), lambda: torch.device("meta")])
def test_modes_can_be_put_in_force_again(context: Callable) -> None:
    with context():
        modes = Modes.current()
    before = repr(_C.modes())
    with modes.active():
        assert repr(_C.modes()) == modes.text and Modes.current() == modes
    assert repr(_C.modes()) == before
    with context(), Modes.current().active():
        assert Modes.current() == modes


def test_modes_of_the_process_can_be_put_in_force_again() -> None:
    before = Modes.current()
    torch.set_default_dtype(torch.float64)
    deterministic()
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        modes = Modes.current()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.utils.deterministic.fill_uninitialized_memory = True
        torch.use_deterministic_algorithms(False)
    with modes.active():
        assert Modes.current() == modes
    assert Modes.current() == before


def test_modes_differ_where_the_guards_do() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        outer = Modes.current()
        with torch.autocast("cpu", enabled=False), outer.active():
            assert Modes.current() == outer
