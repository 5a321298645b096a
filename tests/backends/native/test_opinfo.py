"""Every operator that torch has sample inputs for (OpInfo), through all stages of the compiler, against eager mode.

Each sample becomes a graph of one call: traced, lowered, verified and evaluated; fused, verified and evaluated again; compiled and
run. Forward passes in several dtypes, and of a few samples the backward pass as well. Values, dtypes and strides must agree.
"""
from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, fx

from capture.backends.native.ir import Program
from capture.backends.native.signature import Unsupported
from capture.torch_versions import VERSION
from tests.backends.native.stages import Stages, compare, compiled, copied, evaluated, finished, recorded

pytest.importorskip("expecttest")       # torch's own tests need it

from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from tests.samples import name_of, samples_of

CHUNKS = 24         # of operators, whose kernels make one library each
SAMPLES = {torch.float32: 3, torch.bfloat16: 1, torch.int64: 1, torch.bool: 1, torch.complex64: 1}     # how many, of each operator
IN_TURN = (torch.float64, torch.float16, torch.int32, torch.uint8)                  # one of these for each operator, too
TOLERANCES = {"rtol": 1e-4, "atol": 1e-4}
LOW_PRECISION = {"rtol": 2e-2, "atol": 2e-2}

STATISTICS = "in low precision, mean and deviation are float32 in the decomposition"
SCALAR = "torch's meta function lays the result out by the tensor without dimensions, the kernel by the other one"
UNPOOLED = "torch's meta function promises a contiguous result, the kernel one in the layout of the input"
DATA = "sizes or Python values depend on the data"
ERRORS = "an operator that checks for errors has side effects, which the order of a compiled graph would not keep"
PLACES = "places in memory that are eager mode's"

# What differs from eager mode, and why. An operator that does not differ any more must be taken off the list.
KNOWN: dict[str, str] = {
    **dict.fromkeys(("native_batch_norm", "_native_batch_norm_legit"), STATISTICS),
    "linalg.norm.subgradients_at_zero": "a norm of order 0 is no node of autograd in the decomposition, and its gradient None",
    **dict.fromkeys(("copysign", "div.floor_rounding", "floor_divide"), SCALAR),
    "resize_as_": "its functional form makes the result contiguous, where eager mode leaves a tensor of the same shape alone",
}
# What the compiler leaves to eager mode.
UNSUPPORTED: dict[str, str] = {
    **dict.fromkeys((
        "allclose", "argwhere", "bincount", "corrcoef", "cov", "equal", "index_put", "item", "linalg.lstsq",
        "linalg.lstsq.grad_oriented", "masked_select", "narrow", "nn.functional.ctc_loss", "nn.functional.gaussian_nll_loss",
        "nn.functional.one_hot", "nonzero", "tensor_split", "unique", "unique_consecutive"), DATA),
    **dict.fromkeys((
        "linalg.cholesky", "linalg.eig", "linalg.eigvals", "linalg.inv", "linalg.ldl_factor", "linalg.lu_factor", "linalg.solve",
        "linalg.tensorinv", "linalg.tensorsolve"), ERRORS),
    **dict.fromkeys(("as_strided_copy", "as_strided_scatter"), PLACES),
    **dict.fromkeys(("unsafe_chunk", "unsafe_split"), "results share memory, and are no views"),
    "normal.in_place": "random numbers are drawn into a tensor that is not contiguous",
    "to_sparse": "a result that is not dense",
}
if VERSION < (2, 15):
    KNOWN |= dict.fromkeys(("nn.functional.max_unpool2d", "nn.functional.max_unpool2d.grad"), UNPOOLED)
    UNSUPPORTED["combinations"] = DATA
# Where eager mode reads memory beyond its inputs, if their last dimension is not contiguous: it relies on its caller.
DENSE = {"torch.ops.aten._scaled_dot_product_flash_attention_for_cpu"}


@dataclass
class Case:
    """One sample of an operator as a graph."""

    operator: str
    label: str
    gm: fx.GraphModule
    inputs: list[Tensor]
    tolerances: dict[str, float]
    stages: Stages | None = None
    fused: list[Program] | None = None


def cases(info: OpInfo) -> Iterator[Case]:
    """Samples spread over those that OpInfo has, in several dtypes; some with other strides, and with gradients."""
    for dtype, count in (SAMPLES | {IN_TURN[len(name_of(info)) % len(IN_TURN)]: 1}).items():
        if dtype not in info.supported_dtypes("cpu"):
            continue
        differentiable = dtype == torch.float32 and info.supports_autograd
        samples = list(itertools.islice(samples_of(info, dtype, differentiable), 100))
        for number, sample in enumerate(samples[::max(1, len(samples) // count)][:count]):
            yield from variants(info, sample, dtype, number, dtype == torch.float32 and number < 2)


def variants(info: OpInfo, sample: SampleInput, dtype: torch.dtype, number: int, thorough: bool) -> Iterator[Case]:
    """A sample as it is; `thorough`: with inputs that are not contiguous, and with gradients, too."""
    try:
        gm, inputs = recorded(info.op, (sample.input, *sample.args), sample.kwargs)
    except (RuntimeError, ValueError, NotImplementedError):
        return                  # not on dense tensors of their own
    label = f"{name_of(info)} {dtype} #{number} {[tuple(tensor.shape) for tensor in inputs]}"
    tolerances = LOW_PRECISION if any(tensor.dtype in (torch.bfloat16, torch.float16) for tensor in inputs) else TOLERANCES
    wanted, inputs = inputs, [tensor.detach() for tensor in inputs]
    yield Case(name_of(info), label, gm, inputs, tolerances)
    if not thorough:
        return
    strided = inputs if name_of(info) in DENSE else [other_strides(tensor) for tensor in inputs]
    if any(a.stride() != b.stride() for a, b in zip(strided, inputs)) and accepted(gm, strided):
        yield Case(name_of(info), f"{label} strided", gm, strided, tolerances)
    if any(tensor.requires_grad for tensor in wanted):
        yield Case(name_of(info), f"{label} with gradients", gm, wanted, tolerances)


def other_strides(tensor: Tensor) -> Tensor:
    """The same elements with the first and the last dimension exchanged in memory."""
    return tensor.transpose(0, -1).contiguous().transpose(0, -1) if tensor.dim() > 1 else tensor


def accepted(gm: fx.GraphModule, inputs: list[Tensor]) -> bool:
    """Whether eager mode accepts the inputs."""
    try:
        gm(*map(copied, inputs))
    except RuntimeError:
        return False
    return True


class Chunk:
    """The cases of some operators, taken through the stages together. `failures`: by operator, what happened first."""

    def __init__(self, infos: list[OpInfo]) -> None:
        self.infos = infos
        self.failures: dict[str, str] = {}
        self.unsupported: dict[str, str] = {}

    def run(self) -> None:
        ready = [case for info in self.infos for case in cases(info) if self._evaluate(case)]
        if ready:
            plans = iter(compiled([program for case in ready for program in case.fused]))
            for case in ready:
                own = [next(plans) for _ in case.fused]
                self._attempt(case, "compiled", lambda: compare(case.gm, case.stages.callable(own), case.inputs, case.tolerances))
        finished()

    def _evaluate(self, case: Case) -> bool:
        """Up to the fused program, by the reference interpreter. Whether all went well."""
        def lowered() -> None:
            case.stages = Stages(case.gm, case.inputs)
            compare(case.gm, case.stages.callable(list(map(evaluated, case.stages.lowered))), case.inputs, case.tolerances)

        def fused() -> None:
            case.fused = case.stages.fused()
            compare(case.gm, case.stages.callable(list(map(evaluated, case.fused))), case.inputs, case.tolerances)
        return self._attempt(case, "lowered", lowered) and self._attempt(case, "fused", fused)

    def _attempt(self, case: Case, stage: str, step) -> bool:
        try:
            step()
        except Unsupported as reason:
            self.unsupported.setdefault(case.operator, str(reason))
        except Exception as error:      # collected, so that one run shows all; the test fails with them
            self.failures.setdefault(case.operator, f"{case.label}, {stage}: {type(error).__name__}: {error}")
        else:
            return True
        return False


# Without operators of GPUs only, and those whose results hold whatever was in memory.
LEFT_OUT = ("jiterator", "empty", "new_empty")
OPERATORS = sorted((info for info in op_db if not info.name.startswith(LEFT_OUT)), key=name_of)


@pytest.mark.parametrize("number", range(CHUNKS))
def test_operators(number: int) -> None:
    chunk = Chunk(OPERATORS[number::CHUNKS])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chunk.run()
    names = {name_of(info) for info in chunk.infos}
    unexpected = [text for name, text in chunk.failures.items() if name not in KNOWN]
    assert not unexpected, "\n\n".join(unexpected)
    assert (KNOWN.keys() & names) <= chunk.failures.keys(), "these do not differ any more"
    assert chunk.unsupported.keys() == UNSUPPORTED.keys() & names, chunk.unsupported
