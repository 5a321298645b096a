"""Prints the plan of a mock function as Python source.

What users own (classes, modules, functions) is reached through weak references, and no statement runs Python code of theirs.
"""
from __future__ import annotations

import ast
import collections
import keyword
import math
import operator
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

from capture._C import is_a
from capture.refgraph.effects import CallEffect, Effect, Position, Replayed, Traceback
from capture.refgraph.entry_state import BOUND_IN_C
from capture.refgraph.identical import Classes, is_one_of
from capture.refgraph.lookup import instance_dict, is_heap_type, is_mutable
from capture.refgraph.mock import MockPlan
from capture.refgraph.mock_code import Names, PythonCode
from capture.refgraph.mock_order import Make
from capture.refgraph.node import Build, Const, Display, Expr, Kept, RefNode, Shadow
from capture.refgraph.recipes import Perform, operands
from capture.refgraph.runtime import CallFrom
from capture.refgraph.source import (
    Attr,
    Computed,
    Constant,
    Function,
    ImportedModule,
    InstanceDict,
    Item,
    Literal,
    Local,
    Source,
    TypeAttr,
    TypeOf,
    lookup,
    short_name,
)
from capture.refgraph.usage import Usage, operands_first, path_of
from capture.refgraph.value_types import holds_weak, is_weak

BINARY = {operator.add: ast.Add, operator.sub: ast.Sub, operator.mul: ast.Mult, operator.truediv: ast.Div,
          operator.floordiv: ast.FloorDiv, operator.mod: ast.Mod, operator.pow: ast.Pow, operator.lshift: ast.LShift,
          operator.rshift: ast.RShift, operator.and_: ast.BitAnd, operator.or_: ast.BitOr, operator.xor: ast.BitXor}
COMPARE = {operator.eq: ast.Eq, operator.ne: ast.NotEq, operator.lt: ast.Lt, operator.le: ast.LtE, operator.gt: ast.Gt,
           operator.ge: ast.GtE}
UNARY = {operator.neg: ast.USub, operator.pos: ast.UAdd, operator.invert: ast.Invert, operator.not_: ast.Not}
# Exact types whose own syntax and methods are what the builtin operations do.
EXACT = Classes((list, dict, set, collections.deque, collections.OrderedDict, bytearray))
ASSIGN, DELETE = (object.__setattr__, setattr), (object.__delattr__, delattr)
SUBSCRIPTED = (dict, list, tuple, collections.deque)
WRITTEN = Classes((Expr, Build, Kept, Display, Perform, Traceback))   # composites; a subclass of these is a leaf
PARTS = frozenset(("__globals__", "__closure__"))      # of a function
DEEPEST = 16                                        # expressions nested more deeply are split up


def generate(plan: MockPlan, arguments: list[str], inputs: list[RefNode], graph_callable: Callable[..., Any] | None,
             name: str) -> PythonCode:
    """The mock function of `plan` for a frame with these argument names, in order.

    `graph_callable(*inputs, *plan.numbers)` returns the tensors `plan.outputs`; None when there is nothing to compute.
    """
    return _Printer(plan, arguments, inputs, name).print(graph_callable)


class _Printer:
    """Builds the syntax tree of one mock function, statement by statement."""

    def __init__(self, plan: MockPlan, arguments: list[str], inputs: list[RefNode], name: str) -> None:
        self.plan, self.inputs, self.name = plan, inputs, Names().fresh(name)
        self.usage = Usage(plan)
        self.names = Names()
        self.parameters = {argument: self.names.fresh(argument) for argument in arguments}
        self.lifted_name = self.names.fresh("lifted")
        self.lifted: list[Source] = []
        if not all(isinstance(node.source, Local) for node in inputs):
            self.lifted += [node.source for node in inputs]
        self.places = {source: place for place, source in enumerate(self.lifted)}
        self.globals: dict[str, Any] = {}
        self.pinned: dict[tuple[int, bool], str] = {}       # id of a value, and whether weakly -> the global that holds it
        self.body: list[ast.stmt] = []
        self.lines: dict[int, str] = {}
        self.calls: dict[int, tuple[Position, ...] | None] = {}
        self.first_effect = self.graph_line = sys.maxsize
        self.results: dict[CallEffect, str] = {}    # what call effects returned, where that is used
        self.locals: dict[Source, str] = {}         # entry state that was read
        self.objects: dict[RefNode, str] = {}       # objects made
        self.written: dict[int, ast.expr] = {}      # id of an Expr or Build -> how it is written
        self.depths: dict[int, int] = {}

    def print(self, graph_callable: Callable[..., Any] | None) -> PythonCode:
        for source in self.usage.kept:
            self.read(source)
        for shadow in self.usage.hoisted:
            self.define(shadow, kept=True)
        before: ast.Name | None = None
        if self.plan.before is not None:
            before = self.assign("before", self.value(self.plan.before))
        for first in self.plan.early:
            self.step_of_plan(first, before is not None)
        graph = None if graph_callable is None else self.call_graph(graph_callable)
        self.graph_line = len(self.body) + 1
        for shadow in self.usage.risky:
            self.define(shadow, kept=True)
        if before is not None:                      # what is changed stays from now on
            self.body.append(ast.Assign([before], ast.Constant(None)))
            self.first_effect = len(self.body) + 1
        for step in self.plan.steps:
            self.step_of_plan(step)
        for shadow in self.usage.risky_late:
            self.define(shadow, kept=True)
        self.body.append(ast.Return(self.value(self.plan.result)))
        parameters = [*self.parameters.values(), *([self.lifted_name] if self.lifted else [])]
        signature = ast.arguments([], [ast.arg(p) for p in parameters], None, [], [], None, [])
        module = ast.Module([ast.FunctionDef(self.name, signature, self.body, [])], [])
        text = ast.unparse(ast.fix_missing_locations(module)) + "\n"
        passed_over = ", passed over like importlib._bootstrap" if self.calls else ""       # by warnings and logging
        filename = f"<capture mock {self.name}{passed_over}>"
        return PythonCode(self.name, text, self.globals, filename, self.lines, tuple(self.lifted), graph, self.calls,
                          self.first_effect, None if before is None else before.id, self.graph_line)

    # -- statements --------------------------------------------------------------------------------------------------

    def call_graph(self, graph_callable: Callable[..., Any]) -> str:
        graph = self.names.fresh("graph")
        self.globals[graph] = graph_callable
        numbers = list(map(self.value, self.plan.numbers))
        if any(not isinstance(node.source, Local) for node in self.inputs):
            lifted: ast.expr = _name(self.lifted_name)
            if len(self.lifted) > len(self.inputs):
                lifted = _subscript(lifted, ast.Slice(None, ast.Constant(len(self.inputs))))
            arguments: list[ast.expr] = [ast.Starred(lifted)]
        else:
            arguments = [self.read(node.source) for node in self.inputs]
        call = ast.Call(_name(graph), arguments + numbers, [])
        for node in self.plan.outputs:
            self.objects[node] = self.names.fresh("t", numbered=True)
        outputs: list[ast.expr] = [_name(self.objects[node]) for node in self.plan.outputs]
        self.body.append(ast.Assign([ast.Tuple(outputs)], call) if outputs else ast.Expr(call))
        return graph

    def step_of_plan(self, step: Make | Effect | CallEffect, revocable: bool = False) -> None:
        """Writes one step. Its line is noted: statements are one line each, the first of them line 2. revocable: what it does can
        be undone."""
        write: Any = self.make if isinstance(step, Make) else self.call if isinstance(step, CallEffect) else self.effect
        statement = write(step)
        self.body.append(statement)
        line = len(self.body) + 1
        repeatable = step in self.plan.repeatable
        once = isinstance(step, CallEffect) and step.once
        if not isinstance(step, Make) and not repeatable and (once or not revocable):
            self.first_effect = min(self.first_effect, line)
        if isinstance(step, CallEffect):
            self.lines[line] = "a call"
            if not repeatable:
                self.calls[line] = None if is_from_stand_ins(step) else step.positions
        else:
            node = step.node if isinstance(step, Make) else step.target
            self.lines[line] = f"a new {node.cls.__qualname__}" if node.created else str(node.source)

    def call(self, effect: CallEffect) -> ast.stmt:
        args = [self.value(arg) for arg in effect.args]
        function = self.callable(effect.function.value) if isinstance(effect.function, Const) else self.value(effect.function)
        split = len(args) - len(effect.names)
        call = ast.Call(function, args[:split], [ast.keyword(name, value) for name, value in zip(effect.names, args[split:])])
        if effect not in self.usage.used:
            return ast.Expr(call)
        name = self.results[effect] = self.names.fresh("result", numbered=True)
        return ast.Assign([_name(name)], call)

    def make(self, step: Make) -> ast.stmt:
        value = step.value
        for part in operands(value):
            self.define(part)
        made = self.composite(value) if type(value) in WRITTEN else self.value(value)
        name = self.objects[step.node] = self.names.fresh(step.node.cls.__name__.lower(), numbered=True)
        return ast.Assign([_name(name)], made)

    def effect(self, effect: Effect) -> ast.stmt:
        operation, cls = effect.operation, effect.target.cls
        target, *args = map(self.value, (effect.target, *effect.args))
        attribute = _attribute_name(effect.args[0]) if effect.args else None
        exact = getattr(operation, "__objclass__", None) is cls and cls in EXACT
        if exact and operation.__name__ == "__setitem__":
            return ast.Assign([_subscript(target, args[0])], args[1])
        if exact and operation.__name__ == "__delitem__":
            return ast.Delete([_subscript(target, args[0])])
        if operation in ASSIGN and attribute and is_one_of(cls, types.CellType, types.FunctionType):
            return ast.Assign([ast.Attribute(target, attribute)], args[1])
        if operation in DELETE and attribute and is_one_of(cls, types.CellType, types.FunctionType):
            return ast.Delete([ast.Attribute(target, attribute)])
        if exact and not operation.__name__.startswith("__"):
            return ast.Expr(ast.Call(ast.Attribute(target, operation.__name__), args, []))
        return ast.Expr(ast.Call(self.callable(operation), [target, *args], []))

    def assign(self, hint: str, value: ast.expr, numbered: bool = False) -> ast.Name:
        """Keeps a value in a new local variable."""
        name = self.names.fresh(hint, numbered)
        self.body.append(ast.Assign([_name(name)], value))
        return _name(name)

    # -- shadows -----------------------------------------------------------------------------------------------------

    def value(self, shadow: Shadow) -> ast.expr:
        """How a shadow is written; emits statements for what is to be kept of it."""
        self.define(shadow)
        return self.written[id(shadow)]

    def define(self, root: Shadow, kept: bool = False) -> None:
        """Writes `root` and its operands; what is used more than once, or nested deeply, goes to a variable."""
        for shadow in operands_first([root]):
            if id(shadow) in self.written:
                continue
            if type(shadow) not in WRITTEN or path_of(shadow) is not None:
                self.written[id(shadow)] = self.leaf(shadow)
                continue
            written = self.composite(shadow)
            depth = 1 + max((self.depths.get(id(part), 0) for part in operands(shadow)), default=0)
            if self.usage.uses[id(shadow)] > 1 or depth > DEEPEST or kept and shadow is root:
                depth, hint = 0, "value" if isinstance(shadow, Expr) else shadow.cls.__name__.lower()  # type: ignore[attr-defined]
                written = self.assign(hint, written, numbered=True)
            self.written[id(shadow)], self.depths[id(shadow)] = written, depth

    def leaf(self, shadow: Shadow) -> ast.expr:
        source = path_of(shadow)
        if source is not None:
            return self.read(source)
        if isinstance(shadow, Const):
            return self.constant(shadow.value)
        if isinstance(shadow, Replayed):
            return _name(self.results[shadow.op])
        return _name(self.objects[shadow])  # type: ignore[index]

    def composite(self, shadow: Any) -> ast.expr:
        """An expression whose operands are written already."""
        parts = [self.written[id(part)] for part in operands(shadow)]
        if isinstance(shadow, Display):
            return self.display(shadow.cls, parts)
        if isinstance(shadow, Kept):
            return parts[0]
        if isinstance(shadow, Build):
            if issubclass(shadow.cls, BOUND_IN_C):
                return self.bound(shadow.items[0], *parts)
            return self.build(shadow.cls, parts[:len(shadow.items)], parts[len(shadow.items):])
        if isinstance(shadow, Perform):
            return ast.Call(self.pin(shadow.operation, shadow.operation.__name__), parts, [])       # of our own, or of C
        op = shadow.op
        if op in BINARY:
            return ast.BinOp(parts[0], BINARY[op](), parts[1])
        if op in COMPARE:
            return ast.Compare(parts[0], [COMPARE[op]()], [parts[1]])
        if op in UNARY:
            return ast.UnaryOp(UNARY[op](), parts[0])
        if op is instance_dict:
            return self.namespace(parts[0], getattr(shadow.args[0], "cls", None))
        return ast.Call(self.callable(op), parts, [])

    def display(self, cls: type, parts: list[ast.expr]) -> ast.expr:
        if cls is list:
            return ast.List(parts)
        if cls is dict:
            return ast.Dict(parts[::2], parts[1::2])  # type: ignore[arg-type]
        return ast.Set(parts) if parts else ast.Call(self.constant(set), [], [])

    def bound(self, descriptor: Shadow, written: ast.expr, owner: ast.expr) -> ast.expr:
        """A method of C, bound to an object, or to a class that it is a class method of."""
        known = descriptor.value if isinstance(descriptor, Const) else None
        if type(known) is types.ClassMethodDescriptorType:
            place = [ast.Constant(None), owner]
        else:       # with a class: without one CPython 3.11 crashes where the method asks for the class that defines it
            cls = getattr(known, "__objclass__", None)
            place = [owner, ast.Call(self.constant(type), [owner], []) if cls is None else self.constant(cls)]
        return ast.Call(ast.Attribute(written, "__get__"), place, [])

    def build(self, cls: type, parts: list[ast.expr], maker: list[ast.expr]) -> ast.expr:
        """An immutable composite, by the constructor of the C type that it extends. maker: the class, if the trace made it."""
        if cls is tuple:
            return ast.Tuple(parts)
        if issubclass(cls, (tuple, frozenset)):
            parts = [ast.Tuple(parts)]
        if not is_heap_type(cls):
            return ast.Call(self.constant(cls), parts, [])
        base = next(c for c in type.__getattribute__(cls, "__mro__")
                    if is_a(c.__dict__.get("__new__"), types.BuiltinFunctionType))
        return ast.Call(ast.Attribute(self.constant(base), "__new__"), [*(maker or [self.constant(cls)]), *parts], [])

    # -- paths -------------------------------------------------------------------------------------------------------

    def read(self, source: Source) -> ast.expr:
        """The entry state at a path. It is kept in a variable if it is used again, or later than at the start."""
        if source in self.locals:
            return _name(self.locals[source])
        if isinstance(source, Local) and source.name in self.parameters:
            return _name(self.parameters[source.name])
        if source not in self.places and is_of_function(source):
            self.places[source] = len(self.lifted)
            self.lifted.append(source)
        if source in self.places:
            return _subscript(_name(self.lifted_name), ast.Constant(self.places[source]))
        written = self.step(source)
        if source not in self.usage.kept and self.usage.paths[source] < 2:
            return written
        name = self.assign(_hint(source), written)
        self.locals[source] = name.id
        return name

    def step(self, source: Source) -> ast.expr:
        """The last step of a path, past any Python code of the object's class."""
        if isinstance(source, Constant):
            return self.constant(source.value)
        if isinstance(source, Literal):
            return self.constant(source.value)
        if isinstance(source, ImportedModule):
            return _subscript(ast.Attribute(self.pin(sys, "sys"), "modules"), ast.Constant(source.name))
        if isinstance(source, Computed):
            return ast.Call(self.callable(source.op), [self.read(a) for a in source.args], [])
        if source.base is None:
            raise LookupError(f"{source} is none of the arguments {list(self.parameters)}")
        base, cls = self.read(source.base), self.plan.classes.get(source.base)
        if isinstance(source, InstanceDict):
            return self.namespace(base, cls)
        if isinstance(source, Attr):
            if source.name == "get()":              # the value of a context variable
                return ast.Call(ast.Attribute(base, "get"), [], [])
            if source.name == "()":                 # what a weak reference refers to
                if cls is weakref.ref:
                    return ast.Call(base, [], [])
                return ast.Call(ast.Attribute(self.constant(weakref.ref), "__call__"), [base], [])
            if cls is not None and self.has_plain_access(cls) and _is_plain_name(source.name):
                return ast.Attribute(base, source.name)
            getattribute = ast.Attribute(self.constant(object), "__getattribute__")
            return ast.Call(getattribute, [base, ast.Constant(source.name)], [])
        if isinstance(source, Item):
            kind = next((c for c in SUBSCRIPTED if cls is not None and issubclass(cls, c)), None)
            key = self.constant(source.key)
            if kind is None or kind is cls:         # without a type: a dict or tuple that C code keeps
                return _subscript(base, key)
            return ast.Call(ast.Attribute(self.constant(kind), "__getitem__"), [base, key], [])
        if isinstance(source, TypeOf):
            return ast.Call(self.constant(type), [base], [])
        if isinstance(source, TypeAttr):
            return ast.Call(self.pin(lookup, "lookup"), [base, ast.Constant(source.name)], [])
        raise LookupError(f"no way to read {source}")

    def has_plain_access(self, cls: type) -> bool:
        """Whether attribute access on instances starts in C, and will."""
        fixed = not is_mutable(cls) or id(cls) in self.plan.plain
        return fixed and type(lookup(cls, "__getattribute__")) is not types.FunctionType

    def namespace(self, base: ast.expr, cls: type | None) -> ast.expr:
        """The `__dict__` of an instance."""
        if cls is not None and self.has_plain_access(cls) and is_a(
                lookup(cls, "__dict__"), (types.GetSetDescriptorType, types.MemberDescriptorType)):
            return ast.Attribute(base, "__dict__")
        return ast.Call(self.pin(instance_dict, "instance_dict"), [base], [])

    # -- constants ---------------------------------------------------------------------------------------------------

    def callable(self, function: Any) -> ast.expr:
        """A builtin function, as an attribute of the type that defines it if there is one."""
        owner = getattr(function, "__objclass__", getattr(function, "__self__", None))
        if is_a(owner, type):
            return ast.Attribute(self.constant(owner), function.__name__)
        return self.constant(function)

    def constant(self, value: Any) -> ast.expr:
        """A value known in advance: written out, or held by a global, weakly where users may own it."""
        cls = type(value)
        if cls is bool or cls is str or cls is bytes or value is None or value is Ellipsis:
            return ast.Constant(value)
        if cls is int and value.bit_length() < 128 or cls is float and not math.isnan(value):
            if math.copysign(1, value) < 0:
                return ast.UnaryOp(ast.USub(), ast.Constant(-value))
            return ast.Constant(value)
        if cls is tuple:
            return ast.Tuple([self.constant(item) for item in value])
        if cls is frozenset and any(map(holds_weak, value)):
            return ast.Call(self.pin(frozenset, "frozenset"), [ast.Tuple([self.constant(item) for item in value])], [])
        if cls is slice:
            parts = [self.constant(part) for part in (value.start, value.stop, value.step)]
            return ast.Call(self.pin(slice, "slice"), parts, [])
        hint = short_name(value)
        if not is_weak(value):
            return self.pin(value, hint)
        kept = self.locals.get(Constant(value))
        return _name(kept) if kept else ast.Call(self.pin(weakref.ref(value), f"ref_{hint}", of=value), [], [])

    def pin(self, value: Any, hint: str, of: Any = None) -> ast.expr:
        """A global variable that holds `value`: a weak reference to the object `of`, if there is one. One variable for each."""
        key = (id(value), False) if of is None else (id(of), True)
        if key not in self.pinned:
            self.pinned[key] = self.names.fresh(hint)
            self.globals[self.pinned[key]] = value
        return _name(self.pinned[key])


def is_from_stand_ins(effect: CallEffect) -> bool:
    """Whether a call is made from frames like the user's."""
    return isinstance(effect.function, Const) and isinstance(effect.function.value, CallFrom)


def is_of_function(source: Source) -> bool:
    """Whether a path leads to the function itself, a part of it, or what its closure or globals hold: guards walk it anyway."""
    if isinstance(source, Attr) and (source.name in PARTS or source.name == "cell_contents" and isinstance(source.base, Item)):
        return is_of_function(source.base)
    if isinstance(source, Item) and isinstance(source.base, Attr):
        return source.base.name in PARTS and is_of_function(source.base)
    return isinstance(source, Function)


def _attribute_name(shadow: Shadow) -> str | None:
    """The name that a constant holds, when it can be written after a dot."""
    name = shadow.value if isinstance(shadow, Const) else None
    return name if type(name) is str and _is_plain_name(name) else None


def _is_plain_name(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def _hint(source: Source) -> str:
    """A readable name for what is at a path."""
    if isinstance(source, (Attr, TypeAttr)):
        return source.name.strip("_") or "attribute"
    if isinstance(source, InstanceDict):
        return f"{_hint(source.base)}_dict"
    if isinstance(source, Item):
        return source.key if is_a(source.key, str) else f"{_hint(source.base)}_item"
    if isinstance(source, Local):
        return source.name
    if isinstance(source, ImportedModule):
        return source.name.rpartition(".")[2]
    if isinstance(source, Constant):
        return short_name(source.value)
    return type(source).__name__.lower()


def _name(name: str) -> ast.Name:
    return ast.Name(name)


def _subscript(value: ast.expr, key: ast.expr) -> ast.Subscript:
    return ast.Subscript(value, key)
