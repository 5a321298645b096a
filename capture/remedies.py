"""What a user can do about a recapture, by the guard that failed."""
from __future__ import annotations

from capture.history import Cause

BATCH = "keep the shape the same: pad or bucket what varies, and drop an incomplete last batch (drop_last=True)"
SHAPE = "keep the shape the same: pad or bucket what varies; what grows, as a cache of keys and values, can have a fixed size"
TENSOR = {
    "shape": SHAPE,
    "stride": "pass the tensor in one memory layout, e.g. through .contiguous()",
    "dtype": "pass one dtype; convert before the call",
    "device": "pass tensors of one device",
    "requires_grad": "pass tensors that all do, or all do not, require gradients; detach() what needs none",
    "has_attributes": "set attributes of tensors before the first call, or keep what they say elsewhere",
    "is_leaf": "pass always a parameter, or always a computed tensor; detach() what needs no gradients",
}
PARAMETER = {
    "shape": "none needed if it happens once; else change sizes of parameters and buffers before the first call: each is captured",
    "stride": "none needed if it happens once; else keep the memory layout of parameters and buffers: each is captured",
    "dtype": "none needed if it happens once; else convert the module before the first call: each dtype is captured",
    "device": "none needed if it happens once; else move the module before the first call: each device is captured",
    "requires_grad": "none needed: with and without gradients each is captured once; or freeze parameters before the first call",
}
TABLES = "._parameters[", "._buffers[", "['params']["        # where modules and optimizers keep what is theirs
KINDS = {
    "VALUE": "pass what changes as a tensor, or let nothing but arithmetic on tensors depend on it: no branch, no shape, no index",
    "TRUTH": "none needed: each side of the branch is captured once; where many branches are combined, each combination is: take "
             "them out of the compiled function, or compute the choice with torch.where",
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
    if cause.kind != "TENSOR":
        return KINDS.get(cause.kind or "PRESENT", OTHER)
    what = cause.expected.partition(" ")[0]
    if what in PARAMETER and any(table in cause.subject for table in TABLES):
        return PARAMETER[what]
    if what == "shape" and is_of_batches(cause):
        return BATCH
    return TENSOR.get(what, KINDS["TYPE"])


def is_of_batches(cause: Cause) -> bool:
    """Whether two shapes differ in nothing but the number of rows."""
    before, after = (text.partition(" ")[2].strip("()").split(",") for text in (cause.expected, cause.found))
    return before[1:] == after[1:]
