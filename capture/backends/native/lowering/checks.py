"""Indices that are looked at in any case: eager mode looks at all of a gather's, kernels where they load what an index names.

So for a gather of whose result only a part is read, a nest of its own looks at all indices, in the place of the gather.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from capture.backends.native.index import ZERO, Index, Size, Value, Var, bounds, index, product
from capture.backends.native.ir import Expr, Load, constant, op, position
from capture.backends.native.lowering.lazy import Lazy, variables
from capture.backends.native.show import postorder


@dataclass(slots=True, eq=False)
class Check:
    """The indices of one operation. `values`: at the point `place` of its result, which has that `shape`. `at`: how many statements
    come before the operation. `done`: what reads the result looks at all of them."""

    label: str
    at: int
    values: tuple[Value, ...]
    place: tuple[Index, ...]
    shape: tuple[Size, ...]
    done: bool = False

    @property
    def condition(self) -> Expr:
        """What never holds, and asks for each index."""
        negative = (op("lt", torch.bool, position(index(value)), constant(0, torch.int64)) for value in self.values)
        return functools.reduce(lambda left, right: op("or", torch.bool, left, right), negative)

    def watch(self, result: Lazy) -> None:
        """Notes from now on which elements of the operation's result are read."""
        compute = result.compute

        def at(place: Sequence[Index]) -> Expr:
            self.done = self.done or self._is_all(place)
            return compute(place)
        result.compute = at

    def _is_all(self, place: Sequence[Index]) -> bool:
        """Whether who reads the element at `place`, for all values of the loop variables there, asks for all indices."""
        never = any(var.extent == 0 for where in place for var in where.variables())
        return not never and covers([(where, size) for where, size, ours in zip(place, self.shape, self.place, strict=True)
                                     if ours.terms])


def check_of(result: Lazy, computed: Callable[[Sequence[Index]], Iterable[Index]], label: str, at: int,
             constants: Mapping[str, torch.Tensor]) -> Check | None:
    """The check of an operation that finds what is at a place of its result by `computed` indices. None if none must be asked."""
    whole = variables(result.shape)
    asked = dict.fromkeys(atom for where in computed(whole) for atom in where.atoms()
                          if isinstance(atom, Value) and atom.error is not None)
    values = tuple(value for value in asked if not _is_known(value, constants))
    if not values or any(size == 0 for size in result.shape):
        return None
    used = frozenset[Var]().union(*(value.expr.variables() for value in values))
    return Check(label, at, values, tuple(one if used.intersection(one.atoms()) else ZERO for one in whole), result.shape)


def _is_known(value: Value, constants: Mapping[str, torch.Tensor]) -> bool:
    """Whether an index is one of the program's constants, all of which are in range."""
    loaded = [node.buffer for node in postorder(value.expr) if isinstance(node, Load)]
    tensor = constants.get(loaded[0]) if len(loaded) == 1 else None
    if tensor is None or not tensor.numel() or not isinstance(value.extent, int) or tensor.device.type != "cpu":
        return False
    return int(tensor.min()) >= 0 and int(tensor.max()) < value.extent


def covers(pairs: Sequence[tuple[Index, Size]]) -> bool:
    """Whether places go through whole dimensions of these sizes: nothing that is computed chooses them, none begins behind the
    first element or ends before the last one, and there are as many as elements."""
    if any(isinstance(atom, Value) for where, _ in pairs for atom in where.atoms()):
        return False
    for where, size in pairs:
        low, high = bounds(where)[0], bounds(where - (index(size) - 1))[1]
        if low is not None and low > 0 or high is not None and high < 0:
            return False
    points = product(var.extent for var in {var for where, _ in pairs for var in where.variables()})
    least, _ = bounds(points - product(size for _, size in pairs))
    return least is not None and least >= 0
