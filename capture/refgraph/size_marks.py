"""What a program says of sizes beforehand: marks on tensors (`torch._dynamo.mark_dynamic` and its like), and the names in
`torch.compiler.config.dynamic_sources`."""
from __future__ import annotations

import operator
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from capture.refgraph.requirements import Key
from capture.refgraph.source import Computed, Literal, Local, Source

# Where torch keeps which dimensions of a tensor vary. Of those in STRICT it is an error if the program fixes them.
STRICT = "_dynamo_dynamic_indices", "_dynamo_strict_unbacked_indices"
VARYING = *STRICT, "_dynamo_weak_dynamic_indices", "_dynamo_unbacked_indices"
STATIC = "_dynamo_static_indices"


@dataclass(frozen=True, slots=True)
class Mark:
    """What the program says of the size of one dimension. least, most: None if it gives no such bound. strict: the program promises
    not to fix the size."""

    least: int | None = None
    most: int | None = None
    strict: bool = False


def varying(tensor: torch.Tensor) -> set[int]:
    """The dimensions that are marked to vary."""
    return dims_in(tensor, VARYING)


def static(tensor: torch.Tensor) -> set[int]:
    """The dimensions that are marked to keep their size, and not to vary as well."""
    return dims_in(tensor, (STATIC,)) - varying(tensor)


def dims_in(tensor: torch.Tensor, names: Iterable[str]) -> set[int]:
    marks = vars(tensor)
    return {dim % tensor.dim() for name in names for dim in marks.get(name, ()) if -tensor.dim() <= dim < tensor.dim()}


def marks_of(tensor: torch.Tensor) -> Iterator[tuple[int, Mark]]:
    """The marks that say more of a size than that it varies."""
    marks = vars(tensor)
    bounds: dict[int, tuple[int | None, int | None]] = dict(marks.get("_dynamo_unbacked_bounds", {}))
    bounds.update((entry.dim, (entry.min, entry.max)) for entry in marks.get("_dynamo_dynamic_range", ()))
    strict = dims_in(tensor, STRICT)
    for dim in sorted(strict | {dim % tensor.dim() for dim in bounds}):
        least, most = bounds.get(dim, bounds.get(dim - tensor.dim(), (None, None)))
        yield dim, Mark(least, most, dim in strict)


def named(source: Source, dims: int) -> set[int]:
    """The dimensions of the tensor at a path that `torch.compiler.config.dynamic_sources` names."""
    config = sys.modules.get("torch.compiler.config")
    wanted = getattr(config, "dynamic_sources", "") or ""
    found: set[int] = set()
    for entry in filter(None, map(str.strip, wanted.split(","))):
        name, colon, dim = entry.rpartition(":")
        name, only = (name, int(dim)) if colon and dim.isdecimal() else (entry, None)
        if matches(name, torch_name(source)):
            found.update(range(dims) if only is None else {only} & set(range(dims)))
    return found


def matches(name: str, text: str) -> bool:
    """Whether a name, or a regular expression that begins there, is that of a path."""
    try:
        return name == text or re.match(name, text) is not None
    except re.error:
        return False


def torch_name(source: Source) -> str:
    """A path as torch.compile names it: `L['x'].weight`."""
    root = source
    while root.base is not None:
        root = root.base
    text = str(source)
    return f"L['{root.name}']{text[len(root.name):]}" if isinstance(root, Local) and text.startswith(root.name) else text


def contradiction(marks: Mapping[Source, tuple[Mark, int]], requirements: Mapping[Key, tuple[Source | None, str, Any]]) -> tuple[
        Source, str, Key | None] | None:
    """What contradicts a mark: the path of the size, what is wrong about it, and the key of the requirement that fixes it, if
    one does. None if nothing contradicts. marks: by the paths of sizes, with what these are in this call. requirements: of the
    trace."""
    for source, (mark, now) in marks.items():
        if mark.least is not None and now < mark.least or mark.most is not None and now > mark.most:
            return source, f"is {now}, and was marked to be {span(mark)}", None
    strict = [source for source, (mark, _) in marks.items() if mark.strict]
    for key, (path, kind, expected) in requirements.items() if strict else ():
        if kind in ("VALUE", "TRUTH") and path is not None and fixes(path, expected):
            marked = next((source for source in strict if contains(path, source)), None)
            if marked is not None:
                return marked, f"was marked to vary, but the program needs it to be {marks[marked][1]}", key
    return None


def span(mark: Mark) -> str:
    """The range of a mark, in words."""
    if mark.least is None or mark.most is None:
        return f"{mark.most} at most" if mark.least is None else f"{mark.least} at least"
    return f"from {mark.least} to {mark.most}"


def fixes(path: Source, value: Any) -> bool:
    """Whether what is at a path has a single value where this guard holds: it is a number, or one that is compared with another."""
    compared = isinstance(path, Computed) and path.op is operator.eq and any(isinstance(arg, Literal) for arg in path.args)
    return type(value) is int or value is True and compared


def contains(path: Source, part: Source) -> bool:
    """Whether a number is computed from another one in a way that determines it; a quotient or remainder does not."""
    if isinstance(path, Computed) and rounds(path):
        return False
    return path == part or isinstance(path, Computed) and any(contains(arg, part) for arg in path.args)


def rounds(path: Source) -> bool:
    """Whether a number was computed by division."""
    return isinstance(path, Computed) and (path.op in (operator.floordiv, operator.mod) or any(map(rounds, path.args)))
