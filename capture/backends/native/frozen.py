"""The callable of a graph whose prologue was cut off (`freezing.py`)."""
from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx

from capture import _C
from capture.backends.native.runtime import picker


class FrozenCallable:
    """Runs `rest` on the inputs `kept` and the frozen values, which `prologue` computes from the inputs `frozen`.

    They are computed in the first call, and again if one of these inputs is another tensor than in the call before, has its
    elements elsewhere, or another version. Versions count all writes by torch's operators, also through views and by optimizers,
    but not those through `.data`, `detach().numpy()` or another process; these are noticed for vectors only, whose values are
    compared.
    """

    def __init__(self, prologue: fx.GraphModule, frozen: Sequence[int], kept: Sequence[int],
                 rest: Callable[..., tuple[Tensor, ...]]) -> None:
        self.prologue, self.rest = prologue, rest
        self.frozen, self.pick, self.kept = tuple(frozen), picker(frozen), picker(kept)
        self.runs = 0           # of the prologue
        self.state: tuple[_C.Snapshot, Sequence[Tensor]] | None = None

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        state = self.state
        if state is None or not state[0].matches(inputs):
            snapshot = _C.Snapshot(self.frozen, inputs)     # first: a write by another thread meanwhile is noticed later
            state = self.state = snapshot, self.frozen_values(inputs)
            self.runs += 1
        return self.rest(*self.kept(inputs), *state[1])

    def frozen_values(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """Runs the prologue, below autograd and autocast, as the rest of the graph is run."""
        with torch.no_grad(), torch._C._DisableAutocast(), torch._C._AutoDispatchBelowADInplaceOrView():
            return self.prologue(*self.pick(inputs))
