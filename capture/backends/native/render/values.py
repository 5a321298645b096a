"""Expressions as C text: each defined where its variables are bound, and once, if it is used more than once."""
from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import torch

from capture.backends.native.index import ERRORS, Atom, Div, Index, Mod, Size, Symbol, Value, Var, bounds, index
from capture.backends.native.ir import Constant, Expr, Load, Op, Position, Store
from capture.backends.native.ops import ACCUMULATE
from capture.backends.native.render.language import COMPARISONS, IN_MEMORY, INFIX, TYPES, literal
from capture.backends.native.render.statements import Path
from capture.backends.native.show import postorder, roots

LONGEST = 100               # characters of an expression that is not given a name
LONGEST_GROUP = 4           # elements that lie side by side and are loaded together, of which a loop uses one
INT32 = 1 << 31


def bare(text: str) -> str:
    """An expression without parentheses around the whole of it."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[1:-1] if 0 < place == len(text) - 1 and text[0] == "(" else text
    return text


class Values:
    """Writes expressions into the blocks of one function.

    `bind` says which block binds a loop variable; the rest follows: a value is defined in the outermost block where all that
    it depends on is known.
    """

    hides_strides = True        # whether the text is for GCC, which must not see some (`_stride`)

    def __init__(self, path: Path) -> None:
        self.path = path
        self.buffers: dict[str, torch.dtype] = {}       # arguments of the function, in order
        self.symbols: dict[Symbol, str] = {}            # likewise, with their names
        self.written: set[str] = set()                  # buffers that the kernel writes to
        self.row = 0                                    # the depth at which the kernel's stages begin
        self.changing: frozenset[str] = frozenset()     # buffers that the current stage writes to
        self.checks = False                             # whether an index can be out of range
        self.checks_here = False                        # whether that was asked in the innermost block
        self.longest_group = LONGEST_GROUP
        self._bound: dict[Var, tuple[int, str]] = {}
        self._depths: dict[Expr, int] = {}
        self._reads: dict[Expr, frozenset[str]] = {}
        self._texts: dict[Expr, str] = {}
        self._uses: dict[Expr, int] = {}

    # Names.

    def bind(self, variable: Var, name: str, depth: int | None = None) -> None:
        """`variable` is called `name` in the block at `depth` (the innermost) and those within."""
        self._bound[variable] = (self.path.depth if depth is None else depth, name)

    def name(self, variable: Var) -> str:
        return self._bound[variable][1]

    def rebound(self) -> None:
        """After variables have been bound anew, or are no longer."""
        self._depths, self._texts = {}, {}

    def begin_stage(self, stores: Iterable[Store]) -> None:
        """Before the first loop of a stage."""
        stores = tuple(stores)
        self.changing = frozenset(store.buffer for store in stores)
        self._depths, self._texts, self._uses = {}, {}, {}
        every = [root for store in stores for root in roots(store)]
        for root in every:
            self._uses[root] = self._uses.get(root, 0) + 1
        for expr in postorder(*every):
            for child in expr.children():
                self._uses[child] = self._uses.get(child, 0) + 1

    def buffer(self, name: str, dtype: torch.dtype) -> str:
        """The C name of a buffer that is not local."""
        self.buffers.setdefault(name, dtype)
        return f"buffer{list(self.buffers).index(name)}"

    # Depths: which block binds all that a value depends on.

    def depth(self, expr: Expr) -> int:
        if expr not in self._depths:
            for node in postorder(expr):
                if node not in self._depths:
                    self._depths[node] = self._depth(node)
        return self._depths[expr]

    def index_depth(self, where: Index) -> int:
        return max((self._atom_depth(atom) for atom in where.atoms()), default=0)

    def _depth(self, node: Expr) -> int:
        depth = max((self._depths[child] for child in node.children()), default=0)
        if isinstance(node, (Load, Position)):
            depth = max(depth, self.index_depth(self.where(node.buffer, node.index) if isinstance(node, Load) else node.index))
        if isinstance(node, Load):
            depth = max(depth, self.path.never_skipped)
            if node.buffer in self.changing:
                depth = self.path.depth
            elif node.buffer in self.written:
                depth = max(depth, self.row)
        return depth

    def _atom_depth(self, atom: Atom) -> int:
        if isinstance(atom, Var):
            return self._bound[atom][0]
        if isinstance(atom, Value):
            return self.depth(atom.expr)
        return 0

    def reads(self, expr: Expr) -> frozenset[str]:
        """The buffers written by the kernel whose contents a value depends on."""
        if not self.written:
            return frozenset()
        if expr not in self._reads:
            for node in postorder(expr):
                if node not in self._reads:
                    own = {node.buffer} & self.written if isinstance(node, Load) else ()
                    self._reads[node] = frozenset(own).union(*(self._reads[child] for child in node.children()))
        return self._reads[expr]

    # Texts.

    def text(self, root: Expr, named: bool = False) -> str:
        """The value of `root`, as C text that is good in the innermost block. `named`: computed here and now."""
        here = self.path.depth
        order = [node for node in postorder(root) if self.path.known(node) is None and node not in self._texts]
        users: dict[Expr, int] = {root: here}
        for node in order:
            for child in node.children():
                users[child] = max(users.get(child, 0), self.depth(node))
        for node in order:
            if self.path.known(node) is not None or node in self._texts:
                continue
            text = self._render(node)
            if isinstance(node, Constant) or (self._uses.get(node, 1) == 1 and users.get(node, here) == self.depth(node)
                                              and len(text) <= LONGEST and not (named and node is root)):
                self._texts[node] = text
            elif not text.isidentifier():
                self._define(node, text)
            else:
                self.path.remember(self.depth(node), node, text, self.reads(node))
        return self._now(root)

    def _now(self, expr: Expr) -> str:
        known = self.path.known(expr)
        return self._texts[expr] if known is None else known

    def _define(self, node: Expr, text: str) -> str:
        name = self.path.fresh("x" if isinstance(node, Load) else "t")
        return self.path.define(self.depth(node), node, TYPES[node.dtype], name, bare(text), self.reads(node))

    def _render(self, node: Expr) -> str:
        if isinstance(node, Constant):
            return literal(node.value, node.dtype)
        if isinstance(node, Position):
            self.guard(node.index, None, self.depth(node))      # nothing is touched here, but what is out of range is noted
            return self._cast(self.index(node.index, self.depth(node)), node.dtype)
        if isinstance(node, Op):
            args = [self._now(arg) for arg in node.args]
            if node.name == "to":
                return f"op_to<{TYPES[node.dtype]}>({bare(args[0])})"
            symbol = COMPARISONS.get(node.name) or (INFIX.get(node.name) if node.dtype.is_floating_point else None)
            if symbol is not None:
                return f"({args[0]} {symbol} {args[1]})"
            return f"op_{node.name}({', '.join(map(bare, args))})"
        assert isinstance(node, Load)
        return self._load(node)

    def _load(self, node: Load) -> str:
        mask = None if node.mask is None else self._now(node.mask)
        depth = self.depth(node)
        guard = self.guard(node.index, mask, depth)
        if guard is None:
            return self.loaded(self.element(node, depth), node.dtype)
        self.longest_group = 1          # GCC 12 mixes up conditional loads that it makes one group of
        try:
            place = self.element(node, depth)
        finally:
            self.longest_group = LONGEST_GROUP
        return self.loaded(f"({guard} ? {place} : {IN_MEMORY[node.dtype]}{{}})", node.dtype)

    def loaded(self, place: str, dtype: torch.dtype) -> str:
        """What is in memory as a value to compute with."""
        return place if IN_MEMORY[dtype] == TYPES[dtype] else f"op_to<{TYPES[dtype]}>({place})"

    def kept(self, value: str, dtype: torch.dtype) -> str:
        """A value as it lies in memory."""
        return value if IN_MEMORY[dtype] == TYPES[dtype] else f"op_to<{IN_MEMORY[dtype]}>({value})"

    def element(self, node: Load, depth: int) -> str:
        """Where a load finds its element."""
        return self.place(node.buffer, node.dtype, node.index, depth)

    def place(self, buffer: str, dtype: torch.dtype, where: Index, depth: int) -> str:
        """An element of a buffer, as an lvalue."""
        return f"{self.buffer(buffer, dtype)}[{self.index(where, depth)}]"

    def where(self, buffer: str, where: Index) -> Index:
        """The place in memory of an element of a buffer."""
        return where

    def guard(self, where: Index, mask: str | None, depth: int) -> str | None:
        """The condition under which memory may be touched at `where`; None: always. Notes when a computed index is out of range."""
        conditions = [] if mask is None else [mask]
        for value in dict.fromkeys(atom for atom in where.atoms() if isinstance(atom, Value) and atom.error is not None):
            extent = self._operand(self.index(index(value.extent), depth))
            key = ("valid", value)
            valid = self.path.known(key)
            if valid is None:
                name = self.path.fresh("valid")
                valid = self.path.define(self.depth(value.expr), key, "bool", name,
                                         f"uint64_t({self._value(value)}) < uint64_t({extent})", self.reads(value.expr))
            key = ("checked", value, mask)
            if self.path.known(key) is None:
                self.checks = True
                depth = self.depth(value.expr) if mask is None else depth
                self.checks_here |= depth == self.path.depth
                bad = f"!{valid}" if mask is None else f"({mask} & !{valid})"
                bit = ERRORS.index(value.error)
                self.path.write_at(depth, f"invalid |= {bad};" if bit == 0 else f"invalid |= uint8_t({bad}) << {bit};")
                self.path.remember(depth, key, "", self.reads(value.expr))
            conditions.append(valid)
        return " & ".join(conditions) or None

    def stored(self, store: Store, value: str) -> str:
        """The statement of a store, whose value is given."""
        path = self.path
        for atom in store.index.atoms():
            if isinstance(atom, Value):
                self.text(atom.expr, named=True)
        mask = None if store.mask is None else self.text(store.mask)
        guard = self.guard(store.index, mask, path.depth)
        dtype = store.dtype
        place = self.place(store.buffer, dtype, store.index, path.depth)
        if store.mode != "set":
            wide = ACCUMULATE.get(dtype, dtype)
            before = self.converted(self.loaded(place, dtype), dtype, wide)
            value = self.converted(f"op_{store.mode}({before}, {self.converted(value, dtype, wide)})", wide, dtype)
        text = f"{place} = {bare(self.kept(value, dtype))};"
        return text if guard is None else f"if ({guard}) {text}"

    def converted(self, text: str, dtype: torch.dtype, wanted: torch.dtype) -> str:
        """A value of `dtype` as one of another dtype."""
        return text if dtype == wanted else f"op_to<{TYPES[wanted]}>({text})"

    # Index expressions.

    def index(self, where: Index, depth: int) -> str:
        """An index as a sum, the part that an outer block knows being defined there."""
        levels: dict[int, dict[Any, Any]] = {}
        for monomial, coefficient in where.terms.items():
            level = min(max((self._atom_depth_deep(atom) for atom in monomial), default=0), depth)
            levels.setdefault(level, {})[monomial] = coefficient
        whole, left = index(0), {}
        text = ""
        for level in sorted(levels):
            part = Index({**levels[level], **left})
            left = {}
            if level < max(levels) and all(coefficient < 0 for coefficient in part.terms.values()) and not text:
                left = part.terms       # to be subtracted from what comes
                continue
            whole = whole + part
            more = self._sum(part, level)
            text = more if not text else f"{text} - {more[1:]}" if more[0] == "-" else f"{text} + {more}"
            if level < depth and " " in text:
                key = ("index", whole)
                known = self.path.known(key)
                text = known or self.path.define(level, key, "int64_t", self.path.fresh("at"), text, self._index_reads(whole))
        return text or "0"

    def _atom_depth_deep(self, atom: Atom) -> int:
        if isinstance(atom, (Div, Mod)):
            return max(self.index_depth(atom.dividend), self.index_depth(atom.divisor))
        return self._atom_depth(atom)

    def _index_reads(self, where: Index) -> frozenset[str]:
        return frozenset().union(*(self.reads(atom.expr) for atom in where.atoms() if isinstance(atom, Value)))

    def _sum(self, part: Index, level: int) -> str:
        terms = sorted(part.terms.items(), key=lambda term: (term[1] < 0, -len(term[0]), -abs(term[1]), tuple(map(str, term[0]))))
        text = ""
        for monomial, coefficient in terms:
            factors = [self._atom(atom, level) for atom in monomial]
            if abs(coefficient) != 1 or not factors:
                in_innermost = level == self.path.depth and any(isinstance(atom, Var) for atom in monomial)
                factors.append(self._stride(abs(coefficient)) if in_innermost else str(abs(coefficient)))
            sign = " - " if coefficient < 0 else " + "
            text += (sign if text else sign.strip(" +")) + " * ".join(factors)
        return text

    def _stride(self, stride: int) -> str:
        """A factor of the innermost loop's variable. A long one is hidden from GCC, which would take such loads for one group of so
        many elements, and minutes to compile it."""
        if stride <= self.longest_group or not self.hides_strides:
            return str(stride)
        key = ("stride", stride)
        return self.path.known(key) or self.path.define(0, key, "int64_t", self.path.fresh("stride"), f"opaque({stride})")

    def _atom(self, atom: Atom, depth: int) -> str:
        if isinstance(atom, Var):
            return self._bound[atom][1]
        if isinstance(atom, Symbol):
            return self.symbols.setdefault(atom, f"size{len(self.symbols)}")
        if isinstance(atom, Value):
            return self._value(atom)
        key: Hashable = ("quotient", atom)
        known = self.path.known(key)
        if known is None:
            name = self.path.fresh("q" if isinstance(atom, Div) else "r")
            text = self._quotient(atom, depth)
            known = self.path.define(self._atom_depth_deep(atom), key, "int64_t", name, text, self._index_reads(index(atom)))
        return known

    def _value(self, atom: Value) -> str:
        text = self._now(atom.expr)
        return text if atom.expr.dtype == torch.int64 else f"int64_t({text})"

    def _quotient(self, atom: Div | Mod, depth: int) -> str:
        """In 32 bits where that is enough: compilers vectorise it."""
        dividend, divisor = self.index(atom.dividend, depth), self.index(atom.divisor, depth)
        low, high = bounds(atom.dividend)
        sign = "/" if isinstance(atom, Div) else "%"
        if low is None or low < 0:
            return f"{'floor_div' if isinstance(atom, Div) else 'floor_mod'}({dividend}, {divisor})"
        if high is not None and high < INT32 and atom.divisor.constant is not None and atom.divisor.constant < INT32:
            return f"uint32_t({dividend}) {sign} {divisor}u"
        return f"{self._operand(dividend)} {sign} {self._operand(divisor)}"

    @staticmethod
    def _operand(text: str) -> str:
        return f"({text})" if " " in text else text

    def size(self, extent: Size) -> str:
        """A loop's extent, as an operand."""
        return self._operand(self.index(index(extent), 0))

    def _cast(self, text: str, dtype: torch.dtype) -> str:
        return self._operand(text) if dtype == torch.int64 else f"{TYPES[dtype]}({text})"
