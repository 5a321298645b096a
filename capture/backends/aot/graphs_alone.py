"""What AOTAutograd does besides making graphs, and nobody needs here: a fifth of its work on a small graph. It is left out."""
from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

from torch._functorch import aot_autograd

INSTEAD = {
    # clears the states of generators that are inputs of graphs, of which there are none here, by operations that are traced
    "PhiloxStateTracker": contextlib.nullcontext,
    # writes each graph down as text for a log
    "AOTConfig": functools.partial(aot_autograd.AOTConfig, enable_log=False),
}


@contextlib.contextmanager
def graphs_alone() -> Iterator[None]:
    """Within `undecomposed`, whose lock keeps other traces away: leaves it out."""
    names = vars(aot_autograd)
    before = {name: names[name] for name in INSTEAD if name in names}       # a torch without one does not do what it stands for
    names.update((name, INSTEAD[name]) for name in before)
    try:
        yield
    finally:
        names.update(before)
