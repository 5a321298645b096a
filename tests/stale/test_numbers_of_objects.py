"""What `id` returned, kept in containers that outlive the call: on every hit the number of the object that is there then."""
from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import capture

X = torch.ones(2, 2)


class Box:
    pass


def three(x):
    return [1], Box(), x + 1


def a_display(x, state):
    objects = three(x)
    first, second, third = objects
    return {id(first): 1, id(second): 2, id(third): 3}, objects


def a_dict_that_is_filled(x, state):
    objects, found = three(x), {}
    for item in objects:
        found[id(item)] = item
    return found, objects


def a_comprehension(x, state):
    objects = three(x)
    return {id(item): number for number, item in enumerate(objects)}, objects


def a_set(x, state):
    objects, found = three(x), set()
    for item in objects:
        found.add(id(item))
    return found, objects


def a_frozenset(x, state):
    objects = three(x)
    return frozenset(map(id, objects)), objects


def a_list(x, state):
    objects = three(x)
    return sorted([id(item) for item in objects]), objects


def tuples(x, state):
    objects = three(x)
    found = {(id(item), number): item for number, item in enumerate(objects)}
    return [number for number, _ in found], objects


def keys_in_tuples(x, state):
    objects = three(x)
    found = {(id(item),) for item in objects}
    return [numbers[0] for numbers in found], objects


def an_outside_dict(x, state):
    objects = three(x)
    for item in objects:
        if id(item) not in state.table:
            state.table[id(item)] = item
    return [id(item) for item in objects if state.table[id(item)] is item], objects


def an_outside_set(x, state):
    objects = three(x)
    for item in objects:
        state.members.add(id(item))
    return [number for number in map(id, objects) if number in state.members], objects


def an_attribute(x, state):
    objects = three(x)
    state.numbers = [id(item) for item in objects]
    state.texts = [f"{id(item)}" for item in objects]
    return list(state.numbers) if state.texts == list(map(str, state.numbers)) else [], objects


def parameters_from_outside(x, state):
    state.models.reverse()
    objects = list(state.models[0].parameters())
    return {id(item): item for item in objects}, objects


def parameters(x, state):
    objects = list(nn.Linear(2, 2).parameters())
    return {id(item): item for item in objects}, objects


def a_memo(x, state):
    inner = [x, 2]
    objects, memo = ([1, inner], inner), {}
    copy.deepcopy(objects[0], memo)
    return [number for number in map(id, objects) if number in memo], objects


def behind_a_break(x, state):
    objects = three(x)
    found = {id(item): item for item in objects}
    if x.sum() > 100:
        return found, []
    found[id(x)] = x
    return found, [*objects, x]


@pytest.mark.parametrize("program", [
    a_display, a_dict_that_is_filled, a_comprehension, a_set, a_frozenset, a_list, tuples, keys_in_tuples, an_outside_dict,
    an_outside_set, an_attribute, parameters_from_outside, parameters, a_memo, behind_a_break],
    ids=lambda program: program.__name__)
def test_numbers_are_those_of_the_call(program) -> None:
    state = SimpleNamespace(table={}, members=set(), models=[nn.Linear(2, 2), nn.Linear(2, 2)])
    compiled = capture.compile(program, backend="eager")
    results = [compiled(X * number, state) for number in range(6)]       # all of which live on
    for numbers, objects in results:
        assert set(numbers) == set(map(id, objects)), program
    assert program is an_outside_set or capture.stats(compiled).hits, capture.stats(compiled)
