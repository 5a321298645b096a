"""Which of two callables of a graph is faster: timed on the program's own calls, which they serve in turn.

A training graph is timed forward and backward: the backward pass of a call lasts from the first of its outputs' autograd
nodes to the oldest node that it made, which the engine runs last. Nothing of the user's is hooked, only nodes of that call.
"""
from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch

from capture.backends.native.own_hooks import hook_before, hook_behind

WARM_UP = 2             # calls of each that are not counted: they allocate
COINS = 0x243F6A88      # 32 tosses: the fraction of pi
PATIENCE = 8            # how many times the calls needed are waited for until backward passes are there to compare


class Sample:
    """One timed call, in seconds. `backward` is None until the backward pass has ended, 0 when there is none to come. kind: only
    calls of one kind do the same work. synchronize: as `Trial` has it."""

    __slots__ = ("kind", "forward", "backward", "started", "synchronize")

    def __init__(self, kind: Hashable, forward: float, synchronize: Callable[[], object]) -> None:
        self.kind, self.forward, self.synchronize = kind, forward, synchronize
        self.backward: float | None = 0.0
        self.started = 0.0

    def begin(self, *_: Any) -> None:
        """Autograd calls this before the first node."""
        if not self.started:
            self.synchronize()
            self.started = time.perf_counter()

    def end(self, *_: Any) -> None:
        """Autograd calls this after the last node."""
        if self.backward is None and self.started:
            self.synchronize()
            self.backward = time.perf_counter() - self.started


class Trial:
    """Serves the calls of a graph by `plain` and by `compiled`, until `calls` of each are timed; then `decide(before, after)` is
    called once, with the seconds that they take.

    synchronize: waits for a device that computes asynchronously; untimed: whether that must not be now. kind_of: of which kind a
    call with these inputs is, see `Sample`. has_passes: whether backward passes are to come.
    """

    def __init__(self, plain: Callable[..., Any], compiled: Callable[..., Any], calls: int, decide: Callable[[float, float], None],
                 synchronize: Callable[[], object] = lambda: None, untimed: Callable[[], bool] = lambda: False,
                 kind_of: Callable[[Sequence[Any]], Hashable] = lambda inputs: None, has_passes: bool = True) -> None:
        self.functions = plain, compiled
        self.needed = calls
        self.decide = decide
        self.synchronize, self.untimed = synchronize, untimed
        self.samples: tuple[list[Sample], list[Sample]] = [], []
        self.kind_of, self.has_passes = kind_of, has_passes
        self.counts: dict[Hashable, tuple[int, int]] = {}       # by kind: which it is, and how many calls of it there were
        self.decided = False

    def __call__(self, *inputs: Any) -> Any:
        if self.untimed():
            return self.functions[0](*inputs)
        if not self.decided:
            self._judge()
        kind = self.kind_of(inputs)
        number, count = self.counts.get(kind, (len(self.counts), 0))
        self.counts[kind] = number, count + 1
        side = turn(2 * number + count)
        nodes = autograd_nodes(inputs) if self.has_passes and torch.is_grad_enabled() else None
        self.synchronize()
        start = time.perf_counter()
        outputs = self.functions[side](*inputs)
        self.synchronize()
        sample = Sample(kind, time.perf_counter() - start, self.synchronize)
        if nodes is not None:
            watch_backward((*outputs, *inputs), nodes, sample)
        self.samples[side].append(sample)
        return outputs

    def _judge(self) -> None:
        plain, compiled = (samples[WARM_UP:] for samples in self.samples)
        times = [[(s.kind, s.forward + s.backward) for s in samples if s.backward is not None] for samples in (plain, compiled)]
        if compared(times) < self.needed:
            if min(len(plain), len(compiled)) < PATIENCE * self.needed:
                return
            times = [[(s.kind, s.forward) for s in samples] for samples in (plain, compiled)]
        self.decided = True
        before, after = totals(times) if compared(times) >= self.needed else map(mean, times)
        self.decide(before, after)


Times = Sequence[Sequence[tuple[Hashable, float]]]      # for each side: kind and seconds


def compared(times: Times) -> int:
    """How many pairs of the same kind there are."""
    left, right = (Counter(kind for kind, _ in side) for side in times)
    return (left & right).total()


def mean(times: Sequence[tuple[Hashable, float]]) -> float:
    """What calls of any kind take, where chance has divided kinds between the sides."""
    return sum(seconds for _, seconds in times) / len(times)


def totals(times: Times) -> tuple[float, float]:
    """The time of all kinds of calls that both sides had: the least of each kind, since other work on the machine only adds to
    it."""
    least: tuple[dict[Hashable, float], dict[Hashable, float]] = {}, {}
    for side, found in zip(times, least, strict=True):
        for kind, seconds in side:
            found[kind] = min(seconds, found.get(kind, seconds))
    kinds = [kind for kind in least[0] if kind in least[1]]
    return sum(least[0][kind] for kind in kinds), sum(least[1][kind] for kind in kinds)


def turn(count: int) -> int:
    """Whose turn it is, 0 or 1: each once in two calls, in an order that no rhythm of the program's own agrees with."""
    return (count ^ COINS >> (count // 2 % 32)) & 1


def autograd_nodes(tensors: Iterable[Any]) -> set[Any]:
    """The autograd nodes that made the tensors."""
    return {t.grad_fn for t in tensors if isinstance(t, torch.Tensor) and t.grad_fn is not None}


def watch_backward(tensors: Sequence[Any], before: set[Any], sample: Sample) -> None:
    """Has `sample` timed by the backward pass through the nodes that lead from `tensors` back to the nodes `before`."""
    roots = autograd_nodes(tensors) - before
    if not roots:
        return
    oldest = None
    seen, stack = set(before), list(roots)
    while stack:
        node = stack.pop()
        if node is None or node in seen or type(node).__name__ == "AccumulateGrad":    # of a leaf: the user's own
            continue
        seen.add(node)
        if oldest is None or node._sequence_nr() < oldest._sequence_nr():
            oldest = node
        stack.extend(next_node for next_node, _ in node.next_functions)
    sample.backward = None
    for root in roots:
        hook_before(root, sample.begin)
    hook_behind(oldest, sample.end)
