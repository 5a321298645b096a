"""What is known of each of torch's operators, whatever it is called with."""
from __future__ import annotations

import functools
import inspect
import itertools
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from capture._C import is_a
from capture.operators import beyond_schemas
from capture.operators.schemas import Overload, aten_name, is_written, mentioned, overloads_named

PARTS_OF_TORCH = (str, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, OpOverload,
                  OpOverloadPacket, HigherOrderOperator, type(torch.Generator))


@dataclass(frozen=True)
class Statistics:
    """places: arguments, by place and name, that are running statistics. flag: the argument that says that they are written to,
    with what it is by default; an operation without one always does."""

    places: tuple[tuple[int, str], ...]
    flag: tuple[int, str, Any]


def statistics_in(signature: Sequence[tuple[str, Any]]) -> Statistics | None:
    """Those of arguments with these names and defaults."""
    places = tuple((place, name) for place, (name, _) in enumerate(signature) if name.startswith("running_"))
    flags = ((place, name, default) for place, (name, default) in enumerate(signature) if name in beyond_schemas.UPDATING)
    return Statistics(places, next(flags, (len(signature), "", True))) if places else None


@dataclass(frozen=True, eq=False)
class OpFacts:
    """What is known of an operation. Where neither schemas nor the table know it, each fact is what is safe to assume.

    name: ATen's, if it has one; that of another library's operator begins with its namespace. overloads: its own. parts: of a
    function in Python, the operators that its code mentions."""

    name: str
    overloads: tuple[Overload, ...] = ()
    parts: tuple[OpFacts, ...] = ()
    is_of_torch: bool = True            # not of another library's, whose tags say less
    is_of_program: bool = False         # code of the program's, which may do anything
    function: Any = None                # what it is in Python

    @cached_property
    def plain(self) -> str:
        """The name of the operation that this one may be in place."""
        return self.name if self.name.endswith("__") else self.name.removesuffix("_")

    @cached_property
    def takes_form_alone(self) -> bool:
        """Whether it takes of tensors their sizes, dtype and device, and not their values."""
        return self.is_of_torch and (self.plain.startswith("new_") or self.plain.endswith("_like"))

    @cached_property
    def overwrites_first(self) -> bool:
        """Whether its result does not depend on the values of its first tensor."""
        return self.takes_form_alone or self.is_of_torch and self.plain in beyond_schemas.OVERWRITING

    @cached_property
    def dim_place(self) -> int | None:
        """The place of the argument `dim`, where it may be given by its place."""
        return next((place for overload in self.overloads for place, argument in enumerate(overload.schema.arguments)
                     if argument.name == "dim" and not argument.kwarg_only), None)

    @cached_property
    def lays_out_itself(self) -> bool:
        """Whether it must not be given memory for its results that lies otherwise than these would."""
        return self.name in beyond_schemas.LAYING_OUT_THEMSELVES

    @cached_property
    def is_known(self) -> bool:
        """Whether its schema, its code or the table tells of it."""
        return bool(self.overloads or self.parts or self.function) or self.name in beyond_schemas.MAKERS

    def _has(self, tag: torch.Tag) -> bool:
        return any(tag in overload.tags for overload in self.overloads)

    def _any(self, fact: Callable[[OpFacts], bool]) -> bool:
        """Whether a fact is true of an operator that its code mentions; True if nothing is known of it."""
        return not self.is_known or any(map(fact, self.parts))

    @cached_property
    def relays(self) -> bool:
        """Whether it may give a tensor itself another shape, memory or history: more than a write to what it holds, and something
        else than to a tensor that shares its memory."""
        if self.name in beyond_schemas.RELAYING or self._has(torch.Tag.inplace_view):
            return True
        if not self.is_of_torch and any(overload.schema.is_mutable for overload in self.overloads):
            return True
        return self._any(lambda part: part.relays)

    @cached_property
    def views_in_place(self) -> bool:
        """Whether it does nothing but turn a tensor into a view of itself, as another operation returns one: `squeeze_`."""
        return self._has(torch.Tag.inplace_view) and self.plain != self.name and any(
            overload.is_view for overload in overloads_named(self.plain))

    @cached_property
    def changes_only_itself(self) -> bool:
        """Whether it changes nothing but a tensor itself: how it looks at its memory, or its history."""
        return self.views_in_place or self.name in beyond_schemas.RELAYING_ITSELF

    @cached_property
    def always_has_dynamic_shape(self) -> bool:
        """Whether the shape of a result depends on values, whatever the arguments are."""
        if self.name in beyond_schemas.SOMETIMES_DYNAMIC:
            return False
        if self.name in beyond_schemas.DYNAMIC_SHAPE or self._has(torch.Tag.dynamic_output_shape):
            return True
        return self._any(lambda part: part.always_has_dynamic_shape)

    @cached_property
    def has_dynamic_shape(self) -> bool:
        """Whether the shape of a result may depend on values; see `is_dynamic` for calls of which that depends on arguments."""
        if self.name in beyond_schemas.SOMETIMES_DYNAMIC or self.always_has_dynamic_shape:
            return True
        return self._any(lambda part: part.has_dynamic_shape)

    def is_dynamic(self, args: Sequence[Any]) -> bool:
        """The same for a call with these arguments. Of another library's operators nothing is known."""
        if not self.is_of_torch:
            return True
        asked = beyond_schemas.SOMETIMES_DYNAMIC.get(self.name)
        return self.has_dynamic_shape if asked is None else asked(args)

    @cached_property
    def counts_rows(self) -> bool:
        """Whether of its result only the number of rows depends on values."""
        return self.plain in beyond_schemas.ROWS

    @cached_property
    def keeps_rank(self) -> bool:
        """Whether a result whose shape depends on values has as many dimensions whatever the sizes of its operands are."""
        return self.plain in beyond_schemas.RANKED

    @cached_property
    def reads_values(self) -> bool:
        """Whether something else than values of results may follow from what tensors hold, when code calls it by itself."""
        if not self.is_of_torch or self.name in beyond_schemas.READING or self._has(torch.Tag.data_dependent_output):
            return True
        return self.always_has_dynamic_shape

    @cached_property
    def is_shaped_like_first(self) -> bool:
        """Whether its result has the shape of its first argument, whatever the others are."""
        return self.plain in beyond_schemas.SHAPED_LIKE_FIRST

    @cached_property
    def rearranges(self) -> bool:
        """Whether its result has no elements but those of its first argument, if it is given no other tensor and no dtype."""
        return self.is_of_torch and self.name in beyond_schemas.REARRANGING

    @cached_property
    def lists_elements(self) -> bool:
        """Whether the shape of its argument says how many tensors it returns."""
        if self.name in beyond_schemas.LISTS_OF_DIMENSIONS:
            return False
        overloads = self.overloads or self.is_of_torch and named(self.name).overloads
        if not overloads:
            return self._any(lambda part: part.lists_elements)
        return any(any(str(value.type) == "List[Tensor]" for value in overload.schema.returns)
                   and not any("List[Tensor]" in str(argument.type) for argument in overload.schema.arguments)
                   for overload in overloads)

    @cached_property
    def drops_dimensions(self) -> bool:
        """Whether the shape of its argument says how many dimensions its result has."""
        return self.plain in beyond_schemas.DROPS_DIMENSIONS

    @cached_property
    def is_random(self) -> bool:
        """Whether it may draw random numbers."""
        return self._has(torch.Tag.nondeterministic_seeded) or self._any(lambda part: part.is_random)

    @cached_property
    def communicates(self) -> bool:
        """Whether other processes take part: to do it twice is something else than to do it once."""
        return self.name.partition("::")[0] in beyond_schemas.COMMUNICATING

    @cached_property
    def casts_within(self) -> bool:
        """Whether autocast acts inside of its kernel, and not on what it is given."""
        return self.name in beyond_schemas.CASTING_WITHIN

    @cached_property
    def is_unwritten(self) -> bool:
        """Whether its result is memory to which nothing was written."""
        return self.name in beyond_schemas.UNWRITTEN

    @cached_property
    def names_places(self) -> bool:
        """Whether an argument says where in the memory of another one elements lie."""
        arguments = itertools.chain.from_iterable(overload.schema.arguments for overload in self.overloads)
        return any(argument.name == "storage_offset" for argument in arguments)

    @cached_property
    def computes(self) -> bool:
        """Whether what it returns, or writes to its first argument, follows from its arguments, and it does nothing else."""
        if self.is_of_torch and (self.plain in beyond_schemas.FACTORIES or self.plain in beyond_schemas.COMPUTING):
            return True
        if not self.is_of_torch or self.name in beyond_schemas.RELAYING or self.is_random:
            return False
        return any(torch.Tag.pointwise in overload.tags or torch.Tag.view_copy in overload.tags or overload.is_view
                   for overload in overloads_named(self.plain))

    @cached_property
    def writes(self) -> tuple[tuple[int, str], ...]:
        """The arguments, by place and name, that it writes to besides the first: scales and counters of automatic mixed precision,
        the state of fused optimizers, noise."""
        found = ((place, argument) for overload in self.overloads for place, argument in enumerate(overload.schema.arguments))
        return tuple(dict.fromkeys((place, argument.name) for place, argument in found if place and is_written(argument)))

    @cached_property
    def statistics(self) -> frozenset[Statistics]:
        """The running statistics that it may write to, of which not all schemas tell, and what says whether it does."""
        signatures = [[(argument.name, argument.default_value) for argument in overload.schema.arguments]
                      for overload in self.overloads]
        if self.function is not None:
            parameters = inspect.signature(self.function, follow_wrapped=False).parameters.values()
            signatures.append([(parameter.name, parameter.default) for parameter in parameters])
        return frozenset(filter(None, map(statistics_in, signatures)))


    # -- exceptions ----------------------------------------------------------------------------------------------------

    @cached_property
    def is_pointwise(self) -> bool:
        """Whether it computes each element of its result from those at the same place."""
        return self.is_of_torch and any(torch.Tag.pointwise in overload.tags for overload in overloads_named(self.plain))

    @cached_property
    def raises(self) -> bool:
        """Whether it raises for some values that tensors hold, which are not indices."""
        if self.name in beyond_schemas.NEVER_RAISING or self.name in beyond_schemas.SOMETIMES_RAISING:
            return False
        if not self.is_of_torch or self.plain in beyond_schemas.RAISING or self.name.startswith(beyond_schemas.RAISING_PREFIX):
            return True
        return self._any(lambda part: part.raises)

    def may_raise(self, args: Sequence[Any]) -> bool:
        """The same for a call with these arguments, one by one. Integers besides the first argument are indices, unless it is known
        that they are not."""
        asked = beyond_schemas.SOMETIMES_RAISING.get(self.name)
        if self.raises or asked is not None and asked(args):
            return True
        if self.is_pointwise or self.plain in beyond_schemas.TAKING_ANY_INTEGERS:
            return False
        items = [item for arg in args[1:] for item in (arg if is_a(arg, (list, tuple)) else (arg,))]
        return any(is_a(item, torch.Tensor) and not (
            torch.Tensor.is_floating_point(item) or torch.Tensor.is_complex(item) or item.dtype is torch.bool) for item in items)

    def divides(self, rounding: Any) -> bool:
        """Whether it raises where an integer is divided by zero. rounding: its option of that name."""
        return self.plain in beyond_schemas.QUOTIENTS or self.plain == "div" and rounding is not None

    # -- costs ---------------------------------------------------------------------------------------------------------

    @cached_property
    def is_free_view(self) -> bool:
        """Whether it makes a view, at no cost."""
        return self.is_of_torch and self.name in beyond_schemas.FREE_VIEWS

    @cached_property
    def is_recurrent(self) -> bool:
        """Whether it is a whole recurrent network."""
        return self.is_of_torch and self.name in beyond_schemas.RECURRENT

    @cached_property
    def is_fusible(self) -> bool:
        """Whether it costs little, and can be one kernel with what reads it."""
        return self.is_free_view or self.is_of_torch and self.name in beyond_schemas.FUSIBLE or self.is_pointwise

    # -- arguments -----------------------------------------------------------------------------------------------------

    def is_of_sizes(self, where: int | str, real: Any) -> bool:
        """Whether the argument `where`, a position or a name, says how large the results are, and nothing else."""
        name = self.plain
        return name in beyond_schemas.SIZING and (where != 0 or name in beyond_schemas.MAKING) and (
            not self.splits or is_a(real, (list, tuple)))

    @cached_property
    def splits(self) -> bool:
        """Whether a list of sizes, or of places, says by its length how many tensors it returns; an integer does so itself."""
        return self.plain in beyond_schemas.SPLITTING

    @cached_property
    def asks_lists(self) -> bool:
        """Whether it may ask lists for their items by methods of their classes, which may be code of the program's."""
        return self.is_of_torch and self.plain in beyond_schemas.ASKING_LISTS

    @cached_property
    def joins(self) -> bool:
        """Whether it puts the items of its first argument, a list of any length, next to one another."""
        return self.is_of_torch and self.plain in beyond_schemas.JOINING

    @cached_property
    def concatenates(self) -> bool:
        """Whether it joins tensors along a dimension that they have."""
        return self.name in beyond_schemas.CONCATENATING

    @cached_property
    def shares_unseen(self) -> bool:
        """Whether its results lie in its operand's memory, though its schema calls them new."""
        return self.name in beyond_schemas.SHARING

    @cached_property
    def calculates_with_numbers(self) -> bool:
        """Whether its result has the same shape and type whatever number it is given."""
        return self.is_of_torch and self.plain in beyond_schemas.NUMERIC

    @cached_property
    def converts_numbers(self) -> bool:
        """Whether a number is converted to the type of the tensor before anything else is done."""
        return self.is_of_torch and self.plain in beyond_schemas.CONVERTING

    @cached_property
    def indexes_dimension(self) -> bool:
        """Whether its second argument is a dimension of the first, and the third holds indices along it."""
        return self.is_of_torch and self.plain in beyond_schemas.INDEXING_DIMENSION

    @cached_property
    def takes_subscript(self) -> bool:
        """Whether its second argument is a subscript."""
        return self.name in beyond_schemas.SUBSCRIPTING

    @cached_property
    def is_decided_by_numbers(self) -> bool:
        """Whether any number among its arguments may decide of what shape its result is."""
        return self.name in beyond_schemas.DECIDING

    def arguments(self, where: int | str) -> list[Any]:
        """The arguments that schemas have at a position or under a name, but for `out`."""
        return [argument for overload in self.overloads for position, argument in enumerate(overload.schema.arguments)
                if where in (position, argument.name) and not argument.is_out]

    def takes_tensor(self, where: int | str) -> bool:
        """Whether a tensor can be meant by an argument, or by its items. Else one of integers stands for these, and more follows
        from them than values."""
        if not self.overloads and self.function is None:
            return True
        if self.function is not None and (told := annotated(self.function, where)) is not None:
            return told
        found = self.arguments(where) or named(self.name).arguments(where)
        types = {str(argument.type) for argument in found}
        return self.name in beyond_schemas.MAKERS or any("Tensor" in kind for kind in types) or (
            not self.is_decided_by_numbers and any("number" in kind for kind in types))


def annotated(function: types.FunctionType, where: int | str) -> bool | None:
    """Whether a function of torch's in Python says of an argument that it is a tensor; None if it says nothing of it."""
    choices = [cell.cell_contents for cell in function.__closure__ or () if type(cell.cell_contents) is types.FunctionType]
    for known in (function, *choices):          # a function that chooses between others takes what they take
        for position, parameter in enumerate(inspect.signature(known, follow_wrapped=False).parameters.values()):
            if where in (position, parameter.name) and parameter.annotation is not parameter.empty:
                return "Tensor" in str(parameter.annotation) and parameter.kind is not parameter.VAR_POSITIONAL or None
    return None


UNKNOWN = OpFacts("")
# Of what is not one of torch's operations: our own functions, and the bodies of torch's control flow, which are graphs.
OWN = OpFacts("own", parts=(OpFacts("detach", overloads_named("detach")),))
# Of code of the program's: it may do anything to a tensor. Of what shape its results are follows from the shapes of what it is
# given, or is looked at on each call; or it depends on values.
PROGRAM = OpFacts("program", parts=(OpFacts("requires_grad_", overloads_named("requires_grad_")),), is_of_program=True)
SIZING_PROGRAM = OpFacts("program", parts=(*PROGRAM.parts, OpFacts("nonzero", overloads_named("nonzero"))), is_of_program=True)


@functools.cache
def named(name: str, namespace: str = "aten") -> OpFacts:
    """The facts of the operator of a name."""
    return OpFacts(qualified(name, namespace), overloads_named(name, namespace), is_of_torch=is_namespace_of_torch(namespace))


def facts_of(target: Any) -> OpFacts:
    """The facts of a function or method of torch's, or of an fx target."""
    if isinstance(target, PARTS_OF_TORCH):
        return _facts_of(target)
    if type(target) is types.FunctionType:
        module = str(target.__module__)
        if module.startswith("torch"):
            return _facts_of(target)
        if module.startswith("capture."):
            return OWN
    told = getattr(target, "facts", None)           # of a function of ours around another
    return told if isinstance(told, OpFacts) else UNKNOWN


@functools.lru_cache(maxsize=4096)
def _facts_of(target: Any) -> OpFacts:
    if isinstance(target, OpOverload):
        return OpFacts(qualified(target._opname, target.namespace), (Overload(target._schema),),
                       is_of_torch=is_namespace_of_torch(target.namespace))
    if isinstance(target, OpOverloadPacket):
        namespace, _, name = target._qualified_op_name.partition("::")
        return named(name, namespace)
    if isinstance(target, HigherOrderOperator) or target is getattr:
        return OWN
    if isinstance(target, str):
        target = getattr(torch.Tensor, target, target)
    if type(target) is types.FunctionType:
        return OpFacts(aten_name(target), parts=tuple(map(named, sorted(mentioned(target)))), function=target)
    return named(aten_name(target))


def is_namespace_of_torch(namespace: str) -> bool:
    """Whether torch's own operators are of a namespace, whose tags can be relied upon."""
    return namespace in ("aten", "prim", "prims")


def qualified(name: str, namespace: str) -> str:
    """The name of an operator, under which the table tells of ATen's."""
    return name if is_namespace_of_torch(namespace) else f"{namespace}::{name}"
