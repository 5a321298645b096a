"""The IR as text, for people: what CAPTURE_DEBUG=3 prints and what the errors of `verify` quote."""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from capture.backends.native.index import Atom, Div, Index, Mod, Size, Symbol, Value, Var
from capture.backends.native.ir import Batch, Buffer, Constant, Expr, Extern, Kernel, Load, Nest, Op, Position, Program, Store, View

INDENT = "    "
OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def show(program: Program) -> str:
    """The whole program: buffers, statements in order, outputs."""
    lines = [_declaration(buffer) for buffer in program.buffers.values()]
    lines.append(f"inputs {', '.join(map(str, program.inputs))}")
    for symbol, (position, dimension) in program.symbols.items():
        part = "" if dimension is None else f".size({dimension})"
        lines.append(f"symbol {symbol} >= {symbol.low} = argument {position}{part}")
    lines += [show_statement(statement) for statement in program.body]
    lines.append(f"outputs {', '.join(map(_literal, program.outputs))}")
    return "\n".join(lines) + "\n"


def show_statement(statement: Nest | Kernel | Batch | Extern) -> str:
    """One statement, over several lines."""
    if isinstance(statement, Extern):
        return _extern(statement)
    if isinstance(statement, Batch):
        return "\n".join([f"batch {statement.name}", *_indented(line for one in statement.kernels for line in _kernel(one))])
    return "\n".join(_nest(statement) if isinstance(statement, Nest) else _kernel(statement))


def show_expr(expr: Expr) -> str:
    """An expression on one line, subexpressions repeated where they are used more than once."""
    return _Names(shared=()).text(expr)


class _Names:
    """Texts of expressions, where those of `shared` are called by a short name once they have been defined."""

    def __init__(self, shared: Iterable[Expr]) -> None:
        self._shared = set(shared)
        self._names: dict[Expr, str] = {}

    def define(self, root: Expr) -> Iterator[str]:
        """The definitions that the text of `root` needs and that have not been given before."""
        for expr in postorder(root):
            if expr in self._shared and expr not in self._names:
                text = self.text(expr)
                self._names[expr] = f"%{len(self._names)}"
                yield f"{self._names[expr]}: {_dtype(expr.dtype)} = {text}"

    def text(self, expr: Expr) -> str:
        if expr in self._names:
            return self._names[expr]
        if isinstance(expr, Constant):
            return str(expr.value)
        if isinstance(expr, Position):
            return f"({self.index(expr.index)})"
        if isinstance(expr, Load):
            mask = "" if expr.mask is None else f" if {self.text(expr.mask)}"
            return f"{expr.buffer}[{self.index(expr.index)}{mask}]"
        assert isinstance(expr, Op)
        texts = [self.text(arg) for arg in expr.args]
        if expr.name in OPERATORS and len(texts) == 2:
            return f"({texts[0]} {OPERATORS[expr.name]} {texts[1]})"
        return f"{_dtype(expr.dtype) if expr.name == 'to' else expr.name}({', '.join(texts)})"

    def index(self, index: Index) -> str:
        return index.text(self._atom)

    def _atom(self, atom: Atom) -> str:
        if isinstance(atom, Value):
            return f"[{self.text(atom.expr)}]"
        if isinstance(atom, (Div, Mod)):
            return f"({self.index(atom.dividend)}){'//' if isinstance(atom, Div) else '%'}({self.index(atom.divisor)})"
        return str(atom)


def postorder(*roots: Expr) -> list[Expr]:
    """Every expression that the roots are computed from, and themselves, each once and after its children."""
    found: dict[Expr, None] = {}
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        expr, ready = stack.pop()
        if expr in found:
            continue
        if ready:
            found[expr] = None
        else:
            stack.append((expr, True))
            stack.extend((child, False) for child in reversed(expr.children()) if child not in found)
    return list(found)


def roots(store: Store) -> tuple[Expr, ...]:
    """The expressions that a store evaluates: its index's values, its value and its mask."""
    values = tuple(atom.expr for atom in store.index.atoms() if isinstance(atom, Value))
    return values + (store.value,) + ((store.mask,) if store.mask is not None else ())


def _declaration(buffer: Buffer) -> str:
    return f"{buffer.kind} {buffer.name}: {_dtype(buffer.dtype)}{_shape(buffer.sizes)} strides {_shape(buffer.strides)}"


def _nest(nest: Nest) -> list[str]:
    loops = _loops((*nest.space, *nest.reduced), frozenset(nest.reduced))
    return [f"nest {nest.name}", *_indented([*loops, *_stores(nest.stores)])]


def _kernel(kernel: Kernel) -> list[str]:
    lines = [f"kernel {kernel.name}{' vectorized' if kernel.vectorized else ''}"]
    parallel, sequential = kernel.outer[:kernel.parallel], kernel.outer[kernel.parallel:]
    body = [f"parallel {loop}" for loop in _loops(parallel, frozenset())] + list(_loops(sequential, frozenset()))
    body += [_declaration(buffer) for buffer in kernel.locals]
    for stage in kernel.stages:
        body += ["stage", *_indented([*_loops(stage.inner, stage.reduced), *_stores(stage.stores)])]
    return lines + _indented(body)


def _loops(variables: tuple[Var, ...], reduced: frozenset[Var]) -> Iterator[str]:
    for var in variables:
        yield f"{'reduce' if var in reduced else 'for'} {var} < {var.extent}"


def _stores(stores: tuple[Store, ...]) -> list[str]:
    uses: dict[Expr, int] = {}
    for store in stores:
        for root in roots(store):
            uses[root] = uses.get(root, 0) + 1
    for expr in postorder(*(root for store in stores for root in roots(store))):
        for child in expr.children():
            uses[child] = uses.get(child, 0) + 1
    names = _Names(expr for expr, count in uses.items() if count > 1 and not isinstance(expr, (Constant, Position)))
    lines: list[str] = []
    for store in stores:
        for root in roots(store):
            lines += names.define(root)
        how = ("scan " if store.scan else "") + (f"{store.reduction} " if store.reduction else "")
        mask = "" if store.mask is None else f" if {names.text(store.mask)}"
        sign = {"set": "=", "add": "+=", "mul": "*="}.get(store.mode, f"{store.mode}=")
        lines.append(f"{store.buffer}[{names.index(store.index)}] {sign} {how}{names.text(store.value)}{mask}")
    return lines


def _extern(extern: Extern) -> str:
    args = [_literal(arg) for arg in extern.args] + [f"{name}={_literal(arg)}" for name, arg in extern.kwargs.items()]
    results = ", ".join(name or "_" for name in extern.results) or "_"
    mutates = f" mutates {', '.join(extern.mutates)}" if extern.mutates else ""
    return f"extern {extern.name}: {results} {'<-' if extern.out else '='} {extern.op}({', '.join(args)}){mutates}"


def _literal(value: Any) -> str:
    if isinstance(value, View):
        dtype = "" if value.dtype is None else f" as {_dtype(value.dtype)}"
        return f"{value.buffer}{_shape(value.sizes)} strides {_shape(value.strides)} offset {value.offset}{dtype}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_literal, value))}]"
    return str(value) if isinstance(value, (Index, Symbol)) else repr(value)


def _shape(sizes: Iterable[Size]) -> str:
    return f"({', '.join(map(str, sizes))})"


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _indented(lines: Iterable[str]) -> list[str]:
    return [INDENT + line for line in lines]
