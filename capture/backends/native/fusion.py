"""Fusion: the loop nests of a program become kernels, each of which passes over memory as few times as it can.

Greedy: of all pairs of groups that share a buffer, the one that saves the most bytes is fused first, as long as it is legal and
`cost` has nothing against it. What makes two groups legal to fuse:

- no other statement must run between them (`dependencies.Order`);
- their loops can be matched: `outer`, the variables that all nests of the group have in common, is not empty unless both are
  scalar;
- whatever one nest reads of another's results was written at the same point of `outer` (`_same_row`): rows run in parallel.
"""
from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from capture.backends.native import cost
from capture.backends.native.dependencies import Order, is_random
from capture.backends.native.index import Index, Var, bounds, index
from capture.backends.native.ir import Extern, Kernel, Nest, Program
from capture.backends.native.live_ranges import Judgement, judge
from capture.backends.native.loops import (
    cut_at_divisors,
    depends_by_value,
    hidden,
    linear_terms,
    refinement,
    renamed,
    size_of,
    split,
    with_fresh_loops,
)
from capture.backends.native.ordering import in_order
from capture.backends.native.rewrite import loads_of, needed_outside, reads, roots_of, walk, writes
from capture.backends.native.schedule.kernels import contiguous, kernel_of
from capture.backends.native.splitting import split_reductions

RECUTS = 3          # times that fusion starts again, since too much waited


Places = dict[Index, None]       # where a buffer is accessed, each place once, in order


@dataclass(slots=True, eq=False)
class Group:
    """Nests that become one kernel. They share the variables `outer`, and those of their inner loops that run together.

    `nests`: by position in the program. `strip`: the variable of `outer` along which memory is contiguous, where the kernel is to
    be vectorised along it: for pointwise nests and reductions over leading dimensions; None where each nest's own inner loop is.
    """

    nests: dict[int, Nest]
    outer: frozenset[Var]
    strip: Var | None
    alone: bool                     # scans and scatters keep to themselves
    members: int                    # the positions as a bit mask
    accesses: Mapping[str, Places]
    written: Mapping[str, Places]
    nodes: int                      # expressions in all nests

    @classmethod
    def of(cls, nests: dict[int, Nest], outer: frozenset[Var], strip: Var | None, alone: bool = False) -> Group:
        """A group, with what its nests say of memory."""
        accesses: dict[str, dict[Index, None]] = {}
        written: dict[str, dict[Index, None]] = {}
        nodes = 0
        for nest in nests.values():
            for node in loads_of(nest.stores):
                accesses.setdefault(node.buffer, {})[node.index] = None
            for store in nest.stores:
                written.setdefault(store.buffer, {})[store.index] = None
            nodes += sum(1 for _ in walk(roots_of(nest.stores)))
        return cls(nests, outer, strip, alone, sum(1 << position for position in nests), accesses, written, nodes)

    def joined(self, other: Group, outer: frozenset[Var], strip: Var | None) -> Group:
        """Both as one."""
        return Group(self.nests | other.nests, outer, strip, False, self.members | other.members,
                     _union(self.accesses, other.accesses), _union(self.written, other.written), self.nodes + other.nodes)

    @property
    def buffers(self) -> set[str]:
        return self.accesses.keys() | self.written.keys()

    @property
    def loops(self) -> set[Var]:
        return {v for nest in self.nests.values() for v in (*nest.space, *nest.reduced)}

    @property
    def reduces(self) -> bool:
        """Whether there is a reduction among the nests."""
        return any(nest.reduced for nest in self.nests.values())


def _union(one: Mapping[str, Places], other: Mapping[str, Places]) -> dict[str, Places]:
    return {**one, **{name: {**one.get(name, {}), **places} for name, places in other.items()}}


@dataclass(slots=True)
class Fused:
    """The program with kernels in place of nests, and one sentence for each decision, in order."""

    program: Program
    decisions: list[str]


def fuse(program: Program, dying: Collection[str] = ()) -> Fused:
    """Kernels for all nests of `program`, which is left as it is. Nests whose results nobody needs are dropped. dying: inputs that
    are freed after their last use."""
    program = split_reductions(without_dead(program))
    body = [cut_at_divisors(with_fresh_loops(s)) if isinstance(s, Nest) else s for s in program.body]
    fusion = best = _Fusion(program, body, dying)
    found = fusion.run()
    for _ in range(RECUTS):
        if not found.cuts:
            break
        fusion = _Fusion(program, body, dying, [*fusion.cuts, *found.cuts])
        peak, found = found.peak, fusion.run()
        if found.peak >= peak:
            break
        best = fusion
    return Fused(best.finish(), best.decisions)


def without_dead(program: Program) -> Program:
    """Without nests, and allocating calls that change nothing and draw no random numbers, of whose results nothing is needed."""
    needed = needed_outside(program)
    kept = []
    for statement in reversed(program.body):
        useful = isinstance(statement, Extern) and (
            statement.mutates or not any(statement.results) or is_random(statement.op))
        if useful or not needed.isdisjoint(writes(statement)):
            kept.append(statement)
            needed |= reads(statement)
    return replace(program, body=kept[::-1])


class _Fusion:
    def __init__(self, program: Program, body: Sequence[Nest | Extern], dying: Collection[str],
                 cuts: Sequence[tuple[int, int]] = ()) -> None:
        self.program, self.body, self.dying, self.cuts = program, body, dying, cuts
        self.limits = cost.LIMITS[program.device.type]
        self.order = Order(body, program.buffers)
        self.groups: dict[int, Group] = {p: _single(p, s) for p, s in enumerate(body) if isinstance(s, Nest)}
        self.group_of = {p: p for p in self.groups}             # position of a nest -> key of its group
        self.touching: dict[str, set[int]] = {}                 # buffer -> keys of the groups that read or write it
        for key, group in self.groups.items():
            self._touches(key, group)
        self.decisions: list[str] = []
        self.readers: dict[str, int] = {}                       # buffer -> bit mask of the statements that read it
        for position, statement in enumerate(body):
            for name in reads(statement):
                self.readers[name] = self.readers.get(name, 0) | 1 << position
        self.kept = needed_outside(program)
        self.sequence: list[int] = []                           # sets of statements that run as one, in the order of running

    def run(self) -> Judgement:
        """Fuses, and judges what came of it."""
        heap: list[tuple[int, int, int, int]] = []
        self._propose(heap, self.groups)
        while heap:
            gain, _, left, right = heapq.heappop(heap)
            if left not in self.groups or right not in self.groups or self._gain(left, right) != -gain:
                continue            # of groups as they were before one of them grew; proposed anew since
            verdict = self._try(self.groups[left], self.groups[right])
            names = f"{self._name(left)} + {self._name(right)}"
            if isinstance(verdict, str):
                self.decisions.append(f"{names}: apart, {verdict}")
                continue
            self.decisions.append(f"{names}: fused, saves {-gain} bytes")
            self.order.merge(verdict.members)
            for key in left, right:
                for name in self.groups[key].buffers:
                    self.touching[name].discard(key)
            del self.groups[right]
            self.groups[left] = verdict
            self._touches(left, verdict)
            for position in verdict.nests:
                self.group_of[position] = left
            self._propose(heap, [left])
        externs = [1 << position for position, statement in enumerate(self.body) if isinstance(statement, Extern)]
        groups = [*externs, *(group.members for group in self.groups.values())]
        self.sequence = in_order(self.body, groups, self.order, self.program.buffers, self.kept, self.dying)
        return judge(self.body, self.sequence, self.program.buffers, self.kept, self.dying)

    def finish(self) -> Program:
        statements: dict[int, Kernel | Extern] = {1 << p: s for p, s in enumerate(self.body) if isinstance(s, Extern)}
        buffers = dict(self.program.buffers)
        for group in self.groups.values():
            needed = {name for name in group.buffers if name in self.kept or self.readers.get(name, 0) & ~group.members}
            nests = [group.nests[p] for p in sorted(group.nests)]
            kernel = kernel_of(nests, group.outer, group.strip, needed, buffers)
            for local in kernel.locals:
                buffers[local.name] = local
            statements[group.members] = kernel
        body = [statements[members] for members in self.sequence]
        alive = self.kept | {name for s in body for name in reads(s) | writes(s)}
        return replace(self.program, body=body, buffers={n: b for n, b in buffers.items() if n in alive})

    def _name(self, key: int) -> str:
        return "·".join(nest.name for _, nest in sorted(self.groups[key].nests.items()))

    def _touches(self, key: int, group: Group) -> None:
        for name in group.buffers:
            self.touching.setdefault(name, set()).add(key)

    def _propose(self, heap: list[tuple[int, int, int, int]], keys: Iterable[int]) -> None:
        """Adds the pairs of each of these groups with those that touch the same buffers, nearest first."""
        proposed: set[tuple[int, int]] = set()
        for key in keys:
            for name in self.groups[key].buffers:
                near = sorted(self.touching[name], key=lambda other: (abs(other - key), other))
                for other in near[:6]:
                    pair = min(key, other), max(key, other)
                    if other != key and pair not in proposed:
                        proposed.add(pair)
                        gain = self._gain(*pair)
                        if gain > 0:
                            heapq.heappush(heap, (-gain, abs(pair[0] - pair[1]), *pair))

    def _gain(self, left: int, right: int) -> int:
        first, second = self.groups[left], self.groups[right]
        shared = first.buffers & second.buffers
        both = first.members | second.members
        vanishing = {name for name in shared if name not in self.kept and not self.readers.get(name, 0) & ~both
                     and (name in first.written or name in second.written)}
        return cost.saved(shared, vanishing, self.program.buffers)

    def _try(self, first: Group, second: Group) -> Group | str:
        if first.alone or second.alone:
            return "one of them runs sequentially"
        both = first.members | second.members
        if both & self.order.raising and both & self.order.changing:
            return "an index that is out of range must be found before an input is written to"
        if self.order.between(first.members, second.members):
            return "another statement must run between them"
        if any(first.members & a and second.members & b or first.members & b and second.members & a for a, b in self.cuts):
            return "what one of them reads would wait for the other at the peak of memory"
        if (large := cost.too_large(self.limits, len(first.buffers | second.buffers), first.nodes + second.nodes)) is not None:
            return large        # known before the loops are matched, which takes longest
        matched = _match(first, second)
        if matched is None:
            return "their loops do not match"
        first, second = matched
        group = _combined(first, second)
        if isinstance(group, str):
            return group
        if len(group.outer) < max(len(first.outer), len(second.outer)):
            work = max(cost.elements(v) for g in (first, second) for n in g.nests.values() for v in [(*n.space, *n.reduced)])
        else:
            work = 0
        before = self.limits.before(cost.elements(first.outer), cost.elements(second.outer))
        few = cost.too_few_rows(self.limits, cost.elements(group.outer), before, work, group.strip is not None)
        return few or self._illegal(group) or group

    def _illegal(self, group: Group) -> str | None:
        """The dependency within a group that would cross rows."""
        for name, places in group.written.items():
            reference, *others = {**places, **group.accesses.get(name, {})}
            if not all(_same_row(reference, other, group.outer) for other in others):
                return f"rows of {name} depend on each other"
            if not _independent(reference, group.outer):
                return f"rows of {name} overlap"
        return None


def _single(position: int, nest: Nest) -> Group:
    """One nest by itself: what its rows are, and whether it is vectorised along them."""
    alone = any(s.scan or s.scatters for s in nest.stores)
    space = frozenset(nest.space)
    strip = contiguous((*nest.space, *nest.reduced), nest.stores)
    if strip not in space or nest.reduced and cost.elements([strip]) < cost.LEAST_ROWS <= cost.elements(nest.reduced):
        strip = None
    return Group.of({position: nest}, space, strip, alone)


def _match(first: Group, second: Group) -> tuple[Group, Group] | None:
    """Both groups with the loops that run along the same dimension of a shared buffer made the same variable."""
    shared = sorted(first.buffers & second.buffers, key=lambda name: (name not in first.written, name not in second.written, name))
    best: tuple[Group, Group, dict[Var, Var]] | None = None
    most = -1
    for name in shared:
        for left in _along_most_loops_first(first, name):
            for right in _along_most_loops_first(second, name):
                matched = _matched_by(first, second, left, right)
                if matched is not None:
                    one, other, names = matched
                    common = len(one.outer & {names.get(v, v) for v in other.outer})
                    if common > most:
                        best, most = matched, common
                    if common == max(len(first.outer), len(second.outer)):
                        return _with_names(matched)
    if best is None:
        return None if first.outer or second.outer else (first, second)
    return _with_names(best)


def _along_most_loops_first(group: Group, name: str) -> Iterable[dict[Var, Index]]:
    """How a group runs along a buffer: an access that is the same for a whole row, such as to its first element, says little. Those
    that differ by what is added, as the steps of a scan do, are one."""
    every = {**group.written.get(name, {}), **group.accesses.get(name, {})}
    found: dict[frozenset[tuple[Var, Index]], dict[Var, Index]] = {}
    for place in sorted(every, key=lambda place: -len(place.variables())):
        if (terms := linear_terms(place)) is not None:
            found.setdefault(frozenset(terms.items()), terms)
    return found.values()


def _with_names(matched: tuple[Group, Group, dict[Var, Var]]) -> tuple[Group, Group]:
    first, second, names = matched
    return first, _renamed(second, names)


def _matched_by(first: Group, second: Group, left: dict[Var, Index],
                right: dict[Var, Index]) -> tuple[Group, Group, dict[Var, Var]] | None:
    """Both groups, with loops cut where they must be, and the names by which variables of the second one become the first one's.
    left, right: coefficients of their loops in places of one buffer."""
    digits_left, digits_right = _digits(left), _digits(right)
    if digits_left is not None and digits_right is not None:
        cuts = refinement([d[:2] for d in digits_left], [d[:2] for d in digits_right])
        if cuts is not None:
            if all(len(c) == 1 for side in cuts for c in side):
                pairs = {other[2]: one[2] for one, other in zip(digits_left, digits_right)}
                return first, second, pairs
            new_first, variables_first = _cut(first, digits_left, cuts[0])
            new_second, variables_second = _cut(second, digits_right, cuts[1])
            return new_first, new_second, dict(zip(variables_second, variables_first))
    pairs = {}
    for variable, stride in right.items():
        partners = [v for v, s in left.items()
                    if s == stride and index(v.extent) == index(variable.extent) and v not in pairs.values()]
        if len(partners) == 1:
            pairs[variable] = partners[0]
    return (first, second, pairs) if pairs else None


def _digits(terms: dict[Var, Index]) -> list[tuple[int, int, Var]] | None:
    """(stride, extent, variable) by growing stride; None when one of them is symbolic or negative."""
    digits = []
    for variable, stride in terms.items():
        extent = size_of(variable.extent)
        if extent is None or stride.constant is None or stride.constant <= 0:
            return None
        digits.append((stride.constant, extent, variable))
    return sorted(digits, key=lambda digit: digit[:2])


def _cut(group: Group, digits: list[tuple[int, int, Var]], cuts: list[list[int]]) -> tuple[Group, list[Var]]:
    """The group with its digits cut into parts, in all nests, and the parts' variables by growing stride."""
    nests, outer, strip = dict(group.nests), set(group.outer), group.strip
    parts: list[Var] = []
    for (_, _, variable), extents in zip(digits, cuts):
        rest = variable
        for extent in extents[:-1]:
            made: tuple[Var, Var] | None = None
            for position, nest in nests.items():
                if rest in nest.space or rest in nest.reduced:
                    nests[position], made = split(nest, rest, extent, made)
            assert made is not None
            major, minor = made
            if rest in outer:
                outer = outer - {rest} | {major, minor}
            if strip == rest:
                strip = minor
            parts.append(minor)
            rest = major
        parts.append(rest)
    return Group.of(nests, frozenset(outer), strip, group.alone), parts


def _renamed(group: Group, names: dict[Var, Var]) -> Group:
    """With variables replaced. A name that is taken by another variable of the same group cannot be given."""
    names = {old: new for old, new in names.items() if old != new}
    if not names:
        return group
    strip = names.get(group.strip, group.strip) if group.strip is not None else None
    return Group.of({p: renamed(n, names) for p, n in group.nests.items()},
                    frozenset(names.get(v, v) for v in group.outer), strip, group.alone)


def _combined(first: Group, second: Group) -> Group | str:
    """Both groups as one, whose rows are the variables common to all nests."""
    outer = first.outer & second.outer
    nests = [*first.nests.values(), *second.nests.values()]
    if not outer and (first.outer or second.outer):
        return "they have no loop in common"
    if not all(outer.issubset(nest.space) for nest in nests):
        return "a common loop is reduced in one of them"
    if first.reduces and second.reduces and first.strip != second.strip:
        return "one reduces along rows, the other across them, or along other rows"
    if first.reduces or second.reduces:
        strip = first.strip if first.reduces else second.strip
        if strip is not None and strip not in outer:
            return "the contiguous loop is not common"
    else:
        loops = dict.fromkeys(v for nest in nests for v in nest.space)
        strip = contiguous(tuple(loops), [store for nest in nests for store in nest.stores])
        strip = strip if strip in outer else None
    return first.joined(second, outer, strip)


def _same_row(left: Index, right: Index, outer: frozenset[Var]) -> bool:
    """Whether two accesses of a buffer at one point of `outer` can only meet those at the same point.

    True when both advance alike along `outer`, and what is left stays within the gaps between the rows: either the inner strides
    are the same digits, or both remainders stay below the least stride of a row.
    """
    if not outer:
        return True
    for expression in (left, right):
        if hidden(expression, outer) or depends_by_value(expression, outer):
            return False
    if any(left.coefficient(v) != right.coefficient(v) or left.coefficient(v) == 0 for v in outer):
        return False
    rest_left, rest_right = (_without(expression, outer) for expression in (left, right))
    if rest_left == rest_right:
        return True
    terms_left, terms_right = linear_terms(rest_left), linear_terms(rest_right)
    if terms_left is not None and terms_right is not None:
        constants = rest_left.terms.get((), 0), rest_right.terms.get((), 0)
        shapes = [sorted((repr(stride), repr(index(v.extent))) for v, stride in terms.items())
                  for terms in (terms_left, terms_right)]
        if shapes[0] == shapes[1] and constants[0] == constants[1]:
            return True
    strides = [left.coefficient(v).constant for v in outer]
    highs = [bounds(rest)[1] for rest in (rest_left, rest_right)]
    lows = [bounds(rest)[0] for rest in (rest_left, rest_right)]
    if None in strides or None in highs or None in lows or min(lows) < 0 or min(strides) <= 0:
        return False
    return max(highs) < min(strides)


def _independent(expression: Index, outer: frozenset[Var]) -> bool:
    """Whether distinct points of `outer` write distinct elements: every variable has a stride of its own."""
    return all(expression.coefficient(v) != 0 for v in outer)


def _without(expression: Index, variables: frozenset[Var]) -> Index:
    return expression.substitute(lambda atom: 0 if isinstance(atom, Var) and atom in variables else None)

