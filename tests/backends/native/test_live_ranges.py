"""Kernels are cut where what they read would wait at the peak of memory, and only there."""
from __future__ import annotations

import pytest
import torch

from capture.backends.native.evaluate import evaluate
from capture.backends.native.fusion import fuse
from capture.backends.native.index import Var, index
from capture.backends.native.ir import Buffer, Kernel, Nest, Program, Store, load, op
from capture.backends.native.memory import lifetimes, reuse_in_place
from capture.backends.native.verify import verify

from .programs import buffer, extern, program, whole

f32 = torch.float32
N = 1000


def adding(left: Buffer, right: Buffer, result: Buffer) -> Nest:
    i = Var(f"i_{result.name}", N)
    total = op("add", f32, load(left, index(i)), load(right, index(i)))
    return Nest(f"{result.name}_nest", (i,), (), (Store(result.name, index(i), total),))


def sums(count: int, peak_elsewhere: int = 0, chains: int = 1) -> Program:
    """`chains` sums of `count` results of operators, added up as these come. peak_elsewhere: the size of what comes after them."""
    x = buffer("x", N, kind="input")
    buffers, body, outputs = [x], [], []
    totals: list[Buffer | None] = [None] * chains
    for number in range(count):
        for chain in range(chains):
            part = buffer(f"t{chain}_{number}", N)
            body.append(extern(f"e{chain}_{number}", "aten::mul.Scalar", [whole(x), number + chain], part))
            buffers.append(part)
            total = totals[chain]
            if total is not None:
                last = number == count - 1
                result = buffer(f"s{chain}_{number}", N, kind="output" if last else "temporary")
                body.append(adding(total, part, result))
                buffers.append(result)
                outputs += [whole(result)] * last
                part = result
            totals[chain] = part
    if peak_elsewhere:
        large, small = buffer("large", peak_elsewhere), buffer("small", kind="output")
        body += [extern("fill", "aten::full", [[peak_elsewhere], 1.0], large), extern("sum", "aten::sum", [whole(large)], small)]
        buffers += [large, small]
        outputs.append(whole(small))
    return program(buffers, body, outputs)


def peak(source: Program) -> int:
    """Bytes of buffers at the statement where they are the most, each there from its first mention to its last."""
    alive, returned = lifetimes(source), {view.buffer for view in source.outputs}
    totals = [0] * len(source.body)
    for name, life in alive.items():
        if source.buffers[name].kind != "input":
            for number in range(life.first, (len(totals) if name in returned else life.last + 1)):
                totals[number] += source.buffers[name].span.constant * 4
    return max(totals)


def fused(source: Program) -> Program:
    result = reuse_in_place(fuse(source).program)
    verify(result)
    given = [torch.randn(N)]
    torch.testing.assert_close(evaluate(result, given), evaluate(source, given))
    return result


def kernels(source: Program) -> int:
    return sum(isinstance(statement, Kernel) for statement in source.body)


@pytest.mark.parametrize("chains", [1, 2])
@pytest.mark.parametrize("count", [3, 10, 24])
def test_sums_do_not_wait_for_their_last_operand(count: int, chains: int) -> None:
    source = sums(count, chains=chains)
    assert peak(fused(source)) <= max(peak(source), (3 + chains) * 4 * N)


def test_they_do_below_the_peak() -> None:
    assert kernels(fused(sums(10, peak_elsewhere=30 * N))) == 1


def test_as_many_wait_as_the_peak_leaves_room_for() -> None:
    result = fused(sums(10, peak_elsewhere=6 * N))
    assert peak(result) < 7.1 * N * 4 and 2 <= kernels(result) <= 4


def test_what_frees_nothing_stays_together() -> None:
    """Of two results computed from one operand neither is the last to need it."""
    x, t, u, v = buffer("x", N, kind="input"), buffer("t", N), buffer("u", N, kind="output"), buffer("v", N, kind="output")
    late = buffer("late", N)
    body = [extern("a", "aten::neg", [whole(x)], t), adding(t, t, u), extern("b", "aten::exp", [whole(x)], late),
            adding(t, late, v)]
    source = program([x, t, late, u, v], body, [whole(u), whole(v)])
    assert kernels(fused(source)) == 1


def test_inputs_that_die_wait_too() -> None:
    """Each is read by a nest of its own; together they would all be there until the last operator has run."""
    inputs = [buffer(f"x{number}", N, kind="input") for number in range(6)]
    buffers, body = [*inputs], []
    total = None
    for number, given in enumerate(inputs):
        part = buffer(f"t{number}", N)
        buffers.append(part)
        body.append(extern(f"e{number}", "aten::neg", [whole(inputs[0])], part))
        result = buffer(f"s{number}", N, kind="output" if number == 5 else "temporary")
        both = buffer(f"b{number}", N)
        buffers += [result, both]
        body.append(adding(given, part, both))
        body.append(adding(both, both if total is None else total, result))
        total = result
    source = program(buffers, body, [whole(total)])
    apart = fuse(source, [given.name for given in inputs[1:]]).program
    assert kernels(apart) > 1
    given = [torch.randn(N) for _ in inputs]
    torch.testing.assert_close(evaluate(apart, given), evaluate(source, given))
