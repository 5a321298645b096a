"""What can be required of the state at a frame's entry: the table of kinds, of which guards are made."""
from __future__ import annotations

import enum
from typing import Any

from capture.refgraph.source import Source

SEVERAL = "several"      # each tells but a part of an object, so that requirements with other expectations may hold of the same one
OF_CONTENT = "content"    # it tells of a container what it holds, beyond single keys of a dict

Key = tuple[Any, ...]   # what tells requirements apart


class Kind(enum.Enum):
    """What is checked of `x`, the object at the guard's source, against `expected`. An unreachable path fails.

    A Python expression runs no user code: lengths, keys and items are read by the builtin type's own functions.
    """

    TYPE = "type(x) is expected"
    ID = "x is expected"
    VALUE = "x has expected's exact type and value; floats bit for bit; containers recursively"
    TRUTH = "bool(x) is expected, of a builtin scalar, range, Ellipsis or container whose class has no say in it", OF_CONTENT
    LENGTH = "builtin len(x) == expected, for list, tuple, dict, set, frozenset, str, bytes, bytearray, deque", OF_CONTENT
    KEYS = "x is a dict or set (or subclass) with just the keys expected, in order: compared as VALUE or by identity", OF_CONTENT
    PRESENT = "x is a dict, and has the key expected", SEVERAL
    ABSENT = "x is a dict, and lacks the key expected", SEVERAL
    NO_ATTR = "x is a class, and its MRO has no attribute named expected", SEVERAL
    MRO = "x is a class whose MRO is expected: a tuple, compared by identity"
    CONTENT = "x is a set or frozenset (or subclass), and equals expected: a frozenset of builtin scalars", OF_CONTENT
    MEMBER = "x is a set or frozenset (or subclass) holding expected: a scalar or an object hashed by identity", SEVERAL, OF_CONTENT
    NOT_MEMBER = "x is a set or frozenset (or subclass) that does not hold expected", SEVERAL, OF_CONTENT
    TENSOR = "x is a tensor with the properties expected: a TensorProperties"
    ALIAS = "x is the object at expected: a Source", SEVERAL
    DISTINCT = "x is none of the objects at expected: a tuple of Sources (unreachable ones differ)", SEVERAL
    STORAGE = "expected: tuples (Source, group, offset in bytes or None): tensors share storage within groups only, there"
    MODES = "the process-wide and thread-wide modes of torch equal expected: a Modes; source is None"

    several: bool
    of_content: bool

    def __new__(cls, condition: str, *traits: str) -> Kind:
        kind = object.__new__(cls)
        kind._value_, kind.several, kind.of_content = condition, SEVERAL in traits, OF_CONTENT in traits
        return kind


def key_of(source: Source | None, kind: str, expected: Any) -> Key:
    """What a requirement is known by. A second one under the same key says the same."""
    return (source, kind, expected) if Kind[kind].several else (source, kind)


def agree(kind: str, known: Any, expected: Any) -> bool:
    """Whether two requirements under one key say the same, as far as that is told without comparing values."""
    return known is expected if kind in ("TYPE", "ID") else known == expected if kind in ("TRUTH", "LENGTH") else True
