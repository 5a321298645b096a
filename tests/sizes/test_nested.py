"""Nested tensors: no rule knows their sizes, and no kernel takes them; what is around them has sizes that vary, and is compiled."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capture.config import TRIAL_CALLS
from tests.helpers import call, check

SIZES = (6, 8, 5, 9, 6, 12, 7)
NATIVE: dict[str, Any] = {"backend": "native", "options": {"background": False}, "tolerance": 1e-4}
pytestmark = pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage")


def text(n: int) -> Tensor:
    return torch.linspace(-1, 1, 3 * n * 16).view(3, n, 16).mul(9).sin()


def padding(n: int, aligned: bool = True) -> Tensor:
    lengths = torch.tensor([n, n - 2, n - 3])[:, None]
    mask = torch.arange(n)[None] >= lengths
    return mask if aligned else mask.flip(1)


def encoder() -> nn.Module:
    torch.manual_seed(3)
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()


@pytest.mark.parametrize("options", [{}, NATIVE], ids=["eager", "native"])
def test_an_encoder_with_padding(options: dict[str, Any]) -> None:
    """torch makes a nested tensor of a mask that pads at the end, and asks the mask whether it does: the trace ends there, once."""
    def make() -> Any:
        model = encoder()

        def program(x: Tensor, mask: Tensor) -> Tensor:
            return (model(x.exp().sin() + 1, src_key_padding_mask=mask) * 2).exp()
        return program, model

    with TRIAL_CALLS.set(0), torch.no_grad():
        steps = [call(text(n), padding(n)) for n in SIZES]
        found = check(make, *steps, captures=None, fullgraph=False, **{"tolerance": 1e-4, **options})
    assert found.captures == 4 and found.native_calls == 0, found
    assert not options or not found.compile_errors and found.compiled == 3, found


def test_masks_that_pad_at_the_beginning() -> None:
    def make() -> Any:
        model = encoder()
        return model, model

    with torch.no_grad():
        steps = [call(text(n), src_key_padding_mask=padding(n, n % 2 == 0)) for n in SIZES]
        check(make, *steps, captures=None, fullgraph=False, tolerance=1e-4)


PROGRAMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "padded as it was": lambda x, mask: torch._nested_tensor_from_mask(x * 2, ~mask).to_padded_tensor(0.0, x.size()) + x,
    "padded as needed": lambda x, mask: torch._nested_tensor_from_mask(x * 2, ~mask).to_padded_tensor(0.0) + 1,
    "of a list": lambda x, mask: torch.nested.nested_tensor([x[0], x[1, 1:]]).to_padded_tensor(1.0) * 2,
    "calculated with": lambda x, mask: (torch._nested_tensor_from_mask(x, ~mask) * 2 + 1).to_padded_tensor(0.0, x.size()).exp(),
    "asked": lambda x, mask: torch._nested_tensor_from_mask(x, ~mask).is_nested,
    "returned": lambda x, mask: [part * 1 for part in torch._nested_tensor_from_mask(x.exp(), ~mask).unbind()]}


@pytest.mark.parametrize("options", [{}, NATIVE], ids=["eager", "native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, options: dict[str, Any]) -> None:
    with TRIAL_CALLS.set(0):
        steps = [call(text(n), padding(n)) for n in SIZES]
        found = check(lambda: PROGRAMS[name], *steps, captures=None, fullgraph=False, **options)
    assert found.captures <= 4, found
