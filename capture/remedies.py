"""What a user can do about a recapture, by the guard that failed."""
from __future__ import annotations

from capture.history import Cause
from capture.refgraph.requirements import Kind

FREE = ("none needed if it happens once: a size that has changed is captured for all sizes (with dynamic=True, from the first "
        "call on). If it happens again, the program itself depends on the size: ")
BATCH = FREE + "pad or bucket what varies, and drop an incomplete last batch (drop_last=True)"
SHAPE = FREE + "pad or bucket what varies; give a tensor that grows (a cache of keys and values) a fixed size"
TENSOR = {
    "shape": SHAPE,
    "stride": "pass the tensor in one memory layout, e.g. through .contiguous()",
    "dtype": "pass one dtype; convert before the call",
    "device": "pass tensors of one device",
    "requires_grad": "pass tensors that all require gradients, or all do not; detach() those that need none",
    "has_attributes": "set attributes of tensors before the first call, or keep that information somewhere else",
    "base_grad": "pass a tensor that is no view: detach() it before requires_grad_(), or before it is passed",
    "is_leaf": "always pass a parameter, or always a computed tensor; detach() tensors that need no gradients",
}
PARAMETER = {
    "shape": "none needed if it happens once; else change sizes of parameters and buffers before the first call: each is captured",
    "stride": "none needed if it happens once; else keep the memory layout of parameters and buffers: each layout is captured",
    "dtype": "none needed if it happens once; else convert the module before the first call: each dtype is captured",
    "device": "none needed if it happens once; else move the module before the first call: each device is captured",
    "requires_grad": "none needed: with and without gradients, each is captured once; or freeze parameters before the first call",
}
TABLES = "._parameters[", "._buffers[", "['params']["        # where modules and optimizers keep what is theirs


def remedy(cause: Cause) -> str:
    """One sentence for one cause of a recapture."""
    if cause.kind != "TENSOR":
        return Kind[cause.kind or "PRESENT"].row.remedy
    what = cause.expected.partition(" ")[0]
    if what in PARAMETER and any(table in cause.subject for table in TABLES):
        return PARAMETER[what]
    if what == "shape" and is_of_batches(cause):
        return BATCH
    return TENSOR.get(what, Kind.TYPE.row.remedy)


def is_of_batches(cause: Cause) -> bool:
    """Whether two shapes differ in the first dimension only."""
    before, after = (text.partition(" ")[2].strip("()").split(",") for text in (cause.expected, cause.found))
    return before[1:] == after[1:]
