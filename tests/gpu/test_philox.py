"""The model of ATen's dropout says which elements are kept."""
from __future__ import annotations

import pytest
import torch

from tests.gpu.philox import advance, drawn, width_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("elements", [1, 6, 255, 1000, 4096, 300001, 1 << 20, 5000002, 5000004])
def test_dropout(elements: int, dtype: torch.dtype) -> None:
    device = torch.cuda.get_device_properties(0)
    resident = device.multi_processor_count * device.max_threads_per_multi_processor
    x = torch.ones(elements, dtype=dtype, device="cuda")
    torch.cuda.manual_seed(1234567890123)
    torch.rand(5, device="cuda")        # so that the offset is not 0
    generator = torch.cuda.default_generators[0]
    seed, offset = generator.initial_seed(), generator.get_offset()
    _, mask = torch.native_dropout(x, 0.3, True)
    assert generator.get_offset() - offset == advance(elements, resident)
    # Up to some version a thread takes no more than 4 elements at a time.
    compared = torch.float64 if dtype == torch.float64 else torch.float32
    widths = {width_of(elements, dtype.itemsize, most) for most in (8, 4)}
    assert any(torch.equal(mask.cpu(), drawn(elements, seed, offset, resident, width).to(compared) < 1 - 0.3) for width in widths)
