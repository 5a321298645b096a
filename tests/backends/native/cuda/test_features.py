"""Each feature of the IR as CUDA text, run by the processor and compared with the IR's meaning: the renderer's tests."""
from __future__ import annotations

import pytest

from capture.backends.native.render import CUDA_ON_CPU
from tests.backends.native.render import kernels, test_render

FEATURES = (
    "a_buffer_changed_by_its_own_kernel", "constants", "dtypes", "exponents_below_a_maximum",
    "gather_along_the_innermost_loop", "in_place", "long_sums_are_accurate", "masked_loads_and_stores", "nothing_to_do",
    "pointwise", "quotients_and_remainders", "reduced_loops_anywhere", "reductions", "rows_of_several_stages", "scans",
    "strips_of_several_stages", "symbolic_sizes", "where_the_mask_is_false_an_index_may_be_out_of_range",
)
globals().update({f"test_{name}": getattr(test_render, f"test_{name}") for name in FEATURES})


@pytest.fixture(scope="module", autouse=True)
def on_emulated_device(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "TARGET", CUDA_ON_CPU)
        kernels.compile_together(request)
        yield


@pytest.fixture(autouse=True)
def threads_run_forward(monkeypatch):
    monkeypatch.setenv("CAPTURE_EMULATED_ORDER", "0")
