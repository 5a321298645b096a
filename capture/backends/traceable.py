"""Which recorded graphs a backend can trace anew, on tensors that are not the program's."""
from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch import fx

from capture import _C
from capture.operators import backward_pass
from capture.operators.properties import READERS, REPEATABLE_READERS
from capture.operators.schemas import name_of
from capture.operators.transform_levels import OF_TRANSFORMS, within_levels

# What reads a number out of a tensor besides methods (`t.float()` and its like convert tensors), and what asks for its shape.
BUILTIN_READERS = frozenset({int, float, bool, operator.index})
ASKING = "ask"


# Tensors that are not what lies in memory, element for element, by their dispatch keys.
UNFIT = {torch._C.DispatchKey.Sparse: "is sparse", torch._C.DispatchKey.SparseCsr: "is sparse",
         torch._C.DispatchKey.Quantized: "is quantised", torch._C.DispatchKey.NestedTensor: "is nested",
         torch._C.DispatchKey.Conjugate: "is a conjugate view", torch._C.DispatchKey.Negative: "is a negative view",
         torch._C.DispatchKey.ZeroTensor: "is zeros without memory"}


def unfit(keys: torch._C.DispatchKeySet, has_strides: bool) -> str | None:
    """What keeps a tensor with these keys from being an input of compiled code, or None."""
    found = next((text for key, text in UNFIT.items() if keys.has(key)), None)
    return found or (None if has_strides else "has no strides")


def assigns_in_sight(node: fx.Node) -> bool:
    """Whether tracing sees what an assignment does: to whether a tensor of the graph's own requires gradients."""
    target, name = node.args[:2]
    return name == "requires_grad" and isinstance(target, fx.Node) and target.op != "placeholder"


def assigns_data(node: fx.Node) -> bool:
    """Whether a node gives an input of the graph other memory: `x.data = y`."""
    return node.target is setattr and node.args[1] == "data" and node.args[0].op == "placeholder"


def sets_memory(node: fx.Node) -> bool:
    """Whether a node gives a tensor other memory as an operation: `x.set_(y)`."""
    return node.op in ("call_function", "call_method") and name_of(node.target) == "set_"


def runs_backward(node: fx.Node) -> bool:
    """Whether a node runs a backward pass, or drops the gradient of an input before one."""
    return node.target is backward_pass.backward or node.target is setattr and node.args[1:] == ("grad", None) and (
        node.args[0].op == "placeholder")


def runs_engine(node: fx.Node) -> bool:
    """Whether a node runs autograd's engine: for a backward pass (`runs_backward`), or for gradients as results."""
    return runs_backward(node) or node.target is torch.autograd.grad


def makes_leaf(node: fx.Node) -> bool:
    """Whether a node has a tensor of the graph's own require gradients: `(x * 2).requires_grad_()`."""
    if node.target is setattr:
        return assigns_in_sight(node) and node.args[2] is True
    if node.op not in ("call_function", "call_method") or name_of(node.target) != "requires_grad_" or node.kwargs:
        return False
    tensor, *value = node.args
    return isinstance(tensor, fx.Node) and tensor.op != "placeholder" and value in ([], [True])


def cuts_cleanly(node: fx.Node) -> bool:
    """Whether a graph may be divided around a node, though it changes more of tensors than their values."""
    return assigns_data(node) or runs_engine(node) or makes_leaf(node)


def asks_for_gradients(node: fx.Node) -> bool:
    """Whether a node assigns to an attribute of a tensor, or may make one of the graph's own require gradients: in no other way can
    one come to."""
    return (node.target is setattr and not assigns_data(node) and not runs_backward(node)
            or name_of(node.target) in ("requires_grad_", "make_parameter")
            or bool(node.kwargs.get("requires_grad")))


def reads_number(node: fx.Node) -> bool:
    """Whether a node reads what a tensor holds, or looks at it."""
    if node.op == "call_function" and node.target in BUILTIN_READERS:
        return True
    name = name_of(node.target)
    return node.op in ("call_function", "call_method") and (name in REPEATABLE_READERS or name == ASKING)


def obstacle(node: fx.Node) -> str | None:
    """What a node does that cannot be traced, or None. The tensors traced have no gradients, and no values."""
    if "obstacle" in node.meta:
        return str(node.meta["obstacle"])
    if node.target in (backward_pass.backward, torch.autograd.grad):
        return "runs the backward pass"
    if node.op == "call_function" and node.target in OF_TRANSFORMS:
        return "calls a transform of torch.func"
    if node.target is setattr and not assigns_in_sight(node):
        return f"assigns the attribute {node.args[1]!r} of a tensor"
    if node.target is getattr and node.args[1] == "grad_fn":
        return "looks at a node of autograd"
    if node.target is getattr and node.args[1] in ("grad", "_grad"):
        return "reads the gradient of a tensor"
    name = name_of(node.target)
    called = node.op in ("call_function", "call_method")
    if name == "make_parameter":
        return "makes a parameter"
    if name == "retain_grad":
        return "has a tensor retain its gradient"
    if node.op == "call_function" and node.target in BUILTIN_READERS or called and (name in READERS or name == ASKING):
        return "calculates with a number that was read out of a tensor"
    return None


def nodes_to_write_out(graph: fx.Graph) -> frozenset[fx.Node]:
    """Nodes of a graph with obstacles that tracing for the native backend writes out (`aot.transforms`): those of transforms of
    torch.func that begin and end in the graph, and gradients as results."""
    return frozenset((*(node for node in within_levels(graph) if node.target in OF_TRANSFORMS),
                      *graph.find_nodes(op="call_function", target=torch.autograd.grad)))


def autograd_function(node: fx.Node) -> type | None:
    """The autograd function of the program's that a node calls, or None."""
    return getattr(node.target, "autograd_function", None)


def program_code(node: fx.Node) -> str | None:
    """Which code of the program's, known to its own process alone, a node calls, or None: there is none where it is recorded."""
    cls = autograd_function(node) if getattr(node.target, "passes", None) is None else None
    return None if cls is None else f"calls the autograd function {cls.__name__}, which is Python code of the program's"


def mode_switch(node: fx.Node) -> str | None:
    """Which mode of torch's a node switches that no trace can switch in its midst, or None."""
    return "switches the inference mode" if node.target is torch.autograd.grad_mode._enter_inference_mode else None


def result_check(node: fx.Node) -> str | None:
    """Which check of results that have real data a node makes, or None: those of a trace would not pass it, and code compiled from
    the trace would not have it."""
    return "checks the results of an autograd function" if getattr(node.target, "checks_results", False) else None


def begin_recording(gm: fx.GraphModule) -> bool:
    """Whether a graph that begins without gradients turns them on for some of its operations. It then turns them off itself, to
    begin with, and is to be called with gradients: else it would be traced for inference."""
    recording = gm.meta["modes"].grad
    nodes = [] if recording else list(gm.graph.nodes)
    for node in nodes:
        if node.target is torch._C._set_grad_enabled:
            recording = node.args[0]
        elif recording and node.op in ("call_function", "call_method", "call_module"):
            break
    else:
        return False
    with gm.graph.inserting_before(next(node for node in nodes if node.op != "placeholder")):
        gm.graph.call_function(torch._C._set_grad_enabled, (False,))
    gm.recompile()
    with torch.enable_grad():
        gm.meta["modes"] = _C.modes()
    return True


def find_obstacle(gm: fx.GraphModule) -> str | None:
    """What a graph does, or one within it, that torch cannot trace, or None."""
    return next(filter(None, (obstacle(node) or mode_switch(node) or result_check(node) for node in nodes_of(gm))), None)


def nodes_of(gm: fx.GraphModule) -> Iterator[fx.Node]:
    """The nodes of a graph and of those within it."""
    return (node for module in gm.modules() if isinstance(module, fx.GraphModule) for node in module.graph.nodes)
