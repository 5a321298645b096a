"""What happens to calls that no entry fits, under CAPTURE_DISABLE and `torch.compiler.set_stance`. (Whether compiled code runs at
all is decided before the look-up: csrc/frames/stance.h.)"""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from capture.config import DISABLE
from capture.errors import RecaptureError


def lets_capture(name: str, mismatches: Callable[[], Iterable[object]]) -> bool:
    """Whether a call of the compiled function `name` that no entry fits may be captured; if not, it runs natively.

    mismatches: why not each entry. Raises RecaptureError where the program wants to be told of such calls.
    """
    if DISABLE:
        return False
    owner = sys.modules.get("torch._dynamo.eval_frame")     # imported when the program first sets a stance
    stance = getattr(getattr(owner, "_stance", None), "stance", "default")
    if stance == "fail_on_recompile":
        causes = "; ".join(map(str, mismatches())) or "nothing was captured yet"
        raise RecaptureError(f"a call of {name} would be captured under torch.compiler.set_stance('fail_on_recompile'): {causes}. "
                             f"Remedy: make such a call before you set the stance, or set another stance.")
    return bool(stance != "eager_on_recompile")
