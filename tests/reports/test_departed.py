"""What a report tells of entries and compiled functions that are gone with their objects, and of values behind breaks."""
from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import capture

X = torch.ones(3)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    capture.reset()


def captured() -> list[Any]:
    """What was captured in this test: compiled functions of other tests are there as well."""
    return [frame for frame in capture.report().frames if frame.captures]


def test_the_hits_of_an_entry_whose_objects_died_still_count() -> None:
    def apply(f, x):
        return f(x) * 2

    compiled = capture.compile(apply, backend="eager")
    for factor in (2, 3):
        module = nn.Linear(3, factor)
        for _ in range(3):
            compiled(module.forward.__func__.__get__(module), X)
        table = type("Table", (), {"scale": factor, "__call__": lambda self, x: x * self.scale})
        for _ in range(3):
            compiled(table(), X)
        reference = weakref.ref(table)
        del table
        gc.collect()
        assert reference() is None, "a report keeps no object alive"
    stats, (frame,) = capture.stats(compiled), capture.report(compiled).frames
    assert stats.hits == frame.hits == 12 - stats.captures and frame.departed.entries == 2
    assert frame.graphs == frame.captures == stats.captures
    assert "2 entries were dropped" in str(frame) and "2 entries were dropped" in str(capture.report(compiled))


def test_an_entry_that_dies_while_a_report_is_made_is_left_out(monkeypatch) -> None:
    """The garbage collector may run at any time; here it runs once the report has the list of entries."""
    compiled = capture.compile(lambda table, x: x * table.scale, backend="eager")
    tables = [type("Table", (), {"scale": scale})() for scale in (2, 3)]
    for table in tables:
        compiled(table, X)

    def collected(entries: Any, **order: Any) -> list[Any]:
        found = sorted(entries, **order)
        del tables[1:]
        gc.collect()
        return found
    monkeypatch.setattr("capture.reports.build.sorted", collected, raising=False)
    del table
    (frame,) = capture.report(compiled).frames
    assert len(frame.entries) == 1 and frame.captures == 2


def test_native_calls_of_an_entry_whose_objects_died_still_count() -> None:
    class Fails:
        def __call__(self):
            raise KeyError("always")

    compiled = capture.compile(lambda f, x: f(), backend="eager")
    kinds = [Fails]
    for _ in range(3):
        with pytest.raises(KeyError):
            compiled(kinds[0](), X)
    before = capture.stats(compiled).native_calls
    del kinds, Fails
    gc.collect()
    assert capture.stats(compiled).native_calls == before == 2 and not compiled.tree.entries


def test_a_compiled_function_that_is_gone_stays_in_the_report_and_keeps_nothing_alive() -> None:
    class Token:
        pass

    def use() -> weakref.ref:
        token = Token()

        def passing(x):
            assert token
            y = x * 2
            gc.get_count()
            return y + 1
        compiled = capture.compile(passing, backend="eager")
        for _ in range(4):
            compiled(X)
        return weakref.ref(token)
    reference = use()
    gc.collect()
    assert reference() is None
    frame, = captured()
    assert (frame.name, frame.captures, frame.hits, frame.graphs, frame.operations) == ("passing", 2, 6, 2, 2)
    assert [broken.reason for broken in frame.breaks] == ["opaque-call"] and frame.place.function.endswith("passing")
    assert "passing: captured with 1 break (2 captures, 2 graphs, 2 operations); 6 hits" in str(capture.report())
    assert capture.report().json()
    capture.reset()
    assert captured() == []


def test_what_is_gone_comes_in_its_place() -> None:
    def made(name):
        function = lambda x: x * 2
        function.__name__ = name
        compiled = capture.compile(function, backend="eager")
        compiled(X)
        return compiled
    kept = [made("first"), made("second"), made("third")]
    del kept[1]
    gc.collect()
    assert [frame.name for frame in captured()] == ["first", "second", "third"]


# -- behind breaks -----------------------------------------------------------------------------------------------------

@capture.disable
def outside(value):
    return value


def changes_of(function, *calls):
    compiled = capture.compile(function, backend="eager")
    for args in calls:
        compiled(*args)
    frame, = capture.report(compiled).frames
    return [change for each in frame.walk() for recapture in each.recaptures for change in recapture.changes]


def test_the_result_of_a_break_is_called_by_its_expression() -> None:
    def function(x, k):
        if outside(k) > 3:
            return x * 2
        return x + 1
    change, = changes_of(function, (X, 1), (X, 5))
    assert (change.subject, change.place.text) == ("outside(k) > 3", "if outside(k) > 3:")


def test_a_branch_on_a_tensor_is_called_by_its_condition() -> None:
    def function(x):
        if x.sum() > 3.5:
            return x * 2
        return x + 1
    change, = changes_of(function, (X,), (X * 2,))
    assert change.subject == "x.sum() > 3.5"


def test_locals_of_frames_inside_are_called_by_their_names() -> None:
    def inner(x, scale):
        outside(None)
        return x * 2 if scale > 3 else x

    def function(x, scale):
        return inner(x, scale) + 1
    change, = changes_of(function, (X, 1), (X, 5))
    assert change.subject == "scale > 3"


def test_values_between_are_called_by_their_line() -> None:
    def function(x, k):
        return [k + 1, outside(2), x][0] > 3 and x * 2
    subjects = {change.subject for change in changes_of(function, (X, 1), (X, 5))}
    assert subjects and not any("__" in subject for subject in subjects), subjects
    assert any(f"line {function.__code__.co_firstlineno + 1}" in subject for subject in subjects)


def test_attributes_of_what_a_break_returned() -> None:
    def function(x, holder):
        return x * 2 if outside(holder.box).size > 3 else x
    holders = [SimpleNamespace(box=SimpleNamespace(size=size)) for size in (1, 5)]
    change, = changes_of(function, (X, holders[0]), (X, holders[1]))
    assert change.subject == "outside(holder.box).size > 3"
