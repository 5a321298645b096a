"""The sizes of results of tensor operations, as they follow from the sizes of the operands: a rule for each operation.

A rule takes a `Shaper`, called `c` (for call), and the arguments of the call as `Value`s, by torch's names. It returns the sizes of
the result: a list of `Size`s, or `Many` of them if the operation returns several tensors. What it decides by becomes a guard
(`Sizes.decide`, `Shaper.fixed`). An operation without a rule, or arguments that a rule does not know, fix all sizes involved: then
each combination of them is captured by itself.
"""
from __future__ import annotations

import functools
import inspect
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional

from capture._C import is_a
from capture.interp.core.frame import Value
from capture.operators.facts import facts_of, named
from capture.operators.schemas import aten_name, name_of, overloads_named
from capture.refgraph.graph import RefGraph
from capture.refgraph.lookup import parts
from capture.refgraph.memory import storage_id
from capture.refgraph.node import Build, Const, ListState, RefNode, TensorState
from capture.refgraph.repetitions import repetition
from capture.refgraph.sizes import Cut, Size, as_size

Shape = list[Size]
Copied = tuple[tuple[Size, ...], tuple[Cut, ...], tuple[Size, ...]]     # see `TensorState.copies`


class Unknown(Exception):
    """No rule says which sizes the results have."""


class Many(list[Shape]):
    """The sizes of several results, in order."""


class Shaper:
    """What rules ask about the arguments of a call, and what they note of its results. result: what the call has returned."""

    def __init__(self, graph: RefGraph, result: Any = None) -> None:
        self.graph, self.sizes, self.result = graph, graph.sizes, result
        self.copying: list[Copied] = []     # operands that are copied if their layout does not fit
        self.cuts: list[Cut] = []       # what parts of dimensions the results take, where these are views
        self.lies: tuple[int, ...] | None = None        # … and see `TensorState`

    def shape(self, value: Value) -> Shape:
        """The sizes of a tensor; a number has none."""
        real, shadow = value.real, value.shadow
        if not is_a(real, torch.Tensor):
            if is_a(real, (int, float, complex)):
                return []
            raise Unknown
        if not isinstance(shadow, RefNode) or not isinstance(shadow.state, TensorState) or shadow.state.dynamic:
            raise Unknown
        sizes = [self.sizes.resolved(size) for size in shadow.state.sizes or ()]
        if all(size.constant is not None for size in sizes):        # whatever has been done to the tensor since
            return list(map(as_size, real.shape))
        return sizes

    def is_dynamic(self, *values: Value) -> bool:
        """Whether the shape of any of these depends on values. No code for all sizes has operations on such tensors."""
        return any(isinstance(value.shadow, RefNode) and isinstance(value.shadow.state, TensorState) and value.shadow.state.dynamic
                   for value in values)

    def items(self, value: Value) -> list[Value]:
        """The items of a list or tuple."""
        shadow, real = value.shadow, value.real
        if isinstance(shadow, Build) and is_a(real, tuple):
            shadows: Sequence[Any] = shadow.items
        elif isinstance(shadow, Const) and is_a(real, tuple):
            shadows = [Const(item) for item in real]
        elif isinstance(shadow, RefNode) and isinstance(shadow.state, ListState) and type(real) is list:
            shadows = shadow.state.items
        else:
            raise Unknown
        return [Value(item, part) for item, part in zip(real if type(real) is list else parts(real), shadows, strict=True)]

    def repeated(self, value: Value) -> tuple[list[Shape], Size]:
        """The sizes of the tensors in a list, and how often these come."""
        opened = repetition(value.shadow)
        if opened is None:
            return list(map(self.shape, self.items(value))), as_size(1)
        self.sizes.decide(operator.ge, opened.times, 1)
        return [self.shape(Value(item, shadow)) for item, shadow in zip(value.real, opened.once)], opened.times

    def size(self, value: Value) -> Size:
        """A number that says how large a result is."""
        if type(value.real) is not int or value.shadow is None:
            raise Unknown
        try:
            return self.sizes.resolved(self.sizes.of(value.shadow, value.real))
        except ValueError:
            raise Unknown from None

    def given(self, values: Sequence[Value]) -> Shape:
        """Sizes that are given one by one, or as one list."""
        if len(values) == 1 and not is_a(values[0].real, int):
            values = self.items(values[0])
        return list(map(self.size, values))

    def fixed(self, value: Value | None, default: Any = None) -> Any:
        """An argument of which more follows than sizes, and which is therefore guarded; `default` if it is not given."""
        if value is None:
            return default
        if value.shadow is not None and not isinstance(value.shadow, Const):
            if is_a(value.real, torch.Tensor):
                raise Unknown
            if isinstance(value.shadow, (Build, RefNode)) and is_a(value.real, (tuple, list)):
                return [self.fixed(item) for item in self.items(value)]
            self.graph.depend(value.shadow, value.real)
        return value.real

    def dims(self, value: Value | None, rank: int) -> list[int]:
        """Dimensions, counted from the front; all if none are given."""
        dims = self.fixed(value)
        if dims is None or dims == []:
            return list(range(rank))
        dims = dims if is_a(dims, (list, tuple)) else [dims]
        if any(type(dim) is not int for dim in dims):
            raise Unknown
        return [dim % max(rank, 1) for dim in dims]

    def dim(self, value: Value | None, rank: int, default: int = 0) -> int:
        """One dimension, counted from the front."""
        dim = self.fixed(value, default)
        if type(dim) is not int:
            raise Unknown
        return dim % max(rank, 1)

    def broadcast(self, *shapes: Shape) -> Shape:
        """The sizes of what pointwise operations make of tensors of these sizes."""
        result: Shape = []
        for place in range(1, 1 + max(map(len, shapes), default=0)):
            size = as_size(1)
            for other in (shape[-place] for shape in shapes if len(shape) >= place):
                size = self.joined(size, other)
            result.insert(0, size)
        return result

    def joined(self, left: Size, right: Size) -> Size:
        """The size of a dimension that two operands share, one of which may be repeated along it."""
        left, right = self.sizes.resolved(left), self.sizes.resolved(right)
        if left == right or right.constant == 1:
            return left
        if left.constant == 1:
            return right
        if left.real == right.real:
            self.sizes.decide(operator.eq, left, right)
            return left
        single, other = (left, right) if left.real == 1 else (right, left)
        self.sizes.fix(single)
        return other

    def same(self, left: Size, right: Size) -> None:
        """Two sizes without which the operation would raise are equal."""
        if not self.sizes.decide(operator.eq, left, right):
            raise Unknown

    def cut(self, part: Size, whole: Size) -> Size:
        """The size of a part of a dimension, which lies in memory as the whole does only if it is the whole."""
        self.cuts.append((part, whole))
        return part

    def cuts_of(self, value: Value) -> tuple[Cut, ...]:
        """What decides how densely a tensor lies in memory, besides its sizes."""
        return value.shadow.state.cuts  # type: ignore[attr-defined]

    def joins_expanded(self, value: Value, shape: Shape) -> bool:
        """Whether a shape joins a dimension along which a tensor is repeated with the one around it: for no sizes is there such a
        view."""
        before, strides = self.shape(value), value.real.stride()
        return any(not strides[dim + 1] and strides[dim] and min(before[dim].constant or 0, before[dim + 1].constant or 0) > 1
                   and not any(may_be_equal(end, other) for other in ends(shape)) for dim, end in enumerate(ends(before)[:-1]))

    def outermost(self, value: Value, most: int) -> int:
        """How many of the first dimensions of a tensor, in their order, lie outermost in memory."""
        strides, shape = self.strides(value), value.real.shape
        for dim in range(most) if strides else ():
            if strides[dim] <= max((stride for stride, size in zip(strides[dim + 1:], shape[dim + 1:]) if size > 1), default=0):
                return dim
        return most if strides else 0

    def guard_copies(self, value: Value) -> None:
        """Guards which of the tensors that a tensor was made of are copied, and which are viewed."""
        for copied in value.shadow.state.copies:  # type: ignore[attr-defined]
            self.require_copy(*copied)

    def is_sure_to_be_contiguous(self, value: Value) -> bool:
        """Whether a tensor is contiguous for all sizes."""
        state = value.shadow.state  # type: ignore[attr-defined]
        return not state.cuts and not state.copies and value.real.numel() > 0 and self.stays_contiguous(value)

    def stays_contiguous(self, value: Value) -> bool:
        """Whether a tensor is contiguous also where its size of 1 that changes, if it has one, is another one: this dimension is
        the outermost, in the tensor and in all that it was made of."""
        tensor, sizes = value.real, self.shape(value)
        single = single_dims(sizes)
        if not single or not tensor.is_contiguous():
            return bool(tensor.is_contiguous())
        strides = self.strides(value)
        return (len(single) == 1 and bool(strides) and not is_loose(strides, sizes)
                and strides[single[0]] == math.prod(tensor.shape[single[0] + 1:])
                and all(size.constant == 1 for size in sizes[:single[0]]))

    def strides(self, value: Value) -> tuple[int, ...]:
        """Strides by which to judge how a tensor lies in memory where a size that is 1 now is another one; () if nothing tells."""
        lies: tuple[int, ...] | None = value.shadow.state.lies  # type: ignore[attr-defined]
        return value.real.stride() if lies is None else lies

    def permute(self, value: Value, order: Sequence[int]) -> Shape:
        """The sizes of a tensor whose dimensions come in another order."""
        shape, lies = self.shape(value), value.shadow.state.lies  # type: ignore[attr-defined]
        self.lies = lies and tuple(lies[dim] for dim in order)
        return [shape[dim] for dim in order]

    def has_shape(self, value: Value, shape: Shape) -> bool:
        """Whether a tensor has this shape, for all sizes."""
        return [self.sizes.resolved(size) for size in shape] == self.shape(value)

    def lay_anew(self, value: Value, shape: Shape) -> Shape:
        """Notes how a tensor lies that is given another shape. Along single elements, a view has strides that follow from sizes.
        With more elements there, it would have those of the tensor in dimensions that both begin with."""
        before, after = self.shape(value), [self.sizes.resolved(size) for size in shape]
        single = single_dims(before)
        if single and storage_id(self.result) == storage_id(value.real):
            kept = in_common(before, after)
            if single[-1] < kept and single == single_dims(after):
                strides = self.strides(value)
                self.lies = strides and (*strides[:kept], *self.result.stride()[kept:])
            else:
                self.lies = self.result.stride() if self.stays_contiguous(value) else ()
        return shape

    def require_layout(self, shape: Sequence[Size], cuts: Sequence[Cut]) -> None:
        """Guards what decides how a tensor of this shape lies in memory: which dimensions have several elements (along a single one
        any stride will do), and which parts are the whole."""
        for size in shape:
            if (size := self.sizes.resolved(size)).constant is None:
                self.require_several(size)
        for part, whole in cuts:
            self.sizes.decide(operator.eq, part, whole)

    def require_copy(self, before: Sequence[Size], cuts: Sequence[Cut], after: Sequence[Size]) -> None:
        """Guards what decides whether a tensor is viewed in another shape, or copied: how it lies in memory, and where dimensions
        of both shapes end at the same element."""
        self.require_layout(before, cuts)
        self.require_ends(before, after)

    def require_ends(self, before: Sequence[Size], after: Sequence[Size]) -> None:
        """Guards where dimensions of two shapes end at the same element."""
        for end, other in itertools.product(ends(before), ends(after)):
            if end.divided(other) is None and other.divided(end) is None:       # else they differ where all have several elements
                self.sizes.decide(operator.eq, end, other)

    def require_several(self, size: Size, if_many: bool = True) -> None:
        """Guards that a dimension goes on having several elements, or a single one. if_many: False where what holds for several
        elements holds for one, too."""
        if size.real < 2:
            self.sizes.fix(size)
        elif if_many:
            self.sizes.decide(operator.ge, size, 2)


def ends(shape: Sequence[Size]) -> list[Size]:
    """The products of the first size, of the first two …"""
    return list(itertools.accumulate(shape, operator.mul))


def may_be_equal(size: Size, other: Size) -> bool:
    """Whether two sizes, of which neither is 0, are equal for some sizes: not if one is a multiple of the other."""
    multiple = size.divided(other) or other.divided(size)
    return multiple is None or min(multiple.terms.values(), default=0) < 2


def in_common(shape: Shape, other: Shape) -> int:
    """With how many sizes both shapes begin."""
    return next((dim for dim, (size, size_of_other) in enumerate(zip(shape, other)) if size != size_of_other),
                min(len(shape), len(other)))


def is_loose(strides: Sequence[int], sizes: Sequence[Size]) -> bool:
    """Whether strides leave open where in memory a dimension lies whose size is 1 now, and changes: there are several of these, or
    others are as far out. What torch makes of such a tensor may lie in memory in one order now, and in another one then."""
    single = single_dims(sizes)
    return len(single) > 1 or any(stride >= strides[dim] for dim in single
                                  for stride, size in zip(strides, sizes, strict=True) if size.real > 1)


def single_dims(sizes: Sequence[Size]) -> list[int]:
    """The dimensions whose size is 1 now, and changes."""
    return [dim for dim, size in enumerate(sizes) if size.constant is None and size.real == 1]


Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}
TOTAL: set[Rule] = set()


def rule(*names: str, total: bool = False) -> Callable[[Rule], Rule]:
    """Registers the rule for the sizes of these operations' results, by ATen's names. total: where the rule's guards hold, the
    operations raise for no sizes."""
    def register(function: Rule) -> Rule:
        for name in names:
            assert name not in RULES, name
            RULES[name] = function
        if total:
            TOTAL.add(function)
        return function
    return register


def shapes_of(c: Shaper, target: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> Shape | Many:
    """The sizes of an operation's results. Raises Unknown where no rule tells."""
    alike = getattr(target, "alike", None)          # code of the program's, which checks that its results are as large as these
    if alike is not None:
        values = [*args, *kwargs.values()]
        return Many([c.shape(values[place]) for place in alike])
    found = rule_of(target) if facts_of(target).is_of_torch else None
    if found is None:
        raise Unknown
    signature = signature_of(found)
    renamed = named_by_torch(signature, kwargs)
    as_given = by_position(target, args, kwargs) if renamed != kwargs else ()
    for given, keywords in ((args, renamed), *by_position(target, args, renamed), *as_given):
        try:
            bound = signature.bind(None, *given, **keywords)
        except TypeError:
            continue
        return found(c, *bound.args[1:], **bound.kwargs)
    raise Unknown


# The names by which torch's functions take their arguments too, as numpy calls them (`numpy_compatibility_arg_names` in torch's
# python_arg_parser.cpp).
OF_NUMPY = {"axis": "dim", "keepdims": "keepdim", "x": "input", "a": "input", "x1": "input", "x2": "other"}


def named_by_torch(signature: inspect.Signature, kwargs: dict[str, Value]) -> dict[str, Value]:
    """The keywords with numpy's names replaced by torch's, unless the rule itself has a parameter of that name."""
    return {name if name in signature.parameters else OF_NUMPY.get(name, name): value for name, value in kwargs.items()}


def by_position(target: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> Iterator[tuple[list[Value], dict[str, Value]]]:
    """The same arguments, with keywords made positional: an overload of the operator may call them otherwise than its rule does."""
    for overload in overloads_named(aten_name(target)) if kwargs else ():
        names = [argument.name for argument in overload.schema.arguments if not argument.kwarg_only]
        if names[:1] == ["self"]:
            names[0] = "input"
        given, rest = list(args), dict(kwargs)
        while len(given) < len(names) and names[len(given)] in rest:
            given.append(rest.pop(names[len(given)]))
        yield given, rest


# Functions that do something else than the methods of their names, or are called in another way than the operators.
OF_FUNCTIONS = {functional.unfold: "im2col", torch.autograd.grad: "autograd.grad", **{
    getattr(functional, name): f"functional.{name}" for name in ("max_unpool1d", "max_unpool2d", "max_unpool3d")}}


def rule_of(target: Any) -> Rule | None:
    """The rule of an operation; of one in place, and of Python's operators, that of ATen's operator, if they have none."""
    if target in OF_FUNCTIONS:
        return RULES[OF_FUNCTIONS[target]]
    if name_of(target) == "__rmatmul__":            # whose operands are the other way round
        return RULES["__rmatmul__"]
    facts = named(aten_name(target))
    if facts.plain in RULES:
        return RULES[facts.plain]
    return pointwise if facts.is_pointwise else None


def parts_of_subscript(index: Value) -> list[tuple[Any, Any]]:
    """The shadow and the real object of each part of a subscript."""
    if is_a(index.real, tuple) and isinstance(index.shadow, Build):
        return list(zip(index.shadow.items, parts(index.real), strict=True))
    if is_a(index.real, tuple) and isinstance(index.shadow, Const):
        return [(Const(part), part) for part in index.real]
    return [(index.shadow, index.real)]


def may_fail(target: Any, args: Sequence[Value]) -> bool:
    """Whether an operation may raise for sizes other than those of the operands, though the guards of its rule hold."""
    found = rule_of(target) if facts_of(target).is_of_torch else None
    if found is RULES["index"] and len(args) > 1:
        return any(is_a(part, (list, torch.Tensor)) or type(part) is int and not isinstance(shadow, Const)
                   for shadow, part in parts_of_subscript(args[1]))
    return found not in TOTAL


@functools.cache
def signature_of(function: Rule) -> inspect.Signature:
    """The signature of a rule."""
    return inspect.signature(function)


def nested(items: Any) -> Shape:
    """The sizes of a tensor that is made of these lists."""
    if is_a(items, (list, tuple)):
        inner = {len(shape): shape for shape in map(nested, items)}
        if len(inner) > 1:
            raise Unknown
        return [as_size(len(items)), *next(iter(inner.values()), [])]
    if is_a(items, (int, float, complex)):
        return []
    raise Unknown


@rule("frexp", total=True)
def frexp(c: Shaper, input: Value) -> Many:
    return Many([c.shape(input), c.shape(input)])


@rule("isclose", "floor_divide", total=True)
def pointwise(c: Shaper, *args: Value, **kwargs: Value) -> Shape:
    """The result of tensors that are combined element by element."""
    if "out" in kwargs:
        raise Unknown
    return c.broadcast(*(c.shape(value) for value in (*args, *kwargs.values()) if is_a(value.real, torch.Tensor)))
