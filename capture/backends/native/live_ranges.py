"""Which nests should not be one kernel, because operands of one would then wait in memory for those of another.

A kernel runs when all that its nests read has been computed. In a sum of twenty gradients, each from its own operator, the first
would wait for the last, while eager mode has added and freed it long before. Fusion saves passes over memory, and is right as long
as the waiting operands are not at the peak. So a schedule is judged as a whole: `least` is the peak that it would have if every
nest that frees memory ran as soon as it can. Where more is alive than that, kernels are cut: nests that could have run by then are
separated from those that could not.
"""
from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from capture.backends.native.cost import bytes_of
from capture.backends.native.dependencies import bits, effects
from capture.backends.native.ir import Buffer, Extern, Nest

SLACK = 128         # a peak may be that part higher than the least, for kernels that pass over memory fewer times


@dataclass(frozen=True, slots=True)
class Judgement:
    """Of one schedule. peak: bytes, of buffers and inputs that die. cuts: pairs of sets of statements, as bit masks, between which
    nothing had better be fused."""

    peak: int
    cuts: list[tuple[int, int]]


@dataclass(slots=True)
class _Use:
    """Who mentions a buffer, as positions in the body. bytes: its size."""

    bytes: int
    readers: list[int] = field(default_factory=list)
    writers: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Prefix:
    """Members of a kernel that could run before the others, and the bytes that this frees from some statement on."""

    members: int = 0
    gain: int = 0


def judge(body: Sequence[Nest | Extern], order: Sequence[int], buffers: Mapping[str, Buffer], kept: Collection[str],
          dying: Collection[str]) -> Judgement:
    """Judges a schedule. order: the statements of `body` that run as one, as bit masks, in the order in which they run. kept:
    buffers that outlive the body; dying: inputs that do not, nor their last use in it."""
    return _Schedule(body, order, buffers, kept, dying).judged()


class _Schedule:
    def __init__(self, body: Sequence[Nest | Extern], order: Sequence[int], buffers: Mapping[str, Buffer], kept: Collection[str],
                 dying: Collection[str]) -> None:
        self.order = order
        self.kept = set(kept) - set(dying)
        self.time = {position: number for number, members in enumerate(order) for position in bits(members)}
        self.uses: dict[str, _Use] = {}
        self.ready: list[int] = []      # of each statement: the last that must run before it, if it ran by itself
        self._read_body(body, buffers, dying)
        self.mentioned: dict[int, list[str]] = {}       # by what runs as one
        for name, use in self.uses.items():
            for number in {self.time[position] for position in (*use.readers, *use.writers)}:
                self.mentioned.setdefault(number, []).append(name)

    def _read_body(self, body: Sequence[Nest | Extern], buffers: Mapping[str, Buffer], dying: Collection[str]) -> None:
        writer: dict[str, int] = {}
        readers: dict[str, list[int]] = {}
        for position, statement in enumerate(body):
            read, written = effects(statement)
            earlier = {writer[name] for name in read | written if name in writer}
            earlier.update(reader for name in written for reader in readers.get(name, ()))
            if isinstance(statement, Extern):
                self.ready.append(self.time[position])
            else:
                self.ready.append(max((self._done(other, position) for other in earlier), default=-1))
            for name in read | written:
                if name in buffers and (buffers[name].kind not in ("input", "constant") or name in dying):
                    use = self.uses.setdefault(name, _Use(bytes_of(buffers[name])))
                    use.readers += [position] * (name in read)
                    use.writers += [position] * (name in written)
            for name in read:
                readers.setdefault(name, []).append(position)
            for name in written:
                writer[name], readers[name] = position, []

    def _done(self, other: int, position: int) -> int:
        """When `other`, which `position` needs, has run; were they apart, if they are not."""
        return self.ready[other] if self.time[other] == self.time[position] else self.time[other]

    def judged(self) -> Judgement:
        alive = self._alive()
        prefixes = {number: self._prefixes(members) for number, members in enumerate(self.order) if members & (members - 1)}
        prefixes = {number: found for number, found in prefixes.items() if found}
        least = max((bytes_ - sum(best.gain for _, best in self._best(prefixes, number)) for number, bytes_ in enumerate(alive)),
                    default=0)
        taken = dict.fromkeys(prefixes, _Prefix())
        cuts: list[tuple[int, int]] = []
        for number, bytes_ in enumerate(alive):
            bytes_ -= sum(prefix.gain for kernel, prefix in taken.items() if number <= kernel)
            while bytes_ > least + least // SLACK:
                gains = [(best.gain - taken[kernel].gain, kernel, best) for kernel, best in self._best(prefixes, number)]
                gain, kernel, best = max(gains, key=lambda item: item[:2], default=(0, 0, _Prefix()))
                if gain <= 0:
                    break
                bytes_ -= gain
                taken[kernel] = best
                cuts.append((best.members, self.order[kernel] & ~best.members))
        return Judgement(max(alive, default=0), cuts)

    def _alive(self) -> list[int]:
        """The bytes that are alive while each statement runs. A kernel may write over what it is the last to read."""
        end = len(self.order) - 1
        changes = [0] * (end + 2)
        born: list[Counter[int]] = [Counter() for _ in self.order]
        dead: list[Counter[int]] = [Counter() for _ in self.order]
        for name, use in self.uses.items():
            first = min(map(self.time.__getitem__, use.writers), default=0)
            last = end if name in self.kept else max(map(self.time.__getitem__, use.readers + use.writers))
            if first == last and name not in self.kept and use.readers and use.writers:
                continue                                        # stays within one kernel
            changes[first] += use.bytes
            changes[last + 1] -= use.bytes
            born[first][use.bytes] += bool(use.writers)
            dead[last][use.bytes] += name not in self.kept
        reused = [sum(size * count for size, count in (new & old).items()) for new, old in zip(born, dead, strict=True)]
        return [bytes_ - less for bytes_, less in zip(accumulate(changes), reused)]

    def _prefixes(self, members: int) -> list[tuple[int, _Prefix]]:
        """(a statement, the best choice of a kernel's members that can run before it), where that frees memory, in order."""
        positions = sorted(bits(members), key=self.ready.__getitem__)
        number = self.time[positions[0]]
        mentioned = {name: self.uses[name] for name in self.mentioned.get(number, ())}
        found: list[tuple[int, _Prefix]] = []
        best = _Prefix()
        early: set[int] = set()
        for place, position in enumerate(positions[:-1]):
            early.add(position)
            if self.ready[position] == self.ready[positions[place + 1]]:
                continue
            gain = 0
            for name, use in mentioned.items():
                if early.intersection(use.writers):
                    gain -= use.bytes * (name in self.kept or not early.issuperset(use.readers))
                elif name not in self.kept and not use_after(use, early, self.time, number):
                    gain += use.bytes
            if gain > best.gain:
                best = _Prefix(sum(1 << p for p in early), gain)
                found.append((self.ready[position] + 1, best))
        return found

    def _best(self, prefixes: Mapping[int, Sequence[tuple[int, _Prefix]]], number: int) -> list[tuple[int, _Prefix]]:
        """Of each kernel that runs at `number` or later the best of what can run before."""
        chosen = []
        for kernel, found in prefixes.items():
            if number <= kernel and (place := bisect_right(found, number, key=lambda item: item[0])):
                chosen.append((kernel, found[place - 1][1]))
        return chosen


def use_after(use: _Use, early: Collection[int], time: Mapping[int, int], number: int) -> bool:
    """Whether a buffer is needed when the statements `early` of the one that runs at `number` have run."""
    return any(position not in early and time[position] >= number for position in (*use.readers, *use.writers))
