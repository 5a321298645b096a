"""Which statements must come before which, as bit sets that stay right while statements are merged."""
from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import torch
from torch._ops import OpOverload

from capture.backends.native.index import Value
from capture.backends.native.ir import Batch, Buffer, Extern, Kernel, Nest, View
from capture.backends.native.rewrite import indices_of, reads, stores_of, writes
from capture.operators.facts import facts_of

NONE: Mapping[str, Buffer] = {}
RANDOM = "the random number generator"      # read and written by every operator that draws from it


def effects(statement: Nest | Kernel | Batch | Extern) -> tuple[frozenset[str], frozenset[str]]:
    """What a statement reads and writes, the generator's state included."""
    read, written = reads(statement), writes(statement)
    if isinstance(statement, Extern) and is_random(statement.op):
        return read | {RANDOM}, written | {RANDOM}
    return read, written


def is_random(op: str) -> bool:
    """Whether an ATen operator, named such as "aten::bernoulli.p", draws random numbers."""
    return torch.Tag.nondeterministic_seeded in operator_named(op).tags


@functools.cache
def operator_named(op: str) -> OpOverload:
    """The operator of a name such as "aten::bernoulli.p"."""
    namespace, _, rest = op.partition("::")
    name, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")


def may_raise(statement: Nest | Kernel | Batch | Extern, buffers: Mapping[str, Buffer]) -> bool:
    """Whether a statement raises for some values: of indices that it looks at, or as its operator does."""
    if isinstance(statement, Extern):
        args = [torch.empty(0, dtype=buffers[arg.buffer].dtype, device="meta") if isinstance(arg, View) else arg
                for arg in statement.args]
        return facts_of(operator_named(statement.op)).may_raise(args)
    return any(isinstance(atom, Value) and atom.error is not None
               for place in indices_of(stores_of(statement)) for atom in place.atoms())


class Order:
    """The partial order of a list of statements. Statements and groups of them are bit masks.

    buffers: of the program; with them, what may raise and what writes to inputs keeps its order.
    `raising` and `changing` are the statements of either kind."""

    def __init__(self, body: Sequence[Nest | Kernel | Batch | Extern], buffers: Mapping[str, Buffer] = NONE) -> None:
        self.before = [0] * len(body)           # position -> everything that must come before it, transitively
        self.after = [0] * len(body)
        self.raising = self.changing = 0
        writer: dict[str, int] = {}
        readers: dict[str, list[int]] = {}
        needed: list[set[int]] = []             # what each position must come after, without what follows from that
        for position, statement in enumerate(body):
            read, written = effects(statement)
            direct = {writer[name] for name in read | written if name in writer}
            direct.update(reader for name in written for reader in readers.get(name, ()))
            if any(name in buffers and buffers[name].kind == "input" for name in written):
                direct.update(bits(self.raising))
                self.changing |= 1 << position
            if buffers and may_raise(statement, buffers):
                direct.update(earlier for earlier in bits(self.changing) if earlier != position)
                self.raising |= 1 << position
            for earlier in direct:
                self.before[position] |= self.before[earlier] | 1 << earlier
            needed.append(direct)
            for name in read:
                readers.setdefault(name, []).append(position)
            for name in written:
                writer[name] = position
                readers[name] = []
        for position, direct in reversed(list(enumerate(needed))):
            for earlier in direct:
                self.after[earlier] |= self.after[position] | 1 << position

    def depends(self, position: int, earlier: int) -> bool:
        return bool(self.before[position] >> earlier & 1)

    def between(self, left: int, right: int) -> bool:
        """Whether something outside of both groups must run between them, so that they cannot become one."""
        both = left | right
        forward = self._after(left) & self._before(right)
        backward = self._after(right) & self._before(left)
        return bool((forward | backward) & ~both)

    def merge(self, group: int) -> None:
        """From now on the members of `group` run as one statement."""
        members = bits(group)
        before, after = self._before(group) | group, self._after(group) | group
        late, early = _beyond(members, self.before, self.after, before), _beyond(members, self.after, self.before, after)
        for position in bits(group | late):
            self.before[position] |= before & ~(1 << position)
        for position in bits(group | early):
            self.after[position] |= after & ~(1 << position)

    def _before(self, group: int) -> int:
        mask = 0
        for position in bits(group):
            mask |= self.before[position]
        return mask

    def _after(self, group: int) -> int:
        mask = 0
        for position in bits(group):
            mask |= self.after[position]
        return mask


def _beyond(members: Sequence[int], near: Sequence[int], far: Sequence[int], whole: int) -> int:
    """What lies on the `far` side of some of the `members`, and does not have `whole` on its `near` side yet: what lies beyond a
    member that has it all itself, has it too. That is most of a program, where one part follows another."""
    lacking = having = 0
    for member in members:
        if whole & ~(near[member] | 1 << member):
            lacking |= far[member]
        else:
            having |= far[member]
    return lacking & ~having


def bits(mask: int) -> list[int]:
    """Positions of the bits that are set."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found
