"""Which tensors of an ATen graph lie in memory with their channels last.

oneDNN convolves images as they lie if the channels of a pixel are neighbours. Rows of pixels it must reorder first or, for a
convolution per channel or of few channels, leave to slower code. So inputs of such convolutions are stored channels last, and all
tensors that are computed from them follow by eager mode's own rules: an operator gives the strides of its result for the strides of
its arguments. Values do not depend on strides, except for operators that name places in memory, or fill memory in its order with
random numbers. These, like the graph's results, keep the strides of eager mode.
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from capture.backends.native.nodes import expected, fake_result, insert_call, same
from capture.operators.facts import facts_of

aten = torch.ops.aten

FEW_CHANNELS = 4        # of the input of a dense convolution, such as an image's


def use_channels_last(gm: fx.GraphModule, prefers: Callable[[fx.Node], bool], visible: int | None = None) -> int:
    """Lets convolutions that gain from it read tensors with their channels last, and recomputes the strides of the graph's fake
    tensors. prefers: which convolutions gain, such as `gains`. visible: how many of the results, the first ones, must lie as in
    eager mode, if not all. Returns the number of tensors that are copied for it, 0 if the graph is unchanged."""
    wanted = [node for node in gm.graph.nodes if is_onednn_convolution(node) and prefers(node)]
    if not wanted:
        return 0
    return _followed(gm, set(wanted), visible, {})


@contextlib.contextmanager
def strides_kept(gm: fx.GraphModule, visible: int) -> Iterator[None]:
    """Within, the graph may be given operations that lay out dimensions of size 1 otherwise: the first results, as many as are
    visible, have their strides of before in the end."""
    before = [node.meta["val"] for node in gm.graph.output_node().args[0][:visible]]
    yield
    end = gm.graph.output_node()
    results = list(end.args[0])
    for place, old in enumerate(before):
        if not same(results[place].meta["val"].stride(), old.stride()):
            results[place] = insert_call(end, aten.as_strided.default, results[place], tuple(old.shape), old.stride())
    end.args = (tuple(results),)
    gm.recompile()


def follow_layouts(gm: fx.GraphModule, arguments: Sequence[torch.Tensor]) -> None:
    """Recomputes the strides of the fake tensors of a graph whose first arguments lie in memory as `arguments` do."""
    _followed(gm, set(), None, dict(zip(gm.graph.find_nodes(op="placeholder"), arguments, strict=False)))


def _followed(gm: fx.GraphModule, chosen: set[fx.Node], visible: int | None, arguments: dict[fx.Node, torch.Tensor]) -> int:
    """Gives convolutions in `chosen` inputs whose channels are last, and placeholders the strides of `arguments`; all else follows.
    Returns the number of copies."""
    copies: dict[fx.Node, fx.Node] = {}
    before = {node: node.meta["val"] for node in gm.graph.nodes if "val" in node.meta}
    for node, value in arguments.items():
        node.meta["val"] = value
    for node in list(gm.graph.nodes):
        if node.op == "output":
            results = node.args[0]
            seen = len(results) if visible is None else visible
            node.args = ((*(_as_before(result, node, before) for result in results[:seen]), *results[seen:]),)
        elif node.op == "call_function":
            if node in chosen and not is_channels_last(node.args[0].meta["val"]):
                image = node.args[0]
                if image not in copies:
                    copies[image] = insert_call(node, aten.clone.default, image, memory_format=torch.channels_last)
                node.update_arg(0, copies[image])
            _follow(node, before)
    gm.recompile()
    return len(copies)


def gains(node: fx.Node) -> bool:
    """Whether a convolution gains more from channels last than a copy of its input costs: if it is grouped, or has few channels.

    Measured with oneDNN 3 on AVX-512, one thread: per channel 2 to 3 times as fast, a first layer on images up to 7 times. Dense
    convolutions are as fast either way while images are larger than filters. Where images are smaller, reordering the filters from
    their plain layout adds up to half of the time. All later layers take over the layout of the first one, so this pays only where
    images are larger than filters: a U-Net runs in 0.65 of eager's time with it and 0.77 without, a ResNet on small images in 0.98
    and 0.81.
    """
    return node.args[8] > 1 or node.args[0].meta["val"].shape[1] <= FEW_CHANNELS and images_outweigh_filters(node.graph)


def images_outweigh_filters(graph: fx.Graph) -> bool:
    """Whether the dense convolutions of a graph read more elements of images than of filters."""
    dense = [node for node in graph.nodes if is_onednn_convolution(node) and node.args[8] == 1]
    images, filters = (sum(expected(node.args[position].meta["val"].numel()) for node in dense) for position in (0, 1))
    return images > filters


def is_onednn_convolution(node: fx.Node) -> bool:
    """Whether a node is a convolution of images that oneDNN can compute."""
    if node.target is not aten.convolution.default:
        return False
    image = node.args[0].meta["val"]
    return (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled and image.device.type == "cpu"
            and image.dim() == 4 and image.dtype in (torch.float32, torch.bfloat16))


def is_channels_last(value: torch.Tensor) -> bool:
    return value.is_contiguous(memory_format=torch.channels_last)


def _follow(node: fx.Node, before: dict[fx.Node, Any]) -> None:
    """The strides of a node's results, now that those of its arguments may be others."""
    if not isinstance(node.target, OpOverload):         # an item of a tuple
        if node.meta.get("val") is not None:
            node.meta["val"] = fake_result(node)
        return
    if not any(_moved(argument, before) for argument in node.all_input_nodes):
        return
    if _is_bound(node.target):
        for argument in node.all_input_nodes:
            node.replace_input_with(argument, _as_before(argument, node, before))
        return
    try:
        new = fake_result(node)
    except (RuntimeError, ValueError):
        if not node.target.is_view:
            raise
        return      # with these strides it would be no view; as a value it is what it was
    node.meta["val"] = new


def _is_bound(op: OpOverload) -> bool:
    """Whether a result depends on where in memory the elements of the arguments lie, or is written there."""
    facts = facts_of(op)
    return facts.names_places or facts.is_random or op is aten.view.dtype or op._schema.is_mutable or op._opname.endswith("_like")


def _moved(node: fx.Node, before: dict[fx.Node, Any]) -> bool:
    old, new = before.get(node), node.meta.get("val")
    return old is not new and _strides(old) != _strides(new)


def _strides(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.stride()
    return list(map(_strides, value)) if isinstance(value, (tuple, list)) else None


def _as_before(value: Any, user: fx.Node, before: dict[fx.Node, Any]) -> Any:
    """A result or argument with its strides of before."""
    if not isinstance(value, fx.Node) or not isinstance(value.meta.get("val"), torch.Tensor) or not _moved(value, before):
        return value
    return insert_call(user, aten.clone.default, value, val=before[value])
