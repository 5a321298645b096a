"""Plans that launch kernels in CUDA's form, with the emulator: the parameters, the choice of a variant, and what is refused."""
from __future__ import annotations

from pathlib import Path

import pytest
import torch

from capture import _C
from capture.backends.native.plan import ExternStep, KernelStep, Variant, dump

from .launches import PlanBuilder, choosing, compile_library, doubling, indices, through_arena


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp("kernels"))


def test_kernels_in_a_row_through_the_arena(library: Path) -> None:
    (y,) = _C.Executor(through_arena(), library)()
    assert torch.equal(y, torch.arange(100.) * 2)


def test_kernels_of_both_forms_and_operators_in_one_plan(library: Path) -> None:
    build = PlanBuilder()
    size = build.row("size", 0, 0)
    x = build.input(size)
    a, b, c = (build.slot("fresh", size) for _ in range(3))
    build.launch("twice", [x, a], [size], released=[x])
    build.steps.append(KernelStep("kernel", "negated", "negated", (a, b), (), size, build.number(100), False, (a,)))
    build.steps.append(ExternStep("extern", "abs", "aten::abs", "out", (("tensor", b),), (("out", ("tensor", c)),), (), (b,)))
    run = _C.Executor(build.plan(c), library)
    for n in (1, 7, 1000):
        given = torch.randn(n)
        assert torch.equal(run(given)[0], (given * 2).abs())


def test_numbers_come_in_their_order_and_are_computed_in_each_call(library: Path) -> None:
    build = PlanBuilder()
    build.inputs.append(-1)
    argument, y = build.row("argument", 0), build.slot("fresh", build.number(1))
    build.launch("numbers", [y], [build.row("add", argument, build.number(1)), argument])
    run = _C.Executor(build.plan(y), library)
    assert [run(n)[0].item() for n in (3, 4)] == [403, 504]


def test_the_variant_is_chosen_in_each_call(library: Path) -> None:
    run, memory = _C.Executor(choosing(), library), torch.empty(100)
    assert memory.data_ptr() % 16 == 0
    for given, value in ((memory[:64], 4), (memory[1:65], 1), (memory[:63], 1), (memory[4:16], 4), (memory[2:18], 1)):
        (y,) = run(given)
        assert torch.equal(y, torch.full((len(given),), float(value)))


def test_nothing_is_launched_where_there_is_nothing_to_do(library: Path) -> None:
    build = PlanBuilder()
    y = build.slot("fresh", build.number(1))
    build.launch("numbers", [y], [build.number(1), build.number(2)])
    build.launch("numbers", [y], [build.number(3), build.number(4)], blocks=0)
    assert _C.Executor(build.plan(y), library)()[0].item() == 102


@pytest.mark.parametrize(("bits", "error", "text"), [(1, IndexError, "index out of range in self"),
                                                     (2, RuntimeError, "index is out of bounds")])
def test_an_index_out_of_range_raises_what_eager_raises(library: Path, bits: int, error: type[Exception], text: str) -> None:
    assert _C.Executor(indices(0), library)()[0].item() == 5
    run = _C.Executor(indices(bits), library)
    for _ in range(2):
        with pytest.raises(error, match=text):
            run()


def test_too_large_a_grid_names_the_kernel(library: Path) -> None:
    build = PlanBuilder()
    y = build.slot("fresh", build.number(1))
    build.launch("ramp", [y], [build.number(1)], blocks=1 << 31)
    with pytest.raises(RuntimeError, match="kernel step0 would need 2147483648 blocks"):
        _C.Executor(build.plan(y), library)()


@pytest.mark.parametrize(("variants", "text"), [
    ([], "no variant of step0 can always be used"),
    ([Variant("ramp", 0, 32, (0,))], "no variant of step0 can always be used"),
    ([Variant("ramp", 0, 32, (), ((0, 4),))], "no variant of step0 can always be used"),
    ([Variant("absent", 0, 32)], "the library has no kernel absent"),
    ([Variant("ramp", 0, 0)], "ramp has 0 threads"),
    ([Variant("ramp", 0, 1025)], "ramp has 1025 threads"),
    ([Variant("ramp", 0, 32, (), ((0, 0),)), Variant("ramp", 0, 32)], "ramp asks for multiples of 0"),
    ([Variant("ramp", 9, 32)], "there is no number 9"),
    ([Variant("ramp", 0, 32, (9,)), Variant("ramp", 0, 32)], "there is no slot 9"),
])
def test_what_is_no_launch_is_refused(library: Path, variants: list[Variant], text: str) -> None:
    build = PlanBuilder()
    y = build.slot("fresh", build.number(1))
    build.launch(variants, [y], [build.number(1)])
    with pytest.raises(ValueError, match=f"invalid plan: {text}"):
        _C.Executor(build.plan(y), library)


def test_a_plan_without_a_library_launches_nothing() -> None:
    with pytest.raises(ValueError, match="invalid plan: it has kernels, but there is no library"):
        _C.Executor(doubling())


@pytest.mark.parametrize("device", ["cuda", "meta", "mps:0"])
def test_other_devices_are_refused(library: Path, device: str) -> None:
    with pytest.raises(ValueError, match="a plan runs on cpu or on a GPU such as cuda:0, not on"):
        _C.Executor(doubling(), library, device=device)


def test_tensors_of_another_device_are_refused(library: Path) -> None:
    with pytest.raises(RuntimeError, match="input0 is on meta, not on cpu"):
        _C.Executor(doubling(), library)(torch.empty(100, device="meta"))
    with pytest.raises(ValueError, match="a constant is on meta, not on cpu"):
        _C.Executor(doubling("constant"), library, [torch.empty(100, device="meta")])


def test_a_plan_as_text() -> None:
    assert dump(choosing()).splitlines()[-2] == (
        "fours<2, 16> if input0 aligned, fresh1 aligned, argument0.size(0) % 4 == 0 or plain<5, 64>"
        "(input0, fresh1; argument0.size(0))")
