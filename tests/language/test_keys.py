"""Keys and members whose equality or hash is written in Python, in one graph."""
from __future__ import annotations

import enum
import fractions
import gc
import pathlib
import uuid
from types import SimpleNamespace

import pytest
import torch

import capture
from tests.programs import Programs

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
programs = Programs()


class Key:
    def __init__(self, name, tag=None):
        self.name, self.tag = name, tag

    def __eq__(self, other):
        return isinstance(other, Key) and self.name == other.name

    def __hash__(self):
        return hash(self.name)


class Colliding(Key):
    __hash__ = lambda self: 7


class Unhashable:
    __hash__ = None


@programs.add(X)
def dicts_by_keys_of_python(x):
    d = {Key("a"): x, Key("b"): x * 2}
    d[Key("a", "other")] = x + 1
    d[Key("c")] = 3
    removed = d.pop(Key("b"))
    missing = d.pop(Key("z"), "none")
    del d[Key("c")]
    return (d[Key("a")], removed, missing, Key("a") in d, Key("b") in d, d.get(Key("q"), 0), len(d), [k.tag for k in d],
            d.setdefault(Key("a"), 9) is d[Key("a")], d.setdefault(Key("e"), 5), [k.name for k in d])


@programs.add(X)
def sets_of_keys_of_python(x):
    s = {Key("a"), Key("b"), Key("a")}
    s.add(Key("c"))
    s.add(Key("b"))
    s.discard(Key("a"))
    return x * len(s), Key("a") in s, Key("c") in s, len({Key(n) for n in "aab"}), Key("q") not in s


@programs.add(X)
def keys_that_collide(x):
    d = {Colliding("a"): x, Colliding("b"): x * 2, 7: "seven"}
    return d[Colliding("b")], d[7], Colliding("c") in d, len(d)


@programs.make(X, change=lambda state: state.table.__setitem__(Key("a"), 5.0), captures=2)
def an_outside_dict_by_keys_of_python():
    state = SimpleNamespace(table={Key("a"): 2.0, Key("b"): 3.0})

    def program(x):
        state.table[Key("b")] = 4.0
        return x * state.table[Key("a")], Key("c") in state.table, state.table.get(Key("b"))
    return program, state


@programs.make(X, change=lambda state: setattr(state.key, "name", "b"), captures=2)
def a_key_that_comes_to_be_another():
    state = SimpleNamespace(key=Key("a"), table={Key("a"): 2.0, Key("b"): 3.0})
    return lambda x: x * state.table[state.key], state


@programs.make(X, change=lambda state: state.clear(), captures=None)
def a_memo_by_keys_of_python():
    memo = {}

    def program(x):
        if (key := Key("a")) not in memo:
            memo[key] = 2.0
        return x * memo[key]
    return program, memo


class Counting(Colliding):
    """Keeps the number of comparisons, and shows each."""
    compared = 0

    def __eq__(self, other):
        Counting.compared += 1
        print("compares", self.name, getattr(other, "name", other))
        return isinstance(other, Key) and self.name == other.name

    __hash__ = Colliding.__hash__


@programs.add(X)
def how_often_keys_are_compared(x):
    Counting.compared = 0
    d = {Counting("a"): 1, Counting("b"): 2}
    d[Counting("c")] = x
    d[Counting("b")] = 4
    d.setdefault(Counting("d"), 5)
    del d[Counting("c")]
    s = {Counting("a"), Counting("b")}
    s.add(Counting("c"))
    s.discard(Counting("b"))
    return x + 1, Counting.compared, [key.name for key in d], sorted(key.name for key in s)


@programs.make(X, change=lambda state: state.table.__setitem__(Counting("q"), 5.0), captures=2)
def how_often_keys_from_outside_are_compared():
    state = SimpleNamespace(table={Counting("a"): 2.0, Counting("b"): 3.0, 7: 1}, members={Counting("c"), Counting("d")}, log=[])

    def program(x):
        table, members = state.table, state.members
        table[Counting("b")] += 1
        table[Counting("z")] = x
        del table[Counting("z")]
        members.add(Counting("e"))
        members.discard(Counting("e"))
        state.log.append([getattr(key, "name", key) for key in table])
        return x * 2
    return program, state


@programs.make(X)
def a_key_of_c_that_is_added_among_keys_of_python():
    """These are compared with no other then."""
    table = {Counting("a"): 1, Counting("b"): 2}

    def program(x):
        table.setdefault("new", 4)
        del table["new"]
        return x + 1
    return program, table


class Emptying(Key):
    """Empties a container whenever it is compared, and then equals everything."""

    def __init__(self, container):
        self.container = container

    def __eq__(self, other):
        self.container.clear()
        return True

    __hash__ = Colliding.__hash__


@programs.add(X)
def comparisons_that_empty_the_container(x):
    log, key = [], Colliding("a")
    for operation in (lambda d: key in d, lambda d: d.get(key), lambda d: d.pop(key, "none"), lambda d: d.setdefault(key, 1),
                      lambda d: d[key], lambda d: d.__setitem__(key, 2), lambda d: d.__delitem__(key)):
        table = {}
        table[Emptying(table)] = x
        try:
            log.append(operation(table))
        except KeyError as error:
            log.append(error.args[0] is key)
        log.append([value for value in table.values()])
    for operation in (lambda s: key in s, lambda s: s.add(key), lambda s: s.discard(key), lambda s: s.remove(key)):
        members = set()
        members.add(Emptying(members))
        try:
            log.append(operation(members))
        except KeyError as error:
            log.append(error.args[0] is key)
        log.append([member is key for member in members])
    return x * 2, log


class Members(set):
    """A set that says what it is asked."""

    def __contains__(self, member):
        print("asked for", sorted(map(str, member)))
        return super().__contains__(member)


@programs.add(X)
def sets_that_are_looked_up_in_sets(x):
    members = {frozenset("ab"), frozenset("c"), 3}
    log = [{"a", "b"} in members, {"d"} in members, set("c") in frozenset(members), Members("c") in members,
           set("ab") not in members, members.discard({"c"}), members.discard({"q"}), members.remove({"a", "b"}), members,
           {"q"} in Members(members)]
    for operation in (lambda key: members.remove(key), lambda key: members.add(key)):
        key = {"z"}
        try:
            operation(key)
        except KeyError as error:
            log.append(error.args[0] is key)
        except TypeError as error:
            log.append(str(error))
    return x * 2, log


@programs.make(X)
def a_frozen_set_of_keys_that_collide():
    members = frozenset([Counting("a"), Counting("b")])

    def program(x):
        return x * 2, Counting("b") in members, Counting("q") in members
    return program, SimpleNamespace(members=members)


@programs.make(X, change=lambda state: state.table.__setitem__(7, "seven"), captures=2)
def values_of_c_that_have_the_hash_of_a_key():
    state = SimpleNamespace(table={Counting("a"): 2.0, 3: 4}, members={Counting("c"), 1}, ordinary={1: 2})

    def program(x):
        table, members = state.table, state.members
        found = [7 in table, 7.0 in members, table.get(7), table.setdefault(7, "new"), 7 in table.keys(), (7,) in table]
        table[7.0] += "!"
        members.add(7)
        members.discard(7.0)
        found += [table.pop(7), table.pop(7, None), 3 in table, 1 in members, True in state.ordinary]
        try:
            del table[7]
        except KeyError as error:
            found.append(error.args)
        return x * 2, found
    return program, state


@programs.add(X)
def keys_that_take_the_place_of_others(x):
    d = {Counting(name): name for name in "abc"}
    del d[Counting("a")]
    d[Counting("e")] = "e"
    return x, Counting("z") in d, 7 in d, [key.name for key in d]


class Shade(enum.Enum):
    """Equals its value, and shows each comparison."""
    LIGHT, DARK = "light", "dark"

    def __eq__(self, other):
        print("compares", self.name)
        return self.value == getattr(other, "value", other)

    def __hash__(self):
        return hash(self.value)


@programs.make(X, change=lambda state: state.table.__setitem__(Shade.DARK, 5.0), captures=2)
def members_of_enumerations_that_equal_their_values():
    state = SimpleNamespace(table={Shade.LIGHT: 2.0, "none": 3.0}, seen={Shade.DARK})

    def program(x):
        found = ["light" in state.table, Shade.DARK in state.table, state.table[Shade("light")], "dark" in state.seen]
        state.seen.add("dark")
        return x * state.table["light"], found, len(state.seen)
    return program, state


class Hashed(Key):
    """Counts how often it is hashed."""
    hashed = 0

    def __hash__(self):
        Hashed.hashed += 1
        return 7

    __eq__ = Counting.__eq__


@programs.add(X)
def sets_of_what_is_hashed_already(x):
    d, Hashed.hashed = {Hashed("a"): 1, Hashed("b"): 2}, 0
    s = set(d)
    t = set(s)
    return x, len(s), len(t), Hashed.hashed, sorted(key.name for key in t)


@programs.make(X)
def tuples_with_keys_of_python():
    state = SimpleNamespace(table={(Key("a"), 1.5): 1.0, (Key("b"), "b", (2 ** 70,)): 2.0})

    def program(x):
        state.table[Key("b"), "b", (2 ** 70,)] += 1
        state.table.pop((Key("q"), 1.5), None)
        return x * state.table[Key("a"), 1.5], len(state.table)
    return program, state


@programs.add(X)
def keys_of_the_library(x):
    d = {fractions.Fraction(1, 2): x, uuid.UUID(int=3): x + 1, pathlib.PurePosixPath("a/b"): x + 2, (Key("a"), 1): x + 3}
    return d[fractions.Fraction(2, 4)], d[uuid.UUID(int=3)], d[pathlib.PurePosixPath("a") / "b"], d[Key("a"), 1], 0.5 in d


@programs.add(X)
def what_cannot_be_a_key(x):
    log = []
    for key in ([], {}, Unhashable(), (1, [])):
        try:
            {}[key]
        except TypeError as error:
            log.append(str(error))
    return x, log


test_keys = programs.test()


class Marker:
    """Something that is hashed by identity."""


MARK = Marker()


@pytest.mark.parametrize("make", [
    lambda x, p: frozenset(p.items()), lambda x, p: (frozenset({frozenset(p)}), 1), lambda x, p: frozenset((MARK, (Marker, 1))),
    lambda x, p: frozenset(p) | {x.shape[0]}], ids=["data", "nested", "objects", "joined"])
def test_frozen_sets_that_are_made_anew(make):
    """Nobody but the entry holds a frozen set that follows from what is guarded: it must not die with the call."""
    def program(x, p, held, gathered):
        key = make(x, p)
        held[key] = 1
        held["value"] = key
        gathered.add(key)
        return x + 1, key, {key: 2}

    def seen(function):
        held, gathered = {}, set()
        result = function(torch.ones(2), {"a": 1, "b": 2}, held, gathered)
        gc.collect()
        return result[1:], held, gathered
    compiled = capture.compile(program, fullgraph=True)
    for _ in range(3):
        assert seen(compiled) == seen(program)
    assert capture.stats(compiled).hits == 2
