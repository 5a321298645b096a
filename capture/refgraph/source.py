"""Access paths: where, at the entry of a frame, a value was found.

A `Source` is one frozen step upon its base, down to a root. It prints as a Python expression over the names of
`environment()`, so that a guard can be read, and evaluated, by a person; the C++ guard tree walks the same steps.
Modelled on `torch._dynamo.source`.
"""
from __future__ import annotations

import operator
import re
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, dataclass_transform

from capture import _C
from capture._C import is_a
from capture.refgraph.identical import Classes

S = TypeVar("S", bound="Source")
SYMBOLS: dict[Callable[..., Any], str] = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.floordiv: "//", operator.mod: "%",
    operator.pow: "**", operator.and_: "&", operator.or_: "|", operator.xor: "^", operator.lshift: "<<", operator.rshift: ">>",
    operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=", operator.eq: "==", operator.ne: "!=",
    operator.is_: "is", operator.is_not: "is not"}
# What users know as the results of functions of ours, where a printed call would tell them nothing.
DESCRIPTIONS: dict[Callable[..., Any], str] = {}


class Source:
    """One step of an access path. `base` is None for a root. Hashes and texts are kept: paths are long, and looked up often."""

    __slots__ = ("_hash", "_text")
    _hash: int
    _text: str
    base: Source | None

    def expression(self) -> str:
        """The path as a Python expression over the frame's locals and `environment()`."""
        raise NotImplementedError(type(self).__name__)

    def __str__(self) -> str:
        try:
            return self._text
        except AttributeError:
            object.__setattr__(self, "_text", self.expression())
            return self._text


@dataclass_transform(frozen_default=True)
def step(cls: type[S]) -> type[S]:
    """A frozen dataclass that computes its hash once."""
    made = dataclass(frozen=True, slots=True)(cls)
    compute = made.__hash__

    def kept(self: Source) -> int:
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", compute(self))
            return self._hash
    made.__hash__ = kept  # type: ignore[assignment]
    return made


class Root(Source):
    """Where a path starts."""

    __slots__ = ()
    base = None


@step
class Local(Root):
    """An argument of the hooked frame: fast local `index`."""

    name: str
    index: int

    def expression(self) -> str:
        return self.name


@step
class Function(Root):
    """The function object that the hooked frame executes."""

    def expression(self) -> str:
        return "__function__"


@dataclass(frozen=True, slots=True, eq=False)
class Constant(Root):
    """An object that the path starts from because its identity was already established: a class whose instances
    were guarded by type, a function found in such a class. Held weakly by the guard tree where it can be."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

    def expression(self) -> str:
        value = self.value
        if is_a(value, types.ModuleType):
            return f"sys.modules[{kept_name(namespace_of(value), '__name__')!r}]"
        module, name = names_of(value)
        return f"constant({id(value):#x})" if name is None else name if module in (None, "builtins") else f"{module}.{name}"


IMMUTABLE_TYPE = 1 << 8                     # a flag of types (object.h): none of Python's
namespace_of: Callable[[Any], dict[str, Any]] = types.ModuleType.__dict__["__dict__"].__get__  # type: ignore[index]


def names_of(value: Any) -> tuple[str | None, str | None]:
    """The module and the qualified name of a class, or of an object of C; None for other objects. No code of the program runs:
    objects of its classes are not asked."""
    if is_a(value, type):
        return kept_name(type.__getattribute__(value, "__dict__"), "__module__"), type.__dict__["__qualname__"].__get__(value)
    if not type.__getattribute__(type(value), "__flags__") & IMMUTABLE_TYPE:
        return None, None
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    return module if type(module) is str else None, name if type(name) is str else None


def short_name(value: Any) -> str:
    """The last part of an object's name, else that of its class in lower case: a hint for readers of generated code."""
    is_module = is_a(value, types.ModuleType)
    name = kept_name(namespace_of(value), "__name__") if is_module else names_of(value)[1]
    return (name or type.__dict__["__name__"].__get__(type(value)).lower()).rpartition(".")[2]


def kept_name(namespace: Mapping[str, Any], key: str) -> str | None:
    """A key of a namespace as text: the program may have stored anything there."""
    name = namespace.get(key)
    return name if type(name) is str else None


@step
class ImportedModule(Root):
    """`sys.modules[name]`."""

    name: str

    def expression(self) -> str:
        return f"sys.modules[{self.name!r}]"


@step
class Attr(Source):
    """A C-level attribute (`__code__`, `__func__`, `cell_contents`, a slot, `Tensor.grad`): reading it runs no Python.

    The value of a ContextVar, in the thread's present context, counts as its attribute `get()`."""

    base: Source
    name: str

    def expression(self) -> str:
        return f"{self.base.expression()}{self.name}" if self.name == "()" else f"{self.base.expression()}.{self.name}"


@step
class InstanceDict(Source):
    """The `__dict__` of an instance, a module or a function, whatever its class says about attribute access."""

    base: Source

    def expression(self) -> str:
        return f"{self.base.expression()}.__dict__"


@step
class Item(Source):
    """`base[key]` for a list, tuple or dict, or a subclass of one, by the builtin type's own lookup."""

    base: Source
    key: Any

    def __eq__(self, other: object) -> bool:
        """Keys may be tensors, or objects with code of their own for `==`: they are asked only where a dict would ask them."""
        return type(other) is Item and hash(self) == hash(other) and (self.base, self.key) == (other.base, other.key)

    def expression(self) -> str:
        if isinstance(self.base, InstanceDict) and is_a(self.key, str) and self.key.isidentifier():
            return f"{self.base.base.expression()}.{self.key}"
        return f"{self.base.expression()}[{shown_key(self.key)}]"


PLAIN = Classes((int, float, complex, bool, str, bytes, type(None)))      # what is shown as it is written


def shown_key(key: Any) -> str:
    """A key as text. An object is shown by its identity: its own repr may change, be long, and run the program's code."""
    if type(key) in PLAIN:
        return repr(key)
    if type(key) is tuple:
        return f"({''.join(f'{shown_key(item)}, ' for item in key).strip()})"
    return Constant(key).expression() if is_a(key, type) else f"<{type(key).__name__} at {id(key):#x}>"


@step
class TypeOf(Source):
    """`type(base)`."""

    base: Source

    def expression(self) -> str:
        return f"type({self.base.expression()})"


@step
class TypeAttr(Source):
    """What the class `base` has under `name` along its MRO, unbound (`_PyType_Lookup`)."""

    base: Source
    name: str

    def expression(self) -> str:
        return f"lookup({self.base.expression()}, {self.name!r})"


@dataclass(frozen=True, slots=True, eq=False)
class Literal(Root):
    """A number, string or dtype written out: an operand of `Computed`. `1`, `True` and `1.0`, `0.0` and `-0.0` all differ."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and type(self.value) is type(other.value) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))

    def expression(self) -> str:
        return repr(self.value)


@step
class Computed(Root):
    """A pure builtin C function `op` (`operator.mod`, `len` …) applied to values of exact builtin scalar types."""

    op: Callable[..., Any]
    args: tuple[Source, ...]

    def expression(self) -> str:
        args = [a.expression() for a in self.args]
        if self.op in SYMBOLS and len(args) == 2:
            is_negative = self.op is operator.pow and args[0].startswith("-")       # `-2 ** k` would be `-(2 ** k)`
            first = f"({args[0]})" if is_negative else args[0]
            return f"({first} {SYMBOLS[self.op]} {args[1]})"
        if self.op is _C.size:
            return f"{args[0]}.shape[{args[1]}]"
        return f"{self.op.__name__}({', '.join(args)})"


GLOBAL = re.compile(r"(?:__function__|lookup\([^()]*\))\.__globals__\['(\w+)'\]")
PART = re.compile(r"\._(?:modules|parameters|buffers)\['([^']+)'\]")


def named(path: str) -> str:
    """A path as users write it: globals by their names, parts of modules as `named_parameters` has them."""
    return PART.sub(r".\1", GLOBAL.sub(r"\1", path))


def lookup(cls: type, name: str) -> Any:
    """The class attribute `name` of `cls` along its MRO, unbound; raises AttributeError when there is none."""
    for base in type.__getattribute__(cls, "__mro__"):
        namespace = type.__getattribute__(base, "__dict__")
        if name in namespace:
            return namespace[name]
    raise AttributeError(name)


def environment() -> dict[str, Any]:
    """The names, other than the frame's own locals and `__function__`, which a printed path may use."""
    return {**vars(operator), "lookup": lookup, "sys": sys}
