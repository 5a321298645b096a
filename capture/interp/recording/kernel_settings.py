"""Settings of the process that decide which kernels torch takes, and that a graph may set: those of attention, and those of cuDNN,
which operators on a processor do not look at."""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import fx

from capture.errors import Break
from capture.operators.facts import UNKNOWN, facts_of
from capture.operators.schemas import name_of
from capture.refgraph.entry_state import EntryState
from capture.refgraph.source import Computed, Literal
from capture.torch_versions import existing

Setting = tuple[Callable[..., Any], tuple[Any, ...]]        # its getter, and what that is given

# Setter -> getter. The last argument of a setter is the value; the others are what its getter is given.
ATTENTION: dict[Callable[..., Any], Callable[..., Any]] = {
    torch._C._set_sdp_use_flash: torch._C._get_flash_sdp_enabled,
    torch._C._set_sdp_use_math: torch._C._get_math_sdp_enabled,
    torch._C._set_sdp_use_mem_efficient: torch._C._get_mem_efficient_sdp_enabled,
    torch._C._set_sdp_use_cudnn: torch._C._get_cudnn_sdp_enabled,
    torch._C._set_sdp_use_overrideable: torch._C._get_overrideable_sdp_enabled,
    torch._C._set_sdp_priority_order: torch._C._get_sdp_priority_order}
# Those of cuDNN that `Modes` hold -> their names there.
IN_MODES: dict[Callable[..., Any], str] = {
    torch._C._get_cudnn_enabled: "cudnn_enabled", torch._C._get_cudnn_benchmark: "cudnn_benchmark",
    torch._C._get_cudnn_deterministic: "cudnn_deterministic"}
PRECISION = torch._C._get_fp32_precision_getter     # of a library's operators; where none is set, that of `GENERIC`
CUDNN: dict[Callable[..., Any], Callable[..., Any]] = {
    torch._C._set_cudnn_enabled: torch._C._get_cudnn_enabled,
    torch._C._set_cudnn_benchmark: torch._C._get_cudnn_benchmark,
    torch._C._set_cudnn_deterministic: torch._C._get_cudnn_deterministic,
    torch._C._set_cudnn_allow_tf32: torch._C._get_cudnn_allow_tf32,
    torch._C._set_fp32_precision_setter: PRECISION,
    **dict(zip(*(existing(torch._C, f"_{verb}_cudnn_depthwise_kernel") for verb in ("set", "get")), strict=True))}
if (limit := vars(type(torch.backends.cudnn))["benchmark_limit"]) is not None:     # where torch is built with cuDNN
    CUDNN[limit.setter] = limit.getter
GETTERS: dict[Callable[..., Any], Callable[..., Any]] = {**ATTENTION, **CUDNN}
RELATED = frozenset({PRECISION, torch._C._get_cudnn_allow_tf32})
GENERIC = (PRECISION, ("generic", "all"))
OF_CUDNN = frozenset(CUDNN.values())
OBSTACLE = "chooses kernels of cuDNN"


def set_by(node: fx.Node) -> Setting:
    """The setting that a node sets."""
    return GETTERS[node.target], node.args[:-1]         # type: ignore[index]


def refusal(setter: Callable[..., Any], args: Sequence[Any]) -> Break | None:
    """Why a setting cannot be made in a trace: products on a processor look at all precisions but those of CUDA's libraries."""
    if CUDNN.get(setter) is PRECISION and args[:1] != ["cuda"]:
        return Break("changing-global-state", f"{name_of(setter)}() of other libraries than CUDA's")
    return None


def ask(state: EntryState, settings: Collection[Setting], getter: Callable[..., Any], given: Sequence[Any]) -> bool:
    """Before a setting is asked: whether the graph has set it, so that it follows from what guards promise. Raises Break if the
    graph has set others alone that it may follow from."""
    if getter in RELATED and any(other in RELATED for other, _ in settings):
        if (getter, (*given,)) not in settings:
            raise Break("changing-global-state", f"{name_of(getter)}() is asked after a related setting was changed")
        if GENERIC not in settings:
            state.require(Computed(PRECISION, tuple(map(Literal, GENERIC[1]))), "VALUE", PRECISION(*GENERIC[1]))
    return (getter, (*given,)) in settings


def at_entry(state: EntryState, setting: Setting) -> Any:
    """What a setting of cuDNN was when the call began, if guards promise it, else None."""
    getter, given = setting
    if getter in IN_MODES:
        return getattr(state.requirements[None, "MODES"][2], IN_MODES[getter])
    known = state.requirements.get((Computed(getter, tuple(map(Literal, given))), "VALUE"))
    return None if known is None else known[2]


def are_restored(state: EntryState, settings: Iterable[Setting]) -> bool:
    """Whether those of these settings that are cuDNN's are what they were when the call began."""
    return all(at_entry(state, (getter, given)) == getter(*given) for getter, given in settings if getter in OF_CUDNN)


def settle(graph: fx.Graph, devices: Iterable[str], restored: bool) -> bool:
    """Removes the nodes that set something of cuDNN, if no operation of the graph looks at that and the graph leaves it as it was
    (`restored`). Otherwise these nodes say that they cannot be compiled. Returns whether any is left. devices: types of those that
    results lie on."""
    setting = [node for node in graph.nodes if node.target in CUDNN]
    unread = {*devices} <= {"cpu"} and all(_is_of_torch(node) for node in graph.nodes)
    for node in setting:
        if unread and restored:
            graph.erase_node(node)
        else:
            node.meta |= {"obstacle": OBSTACLE, "contained": unread}
    return bool(setting) and not (unread and restored)


def _is_of_torch(node: fx.Node) -> bool:
    """Whether a node runs code of torch alone."""
    if node.op not in ("call_function", "call_method"):
        return node.op != "get_attr"            # a graph within this one
    facts = facts_of(node.target)
    return facts is not UNKNOWN and facts.is_of_torch and not facts.is_of_program


def restoring(nodes: Iterable[fx.Node]) -> Callable[[], Callable[[], None]]:
    """A function to call before a graph with these nodes: it returns another one, which puts back the settings that the graph
    sets."""
    setters = dict.fromkeys((node.target, node.args[:-1]) for node in nodes if node.target in GETTERS)

    def note() -> Callable[[], None]:
        held = [(setter, given, GETTERS[setter](*given)) for setter, given in setters]

        def put_back() -> None:
            for setter, given, value in held:
                if GETTERS[setter](*given) != value:
                    setter(*given, value)
        return put_back
    return note
