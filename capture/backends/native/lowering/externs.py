"""Calls of operators that stay with ATen, as statements of a program."""
from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from capture.backends.native.ir import Extern
from capture.backends.native.lowering.builder import Builder
from capture.backends.native.lowering.lazy import Lazy, Spec, in_memory
from capture.operators.facts import facts_of

FACTORY = frozenset(("dtype", "layout", "device", "pin_memory"))    # what the result is like: an out argument says it by itself


@functools.cache
def out_variant(op: OpOverload) -> tuple[OpOverload, tuple[str, ...]] | None:
    """The overload that computes the same into given tensors, and the names of these arguments. None where there is none of its
    own: those that are generated call the functional one and copy."""
    schema = op._schema
    names = [a.name for a in schema.arguments]
    factory = not any("Tensor" in str(a.type) for a in schema.arguments)
    wanted = [n for n in names if not (factory and n in FACTORY)]
    if schema.is_mutable or any(str(r.type) != "Tensor" or r.alias_info is not None for r in schema.returns):
        return None
    packet = op.overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        outs = tuple(a.name for a in other._schema.arguments if a.is_out)
        if not outs or torch.Tag.generated in other.tags:
            continue
        rest = [a.name for a in other._schema.arguments if not a.is_out]
        types = {a.name: str(a.type) for a in other._schema.arguments}
        same = all(types[a.name] == str(a.type) for a in schema.arguments if a.name in types)
        if same and rest == wanted and len(outs) == len(schema.returns):
            return other, outs
    return None


def in_place_form(op: OpOverload) -> OpOverload | None:
    """The overload that writes the result to the first argument; None where there is none."""
    packet = getattr(getattr(torch.ops, op.namespace), f"{op._opname}_", None)
    return getattr(packet, op._overloadname, None)


def extern(builder: Builder, op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], results: Sequence[Spec | None],
           used: frozenset[int]) -> list[Lazy | None]:
    """Emits the call. `args`: Lazies, literals, sizes, and lists of these. Returns its results, None for those that it lacks, or
    that are not used."""
    given = builder_args(builder, tuple(args))
    named = {name: builder_args(builder, value) for name, value in kwargs.items()}
    mutated = _mutated(op, args, kwargs)
    here = builder.program.device.type
    fits = results and all(spec is not None and spec.device.type == here for spec in results) and not facts_of(op).lays_out_itself
    variant = out_variant(op) if fits else None
    lazies: list[Lazy | None] = []
    names: list[str | None] = []
    for number, spec in enumerate(results):
        if spec is None or variant is None and number not in used:
            lazies.append(None)
            names.append(None)
            continue
        stored = builder.memory(spec.shape, spec.dtype, spec.strides)
        names.append(stored.buffer.name)
        if spec.device.type != here:
            builder.program.hosts |= {stored.buffer.name}
        lazies.append(in_memory(stored, spec.shape))
    if variant is not None:
        op, outs = variant
        named = {name: value for name, value in named.items() if any(a.name == name for a in op._schema.arguments)}
        named |= {out: lazy.view for out, lazy in zip(outs, lazies, strict=True) if lazy is not None}
    name = builder.name(f"{builder.label}_call")
    builder.program.body.append(Extern(name, text_of(op), given, named, tuple(names), variant is not None, mutated))
    return lazies


def builder_args(builder: Builder, value: Any) -> Any:
    """Arguments as the Extern holds them: tensors as views of buffers, with eager's strides."""
    if isinstance(value, Lazy):
        return builder.exact(value)
    if isinstance(value, (list, tuple)):
        return type(value)([builder_args(builder, item) for item in value])
    return value


def text_of(op: OpOverload) -> str:
    """The operator's name, as in "aten::mm.out"."""
    return op._schema.name + (f".{op._schema.overload_name}" if op._schema.overload_name else "")


def written_args(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Lazy]:
    """The tensors among the arguments that the operator writes to."""
    found: list[Lazy] = []
    for number, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            found += [item for item in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(item, Lazy)]
    return found


def _mutated(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[str, ...]:
    return tuple(lazy.stored.buffer.name for lazy in written_args(op, args, kwargs) if lazy.stored is not None)
