"""Dicts and sets whose keys have a hash that is known: what C does with them runs no code of the keys."""
from __future__ import annotations

import gc
import weakref

import pytest

from capture import _C


class Key:
    """All collide; comparing them is noted, and hashing them is forbidden once they are in the container."""

    def __init__(self, name: str) -> None:
        self.name, self.compared = name, 0

    def __eq__(self, other: object) -> bool:
        self.compared += 1
        return isinstance(other, Key) and self.name == other.name

    def __hash__(self) -> int:
        return 7


def compared(*keys: Key) -> int:
    return sum(key.compared for key in keys)


@pytest.fixture
def keys() -> list[Key]:
    return [Key(name) for name in "abcd"]


def test_keys_of_a_dict_are_put_and_taken_out_without_comparing(keys: list[Key]) -> None:
    a, b, c, d = keys
    table: dict = {}
    for key in (a, b, c):
        _C.put(table, key, key.name, 7)
    _C.put(table, b, "again", 7)
    _C.take_out(table, a, 7)
    assert [(key.name, value) for key, value in table.items()] == [("b", "again"), ("c", "c")]
    with pytest.raises(KeyError):
        _C.take_out(table, d, 7)
    assert compared(*keys) == 0 and all(type(key) is Key for key in keys)
    assert table[Key("c")] == "c" and compared(*keys) == 2, "they compare as before"


def test_members_of_a_set_are_put_and_taken_out_without_comparing(keys: list[Key]) -> None:
    members: set = set()
    for key in keys:
        _C.put(members, key, None, 7)
    _C.put(members, keys[1], None, 7)
    _C.take_out(members, keys[2], 7)
    assert sorted(key.name for key in members) == ["a", "b", "d"] and compared(*keys) == 0
    assert Key("c") not in members and compared(*keys) >= 3, "they compare as before"


def test_candidates_are_told_in_the_order_in_which_they_are_compared(keys: list[Key]) -> None:
    order: list[str] = []

    class Asked(Key):
        def __eq__(self, other: object) -> bool:
            order.append(self.name)
            return False
        __hash__ = Key.__hash__
    for container in ({}, set()):
        for name in "abcdefghijklmnop":
            _C.put(container, Asked(name), None, 7)
            container.add(len(container) + 3) if isinstance(container, set) else container.setdefault(len(container) + 3)
        order.clear()
        assert Asked("z") not in container
        found = [key.name for key in _C.candidates(container, 7) if isinstance(key, Asked)]
        assert found == order and len(order) == 16
        assert {kept for key, kept in _C.hashed_keys(container) if isinstance(key, Asked)} == {7}
        for key in [key for key in container if getattr(key, "name", "") in {"a", "c"}]:
            _C.take_out(container, key, 7)
        for name in "qrs":                      # some where others have been
            _C.put(container, Asked(name), None, 7)
        order.clear()
        assert Asked("z") not in container
        assert [key.name for key in _C.candidates(container, 7) if isinstance(key, Asked)] == order and len(order) == 17


def test_candidates_among_texts_attributes_and_many_keys(keys: list[Key]) -> None:
    class Box:
        pass
    box, other = Box(), Box()
    box.text, other.number = 1, 2               # their dicts share keys
    assert _C.candidates({}, 7) == _C.candidates(vars(other), hash("text")) == []
    for table in (vars(box), {"text": 1}):      # CPython may come by a place more than once
        assert list(dict.fromkeys(_C.candidates(table, hash("text")))) == ["text"]
    for size in (100, 300, 70_000):             # places are kept in one, two and four bytes
        table = {number: None for number in range(size)}
        assert _C.candidates(table, size - 1) == [size - 1] and _C.candidates(table, size) == []


def test_a_tuple_or_number_that_was_made_anew_is_the_key_that_is_there(keys: list[Key]) -> None:
    key = keys[0]
    table = {(key, 1.5, "text", (2 ** 70,)): 1, (keys[1], 1.5, "text", (2 ** 70,)): 2}
    compared_before = compared(*keys)
    again = (key, float("1.5"), "".join(["te", "xt"]), (2 ** 70 + len(table) - 2,))
    _C.put(table, again, 3, hash(again))
    assert list(table.values()) == [3, 2]
    _C.take_out(table, again, hash(again))
    assert list(table.values()) == [2] and compared(*keys) == compared_before
    numbers = {2 ** 70: 1}
    _C.put(numbers, 2 ** 70 + len(numbers) - 1, 5, hash(2 ** 70))
    assert numbers == {2 ** 70: 5}


def test_what_is_dropped_dies_when_all_keys_are_themselves_again(keys: list[Key]) -> None:
    table, seen = {}, []

    class Value:
        def __del__(self) -> None:
            seen.append([type(key) is Key for key in keys])
    for key in keys:
        _C.put(table, key, Value(), 7)
    _C.put(table, keys[0], None, 7)
    _C.take_out(table, keys[1], 7)
    assert seen == [[True] * 4] * 2
    kept = weakref.ref(keys[2])
    _C.take_out(table, keys[2], 7)
    del key, keys[2]
    gc.collect()
    assert kept() is None


def test_what_is_no_dict_or_set_is_told() -> None:
    for call in (lambda: _C.put([], 1, 2, 3), lambda: _C.take_out("", 1, 2), lambda: _C.candidates(1, 2),
                 lambda: _C.hashed_keys(())):
        with pytest.raises(TypeError, match="a dict or set is needed"):
            call()
