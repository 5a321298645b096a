"""What a user can do about a recapture, by the guard that failed."""
from __future__ import annotations

from capture.history import Cause

TENSOR = {
    "shape": "keep the shape the same: pad or bucket what varies, and drop an incomplete last batch (drop_last=True)",
    "stride": "pass the tensor in one memory layout, e.g. through .contiguous()",
    "dtype": "pass one dtype; convert before the call",
    "device": "pass tensors of one device",
    "requires_grad": "pass tensors that all do, or all do not, require gradients; detach() what needs none",
    "has_attributes": "set attributes of tensors before the first call, or keep what they say elsewhere",
    "is_leaf": "pass always a parameter, or always a computed tensor; detach() what needs no gradients",
}
KINDS = {
    "VALUE": "pass what changes as a tensor, or let nothing but arithmetic on tensors depend on it: no branch, no shape, no index",
    "TRUTH": "each side of the branch is captured once; to have one graph for both, compute the choice with torch.where",
    "TYPE": "pass objects of one type; each type is captured once",
    "ID": "make the object once, outside, and pass the same one each time; functions too: define them outside of the loop",
    "LENGTH": "keep the number of items the same; each length is captured once",
    "KEYS": "keep the same keys in the same order; each set of keys is captured once",
    "PRESENT": "set the key or attribute before the first call, to None if need be",
    "ABSENT": "set the key or attribute before the first call, to None if need be",
    "CONTENT": "keep the members of the set the same, or make it outside",
    "MODES": "call it under the same modes of torch (gradients, autocast, default dtype …); each combination is captured once",
    "ALIAS": "pass the same object in both places each time, or never",
    "DISTINCT": "pass the same object in both places each time, or never",
    "STORAGE": "pass tensors that share memory as they did, or clone() them",
}
OTHER = "do not change it between calls, or change it before the first one"


def remedy(cause: Cause) -> str:
    """One sentence for one cause of a recapture."""
    if cause.kind == "TENSOR":
        return TENSOR.get(cause.expected.partition(" ")[0], KINDS["TYPE"])
    return KINDS.get(cause.kind or "PRESENT", OTHER)
