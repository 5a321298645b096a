"""The walk over an aten graph, node after node."""
from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from capture.backends.native.index import Index, Size, Symbol, index
from capture.backends.native.ir import Expr, Extern, Load, Program, View, nested
from capture.backends.native.lowering.builder import DTYPES, Builder, broadcast, converted, is_cheap, is_large, same_strides
from capture.backends.native.lowering.complex import COMPLEX, lower_complex
from capture.backends.native.lowering.externs import extern, in_place_form, written_args
from capture.backends.native.lowering.in_place import changes_in_place
from capture.backends.native.lowering.lazy import Lazy, Spec, Stored, in_memory, variables
from capture.backends.native.lowering.promotion import Kind, promoted
from capture.backends.native.lowering.registry import TABLE, Call
from capture.backends.native.lowering.scalar import number
from capture.backends.native.lowering.sizes import Sizes
from capture.backends.native.lowering.views import VIEW_OF
from capture.backends.native.rewrite import reads, writes
from capture.backends.native.signature import Unsupported
from capture.backends.native.symbolic import assume_zero_or_one
from capture.operators.facts import facts_of

aten = torch.ops.aten


class GraphLowering:
    """Lowers one graph. `values`: of each node so far, a Lazy, a size, a tuple of these, or None."""

    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm
        self.builder = Builder()
        self.program = self.builder.program
        self.symbols: dict[str, Symbol] = {}
        self.sizes = Sizes(self.symbols)
        self.values: dict[Node, Any] = {}
        self.nodes_of: dict[Lazy, list[tuple[int, Node]]] = {}      # the nodes that have a value, with their places
        self.called: set[str] = set()           # buffers that operators fill
        self.in_place = changes_in_place(gm.graph)
        self.memory: dict[Node, Stored] = {}    # of what is changed in place, and of the results

    def run(self) -> Program:
        placeholders = [node for node in self.gm.graph.nodes if node.op == "placeholder"]
        self.program.device = _device(self.gm)
        for node in self.gm.graph.nodes:
            for fake in tree_leaves(node.meta.get("val")):
                for size in (*fake.shape, *fake.stride()) if isinstance(fake, torch.Tensor) else ():
                    assume_zero_or_one(size)
        self._bind_symbols(placeholders)
        for node in self.gm.graph.nodes:
            self.builder.label = node.name
            if node.op == "placeholder":
                self.values[node] = self._placeholder(node)
            elif node.op == "get_attr":
                self.values[node] = self._attribute(node)
            elif node.op == "call_function":
                if node.users or _acts(node):
                    self.values[node] = self._call(node)
            elif node.op == "output":
                results = node.args[0]
                self.program.outputs = [self._output(r) for r in (results if isinstance(results, (tuple, list)) else [results])]
            else:
                raise Unsupported(f"a node of kind {node.op}")
            if node in self.values:
                self._note(node)
                self._note_memory(node)
        self.builder.add_checks()
        self._check_hosts()
        return self.program

    def _check_hosts(self) -> None:
        """Raises Unsupported where a nest reads of the processor more than numbers that are inputs, or writes there."""
        buffers = self.program.buffers
        numbers = {name for name in self.program.hosts.intersection(self.program.inputs)
                   if not buffers[name].dtype.is_complex and all(index(size) == 1 for size in buffers[name].sizes)}
        for statement in self.program.body:
            if not isinstance(statement, Extern) and self.program.hosts & (reads(statement) - numbers | writes(statement)):
                raise Unsupported("a tensor on the CPU takes part in what is computed on a GPU")

    # Inputs and outputs.

    def _bind_symbols(self, placeholders: Sequence[Node]) -> None:
        """Says of each symbol which input it comes from: an argument where there is one, else a dimension."""
        values = [node.meta.get("val") for node in placeholders]
        found = [(value, position, None) for position, value in enumerate(values) if isinstance(value, torch.SymInt)]
        found += [(size, position, dim) for position, value in enumerate(values) if isinstance(value, torch.Tensor)
                  for dim, size in enumerate(value.shape) if isinstance(size, torch.SymInt)]
        for size, position, dim in found:
            expr = size.node.expr
            if expr.is_Symbol and str(expr) not in self.symbols:
                low = size.node.shape_env.var_to_range[expr].lower
                symbol = self.symbols[str(expr)] = Symbol(str(expr), int(low) if low.is_Integer else -(1 << 63))
                self.program.symbols[symbol] = position, dim

    def _placeholder(self, node: Node) -> Lazy | Size | None:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            spec = self.sizes.spec(value)
            stored = self.builder.memory(spec.shape, spec.dtype, spec.strides, "input")
            self.program.inputs.append(stored.buffer.name)
            if spec.device.type != self.program.device.type:
                self.program.hosts |= {stored.buffer.name}
            lazy = in_memory(stored, spec.shape)
            lazy.number = node.meta.get("number")
            return lazy
        if isinstance(value, torch.SymInt) and value.node.expr.is_Symbol:
            size = self.sizes.size(value)
            self.program.inputs.append(next(atom for atom in index(size).atoms() if isinstance(atom, Symbol)))
            return size
        if isinstance(value, (int, torch.SymInt)) or value is None and not node.users:
            self.program.inputs.append(Symbol(self.builder.name(node.name)))       # passed, but known or not used
            return None if value is None else self.sizes.size(value)
        raise Unsupported(f"an input of type {type(value).__name__}")

    def _attribute(self, node: Node) -> Lazy:
        value: Any = self.gm
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            raise Unsupported(f"an attribute of type {type(value).__name__}")
        spec = self.sizes.spec(value)
        if not spec.shape and spec.dtype in DTYPES and spec.dtype.itemsize >= 4 and value.device.type == "cpu":
            known = number(value.item(), spec.dtype)
            return Lazy((), spec.dtype, (), lambda place: known)
        stored = self.builder.memory(spec.shape, spec.dtype, spec.strides, "constant")
        self.program.constants[stored.buffer.name] = value
        return in_memory(stored, spec.shape)

    def _output(self, result: Any) -> View | Size | None:
        value = self._argument(result)
        fake = result.meta.get("val") if isinstance(result, Node) else None
        there = isinstance(fake, torch.Tensor) and fake.device.type != self.program.device.type
        if there and not self._is_there(value):
            raise Unsupported(f"a number on {fake.device} is a result of a graph for {self.program.device}")
        if isinstance(value, Lazy):
            if self._is_changed_input(result):
                self.builder.copy(value)
            return self.builder.result(value)
        if value is None or isinstance(value, (int, Index)):
            return value
        raise Unsupported(f"a result of type {type(value).__name__}")

    def _is_changed_input(self, node: Node) -> bool:
        """Whether a result that is a tensor of its own lies in the memory of an input that was changed in place."""
        while node.target is operator.getitem or (lowering := TABLE.get(node.target)) is not None and lowering.is_view:
            node = node.args[0]
        return node in self.in_place.changes

    # Calls.

    def _call(self, node: Node) -> Any:
        result = node.meta.get("val")
        if isinstance(result, (int, torch.SymInt)) and not isinstance(result, bool):
            return self.sizes.size(result)
        if isinstance(result, (float, bool, torch.SymFloat, torch.SymBool)):
            raise Unsupported(f"{node.target} is computed as a Python number")
        if node.target is operator.getitem:
            source, position = node.args
            return self.values[source][position]
        if not isinstance(node.target, OpOverload):
            raise Unsupported(f"{node.target} is not an ATen operator")
        args = tuple(map(self._argument, node.args))
        if (number_type := node.meta.get("number")) is not None:
            args = tuple(replace(value, number=None) if isinstance(value, Lazy) else value for value in args)
        kwargs = {name: self._argument(value) for name, value in node.kwargs.items()}
        if node.target is aten.copy_.default:
            return self._assign(node, *args[:2])
        several = isinstance(result, (tuple, list))
        if several and any(isinstance(r, (tuple, list)) for r in result):
            raise Unsupported(f"{node.target} returns lists of tensors")
        results = tuple(self.sizes.spec(r) if isinstance(r, torch.Tensor) else None for r in (result if several else [result]))
        used = frozenset(range(len(results))) if not several else frozenset(
            user.args[1] for user in node.users if user.target is operator.getitem)
        call = Call(self.builder, node, node.target, results, used)
        if node in self.in_place.changes and node.args[0] in self.memory:
            return self._change(replace(call, into=self.memory[node.args[0]]), args)
        value = self._lowered(call, args, kwargs)
        if value is NotImplemented:
            value = self._extern(node, call, args, kwargs)
        value = value if several else value[0]
        if number_type is not None:
            value.number = number_type
        for lazy, user in self._owners(node, value):
            self._store_if_needed(lazy, user)
        return value

    def _lowered(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The results by the table, NotImplemented where they must come from ATen."""
        dtypes = [lazy.dtype for lazy in nested((args, kwargs), Lazy)] + [spec.dtype for spec in call.results if spec is not None]
        before = len(self.program.buffers)
        if not COMPLEX.isdisjoint(dtypes) or any(True for _ in nested((args, kwargs), complex)):
            is_view = True
            value = NotImplemented if _takes_numbers(args, kwargs) else lower_complex(call, dtypes, args, kwargs)
        else:
            lowering = TABLE.get(call.op)
            if lowering is None or not lowering.numbers and _takes_numbers(args, kwargs):
                return NotImplemented
            is_view = lowering.is_view
            if not is_view and any(map(self._is_apart, (*call.results, *nested((args, kwargs), Lazy)))):
                return NotImplemented
            if not is_view and not DTYPES.issuperset(dtypes):
                return NotImplemented
            value = lowering.handler(call, *args, **kwargs)
        if value is NotImplemented:
            return value
        values = value if isinstance(value, (tuple, list)) else (value,)
        own = set(list(self.program.buffers)[before:])
        finished = []
        for lazy, spec in zip(values, call.results, strict=True):
            if lazy is None or spec is None:
                finished.append(None)
                continue
            assert lazy.dtype == spec.dtype and lazy.shape == spec.shape, (call.op, lazy.dtype, lazy.shape, spec)
            if lazy.dtype not in DTYPES and lazy.stored is None and lazy.pair is None:
                return NotImplemented
            elsewhere = lazy.stored is not None and lazy.stored != call.into and lazy.stored.buffer.name not in own
            if elsewhere and not is_view:
                lazy = Lazy(spec.shape, spec.dtype, spec.strides, lazy.at, 0, lazy.reads)       # a copy, not the argument itself
            finished.append(lazy if lazy.strides == spec.strides else _with_strides(lazy, spec))
        return finished

    def _extern(self, node: Node, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Lazy | None]:
        op, results = call.op, call.results
        if _takes_numbers(args, kwargs):
            raise Unsupported(f"{op} with a number that changes from call to call")
        if facts_of(op).names_places:
            raise Unsupported(f"{op} names places in memory that are eager's")
        if any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns):
            op = getattr(getattr(getattr(torch.ops, op.namespace), f"{op._opname}_copy", None), op._overloadname, None)
            if op is None:
                raise Unsupported(f"{call.op} has no form that copies")
            try:
                copied = op(*torch.fx.node.map_arg(node.args, lambda n: n.meta["val"]),
                            **torch.fx.node.map_arg(dict(node.kwargs), lambda n: n.meta["val"]))
            except RuntimeError as error:       # where sizes change
                raise Unsupported(f"{call.op} has no form that copies: {str(error).splitlines()[0]}") from None
            results = tuple(map(self.sizes.spec, copied if isinstance(copied, (tuple, list)) else [copied]))
        if op._schema.is_mutable:
            return self._write(node, call, args, kwargs)
        if any(map(self._is_apart, (*results, *nested((args, kwargs), Lazy)))):
            op = self._on_processor(node, op, args)
        else:
            args = _with_tensors(op, args)
        lazies = extern(self.builder, op, args, kwargs, results, call.used)
        for lazy, spec in zip(lazies, call.results, strict=True):
            if lazy is not None and spec is not None:
                lazy.strides = spec.strides
                self.called.add(lazy.stored.buffer.name)
        return lazies

    def _on_processor(self, node: Node, op: OpOverload, args: tuple[Any, ...]) -> OpOverload:
        """The operator for arguments on the processor, in a graph for a GPU: numbers must be what it takes as such. Raises
        Unsupported for what a kernel would have to compute first."""
        for argument in node.all_input_nodes:
            value, fake = self.values[argument], argument.meta.get("val")
            if isinstance(value, Lazy) and not self._is_there(value) and fake.device.type != self.program.device.type:
                raise Unsupported(f"{op} takes a number that is computed on the CPU in a graph for {self.program.device}")
        if _with_tensors(op, args) is args:
            return op
        scalar = getattr(op.overloadpacket, "Scalar", None)
        if scalar is None or [str(argument.type) for argument in scalar._schema.arguments[:2]] != ["Tensor", "number"] or (
                len(args) != 2 or not isinstance(args[0], Lazy)):
            raise Unsupported(f"{op} with a number on the CPU in a graph for {self.program.device}")
        return scalar

    def _is_there(self, value: Lazy) -> bool:
        """Whether a value lies on the processor, in a graph for a GPU."""
        return value.stored is not None and value.stored.buffer.name in self.program.hosts

    def _write(self, node: Node, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Lazy]:
        """An operator that writes to arguments, and returns these."""
        written = written_args(call.op, args, kwargs)
        if not all(result.alias_info is not None for result in call.op._schema.returns):
            raise Unsupported(f"{call.op} writes to its arguments and returns others")
        for lazy in written:
            self._protect(self.builder.store(lazy).buffer.name, lazy, node)
        extern(self.builder, call.op, args, kwargs, (), frozenset())
        return written[:len(call.results)]

    def _assign(self, node: Node, target: Lazy, value: Lazy) -> Lazy:
        """`target.copy_(value)`: what still reads the old value is stored before."""
        stored = self.memory.get(node.args[0], target.stored)
        if stored is None:
            raise Unsupported("a write to a tensor that the graph computed")
        target = in_memory(stored, target.shape)
        self._protect(stored.buffer.name, target, node)
        self._overwrite(target, value)
        return target

    def _overwrite(self, target: Lazy, value: Lazy) -> None:
        """Stores a value where another lies."""
        assert target.stored is not None
        name = target.stored.buffer.name
        new = converted(broadcast(self.builder, value, target.shape), target.dtype)
        if name in new.reads:
            if self._lies_there(new, target):
                return
            if not self._reads_in_place(new, target):
                self.builder.copy(new)
        self.builder.write(new, target.stored)

    def _change(self, call: Call, args: tuple[Any, ...]) -> Lazy:
        """An operator of `in_place`: it writes to a part of `call.into`."""
        assert call.into is not None
        spec, buffer = call.result, call.into.buffer.name
        result = in_memory(call.into, spec.shape)
        self._protect(buffer, result, call.node)
        view = VIEW_OF.get(call.op)
        part = None if view is None else self._part(call, view, result, args)
        if part is not None:
            self._overwrite(part, args[1])
        else:
            for lazy in nested(args[1:], Lazy):
                if buffer in lazy.reads:
                    self.builder.copy(lazy)
            value = self._lowered(call, args, {})
            form = in_place_form(call.op)
            if value is not NotImplemented:
                self._overwrite(result, value[0])
            elif form is None or _takes_numbers(args, {}) or any(map(self._is_apart, nested(args, Lazy))):
                self._overwrite(result, self._extern(call.node, call, args, {})[0])
            else:
                extern(self.builder, form, (result, *_with_tensors(call.op, args)[1:]), {}, (), frozenset())
        return result if result.strides == spec.strides else _with_strides(result, spec)

    def _part(self, call: Call, view: OpOverload, whole: Lazy, args: tuple[Any, ...]) -> Lazy | None:
        """The part that is replaced, in memory; None where its place is not known."""
        spec = self.sizes.spec(call.node.args[1].meta["val"])
        results = (replace(spec, dtype=whole.dtype),)
        found = self._lowered(Call(self.builder, call.node, view, results, frozenset((0,))), (whole, *args[2:]), {})
        return None if found is NotImplemented or found[0].stored is None else in_memory(found[0].stored, spec.shape)

    def _note_memory(self, node: Node) -> None:
        """Notes where a value lies that is changed in place, or has been."""
        value = self.values[node]
        if node in self.in_place.changes:
            if node.args[0] in self.memory:
                self.memory[node] = self.memory[node.args[0]]
        elif node in self.in_place.changed and isinstance(value, Lazy) and value.stored is not None and (
                value.stored.buffer.kind == "input" and value.stored.buffer.name not in self.program.hosts):
            self.memory[node] = value.stored

    def _note(self, node: Node) -> None:
        """Notes the values of a node, for `_protect`."""
        for lazy in nested(self.values[node], Lazy):
            self.nodes_of.setdefault(lazy, []).append((len(self.values), node))
            self.builder.note(lazy)

    def _protect(self, buffer: str, written: Lazy, writer: Node) -> None:
        """Makes copies of the values that are used after `writer` and depend on what `buffer` holds now; `written` is to change.
        All others that have loaded from it so far are used no more."""
        readers = self.builder.readers.get(buffer, {})
        self.builder.readers[buffer] = {written: None}
        used = [(place, lazy) for lazy in readers if lazy is not written and (place := self._used_after(writer, lazy)) is not None]
        for _, lazy in sorted(used, key=operator.itemgetter(0)):
            if buffer in lazy.reads:
                self.builder.store(lazy) if lazy.stored is None else self.builder.copy(lazy)

    def _used_after(self, writer: Node, lazy: Lazy) -> int | None:
        """The place of the first node of which this is a value, and that has users after `writer`."""
        return next((place for place, node in self.nodes_of.get(lazy, ()) if any(
            user is not writer and user not in self.values and self.in_place.reads(user, node) for user in node.users)), None)

    @staticmethod
    def _lies_there(value: Lazy, target: Lazy) -> bool:
        """Whether a value is what the memory of `target` holds."""
        if value.stored is not None:
            return value.stored.parts == target.stored.parts and value.stored.offset == target.stored.offset and same_strides(
                value.shape, value.stored.strides, target.stored.strides)
        if value.dtype.is_complex or value.parts is not None:
            return False
        place = variables(value.shape)
        return value.at(place) is target.at(place)

    @staticmethod
    def _reads_in_place(value: Lazy, target: Lazy) -> bool:
        """Whether each element of the new value depends only on the same element of what it overwrites. Of complex tensors, whose
        parts are loaded apart, that is not asked."""
        if value.dtype.is_complex:
            return False
        place = variables(value.shape)
        here = target.at(place)
        return value.parts is None and all(load is here for load in _loads(value.at(place), target.stored.buffer.name))

    # What to store.

    def _owners(self, node: Node, value: Any) -> Iterable[tuple[Lazy, Node]]:
        """The lazies of a node's value, and the node whose users are theirs."""
        if isinstance(value, Lazy):
            yield value, node
        elif value is not None:
            for user in node.users:
                if user.target is operator.getitem and isinstance(lazy := value[user.args[1]], Lazy):
                    yield lazy, user

    def _store_if_needed(self, lazy: Lazy, node: Node) -> None:
        """Stores a value that several nodes use, unless it is cheap; one whose expression has become too large; and a sum with an
        operator's result to which more is added, so that fusion can decide whether all operands wait for the last."""
        if lazy.stored is not None or not lazy.reads and lazy.weight <= 1:
            return
        several = len(node.users) > 1
        waits = _is_added_to(node) and not self.called.isdisjoint(lazy.reads)
        if is_large(lazy) or waits or several and (not is_cheap(lazy, self.program) or any(map(_needs_memory, node.users))):
            self.builder.store(lazy)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Node):
            return self.values[value]
        if isinstance(value, (list, tuple)):
            return [self._argument(item) for item in value]
        if isinstance(value, torch.SymInt):
            return self.sizes.size(value)
        if isinstance(value, torch.SymFloat):
            number = self.sizes.number(value)
            return Lazy((), torch.float64, (), lambda place: number, number=float)
        return value

    def _is_apart(self, value: Lazy | Spec | None) -> bool:
        """Whether a value is on the processor, and the graph on a GPU. Numbers kernels calculate with, all else operators do."""
        if isinstance(value, Lazy):
            return bool(value.shape) and not self.program.hosts.isdisjoint(value.reads)
        return value is not None and bool(value.shape) and value.device.type != self.program.device.type


def _device(gm: GraphModule) -> torch.device:
    """Where a graph's tensors are: on one GPU, if any of them is. Raises Unsupported where there are several."""
    found = {fake.device for node in gm.graph.nodes for fake in tree_leaves(node.meta.get("val")) if isinstance(fake, torch.Tensor)}
    devices = sorted(str(device) for device in found if device.type != "cpu")
    if len(devices) > 1 or any(torch.device(name).type != "cuda" for name in devices):
        raise Unsupported(f"tensors are on {' and '.join(devices)}; there are kernels for the CPU, and for one GPU of NVIDIA's")
    return torch.device(devices[0] if devices else "cpu")


def _with_tensors(op: OpOverload, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments, with tensors of no dimensions, of the dtype to which they are converted, where numbers or sizes stand for
    tensors."""
    declared = [str(argument.type) for argument in op._schema.arguments[:len(args)]]
    stand = [kind == "Tensor" and isinstance(value, (bool, int, float, Index)) for value, kind in zip(args, declared, strict=True)]
    if not any(stand):
        return args
    common = promoted([value for value, kind in zip(args, declared, strict=True) if kind == "Tensor"], Kind.DEFAULT).common
    if common.is_complex:
        common = common.to_real()           # of which complex tensors of that width make complex ones
    if common not in DTYPES:
        raise Unsupported(f"{op} of {common} with a number")

    def tensor(value: bool | int | float | Index) -> Lazy:
        return Lazy((), common, (), lambda place: number(value, common))
    return tuple(tensor(value) if stands else value for value, stands in zip(args, stand, strict=True))


def _is_added_to(node: Node) -> bool:
    """Whether a sum is needed for a further sum alone."""
    return node.target is aten.add.Tensor and [user.target for user in node.users] == [aten.add.Tensor]


def _takes_numbers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether numbers of Python that change are among the arguments."""
    return any(lazy.number is not None for lazy in nested((args, kwargs), Lazy))


def _acts(node: Node) -> bool:
    """Whether a call matters though nobody uses its result."""
    op = node.target
    return isinstance(op, OpOverload) and (
        op._schema.is_mutable or torch.Tag.nondeterministic_seeded in op.tags or not op._schema.returns)


def _needs_memory(user: Node) -> bool:
    """Whether a user reads its arguments from memory."""
    return user.op == "output" or user.target not in TABLE and user.target is not operator.getitem


def _loads(root: Expr, buffer: str) -> Iterable[Expr]:
    """The loads from a buffer in an expression."""
    seen: set[Expr] = set()
    stack = [root]
    while stack:
        expr = stack.pop()
        if expr not in seen:
            seen.add(expr)
            stack.extend(expr.children())
            if isinstance(expr, Load) and expr.buffer == buffer:
                yield expr


def _with_strides(lazy: Lazy, spec: Spec) -> Lazy:
    """With eager's strides, for when it is stored. Of what is in memory, those that do not matter become eager's right away."""
    if lazy.stored is not None and same_strides(spec.shape, lazy.stored.strides, spec.strides):
        return in_memory(replace(lazy.stored, strides=spec.strides), spec.shape)
    if lazy.stored is not None:
        return in_memory(lazy.stored, spec.shape, spec.strides)
    lazy.strides = spec.strides
    return lazy
