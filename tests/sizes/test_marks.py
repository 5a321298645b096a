"""What a program says of sizes beforehand: marks on tensors, ranges, names of sources, and `torch._check`."""
from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo.decorators as decorators
import torch.compiler.config as torch_config

import capture
from capture.errors import ConstraintError
from tests.helpers import call, check


def marked(n: int, mark: str = "mark_dynamic", dim: int = 0, **options: Any) -> torch.Tensor:
    x = torch.arange(4.0 * n).reshape(n, 4)
    getattr(decorators, mark)(x, dim, **options)
    return x


def calls_of(compiled: Callable[..., Any], program: Callable[..., Any], sizes: list[int], mark: str = "mark_dynamic",
             **options: Any) -> capture.Stats:
    for n in sizes:
        assert torch.equal(compiled(marked(n, mark, **options)), program(marked(n, mark, **options)))
    return capture.stats(compiled)


def by_size(x: torch.Tensor) -> torch.Tensor:
    return x * x.shape[0]


@pytest.mark.parametrize("mark", ["mark_dynamic", "maybe_mark_dynamic", "mark_unbacked"])
@pytest.mark.parametrize("dim", [0, -2])
def test_what_is_marked_is_captured_once(mark: str, dim: int) -> None:
    stats = calls_of(capture.compile(by_size, fullgraph=True, backend="eager"), by_size, [3, 4, 5, 17], mark, dim=dim)
    assert (stats.captures, stats.hits) == (1, 3)


def test_with_kernels() -> None:
    compiled = capture.compile(by_size, backend="native", options={"background": False})
    assert calls_of(compiled, by_size, [3, 4, 5, 17], min=3, max=20).captures == 1


@pytest.mark.parametrize("mark", ["mark_dynamic", "mark_unbacked"])
def test_a_range_is_guarded(mark: str) -> None:
    compiled = capture.compile(by_size, fullgraph=True, backend="eager")
    assert calls_of(compiled, by_size, [3, 4, 8, 5], mark, min=3, max=8).captures == 1
    assert {str(guard) for guard in capture.api.unit_of(compiled).tree.entries[0].guards if ".shape[" in str(guard)}
    for n in (2, 9):
        with pytest.raises(ConstraintError, match=re.escape(f"size 0 of x is {n}, and was marked to be from 3 to 8")):
            compiled(marked(n, mark, min=3, max=8))
    stats = calls_of(compiled, by_size, [3, 9, 10, 2], mark)        # another mark says nothing of a range
    assert stats.captures == 2


def test_a_range_that_is_open() -> None:
    compiled = capture.compile(by_size, fullgraph=True, backend="eager")
    assert calls_of(compiled, by_size, [30, 4], min=4).captures == 1
    with pytest.raises(ConstraintError, match="marked to be 4 at least"):
        compiled(marked(3, min=4))
    with pytest.raises(ConstraintError, match="marked to be 7 at most"):
        capture.compile(by_size, backend="eager")(marked(8, max=7))


def fixes(x: torch.Tensor) -> torch.Tensor:
    return x + torch.ones(3, 1) * len("{}".format(x.shape[0]))       # fixes


def compares(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] == 3 else x      # fixes


@pytest.mark.parametrize("program", [fixes, compares])
def test_a_size_that_is_marked_and_fixed_is_an_error(program: Callable[..., Any]) -> None:
    compiled = capture.compile(program, backend="eager")
    for _ in range(2):                                      # on each call
        with pytest.raises(ConstraintError, match="size 0 of x was marked to vary, but the program needs it to be 3") as caught:
            compiled(marked(3))
        assert "# fixes" in str(caught.value) or f'File "{__file__}"' in str(caught.value)
    assert torch.equal(compiled(marked(3, "maybe_mark_dynamic")), program(marked(3)))
    assert torch.equal(compiled(marked(3, "mark_unbacked")), program(marked(3)))
    assert torch.equal(capture.compile(program, backend="eager", dynamic=False)(marked(3)), program(marked(3)))


@pytest.mark.parametrize("program", [lambda x: x * 2 if x.shape[0] % 2 == 0 else x, lambda x: x * 2 if x.shape[0] // 2 == 3 else x])
def test_what_is_left_of_a_division_fixes_no_size(program: Callable[..., Any]) -> None:
    stats = calls_of(capture.compile(program, fullgraph=True, backend="eager"), program, [6, 7, 6, 8, 5])
    assert stats.captures <= 3 and not stats.native_calls


def test_the_call_ends_before_the_error_is_raised() -> None:
    done = []

    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            return fixes(x)
        finally:
            done.append(x.shape[0])
    with pytest.raises(ConstraintError):
        capture.compile(program, backend="eager")(marked(3))
    assert done == [3]


def test_behind_a_break_it_is_a_warning() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = fixes(x)
        torch._dynamo.graph_break()
        return y * 2 + (y.sum() > 0 and 1)
    compiled = capture.compile(program, backend="eager")
    with pytest.warns(UserWarning, match="was marked to vary, but the program needs it to be 3"):
        assert torch.equal(compiled(marked(3)), program(marked(3)))


@pytest.mark.parametrize("n", [0, 1])
def test_sizes_of_one_and_none_are_no_errors(n: int) -> None:
    assert calls_of(capture.compile(by_size, fullgraph=True, backend="eager"), by_size, [3, n, 4, n]).captures == 1
    assert calls_of(capture.compile(by_size, fullgraph=True, backend="eager"), by_size, [n, 4, n, 3]).captures == 2 - n


def test_static_is_less_than_dynamic() -> None:
    def tensor(n: int) -> torch.Tensor:
        decorators.mark_static(x := marked(n), 0)
        return x
    compiled = capture.compile(by_size, fullgraph=True, backend="eager")
    for n in (3, 4, 5):
        assert torch.equal(compiled(tensor(n)), by_size(tensor(n)))
    assert capture.stats(compiled).captures == 1
    static = capture.compile(by_size, fullgraph=True, backend="eager", dynamic=True)
    assert calls_of(static, by_size, [3, 4, 5], "mark_static").captures == 3


@pytest.mark.parametrize(("names", "captures"), [("L['x']", 1), ("L['x']:0", 1), (r"L\['.'\]:0", 1), ("L['y'], L['x']:0", 1),
                                                 ("L['x']:1", 2), ("L['y']", 2), ("L[", 2), ("", 2)])
def test_names_of_sources(names: str, captures: int) -> None:
    with torch_config.patch(dynamic_sources=names):
        check(lambda: by_size, *(call(torch.ones(n, 4)) for n in (3, 4, 5, 6)), captures=captures)


def checked(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    torch._check(n >= 2, lambda: f"too few: {n}")
    torch._check_is_size(n)
    torch._check_value(n < 40, lambda: "too many")
    return x[:n // 2 * 2] * n


@pytest.mark.parametrize("dynamic", [None, True])
def test_checks_of_sizes(dynamic: bool | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(lambda: checked, *(call(torch.ones(n, 4)) for n in (3, 4, 5, 9, 1, 41, 6)), captures=None, fullgraph=False,
              dynamic=dynamic)
        check(lambda: checked, *(call(torch.ones(n, 4)) for n in (3, 4, 5, 9, 6)), captures=1 if dynamic else 2, fullgraph=False,
              hits=None, dynamic=dynamic)
