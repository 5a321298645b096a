"""Classes of objects with and without special methods."""
from __future__ import annotations

import dataclasses
from typing import Any


class Str(str):
    pass


class Plain:
    pass


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self) -> None:
        self.a = 2


class EqualToAll:
    def __eq__(self, other: object) -> bool:
        return True


class EqualToNone:
    def __eq__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 2


class EqualToTwo:
    def __eq__(self, other: object) -> Any:
        return other == 2

    def __hash__(self) -> int:
        return hash(2)


class Unequal:
    def __ne__(self, other: object) -> Any:
        return "unequal"


class Declining:
    def __eq__(self, other: object) -> Any:
        return NotImplemented

    def __lt__(self, other: object) -> Any:
        return NotImplemented

    def __add__(self, other: Any) -> Any:
        return NotImplemented


class Hashed:
    def __hash__(self) -> int:
        return 2


class Unhashable:
    __hash__ = None  # type: ignore[assignment]


class HasFormat:
    def __format__(self, spec: str) -> str:
        return f"<{spec}>"


class BadFormat:
    def __format__(self, spec: str) -> str:
        return 5  # type: ignore[return-value]


class HasStr:
    def __str__(self) -> str:
        return "a"


class HasRepr:
    def __repr__(self) -> str:
        return "a"


class SubclassText:
    """An object whose texts are of a subclass of str."""

    def __str__(self) -> str:
        return Str("a")

    def __repr__(self) -> str:
        return Str("b")

    def __format__(self, spec: str) -> str:
        return Str("c")


class Index:
    def __index__(self) -> int:
        return 2


class BadIndex:
    def __index__(self) -> int:
        return "2"  # type: ignore[return-value]


class HasInt:
    def __int__(self) -> int:
        return 2


class HasFloat:
    def __float__(self) -> float:
        return 2.0


class HasComplex:
    def __complex__(self) -> complex:
        return 2j


class True_:
    def __bool__(self) -> bool:
        return True


class False_:
    def __bool__(self) -> bool:
        return False


class BadBool:
    def __bool__(self) -> bool:
        return 2  # type: ignore[return-value]


class RaisingBool:
    def __bool__(self) -> bool:
        raise ValueError("no truth")


class Length:
    def __len__(self) -> int:
        return 2


class NoLength:
    def __len__(self) -> int:
        return 0


class BadLength:
    def __len__(self) -> int:
        return -1


class Iterable:
    def __iter__(self) -> Any:
        return iter((2, 3))


class Generating:
    def __iter__(self) -> Any:
        yield 2
        yield "a"


class BadIterable:
    def __iter__(self) -> Any:
        return 2


class NotIterable:
    __iter__ = None


class Iterator:
    def __init__(self) -> None:
        self.left = [2, 3]

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        return self.left.pop()


class Sequence:
    """A sequence by `__getitem__` alone."""

    def __getitem__(self, index: Any) -> Any:
        return (2, "a")[index]


class LongSequence:
    def __getitem__(self, index: Any) -> Any:
        return (7, 2)[index]

    def __len__(self) -> int:
        return 2


class Container:
    def __contains__(self, item: object) -> Any:
        return item == 2


class BadContainer:
    __contains__ = None


class Mapping:
    def keys(self) -> Any:
        return ["a", "b"]

    def __getitem__(self, key: Any) -> Any:
        return {"a": 2, "b": 3}[key]


class Callable_:
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return "called", len(args), sorted(kwargs)


class Context:
    def __enter__(self) -> Any:
        return "entered"

    def __exit__(self, *error: Any) -> bool:
        return True


class Descriptor:
    def __get__(self, instance: Any, owner: Any) -> Any:
        return "got"


class Attributes:
    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args: name


class Arithmetic:
    def __add__(self, other: Any) -> Any:
        return "add"

    def __radd__(self, other: Any) -> Any:
        return "radd"

    def __iadd__(self, other: Any) -> Any:
        return "iadd"

    def __mul__(self, other: Any) -> Any:
        return "mul"

    def __rmul__(self, other: Any) -> Any:
        return "rmul"

    def __mod__(self, other: Any) -> Any:
        return "mod"

    def __rmod__(self, other: Any) -> Any:
        return "rmod"

    def __matmul__(self, other: Any) -> Any:
        return "matmul"

    def __neg__(self) -> Any:
        return "neg"

    def __abs__(self) -> Any:
        return "abs"

    def __divmod__(self, other: Any) -> Any:
        return "divmod"

    def __rpow__(self, other: Any) -> Any:
        return "rpow"

    def __round__(self, digits: Any = None) -> Any:
        return "round", digits

    def __or__(self, other: Any) -> Any:
        return "or"

    def __ror__(self, other: Any) -> Any:
        return "ror"


class Ordered_:
    def __lt__(self, other: object) -> Any:
        return True

    def __gt__(self, other: object) -> Any:
        return []

    def __le__(self, other: object) -> Any:
        return "le"


class Raising:
    def __eq__(self, other: object) -> Any:
        raise ValueError("no equality")

    def __hash__(self) -> int:
        raise ValueError("no hash")

    def __str__(self) -> str:
        raise ValueError("no text")

    def __len__(self) -> int:
        raise ValueError("no length")

    def __iter__(self) -> Any:
        raise ValueError("no items")


class ClassOfItsOwn:
    """An object that says to be a str."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        return str


class Bare(Exception):
    pass


class Meta(type):
    def __eq__(cls, other: object) -> bool:
        return True

    def __hash__(cls) -> int:
        return 2

    def __len__(cls) -> int:
        return 0

    def __iter__(cls) -> Any:
        return iter((2,))

    def __instancecheck__(cls, instance: object) -> bool:
        return True

    def __getitem__(cls, key: Any) -> Any:
        return "of the metaclass"


class WithMeta(metaclass=Meta):
    pass


@dataclasses.dataclass
class Data:
    a: int = 2
    b: str = "b"


@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    a: int = 2


class Matched:
    __match_args__ = ("a", "b")
    a, b = 2, 3
