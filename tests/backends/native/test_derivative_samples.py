"""Some of torch's operators under transforms, and in gradients that the program computes (`derivative_samples.py` has all)."""
from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("expecttest")       # torch's own tests need it

from tests.backends.native.derivative_samples import operators, outcomes

NAMES = ("cumprod", "index_select", "logsumexp", "matmul", "nn.functional.conv2d", "nn.functional.layer_norm",
         "nn.functional.max_pool2d", "select_scatter", "softmax", "where")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_as_in_eager_mode(name: str) -> None:
    (info,) = [info for info in operators([name]) if not info.variant_test_name]
    found = dict(outcomes(info))
    assert not [(program, text) for program, text in found.items() if text.startswith(("DIFFERS", "uncompiled"))]
    assert Counter(found.values())["same"] >= len(found) / 2, found
