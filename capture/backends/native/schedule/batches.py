"""Kernels of a CUDA device that do the same with other buffers and sizes become one launch: an optimizer's for 300 parameters.

What a launch costs is more than what most of these kernels take. A batch has one function, to which the parameters of all its
kernels come in a table: a block looks up whose block it is (`Table` of `include/cuda_kernel.h`). Kernels that do the same at each
point, one after the other, have their number of points as a parameter, so that they are alike whatever it is.
"""
from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from capture.backends.native.cost import bytes_of
from capture.backends.native.dependencies import Order, bits
from capture.backends.native.index import Index, Size, Symbol, Var, index, product
from capture.backends.native.ir import Batch, Buffer, Extern, Kernel, Nest, Program
from capture.backends.native.machine import CUDA
from capture.backends.native.render import CUDA as DIALECT
from capture.backends.native.render import text
from capture.backends.native.render.statements import Function
from capture.backends.native.rewrite import Rewriter, reads, writes

POINTS = Symbol("points", 1)
LIGHT = 16 << 10        # bytes: a kernel that touches no more memory may run earlier or later than where it stands


def scheduled(program: Program, function_of: Callable[[Kernel], Function],
              lasting: Collection[str]) -> tuple[Program, list[Function]]:
    """The program with Batches in place of kernels that may run together, and the functions of its kernels. lasting: buffers whose
    memory is taken throughout, or is taken no longer when they are written later."""
    functions = _functions([one for one in program.body if isinstance(one, Kernel)], function_of)
    texts = {name: text(function, DIALECT, "") for name, function in functions.items()}
    body: list[Nest | Kernel | Batch | Extern] = []
    run: list[Kernel] = []
    for statement in program.body:
        if isinstance(statement, Kernel) and _is_light(statement, program.buffers, lasting):
            run.append(statement)
            continue
        body += [*_batched(run, texts), statement]
        run = []
    body += _batched(run, texts)
    for batch in body:
        if isinstance(batch, Batch):
            for kernel in batch.kernels:
                functions[kernel.name] = _with_table(functions[kernel.name])
    return replace(program, body=body), list(functions.values())


def _functions(kernels: Sequence[Kernel], function_of: Callable[[Kernel], Function]) -> dict[str, Function]:
    """Of each kernel, in order. Those that are alike but for their numbers of points have the same text."""
    general: dict[str, list[tuple[Kernel, Function]]] = {}
    for kernel in kernels:
        form = _of_any_size(kernel)
        if form is not None:
            function = function_of(form)
            general.setdefault(text(function, DIALECT, ""), []).append((kernel, function))
    shared = {kernel.name: _for_points(function, kernel.outer[0].extent)
              for alike in general.values() if len(alike) > 1 for kernel, function in alike}
    return {kernel.name: shared[kernel.name] if kernel.name in shared else function_of(kernel) for kernel in kernels}


def _of_any_size(kernel: Kernel) -> Kernel | None:
    """A kernel that does the same for any number of points; None where it has more loops than the one over these."""
    if len(kernel.outer) != 1 or kernel.locals or any(stage.inner for stage in kernel.stages) or kernel.outer[0].extent == 0:
        return None
    points = Var(kernel.outer[0].name, index(POINTS))
    rewriter = Rewriter({kernel.outer[0]: index(points)})
    stages = tuple(replace(stage, stores=rewriter.stores(stage.stores)) for stage in kernel.stages)
    return replace(kernel, outer=(points,), stages=stages)


def _for_points(function: Function, points: Size) -> Function:
    """The function of `_of_any_size`, for a number of points."""
    def known(size: Index) -> Index:
        return size.substitute(lambda atom: points if atom == POINTS else None)
    launch = function.launch and replace(function.launch, points=known(function.launch.points))
    divisible = tuple((known(size), width) for size, width in function.divisible)
    wide = None if function.wide is None else _for_points(function.wide, points)
    return replace(function, sizes={POINTS: points}, launch=launch, divisible=divisible, wide=wide)


def _with_table(function: Function) -> Function:
    """The function for as many kernels at a time as a launch has room for."""
    parameters = 8 * (len(function.buffers) + len(function.symbols))
    room = (CUDA.parameters - 4 * 8) // (4 + parameters)        # besides, the end of the last one, and `invalid`
    wide = None if function.wide is None else _with_table(function.wide)
    return replace(function, room=room, wide=wide)


def _is_light(kernel: Kernel, buffers: Mapping[str, Buffer], lasting: Collection[str]) -> bool:
    """Whether a kernel may run earlier or later, as far as memory is concerned."""
    moved = [buffers[name] for name in reads(kernel) | writes(kernel) if name in buffers and name not in lasting]
    return all(product(buffer.sizes).constant is not None for buffer in moved) and sum(map(bytes_of, moved)) <= LIGHT


def _batched(run: Sequence[Kernel], texts: Mapping[str, str]) -> list[Kernel | Batch]:
    """Kernels that follow each other, those of the same text together where no dependency is in the way."""
    order = Order(run)
    alike: dict[str, list[int]] = {}
    for position, kernel in enumerate(run):
        alike.setdefault(texts[kernel.name], []).append(position)
    groups: list[int] = []          # positions as bit masks
    for positions in alike.values():
        mine: list[int] = []
        for position in positions:
            number = next((number for number, group in enumerate(mine) if _fits(order, group, position)), None)
            if number is None:
                mine.append(1 << position)
            else:
                mine[number] |= 1 << position
                order.merge(mine[number])
        groups += mine
    return [_together([run[position] for position in bits(group)]) for group in _in_order(groups, order)]


def _fits(order: Order, group: int, position: int) -> bool:
    independent = not (order.before[position] | order.after[position]) & group
    return independent and not order.between(group, 1 << position)


def _in_order(groups: Sequence[int], order: Order) -> list[int]:
    """Each as soon as what it needs has run, those first that are complete first."""
    waiting, done, found = sorted(groups, key=int.bit_length), 0, []
    while waiting:
        chosen = next(group for group in waiting if not order.before[bits(group)[0]] & ~group & ~done)
        waiting.remove(chosen)
        done |= chosen
        found.append(chosen)
    return found


def _together(kernels: Sequence[Kernel]) -> Kernel | Batch:
    first, *more = kernels
    return Batch(f"{first.name}_and_{len(more)}_more", tuple(kernels)) if more else first
