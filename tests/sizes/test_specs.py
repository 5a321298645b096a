"""What `shapes_spec` says of sizes and integers: one capture for all, ranges and relations that are guarded, names in reports."""
from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import capture
from capture.errors import ArgumentError, ConstraintError

spec = pytest.importorskip("torch.fx.experimental.dynamic_spec")
Var, Tensor = spec.ShapeVar, spec.TensorSpec


def tensor(*shape: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def checked(compiled: Callable[..., Any], program: Callable[..., Any], *calls: tuple[Any, ...]) -> capture.Stats:
    for args in calls:
        assert torch.equal(compiled(*args), program(*args))
    return capture.stats(compiled)


def by_size(x: torch.Tensor) -> torch.Tensor:
    return x * x.shape[0]


def padded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, y]) * x.shape[0]


def rows(x: torch.Tensor, n: int = 2, *more: torch.Tensor, **options: Any) -> torch.Tensor:
    return torch.cat([x, torch.zeros(n, x.shape[1]), *more, *options.values()])


def of_parts(x: Any) -> torch.Tensor:
    return x.part["a"][1] * x.part["a"][1].shape[0]


def parts(n: int) -> SimpleNamespace:
    return SimpleNamespace(part={"a": [1, tensor(n, 2)]})


@pytest.mark.parametrize("form", [lambda params: params, spec.ParamsSpec, spec.ShapesSpec, lambda params: spec.ShapesSpec(
    spec.ParamsSpec(params))], ids=["dict", "ParamsSpec", "ShapesSpec", "nested"])
def test_what_is_said_to_vary_is_captured_once(form: Callable[[Any], Any]) -> None:
    compiled = capture.compile(by_size, fullgraph=True, backend="eager", shapes_spec=form({"x": Tensor([Var("batch"), None])}))
    stats = checked(compiled, by_size, *((tensor(n, 4),) for n in (3, 5, 8, 17)))
    assert (stats.captures, stats.hits) == (1, 3)
    assert checked(compiled, by_size, (tensor(3, 5),), (tensor(3, 6),), (tensor(9, 6),)).captures == 3      # the others do not vary
    assert "batch = x.shape[0]" in capture.explain(compiled) and "x: float32, (batch, 4)" in capture.explain(compiled)


def test_with_kernels_and_by_the_other_name() -> None:
    compiled = capture.compile(by_size, backend="native", options={"background": False},
                               dynamic_shapes={"x": Tensor([Var("batch"), None])})
    assert checked(compiled, by_size, *((tensor(n, 4),) for n in (3, 5, 8, 17))).captures == 1


def test_as_a_decorator_of_torch_says() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * x.shape[0]
    program._dynamic_spec = spec.ShapesSpec({"x": Tensor([Var("batch"), None])})    # type: ignore[attr-defined]
    assert checked(capture.compile(program, backend="eager"), program, *((tensor(n, 4),) for n in (3, 5, 8))).captures == 1


@pytest.mark.parametrize("calls", [
    [(tensor(n, 4),) for n in (3, 5, 8)], [(tensor(3, 4), n) for n in (3, 5, 8)],
    [(tensor(3, 4), 2, tensor(n, 4)) for n in (3, 5, 8)]], ids=["size", "integer", "varargs"])
def test_integers_and_further_arguments(calls: list[tuple[Any, ...]]) -> None:
    said = {"x": Tensor([Var("rows"), None]), "n": spec.IntVar("n"), "*args": [Tensor([Var(), None])]}
    compiled = capture.compile(rows, fullgraph=True, backend="eager", shapes_spec=said)
    assert checked(compiled, rows, *calls).captures == 1


def test_keywords() -> None:
    compiled = capture.compile(rows, fullgraph=True, backend="eager", shapes_spec={"**kwargs": {"a": Tensor([Var(), None])}})
    for n in (3, 5, 8):
        assert torch.equal(compiled(tensor(3, 4), a=tensor(n, 4)), rows(tensor(3, 4), a=tensor(n, 4)))
    assert capture.stats(compiled).captures == 1


def test_what_objects_hold() -> None:
    said = {"x": spec.ObjectSpec({"part": spec.DictSpec({"a": spec.SeqSpec([1, Tensor([Var("n"), 2])])})})}
    compiled = capture.compile(of_parts, fullgraph=True, backend="eager", shapes_spec=said)
    assert checked(compiled, of_parts, *((parts(n),) for n in (3, 5, 8))).captures == 1


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.layer(x) * scale * x.shape[0]


@pytest.mark.parametrize("of_class", [False, True])
@pytest.mark.parametrize("keyword", [False, True])
def test_a_module_by_the_parameters_of_forward(of_class: bool, keyword: bool) -> None:
    torch.manual_seed(0)
    plain = Net()
    said = {"backend": "eager", "shapes_spec": {"x": Tensor([Var("batch"), None])}}
    compiled = capture.compile(type("Net", (Net,), {}), **said)() if of_class else capture.compile(plain, **said)
    compiled.load_state_dict(plain.state_dict())
    for n in (3, 5, 8):
        x = tensor(n, 4)
        assert torch.equal(compiled(x=x) if keyword else compiled(x), plain.forward(x))
    assert capture.stats(type(compiled).__call__ if of_class else compiled).captures == 1


def test_ranges_are_guarded() -> None:
    compiled = capture.compile(by_size, backend="eager", shapes_spec={"x": Tensor([Var("batch", min=3, max=8), 4])})
    assert checked(compiled, by_size, *((tensor(n, 4),) for n in (3, 5, 8))).captures == 1
    problems = {(9, 4): "size 0 of x is 9, and shapes_spec says <= 8", (2, 4): "size 0 of x is 2, and shapes_spec says >= 3",
                (4, 5): "size 1 of x is 5, and shapes_spec says 4", (4,): "x has 1 dimensions, and shapes_spec gives sizes of 2"}
    for shape in [*problems, *problems]:
        with pytest.raises(ConstraintError, match=re.escape(problems[shape])):
            compiled(tensor(*shape))
    assert checked(compiled, by_size, (tensor(7, 4),)).captures == 1


def test_equal_and_derived_sizes_are_guarded() -> None:
    batch, width = Var("batch"), Var("width")
    said = {"x": Tensor([batch, width]), "y": Tensor([batch * 2 + 1, width])}
    compiled = capture.compile(padded, backend="eager", fullgraph=True, shapes_spec=said)
    assert checked(compiled, padded, *((tensor(n, n + 1), tensor(2 * n + 1, n + 1)) for n in (2, 3, 7))).captures == 1
    with pytest.raises(ConstraintError, match=re.escape("size 0 of y is 6, and shapes_spec says ((2 * batch) + 1), which is 5") +
                       "|" + re.escape("(1 + (2 * batch)), which is 5")):
        compiled(tensor(2, 3), tensor(6, 3))
    lines = set(map(str.strip, capture.explain(compiled).splitlines()))
    assert {"batch = x.shape[0]", "width = x.shape[1] = y.shape[1]", "x: float32, (batch, width)", "y: float32, (s0, width)"
            } <= lines


def test_assumptions_are_guarded() -> None:
    a, b = Var("a"), Var("b")
    said = spec.ShapesSpec({"x": Tensor([a, None]), "y": Tensor([b, None])}, assumptions=[a + b > 10, a % 2 == 0])
    compiled = capture.compile(padded, backend="eager", fullgraph=True, shapes_spec=said)
    assert checked(compiled, padded, *((tensor(n, 2), tensor(m, 2)) for n, m in ((4, 8), (6, 5), (10, 3)))).captures == 1
    for n, m in ((4, 3), (5, 20)):
        with pytest.raises(ConstraintError, match="and shapes_spec says"):
            compiled(tensor(n, 2), tensor(m, 2))
    assert checked(compiled, padded, (tensor(8, 2), tensor(4, 2))).captures == 1


def test_integers_are_guarded() -> None:
    compiled = capture.compile(rows, backend="eager", shapes_spec={"n": 3})
    assert checked(compiled, rows, (tensor(3, 4), 3), (tensor(3, 4), 3)).captures == 1
    with pytest.raises(ConstraintError, match="n is 4, and shapes_spec says 3"):
        compiled(tensor(3, 4), 4)
    compiled = capture.compile(rows, backend="eager", shapes_spec={"n": spec.IntVar("n", max=9)})
    assert checked(compiled, rows, *((tensor(3, 4), n) for n in (3, 5, 9))).captures == 1
    with pytest.raises(ConstraintError, match="n is 10, and shapes_spec says <= 9"):
        compiled(tensor(3, 4), 10)


def test_a_program_that_fixes_what_varies_is_an_error() -> None:
    compiled = capture.compile(lambda x: x + torch.ones(3, 1) * len(f"{x.shape[0]}"), backend="eager",
                               shapes_spec={"x": Tensor([Var("batch"), None])})
    with pytest.raises(ConstraintError, match="size 0 of x was marked to vary, but the program needs it to be 3"):
        compiled(tensor(3, 4))


@pytest.mark.parametrize("n", [0, 1])
def test_sizes_of_one_and_none(n: int) -> None:
    compiled = capture.compile(by_size, backend="eager", shapes_spec={"x": Tensor([Var("batch"), None])})
    assert checked(compiled, by_size, *((tensor(m, 4),) for m in (3, n, 4, n))).captures == 1


@pytest.mark.parametrize(("said", "problem"), [
    ({"z": Tensor([None])}, "names 'z', which is no parameter; the parameters are x"),
    ({"x": [None, 3]}, "what x is given must be a TensorSpec, .*, got list"),
    (5, "must be a ShapesSpec"), ({"x": Tensor([Var("b") * 2])}, "b stands in expressions only"),
    ({"*args": 3}, "must be a list"), (object(), "must be a ShapesSpec")])
def test_what_cannot_be_heeded_is_refused(said: Any, problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem):
        capture.compile(by_size, backend="eager", shapes_spec=said)


def test_one_of_two_arguments() -> None:
    said = {"x": Tensor([Var(), None])}
    with pytest.raises(ArgumentError, match="dynamic and shapes_spec"):
        capture.compile(by_size, dynamic=True, shapes_spec=said)
    with pytest.raises(ArgumentError, match="two names of one argument"):
        capture.compile(by_size, dynamic_shapes=said, shapes_spec=said)


@pytest.mark.parametrize("first", [5, 1])
def test_a_batch_of_one_fixes_nothing(first: int) -> None:
    """One label is no size that the program goes by: a single number may be read."""
    batch = Var("batch")

    def program(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(x, labels)
    compiled = capture.compile(program, backend="eager", shapes_spec={"x": Tensor([batch, None]), "labels": Tensor([batch])})
    checked(compiled, program, *((tensor(n, 4), torch.zeros(n, dtype=torch.int64)) for n in (first, 3, 1)))
