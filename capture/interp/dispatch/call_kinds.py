"""What kind of call of a C function this is. Decided once, before the call is made."""
from __future__ import annotations

import enum
import operator
import re
import sys
import types
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any

import torch

from capture._C import is_a
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import LAZY, MODELS, PURE, SIDE_EFFECTS, Meaning, find_model, hashable, methods_beside
from capture.interp.core.special import COMPARING, SEQUENCES, VIEWS, is_plain, is_written_in_python
from capture.interp.function_models import computed_arrays, lru_caches
from capture.interp.recording import arrays, leaf_functions, tensors
from capture.operators.facts import facts_of
from capture.operators.properties import PROPERTIES, READERS
from capture.refgraph.entry_state import PINNED
from capture.refgraph.lookup import UNBOUND_IN_C, plain_attribute
from capture.refgraph.lookup import name_of as name_of_class
from capture.refgraph.node import SCALARS, Const, Expr, External, HandleState, RefNode
from capture.refgraph.result_types import IN_PLACE

# Operators that are recorded when an operand is a tensor.
TENSOR_OPERATORS = frozenset({
    abs, divmod, pow, *(getattr(operator, name) for name in (
        "add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift neg pos invert abs eq ne lt le gt ge getitem "
        "setitem delitem iadd isub imul itruediv ifloordiv imod ipow imatmul iand ior ixor ilshift irshift").split())})
KEYS = VIEWS[0], VIEWS[3]       # of a dict, of an OrderedDict
READS_TEXT = (str, re.Pattern)      # whose methods look at the text of a string, whatever its class
VALUE_TAKERS = frozenset({bool, int, float, complex, operator.truth, operator.not_, operator.index, operator.contains, round, range,
                          format, str, repr})


class Kind(enum.Enum):
    """What a trace makes of a call."""

    OPERATION = "a node of the graph"
    METADATA = "what the properties of a tensor tell"
    VALUE = "what a tensor holds"
    MODE = "a mode of torch that is set, in the graph too"
    GETTER = "a mode, or another fact of the process, that is guarded"
    MODEL = "what the registry says"
    NUMPY = "what numpy computes from constants and guarded content: a constant"
    LAZY = "arithmetic on scalars: an expression"
    PURE = "what follows from what the arguments hold: that is guarded"
    REPEATED = "what numpy computes from what only a hit knows: computed again on each"
    BOOKKEEPING = "nothing: it only keeps Dynamo's own records"
    UNKNOWN = "nothing that a trace can hold"

    __hash__ = object.__hash__      # by identity, as it compares; enum's own hashes the name


TENSOR_KINDS = frozenset({Kind.OPERATION, Kind.METADATA, Kind.VALUE, Kind.MODE})


@dataclass(slots=True, eq=False)
class Call:
    """A call of a C function. `meaning`: its row in the registry (`Kind.MODEL`). `versions`: of its tensors before the call
    (`Kind.OPERATION`)."""

    function: Value
    args: list[Value]
    kwargs: dict[str, Value]
    kind: Kind
    meaning: Meaning | None = None
    versions: Any = None

    @property
    def real(self) -> Any:
        """The function itself."""
        return self.function.real

    @property
    def values(self) -> list[Value]:
        """All arguments."""
        return [*self.args, *self.kwargs.values()]


def understand(interp: Interpreter, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Call:
    """What a call is."""
    call = Call(function, args, kwargs, kind_of_function(function.real, args, kwargs))
    if call.kind is Kind.MODEL:
        reals, named = [value.real for value in args], {name: value.real for name, value in kwargs.items()}
        numpys = any(map(arrays.is_value, reals)) and (
            interp.recorder.arrays.is_foldable(call.real, call.values) or computed_arrays.repeats(interp, call.real, call.values))
        call.meaning = None if numpys else find_model(call.real, reals, named)
    if call.kind is Kind.UNKNOWN or call.kind is Kind.MODEL and call.meaning is None:
        call.kind = kind_by_arguments(interp, call.real, call.values, kwargs)
    return call


# Operators that change their first argument, if that can be changed.
CHANGING = frozenset({*IN_PLACE, operator.iconcat, operator.setitem, operator.delitem})
CHANGEABLE = (*SEQUENCES, dict, set)
# Methods of containers that those lack which cannot be changed.
CHANGING_METHODS = frozenset(
    method for cls, fixed in ((list, tuple), (deque, tuple), (dict, types.MappingProxyType), (OrderedDict, types.MappingProxyType),
                              (set, frozenset), (bytearray, bytes))
    for name, method in vars(cls).items() if not hasattr(fixed, name) and type(method) in UNBOUND_IN_C)


def kind_of_function(real: Any, args: list[Value], kwargs: dict[str, Value]) -> Kind:
    """The kind of a call, as far as the function and the types of its arguments tell."""
    if is_bookkeeping(real):
        return Kind.BOOKKEEPING
    key = real if hashable(real) else None      # a callable object of the program's is in no table
    if key in tensors.MODE_SETTERS:
        return Kind.MODE
    if key in leaf_functions.TENSOR_FACTS:
        return Kind.METADATA
    first = args[0].shadow if args else None
    if isinstance(first, RefNode) and isinstance(first.state, HandleState) and type(real) in UNBOUND_IN_C:
        return kind_of_method(args[0].real, real.__name__)
    # A tensor as a key counts by its identity.
    operands = args[:1] if args and is_a(args[0].real, (dict, set, frozenset, *KEYS)) else args
    operates = any(is_a(a.real, torch.Tensor) for a in operands[:2]) and type(operands[0].real) is not str
    if operates and key in TENSOR_OPERATORS:
        return Kind.OPERATION
    if key in VALUE_TAKERS and any(is_a(a.real, torch.Tensor) for a in operands):
        return Kind.VALUE
    if real is len and args and is_a(args[0].real, torch.Tensor):
        return Kind.METADATA
    if tensors.is_operation(real):
        name = tensors.operation_name(real)
        if key in tensors.MODE_GETTERS:
            return Kind.GETTER
        if name in PROPERTIES and (name != "type" or len(args) + len(kwargs) == 1):
            return Kind.METADATA
        return Kind.VALUE if name in READERS else Kind.OPERATION
    if key in MODELS:
        return Kind.MODEL
    return Kind.GETTER if key in tensors.MODE_GETTERS or key in tensors.PROCESS_FACTS else Kind.UNKNOWN


def kind_of_method(handle: Any, name: str) -> Kind:
    """The kind of a call of a method of an object of torch's own."""
    if name in leaf_functions.FACTS:
        return Kind.GETTER
    if name in leaf_functions.MODELLED:
        return Kind.MODEL
    return {torch.Generator: Kind.OPERATION, torch.UntypedStorage: Kind.VALUE}.get(type(handle), Kind.UNKNOWN)


def kind_by_arguments(interp: Interpreter, real: Any, values: list[Value], kwargs: dict[str, Value]) -> Kind:
    """The kind of a call of a function that only computes its result from its arguments."""
    if values and hashable(real) and real in CHANGING and is_a(values[0].real, CHANGEABLE):
        return Kind.UNKNOWN     # it changes a container of Python
    if interp.recorder.arrays.is_foldable(real, values):
        return Kind.NUMPY
    if hashable(real) and real in LAZY and not kwargs and all(isinstance(v.shadow, (Const, External, Expr)) for v in values):
        return Kind.LAZY
    if computed_arrays.repeats(interp, real, values):
        return Kind.REPEATED
    return Kind.PURE if is_foldable(real, values) else Kind.UNKNOWN


def is_bookkeeping(function: Any) -> bool:
    """Whether a function only keeps Dynamo's own records of modules: the first use of torch.compile patches a call of it into
    `nn.Module.__init__` for the rest of the process."""
    if not is_a(function, types.FunctionType) or function.__module__ != "torch._dynamo.mutation_guard":
        return False
    owner = sys.modules.get("torch._dynamo.mutation_guard")
    return owner is not None and function is owner.GenerationTracker.tag.__func__   # a class method, or of the one instance


def is_foldable(real: Any, values: list[Value]) -> bool:
    """Whether the result of a call follows from the content of its arguments."""
    if is_a(real, types.MethodDescriptorType) and real.__objclass__ in READS_TEXT:      # of a subclass too, such as a version
        values = [v for place, v in enumerate(values) if not (is_a(v.real, str) and (
            place == 0 or not is_written_in_python(v.real, but=COMPARING)))]
    if is_a(real, lru_caches.WRAPPER):
        return all(map(lru_caches.is_part_of_key, values))
    if not is_pure(real):
        return False
    but = methods_beside(real, [v.real for v in values])
    return all(is_plain(v.real, but=but) or is_a(v.real, PINNED) for v in values)


def acts(real: Any, first: Any) -> bool:
    """Whether a C function changes its first argument, besides what a tensor holds, or acts on the world."""
    if is_a(first, torch.Tensor):
        return facts_of(real).changes_only_itself
    return hashable(real) and (real in CHANGING_METHODS or real in SIDE_EFFECTS or real is next
                               or real in CHANGING and is_a(first, CHANGEABLE))


def is_pure(real: Any) -> bool:
    """Whether a C function's result follows from its arguments: by the table, or as a method of an immutable builtin type."""
    if hashable(real) and (real in PURE or real in LAZY):
        return True
    if type(real) in UNBOUND_IN_C:
        return real.__objclass__ in SCALARS and real.__name__ not in ("__init__", "__setattr__", "__delattr__")
    return False


def name_of(real: Any) -> str:
    """A callable's name for people."""
    owner = plain_attribute(real, "__objclass__")
    name = plain_attribute(real, "__qualname__") or plain_attribute(real, "__name__") or name_of_class(type(real))
    module = plain_attribute(owner or real, "__module__")
    if name.startswith("pybind11_detail"):          # where the function is kept; of which class it is stands in its text alone
        owner = re.search(r"\(self: ([\w.]+)", real.__doc__ or "")
        return f"{owner[1] if owner else module}.{real.__name__}"
    return name if module in (None, "builtins", "__main__") else f"{module.lstrip('_')}.{name}"

