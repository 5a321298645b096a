"""Pictures of graphs: a small layered layout, after Sugiyama, drawn as SVG.

Every node stands one layer below the lowest of its inputs; an edge that spans several layers passes through a slot in each,
so that it goes round what is there. Slots are ordered by the mean position of their neighbours, down and up, a few times.
"""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from capture.reports.source import short

if TYPE_CHECKING:
    from capture.reports.tree import Graph, Node

MOST = 200                              # operations that are drawn
SWEEPS = 6
HEIGHT, DOWN, ACROSS = 34, 30, 18       # of a box; gaps between layers, and between boxes
CHARACTER, PADDING = 7.2, 22            # widths, in pixels
LONGEST = 30                            # characters of a label
STATE = re.compile(r"\._(?:parameters|buffers)\['([^']*)'\]$|\.(weight|bias)$")     # inputs that are a module's own tensors


@dataclass(slots=True)
class Slot:
    """A box, or the place where an edge passes a layer (`node` is None). `x`: its middle."""

    node: Node | None
    width: float
    above: list[Slot]
    below: list[Slot]
    layer: int = 0
    position: float = 0.0
    x: float = 0.0

    @property
    def y(self) -> float:
        """Its upper edge."""
        return 8 + self.layer * (HEIGHT + DOWN)


def picture(graph: Graph) -> Markup:
    """A graph as an SVG element. Parameters and buffers are named in the titles of what uses them, and not drawn."""
    nodes, state = drawn(graph.nodes)
    layers = ordered(layered(nodes))
    width = place(layers)
    height = 16 + len(layers) * (HEIGHT + DOWN) - DOWN
    slots = [slot for layer in layers for slot in layer]
    parts = [f'<svg width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" '
             f'role="img" aria-label="graph of {len(nodes)} nodes">']
    parts += [edge(upper, lower) for upper in slots for lower in upper.below]
    parts += [box(slot, state) for slot in slots if slot.node is not None]
    return Markup("".join((*parts, "</svg>")))


def drawn(nodes: Sequence[Node]) -> tuple[list[Node], dict[str, str]]:
    """The nodes that are drawn, and the names of the module's own tensors among the others, by node."""
    state = {node.name: node.label for node in nodes if node.kind == "input" and STATE.search(node.label)}
    operations = [node for node in nodes if node.kind == "operation"][:MOST]
    used = {name for node in operations for name in node.inputs}
    kept = {node.name for node in operations}
    return [node for node in nodes if node.name not in state and (
        node.name in kept or node.kind == "input" and node.name in used or
        node.kind == "output" and any(name in kept for name in node.inputs))], state


def layered(nodes: Sequence[Node]) -> list[list[Slot]]:
    """Slots by layer; `nodes` are in the order of execution."""
    slots: dict[str, Slot] = {}
    layers: list[list[Slot]] = []

    def put(slot: Slot, layer: int) -> Slot:
        while len(layers) <= layer:
            layers.append([])
        slot.layer = layer
        layers[layer].append(slot)
        return slot
    lowest = lowest_layers(nodes)
    for node in nodes:
        slot = slots[node.name] = put(Slot(node, len(shown(node.label)) * CHARACTER + PADDING, [], []), lowest[node.name])
        for name in dict.fromkeys(node.inputs):
            upper = slots.get(name)
            if upper is None:
                continue
            for layer in range(upper.layer + 1, slot.layer):
                passage = next((s for s in upper.below if s.node is None), None) or put(Slot(None, 6, [upper], []), layer)
                if passage not in upper.below:
                    upper.below.append(passage)
                upper = passage
            upper.below.append(slot)
            slot.above.append(upper)
    return layers


def lowest_layers(nodes: Sequence[Node]) -> dict[str, int]:
    """The layer of each node: one below its inputs. An input of the graph stands right above the first that uses it."""
    layers: dict[str, int] = {}
    for node in nodes:
        layers[node.name] = max((layers[name] + 1 for name in node.inputs if name in layers), default=0)
    for node in reversed(nodes):
        if node.kind == "input":
            layers[node.name] = min((layers[user.name] - 1 for user in nodes if node.name in user.inputs), default=0)
    return layers


def ordered(layers: list[list[Slot]]) -> list[list[Slot]]:
    """The layers, each in an order with few crossings."""
    for layer in layers:
        number(layer)
    for sweep in range(SWEEPS):
        downwards = sweep % 2 == 0
        for layer in layers if downwards else reversed(layers):
            def middle(slot: Slot, downwards: bool = downwards) -> float:
                others = slot.above if downwards else slot.below
                return sum(o.position for o in others) / len(others) if others else slot.position
            layer.sort(key=middle)
            number(layer)
    return layers


def number(layer: list[Slot]) -> None:
    """Positions from the middle of the layer outwards, so that layers of different sizes can be compared."""
    for index, slot in enumerate(layer):
        slot.position = index - (len(layer) - 1) / 2


def place(layers: list[list[Slot]]) -> float:
    """Sets `x` of all slots, each layer centred; returns the width of the picture."""
    widths = [sum(slot.width + ACROSS for slot in layer) - ACROSS for layer in layers]
    whole = max(widths, default=0) + 16
    for layer, width in zip(layers, widths):
        left = (whole - width) / 2
        for slot in layer:
            slot.x = left + slot.width / 2
            left += slot.width + ACROSS
    return whole


def edge(upper: Slot, lower: Slot) -> str:
    """A curve from the lower side of one slot to the upper side of another. A passage is crossed straight down."""
    y0 = upper.y + HEIGHT
    y1, bend = lower.y, DOWN * 0.6
    through = f"M{upper.x:.1f},{upper.y:.1f}V{y0:.1f}" if upper.node is None else f"M{upper.x:.1f},{y0:.1f}"
    return f'<path class="edge" d="{through}C{upper.x:.1f},{y0 + bend:.1f} {lower.x:.1f},{y1 - bend:.1f} {lower.x:.1f},{y1:.1f}"/>'


def box(slot: Slot, state: Mapping[str, str]) -> str:
    """A node with its label; the title tells its name, the user's line, and the module's own tensors that it uses."""
    node = slot.node
    assert node is not None
    where = [f"{short(node.place.file)}:{node.place.line}", node.place.text] if node.place is not None else []
    title = [node.name, *where, *(state[i] for i in node.inputs if i in state)]
    return (f'<g class="node {node.kind}"><title>{escape(chr(10).join(title))}</title>'
            f'<rect x="{slot.x - slot.width / 2:.1f}" y="{slot.y:.1f}" width="{slot.width:.1f}" height="{HEIGHT}" rx="7"/>'
            f'<text x="{slot.x:.1f}" y="{slot.y + HEIGHT / 2 + 4:.1f}">{escape(shown(node.label))}</text></g>')


def shown(label: str) -> str:
    """A label, cut at the front where it is long: the end of a path tells most."""
    return label if len(label) <= LONGEST else "…" + label[1 - LONGEST:]
