"""Memory planning: which statement writes its result over an input that dies there, and where temporary buffers lie in the
arena."""
from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from capture.backends.native.index import Index, Var, bounds, index
from capture.backends.native.ir import Buffer, Extern, Kernel, Program, Stage, Store, View
from capture.backends.native.machine import CPU
from capture.backends.native.rewrite import Rewriter, loads_of, reads, renamed, writes

CUTS = 32           # sizes of the arena that are tried
SCRATCH = 64        # the part of the peak that operators may need for themselves


@dataclass(frozen=True, slots=True)
class Layout:
    """`offsets`: where in the arena each buffer lies, in bytes; temporaries that are not named have memory of their own. `bytes`:
    the arena's size."""

    offsets: Mapping[str, Index]
    bytes: Index


@dataclass(slots=True)
class Lifetime:
    """The first and the last statement that mention a buffer."""

    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


def lifetimes(program: Program) -> dict[str, Lifetime]:
    """Of every buffer that a statement mentions. Local buffers of kernels are not the program's."""
    found: dict[str, Lifetime] = {}
    for number, statement in enumerate(program.body):
        for name in reads(statement) | writes(statement):
            if name in program.buffers:
                found.setdefault(name, Lifetime(number, number)).last = number
    return found


def returned(program: Program) -> set[str]:
    """Buffers that outlive the call."""
    return {output.buffer for output in program.outputs if isinstance(output, View)}


def finished(program: Program) -> dict[str, int]:
    """Buffers of the program that one of its outputs returns, and no other, and the last statement that mentions each: after it,
    who is given the buffer may do with it what they like."""
    alive = lifetimes(program)
    times = Counter(output.buffer for output in program.outputs if isinstance(output, View))
    return {name: alive[name].last for name, count in times.items()
            if count == 1 and name in alive and program.buffers[name].kind not in ("input", "constant")}


def lasting(program: Program, dying: Collection[str] = (), leaving: bool = False) -> set[str]:
    """Buffers whose memory is taken throughout a call, or to its end once they are written. The arguments are `plan_layout`'s."""
    kinds = ("input", "constant") if leaving else ("input", "constant", "output")
    return {name for name, buffer in program.buffers.items() if buffer.kind in kinds} - set(dying)


def allocated(program: Program) -> set[str]:
    """Buffers that operators allocate."""
    return {name for statement in program.body if isinstance(statement, Extern) and not statement.out
            for name in statement.results if name is not None}


# Writing over an input.

def reuse_in_place(program: Program) -> Program:
    """The program with kernels that write over temporaries which die there, if that is certain to be right, and with products that
    are added in place to sums which die there.

    An output of a kernel takes the memory of an input under these conditions: the input is a temporary of the same dtype and not
    needed later; the output did not exist before; and all that the kernel loads of the input comes no later than the stores to the
    output, at the same index, up to the names of a stage's inner variables. Then a row of the kernel touches no other row's
    elements, as its stores do not; and at a point of a stage all loads come before the first store (`ir.Stage`). Stores are plain
    ones, one element for each point, at an index that is not computed.
    """
    fixed = returned(program)
    alive = lifetimes(program)
    names: dict[str, str] = {}
    body = list(program.body)
    for number, statement in enumerate(program.body):
        if isinstance(statement, Extern) and (total := _sum_of(statement, program)) is not None:
            result = statement.results[0]
            if total not in fixed and alive[total].last == number == alive[result].first:
                names[_final(names, total)] = result
                rest = {name: value for name, value in statement.kwargs.items() if name != "out"}
                body[number] = replace(statement, op="aten::addmm_", kwargs=rest, results=(), out=False, mutates=(total,))
        if not isinstance(statement, Kernel):
            continue
        taken: set[str] = set()
        for output in sorted(writes(statement)):
            for given in sorted(reads(statement) - writes(statement) - taken):
                if given in fixed or not _fit(program.buffers.get(output), program.buffers.get(given)):
                    continue
                if alive[output].first == number and alive[given].last == number and _same_places(statement, given, output):
                    first = _final(names, given)
                    if program.buffers[output].kind == "temporary" and output not in fixed:
                        names[output] = given
                    elif _alike(program.buffers[first], program.buffers[output]):       # as who is given it shall see it
                        names[first] = output
                    else:
                        continue
                    taken.add(given)
                    break
    return _renamed(replace(program, body=body), names) if names else program


def _sum_of(call: Extern, program: Program) -> str | None:
    """The temporary to which a call of `addmm` adds a product, if the sum can be stored there: element for element, in nothing that
    the product reads."""
    if call.op != "aten::addmm.out":
        return None
    total, *factors = call.args
    given, result = program.buffers[total.buffer], program.buffers[call.results[0]]
    whole = [View(buffer.name, buffer.sizes, buffer.strides) for buffer in (given, result)]
    if _alike(given, result) and [total, call.kwargs["out"]] == whole and given.name not in {factor.buffer for factor in factors}:
        return given.name
    return None


def _fit(output: Buffer | None, given: Buffer | None) -> bool:
    return (output is not None and given is not None and given.kind == "temporary" and output.kind in ("temporary", "output")
            and output.dtype == given.dtype and output.span == given.span)


def _alike(given: Buffer, output: Buffer) -> bool:
    """Whether a temporary has the dtype, sizes and strides of another buffer."""
    return given.kind == "temporary" and replace(given, name=output.name, kind=output.kind) == output


def _same_places(kernel: Kernel, given: str, output: str) -> bool:
    """Whether all loads of `given` come no later than the stores to `output`, from the elements which are stored."""
    stages = kernel.stages
    storing = [(number, store) for number, stage in enumerate(stages) for store in stage.stores if store.buffer == output]
    loading = [(number, load.index) for number, stage in enumerate(stages) for load in loads_of(stage.stores)
               if load.buffer == given]
    return all(_is_plain(store) and position <= at and _equal(where, stages[position], store.index, stages[at])
               for at, store in storing for position, where in loading)


def _is_plain(store: Store) -> bool:
    return store.reduction is None and not store.scatters


def _equal(load: Index, loading: Stage, store: Index, storing: Stage) -> bool:
    """Whether the indices are the same when the loading stage's inner variables are called as the storing one's."""
    if loading is storing:
        return load == store
    theirs = sorted(_inner(load, loading), key=lambda v: _stride(load, v))
    ours = sorted(_inner(store, storing), key=lambda v: _stride(store, v))
    if len(theirs) != len(ours) or any(a.extent != b.extent for a, b in zip(theirs, ours)):
        return False
    return Rewriter({a: index(b) for a, b in zip(theirs, ours)}).index(load) == store


def _inner(where: Index, stage: Stage) -> list[Var]:
    return [variable for variable in stage.inner if variable in where.variables()]


def _stride(where: Index, variable: Var) -> str:
    return str(where.coefficient(variable))


def _renamed(program: Program, names: Mapping[str, str]) -> Program:
    """With buffers called by the names of those whose memory they take. Names may lead on to others."""
    final = functools.partial(_final, names)
    body = [renamed(statement, final) if isinstance(statement, (Extern, Kernel)) else statement for statement in program.body]
    return replace(program, buffers={name: buffer for name, buffer in program.buffers.items() if name not in names}, body=body)


def _final(names: Mapping[str, str], name: str) -> str:
    while name in names:
        name = names[name]
    return name


# Places in the arena.

def plan_layout(program: Program, dying: Collection[str] = (), leaving: bool = False) -> Layout:
    """Places for the temporaries of statements, except those that operators allocate or the program returns. dying: inputs that
    only the call holds, so that they are freed after their last use. leaving: results may also be taken over and freed as soon as
    they are `finished`; the arena keeps the peak the same in both cases."""
    alive, outlive, chosen = lifetimes(program), returned(program), allocated(program)
    sizes = {name: program.buffers[name].span * program.buffers[name].dtype.itemsize for name in alive}
    movable = {name: sizes[name] for name in alive
               if program.buffers[name].kind == "temporary" and name not in outlive and name not in chosen}
    known = {name: aligned for name, size in movable.items() if (aligned := _aligned(size).constant) is not None}
    last = len(program.body) - 1
    early = finished(program) if leaving else {}
    staying: list[tuple[int, Lifetime]] = []
    gone: list[tuple[int, Lifetime]] = []
    for name, life in alive.items():
        size = sizes[name].constant
        if size is None or name in movable or program.buffers[name].kind in ("input", "constant") and name not in dying:
            continue
        first = 0 if name in dying else life.first
        staying.append((size, Lifetime(first, last if name in outlive else life.last)))
        gone.append((size, Lifetime(first, last if name in outlive and name not in early else life.last)))
    calls = [number for number, statement in enumerate(program.body) if isinstance(statement, Extern) and not statement.out]
    places, end = _limited(known, alive, [staying, gone], calls)
    offsets = {name: index(offset) for name, offset in places.items()}
    bytes_ = index(end)
    for size, names in _shared({name: size for name, size in movable.items() if name not in known}, alive):
        offsets |= dict.fromkeys(names, bytes_)
        bytes_ = bytes_ + _aligned(size)
    return Layout(offsets, bytes_)


def _aligned(size: Index) -> Index:
    return (size + (CPU.line - 1)) // CPU.line * CPU.line


def _peak(blocks: Iterable[tuple[int, Lifetime]]) -> int:
    """The most bytes that are there at one time, of blocks of memory and when they are there."""
    return max(_totals(blocks), default=0)


def _totals(blocks: Iterable[tuple[int, Lifetime]]) -> list[int]:
    """The bytes that are there at each time, up to the end of the last block."""
    blocks = list(blocks)
    changes = [0] * (2 + max((life.last for _, life in blocks), default=-1))
    for size, life in blocks:
        changes[life.first] += size
        changes[life.last + 1] -= size
    return list(accumulate(changes))


def _limited(sizes: Mapping[str, int], alive: Mapping[str, Lifetime],
             cases: Sequence[Sequence[tuple[int, Lifetime]]], calls: Sequence[int]) -> tuple[dict[str, int], int]:
    """Offsets of as many buffers, and the end of the last, as leave the peak what it is when each has memory of its own. `cases`:
    what other memory there may be, its bytes and when it is there. `calls`: the statements that are operators
    which allocate."""
    separate = [(size, alive[name]) for name, size in sizes.items()]
    allowed = [_peak([*beside, *separate]) for beside in cases]
    cases = [[*beside, *_scratch([*beside, *separate], most, calls)] for beside, most in zip(cases, allowed, strict=True)]
    limit = min(most - _peak(beside) for most, beside in zip(allowed, cases, strict=True))
    whole = _packed(sizes, alive, sum(sizes.values()))[0]
    tops = sorted({top for name, offset in whole.items() if (top := offset + sizes[name]) <= limit}, reverse=True)
    for capacity in tops[::1 + len(tops) // CUTS]:
        offsets, end = _packed(sizes, alive, capacity)
        others = [(size, alive[name]) for name, size in sizes.items() if name not in offsets]
        if all(end + _peak([*beside, *others]) <= most for most, beside in zip(allowed, cases, strict=True)):
            return offsets, end
    return {}, 0


def _scratch(blocks: Sequence[tuple[int, Lifetime]], peak: int, calls: Iterable[int]) -> list[tuple[int, Lifetime]]:
    """Memory that operators which allocate may need for themselves while they run, which nobody knows: some of the peak, but no
    more than it takes to reach it."""
    totals = dict(enumerate(_totals(blocks)))
    return [(min(peak // SCRATCH, peak - totals.get(number, 0)), Lifetime(number, number)) for number in calls]


def _packed(sizes: Mapping[str, int], alive: Mapping[str, Lifetime], capacity: int) -> tuple[dict[str, int], int]:
    """Offsets at which buffers that are alive at the same time do not overlap, and the end of the last. The largest is placed
    first, each into the smallest gap that is large enough, else at the end; buffers that would end behind `capacity` get no place.
    Of equal ones the last is placed first: at the end of a call results take the most memory."""
    offsets: dict[str, int] = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], -alive[name].first, name)):
        others = sorted((offsets[other], offsets[other] + sizes[other]) for other in offsets if alive[other].overlaps(alive[name]))
        best: tuple[int, int] | None = None
        end = 0
        for start, stop in others:
            gap = start - end
            if gap >= sizes[name] and (best is None or gap < best[0]):
                best = gap, end
            end = max(end, stop)
        place = end if best is None else best[1]
        if place + sizes[name] <= capacity:
            offsets[name] = place
    return offsets, max((offset + sizes[name] for name, offset in offsets.items()), default=0)


def _shared(sizes: Mapping[str, Index], alive: Mapping[str, Lifetime]) -> list[tuple[Index, list[str]]]:
    """Places for buffers of symbolic size: the size of each and who lies there, one after the other."""
    places: list[tuple[Index, list[str]]] = []
    for name in sorted(sizes, key=lambda name: (alive[name].first, name)):
        size = sizes[name]
        if not _at_least(size, index(0)):
            continue                                                    # it might be negative, and the places behind it overlap
        for number, (room, names) in enumerate(places):
            larger = room if _at_least(room, size) else size if _at_least(size, room) else None
            if larger is not None and not any(alive[other].overlaps(alive[name]) for other in names):
                places[number] = larger, [*names, name]
                break
        else:
            places.append((size, [name]))
    return places


def _at_least(value: Index, least: Index) -> bool:
    """Whether `value >= least` whatever the symbols are."""
    low = bounds(value - least)[0]
    return low is not None and low >= 0
