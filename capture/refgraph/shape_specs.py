"""What a program says of sizes and integers by `shapes_spec` of torch.compile: read into plain data, and heeded by a trace."""
from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch

from capture.errors import ArgumentError, described
from capture.refgraph.sizes import Size, Sizes, as_size
from capture.refgraph.source import Source, named

Term = int | str | tuple[Any, ...]      # a number, a variable, or an operator and its operands
Relation = tuple[Callable[[Any, Any], bool], Term, Term]

ARITHMETIC: dict[str, Callable[..., Any]] = {
    "Add": operator.add, "Mul": operator.mul, "FloorDiv": operator.floordiv, "CleanDiv": operator.floordiv, "Mod": operator.mod,
    "PythonMod": operator.mod}
RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@dataclass(frozen=True, slots=True)
class Variable:
    """A size or an integer that varies: what the program calls it, and its range."""

    name: str
    least: int | None
    most: int | None


@dataclass
class Spec:
    """What a program says of the sizes of one function. By the text of a path: for a tensor, what each size is to be (None: nothing
    is said); for an integer, what it is to be."""

    tensors: dict[str, list[Term | None]] = field(default_factory=dict)
    numbers: dict[str, Term] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    assumptions: list[Relation] = field(default_factory=list)

    @property
    def names(self) -> dict[tuple[str, int], str]:
        """What the program calls sizes, by a tensor's path, and the dimension."""
        return {(path, dim): self.variables[term].name for path, terms in self.tensors.items() for dim, term in enumerate(terms)
                if isinstance(term, str) and self.variables[term].name != "anon"}

    def varying(self, path: str, shape: Sequence[int]) -> list[int] | None:
        """In which dimensions the tensor at a path varies; None if nothing is said of it."""
        terms = self.tensors.get(named(path))
        return None if terms is None else [dim for dim, term in enumerate(terms[:len(shape)]) if isinstance(term, (str, tuple))]


# -- reading --------------------------------------------------------------------------------------------------------------

def read(said: Any, code: CodeType, forward: Callable[..., Any] | None = None) -> Spec:
    """The meaning of `said` for calls of a function with this code; for a module, by the parameters of its method `forward`. Raises
    ArgumentError if something in it cannot be followed."""
    try:
        from torch.fx.experimental import dynamic_spec  # which not all torch versions have
    except ImportError:
        raise ArgumentError("shapes_spec needs torch.fx.experimental.dynamic_spec, which this version of torch does not "
                            "have") from None
    try:
        whole = said if isinstance(said, dynamic_spec.ShapesSpec) else dynamic_spec.ShapesSpec(said)
    except (TypeError, ValueError, AttributeError, NotImplementedError) as error:
        raise ArgumentError(f"shapes_spec must be a ShapesSpec, a ParamsSpec or a dict of parameters, got {described(said)}: "
                            f"{error}") from None
    spec = Spec()
    for path, leaf in leaves(whole._params, Parameters(code, forward), dynamic_spec):
        if isinstance(leaf, dynamic_spec.TensorSpec):
            spec.tensors[path] = [None if term is None else term_of(term, spec) for term in leaf]
        else:
            spec.numbers[path] = term_of(leaf, spec)
    for assumption in whole.assumptions:
        spec.assumptions += relations(assumption.node.expr)
    bound = {term for terms in (spec.numbers.values(), *spec.tensors.values()) for term in terms if isinstance(term, str)}
    derived = [term for terms in (spec.numbers.values(), *spec.tensors.values()) for term in terms if isinstance(term, tuple)]
    unbound = set().union(*map(variables, derived), *(variables(term) for _, *sides in spec.assumptions for term in sides)) - bound
    if unbound:
        raise ArgumentError(f"shapes_spec: {', '.join(sorted(map(text, unbound)))} stands in expressions only; give one size or "
                            f"integer as this name alone")
    return spec


class Parameters:
    """Where a call of a function, or of a module, has its arguments."""

    def __init__(self, code: CodeType, forward: Callable[..., Any] | None) -> None:
        count = code.co_argcount + code.co_kwonlyargcount
        rest = list(code.co_varnames[count:])
        self.args = rest.pop(0) if code.co_flags & inspect.CO_VARARGS else ""
        self.kwargs = rest.pop(0) if code.co_flags & inspect.CO_VARKEYWORDS else ""
        self.paths: dict[str, list[str]] = {name: [name] for name in code.co_varnames[:count]}
        self.first = 0          # of the arguments that `*args` takes
        if forward is not None:
            parameters = inspect.signature(forward).parameters.values()
            by_name = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
            by_place = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
            self.first = len(by_place)
            self.paths = {name: [f"{self.args}[{by_place.index(name)}]"] * (name in by_place) +
                          [f"{self.kwargs}[{name!r}]"] * (name in by_name) for name in dict.fromkeys(by_place + by_name)}


def leaves(params: Any, parameters: Parameters, kinds: Any) -> Iterator[tuple[str, Any]]:
    """What is said, each with the path to it."""
    if params is None:
        return
    for name, said in params._named_args.items():
        if name not in parameters.paths:
            known = ", ".join(parameters.paths) or "none"
            raise ArgumentError(f"shapes_spec names {name!r}, which is no parameter; the parameters are {known}")
        for path in parameters.paths[name]:
            yield from below(said, path, kinds)
    for i, said in enumerate(params._varargs or ()):
        yield from below(said, f"{parameters.args}[{parameters.first + i}]", kinds)
    for key, said in (params._varkw or {}).items():
        yield from below(said, f"{parameters.kwargs}[{key!r}]", kinds)


def below(said: Any, path: str, kinds: Any) -> Iterator[tuple[str, Any]]:
    """The same for one object, and what it holds."""
    inner: Iterable[tuple[str, Any]]
    if isinstance(said, kinds.ObjectSpec):
        inner = ((f"{path}.{name}", part) for name, part in said.items())
    elif isinstance(said, kinds.DictSpec):
        inner = ((f"{path}[{key!r}]", part) for key, part in said.items())
    elif isinstance(said, kinds.SeqSpec):
        inner = ((f"{path}[{i}]", part) for i, part in enumerate(said._entries))
    elif isinstance(said, (kinds.TensorSpec, torch.SymInt)) or type(said) is int:
        yield path, said
        return
    elif said is None:
        return
    else:
        raise ArgumentError(f"shapes_spec: what {path} is given must be a TensorSpec, an IntVar, an integer, None, an "
                            f"ObjectSpec, a DictSpec or a SeqSpec, got {described(said)}")
    for where, part in inner:
        yield from below(part, where, kinds)


def term_of(leaf: Any, spec: Spec) -> Term:
    """An integer, an `IntVar`, or what is computed from some."""
    if type(leaf) is int:
        return leaf
    if hasattr(leaf, "sympy_sym"):
        spec.variables[str(leaf.sympy_sym)] = Variable(leaf.name, leaf.min, leaf.max)
    return term(leaf.node.expr)


def term(expression: Any) -> Term:
    """An expression of sympy's, in Python's operators."""
    if expression.is_Symbol:
        return str(expression)
    if expression.is_Integer:
        return int(expression)
    kind, args = type(expression).__name__, list(map(term, expression.args))
    if kind == "Pow" and isinstance(args[1], int) and args[1] > 0:
        kind, args = "Mul", [args[0]] * args[1]
    if kind not in ARITHMETIC:
        raise ArgumentError(f"shapes_spec: {expression} cannot be checked; use sums, products, quotients (//) and remainders")
    total, *rest = args
    for arg in rest:
        total = ARITHMETIC[kind], total, arg
    return total


def relations(expression: Any) -> list[Relation]:
    """What an assumption says."""
    if expression == True:  # noqa: E712  (sympy's)
        return []
    if type(expression).__name__ == "And":
        return [relation for part in expression.args for relation in relations(part)]
    if getattr(expression, "rel_op", None) not in RELATIONS:
        raise ArgumentError(f"shapes_spec: the assumption {expression} cannot be checked; use comparisons")
    return [(RELATIONS[expression.rel_op], term(expression.lhs), term(expression.rhs))]


def variables(part: Term) -> set[str]:
    """The variables in a term."""
    if isinstance(part, tuple):
        return set().union(*map(variables, part[1:]))
    return {part} if isinstance(part, str) else set()


def text(part: Term) -> str:
    """A term as people write it."""
    if isinstance(part, tuple):
        symbol = {operator.add: "+", operator.mul: "*", operator.floordiv: "//", operator.mod: "%"}[part[0]]
        return f"({text(part[1])} {symbol} {text(part[2])})"
    return part.partition("#")[0] if isinstance(part, str) else str(part)


# -- heeding --------------------------------------------------------------------------------------------------------------

class Heeded:
    """What one trace has met of what a spec is about. Relations of sizes are guards; `problems`: what is not as it was said."""

    def __init__(self, spec: Spec, sizes: Sizes) -> None:
        self._spec = spec
        self._sizes = sizes
        self._known: dict[str, Size] = {}       # variables
        self._open: list[tuple[str, Callable[..., Any], Term | Size, Term]] = [
            (f"{text(left)} and {text(right)} are", relation, left, right) for relation, left, right in spec.assumptions]
        self.problems: list[str] = []

    def tensor(self, source: Source, shape: Sequence[int], sizes: Sequence[Size]) -> Mapping[int, int]:
        """A tensor was met. Returns the dimensions in which it varies, as was said, and the sizes that it has there."""
        path = named(str(source))
        terms = self._spec.tensors.get(path)
        if terms is None:
            return {}
        if len(terms) != len(shape):
            self.problems.append(f"{path} has {len(shape)} dimensions, and shapes_spec gives sizes of {len(terms)}")
            return {}
        for dim, said in enumerate(terms):
            if said is not None:
                self._met(f"size {dim} of {path} is", sizes[dim] if sizes else as_size(shape[dim]), said)
        return {dim: shape[dim] for dim in self._spec.varying(path, shape) or () if sizes and sizes[dim].constant is None}

    def number(self, source: Source, real: Any) -> bool:
        """An integer was met. Returns whether it is said to have one value."""
        said = self._spec.numbers.get(named(str(source)))
        if said is None or type(real) is not int:
            return False
        self._met(f"{named(str(source))} is", as_size(real) if type(said) is int else self._sizes.number(source, real), said)
        return type(said) is int

    def _met(self, what: str, size: Size, said: Term) -> None:
        if isinstance(said, str) and said not in self._known:
            self._known[said] = size
            variable = self._spec.variables[said]
            for bound, relation in ((variable.least, operator.ge), (variable.most, operator.le)):
                if bound is not None:
                    self._check(what, relation, size, bound)
        else:
            self._open.append((what, operator.eq, size, said))
        settled = [row for row in self._open if self._is_known(row[2]) and self._is_known(row[3])]
        self._open = [row for row in self._open if row not in settled]
        for row in settled:
            self._check(*row)

    def _is_known(self, part: Term | Size) -> bool:
        return isinstance(part, Size) or variables(part) <= self._known.keys()

    def _check(self, what: str, relation: Callable[..., Any], left: Term | Size, right: Term) -> None:
        this, that = self._size(left), self._size(right)
        if not self._sizes.decide(relation, this, that):
            symbol = next(symbol for symbol, known in RELATIONS.items() if known is relation)
            both = f"{this.real} and {that.real}" if not isinstance(left, Size) else str(this.real)
            wanted = f"{text(left)} {symbol} {text(right)}" if not isinstance(left, Size) else (
                f"{text(right)}, which is {that.real}" if not isinstance(right, int) else f"{symbol} {right}".removeprefix("== "))
            self.problems.append(f"{what} {both}, and shapes_spec says {wanted}")

    def _size(self, part: Term | Size) -> Size:
        if isinstance(part, Size):
            return part
        if isinstance(part, str):
            return self._known[part]
        if isinstance(part, int):
            return as_size(part)
        operation, left, right = part[0], self._size(part[1]), self._size(part[2])
        if operation is operator.floordiv:
            return self._sizes.quotient(left, right)
        if operation is operator.mod:
            return left - self._sizes.quotient(left, right) * right
        return operation(left, right)
