"""Recording of tensor operations, already done for real, as an fx graph."""
from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.recording import (
    constant_tensors,
    found_places,
    kernel_settings,
    leaf_functions,
    regions,
    size_tensors,
    subclass_unwrapping,
)
from capture.interp.recording.expectations import Expectation, Expectations
from capture.interp.recording.graph_builder import GraphBuilder
from capture.interp.recording.mutations import Mutations
from capture.interp.recording.recomputable_tensors import RecomputableNodes, path_of_tensor, require_truth
from capture.interp.recording.regions import Region, graph_module, outline
from capture.interp.recording.result_shapes import is_counted, is_dynamic, is_nested
from capture.interp.recording.scalar_specialization import Numbers
from capture.interp.recording.undo_log import MOST_BYTES, meets_another
from capture.interp.recording.writes import note_writes, uncounted, versions_of
from capture.operators import transform_levels
from capture.operators.facts import facts_of
from capture.operators.schemas import shown_name
from capture.refgraph.entry_state import VALUES
from capture.refgraph.graph import RefGraph
from capture.refgraph.identical import LISTS, items_in_c
from capture.refgraph.memory import PLAIN_TENSORS, asking_nobody, device_of, is_handle, pin_tensor_class, storage_id
from capture.refgraph.node import Build, Const, DictState, Expr, External, HandleState, ListState, RefNode, Shadow, TensorState
from capture.refgraph.result_types import IN_PLACE
from capture.refgraph.sizes import Size
from capture.refgraph.source import Computed
from capture.refgraph.state_queries import current_gpu


class FxRecorder(GraphBuilder):
    """The fx graph of one capture, in the order of execution. Every node's `meta["stack"]` says where in the program it comes
    from."""

    def __init__(self, refs: RefGraph, seen: Numbers, most: float = MOST_BYTES) -> None:
        """seen: the numbers from outside that change from call to call. most: bytes of what the graph changes outside of it that
        can be undone."""
        super().__init__(refs, seen)
        self.mutations = Mutations(refs, most)
        self.expectations = Expectations()
        self.recomputable = RecomputableNodes()
        self.counted: dict[RefNode, tuple[External, int]] = {}          # see scalar_tensors
        self.bounds: dict[fx.Node, Size] = {}           # of places: all elements of the node's tensor are less, and none is below 0
        self.disturbed: set[fx.Node] = set()            # nodes whose results may have been written to
        self.devices: set[str] = set()                      # types of those that results lie on
        self.regions: list[Region] = []
        self.modules: dict[str, torch.nn.Module] = {}       # what became of bodies of torch's control flow
        self.switches: set[Callable[..., Any]] = set()      # functions by which the graph sets modes
        self.switched: set[kernel_settings.Setting] = set()     # what the graph has set, by getters
        self.passed_objects: list[Any] = []     # to autograd functions: the backward pass may read them
        self.silent = False                     # some operation was called under filters of warnings that the program had set
        self._before_call: Any = None           # see `note_before_call`
        self._snapshots: list[tuple[fx.Node, torch.Tensor, int | None, int]] = []

    def record(self, op: str, target: Any, args: Sequence[Value], kwargs: dict[str, Value], result: Any,
               versions: dict[int, int | None], warned: Any = None, fails: bool = False) -> Shadow:
        """Appends an operation, whose real result is `result`, and returns its shadow.

        op: "call_function" or "call_method". versions: `versions_of` the arguments before the operation. warned: see
        `program_frames.warned`. fails: whether it raises for some values. Raises Break, after removing what it appended.
        """
        last = next(iter(reversed(self.fx.nodes)), None)
        before = self.mutations.so_far
        try:
            return self._record(op, target, args, kwargs, result, versions, warned, fails)
        except Break:
            self.mutations.back_to(before)
            for node in reversed(self.fx.nodes):
                if node is last:
                    break
                if node.op != "placeholder":
                    self.fx.erase_node(node)
            raise

    def _record(self, op: str, target: Any, args: Sequence[Value], kwargs: dict[str, Value], result: Any,
                versions: dict[int, int | None], warned: Any, fails: bool) -> Shadow:
        facts = facts_of(target)
        args = [size_tensors.with_integers(self, facts, place, value) for place, value in enumerate(args)]
        kwargs = {name: size_tensors.with_integers(self, facts, name, value) for name, value in kwargs.items()}
        depends = is_dynamic(facts, target, args, kwargs, result)
        changing = is_of_tensors(result) and (not depends or facts.takes_subscript)
        self.begin_operation()
        arguments = tuple(self.operand(facts, target, place, a, args, changing) for place, a in enumerate(args))
        if target in IN_PLACE and not isinstance(arguments[0], fx.Node):
            target = IN_PLACE[target]           # `0 += tensor` makes a new tensor
        node = self.fx.create_node(op, target, arguments, {
            name: self.operand(facts, target, name, v, (), changing) for name, v in kwargs.items()})
        node.meta["stack"] = self.refs.context.positions()
        subclass_unwrapping.note(node, self.asking[-1])
        if warned is not None:
            node.meta["warned"] = warned
        node.meta["fails"] = fails
        filters = self.refs.find(warnings.filters)
        self.silent |= filters is not None and filters.created
        self._note_obstacle(node, args)
        own = facts.changes_only_itself and (first := self.refs.find(args[0].real)) is not None and first.created
        if facts.relays and not own:
            self.mutations.relaid(observed=not facts.is_of_program)
        tensors = list(tensors_in(args, kwargs))
        if facts.relays:
            for tensor in tensors:
                self.relay(tensor)
        computes = facts.computes and "out" not in kwargs
        sources = [source for source in node.all_input_nodes if source not in self.sizes.sources]
        follows = (computes and self.recomputable.covers(sources)
                   and all(constant_tensors.is_recomputable(self.refs, t) for t in tensors))
        now = versions_of(tensors)
        note_writes(node, result, tensors, versions, now, self.refs.find)
        if "writes" in node.meta or facts.writes or facts.statistics or "out" in kwargs or not facts.is_of_torch:
            self._note_disturbed(node)
        if versions != now and (changed := [t for t in tensors if versions.get(id(t)) != now[id(t)]]):
            self.wrote(changed, keeps_values=facts.views_in_place)
            if follows:
                self._note_recomputable_write(node, changed)
        if written := uncounted(facts, args, kwargs):
            self.wrote(written)
            if any(meets_another(tensor, tensors) for tensor in written if "out" not in kwargs):
                node.meta |= {"obstacle": "writes to memory that it is given as another argument, too", "contained": True}
        if target in leaf_functions.RANDOM_STATE or any(is_a(v.real, torch.Generator) for v in (*args, *kwargs.values())):
            self.wrote(())
        if facts.communicates:
            self.wrote((), for_good=True)
        shaping = tensors_in(args[:1]) if facts.is_shaped_like_first else tensors
        dynamic = self.resized or any(self.is_dynamic(t) for t in shaping)
        if depends and not self.pin(*constant_tensors.deciding(facts.name, args, tensors)):
            dynamic = True
            node.meta["dynamic"] = facts.is_of_torch and not facts.parts        # of others the compiling process will tell
            if not facts.keeps_rank and not is_nested(result):
                self.sizes.fix(tensors)
        if dynamic and contains_tensor(result) and is_counted(facts, args, kwargs, tensors, self._maker(tensors)):
            raise Break("data-dependent-shape", f"{shown_name(target)} of a tensor whose shape depends on values")
        forms = None if dynamic else self.sizes.of_results(target, args, kwargs, tensors, result, bool(self.bodies))
        known = computes and all(constant_tensors.is_fixed(self.refs, tensor) for tensor in tensors) and all(
            source in self.recomputable.constant or "number" in source.meta for source in sources)
        shadow = self._result(node, result, dynamic, known, follows and not known and not dynamic)
        self.sizes.note(result, forms)
        if not dynamic:
            self._note_bound(node, tensors, result)
        return shadow

    def _note_disturbed(self, writer: fx.Node) -> None:
        """Notes all that an operation which may write follows from: it may have views of any of their results."""
        todo = writer.all_input_nodes
        while todo:
            node = todo.pop()
            if node not in self.disturbed:
                self.disturbed.add(node)
                todo += node.all_input_nodes

    def _note_bound(self, node: fx.Node, tensors: Sequence[torch.Tensor], result: Any) -> None:
        """Notes in what range all elements of a result are. tensors: the operands; those of derived classes would be asked."""
        if not all(type(tensor) in PLAIN_TENSORS for tensor in tensors):
            return
        found = found_places.bound(node, lambda: self.sizes.of(tensors[0]) or tensors[0].shape if len(tensors) == 1 else (), result)
        if found is not None and (known := self.refs.find(found[0])) is not None and known.state.node is not None:
            self.bounds[known.state.node] = found[1]

    def _note_recomputable_write(self, node: fx.Node, tensors: Iterable[torch.Tensor]) -> None:
        """Notes that an operation on known values (constants, and numbers held at entry) wrote to these tensors."""
        storages = frozenset(storage_id(tensor) for tensor in tensors)
        self.recomputable.note_write(node, storages)  # type: ignore[arg-type]
        self.refs.wrote_recomputable(storages)  # type: ignore[arg-type]

    @property
    def snapshots(self) -> set[fx.Node]:
        """The nodes of values that were read, as they were then."""
        return {node for node, *_ in self._snapshots}

    def _note_obstacle(self, node: fx.Node, args: Sequence[Value]) -> None:
        """Notes why no backend can compile a graph with this node."""
        if node.target in leaf_functions.UNDONE:
            self.mutations.leave_behind()
        found = leaf_functions.obstacle(node.target, type(args[0].real) if args else None)
        if found is not None:
            node.meta["obstacle"] = found
            node.meta["contained"] = node.target in leaf_functions.CONTAINED
        elif facts_of(node.target).casts_within and torch._C._is_any_autocast_enabled():
            node.meta |= {"obstacle": "casts within its kernel, under autocast", "contained": True}

    def uses(self, device: str) -> None:
        """Notes that the trace uses a device of this type: the current device of that type is guarded."""
        if device not in self.devices:
            self.devices.add(device)
            if device != "cpu":
                self.refs.require(Computed(current_gpu, ()), "VALUE", current_gpu())

    def wrote(self, tensors: Iterable[torch.Tensor], for_good: bool = False,
              observed: Sequence[torch.Tensor] | None = None, keeps_values: bool = False) -> None:
        """These tensors were written to, or may have been; none: other state was changed. for_good: in a way that no copy brings
        back. observed: those that were, where that is known. keeps_values: only their versions count on. Raises Break for one from
        outside where the call is to run again if an earlier operation fails, and now could not."""
        mutations = self.mutations
        mutations.begin_write()
        tensors = self.arrays.with_shared(self.refs, list(tensors))
        storages = [storage_id(t) for t in tensors]
        for tensor in tensors:
            self.refs.keep_storage(tensor)
        self.sizes.wrote(storages)
        written = [tensor for tensor, storage in zip(tensors, storages) if storage in self.refs.storages]
        if not storages or written:
            before, expectations = mutations.so_far, self.expectations
            mutations.wrote(written, self.inputs.tensors, for_good or not storages, observed, keeps_values)
            self._guard_checks()
            tells = expectations.watched or expectations.checks and self.refs.context.can_cut()
            if tells and not mutations.can_take_back():
                mutations.back_to(before)
                raise Break("failing-operation", "a write to a tensor after an operation or check that may fail")
            if expectations.promises and not mutations.can_take_back():
                for promise in expectations.take_promises():
                    self.refs.require(promise, "VALUE", True)
        self.refs.wrote(storages)

    def relay(self, tensor: torch.Tensor) -> None:
        """A tensor was given another layout, memory or history, or may have been."""
        if (known := self.refs.find(tensor)) is not None:
            self.refs.relay(known, storage_id(tensor))

    def snapshot(self, tensor: RefNode, real: torch.Tensor) -> RefNode:
        """The values that a tensor has now, for what happens after the graph. They are copied if they are written to later."""
        node = subclass_unwrapping.note(self.fx.call_method("detach", (self.node(tensor),)), self.asking[-1])
        node.meta["stack"] = self.refs.context.positions()
        detached = real.detach()
        subclass_unwrapping.of_class(node, type(detached))
        self._snapshots.append((node, detached, None if detached.is_inference() else detached._version, self.refs.mark))
        recomputable = constant_tensors.is_recomputable(self.refs, real)
        self.recomputable.note(node, real, False, recomputable)
        state = TensorState(node, None, tensor.state.dynamic, recomputable=recomputable)
        state.sizes, state.cuts, state.lies, state.copies = (
            tensor.state.sizes, tensor.state.cuts, tensor.state.lies, tensor.state.copies)
        return self.refs.create(detached, state)

    def _copy_snapshots(self) -> None:
        """Copies those tensors of `snapshot` that were written to afterwards."""
        for node, tensor, version, serial in self._snapshots:
            # In inference mode, and on shared arrays.
            unseen = version is None or self.mutations.mutates and self.arrays.tensors
            if unseen or tensor._version != version or self.refs.written_since(serial, storage_id(tensor)):
                with self.fx.inserting_after(node):
                    copy = subclass_unwrapping.note(self.fx.call_method("clone", (node,)), self.asking[-1])
                subclass_unwrapping.of_class(copy, type(tensor))
                node.replace_all_uses_with(copy, delete_user_cb=lambda user, copy=copy: user is not copy)  # type: ignore[misc]
        self._snapshots.clear()

    def expect(self, value: Value, held: bool | int, operation: Callable[..., Any], at_once: bool) -> None:
        """Adds an assumption on a tensor, a value computed from tensors, or its truth; `operation` checks it on a hit. at_once: in
        the midst of the graph, because the tensor dies with the block that has begun."""
        known = self.snapshot(value.shadow, value.real) if isinstance(value.shadow, RefNode) else value.shadow
        path = path_of_tensor(self, value.shadow) if type(held) is bool else None
        self.expectations.add(Expectation(known, held, operation, at_once, self.mutations.changes, path))

    def _guard_checks(self) -> None:
        """Once something was changed that cannot be undone, guards make the assumptions that they can make."""
        if not self.mutations.can_take_back():
            for check in self.expectations.take_guardable():
                require_truth(self, check.path, check.held)  # type: ignore[arg-type]

    def place_checks(self) -> None:
        """Checks the assumptions after the graph, or inside it, if it then changes something that cannot be undone."""
        mutations = self.mutations
        self._guard_checks()
        for check in self.expectations.checks:
            known, held, changed = check.known, check.held, check.changed
            revocable = mutations.can_take_back()
            if revocable and (changed or not check.at_once and mutations.kept_bytes <= MOST_BYTES):
                self.expectations.take_back()
            if revocable and not check.at_once and (changed or mutations.kept_bytes <= MOST_BYTES):
                self.refs.note_risk(Expr(check.operation, (known, Const(held))))
                continue
            if changed and not revocable:
                raise Break("failing-operation", "a check between a write to a tensor and a change that cannot be undone")
            if not isinstance(known, RefNode):
                raise Break("data-dependent", "Python code depends on a value that each call computes, before a write to a tensor")
            node = self.node(known)
            with self.fx.inserting_after(node):
                checking = self.fx.call_function(check.operation, (node, held))
            checking.meta.update(stack=node.meta["stack"], obstacle="checks what a tensor holds")
            mutations.leave_behind()

    def switch(self, function: Callable[..., Any], args: Sequence[Value], kwargs: dict[str, Value]) -> None:
        """Appends a call that sets a mode of torch or of the process."""
        self.switches.add(function)
        if function is not torch._C._set_grad_enabled:
            self.recomputable.end()
        if function in kernel_settings.GETTERS:
            *given, _ = args
            for each in args if function in kernel_settings.CUDNN else given:
                self.refs.depend(each.shadow, each.real)
            self.switched.add((kernel_settings.GETTERS[function], tuple(each.real for each in given)))
        elif function in transform_levels.HOOK_SWITCHES:
            self.switched |= {(getter, ()) for getter in transform_levels.HOOK_GETTERS}
        node = self.fx.create_node("call_function", function, tuple(self.argument(a.shadow, a.real) for a in args),
                                   {name: self.argument(v.shadow, v.real) for name, v in kwargs.items()})
        node.meta["stack"] = self.refs.context.positions()
        self._note_obstacle(node, ())

    def note_passed(self, real: object) -> None:
        """Notes that an autograd function of the graph is passed an object of the program's."""
        self.passed_objects.append(real)

    def note_before_call(self, state: Any) -> None:
        """Before a call: what its model will want to compare, by `before_call`."""
        self._before_call = state

    def note_called(self, operators: Sequence[str]) -> None:
        """The call has come to these operators, if anything was noted before it: it need not be part of the trace."""
        if self._before_call is not None:
            self._before_call.called = operators

    def before_call(self) -> Any:
        """What was noted before the call that has been made."""
        state, self._before_call = self._before_call, None
        return state

    def note_counted(self, tensor: RefNode, number: External, serial: int) -> None:
        """What a tensor holds until it is written to again. See scalar_tensors."""
        self.counted[tensor] = number, serial

    def add_module(self, module: torch.nn.Module) -> fx.Node:
        """A node for a module that the graph holds."""
        name = f"body_{len(self.modules)}"
        self.modules[name] = module
        return self.fx.get_attr(name)

    def begin_region(self, governor: Callable[..., Any], options: dict[str, Any], own: Sequence[fx.Node]) -> Region:
        """What is recorded until `end_region` will be called by `governor`, which is given `own`."""
        return Region(governor, options, self.effect(regions.begin, *own))

    def end_region(self, region: Region) -> None:
        region.end = self.effect(regions.end)
        self.regions.append(region)

    def _maker(self, tensors: Sequence[torch.Tensor]) -> Any:
        """What made the first of these tensors."""
        known = self.refs.find(tensors[0]) if tensors else None
        return None if known is None or known.state.node is None else known.state.node.target

    def _result(self, node: fx.Node, real: Any, dynamic: bool, known: bool = False,
                recomputable: bool = False) -> Shadow:
        """The shadow of a result. known: its values follow from constants; recomputable:
        they follow from constants and from numbers that tensors held at entry."""
        self.recomputable.note(node, real, known, recomputable)
        if is_a(real, torch.Tensor):
            pin_tensor_class(self.refs, type(real))
            subclass_unwrapping.of_class(node, type(real))
            with asking_nobody(type(real)):
                self.uses(device_of(real).type)
            return self._found(real) or self.refs.create(real, TensorState(
                node, None, dynamic and real.dim() > 0, constant=known, recomputable=recomputable))
        if is_handle(real):
            return self._found(real) or self.refs.create(real, HandleState(node, None))
        if is_a(real, (tuple, list)) and not is_a(real, torch.Size):
            lengths = len(real) == 2 and facts_of(node.target).name in constant_tensors.LENGTHS and not dynamic
            items = [self._result(
                self.fx.call_function(operator.getitem, (node, i)), item, dynamic, known or lengths and i == 1, recomputable)
                if contains_tensor(item) else self._constant(item, dynamic) for i, item in enumerate(real)]
            return self.refs.create(real, ListState(items)) if is_a(real, list) else Build(type(real), tuple(items))
        if is_a(real, dict):
            return self.refs.create(real, DictState({
                key: self._result(self.fx.call_function(operator.getitem, (node, key)), item, dynamic, known, recomputable)
                if contains_tensor(item) else self._constant(item, dynamic) for key, item in real.items()}, complete=True))
        return self._constant(real, dynamic)

    def _found(self, real: Any) -> RefNode | None:
        """The node of a tensor that is known already: an operation in place returned it."""
        found = self.refs.find(real)
        if found is not None and found.state.node is None:
            self.node(found)
        return found

    @staticmethod
    def _constant(real: Any, dynamic: bool) -> Shadow:
        if real is None or is_a(real, (torch.dtype, torch.device)) or (is_a(real, VALUES) and not dynamic):
            return Const(real)
        raise Break("data-dependent", f"a tensor operation returned a {type(real).__name__}")

    def finish(self, outputs: Iterable[RefNode]) -> fx.GraphModule:
        """The recorded graph, returning the tensors `outputs` as a tuple."""
        self.fx.output(tuple(self.node(t) for t in outputs))
        for node in reversed(self.fx.nodes):
            if node.target is getattr and node.args[1] == "grad_fn" and not node.users:
                self.fx.erase_node(node)        # the program asked whether there is one
        if not self.switches.isdisjoint(kernel_settings.CUDNN) and kernel_settings.settle(
                self.fx, self.devices, kernel_settings.are_restored(self.refs, self.switched)):
            self.mutations.leave_behind()
        for tensor in self.inputs.tensors:
            if self.mutations.changes and self.arrays.has_tensor(tensor):
                tensor.state.node.meta["obstacle"] = "takes the memory of an array, which may overlap with what is written to"
        self._copy_snapshots()
        classes = subclass_unwrapping.unwrap(self.fx, whole=not self.regions)
        gm = graph_module(outline(self.fx, self.regions, self.modules), self.fx, "CapturedGraph")
        gm.meta.update(devices=self.devices, classes=classes)
        return gm


def contains_tensor(real: Any) -> bool:
    """Whether a result of an operation holds a tensor."""
    if is_a(real, torch.Tensor):
        return True
    if is_a(real, (tuple, list)):
        return any(contains_tensor(item) for item in real)
    return is_a(real, dict) and any(contains_tensor(item) for item in real.values())


def is_of_tensors(real: Any) -> bool:
    """Whether a result of an operation holds nothing but tensors."""
    return real is None or is_a(real, torch.Tensor) or type(real) in LISTS and all(map(is_of_tensors, real))


def tensors_in(args: Iterable[Value], kwargs: dict[str, Value] | None = None) -> Iterable[torch.Tensor]:
    """The tensors among arguments, also inside tuples, lists and dicts, which may hold themselves, and of whose classes the program
    may have derived others: torch takes what they hold, not what these say that they hold."""
    stack = [a.real for a in args] + ([v.real for v in kwargs.values()] if kwargs else [])
    seen: set[int] = set()
    while stack:
        real = stack.pop()
        if is_a(real, torch.Tensor):
            yield real
        elif id(real) not in seen and (items := dict.values(real) if is_a(real, dict) else items_in_c(real)):
            seen.add(id(real))
            stack.extend(items)
