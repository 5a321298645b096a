"""Which statements must come before which, as bit sets that stay right while statements are merged."""
from __future__ import annotations

from collections.abc import Sequence

import torch

from capture.backends.native.ir import Batch, Extern, Kernel, Nest
from capture.backends.native.rewrite import reads, writes

RANDOM = "the random number generator"      # read and written by every operator that draws from it


def effects(statement: Nest | Kernel | Batch | Extern) -> tuple[set[str], set[str]]:
    """What a statement reads and writes, the generator's state included."""
    read, written = reads(statement), writes(statement)
    if isinstance(statement, Extern) and is_random(statement.op):
        return read | {RANDOM}, written | {RANDOM}
    return read, written


def is_random(op: str) -> bool:
    """Whether an ATen operator, named such as "aten::bernoulli.p", draws random numbers."""
    namespace, _, rest = op.partition("::")
    name, _, overload = rest.partition(".")
    found = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
    return torch.Tag.nondeterministic_seeded in found.tags


class Order:
    """The partial order of a list of statements. Statements and groups of them are bit masks."""

    def __init__(self, body: Sequence[Nest | Kernel | Batch | Extern]) -> None:
        self.before = [0] * len(body)           # position -> everything that must come before it, transitively
        self.after = [0] * len(body)
        writer: dict[str, int] = {}
        readers: dict[str, list[int]] = {}
        for position, statement in enumerate(body):
            read, written = effects(statement)
            direct = {writer[name] for name in read | written if name in writer}
            direct.update(reader for name in written for reader in readers.get(name, ()))
            for earlier in direct:
                self.before[position] |= self.before[earlier] | 1 << earlier
            for name in read:
                readers.setdefault(name, []).append(position)
            for name in written:
                writer[name] = position
                readers[name] = []
        for position, mask in enumerate(self.before):
            for earlier in bits(mask):
                self.after[earlier] |= 1 << position

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
        before, after = self._before(group) & ~group, self._after(group) & ~group
        for position in bits(group | after):
            self.before[position] |= (before | group) & ~(1 << position)
        for position in bits(group | before):
            self.after[position] |= (after | group) & ~(1 << position)

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


def bits(mask: int) -> list[int]:
    """Positions of the bits that are set."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found
