"""What users can set of the native backend."""
from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from capture.errors import ArgumentError, described

OPTIONS = "background", "freezing"
INDUCTORS = "it is one of torch.compile's: leave it out, or choose backend='inductor'"


def is_inductors(option: Any) -> bool:
    """Whether torch.compile takes an option of this name with its backend inductor."""
    from torch._inductor import config  # which takes seconds, and is asked only before an error
    return option in ("guard_filter_fn", "use_aoti") or str(option).replace("-", "_") in config.get_config_copy()


@dataclass(frozen=True, slots=True)
class Options:
    """What users can set. background: run the graph uncompiled until its kernels are ready; else the first hit waits for them.
    freezing: without gradients, compute what depends on parameters and buffers alone once, and again when one of these changes."""

    background: bool = True
    freezing: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, Any] | None) -> Options:
        """Raises ArgumentError for an unknown option, or a value that is not True or False."""
        for name, value in (options or {}).items():
            if name not in OPTIONS:
                close = difflib.get_close_matches(str(name), OPTIONS, n=1)
                known = f"did you mean {close[0]!r}?" if close else "it has 'background' and 'freezing'"
                raise ArgumentError(f"backend 'native' has no option {name!r}; " + (INDUCTORS if is_inductors(name) else known))
            if not isinstance(value, bool):
                raise ArgumentError(f"option {name!r} must be True or False, got {described(value)}")
        return cls(**(options or {}))
