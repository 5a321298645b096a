"""Programs that pass by what a class says of its attributes (`object.__getattribute__`, `object.__setattr__`): what the class says
later is not asked by a hit either."""
from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.helpers import call, check

READ, WRITE, DELETE = object.__getattribute__, object.__setattr__, object.__delattr__


def reads(owner, x):
    return READ(owner, "s")


def reads_namespace(owner, x):
    return READ(owner, "__dict__").get("s")


def writes(owner, x):
    WRITE(owner, "s", x * 2)


def writes_and_reads(owner, x):
    WRITE(owner, "s", x * 2)
    return READ(owner, "s")


def deletes(owner, x):
    DELETE(owner, "s")
    WRITE(owner, "s", 5.0)


def writes_to_namespace(owner, x):
    READ(owner, "__dict__")["s"] = x * 2


HOOKS = {"__getattribute__": lambda log: lambda self, name: log.append(("read", name)),
         "__setattr__": lambda log: lambda self, name, value: log.append(("written", name)),
         "__delattr__": lambda log: lambda self, name: log.append(("deleted", name))}


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("use", [reads, reads_namespace, writes, writes_and_reads, deletes, writes_to_namespace])
def test_what_a_class_says_later_of_its_attributes(use, slots: bool, hook: str) -> None:
    def make():
        state = SimpleNamespace(log=[])
        cls = type("Owner", (), {"__slots__": ("s", "__dict__")} if slots else {})
        owner = cls()
        owner.s = 1.0
        state.change = lambda: setattr(cls, hook, HOOKS[hook](state.log))
        return lambda x: (x + 1, use(owner, x), READ(owner, "s")), state
    x, follows = torch.ones(2), not slots or use is not deletes         # C deletes a slot unseen
    check(make, call(x), call(x), lambda state: state.change(), call(x + 1), call(x), fullgraph=follows,
          captures=1 if hook == "__getattribute__" and follows else None)
