"""`_C.has_item`, `_C.peek`, `_C.skip`: what iterators of C will yield, and that looking does not move them."""
from __future__ import annotations

import itertools
import sys

import pytest

from capture import _C
from capture.refgraph import iterators

MAKERS = {
    "list": lambda: iter([1, "b", None]), "empty list": lambda: iter([]),
    "tuple": lambda: iter((1, 2.5, ())), "range": lambda: iter(range(2, 9, 3)), "range backwards": lambda: iter(range(9, -4, -5)),
    "range at the edge": lambda: iter(range(sys.maxsize - 6, sys.maxsize - 1, 2)), "empty range": lambda: iter(range(0)),
    "keys": lambda: iter({"a": 1, "b": 2}), "values": lambda: iter({"a": 1, "b": 2}.values()),
    "items": lambda: iter({"a": 1, "b": 2, "c": 3}.items()), "empty dict": lambda: iter({}),
    "enumerate": lambda: enumerate(["x", "y"], 5), "enumerate far": lambda: enumerate(["x", "y"], sys.maxsize),
    "zip": lambda: zip([1, 2, 3], range(5), "ab".split("b")), "zip of nothing": lambda: zip(),
    "zip strict": lambda: zip([1, 2], (3, 4), strict=True), "nested": lambda: enumerate(zip(range(3), {"k": 1, "l": 2}.items())),
}


@pytest.mark.parametrize("name", MAKERS)
def test_items_ahead_are_those_that_come(name) -> None:
    make = MAKERS[name]
    items = list(make())
    for taken in range(len(items) + 2):
        iterator = make()
        for _ in range(taken):
            next(iterator, None)
        assert _C.can_look_ahead(iterator)
        for ahead in range(4):
            left = items[taken:]
            assert _C.has_item(iterator, ahead) is iterators.has_item(iterator, ahead) is (ahead < len(left))
            if ahead < len(left):
                found, known = _C.peek(iterator, ahead), iterators.peek(iterator, ahead)
                assert found == known == left[ahead] and type(found) is type(left[ahead])
            else:
                with pytest.raises(StopIteration):
                    _C.peek(iterator, ahead)
        assert list(iterator) == items[taken:]          # still where it was


def test_a_list_that_changes_below() -> None:
    items = [1, 2, 3]
    iterator = iter(items)
    next(iterator)
    items.append(4)
    assert _C.peek(iterator, 2) == 4
    del items[1:]
    assert not _C.has_item(iterator, 0)
    items += [5, 6]
    assert _C.peek(iterator, 1) == 6 and list(iterator) == [5, 6]
    items.append(7)
    assert not _C.has_item(iterator, 0) and list(iterator) == []      # it has ended for good


def test_a_dict_that_changes_below() -> None:
    items = {i: str(i) for i in range(6)}
    for key in (0, 3):
        del items[key]
    iterator = iter(items.items())
    assert [_C.peek(iterator, i) for i in range(4)] == [(1, "1"), (2, "2"), (4, "4"), (5, "5")]
    next(iterator)
    assert _C.peek(iterator, 1) == (4, "4")
    items[7] = "7"
    for look in (_C.has_item, _C.peek):
        with pytest.raises(RuntimeError, match="changed size"):
            look(iterator, 0)


def test_lengths_that_differ_are_no_end() -> None:
    for parts in (([1], []), ([], [1]), ([], [], [1])):
        iterator = zip(*parts, strict=True)
        with pytest.raises(ValueError):
            _C.has_item(iterator, 0)
    assert not _C.has_item(zip([], [], strict=True), 0)


@pytest.mark.parametrize("iterator", [iter("ab"), iter({1}), itertools.count(), iter([].append, 1), (i for i in ()), 5,
                                      zip("ab", [1]), enumerate(i for i in ())], ids=lambda iterator: type(iterator).__name__)
def test_other_iterators_are_refused(iterator) -> None:
    assert not _C.can_look_ahead(iterator)
    for look in (_C.has_item, _C.peek):
        with pytest.raises(TypeError):
            look(iterator, 0)


def test_arguments_are_checked() -> None:
    for look in (_C.has_item, _C.peek, _C.skip):
        for arguments in ((), (iter([]),), (iter([]), -1), (iter([]), "1"), (iter([]), 1, 1)):
            with pytest.raises(TypeError):
                look(*arguments)
    with pytest.raises(TypeError):
        _C.skip([1], 1)


def test_items_are_skipped() -> None:
    iterator = iter([1, 2, 3, 4])
    _C.skip(iterator, 2)
    assert next(iterator) == 3
    _C.skip(iterator, 2)
    assert next(iterator, "end") == "end"
    _C.skip(iterator, 5)

    def failing():
        yield 1
        raise KeyError("program")
    with pytest.raises(KeyError):
        _C.skip(failing(), 2)


def test_nothing_is_leaked() -> None:
    item = object()
    iterators_over = [iter([item]), iter((item,)), iter({"k": item}.items()), enumerate([item]), zip([item], [item])]
    before = sys.getrefcount(item)
    for iterator in iterators_over:
        for _ in range(10):
            _C.peek(iterator, 0)
            _C.has_item(iterator, 0)
    assert sys.getrefcount(item) == before
