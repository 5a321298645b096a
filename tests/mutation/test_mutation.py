"""A small budget of mutated worlds; that the mutations reach what a program depends on, and that a missing guard is found."""
from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from capture.guards.tree import GuardTree
from tests.helpers import call
from tests.mutation import sources
from tests.mutation.guards import Seen, Survey
from tests.mutation.hunt import Hunt
from tests.mutation.world import Mutation, World, all_mutations, compare, run

X = torch.arange(1.0, 7.0).reshape(2, 3)
EACH = 12


class Scale:
    limit = 3

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.items = [1.0, 2.0]

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor if len(self.items) < self.limit else x


def objects() -> Any:
    box, table, members = Scale(2.0), {"shift": 1.0, "name": "a"}, {2, 7}

    def program(x, n=2):
        if table["name"] == "a" and n in members:
            x = x + table["shift"]
        return box.apply(x), [item for item in box.items], isinstance(box, Scale)
    return program, types.SimpleNamespace(box=box, table=table, members=members)


def functions() -> Any:
    def helper(x, *, scale=2.0):
        return x * scale
    holder = types.SimpleNamespace(helper=helper, of=(1, "b"), none=None)

    def program(x):
        first, second = holder.of
        return holder.helper(x) + first, f"{second}{holder.none}", torch.relu(x).sum()
    return program, holder


def network() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Dropout(0.5))


def iterators() -> Any:
    state = types.SimpleNamespace(numbers=[1.0, 2.0], keys={"a": 1.0})

    def program(x, more):
        total = x
        for number, key in zip(state.numbers, state.keys):
            total = total * number + len(key)
        return [total + n for n in more]
    return program, state


WORLDS = [World("objects", objects, call(X)), World("functions", functions, call(X)), World("network", network, call(X)),
          World("iterators", iterators, call(X, [3.0]))]


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_mutated_worlds(world: World) -> None:
    hunt = Hunt(EACH)
    hunt.world(world)
    assert hunt.worlds == 1 and hunt.mutations > EACH // 2
    assert not hunt.bugs, "\n\n".join(map(str, hunt.bugs))


def test_mutated_random_worlds() -> None:
    hunt = Hunt(4)
    for world in sources.random_worlds(0, 0, 4):
        hunt.world(world)
    assert hunt.mutations > 8
    assert not hunt.bugs, "\n\n".join(map(str, hunt.bugs))


def test_the_same_world_has_the_same_mutations() -> None:
    for world in WORLDS:
        assert all_mutations(world) == all_mutations(world)


def test_what_a_program_depends_on_is_reached() -> None:
    found = {str(mutation) for mutation in all_mutations(WORLDS[0])}
    assert {"program.<box>.factor: = plus one", "program.<table>['name']: drop", "program.<members>: toggle 2",
            "globals[Scale].limit: = plus one", "program.__defaults__[0]: = plus one", "args[0]: = strided",
            "program.<box>.items: append", "modes: no_grad", "globals[Scale]: define __getattribute__"} <= found


def test_a_missing_guard_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    insert: Callable[..., Any] = GuardTree.insert

    def careless(tree: Any, guards: Any, *rest: Any) -> Any:
        return insert(tree, [guard for guard in guards if guard.kind.name not in ("MEMBER", "NOT_MEMBER")], *rest)
    mutation = Mutation("program.<members>", "toggle 2"),
    assert not compare(WORLDS[0], mutation).problems
    monkeypatch.setattr(GuardTree, "insert", careless)
    found = compare(WORLDS[0], mutation)
    assert found.problems and found.hit


def test_mutations_are_taken_back() -> None:
    for mutation in (Mutation("globals[Scale].limit", "= plus one"), Mutation("globals[Scale]", "define __len__"),
                     Mutation("globals[torch].relu", "= overheard"), Mutation("modes", "default dtype")):
        before = dict(vars(Scale)), torch.relu, torch.get_default_dtype()
        run(WORLDS[0] if "Scale" in mutation.path else WORLDS[1], (mutation,), lambda program: program)
        assert (dict(vars(Scale)), torch.relu, torch.get_default_dtype()) == before


def test_the_guard_that_a_change_fails_alone_is_told() -> None:
    survey = Survey(each=0)
    seen, mutation = Seen(), Mutation("program.<table>['name']", "= other")
    survey.outcomes(WORLDS[0], mutation, seen)
    (guard,), = (failed for failed in seen.failed if len(failed) == 1)
    assert guard.kind == "TRUTH" and not seen.mismatches
    assert survey.tells(WORLDS[0], guard, mutation)


def test_guards_as_python_agree_with_the_tree() -> None:
    survey = Survey(each=8)
    for world in WORLDS:
        survey.world(world)
    assert survey.mutations > 16 and not survey.mismatches, survey.report()
