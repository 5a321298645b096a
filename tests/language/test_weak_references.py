"""Weak references, proxies and containers of them, which lead to objects from outside, in one graph."""
from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import torch

import capture
from tests.helpers import call, check
from tests.programs import Programs

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
programs = Programs()


class Owner:
    """What is referred to."""

    def __init__(self, scale=2.0):
        self.scale = scale

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return self.scale + index

    def __call__(self, t):
        return t * self.scale

    def __str__(self):
        return f"owner of {self.scale}"


class Child:
    def __init__(self, owner):
        self.owner = weakref.proxy(owner)

    def scaled(self, t):
        self.owner.calls = getattr(self.owner, "calls", 0) + 1
        return t * self.owner.scale


@programs.make(X, change=lambda owner: setattr(owner, "scale", 5.0), captures=None)
def a_child_that_knows_its_owner():
    owner = Owner()
    child = Child(owner)

    def program(x):
        return child.scaled(x), Child(owner).scaled(x), owner.calls, isinstance(child.owner, Owner), hasattr(child.owner, "none")
    return program, owner


@programs.make(X, change=lambda owner: setattr(owner, "scale", 5.0), captures=2)
def operations_on_a_proxy():
    owner = Owner()
    proxy = weakref.proxy(owner)

    def program(x):
        same = [proxy][0] is proxy
        return proxy(x), len(proxy), proxy[1], str(proxy), bool(proxy), same, type(proxy) is weakref.CallableProxyType
    return program, owner


@programs.make(X)
def a_proxy_of_what_is_made_inside():
    def program(x):
        owner = Owner(3.0)
        child = Child(owner)
        return child.scaled(x), owner.calls
    return program


@programs.make(X, change=lambda state: state.table.update({state.owner: 7.0}), captures=2)
def a_table_by_objects():
    state = SimpleNamespace(owner=Owner())
    state.table = weakref.WeakKeyDictionary({state.owner: 3.0})

    def program(x):
        other = Owner()
        return x * state.table[state.owner], other in state.table, state.table.get(other, 1.0), len(state.table)
    return program, state


@programs.make(X, change=lambda state: state.table.clear(), captures=2)
def a_memo_by_modules():
    state = SimpleNamespace(table=weakref.WeakKeyDictionary(), layer=torch.nn.Tanh())

    def program(x):
        if state.layer not in state.table:
            state.table[state.layer] = 4.0
        return state.layer(x) * state.table[state.layer]
    return program, state


@programs.make(X, change=lambda state: state.table.update({state.late: 9.0}), captures=2)
def items_of_a_table_by_objects():
    state = SimpleNamespace(owner=Owner(), late=Owner(4.0))
    state.table = weakref.WeakKeyDictionary({state.owner: 3.0})

    def program(x):
        for owner, weight in state.table.items():
            x = x * weight + owner.scale
        return x, [value for value in state.table.values()]
    return program, state


@programs.make(X, change=lambda state: state.group.clear(), captures=2)
def sets_of_weak_references():
    state = SimpleNamespace(owner=Owner(), late=Owner(4.0), group=weakref.WeakSet())
    state.group.add(state.owner)

    def program(x):
        return x * sum(owner.scale for owner in state.group), state.late in state.group, len(state.group)
    return program, state


@programs.make(X, change=lambda state: setattr(state, "owner", Owner(4.0)), captures=2)
def references_that_tell_of_a_death():
    state = SimpleNamespace(owner=Owner(), references=[], seen=[])

    def program(x):
        scale = state.owner.scale
        state.references.append(weakref.ref(state.owner, lambda reference: state.seen.append(scale)))
        weakref.ref(state.owner, state.seen.append)         # which nobody keeps
        return x * scale, state.references[-1]() is state.owner
    return program, state


test_weak_references = programs.test()


def test_a_proxy_of_what_has_died() -> None:
    owner = Owner()
    child = Child(owner)

    def program(x):
        try:
            return x * child.owner.scale
        except ReferenceError as error:
            return str(error)
    compiled = capture.compile(program, fullgraph=True, backend="eager")
    assert torch.equal(compiled(X), X * 2) and torch.equal(compiled(X), X * 2)
    del owner
    gc.collect()
    assert compiled(X) == compiled(X) == program(X)
    assert capture.stats(compiled).hits == 2


def test_a_table_does_not_keep_what_it_is_asked_for() -> None:
    owner = Owner()
    table = weakref.WeakKeyDictionary({owner: 3.0})
    holder = [owner]
    program = capture.compile(lambda x: x * table[holder[0]], fullgraph=True, backend="eager")
    assert torch.equal(program(X), X * 3) and torch.equal(program(X), X * 3)
    reference = weakref.ref(owner)
    holder[0] = None
    del owner
    assert reference() is None and len(table) == 0


def test_a_death_inside() -> None:
    """Of an object that the call makes, and of one from outside, whose last reference the call drops."""
    def make():
        state = SimpleNamespace(owner=None, seen=[])

        def program(x):
            kept = Owner(5.0)
            state.reference = weakref.ref(kept, lambda reference: state.seen.append("inner"))
            other = weakref.proxy(state.owner, lambda proxy: state.seen.append("outer"))
            x = x * other.scale
            state.owner = None
            x = x * len(state.seen)
            del kept
            return x + len(state.seen), state.reference()
        return program, state

    def renew(state):
        state.owner = Owner(len(state.seen))
    check(make, renew, call(X), renew, call(X), renew, call(X), fullgraph=False, captures=None)
