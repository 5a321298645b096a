"""The table of lowerings: from an ATen overload to the function that lowers a call of it."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import Node

from capture.backends.native.lowering.builder import Builder
from capture.backends.native.lowering.lazy import Spec, Stored

Handler = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Call:
    """The call being lowered. `results`: what eager returns, None for what it leaves out; `used`: which of these the graph uses.
    `into`: where the first argument lies, if it may be changed there to become the result."""

    builder: Builder
    node: Node
    op: OpOverload
    results: tuple[Spec | None, ...]
    used: frozenset[int]
    into: Stored | None = None

    @property
    def result(self) -> Spec:
        """The only result, or the first one."""
        spec = self.results[0]
        assert spec is not None
        return spec

    @property
    def in_order(self) -> bool:
        """Whether loops may have steps that wait for one another: scans, scatters. On a GPU, whose threads would be idle meanwhile,
        these are left to ATen."""
        return self.result.device.type == "cpu"


@dataclass(frozen=True, slots=True)
class Lowering:
    """`handler(call, *args, **kwargs)` gets tensors as Lazies, sizes as ints or Indexes. It returns a Lazy, a tuple of these for
    several results, or NotImplemented to leave the call to ATen. `is_view`: the result may be the argument's memory. `numbers`:
    Lazies that stand for numbers of Python are understood. `changes_part`: the result is the first argument but for some elements.
    """

    handler: Handler
    is_view: bool
    numbers: bool
    changes_part: bool


TABLE: dict[OpOverload, Lowering] = {}


def lowers(*ops: OpOverload | OpOverloadPacket, view: bool = False, numbers: bool = False,
           part: bool = False) -> Callable[[Handler], Handler]:
    """Registers a handler for overloads, or for all functional overloads of packets."""
    def register(handler: Handler) -> Handler:
        for op in overloads(ops):
            if op in TABLE:
                raise ValueError(f"{op} has two lowerings")
            TABLE[op] = Lowering(handler, view, numbers, part)
        return handler
    return register


def overloads(ops: Iterable[OpOverload | OpOverloadPacket]) -> Iterable[OpOverload]:
    """The overloads meant: of a packet, those on tensors that neither mutate nor have an out argument."""
    for op in ops:
        if isinstance(op, OpOverload):
            yield op
            continue
        for name in op.overloads():
            overload = getattr(op, name)
            if not overload._schema.is_mutable and any("Tensor" in str(result.type) for result in overload._schema.returns):
                yield overload
