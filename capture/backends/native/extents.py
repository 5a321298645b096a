"""What sizes are in a call of a graph whose inputs change in size, and for which of these its compiled code is."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from capture.backends.native.index import Index, Size, Symbol

Values = Mapping[Symbol, int]       # what symbols are in a call

RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "==": int.__eq__, "!=": int.__ne__, "<=": int.__le__, "<": int.__lt__, ">=": int.__ge__, ">": int.__gt__}


@dataclass(frozen=True, slots=True)
class Condition:
    """A relation of two sizes, by its name in Python."""

    relation: str
    left: Index
    right: Index

    def holds(self, values: Values) -> bool:
        """Whether it holds where symbols have these values."""
        return RELATIONS[self.relation](value_of(self.left, values), value_of(self.right, values))

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"


def value_of(size: Size, values: Values) -> int:
    """What a size is where symbols have these values."""
    if isinstance(size, int):
        return size
    found = size.substitute(lambda atom: values.get(atom) if isinstance(atom, Symbol) else None).constant
    assert found is not None, size
    return found


def values_of(sizes: Sequence[Size], values: Values) -> tuple[int, ...]:
    """What a shape is where symbols have these values."""
    return tuple(value_of(size, values) for size in sizes)
