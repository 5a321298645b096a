"""The whole pipeline on CUDA text, run by the processor: capture, fusion, schedule, text, plan, memory, autograd."""
from __future__ import annotations

import pytest
import torch
from torch import nn

import capture
from capture import config
from capture.backends.native.compiler import compile_job
from capture.backends.native.job import Job, Modes, TensorSpec
from capture.backends.native.render import CUDA_ON_CPU
from capture.backends.native.signature import Unsupported
from tests.backends.native.render import kernels
from tests.backends.native.render.test_render import gather


@pytest.fixture(autouse=True)
def on_emulated_device(monkeypatch):
    with config.TARGET.set("cuda-on-cpu"), config.CACHE.set(0), config.TRIAL_CALLS.set(0):
        yield


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(40, 24), nn.LayerNorm(24)
        self.inner, self.outer = nn.Linear(24, 48), nn.Linear(48, 24)

    def forward(self, words: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        x = x + self.outer(nn.functional.gelu(self.inner(self.norm(x))))
        return nn.functional.cross_entropy((x @ self.embedding.weight.T).flatten(0, 1), wanted.flatten())


@pytest.mark.parametrize("order", ["0", "1", "5"])
def test_training(order, monkeypatch):
    monkeypatch.setenv("CAPTURE_EMULATED_ORDER", order)
    torch.manual_seed(0)
    model = Language()
    words, wanted = torch.randint(0, 40, (3, 11)), torch.randint(0, 40, (3, 11))

    def step(run) -> list[torch.Tensor]:
        model.zero_grad()
        loss = run(model, words, wanted)
        loss.backward()
        return [loss.detach(), *(parameter.grad for parameter in model.parameters())]

    def loss(model, words, wanted):
        return model(words, wanted)
    expected = step(loss)
    compiled = capture.compile(loss, backend="native", options={"background": False})
    for _ in range(3):
        found = step(compiled)
    assert capture.stats(compiled).compiled == 1
    assert not capture.stats(compiled).compile_errors
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_an_index_out_of_range_is_raised():
    table, where = torch.randn(7, 5), torch.tensor([1, 6, 0])
    compiled = capture.compile(lambda table, where: table[where].exp() + 1, backend="native", options={"background": False})
    for _ in range(2):
        assert torch.allclose(compiled(table, where), table[where].exp() + 1)
    where[1] = 9
    with pytest.raises(IndexError):
        compiled(table, where)


def test_an_unknown_target_is_named():
    gm = torch.fx.symbolic_trace(nn.ReLU())
    with pytest.raises(Unsupported, match="'gpu'"):
        compile_job(Job(gm, (TensorSpec.of(torch.ones(3)),), Modes.current(), {"target": "gpu"}))


def test_an_index_out_of_range_is_not_followed(monkeypatch):
    monkeypatch.setattr(kernels, "TARGET", CUDA_ON_CPU)
    kernel, buffers = gather()
    where = torch.randint(0, 11, (25,))
    where[20] = 1 << 40
    with pytest.raises(IndexError):
        kernels.check(kernel, buffers, torch.randn(11, 40), where)
