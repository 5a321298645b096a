"""Arguments of torch's operators, as its own tests (OpInfo) make them."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tests.helpers import seed

SEED = 1234     # as in torch's own tests


def samples_of(info: Any, dtype: torch.dtype, requires_grad: bool = False) -> Iterator[Any]:
    """As `info.sample_inputs`, which looks for a test of torch's by reading the source of all that is on the stack."""
    samples = iter(info.sample_inputs_func(info, "cpu", dtype, requires_grad))
    while True:
        seed(SEED)
        sample = next(samples, None)
        if sample is None:
            return
        yield sample


def name_of(info: Any) -> str:
    """The name of an entry of `op_db`: an operator has several, of variants."""
    return ".".join(filter(None, (info.name, info.variant_test_name)))
