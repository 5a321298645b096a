"""Calls of a kind whose last captures were never hit are captured when they come again; what a capture learns from, at once."""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import capture
from capture.admission import MOST_UNHIT, PATIENCE, Spending
from capture.api import unit_of
from capture.config import CAPTURING_SHARE
from tests.helpers import call, check

X = torch.arange(12.0).reshape(3, 4)


def branches(x: torch.Tensor, way: Any) -> torch.Tensor:
    """Goes by which of four lists are empty."""
    for step, part in enumerate((way.a, way.b, way.c, way.d), 1):
        if part:
            x = x * step + 1
    return x


def way(number: int) -> SimpleNamespace:
    return SimpleNamespace(**{name: [1] * (number >> bit & 1) for bit, name in enumerate("abcd")})


def calls(*ways: int) -> list[Any]:
    return [call(X, way(number)) for number in ways]


def test_what_never_comes_again_is_hardly_captured() -> None:
    stats = check(lambda: branches, *calls(*range(16)), captures=None, fullgraph=False)
    assert stats.captures <= MOST_UNHIT + 1 and stats.native_calls == 16 - stats.captures and not stats.hits


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_what_comes_again_is_captured_then(backend: str) -> None:
    options = {"options": {"background": False}} if backend == "native" else {}
    stats = check(lambda: branches, *calls(1, 2, 4, 4, 4, 1, 2, 4), captures=3, hits=4, fullgraph=False, backend=backend, **options)
    assert stats.native_calls == 1


def test_what_comes_in_turn_is_captured_in_the_second_round() -> None:
    stats = check(lambda: branches, *calls(*[1, 2, 4, 3] * 4), captures=4, hits=10, fullgraph=False)
    assert stats.native_calls == 2


def test_a_hit_of_the_latest_capture_ends_the_waiting() -> None:
    assert not check(lambda: branches, *calls(1, 2, 2, 4, 8), captures=4, hits=1, fullgraph=False).native_calls


def test_each_kind_waits_by_itself() -> None:
    def doubles(*ways: int) -> list[Any]:
        return [call(X.double(), way(number)) for number in ways]
    assert not check(lambda: branches, *calls(1, 2), *doubles(1, 2), captures=4, fullgraph=False).native_calls


def test_whole_graphs_do_not_wait() -> None:
    check(lambda: branches, *calls(*range(8)), captures=8)


@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_and_numbers_do_not_wait(dynamic: bool | None) -> None:
    def program(x: torch.Tensor, way: Any, scale: float) -> torch.Tensor:
        return branches(x, way) * scale * x.shape[0]
    steps = [call(X, way(1), 1.0), call(X, way(2), 1.0), call(torch.ones(5, 4), way(2), 1.0), call(torch.ones(6, 4), way(2), 2.0),
             call(torch.ones(7, 4), way(2), 3.0)]
    assert not check(lambda: program, *steps, captures=None, fullgraph=False, dynamic=dynamic).native_calls


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_size_is_learned_once(backend: str) -> None:
    """The entry of the first size is superseded: that calls have other sizes than it expects is no reason to capture them all."""
    sizes = [call(torch.ones(rows, 4), way(1)) for rows in (3, 4)]
    others = [call(torch.ones(rows, 4), way(number)) for rows, number in enumerate((2, 4, 8, 3, 5, 6, 7, 9, 10, 11, 12), 5)]
    options = {"options": {"background": False}} if backend == "native" else {}
    stats = check(lambda: branches, *sizes, *others, captures=None, fullgraph=False, backend=backend, **options)
    assert stats.captures <= 2 + MOST_UNHIT and stats.native_calls == len(sizes + others) - stats.captures - stats.hits


def test_each_size_waits_where_each_is_captured_by_itself() -> None:
    steps = [call(torch.ones(n, 4), way(1)) for n in (2, 3, 4, 5, 5, 5, 4)]
    stats = check(lambda: branches, *steps, captures=4, hits=1, fullgraph=False, dynamic=False)
    assert stats.native_calls == 2


def test_objects_that_come_and_die_are_hardly_captured() -> None:
    compiled = capture.compile(branches, backend="eager")
    for _ in range(200):
        one = way(0)
        one.a = type("Part", (), {"__len__": lambda self: 1})()
        assert torch.equal(compiled(X, one), X + 1)
    stats = capture.stats(compiled)
    assert stats.captures < 8 and stats.captures + stats.native_calls == 200


def classes() -> Any:
    """Ways of which no two are told alike."""
    for number in range(10**6):
        yield SimpleNamespace(a=type(f"Part{number}", (), {"__len__": lambda self: 1})(), b=[], c=[], d=[])


def test_what_never_comes_again_is_hardly_looked_at() -> None:
    compiled, ways = capture.compile(branches, backend="eager"), classes()
    used = [next(ways) for _ in range(400)]
    for one in used:
        assert torch.equal(compiled(X, one), branches(X, one))
    stats, unit = capture.stats(compiled), unit_of(compiled)
    looked_at = 400 - stats.captures - unit.compiled.deferred
    assert stats.captures == MOST_UNHIT and stats.native_calls == 400 - MOST_UNHIT and looked_at <= PATIENCE + 8
    assert f"{stats.native_calls} for now: captures of calls like them were never hit" in capture.explain(compiled)
    for _ in range(2000):       # by and by, what comes for good is seen
        compiled(X, used[-1])
    assert capture.stats(compiled).captures == MOST_UNHIT + 1 and capture.stats(compiled).hits > 500
    capture.reset()
    for one in used[:MOST_UNHIT]:
        compiled(X, one)
    assert capture.stats(compiled).captures == MOST_UNHIT and not capture.stats(compiled).native_calls


def test_a_capture_that_found_where_to_end_is_followed_by_another() -> None:
    names = {f"v{i}": i for i in range(30)}
    steps = [call(X, n) for n in range(1, 16)]
    stats = check(lambda: lambda x, n: x * getattr(SimpleNamespace(**names), f"v{n}"), *steps, captures=None, fullgraph=False)
    assert not stats.native_calls and stats.captures < 10


def test_strides_that_change_are_learned() -> None:
    """A capture can do without them: it does not wait, though each call has others."""
    stats = check(lambda: lambda x: x * 2, call(torch.randn(3, 4)), call(torch.randn(5, 4)),
                  *(call(torch.randn(3, n, 4)[:, -1]) for n in range(2, 12)), captures=None)
    assert not stats.native_calls and stats.hits > 6, stats


def test_what_captures_may_take_of_the_time() -> None:
    spending = Spending()
    spending.add(10, 11.5)
    assert not spending.is_too_large(11.5)                  # less than two seconds
    spending.add(12, 14)
    with CAPTURING_SHARE.set(50):
        assert spending.is_too_large(16.9) and not spending.is_too_large(17)
    with CAPTURING_SHARE.set(10):
        assert spending.is_too_large(44.9) and not spending.is_too_large(45)
    with CAPTURING_SHARE.set(100):
        assert not spending.is_too_large(14)
    assert not Spending().is_too_large(14)


def test_captures_that_take_too_much_of_the_time_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the first two; hits go on, what waits is captured once the program has run for a while. Continuations wait too."""
    now = [0.0]
    add = Spending.add
    monkeypatch.setattr(Spending, "add", lambda self, start, end: add(self, 0, 3))       # each capture takes three seconds
    monkeypatch.setattr(capture.unit, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def program(x: torch.Tensor, way: Any) -> torch.Tensor:
        x = branches(x, way)
        return x - 1 if x.sum() > 0 else x + 1
    with CAPTURING_SHARE.set(50):
        compiled = capture.compile(program, backend="eager")
        stats = []
        for moment, number in [(3, 1), (6, 2), (6, 2), (6, 1), (6, 4), (6, 4), (30, 4), (30, 4), (30, 1)]:
            now[0] = moment
            assert torch.equal(compiled(X, way(number)), program(X, way(number)))
            stats.append((capture.stats(compiled).captures, capture.stats(compiled).native_calls))
        captures = [number for number, _ in stats]
        assert captures[0] == 1 and captures[2] == captures[5] < captures[6]
        assert captures[6:] == captures[6:7] * 3
        assert stats[5][1] > stats[3][1] and stats[-1][1] == stats[6][1]
        assert "captures have taken too much of the time" in capture.explain(compiled)
        capture.reset()
        now[0] = 0
        compiled(X, way(1))
        assert capture.stats(compiled).captures == captures[0]


def test_fullgraph_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Spending, "is_too_large", lambda self, now: True)
    assert check(lambda: branches, *calls(1, 2, 4, 3), captures=4, fullgraph=True).captures == 4
