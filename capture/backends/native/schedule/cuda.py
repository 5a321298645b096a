"""Kernels for a CUDA device: what is done to a program before its kernels are written, and which form each of them takes."""
from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from capture.backends.native.index import Index, contiguous_strides, index
from capture.backends.native.ir import Buffer, Kernel, Load, Program, intern
from capture.backends.native.render.statements import Function
from capture.backends.native.rewrite import Rewriter, needed_outside, reads, writes
from capture.backends.native.schedule.device_rows import Rows
from capture.backends.native.schedule.device_stages import divided, group_of, placements
from capture.backends.native.schedule.kept_rows import with_kept_rows
from capture.backends.native.schedule.prepare import prepared_for_device
from capture.backends.native.schedule.recomputed import with_recomputed
from capture.backends.native.schedule.transposes import Tiles, crosswise_loads
from capture.backends.native.schedule.wide import width_of


def prepared(program: Program) -> Program:
    """An equal program whose kernels can be scheduled: what a row needs several times is kept, and local buffers for which a device
    has no room are in memory, for all rows."""
    buffers, body, own = dict(program.buffers), [], _own_temporaries(program)
    for statement in program.body:
        if isinstance(statement, Kernel):
            statement = prepared_for_device(statement)
            group = group_of(statement)
            width = width_of(statement, group)
            statement = with_kept_rows(statement, group, width)
            statement = with_recomputed(statement, {*_in_memory(statement, group, width), *own.get(statement.name, ())})
            if outside := _in_memory(statement, group, width):
                statement = _with_memory(statement, outside, buffers)
        body.append(statement)
    return replace(program, buffers=buffers, body=body)


def _own_temporaries(program: Program) -> dict[str, set[str]]:
    """Of each kernel the program's buffers that nobody else needs, which are too large to be local."""
    users: dict[str, set[str]] = {}
    for statement in program.body:
        for name in reads(statement) | writes(statement):
            users.setdefault(name, set()).add(statement.name)
    needed, own = needed_outside(program), {}
    for name, (user, *others) in users.items():
        if not others and name in program.buffers and name not in needed:
            own.setdefault(user, set()).add(name)
    return own


def _in_memory(kernel: Kernel, group: int, width: int) -> dict[str, Buffer]:
    """The local buffers for which a device has no room."""
    places = placements(kernel, group, width)
    return {local.name: local for local in kernel.locals if places[local.name].kind == "memory"}


def _with_memory(kernel: Kernel, outside: dict[str, Buffer], buffers: dict[str, Buffer]) -> Kernel:
    """With some local buffers in memory, an instance for each row."""
    row, number = index(0), 0
    for variable in kernel.outer:
        row = row * variable.extent + index(variable)
    names: dict[str, tuple[str, Index]] = {}
    for local in outside.values():
        while (name := f"{kernel.name}_rows{number}") in buffers:
            number += 1
        length = local.span
        sizes = (*(variable.extent for variable in kernel.outer), length)
        buffers[name] = Buffer(name, local.dtype, sizes, contiguous_strides(sizes))
        names[local.name] = name, row * length

    def moved(node: Load) -> Load | None:
        if node.buffer not in names:
            return None
        name, start = names[node.buffer]
        return intern(Load, name, start + node.index, node.dtype, node.mask)
    rewriter = Rewriter({}, moved)
    stages = []
    for stage in kernel.stages:
        stores = [replace(store, buffer=names[store.buffer][0], index=names[store.buffer][1] + store.index)
                  if store.buffer in names else store for store in rewriter.stores(stage.stores)]
        stages.append(replace(stage, stores=tuple(stores)))
    locals_ = tuple(local for local in kernel.locals if local.name not in names)
    return replace(kernel, stages=tuple(stages), locals=locals_)


def schedule(kernel: Kernel, by_value: Collection[str] = (), unaligned: Collection[str] | None = None) -> Function:
    """The function of a prepared kernel. by_value: buffers whose one element it is passed, in place of an address. unaligned: those
    which may not begin at a multiple of 16 bytes (None: all); for when they do, and sizes are multiples of what a thread does in
    turn, it has forms besides (`Function.wide`)."""
    if crosswise_loads(kernel):
        return Tiles(kernel, by_value).function()
    width = width_of(kernel, group_of(kernel))
    form = Rows(kernel, by_value, width, is_wide=True).function()
    if form.divisible and not form.aligned:
        return Rows(kernel, by_value).function()
    if unaligned is not None:
        form = replace(form, aligned=form.aligned.intersection(unaligned))
    if form.aligned and (not form.divisible or _adds_together(kernel)):
        form = _with_fallback(form, Rows(kernel, by_value, width))      # which adds in the same order: addresses change no result
    return _with_fallback(form, Rows(kernel, by_value)) if form.divisible else form


def _with_fallback(wide: Function, rows: Rows) -> Function:
    """The function of `rows`, which runs where the conditions of the wide form do not hold. Both take the same parameters."""
    rows.buffers, rows.symbols = dict(wide.buffers), dict(wide.symbols)
    function = rows.function()
    return replace(function, wide=_with_parameters(wide, function))


def _with_parameters(form: Function, of: Function) -> Function:
    wide = None if form.wide is None else _with_parameters(form.wide, of)
    return replace(form, buffers=of.buffers, symbols=of.symbols, wide=wide)


def _adds_together(kernel: Kernel) -> bool:
    """Whether the threads of a row combine what each has of its points."""
    return any(one.together and one.accumulators for one in (divided(stage, group_of(kernel)) for stage in kernel.stages))


