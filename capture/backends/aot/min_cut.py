"""The cheapest way to cut a flow network in two (Dinic, "Algorithm for solution of a problem of maximum flow in networks with power
estimation", 1970)."""
from __future__ import annotations

import math
from collections import deque

SOURCE, SINK = 0, 1


class Network:
    """A directed graph whose edges let so much flow pass. Vertices are numbers: SOURCE, SINK, and what `vertex` returns."""

    def __init__(self) -> None:
        self._leaving: list[list[int]] = [[], []]       # the edges of each vertex, those against the flow among them
        self._heads: list[int] = []                     # of edges: edge 2n and 2n + 1 are one, and the way back
        self._room: list[float] = []                    # what each edge still lets pass

    def vertex(self) -> int:
        self._leaving.append([])
        return len(self._leaving) - 1

    def edge(self, tail: int, head: int, capacity: float) -> None:
        """capacity: math.inf for an edge that is not cut."""
        if tail not in (head, SINK) and head != SOURCE:           # else no cut has it
            self._both_ways(tail, head, capacity)

    def _both_ways(self, tail: int, head: int, capacity: float) -> None:
        for start, end, room in ((tail, head, capacity), (head, tail, 0)):
            self._leaving[start].append(len(self._heads))
            self._heads.append(end)
            self._room.append(room)

    def sink_side(self) -> set[int]:
        """The vertices on the sink's side of the cheapest cut; of several, of that with the fewest. Raises ValueError if edges that
        are not cut lead from the source to the sink."""
        while True:
            levels = self._levels()
            if levels[SOURCE] < 0:
                return {vertex for vertex, level in enumerate(levels) if level >= 0}
            self._push(levels)

    def _levels(self) -> list[int]:
        """How many edges with room lead from each vertex to the sink; -1 where there is no way."""
        levels = [-1] * len(self._leaving)
        levels[SINK] = 0
        waiting = deque([SINK])
        heads, room = self._heads, self._room
        while waiting:
            vertex = waiting.popleft()
            for edge in self._leaving[vertex]:
                tail = heads[edge]
                if room[edge ^ 1] and levels[tail] < 0:
                    levels[tail] = levels[vertex] + 1
                    waiting.append(tail)
        return levels

    def _push(self, levels: list[int]) -> None:
        """Fills all shortest ways to the sink."""
        heads, room, leaving = self._heads, self._room, self._leaving
        untried = [0] * len(leaving)        # the first edge of each vertex that may still lead to the sink
        way: list[int] = []
        vertex = SOURCE
        while True:
            if vertex == SINK:
                flow = min(room[edge] for edge in way)
                if flow == math.inf:
                    raise ValueError("the source and the sink cannot be cut apart")
                for edge in way:
                    room[edge] -= flow
                    room[edge ^ 1] += flow
                full = next(place for place, edge in enumerate(way) if not room[edge])
                vertex = heads[way[full] ^ 1]
                del way[full:]
            edges = leaving[vertex]
            while untried[vertex] < len(edges):
                edge = edges[untried[vertex]]
                if room[edge] and levels[heads[edge]] == levels[vertex] - 1:
                    way.append(edge)
                    vertex = heads[edge]
                    break
                untried[vertex] += 1
            else:
                if not way:
                    return
                vertex = heads[way.pop() ^ 1]
                untried[vertex] += 1
