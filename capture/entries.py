"""From a trace that has ended to a cache entry: checked and sealed, planned, compiled and guarded."""
from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from capture import _C, debug
from capture.backends import registry
from capture.backends.traceable import asks_for_gradients, assigns_data, begin_recording, sets_memory
from capture.code_names import argument_names
from capture.config import DEBUG_DIR, STRICT
from capture.errors import BackendError, warn
from capture.guards.collect import collect
from capture.history import BreakReport, Times
from capture.interp.breaks import continuations, suspended_generators
from capture.interp.breaks.suspended_generators import DormantGenerator
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.recording import kernel_settings, may_raise, rollback
from capture.interp.recording.fx_recorder import FxRecorder
from capture.operators.paused_autocast import SWITCHES
from capture.refgraph import mock, pycode
from capture.refgraph.aliasing import require_separateness
from capture.refgraph.dropped_references import losses
from capture.refgraph.graph import RefGraph
from capture.refgraph.growing_tensors import grown
from capture.refgraph.memory import as_subclass, is_overriding
from capture.refgraph.node import Shadow
from capture.refgraph.set_orders import require_orders
from capture.refgraph.verify import verify
from capture.unit import Trace, Unit

UNBALANCED = "leaves torch's modes other than it found them"


def install(unit: Unit, interp: Interpreter, result: Shadow, held: Iterable[Value], dormant: list[DormantGenerator],
            repeatable: bool, broken: BreakReport | None, times: Times) -> None:
    """Makes a cache entry of a trace: checks that the trace explains the heap, seals it, and plans the mock function.

    result: the value that the mock function returns. held: values that outlive the trace with it. dormant: generators that do.
    repeatable: the graph changes nothing. broken: why the trace ended before the call did. Raises Break if the trace cannot be
    replayed.
    """
    graph, recorder = interp.graph, interp.recorder
    verify(graph, continuations.composite([*held, *(part for generator in dormant for part in generator.record)]))
    told_apart = recorder.inputs.tensors if recorder.mutations.mutates else ()
    require_separateness(graph, [node for node in told_apart if not recorder.arrays.has_tensor(node)])
    require_orders(graph)
    recorder.place_checks()
    unit.shapes.grow(grown(graph.effects))
    graph.seal()
    with times.measure("mock"):
        numbers: tuple[Shadow, ...] = tuple(number.shadow for number in recorder.inputs.numbers)
        before = may_raise.before(recorder)
        plan = mock.plan(graph, result, recorder.inputs.tensors, numbers, may_raise.acted_before(recorder), before)
    insert(unit, interp, plan, repeatable, broken, times)
    suspended_generators.make_dormant(dormant)


def insert(unit: Unit, interp: Interpreter, plan: mock.MockPlan, repeatable: bool, broken: BreakReport | None,
           times: Times) -> None:
    """Makes a cache entry of a planned trace. `broken`: why it ended before the call did."""
    graph, recorder = interp.graph, interp.recorder
    operations = recorder.operations
    with times.measure("graph"):
        gm = recorder.finish(plan.outputs)
        if recorder.mutations.leaves_behind or recorder.silent:
            gm.meta["around"] = functools.partial(rollback.around, undone=recorder.mutations.leaves_behind, silent=recorder.silent)
            gm.forward = gm.meta["around"](gm)
        annotate(gm, graph, recorder, repeatable)
        compiled = called = None
        classes = gm.meta["classes"]
        if operations or plan.outputs:
            # A graph that leaves torch in other modes than it found sets them itself, each time. No compiled graph does, so
            # `keep_apart` divides it at these operations. Nor does one carry tangents.
            inputs = [*(node.real for node in recorder.inputs.tensors), *(value.real for value in recorder.inputs.numbers)]
            inputs = inputs if classes is None else classes.plain(inputs)
            balanced = is_balanced(graph) or registry.is_own(unit.backend) and keep_apart(gm, recorder)
            if not balanced:
                gm.meta["note"] = f"runs uncompiled: the call {UNBALANCED}"
            compilable = balanced and not entry_modes(graph).dual_level and are_inputs_alive(gm, inputs)
            with as_at_entry(graph, inputs):
                begun = compilable and begin_recording(gm)
                with torch.set_grad_enabled(gm.meta["modes"].grad):
                    compiled = compile_graph(unit, gm, inputs) if compilable else gm.forward
            called = rollback.with_gradients(compiled) if begun else compiled
            called = called if classes is None else classes.around(called)
    with times.measure("mock"):
        names = argument_names(unit.function.__code__)
        code = pycode.generate(plan, names, recorder.inputs.tensors, called, f"{unit.name}_{unit.captures}")
        code = debug.on_disk(code, unit.tree, unit.name, unit.captures)
        _C.step_through_mocks(bool(DEBUG_DIR.value))
        function = code.function
    with times.measure("guards"):
        again = repeatable or plan.before is not None and recorder.mutations.can_take_back()
        trace = Trace(gm, code, broken, graph.context.kind, operations, again, compiled, times, tuple(graph.derived))
        entry = unit.add_entry(collect(graph), code.lifted, function, trace, code.weakly_held(), losses(graph, plan.result))
    debug.captured(unit.name, entry)


def install_native(unit: Unit, interp: Interpreter, report: BreakReport, times: Times) -> None:
    """Makes a cache entry by which calls like this one run natively. Reports say why; after an internal fault the user is
    warned."""
    if report.reason.id == "internal-fault":
        warn(f"calls of {unit.name} like this one run natively, because capture itself failed. Please report it: {report.context}")
    with times.measure("guards"):
        unit.tree.insert(collect(interp.graph), [], None,
                         Trace(broken=report, kind=interp.graph.context.kind, times=times))


def entry_modes(graph: RefGraph) -> Any:
    """Torch's modes when the call began."""
    return graph.requirements[None, "MODES"][2]


def is_balanced(graph: RefGraph) -> bool:
    """Whether torch's modes, apart from the gradient mode, are what they were when the call began."""
    with as_at_entry(graph):
        return bool(_C.modes() == entry_modes(graph))


def keep_apart(gm: torch.fx.GraphModule, recorder: FxRecorder) -> bool:
    """Marks the operations by which a graph enters and leaves blocks of autocast, for it to be divided around these: the trace has
    ended within a block, or began in one. Returns whether they are all that leaves modes behind."""
    if not recorder.switches <= {*SWITCHES, *kernel_settings.CUDNN, torch._C._set_grad_enabled}:
        return False
    for node in gm.graph.nodes:
        if node.target in SWITCHES:
            node.meta |= {"obstacle": UNBALANCED, "contained": True}
    return True


@contextmanager
def as_at_entry(graph: RefGraph, inputs: Iterable[Any] = ()) -> Iterator[None]:
    """A context for our own work after a trace: the gradient mode of the call's beginning (a trace may end inside of `no_grad`),
    and `__torch_function__` as it was then, unless an input's class overrides it."""
    told = graph.overriding and entry_modes(graph).torch_function == 0 and not any(is_overriding(type(x)) for x in inputs)
    with torch.set_grad_enabled(entry_modes(graph).grad), torch._C._EnableTorchFunction() if told else nullcontext():
        yield


def are_inputs_alive(gm: torch.fx.GraphModule, inputs: list[Any]) -> bool:
    """Whether the inputs that a graph gets as plain tensors still exist."""
    classes = gm.meta["classes"]
    return classes is None or all(inputs[place] is not None for place in classes.given)


def annotate(gm: torch.fx.GraphModule, graph: RefGraph, recorder: FxRecorder, repeatable: bool) -> None:
    """Notes in the graph whether it can be run again, and what holds at entry, which the example inputs, read at exit, may not
    show any more: the modes, the properties of each input, and, where the graph writes to tensors, which inputs share memory."""
    gm.meta["repeatable"] = repeatable
    gm.meta["modes"] = entry_modes(graph)
    groups: dict[int, int] = {}
    placeholders = (node for node in gm.graph.nodes if node.op == "placeholder")
    given = () if gm.meta["classes"] is None else gm.meta["classes"].given
    for place, (placeholder, node) in enumerate(zip(placeholders, recorder.inputs.tensors)):         # those of numbers come after
        plain = as_subclass(node.real, torch.Tensor) if place in given and node.real is not None else None
        placeholder.meta["properties"] = graph.promised(node) if plain is None else _C.tensor_properties(plain)
        if recorder.mutations.mutates and node.state.storage is not None:
            storage, offset = node.state.storage
            placeholder.meta["storage"] = groups.setdefault(storage, len(groups)), offset


def compile_graph(unit: Unit, gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """The callable that the backend makes of the graph. If the backend fails, the graph runs uncompiled and the user is warned. So
    it does if the backend cannot take inputs that are numbers or tensors of any shape, or writes to attributes of tensors."""
    varying = {"number": "numbers that change", "any_shape": "tensors whose shapes change"}
    found = [what for mark, what in varying.items() if any(mark in node.meta for node in gm.graph.nodes)]
    if found and not registry.takes_numbers(unit.backend):
        gm.meta["note"] = f"runs uncompiled: {' and '.join(found)} from call to call are among its inputs, unknown to this backend"
        return _C.Switch(gm.forward)
    assigns = any(asks_for_gradients(node) or assigns_data(node) or sets_memory(node) for node in gm.graph.nodes)
    if assigns and not registry.takes_assignments(unit.backend):
        gm.meta["note"] = "runs uncompiled: it changes attributes of tensors or has them require gradients: backends may lose that"
        return _C.Switch(gm.forward)
    try:
        compiled = _C.with_modes_put_back(lambda: registry.compiled(unit.backend, gm, inputs))
        if not callable(compiled):
            raise TypeError(f"the backend returned a {type(compiled).__name__}, which is not callable")
        return compiled if isinstance(compiled, _C.Switch) else _C.Switch(compiled)     # which is timed now and then
    except Exception as error:
        text = f"the backend failed on a graph of {unit.name} ({type(error).__name__}: {error})"
        if STRICT:
            raise BackendError(text) from error
        warn(f"{text}; the graph runs uncompiled. Remedy: try backend=\"eager\".")
        return gm.forward
