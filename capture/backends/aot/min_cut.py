"""The cheapest way to cut a flow network in two (Dinic, "Algorithm for solution of a problem of maximum flow in networks with
power estimation", 1970)."""
from __future__ import annotations

import math
from collections import deque

SOURCE, SINK = 0, 1


class Network:
    """A directed graph with a capacity on each edge. Vertices are numbers: SOURCE, SINK, and what `vertex` returns."""

    def __init__(self) -> None:
        self._leaving: list[list[int]] = [[], []]       # the edges of each vertex, those against the flow among them
        self._heads: list[int] = []                     # of edges: edge 2n and 2n + 1 are one, and the way back
        self._residual: list[float] = []                # what each edge still lets pass

    def vertex(self) -> int:
        self._leaving.append([])
        return len(self._leaving) - 1

    def edge(self, tail: int, head: int, capacity: float) -> None:
        """capacity: math.inf for an edge that is not cut."""
        if tail in (head, SINK) or head == SOURCE:
            return          # no cut has it
        for start, end, residual in ((tail, head, capacity), (head, tail, 0)):
            self._leaving[start].append(len(self._heads))
            self._heads.append(end)
            self._residual.append(residual)

    def sink_side(self) -> set[int]:
        """The vertices on the sink's side of the cheapest cut; if there are several, of that with the fewest there. Raises
        ValueError if edges that are not cut lead from the source to the sink."""
        while True:
            levels = self._levels()
            if levels[SOURCE] < 0:
                return {vertex for vertex, level in enumerate(levels) if level >= 0}
            self._push(levels)

    def _levels(self) -> list[int]:
        """How many edges that are not full lead from each vertex to the sink; -1 where there is no path."""
        levels = [-1] * len(self._leaving)
        levels[SINK] = 0
        waiting = deque([SINK])
        heads, residual = self._heads, self._residual
        while waiting:
            vertex = waiting.popleft()
            for edge in self._leaving[vertex]:
                tail = heads[edge]
                if residual[edge ^ 1] and levels[tail] < 0:
                    levels[tail] = levels[vertex] + 1
                    waiting.append(tail)
        return levels

    def _push(self, levels: list[int]) -> None:
        """Fills all shortest paths to the sink."""
        heads, residual, leaving = self._heads, self._residual, self._leaving
        untried = [0] * len(leaving)        # the first edge of each vertex that may still lead to the sink
        path: list[int] = []
        vertex = SOURCE
        while True:
            if vertex == SINK:
                flow = min(residual[edge] for edge in path)
                if flow == math.inf:
                    raise ValueError("the source and the sink cannot be cut apart")
                for edge in path:
                    residual[edge] -= flow
                    residual[edge ^ 1] += flow
                full = next(place for place, edge in enumerate(path) if not residual[edge])
                vertex = heads[path[full] ^ 1]
                del path[full:]
            edges = leaving[vertex]
            while untried[vertex] < len(edges):
                edge = edges[untried[vertex]]
                if residual[edge] and levels[heads[edge]] == levels[vertex] - 1:
                    path.append(edge)
                    vertex = heads[edge]
                    break
                untried[vertex] += 1
            else:
                if not path:
                    return
                vertex = heads[path.pop() ^ 1]
                untried[vertex] += 1
