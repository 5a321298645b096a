"""Names of torch that only some of its versions have, and that capture can do without. All other private names of torch are
required. `docs/torch_names.md` lists them; `python -m tests.torch_names` says which of them the installed torch lacks."""
from __future__ import annotations

from typing import Any

import torch

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])

# The first version that has them; all later ones do, as far as they were tried (2.11 to 2.15).
SINCE: dict[str, tuple[int, int]] = {
    "torch._higher_order_ops.utils._hop_compile_and_call": (2, 12),
    **dict.fromkeys((f"torch._functorch.predispatch.{name}" for name in (
        "_jvp_increment_nesting", "_jvp_decrement_nesting", "_enter_dual_level", "_exit_dual_level", "_unwrap_for_grad",
        "_make_dual", "_unpack_dual")), (2, 13)),
}


def existing(owner: Any, names: str) -> list[Any]:
    """The attributes of a module or class of torch that exist, of those in `names`."""
    return [getattr(owner, name) for name in names.split() if hasattr(owner, name)]
