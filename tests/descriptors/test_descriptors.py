"""A few hundred random cases of descriptors; `python -m tests.descriptors` runs more."""
from __future__ import annotations

import functools
import types

import pytest
import torch

from tests.descriptors.kinds import KINDS
from tests.descriptors.world import CHANGES, USES, WAYS, Case, draw, problems_of
from tests.helpers import call, check

CASES_OF_EACH_KIND = 4


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=list(KINDS))
def test_random_cases(kind: int) -> None:
    for round in range(CASES_OF_EACH_KIND):
        case = draw(0, round * len(KINDS) + kind)
        assert problems_of(case, backend="eager") == [], case


@pytest.mark.parametrize("way", [way for way in WAYS if "super" in way])
@pytest.mark.parametrize("kind", ["remembered", "method_of_cython", "method_of_pybind", "getter_that_remembers", "reader"])
def test_super_finds_what_the_base_has(kind: str, way: str) -> None:
    case = Case(kind, "function", None, None, way, "ask", ("Mid.m = function", "Sub.m = a_property", "Base.m = class_method"))
    assert set(case.changes) <= CHANGES.keys() and case.use in USES
    assert problems_of(case, backend="eager") == []


def test_a_method_that_is_remembered_is_extended() -> None:
    def make():
        class Base:
            @functools.lru_cache
            def scale(self, v):
                return v * 2

        class Sub(Base):
            def scale(self, v):
                return super().scale(v) + 1
        sub = Sub()
        return lambda x: x * sub.scale(3), types.SimpleNamespace(sub=sub, Base=Base)
    once = call(torch.ones(2))
    check(make, once, once, lambda s: setattr(s.Base, "scale", functools.lru_cache(lambda self, v: v * 5)), once, once,
          captures=None, fullgraph=False)
