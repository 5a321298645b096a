"""Joint graphs that are recorded without AOTAutograd: the same operations as AOTAutograd's, and eager mode's results."""
from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from capture.backends.aot import joint
from capture.backends.aot.aten import aten, is_random
from capture.backends.aot.recorder import JointGraph, NotRecorded
from capture.backends.native.signature import Unsupported
from tests.backends.native.random_programs import draw
from tests.backends.native.stages import recorded
from tests.backends.native.traced import check, worlds


def written_in_place(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = x @ w
    y.mul_(2).add_(w).relu_()
    return y, y.sin()


def read_as_another_shape(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = (x * 2).detach()
    flat, turned = y.view(-1), y.t()
    turned.mul_(w.detach())
    return flat + 1, y.exp() * x, turned * w


def read_whole_after_a_part(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = (x * 2).detach()
    first = y[0]
    y.mul_(w.detach())
    return first.sin() * x, y @ w


def of_lists(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    tensors = [x * 2, w * 3]
    with torch.no_grad():
        torch._foreach_mul_(tensors, 3.0)
        torch._foreach_addcdiv_(tensors, [w, x], [x.exp(), w.exp()], 0.5)
    return tensors[0] * x, tensors[1] * 2


def statistics(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    mean, var = torch.zeros(4), torch.ones(4)
    y = F.batch_norm(x, mean, var, training=True)
    return y * w, mean, F.batch_norm(w, mean, var)


def copied(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = torch.empty_like(x)
    y.copy_(w).zero_().fill_(2.0)
    z = torch.empty(4)
    z.copy_(x[0])
    return y * x, z


def options_that_are_none(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Some have no default, or another one."""
    return torch.div(x, w, rounding_mode=None), *torch.sort(x * w, stable=None), torch.randint(9, (3,), dtype=None)


def dropped_out(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return F.dropout(x, 0.5) @ w, torch.rand_like(x), torch.empty_like(x).uniform_(1, 2) * w


def chunks(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """As the cells of recurrent layers, which C++ composes: they write to the parts of a product in place."""
    one, other = torch.unsafe_chunk(x @ w, 2, 1)
    seen = one.detach()
    one.mul_(3).add_(other)
    return one * 2, (other.add_(one.sum(1, keepdim=True)).tanh() + seen).view(2, 4)


def lstm_cell(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    weights = torch.cat([w, w, w, w])
    h, c = torch.lstm_cell(x, (w, x), weights, weights * 2)
    return torch.lstm_cell(x, (h, c), weights, weights * 2)


def gru_cell(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    weights = torch.cat([w, w, w])
    return torch.gru_cell(x, torch.gru_cell(x, w, weights, weights), weights, weights * 2), torch.rnn_tanh_cell(x, w, w, w)


RECORDED = [written_in_place, read_as_another_shape, read_whole_after_a_part, of_lists, statistics, copied, dropped_out,
            options_that_are_none, chunks, lstm_cell, gru_cell,
            lambda x, w: (F.scaled_dot_product_attention(x[None, None], w[None, None], x[None, None]).sum(),),
            lambda x, w: (*(x @ w).chunk(2), x.unbind(1)[0] * 2)]


def part(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    y[1:] = w[1:]
    return y @ w, y


def read_beside_a_chunk(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = (x * 2).detach()
    one, _ = torch.unsafe_chunk(y, 2)
    flat = one.view(8)
    one.mul_(0)         # which neither of the others is told of: eager mode sees it, and functional graphs do not
    return flat * 0, y * 0 @ w


def another_dtype(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    count = torch.zeros(4, 4)
    count.add_(x.detach().double())
    return count * x, w * 1


def constants(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return x * torch.tensor([1.0, 2.0, 3.0, 4.0]), w * 1


def conjugate(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return torch.view_as_complex(x.view(4, 2, 2)).conj().real * 2, w * 1


LEFT = [part, read_beside_a_chunk, another_dtype, constants, conjugate]


def make(grad: bool) -> Callable[[], list[Tensor]]:
    def inputs() -> list[Tensor]:
        torch.manual_seed(3)
        return [torch.randn(4, 4).requires_grad_(grad) for _ in range(2)]
    return inputs


def noting(tracer: Callable[..., JointGraph], made: list[JointGraph]) -> Callable[..., JointGraph]:
    """A function that traces graphs, which keeps what it makes."""
    def noted(*args: Any) -> JointGraph:
        made.append(tracer(*args))
        return made[-1]
    return noted


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", RECORDED, ids=lambda program: program.__name__.strip("<>"))
def test_recorded(program, grad, monkeypatch) -> None:
    monkeypatch.setattr(joint, "trace_by_torch", lambda *_: pytest.fail("it was not recorded"))
    check(recorded(program, make(grad)())[0], make(grad), 1e-5)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", LEFT, ids=lambda program: program.__name__)
def test_what_is_left_to_aotautograd(program, grad, monkeypatch) -> None:
    used: list[JointGraph] = []
    monkeypatch.setattr(joint, "trace_by_torch", noting(joint.trace_by_torch, used))
    check(recorded(program, make(grad)())[0], make(grad), 1e-5)
    assert used


def test_a_write_to_an_input() -> None:
    """Optimizers and running statistics write so."""
    def program(x: Tensor, state: Tensor, step: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            state.lerp_(x, 0.1)
            step += 1
        return x * state, state.t() * step
    inputs = [torch.randn(3, 3, requires_grad=True), torch.zeros(3, 3), torch.zeros(())]
    both = worlds(recorded(program, inputs)[0], inputs)
    assert both.traced.signature.written == (1, 2)
    x, state, step = torch.randn(3, 3, requires_grad=True), torch.zeros(3, 3), torch.zeros(())
    mine = x.detach().clone().requires_grad_(), state.clone(), step.clone()
    for _ in range(3):
        theirs, ours = program(x, state, step), both.compiled(*mine)
        for a, b in zip((*theirs, state, step), (*ours, *mine[1:]), strict=True):
            torch.testing.assert_close(a, b)
        assert (state._version, step._version) == (mine[1]._version, mine[2]._version)


def text_of(graph: fx.Graph) -> list[str]:
    """What a joint graph computes and returns, and the layouts: equal for equal graphs but for names, order, and operations that
    are there twice."""
    numbers: dict[fx.Node, str] = {}
    known: dict[str, str] = {}
    for place, node in enumerate(graph.find_nodes(op="placeholder")):
        numbers[node] = f"input {place}"

    def of(value: Any) -> str:
        if isinstance(value, fx.Node):
            return number(value)
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(of, value))}]"
        return repr(value)

    def number(node: fx.Node) -> str:
        while node.target in (aten.detach.default, aten.alias.default):
            node = node.args[0]
        if node not in numbers:
            value = node.meta["val"]
            layout = (value.dtype, tuple(value.shape), value.stride()) if isinstance(value, Tensor) else ""
            options = {name: of(value) for name, value in node.kwargs.items()}
            text = f"{node.target} {of(node.args)} {options} {layout}"
            numbers[node] = f"%{len(known)}" if is_random(node) else known.setdefault(text, f"%{len(known)}")
            known.setdefault(f"{text} {numbers[node]}" if is_random(node) else text, numbers[node])
        return numbers[node]
    results = of(graph.output_node().args[0])
    writes = [of(node) for node in graph.nodes if node.target is aten.copy_.default]
    return [*known, results, *writes]


def joint_graphs(gm: fx.GraphModule, inputs: Sequence[Tensor], monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The joint graph as it is recorded, if it is, and as AOTAutograd traces it."""
    found: list[list[str]] = []

    def noted(tracer: Callable[..., JointGraph]) -> Callable[..., JointGraph]:
        def trace(*args: Any) -> JointGraph:
            made = tracer(*args)
            found.append(text_of(made.graph.graph))
            return made
        return trace

    def never(*args: Any) -> Any:
        raise NotRecorded
    with monkeypatch.context() as patch:
        patch.setattr(joint, "record", noted(joint.record))
        worlds(gm, list(inputs))
        patch.setattr(joint, "record", never)
        patch.setattr(joint, "trace_by_torch", noted(joint.trace_by_torch))
        worlds(gm, list(inputs))
    return found


def test_graphs_are_those_of_aotautograd(monkeypatch) -> None:
    compared = 0
    for number, grad in itertools.product(range(20), (False, True)):
        program = draw(Random(number), mutations=False)
        gm, inputs = recorded(program.function, program.inputs)
        inputs = [tensor.requires_grad_(grad and tensor.is_floating_point()) for tensor in inputs]
        try:
            graphs = joint_graphs(gm, inputs, monkeypatch)
        except Unsupported:
            continue
        if len(graphs) == 2:
            assert graphs[0] == graphs[1], program.source
            compared += 1
    assert compared > 20
