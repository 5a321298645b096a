"""Functions and methods of TorchScript: one operation each, where all but values of tensors follows from their arguments.

A method also reads attributes of its module, which C++ keeps: tensors are further arguments of the operation, others are guarded.
"""
from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from capture._C import is_a
from capture.interp.core.special import is_plain
from capture.operators import facts as operators
from capture.operators.facts import OWN, OpFacts
from capture.operators.properties import PROPERTIES, Property, has
from capture.operators.schemas import overloads_named

SCRIPT = torch.jit.ScriptFunction
METHOD = torch._C.ScriptMethod
# Steps of the language itself that go by values of Python alone, and what asks for identity or of containers of tensors.
LANGUAGE = frozenset("""
    Constant GetAttr If Loop ListConstruct ListUnpack TupleConstruct TupleUnpack TupleIndex TupleSlice DictConstruct RaiseException
    NumToTensor StringIndex EnumName EnumValue Uninitialized abs max min rangelist unchecked_cast unchecked_unwrap_optional
    isinstance""".split())
OF_ANYTHING = frozenset({"__is__", "__isnot__"})
OF_CONTAINERS = frozenset({"__contains__", "keys", "len"})
MODES = frozenset("get_autocast_dtype is_autocast_cpu_enabled is_autocast_enabled is_grad_enabled".split())     # which are guarded
# What a step may be given, as far as it follows from its arguments what it does.
PLAIN_KINDS = frozenset("""
    AnyType BoolType ClassType ComplexType DeviceObjType DictType EnumType FloatType IntType ListType NoneType NumberType
    OptionalType StringType TensorType TupleType UnionType""".split())
# Operations that write to statistics of their module, and count no version.
NORMALISING = frozenset({"aten::batch_norm", "aten::instance_norm"})


def is_operation(function: Any) -> bool:
    """Whether a callable is a scripted function that a graph may call on every hit, as it would an operation of torch's."""
    return is_a(function, SCRIPT) and follows_from_arguments(function)


def follows_from_arguments(function: Any) -> bool:
    """Whether what a scripted function or method does follows from its arguments, but for the values of tensors."""
    return all(map(_reads_no_value, _nodes(function.inlined_graph))) and not facts_of_steps(function).always_has_dynamic_shape


def _reads_no_value(step: Any) -> bool:
    """Whether a step is known to read no value of a tensor on which shapes, aliasing or the path through the function may depend,
    and to use only its arguments."""
    namespace, _, name = step.kind().partition("::")
    asks_property = name in PROPERTIES and not has(name, Property.UNGUARDED)
    if namespace == "prim":
        return name in LANGUAGE or asks_property
    given, made = list(step.inputs()), [str(value.type()) for value in step.outputs()]
    kinds = {str(value.type()) for value in given}
    with_tensors = any("Tensor" in kind for kind in kinds)
    if not all(value.type().kind() in PLAIN_KINDS for value in given) or namespace != "aten" and not with_tensors:
        return False
    if not made:
        return "!" in step.schema()                     # else what it does is done elsewhere
    if with_tensors and not all("Tensor" in kind for kind in made):
        items = kinds.isdisjoint(("Tensor", "Optional[Tensor]"))
        return asks_property or name in OF_ANYTHING or items and name in OF_CONTAINERS
    return bool(given) or name in MODES


def named(function: Any) -> Any:
    """The function under a name that generated code can refer to."""
    target: Any = functools.partial(function)
    target.__name__, target.__module__, target.facts = function.name, "script", facts_of_steps(function)
    return target


def facts_of_steps(function: Any) -> OpFacts:
    """What its steps come to."""
    steps = [kind.partition("::") for kind in sorted(set(_kinds(function.inlined_graph)))]
    return OpFacts(f"script::{function.name}", parts=(OWN, *(operators.named(name, namespace) for namespace, _, name in steps
                                                if overloads_named(name, namespace))))


def normalises(function: Any) -> bool:
    """Whether a scripted function or method may write to running statistics."""
    return not NORMALISING.isdisjoint(_kinds(function.inlined_graph))


# -- methods -----------------------------------------------------------------------------------------------------------

def call_method(method: Any, *args: Any, **kwargs: Any) -> Any:
    """`method(*args, **kwargs)`."""
    return method(*args, **kwargs)


def operation(method: Any, tensors: int) -> Callable[..., Any]:
    """A method as an operation that takes so many tensors of its module before its own arguments. It does not keep it alive."""
    reference = weakref.ref(method)

    def call(*args: Any, **kwargs: Any) -> Any:
        return reference()(*args[tensors:], **kwargs)  # type: ignore[misc]
    call.__name__, call.__module__ = method.name, "script"
    call.facts = facts_of_steps(method)  # type: ignore[attr-defined]
    return call


def tensors_of(method: Any) -> dict[str, torch.Tensor]:
    """The tensors among the attributes that a method reads, by their paths from its module."""
    return {path: value for path, value in _attributes(method) if is_a(value, torch.Tensor)}


def tensor_of(method: Any, path: str) -> torch.Tensor:
    """A tensor that a method's module, or one inside of it, has at a path. Raises TypeError for anything else than a method,
    RuntimeError where there is none."""
    if not is_a(method, METHOD):
        raise TypeError("no method of TorchScript")
    return functools.reduce(lambda module, name: module.getattr(name), path.split("."), method.owner)  # type: ignore[attr-defined,return-value]


def facts_of(method: Any) -> tuple[tuple[str, str], ...]:
    """The other attributes that a method reads, by their paths: plain data. Raises TypeError for what is no method."""
    if not is_a(method, METHOD):
        raise TypeError("no method of TorchScript")
    return tuple((path, "" if is_a(value, torch.Tensor) else repr(value)) for path, value in _attributes(method))


def reads_plain_data(method: Any) -> bool:
    """Whether the attributes that a method reads are tensors and plain data."""
    return all(is_a(value, torch.Tensor) or is_plain(value) for _, value in _attributes(method))


def has_member(module: Any, name: str) -> bool:
    """Whether a scripted module keeps an attribute, a module or a method of this name in C++."""
    own = module.__dict__
    if own.get("_initializing", True):
        return False
    return name in own["_modules"]._python_modules or own["_c"].hasattr(name) or own["_c"]._has_method(name)


def member_of(module: Any, name: str) -> Any:
    """What a scripted module keeps in C++ under a name. Raises TypeError for other objects, RuntimeError where there is nothing."""
    if not is_a(module, torch.jit.RecursiveScriptModule):
        raise TypeError("no scripted module")
    inside, kept = module.__dict__["_modules"]._python_modules, module.__dict__["_c"]
    if name in inside:
        return inside[name]
    return kept.getattr(name) if kept.hasattr(name) else kept._get_method(name)


def _attributes(method: Any) -> Iterator[tuple[str, Any]]:
    """The attributes that a method reads, by their paths from its module, each once."""
    graph = method.inlined_graph
    paths = {next(iter(graph.inputs())).debugName(): ""}
    read: dict[str, Any] = {}
    for node in _nodes(graph):
        if node.kind() == "prim::GetAttr" and (base := paths.get(node.input().debugName())) is not None:
            path = f"{base}.{node.s('name')}".strip(".")
            if node.output().type().kind() == "ClassType":
                paths[node.output().debugName()] = path
            elif path not in read:
                read[path] = tensor_of(method, path)
    yield from read.items()


def _kinds(graph: Any) -> Iterator[str]:
    return (node.kind() for node in _nodes(graph))


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)
