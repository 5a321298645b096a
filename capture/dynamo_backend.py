"""`torch.compile(model, backend="capture")`: the graphs that TorchDynamo captures get our kernels.

For programs that have a switch for torch.compile and none for us. Dynamo's graph is a function like any other: it is captured,
guarded and compiled as such, so that nothing is believed of its inputs that Dynamo does not guard (overlap, for one).
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import CompileContext
from torch._ops import HigherOrderOperator
from torch.fx._lazy_graph_module import _LazyGraphModule

from capture import api


def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None,
                  options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """One graph of Dynamo's, compiled by our native backend. `mode` and `options` are those of `capture.compile`.

    Sizes that Dynamo found to change are inputs of its graph (`torch.SymInt`): one capture then holds for all sizes.
    Reports call it `torch.compile [0/0]`, by Dynamo's numbers. Raises ArgumentError for an unknown mode or option.
    """
    _LazyGraphModule.force_recompile(gm)        # its `forward` is else a method that writes `forward` first
    for operator in {node.target for module in gm.modules() if isinstance(module, fx.GraphModule) for node in module.graph.nodes}:
        if isinstance(operator, HigherOrderOperator):
            getattr(torch.ops.higher_order, operator.name())    # the first look-up changes the namespace: a call would not hit
    changing = any(isinstance(value, int | torch.SymInt) for value in example_inputs)
    return api.compile(gm.forward, backend="native", mode=mode, options=options, dynamic=changing or None,
                       name=f"torch.compile [{CompileContext.current_compile_id()}]")
