"""Torch's functions of sizes (`torch.sym_max` …), as what they are for integers; Dynamo's graphs calculate with them."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from capture.interp.core.registry import polyfill
from capture.refgraph.identical import LISTS


def are_integers(*numbers: Any) -> bool:
    return all(type(number) is int for number in numbers)


@polyfill(torch.sym_sum, applies=lambda args: type(args) in LISTS and are_integers(*args))
def sym_sum(args: Sequence[int]) -> int:
    total = 0
    for number in args:
        total += number
    return total


@polyfill(torch.sym_max, applies=lambda a, b: are_integers(a, b))
def sym_max(a: int, b: int) -> int:
    return max(a, b)


@polyfill(torch.sym_min, applies=lambda a, b: are_integers(a, b))
def sym_min(a: int, b: int) -> int:
    return min(a, b)


@polyfill(torch.sym_int, applies=lambda a: are_integers(a))
def sym_int(a: int) -> int:
    return a


@polyfill(torch.sym_float, applies=lambda a: are_integers(a))
def sym_float(a: int) -> float:
    return float(a)


@polyfill(torch.sym_not, applies=lambda a: type(a) is bool)
def sym_not(a: bool) -> bool:
    return not a


@polyfill(torch.sym_ite, applies=lambda b, t, f: type(b) is bool)
def sym_ite(b: bool, t: Any, f: Any) -> Any:
    return t if b else f
