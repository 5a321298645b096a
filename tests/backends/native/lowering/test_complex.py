"""Complex tensors: computed with in kernels as pairs of real ones, and where that would not be eager mode's, by ATen."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import capture
from tests.backends.native.lowering.checks import calls, check
from tests.backends.native.stages import Stages, compare, compiled, recorded

INF, NAN = float("inf"), float("nan")
KINDS = {
    "sums": lambda z, w, x: (z + w, z - w, z + x, x - z, z + 2, 2j - z, z + 1.5j, torch.add(z, w, alpha=2), x + 1j),
    "products": lambda z, w, x: (z * w, z * x, z * 2, z * (1 - 2j), x * 1j),
    "quotients": lambda z, w, x: (z / (w + 2), z / 2, z / (1 + 1j), x / (w + 2), z / x),
    "parts": lambda z, w, x: (z.real + 1, z.imag * 2, z.abs(), z.contiguous().angle(), torch.sgn(z), z.conj() * 1, -z,
                              torch.view_as_real(z) + 1),
    "made of real ones": lambda z, w, x: (torch.complex(x, -x), torch.polar(x.abs(), x), torch.complex(x, x) * z,
                                          x.to(z.dtype) * z),
    "compared": lambda z, w, x: (z == z * 1, z != w, z == 1, torch.where(x > 0, z, w)),
    "reduced": lambda z, w, x: ((z * w).sum(), (z * w).sum(0), z.sum(-1, keepdim=True) * z),
    "views": lambda z, w, x: ((z * w).mT * 2, (z * w)[1:, ::2] + 1, (z * w).reshape(-1)[3], z.mT * 2,
                              z[:, None].expand(4, 2, 6) + w[:, None], (z + w).flip(0), torch.cat([z * w, w]),
                              torch.stack([z + 1, w]), torch.nn.functional.pad(z * w, (1, 2))),
}


def arguments(dtype: torch.dtype = torch.complex64) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(4, 6, dtype=dtype), torch.randn(4, 6, dtype=dtype), torch.randn(4, 6, dtype=dtype.to_real())


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("kind", KINDS)
def test_lowered(kind: str, dtype: torch.dtype) -> None:
    assert not calls(check(KINDS[kind], *arguments(dtype)))


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_with_gradients(kind: str) -> None:
    z, w, x = arguments()
    gm, inputs = recorded(KINDS[kind], (z.mT.contiguous().mT.requires_grad_(), w.requires_grad_(), x.requires_grad_()))
    stages = Stages(gm, inputs)
    compare(gm, stages.callable(compiled(stages.fused())), inputs)


@pytest.mark.parametrize("call", [torch.mul, torch.add, torch.sub, torch.div, torch.abs, torch.eq, torch.sgn, torch.Tensor.sum,
                                  torch.Tensor.mean],
                         ids=lambda call: call.__name__)
def test_what_is_not_finite(call: Callable[..., Any]) -> None:
    values = [0.0, -0.0, 1.5, INF, -INF, NAN]
    z = torch.complex(*torch.meshgrid(torch.tensor(values), torch.tensor(values), indexing="ij")).flatten()
    given = (z[:, None], z[None]) if call in (torch.mul, torch.add, torch.sub, torch.div, torch.eq) else (z,)
    gm, inputs = recorded(call, given)
    stages = Stages(gm, inputs)
    compare(gm, stages.callable(compiled(stages.fused())), inputs)


def test_quotients_of_great_and_small_numbers() -> None:
    z = torch.tensor([1e30 + 1e30j, 1e-30 - 1e-30j, 3e38j, 1e-38 + 0j, 1 + 1e-20j])
    gm, inputs = recorded(torch.div, (z[:, None], z[None]))
    stages = Stages(gm, inputs)
    compare(gm, stages.callable(compiled(stages.fused())), inputs)


@pytest.mark.parametrize("size", [5, 17, 40])
def test_concatenations(size: int) -> None:
    """GCC 12 mixes up conditional loads of a group, such as those of the two parts, in vectorised loops."""
    parts = [torch.randn(size, dtype=torch.complex64) for _ in range(3)]
    for program in (lambda *z: torch.cat(z), lambda *z: torch.cat(z) * 1j, lambda *z: torch.stack(z, 1).roll(1, 0)):
        gm, inputs = recorded(program, parts)
        stages = Stages(gm, inputs)
        compare(gm, stages.callable(compiled(stages.fused())), inputs)


def test_functions_left_to_torch() -> None:
    program = check(lambda z, w, x: (z.exp() * w, z.sqrt() + 1, 1 / z, torch.fft.fft(z) * w, z @ w.mT), *arguments())
    assert {"aten::exp.out", "aten::sqrt.out", "aten::reciprocal.out", "aten::_fft_c2c.out", "aten::mm.out"} == set(calls(program))


WRITES = {
    "a part": lambda z: z.chunk(2)[1].add_(1), "rows moved": lambda z: z[1:].copy_(z[:-1] + 1),
    "flipped": lambda z: z.copy_(z.flip(0)), "transposed": lambda z: z[:4, :4].copy_(z[:4, :4].T * 2),
    "conjugate": lambda z: z.copy_(z.conj() * 2j), "a row": lambda z: z[0].add_(z[1]),
    "real parts": lambda z: torch.view_as_real(z).mul_(2), "one place": lambda z: z[0, 1].fill_(3j),
}


@pytest.mark.parametrize("write", WRITES)
def test_parts_of_inputs_are_written_to(write: str) -> None:
    def f(z: Tensor) -> tuple[Tensor, ...]:
        before = z * 2
        with torch.no_grad():
            WRITES[write](z)
        return before, z.abs()
    function = capture.compile(f, fullgraph=True, backend="native", options={"background": False})
    for _ in range(3):
        z = arguments()[0]
        eager = z.clone()
        for found, expected in zip((*function(z), z), (*f(eager), eager)):
            torch.testing.assert_close(found, expected)
    assert capture.stats(function).compiled == 1


def test_inputs_are_written_to() -> None:
    def step(z: Tensor, w: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        before = z * w
        z.mul_(2j).add_(w)
        z[1].copy_(w[0])
        return before, z + x
    z, w, x = arguments()
    gm, inputs = recorded(step, (z, w, x))
    stages = Stages(gm, inputs)
    compare(gm, stages.callable(compiled(stages.fused())), inputs)


class Rotary(nn.Module):
    """Positions as rotations of pairs, as Llama's authors wrote them."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(16, 16), nn.Linear(16, 16)
        angles = torch.outer(torch.arange(5.0), 1e4 ** -torch.arange(0, 1, 0.5))
        self.register_buffer("rotations", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x: Tensor) -> Tensor:
        q, k = (torch.view_as_complex(layer(x).float().reshape(*x.shape[:-1], 4, -1, 2)) for layer in (self.query, self.key))
        rotations = self.rotations.view(1, x.shape[1], 1, -1)
        q, k = (torch.view_as_real(part * rotations).flatten(3).type_as(x).transpose(1, 2) for part in (q, k))
        return torch.nn.functional.scaled_dot_product_attention(q, k, k)


class Spectral(nn.Module):
    """A filter of frequencies with weights that are learnt, as in GFNet and Fourier neural operators."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 5, 3, 2) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft2(x, dim=(1, 2), norm="ortho") * torch.view_as_complex(self.weight)
        return torch.fft.irfft2(spectrum, s=x.shape[1:3], dim=(1, 2), norm="ortho") + spectrum.abs().mean()


@pytest.mark.parametrize(("model", "shape"), [(Rotary, (2, 5, 16)), (Spectral, (2, 8, 8, 3))], ids=["rotary", "spectral"])
def test_models(model: type[nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module, x = model(), torch.randn(shape)
    ours = capture.compile(module, fullgraph=True, backend="native", options={"background": False})
    for _ in range(3):
        seen = []
        for program in (module, ours):
            module.zero_grad()
            result = program(x)
            result.square().sum().backward()
            seen.append([result, *(parameter.grad.clone() for parameter in module.parameters())])
        torch.testing.assert_close(*seen)
    assert capture.stats(ours).compiled == 1, capture.stats(ours)
