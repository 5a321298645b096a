"""Numpy on constants: what numpy computes from constants alone is a constant, which tensors may be made of.

An array that has become a tensor, with which it may share memory, is computed with no more.
"""
from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable
from typing import Any

from capture.errors import Break
from capture.interp.frame import Value
from capture.interp.models import hashable, polyfill
from capture.interp.special import is_plain
from capture.refgraph.graph import PINNED, RefGraph, parts
from capture.refgraph.node import Build, Const, ListState, RefNode, Shadow

# Builtins that ask an array or number of numpy by its C methods.
ASKING = frozenset({
    bool, int, float, complex, len, abs, round, divmod, pow, operator.truth, operator.not_, operator.index, *(
        getattr(operator, name) for name in (
            "add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift neg pos invert eq ne lt le gt ge "
            "contains getitem setitem iadd isub imul itruediv ifloordiv imod ipow iand ior ixor").split())})
# Functions of numpy that reach beyond arrays: files, settings, memory of others.
ACTING = frozenset({
    "save", "savez", "savez_compressed", "savetxt", "load", "loadtxt", "genfromtxt", "fromfile", "tofile", "dump", "dumps",
    "fromregex", "memmap", "seterr", "seterrcall", "setbufsize", "set_printoptions", "frombuffer", "from_dlpack", "setflags",
    "__array_finalize__", "__setstate__", "__reduce__", "__reduce_ex__", "resize", "byteswap", "frompyfunc", "vectorize"})


def is_value(real: Any) -> bool:
    """Whether an object is an array, a flat view or a number of numpy's own classes, which holds no objects of Python."""
    cls = type(real)
    if cls.__module__ != "numpy" or not any(base.__name__ in ("ndarray", "generic", "flatiter") for base in cls.__mro__):
        return False
    return not (real if hasattr(real, "dtype") else real.base).dtype.hasobject


def is_array(real: Any) -> bool:
    """Whether a value of numpy is an array, rather than a number."""
    return any(base.__name__ in ("ndarray", "flatiter") for base in type(real).__mro__)


def is_dtype(real: Any) -> bool:
    """Whether an object is one of numpy's dtypes."""
    return type(real).__module__ == "numpy.dtypes"


class Arrays:
    """The arrays and numbers that numpy made in one trace, of constants alone."""

    def __init__(self) -> None:
        self._computed: dict[int, Any] = {}                 # by id
        self._crossed: list[tuple[Any, Any]] = []           # those that became tensors, and what they held then

    def is_computed(self, real: Any) -> bool:
        """Whether numpy made this very object in the trace."""
        return id(real) in self._computed

    def is_foldable(self, real: Any, values: list[Value]) -> bool:
        """Whether a call computes with numpy, and from constants alone."""
        asks = hashable(real) and real in ASKING and any(is_value(v.real) or is_dtype(v.real) for v in values)
        return (asks or _computes(real)) and all(self._is_constant(v.shadow, v.real) for v in values)

    def fold(self, graph: RefGraph, real: Any, fresh: Callable[[Any], Shadow]) -> Shadow:
        """The shadow of what numpy computed. `fresh`: that of anything but arrays and numbers of numpy."""
        if is_value(real):
            if not is_array(real) and real.dtype.kind == "b":
                return Const(real)                          # one of two objects of the process: no node of the trace's own
            self._computed[id(real)] = real
            plain = None if is_array(real) else real.item()
            origin = Build(type(real), (Const(plain),)) if type(plain) in (bool, int, float, complex) else None
            return graph.find(real) or graph.create(real, origin=origin)
        if type(real) is tuple:
            return Build(tuple, tuple(self.fold(graph, item, fresh) for item in real))
        if type(real) is list:
            return graph.create(real, ListState([self.fold(graph, item, fresh) for item in real]))
        return fresh(real)

    def maker(self, array: Any) -> Callable[[], Any]:
        """A function that makes anew an array which becomes a tensor. Raises Break where it has changed since it became one."""
        for crossed, held in self._crossed:
            if _owner(crossed) is _owner(array) and crossed.tobytes() != held.tobytes():
                raise Break("untracked-mutation", "an array of numpy was changed as a tensor, and is used again")
        held = array.copy()
        self._crossed.append((array, held))
        target: Any = functools.partial(held.copy)
        target.__name__, target.__module__ = "array", "numpy"
        return target

    def _is_constant(self, shadow: Shadow | None, real: Any) -> bool:
        if is_value(real):
            crossed = any(_owner(real) is _owner(array) for array, _ in self._crossed)
            return isinstance(shadow, Const) or self.is_computed(real) and not crossed
        if is_dtype(real) or isinstance(real, PINNED):
            return True
        if isinstance(shadow, Build):
            return all(self._is_constant(s, r) for s, r in zip(shadow.items, parts(real), strict=True))
        if isinstance(shadow, RefNode) and isinstance(shadow.state, ListState):
            return all(self._is_constant(s, r) for s, r in zip(shadow.state.items, real, strict=True))
        return is_plain(real)


@polyfill(iter, applies=lambda *args: len(args) == 1 and is_value(args[0]) and is_array(args[0]))
def iterate_array(array: Any) -> Any:
    """`ndarray.__iter__`."""
    if array.ndim == 0:
        raise TypeError("iteration over a 0-d array")
    return iter([array[i] for i in range(len(array))])


def _computes(real: Any) -> bool:
    """Whether a callable is a C function, method or class of numpy for computing."""
    cls = type(real)
    if getattr(real, "__name__", "") in ACTING:
        return False
    if cls.__module__ == "numpy":
        return cls.__name__ in ("ufunc", "_ArrayFunctionDispatcher", "_DTypeMeta")
    if isinstance(real, types.BuiltinFunctionType):
        return isinstance(real.__self__, types.ModuleType) and str(real.__module__).partition(".")[0] == "numpy"
    if isinstance(real, (types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType)):
        return real.__objclass__.__module__ == "numpy"
    return isinstance(real, type) and real.__module__ == "numpy" and any(base.__name__ == "generic" for base in real.__mro__)


def _owner(array: Any) -> Any:
    """The array that a view was made of."""
    while is_value(getattr(array, "base", None)):
        array = array.base
    return array
