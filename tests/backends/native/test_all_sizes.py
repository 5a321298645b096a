"""Operators compiled for all sizes: a part of `all_sizes`, and what that cannot tell."""
from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from capture.backends.aot.symbols import Symbols
from tests.backends.native.all_sizes import check, free, lowered, name_of, search
from tests.backends.native.stages import Stages, copied, recorded

pytest.importorskip("expecttest")

from tests.backends.native.all_sizes import OPERATORS

# Known to differ, for the reasons that stand in `test_opinfo`, or since the samples' values go by their sizes.
LEFT_OUT = ("nn.functional.max_unpool", "nn.functional.embedding_bag", "native_batch_norm")


@pytest.mark.parametrize("number", range(4))
def test_operators(number: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [search(info, 1) for info in OPERATORS[number * 18::72] if not name_of(info).startswith(LEFT_OUT)]
    assert not [failure for one in found for failure in one.failures]
    assert sum(one.outcomes["equal"] for one in found) > 3


def parameter(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, requires_grad=True)


PROGRAMS = {
    "numbers of sizes": (lambda x: x * x.size(0) + x.size(1) / 3 + x / x.size(0) ** 0.5, (parameter(4, 5),)),
    "a mean by hand": (lambda x: x.sum(0) / (x.size(0) - 1), (parameter(4, 5),)),
    "variance": (lambda x: (x.var(0), x.std(), torch.var_mean(x, 1)), (parameter(4, 5),)),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), (parameter(4, 3, 5, 6),)),
    "running statistics": (lambda x, mean, var: F.batch_norm(x, mean, var, training=True) * 2,
                           (parameter(4, 3, 5, 6), torch.zeros(3), torch.ones(3))),
    "a half": (lambda x: (x[: x.size(0) // 2], x[x.size(0) // 2:], x[:, -1], x[1:]), (parameter(6, 5),)),
    "rounded up": (lambda x: (x[: -(-x.size(0) // 4) * 2] * 2, x.sum() / -(-x.size(1) // 8)), (parameter(9, 20),)),
    "padding": (lambda x: F.pad(x, (1, x.size(0))), (parameter(4, 5),)),
    "a mask": (lambda x: (x @ x.mT).masked_fill(torch.ones(x.size(0), x.size(0)).tril() == 0, -9e9).softmax(-1),
               (parameter(4, 5),)),
    "attention": (lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True),
                  (parameter(2, 3, 4, 8), parameter(2, 3, 4, 8))),
    "resampling to a size": (lambda x: F.interpolate(x, size=(x.size(2) * 2 + 1, x.size(3)), mode="bilinear"),
                             (parameter(2, 3, 4, 5),)),
    "… by the nearest": (lambda x: F.interpolate(x, size=x.size(2) * 3), (parameter(2, 3, 4),)),
    "… in three dimensions": (lambda x: F.interpolate(x, size=[x.size(3)] * 3, mode="trilinear", align_corners=True),
                              (parameter(2, 3, 4, 5, 6),)),
    "… to a half": (lambda x: F.interpolate(x, scale_factor=0.5), (parameter(2, 3, 7, 5),)),
    "… to one and a half": (lambda x: F.interpolate(x, scale_factor=1.5, mode="bicubic"), (parameter(2, 3, 7, 5),)),
    "strides of the columns": (lambda x: (x * 2, x.reshape(-1), x.contiguous()), (parameter(4, 5).t(),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    program, inputs = PROGRAMS[name]
    gm, tensors = recorded(program, inputs)
    assert list(check(gm, [copied(tensor) for tensor in tensors], lowered)).count("equal") == 3


def conditions(program, *inputs: torch.Tensor) -> list[str]:
    gm, tensors = recorded(program, inputs)
    symbols = Symbols()
    traced = Stages(gm, [free(copied(tensor)) for tensor in tensors], symbols).traced
    return [str(condition.relation) for condition in symbols.closed(traced.signature).conditions]


def test_conditions_are_what_a_trace_goes_by() -> None:
    assert conditions(lambda x: F.layer_norm(x * 2, (5,)).relu() if x.size(0) else x, parameter(4, 5)) in ([], ["=="])
    assert conditions(lambda x: x * 2 if x.size(0) > 3 else x, parameter(4, 5)) == [">"]
    assert conditions(lambda x, y: x + y, parameter(4, 5), parameter(4, 5)) == ["==", "=="]


@pytest.mark.parametrize("pads", [lambda x, ids: (x[:, 0:] * 2, F.pad(ids, (0, 1), value=-100)),
                                  lambda x, ids: (x[:, 0:] * 2, F.pad(x, (1, 0)) * 3)])
def test_an_operation_that_takes_no_symbols_is_replaced_alone(pads) -> None:
    """Padding in C++ fixes sizes. In torch's decompositions the subscript is one operation less."""
    gm, symbols = fx.symbolic_trace(pads), Symbols()
    traced = Stages(gm, [free(parameter(4, 5)), free(torch.ones(3, 7))], symbols).traced
    assert symbols.closed(traced.signature).conditions == ()
    assert list(check(gm, [parameter(4, 5), torch.ones(3, 7)], lowered)).count("equal") == 3
