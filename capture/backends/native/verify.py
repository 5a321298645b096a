"""The rules of the IR, checked without running anything; `evaluate` checks those that depend on values.

A program that breaks a rule is a fault of the stage before, so the message says which rule and quotes the statement.
"""
from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NoReturn

import torch

from capture.backends.native import ops
from capture.backends.native.index import Div, Index, Mod, Size, Symbol, Value, Var, bounds, index
from capture.backends.native.ir import (
    COMBINING,
    Buffer,
    Constant,
    Expr,
    Extern,
    Kernel,
    Load,
    Nest,
    Op,
    Position,
    Program,
    Stage,
    Store,
    View,
    nested,
)
from capture.backends.native.show import postorder, roots, show, show_expr, show_statement
from capture.errors import InternalError

KINDS = {"input", "temporary", "output", "constant", "local"}
NUMERIC = {"sum", "prod", "total"}
ORDERED = {"max", "min", "argmax", "argmin"}
LOGICAL = {"any", "all"}
REDUCTIONS = NUMERIC | ORDERED | LOGICAL


class InvalidProgram(InternalError):
    """A program of the IR breaks a rule; the message quotes the text of the statement, or of all where none is to blame."""


def verify(program: Program) -> None:
    """Raises InvalidProgram unless `program`, before or after fusion, keeps all rules:

    - names of buffers, statements and the loops of a statement are declared once; sizes depend on the program's symbols only;
    - operations, loads and stores have the dtypes that `ops` and the buffers declare; masks are bool, computed indices int64;
    - expressions depend only on loops around them, the place of a reduction only on those that it does not reduce;
    - elements lie inside of their buffers, as far as the index is affine;
    - a buffer is loaded from, or combined with, only after a statement or stage has stored to it; constants are not written;
    - no two points store to the same element, as far as the index is affine; no two threads scatter to the same one;
    - a kernel's local buffers are used by it alone, at places that depend on the stages' inner loops;
    - calls name operators that exist, and buffers that hold something; all results of the program have been written.
    """
    _Verifier(program).run()


class _Verifier:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.statement: Nest | Kernel | Extern | None = None
        self.locals: set[str] = set()
        self.written = {name for name, buffer in program.buffers.items() if buffer.kind in ("input", "constant")}

    def run(self) -> None:
        self._declarations()
        names: set[str] = set()
        for statement in self.program.body:
            self.statement = statement
            self._demand(statement.name not in names, f"{statement.name} is declared twice")
            names.add(statement.name)
            if isinstance(statement, Extern):
                self._extern(statement)
            else:
                self._loops(statement)
        self.statement = None
        for output in self.program.outputs:
            if isinstance(output, View):
                self._view(output)
                self._demand(output.buffer in self.written, f"{output.buffer} is returned but never written")
            elif output is not None:
                self._size(output, "a result")

    def _fail(self, rule: str) -> NoReturn:
        text = show(self.program) if self.statement is None else show_statement(self.statement)
        raise InvalidProgram(f"{rule} in\n{text}")

    def _demand(self, holds: bool, rule: str) -> None:
        if not holds:
            self._fail(rule)

    # Declarations.

    def _declarations(self) -> None:
        program = self.program
        for name, buffer in program.buffers.items():
            self._demand(name == buffer.name, f"{buffer.name} is listed as {name}")
            self._demand(buffer.kind in KINDS, f"{name} is a {buffer.kind} buffer")
            self._shape(buffer)
        given = [name for name in program.inputs if isinstance(name, str)]
        self._demand(len(set(program.inputs)) == len(program.inputs), "an input is listed twice")
        self._demand(set(given) == self._of_kind("input"), f"the inputs are {given}, the input buffers {self._of_kind('input')}")
        self._demand(program.constants.keys() == self._of_kind("constant"), "constant buffers and their tensors differ")
        for symbol, (place, dimension) in program.symbols.items():
            self._demand(0 <= place < len(program.inputs), f"{symbol} is that of argument {place}")
            argument = program.inputs[place]
            self._demand((dimension is None) == isinstance(argument, Symbol), f"{symbol} is dimension {dimension} of {argument}")
            if isinstance(argument, str):
                rank = len(program.buffers[argument].sizes)
                self._demand(dimension is not None and dimension < rank, f"{symbol} is dimension {dimension} of {rank}")

    def _of_kind(self, kind: str) -> set[str]:
        return {name for name, buffer in self.program.buffers.items() if buffer.kind == kind}

    def _shape(self, buffer: Buffer) -> None:
        sizes, strides = len(buffer.sizes), len(buffer.strides)
        self._demand(sizes == strides, f"{buffer.name} has {sizes} sizes, {strides} strides")
        for size in (*buffer.sizes, *buffer.strides):
            self._size(size, buffer.name)

    def _size(self, size: Size, what: str) -> None:
        for atom in index(size).atoms():
            known = isinstance(atom, (Div, Mod)) or atom in self.program.symbols or atom in self.program.inputs
            self._demand(known, f"{size}, a size of {what}, depends on {atom}")

    def _view(self, view: View) -> None:
        buffer = self.program.buffers.get(view.buffer)
        if buffer is None:
            self._fail(f"{view.buffer} is not declared")
        for size in (*view.sizes, *view.strides, view.offset):
            self._size(size, f"a view of {view.buffer}")
        if view.dtype in (None, buffer.dtype) and not any(map(may_be_zero, view.sizes)):
            self._inside(f"a view of {buffer.name}", view.offset + _last(view.sizes, view.strides), buffer, exact=True)

    # Calls.

    def _extern(self, extern: Extern) -> None:
        namespace, _, name = extern.op.partition("::")
        name, _, overload = name.partition(".")
        packet = getattr(getattr(torch.ops, namespace), name, None)
        self._demand(hasattr(packet, overload or "default"), f"there is no operator {extern.op}")
        views = [*nested((extern.args, extern.kwargs), View)]
        for view in views:
            self._view(view)
        names = {view.buffer for view in views}
        results = {result for result in extern.results if result is not None}
        self._demand(not extern.out or results <= names, "a result is not among the out arguments")
        self._demand(names.issuperset(extern.mutates), "what the call mutates is not among its arguments")
        for result in results | set(extern.mutates):
            self._demand(result in self.program.buffers, f"{result} is not declared")
            kind = self.program.buffers[result].kind
            self._demand(kind not in ("constant", "local"), f"{result} is {kind}")
        for view in views:
            filled = extern.out and view.buffer in results
            self._demand(filled or view.buffer in self.written, f"{view.buffer} is read before it is written")
        self.written |= results

    # Loops.

    def _loops(self, statement: Nest | Kernel) -> None:
        if isinstance(statement, Nest):
            stage = Stage(statement.reduced, frozenset(statement.reduced), statement.stores)
            kernel = Kernel(statement.name, statement.space, len(statement.space), False, (stage,))
        else:
            kernel = statement
        self._demand(0 <= kernel.parallel <= len(kernel.outer), f"{kernel.parallel} of {len(kernel.outer)} loops are parallel")
        self._demand(bool(kernel.outer) or not kernel.vectorized, "there is no outer loop to vectorise")
        own = {}
        for buffer in kernel.locals:
            self._demand(buffer.kind == "local", f"{buffer.name} is {buffer.kind}, not local")
            self._demand(buffer.name not in self.locals, f"{buffer.name} is declared twice")
            self._demand(self.program.buffers.get(buffer.name, buffer) == buffer, f"{buffer.name} is declared differently before")
            self._shape(buffer)
            self.locals.add(buffer.name)
            own[buffer.name] = buffer
        for stage in kernel.stages:
            _Loops(self, kernel, own, stage).run()
        self.written -= own.keys()

    def _inside(self, what: str, where: Size, buffer: Buffer, exact: bool, parts: int = 1) -> None:
        """Demands that `where` lies in the buffer, whose elements have so many parts, if its bounds are attained, or certain
        (`exact`)."""
        low, high = bounds(where)
        if not exact or 0 in buffer.sizes:
            return
        self._demand(low is None or low >= 0, f"{what} reaches element {low}")
        span = bounds((_last(buffer.sizes, buffer.strides) + 1) * parts - 1)[1]
        self._demand(high is None or span is None or high <= span, f"{what} reaches element {high}, the last one is {span}")


def may_be_zero(size: Size) -> bool:
    """Whether there may be no element: then there is nothing to demand."""
    low = bounds(size)[0]
    return low is None or low < 1


class _Loops:
    """One stage, or one nest."""

    def __init__(self, verifier: _Verifier, kernel: Kernel, own: dict[str, Buffer], stage: Stage) -> None:
        self.verifier, self.kernel, self.own, self.stage = verifier, kernel, own, stage
        self.demand, self.fail = verifier._demand, verifier._fail
        self.loops = (*kernel.outer, *stage.inner)

    def run(self) -> None:
        names = [var.name for var in self.loops]
        self.demand(len(set(names)) == len(names), f"loops are named {names}")
        self.demand(self.stage.reduced <= set(self.stage.inner), "what is reduced is not a loop of the stage")
        for var in self.loops:
            self.verifier._size(var.extent, f"loop {var}")
        for expr in postorder(*(root for store in self.stage.stores for root in roots(store))):
            self._expr(expr)
        ready = set(self.verifier.written)
        for store in self.stage.stores:
            self._store(store)
            self.demand(store.mode == "set" or store.buffer in ready, f"{store.buffer} is combined with before it is set")
            self.verifier.written.add(store.buffer)
            ready.add(store.buffer)

    def _buffer(self, name: str) -> Buffer:
        buffer = self.own.get(name) or self.verifier.program.buffers.get(name)
        if buffer is None:
            self.fail(f"{name} is not declared")
        self.demand(buffer.kind != "local" or name in self.own, f"{name} is local to another kernel")
        return buffer

    def _expr(self, expr: Expr) -> None:
        if isinstance(expr, Constant):
            expected = float if expr.dtype.is_floating_point else bool if expr.dtype == torch.bool else int
            self.demand(type(expr.value) is expected, f"{expr.value!r} is a constant of {expr.dtype}")
        elif isinstance(expr, Position):
            self.demand(expr.dtype in ops.STORED, f"a position of {expr.dtype}")
            self._index(expr.index)
        elif isinstance(expr, Load):
            buffer = self._buffer(expr.buffer)
            self.demand(expr.dtype == buffer.scalar, f"{expr.buffer} is {buffer.dtype}, loaded as {expr.dtype}")
            self.demand(expr.dtype in ops.STORED, f"kernels cannot load {expr.dtype}")
            self.demand(expr.buffer in self.verifier.written, f"{expr.buffer} is read before it is written")
            self._place(buffer, expr.index, expr.mask)
        else:
            assert isinstance(expr, Op)
            self._op(expr)

    def _op(self, expr: Op) -> None:
        self.demand(expr.name in ops.OPS, f"there is no operation {expr.name}")
        try:
            dtype = ops.result_dtype(expr.name, *(arg.dtype for arg in expr.args))
        except TypeError as error:
            self.fail(f"{error}: {show_expr(expr)}")
        if expr.dtype != dtype and (dtype is not None or expr.dtype not in ops.STORED):
            self.fail(f"{show_expr(expr)} is {dtype}, not {expr.dtype}")

    def _index(self, where: Index) -> None:
        for atom in where.atoms():
            if isinstance(atom, Var):
                self.demand(atom in self.loops, f"{where} depends on {atom}, which is no loop around it")
            elif isinstance(atom, Value):
                self.demand(atom.expr.dtype == torch.int64, f"a computed index is {atom.expr.dtype}")
                self.verifier._size(atom.extent, "a computed index")
            elif isinstance(atom, Symbol):
                self.verifier._size(index(atom), "an index")

    def _place(self, buffer: Buffer, where: Index, mask: Expr | None) -> None:
        self._index(where)
        self.demand(mask is None or mask.dtype == torch.bool, f"the mask at {buffer.name} is not bool")
        if buffer.name in self.own:
            inner = where.variables() <= set(self.stage.inner)
            self.demand(inner, f"the place {where} in {buffer.name}, local to a row, depends on the row")
        exact = mask is None and _bounds_are_attained(where) and all(bounds(var.extent)[0] != 0 for var in self.loops)
        self.verifier._inside(f"{buffer.name}[{where}]", where, buffer, exact, 2 if buffer.dtype.is_complex else 1)

    def _store(self, store: Store) -> None:
        buffer = self._buffer(store.buffer)
        self.demand(buffer.kind != "constant", f"{buffer.name} is constant")
        self.demand(store.mode == "set" or store.mode in COMBINING, f"the mode of a store is {store.mode}")
        self._place(buffer, store.index, store.mask)
        result = store.value.dtype
        if store.reduction is None:
            self.demand(not store.scan, "a scan without a reduction")
        else:
            self.demand(store.reduction in REDUCTIONS, f"there is no reduction {store.reduction}")
            accepted = {torch.bool} if store.reduction in LOGICAL else ops.NUMBERS if store.reduction in NUMERIC else ops.COMPUTED
            accepted = {torch.float32} if store.reduction == "total" else accepted
            self.demand(result in accepted, f"{store.reduction} of {result}")
            self.demand(not (store.reduction == "total" and store.scan), "a scan of totals")
            result = store.dtype
        self.demand(result == buffer.scalar, f"{result} stored to {buffer.name}, which is {buffer.dtype}")
        points = set(self.loops)
        if store.reduction is not None and not store.scan:
            points -= self.stage.reduced
            depends = store.index.variables() | (set() if store.mask is None else store.mask.variables())
            self.demand(depends <= points, f"the place {store.index} in {buffer.name} depends on what is reduced")
        if buffer.name in self.own:
            points -= set(self.kernel.outer)
        if store.scatters:
            points = set(self.kernel.outer[:self.kernel.parallel]) if buffer.name not in self.own else set()
        elif store.mask is not None:
            points = set()
        self._distinct(store, [var for var in self.loops if var in points])

    def _distinct(self, store: Store, variables: Iterable[Var]) -> None:
        """Demands that the place differs from point to point of these loops, if that depends on them by strides alone."""
        strides = {var: store.index.coefficient(var) for var in variables if _extent(var) != 1}
        nested = {atom for atom in store.index.atoms() if isinstance(atom, (Div, Mod))}
        hidden = {var for atom in nested for var in atom.dividend.variables()}
        for var, stride in strides.items():
            self.demand(var in hidden or bool(stride.terms), f"several points of {var} store to {store.buffer}[{store.index}]")
        for (a, left), (b, right) in itertools.combinations(strides.items(), 2):
            distinct = left != right or a in hidden or b in hidden
            self.demand(distinct, f"several points of {a} and {b} store to {store.buffer}[{store.index}]")


def _last(sizes: Sequence[Size], strides: Sequence[Size]) -> Size:
    """The greatest position in a view that is not empty."""
    return sum(((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)), index(0))


def _extent(var: Var) -> int | None:
    return index(var.extent).constant


def _bounds_are_attained(where: Index) -> bool:
    """Whether every variable occurs once, so that all can be at an end of their range at the same time."""
    atoms = [atom for monomial in where.terms for atom in monomial if not isinstance(atom, Symbol)]
    return len(set(atoms)) == len(atoms) and all(isinstance(atom, Var) for atom in atoms)
