"""Guards in words, grouped by the object that they check."""
from __future__ import annotations

import re
import types
from collections.abc import Mapping
from typing import Any

from capture import _C
from capture.guards.expression import Readable
from capture.guards.guard import Guard
from capture.history import labelled
from capture.refgraph.identical import Classes
from capture.refgraph.requirements import Kind, tensor_in_words
from capture.refgraph.sizes import size_at
from capture.refgraph.source import DESCRIPTIONS, Attr, Computed, Constant, Function, ImportedModule, Item, Source, named, names_of
from capture.reports.places import place_of
from capture.reports.sizes import OpenSizes
from capture.reports.tree import OF_SIZES, Condition

LONGEST = 100                                       # characters of a condition in words
MODE = re.compile(r"(\w+)=(\w+(?:\([^)]*\))?)")     # in the text of Modes
AT_IMPORT = dict(MODE.findall(str(_C.modes())))
CODE = Classes((types.FunctionType, types.ModuleType, type))
readable = Readable()


def condition_of(guard: Guard, labels: Mapping[str, str], sizes: OpenSizes) -> Condition:
    """A guard as data. labels: what users know parameters as that have other names. sizes: the open ones of the entry."""
    place = None if guard.place is None else place_of(guard.place)
    subject, words = worded(guard, labels, sizes)
    return Condition(subject, shortened(words), str(guard), place)


def worded(guard: Guard, labels: Mapping[str, str], sizes: OpenSizes) -> tuple[str, str]:
    """The object that a guard is about, and what it says of the object, in words; no words if the guard is only to be counted."""
    if guard.source is None:
        return "torch's modes", _modes(guard.expected)
    source = labelled(guard.source, labels)
    relation = sizes.condition(source, guard)
    if relation is not None:
        return OF_SIZES, relation
    subject = subject_of(source)
    words = guard.kind.row.words
    if words is None or is_code(source) or is_bookkeeping(source, guard) or \
            guard.kind is Kind.TYPE and (source is not subject or guard.expected in CODE):
        return shown(subject), ""
    if guard.kind is Kind.TENSOR:
        return shown(subject), tensor_in_words(relative(source, subject), guard.expected,
                                               lambda dim: sizes.name(size_at(source, dim))).strip()
    return shown(subject), words(relative(source, subject), guard.expected, readable).strip()


def is_code(source: Source) -> bool:
    """Whether an object belongs to classes, functions and libraries, which hardly ever change."""
    if isinstance(source, Computed):
        module = names_of(source.op)[0]     # methods of C classes have none
        return module is not None and module.startswith("capture.") and source.op not in DESCRIPTIONS
    if isinstance(source, (Constant, ImportedModule)) or isinstance(source, Attr) and source.name == "__code__":
        return True
    if isinstance(source, Item) and is_globals(source.base):
        return False
    return source.base is not None and is_code(source.base)


def is_globals(source: Source) -> bool:
    """Whether these are the global variables of a function."""
    return isinstance(source, Attr) and source.name == "__globals__"


def is_bookkeeping(source: Source, guard: Guard) -> bool:
    """Whether a guard is on a private attribute that is empty as usual, like a module's table of hooks, or on its table of
    children."""
    private = isinstance(source, Item) and isinstance(source.key, str) and source.key.startswith("_")
    return private and (guard.kind in (Kind.KEYS, Kind.TYPE) or guard.expected is False)


def subject_of(source: Source) -> Source:
    """The object under which a guard is listed: an argument, a global variable, or the innermost module on its path."""
    below = source.base
    if below is None:
        return source
    if isinstance(source, Item) and (is_globals(below) or isinstance(below, Item) and below.key == "_modules"):
        return source
    return subject_of(below)


def shown(source: Source) -> str:
    """A path as users write it."""
    if isinstance(source, Function):
        return "the function"
    text = named(str(source))
    return text[1:-1] if isinstance(source, Computed) and text.startswith("(") else text


def relative(source: Source, subject: Source) -> str:
    """The path seen from `subject`: `.weight` for `m.0.weight` if the subject is `m.0`; empty for the subject itself."""
    return named(str(source).removeprefix(str(subject)))


def shortened(text: str, longest: int = LONGEST) -> str:
    """A text, cut where it is long."""
    return text if len(text) <= longest else text[:longest] + " …"


def _modes(expected: Any) -> str:
    changed = [f"{name} {value}" for name, value in MODE.findall(str(expected)) if AT_IMPORT.get(name) != value]
    return ", ".join(changed) or "as when capture was imported"
