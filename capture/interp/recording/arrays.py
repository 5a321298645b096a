"""Numpy: results computed from constants, and from arrays whose content is guarded, are constants, from which tensors may be made.

An array from outside may become a tensor without being read: the graph takes it on each call, whatever it holds. An array of the
trace that has become a tensor may share memory with it, so it is no longer computed with.
"""
from __future__ import annotations

import functools
import math
import numbers
import operator
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.registry import hashable, polyfill
from capture.interp.core.special import is_plain, is_walked_by_python
from capture.interp.recording.recorder import Recorder
from capture.interp.recording.scalar_specialization import Numbers
from capture.refgraph.effects import CallEffect, Replayed, user_stack
from capture.refgraph.entry_state import PINNED
from capture.refgraph.graph import RefGraph
from capture.refgraph.identical import is_one_of
from capture.refgraph.lookup import module_of, mro_of, name_of, parts
from capture.refgraph.memory import storage_id, storage_of
from capture.refgraph.ndarrays import (
    LARGEST,
    array_on,
    content,
    copied,
    from_numpy,
    is_all_content,
    is_apart,
    is_array,
    is_finite,
    is_ndarray,
    is_same_memory,
    is_single_dtype,
    is_value,
    layout,
    overlaps,
    place_in,
    tensor_on,
    view_on,
)
from capture.refgraph.node import Build, Const, Expr, External, IteratorState, ListState, RefNode, Shadow, TensorState
from capture.refgraph.source import Computed, Item, Literal

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
    "__array_finalize__", "__setstate__", "__reduce__", "__reduce_ex__", "byteswap", "frompyfunc", "vectorize"})
# … and those that write to an array which they are given.
WRITING = frozenset(
    "setitem fill put sort partition itemset setfield copyto place putmask fill_diagonal put_along_axis at iadd isub imul itruediv "
    "ifloordiv imod ipow iand ior ixor ilshift irshift imatmul".split())
# What is known of an array without what it holds.
LAYOUT = frozenset({"shape", "ndim", "size", "dtype", "strides", "itemsize", "nbytes"})


def is_dtype(real: Any) -> bool:
    """Whether an object is one of numpy's dtypes."""
    return module_of(type(real)) == "numpy.dtypes"


def is_kind(real: Any) -> bool:
    """Whether an object is a kind of elements: a dtype, or a class that stands for one."""
    return is_dtype(real) or is_a(real, type) and (is_one_of(real, bool, int, float, complex) or computes(real))


class Remade(IteratorState):
    """The state of an array that numpy has computed in the trace: a hit makes it again as the trace left it. A view becomes a view
    of the same array."""

    __slots__ = ("node", "arrays")
    is_whole = True

    def __init__(self, node: RefNode, arrays: Arrays) -> None:
        self.node, self.arrays = node, arrays

    def recipe(self) -> tuple[Callable[..., Any], tuple[Shadow, ...]] | None:
        array = self.node.real
        owner = _owner(array)
        if not owner.flags.owndata or self.arrays.is_on_tensor(owner):
            return None
        if owner is not array:
            known = self.arrays.owners.get(id(array))
            return None if known is None else (_as_of_numpy("view", view_on, *place_in(array, owner)), (known,))
        held = copied(array)
        return None if held.strides != array.strides else (_as_of_numpy("array", copied, held), ())


def _as_of_numpy(name: str, function: Callable[..., Any], *args: Any) -> Any:
    """A function with its first arguments, under a name that generated code can refer to."""
    made: Any = functools.partial(function, *args)
    made.__name__, made.__module__ = name, "numpy"
    return made


def kind_of_number(real: Any) -> type | None:
    """The type of Python's that torch takes a number of numpy for."""
    if type(real).__module__ != "numpy":
        return None
    return float if is_a(real, float) else int if is_a(real, numbers.Integral) else None


class Arrays:
    """The arrays and numbers of numpy in one trace: those that it made of constants, and those from outside that became tensors."""

    def __init__(self, seen: Numbers) -> None:
        self._seen = seen
        self._computed: dict[int, Any] = {}                 # numbers, by id
        self._arrays: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()     # … and arrays, while they live
        self._crossed: list[tuple[Any, Any]] = []           # of these, those that became tensors, and what they held then
        self.owners: dict[int, RefNode] = {}                # of views, by the views' id
        self._made = 0
        self._tied: list[tuple[Any, Any]] = []              # … and those on the memory of tensors that follow from constants
        self.tensors: list[tuple[RefNode, torch.Tensor]] = []       # arrays from outside, and the tensors on their memory
        # Calls of numpy after the graph: the node of the array or number that each has made, if the graph may make that as well.
        self.repeated: dict[CallEffect, RefNode | None] = {}
        self.exposed: dict[int | None, int] = {}            # storages of tensors that these were given, and since when
        self.first: int | None = None                       # when numpy was given the first tensor
        self.shared: list[tuple[Any, torch.Tensor]] = []    # what owns the memory of arrays of the graph, and tensors on it

    def note_exposed(self, storage: int | None, serial: int) -> None:
        """Numpy was given a tensor there."""
        self.exposed.setdefault(storage, serial)
        self.first = serial if self.first is None else self.first

    def note_repeated(self, call: CallEffect, node: RefNode | None) -> None:
        """A call of numpy is made after the graph. node: of what it has made, if the graph may make that as well."""
        self.repeated[call] = node

    def note_in_graph(self, call: CallEffect) -> None:
        """The graph makes the call instead."""
        del self.repeated[call]

    def note_hidden(self) -> None:
        """Nothing of numpy's lies on the memory of tensors after the graph any more."""
        self.exposed.clear()

    def note_shared(self, owner: Any, *tensors: torch.Tensor) -> None:
        """Tensors lie on memory of arrays of the graph, which `owner` owns."""
        self.shared += ((owner, tensor) for tensor in tensors)

    def is_computed(self, real: Any) -> bool:
        """Whether numpy made this very object in the trace."""
        return id(real) in self._computed or self._arrays.get(id(real)) is real

    def is_on_tensor(self, owner: Any) -> bool:
        """Whether an array of the trace's owns memory that a tensor lies on, too."""
        return any(_owner(other) is owner for other, _ in (*self._crossed, *self._tied))

    def is_foldable(self, real: Any, values: list[Value]) -> bool:
        """Whether a call computes with numpy, only from arguments that are constant or can be guarded."""
        if (real is int or real is float) and len(values) == 1 and not (
                is_array(values[0].real) or self.is_computed(values[0].real)):
            return False            # a number of Python, which may differ on each call
        asks = hashable(real) and real in ASKING and any(is_value(v.real) or is_dtype(v.real) for v in values)
        return (asks or computes(real)) and all(self._is_constant(v.shadow, v.real) for v in values)

    def refusal(self, graph: RefGraph, real: Any, args: list[Value], kwargs: dict[str, Value]) -> Break | None:
        """Why such a call must not be made in the trace: it writes to an array that was there before."""
        if any(outside_of(graph, array) is not None for array in may_be_written(real, args, kwargs)):
            return Break("opaque-call", f"{getattr(real, '__name__', '').strip('_')}() writes to an array from outside")
        return None

    def note_writes(self, graph: RefGraph, real: Any, args: list[Value], kwargs: dict[str, Value]) -> None:
        """Notes that such a call may have written to arrays of the trace's, which calls were perhaps shown before."""
        for written in may_be_written(real, args, kwargs):
            for array in list(self._arrays.values()):
                node = graph.find(array) if _owner(array) is _owner(written) else None
                if node is not None:
                    graph.effect(real, node)

    def warns(self, values: list[Value], result: Any) -> bool:
        """Whether a call may have warned that a result is infinite or undefined, as it does each time."""
        given = [v.real for v in values if is_ndarray(v.real) or is_value(v.real) and not is_array(v.real)]
        if not is_value(result) or not hasattr(result, "dtype"):
            return False
        return bool(given) and not is_finite(result) and all(map(is_finite, given))

    def fold(self, graph: RefGraph, real: Any, fresh: Callable[[Any], Shadow]) -> Shadow:
        """The shadow of what numpy computed. `fresh`: the shadow of results that are neither arrays nor numbers of numpy."""
        if is_value(real):
            if not is_array(real) and real.dtype.kind == "b":
                return Const(real)                          # one of two objects of the process: no node of the trace's own
            known = graph.find(real)
            if known is not None:
                return known
            (self._arrays if is_ndarray(real) else self._computed)[id(real)] = real
            plain = None if is_array(real) else real.item()
            origin = Build(type(real), (Const(plain),)) if is_one_of(type(plain), bool, int, float, complex) else None
            node = graph.create(real, origin=origin)
            if is_ndarray(real):
                node.state = Remade(node, self)
                owner = _owner(real)
                if owner is not real and is_ndarray(owner):
                    self.owners[id(real)] = graph.find(owner) or self.fold(graph, owner, fresh)  # type: ignore[assignment]
            return node
        if type(real) is tuple:
            return Build(tuple, tuple(self.fold(graph, item, fresh) for item in real))
        if type(real) is list:
            return graph.create(real, ListState([self.fold(graph, item, fresh) for item in real]))
        return Const(real) if is_dtype(real) and is_single_dtype(real) else fresh(real)

    def attribute(self, graph: RefGraph, node: RefNode, real: Any, name: str, result: Any,
                  fresh: Callable[[Any], Shadow]) -> Shadow:
        """The shadow of an attribute of an array or number."""
        if name in LAYOUT and is_ndarray(real) and node.source is not None and not node.slots:
            graph.require(node.source, "TYPE", node.cls)
            graph.require(Computed(layout, (node.source,)), "VALUE", layout(real))
        else:
            self.hold(graph, real)
        return self.fold(graph, result, fresh)

    def hold(self, graph: RefGraph, real: Any) -> None:
        """Depends on what an array or number from outside holds. Raises Break where the trace may have written to its memory."""
        outside = outside_of(graph, real)
        if outside is None:
            return
        if outside.slots and is_array(real):
            raise Break("untracked-mutation", "an array from outside was given another shape or type, and is read")
        if not is_all_content(outside.real):        # dates, records, matrices, flat views
            raise Break("opaque-call", f"Python code reads a numpy.{type(outside.real).__name__}, whose content no guard compares")
        if outside.real.nbytes > LARGEST:
            raise Break("opaque-call", f"numpy reads an array from outside, of {outside.real.nbytes} bytes")
        held = content(outside.real)
        if self._seen.has_many_contents(outside.source, hash(held)):
            raise Break("opaque-call", "numpy reads an array, or number, that differs on each call")
        if not is_array(real):
            return graph.depend(outside, outside.real)
        if None in graph.written:
            raise Break("untracked-mutation", "an array from outside is read after a write to unknown memory")
        for node in graph.nodes:
            storage = node.state.storage if type(node.state) is TensorState else None
            if node.source is not None and storage is not None and storage[0] in graph.written:
                if node.real is None or overlaps(outside.real, node.real):
                    raise Break("data-dependent", "an array is read that was written to as a tensor")
                graph.require(Computed(is_apart, (outside.source, node.source)), "VALUE", True)
        graph.require(outside.source, "TYPE", outside.cls)
        graph.require(Computed(content, (outside.source,)), "VALUE", held)

    def unshareable(self, graph: RefGraph, shadow: Shadow | None, real: Any) -> Break | None:
        """Why a tensor on the memory of an array cannot be in the trace; None if it can, random numbers drawn before the graph."""
        if self.is_computed(real):
            if outside_of(graph, real) is not None:
                return Break("opaque-call", "a view of an array from outside becomes a tensor")
            return self._has_changed(real)
        if is_drawn(shadow):
            follows = all(map(is_guardable, operands_of_draw(shadow)))  # type: ignore[arg-type]
            if follows and graph.make_early(shadow.origin):  # type: ignore[union-attr]
                return None
            return Break("data-dependent", "random numbers become a tensor")
        if not isinstance(shadow, RefNode) or shadow.source is None:
            return Break("opaque-call", "an array of unknown origin becomes a tensor")
        if shadow.slots:
            return Break("untracked-mutation", "an array from outside was given another shape or type, and becomes a tensor")
        return None

    def share(self, graph: RefGraph, node: RefNode, tensor: torch.Tensor) -> Shadow:
        """The shadow of the tensor made on the memory of an array from outside: it is from outside, with a path of its own."""
        number = sum(other is node for other, _ in self.tensors)
        self.tensors.append((node, tensor))            # which lives as long as the capture: backends are shown it
        graph.require(node.source, "TYPE", node.cls)
        return graph.external(tensor, Computed(tensor_on, (node.source, Literal(number))))

    def has_tensor(self, node: RefNode) -> bool:
        """Whether a tensor is one on the memory of an array from outside."""
        return isinstance(node.source, Computed) and node.source.op is tensor_on

    def with_shared(self, graph: RefGraph, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Tensors that were written to, and those that share memory with them by way of arrays of the graph. Raises Break where a
        call after the graph would see it."""
        places = {place[0] for tensor in tensors if (place := storage_of(tensor)) is not None} if self.shared else set()
        owners = [owner for owner, tensor in self.shared if storage_id(tensor) in places]
        if owners:
            self.require_unseen(graph, pending=True)
        return [*tensors, *(tensor for owner, tensor in self.shared if any(owner is other for other in owners))]

    def keep(self, number: RefNode) -> None:
        """The call that returned a number stays after the graph."""
        if isinstance(number.origin, Replayed) and number.origin.op in self.repeated:
            self.repeated[number.origin.op] = None

    def require_unseen(self, graph: RefGraph, pending: bool = False) -> None:
        """Raises Break where a call that is made after the graph would see a write to an array, or to a tensor on its memory.
        pending: one that may yet become part of the graph, too."""
        first = math.inf if self.first is None else self.first
        for effect in graph.effects:
            if isinstance(effect, CallEffect) and effect.stream is None and effect.serial >= first and (
                    pending or self.repeated.get(effect) is None):
                raise Break("late-change", "an array of numpy is written to after a call that was given it, perhaps",
                            user_stack(effect.positions))

    def maker(self, array: Any) -> Callable[[], Any]:
        """A function that makes an array which became a tensor. Raises Break if the array has changed since it became one."""
        changed = self._has_changed(array)
        if changed is not None:
            raise changed
        held = array.copy()
        self._crossed.append((array, held))
        target: Any = functools.partial(held.copy)
        target.__name__, target.__module__ = "array", "numpy"
        return target

    def _has_changed(self, array: Any) -> Break | None:
        for crossed, held in self._crossed:
            if _owner(crossed) is _owner(array) and crossed.tobytes() != held.tobytes():
                return Break("untracked-mutation", "an array of numpy was changed as a tensor, and is used again")
        return None

    def of_tensor(self, graph: RefGraph, real: Any, tensor: torch.Tensor) -> Shadow:
        """The shadow of what `tensor.numpy()` has returned, of a tensor that follows from constants or that `lies_in` a module."""
        node = self.lies_in(graph, tensor)
        if node is None:
            self._tied.append((real, real.copy()))
            return self.fold(graph, real, Const)
        graph.touch(node)
        return graph.external(real, Computed(array_on, (node.source, Literal(self._count()))))

    def lies_in(self, graph: RefGraph, tensor: torch.Tensor) -> RefNode | None:
        """The parameter or buffer that a tensor is the same memory as."""
        for node in graph.nodes:
            place = node.source.base if isinstance(node.source, Item) and type(node.state) is TensorState else None
            held = isinstance(place, Item) and place.key in ("_parameters", "_buffers") and not node.state.dynamic
            if held and is_same_memory(node.real, tensor):
                return node
        return None

    def _count(self) -> int:
        """Another number each time: no two arrays are one."""
        self._made += 1
        return self._made

    def tensor(self, recorder: Recorder, shadow: RefNode, tensor: torch.Tensor) -> Shadow:
        """The shadow of a tensor on the memory of an array from outside, or of random numbers."""
        if shadow.source is not None:
            return self.share(recorder.refs, shadow, tensor)
        depend_on_arguments(recorder.refs, shadow)
        return recorder.drawn(tensor, Expr(tensor_on, (shadow.origin, Const(0))))

    def index(self, recorder: Recorder, shadow: RefNode, real: Any) -> Any:
        """What a tensor is subscripted with in place of an array: a list of the array's items, or a tensor; None if neither will
        do."""
        if not is_ndarray(real) or real.dtype.kind not in "ib":
            return None
        if real.ndim == 1 and real.size and self._is_constant(shadow, real):
            self.hold(recorder.refs, real)
            return real.tolist()
        if real.dtype.kind == "b" or self.is_computed(real) or self.unshareable(recorder.refs, shadow, real) is not None:
            return None
        return recorder.node(self.tensor(recorder, shadow, from_numpy(real)))  # type: ignore[arg-type]

    def _is_constant(self, shadow: Shadow | None, real: Any) -> bool:
        if is_value(real):
            if self.is_computed(real):
                if any(_owner(real) is _owner(array) for array, _ in self._crossed):
                    return False
                return not any(_owner(real) is _owner(array) and array.tobytes() != held.tobytes() for array, held in self._tied)
            if isinstance(shadow, RefNode):
                return shadow.source is not None and is_all_content(real) and real.nbytes <= LARGEST
            return isinstance(shadow, Const)
        if is_dtype(real) or is_ufunc(real) or is_a(real, PINNED):
            return True
        if is_walked_by_python(real):
            return False
        is_data = functools.partial(is_plain, but=())       # with which numpy may do arithmetic
        if isinstance(shadow, Build):
            return all(self._is_constant(s, r) for s, r in zip(shadow.items, parts(real), strict=True))
        if isinstance(shadow, RefNode) and isinstance(shadow.state, ListState):
            return all(self._is_constant(s, r) for s, r in zip(shadow.state.items, real, strict=True))
        if isinstance(shadow, RefNode) and shadow.source is not None and type(real) is list:
            return all(self._is_constant(shadow, item) if is_value(item) else is_data(item) for item in real)
        return is_data(real)


def is_drawn(shadow: Shadow | None) -> bool:
    """Whether an array is what a stream of random numbers gave."""
    return isinstance(shadow, RefNode) and isinstance(shadow.origin, Replayed) and shadow.origin.op.stream is not None


def is_guardable(shadow: Shadow) -> bool:
    """Whether an argument of a draw, from which the shape of the result may follow, can be guarded by value."""
    if isinstance(shadow, Build):
        return all(map(is_guardable, shadow.items))
    return isinstance(shadow, (Const, External))


def operands_of_draw(drawn: RefNode) -> list[Shadow]:
    """The arguments of the draw that an array comes from, besides the stream."""
    return [shadow for shadow in drawn.origin.op.args if shadow is not drawn.origin.op.stream]  # type: ignore[union-attr]


def depend_on_arguments(graph: RefGraph, drawn: RefNode) -> None:
    """Guards the arguments of the draw that an array comes from, and with them its shape and type."""
    stack = operands_of_draw(drawn)
    while stack:
        shadow = stack.pop()
        if isinstance(shadow, Build):
            stack += shadow.items
        elif isinstance(shadow, External):
            graph.depend(shadow, shadow.value)


@polyfill(iter, applies=lambda *args: len(args) == 1 and is_value(args[0]) and hasattr(args[0], "ndim") and is_array(args[0]))
def iterate_array(array: Any) -> Any:
    """`ndarray.__iter__`."""
    if array.ndim == 0:
        raise TypeError("iteration over a 0-d array")
    return iter([array[i] for i in range(len(array))])


def is_ufunc(real: Any) -> bool:
    """Whether an object is one of numpy's functions of elements, and none that calls a function of Python."""
    cls = type(real)
    return name_of(cls) == "ufunc" and module_of(cls) == "numpy" and any(set(kinds) - set("O->") for kinds in real.types)


def computes(real: Any) -> bool:
    """Whether a callable is a C function, method or class of numpy for computing."""
    return is_of_numpy(real) and real.__name__ not in ACTING and getattr(real, "__qualname__", "") != "ndarray.resize"


def is_of_numpy(real: Any) -> bool:
    """Whether a callable is a C function, method or class of numpy, and none that calls a function of Python."""
    cls = type(real)
    if module_of(cls) == "numpy":
        return is_ufunc(real) or name_of(cls) in ("_ArrayFunctionDispatcher", "_DTypeMeta")
    if is_a(real, types.BuiltinFunctionType):
        return is_a(real.__self__, types.ModuleType) and str(real.__module__).partition(".")[0] == "numpy"
    if is_a(real, (types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType)):
        return real.__objclass__.__module__ == "numpy"
    return is_a(real, type) and module_of(real) == "numpy" and any(name_of(base) == "generic" for base in mro_of(real))


def may_be_written(real: Any, args: list[Value], kwargs: dict[str, Value]) -> list[Any]:
    """The arrays that a function of numpy may write to, as far as its name tells, and an argument `out`."""
    name, out = getattr(real, "__name__", "").strip("_"), kwargs.get("out")
    written = args if name in WRITING else args[real.nin:] if name_of(type(real)) == "ufunc" else []
    given = [value.real for value in written]
    if out is not None:
        given += out.real if type(out.real) is tuple else (out.real,)
    return [item for item in given if is_value(item) and is_array(item)]


def _bases(array: Any) -> list[Any]:
    """An array, the one that it is a view of, and so on."""
    found = [array]
    while is_value(getattr(found[-1], "base", None)):
        found.append(found[-1].base)
    return found


def outside_of(graph: RefGraph, array: Any) -> RefNode | None:
    """The array from outside that an array is, or is a view of."""
    return next((node for base in _bases(array) if (node := graph.find(base)) is not None and node.source is not None), None)


def _owner(array: Any) -> Any:
    """The array that a view was made of."""
    return _bases(array)[-1]
