"""Guards as Python expressions. The table of kinds has their text.

There are two ways to fill in paths and objects: `Readable` writes them as a person would, `Evaluable` so that `eval` follows the
same rules as the guard tree: no step of a path runs the program's own code.
"""
from __future__ import annotations

import itertools
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

from capture._C import is_a
from capture.guards import helpers
from capture.refgraph.identical import Classes
from capture.refgraph.requirements import Kind, Printer
from capture.refgraph.source import (
    Attr,
    Computed,
    Constant,
    Function,
    ImportedModule,
    InstanceDict,
    Item,
    Literal,
    Local,
    Source,
    TypeAttr,
    TypeOf,
)

# Objects that C code made, and gave a name.
NAMED = Classes((
    BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, ClassMethodDescriptorType, GetSetDescriptorType,
    MemberDescriptorType, ModuleType))


class Readable:
    """Paths and objects for people."""

    def path(self, source: Source) -> str:
        """`self.layers._modules['0'].weight`"""
        return source.expression()

    def value(self, value: Any) -> str:
        """A literal, or the object's qualified name."""
        if is_a(value, type) or type(value) is FunctionType:
            return value.__qualname__ if value.__module__ == "builtins" else f"{value.__module__}.{value.__qualname__}"
        if type(value) is tuple:
            return f"({', '.join(map(self.value, value))}{',' if len(value) == 1 else ''})"
        if type(value) in helpers.PLAIN or type(value).__module__ in ("capture._C", "torch"):
            return repr(value)
        if type(value) in NAMED:
            return Constant(value).expression()
        if type(value) is CodeType:
            return f"<code of {value.co_qualname}>"
        return f"<{type(value).__name__} at {id(value):#x}>"


class Evaluable:
    """Paths and objects for `eval` in the namespace `names`."""

    def __init__(self, locals: dict[str, Any], function: FunctionType) -> None:
        self.names: dict[str, Any] = {**helpers.HELPERS, **{f"local_{name}": value for name, value in locals.items()},
                                      "__function__": function}
        self._fresh = itertools.count()

    def value(self, value: Any) -> str:
        """The name to which the object is bound."""
        name = f"object_{next(self._fresh)}"
        self.names[name] = value
        return name

    def path(self, source: Source) -> str:
        """The path as calls of `capture.guards.helpers`."""
        match source:
            case Local(name=name):
                return f"local_{name}"
            case Function():
                return "__function__"
            case Constant(value=value) | Literal(value=value):
                return self.value(value)
            case ImportedModule(name=name):
                return f"imported({name!r})"
            case Attr(base=base, name=name):
                return f"attribute({self.path(base)}, {name!r})"
            case InstanceDict(base=base):
                return f"instance_dict({self.path(base)})"
            case Item(base=base, key=key):
                return f"item({self.path(base)}, {self.value(key)})"
            case TypeOf(base=base):
                return f"type({self.path(base)})"
            case TypeAttr(base=base, name=name):
                return f"lookup({self.path(base)}, {name!r})"
            case Computed(op=op, args=args):
                return f"computed({self.value(op)}, {', '.join(map(self.path, args))})"
        raise TypeError(f"no expression for a {type(source).__name__}")


def condition(kind: Kind, source: Source | None, expected: Any, printer: Printer) -> str:
    """The expression of one guard."""
    return kind.row.text("" if source is None else printer.path(source), expected, printer)


def evaluate(kind: Kind, source: Source | None, expected: Any, locals: dict[str, Any], function: FunctionType) -> bool:
    """Evaluates the expression of one guard. A path that cannot be followed makes it false."""
    printer = Evaluable(locals, function)
    text = condition(kind, source, expected, printer)
    try:
        return bool(eval(text, printer.names))
    except helpers.Unreachable:
        return False
