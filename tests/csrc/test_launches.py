"""Plans that launch kernels in CUDA's form, with the emulator: the parameters, the choice of a variant, and what is refused."""
from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch

from capture import _C
from capture.backends.native.plan import Entry, ExternStep, Fit, KernelStep, Variant, dump
from tests.backends.native.programs import compile_library

from .launches import SOURCE, PlanBuilder, choosing, doubling, indices, several, through_arena, values


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp("kernels"), SOURCE)


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


@pytest.mark.parametrize("blocks", [(1, 4, 0, 2), (0,)])
def test_several_kernels_in_few_launches(library: Path, blocks: tuple[int, ...]) -> None:
    """Each with the variant that suits it, whose memory begins where it does."""
    launches = ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "launches")
    run, memory = _C.Executor(several(11, blocks=blocks), library), torch.randn(11 * 24)
    assert memory.data_ptr() % 16 == 0
    shifts = [number % 3 == 0 for number in range(11)]
    given = [memory[24 * number + shift:][:20] for number, shift in enumerate(shifts)]
    launches.value = 0
    found = run(*given)
    for number, (x, y, shift) in enumerate(zip(given, found, shifts, strict=True)):
        if blocks[number % len(blocks)]:
            assert torch.equal(y, x * (2 if shift else 3))
    working = [shift for number, shift in enumerate(shifts) if blocks[number % len(blocks)]]
    assert launches.value == -(-working.count(True) // 3) + -(-working.count(False) // 3)


def test_numbers_of_the_processor_and_indices_in_several_kernels(library: Path) -> None:
    given = [torch.full((1,), number + 0.5) for number in range(2)]
    found = _C.Executor(values(2), library)(*given)
    assert [value.item() for value in found] == [0.5, 1.5]
    with pytest.raises(IndexError, match="index out of range in self"):
        _C.Executor(values(5), library)(*given, *given, given[0])


def test_entries_have_parameters_of_their_own(library: Path) -> None:
    """What entries differ in, given in another order than that of the slots."""
    build = PlanBuilder()
    sizes = [build.number(20), build.number(7)]
    x, y = build.input(build.number(20)), build.input(build.number(20))
    results = [build.slot("fresh", build.number(20)) for _ in range(2)]
    entries = [Entry((given, result), (size,), (Fit(build.number(1)),))
               for given, result, size in zip((y, x), results, sizes, strict=True)]
    build.launches([Variant("table_twice", 8)], entries, 3)
    a, b = torch.randn(20), torch.randn(20)
    first, second = _C.Executor(build.plan(*results), library)(a, b)
    assert torch.equal(first, b * 2) and torch.equal(second[:7], a[:7] * 2)


@pytest.mark.parametrize(("change", "text"), [
    ({"fits": ()}, "an entry of step0 does not say which variants it can have"),
    ({"numbers": ()}, "entries of step0 have different parameters"),
    ({"room": 0}, "step0 has no table for its entries")])
def test_entries_that_do_not_fit_are_refused(library: Path, change: dict[str, Any], text: str) -> None:
    plan = several(2)
    step, = plan.steps
    first, second = step.entries
    wrong = {name: value for name, value in change.items() if name != "room"}
    step = step._replace(entries=(first, second._replace(**wrong)), room=change.get("room", 3))
    with pytest.raises(ValueError, match=f"invalid plan: {text}"):
        _C.Executor(plan._replace(steps=(step,)), library)


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
    ([(Variant("ramp", 32), Fit(0, (0,)))], "no variant of step0 can always be used"),
    ([(Variant("ramp", 32), Fit(0, (), ((0, 4),)))], "no variant of step0 can always be used"),
    ([(Variant("absent", 32), Fit(0))], "the library has no kernel absent"),
    ([(Variant("ramp", 0), Fit(0))], "ramp has 0 threads"),
    ([(Variant("ramp", 1025), Fit(0))], "ramp has 1025 threads"),
    ([(Variant("ramp", 32), Fit(0, (), ((0, 0),))), (Variant("ramp", 32), Fit(0))], "step0 asks for multiples of 0"),
    ([(Variant("ramp", 32), Fit(9))], "there is no number 9"),
    ([(Variant("ramp", 32), Fit(0, (9,))), (Variant("ramp", 32), Fit(0))], "there is no slot 9"),
])
def test_what_is_no_launch_is_refused(library: Path, variants: list[tuple[Variant, Fit]], text: str) -> None:
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
    lines = dump(several(2)).splitlines()
    assert lines[-4:-1] == [
        "at most 3 at a time of", "  table_triple<1, 8> if input0 aligned or table_twice<1, 8>(input0, fresh1; 20)",
        "  table_triple<4, 8> if input2 aligned or table_twice<4, 8>(input2, fresh3; 20)"]
