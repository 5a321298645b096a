"""Operations on tensors whose sizes vary: a rule says how large the results are, so that one capture does for all sizes."""
from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.testing._internal.common_methods_invocations import op_db

from capture.interp.recording.shape_rules import rule_of
from tests.helpers import call, check

SIZES = (4, 6, 9, 3, 14, 5)
WINDOW = torch.hann_window(8)
TURNS = torch.polar(torch.ones(20, 2), torch.linspace(0, 3, 40).view(20, 2))
ATTENTION = nn.MultiheadAttention(16, 2, batch_first=True).eval()
ENCODER = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1).eval()
for _parameter in (*ATTENTION.parameters(), *ENCODER.parameters()):
    _parameter.requires_grad_(False)


def line(n: int) -> Tensor:
    return torch.linspace(-1, 1, n)


def rows(n: int) -> Tensor:
    return torch.linspace(-1, 1, n * 3).view(n, 3).sin()


def tall(n: int) -> Tensor:
    return rows(n + 3).mul(7).cos()


def square(n: int) -> Tensor:
    return torch.eye(n) * n + torch.linspace(-1, 1, n * n).view(n, n).sin()


def image(n: int) -> Tensor:
    return torch.linspace(-1, 1, 2 * n * (n + 2)).view(1, 2, n, n + 2).mul(9).sin()


def text(n: int) -> Tensor:
    return torch.linspace(-1, 1, 2 * n * 16).view(2, n, 16).mul(9).sin()


# Each with what makes its tensors of a number. Results enter an operation, so that a graph goes on with them.
OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = {
    "pad_sequence": (lambda a, b, c: pad_sequence([a, b, c], batch_first=True) * 2,
                     lambda n: (rows(n), rows(2 * n % 7 + 1), rows(5))),
    "pad_sequence, time first": (lambda a, b: pad_sequence([a, b], False, 1.5, "left") * 2, lambda n: (rows(n), rows(9 - n % 5))),
    "block_diag": (lambda a, b: torch.block_diag(a, b) * 2, lambda n: (rows(n), line(n + 1))),
    "cartesian_prod": (lambda a, b: torch.cartesian_prod(a, b) * 2, lambda n: (line(n), line(n + 1))),
    "combinations": (lambda a: torch.combinations(a) * 2, lambda n: (line(n),)),
    "combinations of three": (lambda a: torch.combinations(a, 3, with_replacement=True) * 2, lambda n: (line(n),)),
    "column_stack": (lambda a, b: torch.column_stack([a, b]) * 2, lambda n: (line(n), rows(n))),
    "dstack": (lambda a, b: torch.dstack([a, b]) * 2, lambda n: (rows(n), rows(n))),
    "hsplit": (lambda a: torch.hsplit(a, 2)[1] * 2, lambda n: (image(2 * n)[0],)),
    "vsplit": (lambda a: torch.vsplit(a, [1, 2])[2] * 2, lambda n: (rows(n),)),
    "tensor_split": (lambda a: torch.tensor_split(a, (1, -1))[1] * 2, lambda n: (rows(n),)),
    "istft": (lambda a: torch.istft(torch.stft(a, 8, window=WINDOW, return_complex=True), 8, window=WINDOW) * 2,
              lambda n: (line(8 * n),)),
    "max_unpool2d": (lambda a: F.max_unpool2d(*F.max_pool2d(a, 2, return_indices=True), 2) * 2, lambda n: (image(2 * n),)),
    "max_unpool2d to a size": (lambda a: F.max_unpool2d(*F.max_pool2d(a, 2, return_indices=True), 2, output_size=a.size()) * 2,
                               lambda n: (image(n),)),
    "attention": (lambda a: ATTENTION(a, a, a)[0] * 2, lambda n: (text(n),)),
    "attention and its weights": (lambda a: [b * 2 for b in ATTENTION(a, a, a, average_attn_weights=False)], lambda n: (text(n),)),
    "encoder": (lambda a: ENCODER(a) * 2, lambda n: (text(n),)),
    "encoder, causal": (lambda a: ENCODER(a, mask=nn.Transformer.generate_square_subsequent_mask(a.size(1)), is_causal=True) * 2,
                        lambda n: (text(n),)),
    "qr": (lambda a: torch.linalg.qr(a)[1] * 2, lambda n: (tall(n),)),
    "qr, wide": (lambda a: torch.linalg.qr(a)[0] * 2, lambda n: (tall(n).mT,)),
    "svd": (lambda a: torch.linalg.svd(a, full_matrices=False)[1] * 2, lambda n: (tall(n),)),
    "svdvals": (lambda a: torch.linalg.svdvals(a) * 2, lambda n: (rows(n),)),
    "pinv": (lambda a: torch.linalg.pinv(a) * 2, lambda n: (tall(n),)),
    "lu": (lambda a: torch.linalg.lu(a)[2] * 2, lambda n: (square(n),)),
    "inv_ex": (lambda a: torch.linalg.inv_ex(a)[0] * 2, lambda n: (square(n),)),
    "cholesky_ex": (lambda a: torch.linalg.cholesky_ex(a @ a.mT)[0] * 2, lambda n: (square(n),)),
    "eigvals": (lambda a: torch.linalg.eigvals(a).abs().sum() * 2, lambda n: (square(n),)),
    "matrix_norm": (lambda a: torch.linalg.matrix_norm(a) * 2, lambda n: (image(n),)),
    "matrix_rank": (lambda a: torch.linalg.matrix_rank(a) * 2, lambda n: (image(n),)),
    "cov": (lambda a: torch.cov(a) * 2, lambda n: (rows(n).mT,)),
    "corrcoef": (lambda a: torch.corrcoef(a) * 2, lambda n: (tall(n),)),
    "cross": (lambda a, b: torch.cross(a, b, dim=1) * 2, lambda n: (rows(n), rows(n) + 1)),
    "trapezoid": (lambda a, x: torch.trapezoid(a, x, dim=0) * 2, lambda n: (rows(n), line(n))),
    "cumulative_trapezoid": (lambda a: torch.cumulative_trapezoid(a, dim=0) * 2, lambda n: (rows(n),)),
    "gradient": (lambda a: torch.gradient(a)[1] * 2, lambda n: (rows(n),)),
    "dist": (lambda a, b: torch.dist(a, b) * 2, lambda n: (rows(n), rows(n) + 1)),
    "pdist": (lambda a: F.pdist(a) * 2, lambda n: (tall(n),)),
    "segment_reduce": (lambda a, b: torch.segment_reduce(a, "sum", lengths=b) * 2, lambda n: (line(2 * n), torch.full((n,), 2))),
    "vander": (lambda a: torch.vander(a, 4) * 2, lambda n: (line(n),)),
    "linalg.vander": (lambda a: torch.linalg.vander(a) * 2, lambda n: (line(n),)),
    "take": (lambda a, i: torch.take(a, i) * 2, lambda n: (line(n), torch.arange(n - 1))),
    "rot90": (lambda a: torch.rot90(a) * 2, lambda n: (rows(n),)),
    "diagflat": (lambda a: torch.diagflat(a, 1) * 2, lambda n: (line(n),)),
    "tril_indices": (lambda a: torch.tril_indices(a.size(0), 3 * a.size(0), -2) * 2, lambda n: (line(n),)),
    "triu_indices": (lambda a: torch.triu_indices(2 * a.size(0), a.size(0), 1) * 2, lambda n: (line(n),)),
    "masked_scatter": (lambda a, b: a.masked_scatter(a > 0, b) * 2, lambda n: (line(n), line(n) + 3)),
    "poisson": (lambda a: torch.poisson(a.exp()) * 2, lambda n: (line(n),)),
    "turned": (lambda a: torch.view_as_real(torch.view_as_complex(a.reshape(*a.shape[:-1], -1, 2)[..., :2, :]) * TURNS[:a.size(1)]
                                            ).flatten(2) * 2, lambda n: (text(n),)),
    "vmap": (lambda a: torch.vmap(lambda b: b.sum() * b)(a) * 2, lambda n: (rows(n),)),
    "grad": (lambda a: torch.func.grad(lambda b: b.pow(2).sum())(a) * 2, lambda n: (rows(n),)),
    "linear_cross_entropy": (lambda a, b: F.linear_cross_entropy(a, rows(7), b) * 2 if hasattr(F, "linear_cross_entropy") else a,
                             lambda n: (rows(n), torch.arange(n) % 7)),
    "other names": (lambda a: torch.multiply(a, torch.subtract(a, 1)).divide(2).greater(0) + torch.special.expit(a).negative(),
                    lambda n: (rows(n),)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_two_captures_do(name: str) -> None:
    operation, tensors = OPERATIONS[name]
    with torch.no_grad():
        check(lambda: operation, *(call(*tensors(n)) for n in SIZES), captures=2)


@pytest.mark.parametrize("name", ["pad_sequence", "combinations", "svdvals", "tril_indices", "turned", "attention", "other names"])
def test_two_captures_do_with_kernels(name: str) -> None:
    operation, tensors = OPERATIONS[name]
    with torch.no_grad():
        check(lambda: operation, *(call(*tensors(n)) for n in SIZES), captures=2, backend="native", options={"background": False},
              tolerance=1e-5)


ALIASES = [(other.op, info.op) for info in op_db for other in info.aliases
           if isinstance(other.op, types.BuiltinFunctionType) and isinstance(info.op, types.BuiltinFunctionType)]


@pytest.mark.parametrize(("other", "operator"), ALIASES, ids=lambda function: function.__name__)
def test_an_operator_has_one_rule_under_all_of_its_names(other: Callable[..., Any], operator: Callable[..., Any]) -> None:
    assert (rule_of(other) is None) == (rule_of(operator) is None)


def test_a_nested_tensor_among_open_sizes() -> None:
    """A mask makes one of it, which is asked for no strides."""
    def program(x: Tensor, mask: Tensor) -> Tensor:
        return ENCODER(x, src_key_padding_mask=mask) * 2

    with torch.no_grad():
        check(lambda: program, *(call(text(n), torch.arange(n) >= torch.tensor([[n - 1], [n]])) for n in SIZES), captures=None,
              fullgraph=False)
