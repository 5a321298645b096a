"""Torch's primitives (`torch._prims`), which programs and references (`torch._refs`) call: compiled, beside eager mode."""
from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._prims
import torch._refs
from torch import Tensor

from tests.backends.native.end_to_end.engine import check, no_trial  # noqa: F401
from tests.helpers import call

INTEGERS, BOOLS, FLOATS = torch.arange(1, 6), torch.tensor([True, False, True]), torch.tensor([0.5, -0.0, 1.5, -2.5])
COMPLEX = torch.tensor([1 + 2j, -0.5j, 3 - 1j])


def elementwise() -> list[str]:
    """Primitives of one tensor, with a new one as the result."""
    names = (name for name in torch._prims.__all__ if hasattr(torch.ops.prims, name))
    schemas = {name: getattr(torch.ops.prims, name).default._schema for name in names}
    return [name for name, schema in schemas.items() if [str(a.type) for a in schema.arguments] == ["Tensor"]
            and [str(r.type) for r in schema.returns] == ["Tensor"] and schema.returns[0].alias_info is None]


def takes(primitive: Callable[[Tensor], Tensor], given: Tensor) -> bool:
    try:
        primitive(given)
    except (RuntimeError, TypeError):
        return False
    return True


@pytest.mark.parametrize("given", [INTEGERS, BOOLS, FLOATS], ids=["integers", "bools", "floats"])
def test_results_have_the_dtypes_that_are_computed(given: Tensor) -> None:
    """Torch tells another dtype of many: of `signbit`, and of most functions of integers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        primitives = [primitive for name in elementwise() if takes(primitive := getattr(torch.ops.prims, name).default, given)]
        assert len(primitives) > 30
        for number in range(0, len(primitives), 16):
            def make(some: Any = primitives[number:number + 16]) -> Callable[[Tensor], list[Tensor]]:
                return lambda x: [result for primitive in some for result in (primitive(x), primitive(x).sum(), primitive(x) * 2)]

            check(make, *map(call, (given, given.flip(0), given)), tolerance=1e-6)


def test_numbers_in_the_place_of_tensors() -> None:
    check(lambda: lambda x: (torch._refs.sigmoid(x), torch._prims.add(x, 1 + 0j), torch._prims.mul(x, 2j)),
          *map(call, (COMPLEX, COMPLEX.flip(0), COMPLEX)), tolerance=1e-6)
    check(lambda: lambda x: (torch._prims.add(x, 1.5), torch._prims.pow(x, 2.0), torch.ops.prims.sub(x, 3.0)),
          *map(call, (FLOATS, -FLOATS, FLOATS)))


def test_references_that_look_at_signs() -> None:
    divide = functools.partial(torch._refs.div, rounding_mode="floor")
    check(lambda: lambda x, y: divide(x, y), *(call(x, x + 0.7) for x in (FLOATS, -FLOATS, FLOATS)), fullgraph=False,
          captures=2, breaks=1)
