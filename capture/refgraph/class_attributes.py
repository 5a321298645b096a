"""Reads of classes (attributes, special methods, bases), and the guards that these stay what they are."""
from __future__ import annotations

import functools
import gc
import operator
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from capture._C import is_a
from capture.refgraph.lookup import MISSING, is_mutable, lookup_class
from capture.refgraph.node import ABSENT, SCALARS, Const, DictState, Expr, External, RefNode, Shadow, WrittenDict
from capture.refgraph.source import Attr, Computed, Constant, Literal, TypeAttr
from capture.refgraph.state_queries import lacks

if TYPE_CHECKING:
    from capture.refgraph.graph import RefGraph


def type_attr(graph: RefGraph, cls: type, name: str) -> tuple[bool, Any, Shadow]:
    """`(found, value, shadow)` of a class attribute along the MRO, unbound. Guards that it stays what it is."""
    if graph.is_noted(cls, name):
        return _made_attr(graph, cls, name) if graph.is_made(cls) else _changed_attr(graph, cls, name)
    value = lookup_class(cls, name, MISSING)
    known = graph.class_attributes.get((id(cls), name))
    if known is not None and (known[1] is value if known[0] else value is MISSING):
        return known
    if value is MISSING:
        graph.require(Constant(cls), "NO_ATTR", name)
        known = False, None, ABSENT
    else:
        known = True, value, graph.external(value, TypeAttr(Constant(cls), name))
    graph.note_class_attribute(cls, name, known)
    return known


def _changed_attr(graph: RefGraph, cls: type, name: str) -> tuple[bool, Any, Shadow]:
    """`type_attr` of a class from outside, where the trace may have assigned or deleted the attribute, or made a base."""
    passed: list[type] = []                     # which have none of their own
    deleted = False                             # by the trace, from a class that had it
    bases = type.__getattribute__(cls, "__mro__")
    for place, base in enumerate(bases):
        namespace, node = type.__getattribute__(base, "__dict__"), graph.find(base)
        known = None if node is None else node.slots.get(name)
        if known is ABSENT:
            deleted = True
        elif name not in namespace:
            passed.append(base)
        else:
            hides = known is None and _is_changed(graph, bases[place + 1:], name)       # what the trace has given to a base
            found = cls if known is None and not deleted and not hides else base
            if hides and is_mutable(base):
                graph.require(Computed(lacks, (Constant(base), Literal(name))), "VALUE", False)
            if found is not cls or known is not None or hides:
                pin_mro(graph, cls)         # where no look-up at entry tells
                pin_lacking(graph, passed, name)
            return True, namespace[name], known or graph.external(namespace[name], TypeAttr(Constant(found), name))
    if deleted:
        pin_mro(graph, cls)
        pin_lacking(graph, passed, name)
    else:
        graph.require(Constant(cls), "NO_ATTR", name)
    return False, None, ABSENT


def _is_changed(graph: RefGraph, classes: Iterable[type], name: str) -> bool:
    """Whether the trace has assigned or deleted an attribute of one of these classes."""
    return any(node is not None and name in node.slots for node in map(graph.find, classes))


def pin_lacking(graph: RefGraph, bases: Iterable[type], name: str) -> None:
    """Guards that none of these classes has such an attribute of its own at entry."""
    for base in bases:
        node = graph.find(base)
        if is_mutable(base) and not graph.is_made(base) and (node is None or name not in node.slots):
            graph.require(Computed(lacks, (Constant(base), Literal(name))), "VALUE", True)


def _made_attr(graph: RefGraph, cls: type, name: str) -> tuple[bool, Any, Shadow]:
    """`type_attr` of a class that the trace made: from its own namespace, else from its bases; those from outside are guarded."""
    for base in type.__getattribute__(cls, "__mro__"):
        node = graph.find(base)
        namespace = type.__getattribute__(base, "__dict__")
        if node is None or not node.created:
            if name in namespace:
                return type_attr(graph, base, name)
            if is_mutable(base):
                type_attr(graph, base, name)
        elif name in namespace:             # or what C adds to every class: `__dict__`, `__weakref__`
            return True, namespace[name], node.slots[name] if name in node.slots else graph.constant(namespace[name])
    return False, None, ABSENT


def pin_special(graph: RefGraph, cls: type, *names: str) -> None:
    """Guards that a class keeps, or goes on to lack, these special methods: C code looks them up without telling us."""
    if (id(cls), names) in graph.pinned_together:
        return
    for name in names:
        if (id(cls), name) not in graph.pinned_specials:
            graph.note_special(cls, name)
            if is_mutable(cls):
                found, value, shadow = type_attr(graph, cls, name)
                if found:
                    graph.depend(shadow, value)
    graph.note_specials(cls, names)


def pin_precedence(graph: RefGraph, cls: type, name: str) -> None:
    """Guards whether what a class has of this name comes before what instances hold: whether it is a data descriptor, and which
    one."""
    found, value, shadow = type_attr(graph, cls, name)
    if not found:
        return
    descriptor = type(value)
    if any(lookup_class(descriptor, special) is not None for special in ("__set__", "__delete__")):
        graph.depend(shadow, value)
    elif isinstance(shadow, External):
        graph.require(shadow.source, "TYPE", descriptor)
    elif isinstance(shadow, RefNode):
        graph.touch(shadow)
    pin_special(graph, descriptor, "__set__", "__delete__")


def pin_told(graph: RefGraph, cls: type, name: str, value: Any) -> None:
    """Guards facts of a class that can be assigned, such as its name."""
    kind = "VALUE" if type(value) in SCALARS else "CONTENT" if type(value) is frozenset else None
    if kind is not None and is_mutable(cls) and not graph.is_made(cls):
        graph.require(Attr(Constant(cls), name), kind, value)


def naming(graph: RefGraph, text: str, obj: Any) -> Shadow:
    """The shadow of a text that C puts into an exception: a constant, except for names of classes, which may be assigned. obj: what
    the exception is about, if that is known."""
    classes = [obj, type(obj), *(node.cls for node in graph.nodes), *(node.real for node in graph.nodes)]
    named: dict[str, type] = {}
    for cls in {id(cls): cls for cls in classes if is_a(cls, type)}.values():      # whose own hash is not asked for
        name = type.__getattribute__(cls, "__name__")
        if name in text and is_mutable(cls) and not graph.is_made(cls) and named.setdefault(name, cls) is not cls:
            pin_told(graph, cls, "__name__", name)
    names = "|".join(map(re.escape, sorted(named, key=len, reverse=True)))
    texts = re.split(rf"\b({names})\b", text) if named else [text]
    parts: list[Shadow] = [External(Attr(Constant(named[part]), "__name__"), part) if place % 2 else Const(part)
                           for place, part in enumerate(texts)]
    return functools.reduce(lambda whole, part: Expr(operator.add, (whole, part)), parts)


def namespace_node(graph: RefGraph, cls: type) -> Shadow:
    """The dict of a class from outside. What the trace assigned to the class it is not known to hold: it is no more read then."""
    namespace, owner = _namespace(cls), graph.find(cls)
    shadow = graph.find(namespace) or graph.external(namespace, Constant(namespace))
    if owner is not None and owner.slots:
        forget_namespace(graph, cls)
    return shadow


def forget_namespace(graph: RefGraph, cls: type) -> None:
    """The trace has assigned an attribute of a class, or deleted one."""
    node = graph.find(_namespace(cls))
    if node is not None:
        node.state = WrittenDict(DictState({}, complete=False))


def _namespace(cls: type) -> dict[str, Any]:
    """The dict that C keeps, which Python code is shown through a proxy."""
    return next(iter(gc.get_referents(type.__getattribute__(cls, "__dict__"))))


def pin_mro(graph: RefGraph, cls: type) -> None:
    """Guards which classes a class derives from, in order."""
    if graph.is_made(cls):
        for base in type.__getattribute__(cls, "__mro__"):
            if not graph.is_made(base):
                pin_mro(graph, base)
    elif is_mutable(cls):
        graph.require(Constant(cls), "MRO", type.__getattribute__(cls, "__mro__"))
