"""einops, which most vision models use: one capture for all sizes, as of the same reshapes written out."""
from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.helpers import call, check

einops = pytest.importorskip("einops")
layers = pytest.importorskip("einops.layers.torch")
pytestmark = pytest.mark.usefixtures("open_sizes")
NATIVE: dict[str, Any] = {"backend": "native", "options": {"background": False}, "tolerance": 1e-4}
SIZES = [(2, 3, 4, 6), (3, 3, 8, 10), (4, 3, 6, 4), (5, 3, 12, 8), (2, 3, 10, 4), (7, 3, 2, 6), (2, 3, 4, 6)]
PATCHES = "b c (h p) (w q) -> b (h w) (p q c)"
LAYERS = SimpleNamespace(patches=layers.Rearrange(PATCHES, p=2, q=2), pool=layers.Reduce("b c (h p) w -> b c h", "mean", p=2))


def patches_and_back(x):
    parts = einops.rearrange(x, "b c (h p) (w q) -> b (h w) (p q c)", p=2, q=2) * 2
    return einops.rearrange(parts, "b (h w) (p q c) -> b c (h p) (w q)", h=x.shape[2] // 2, p=2, q=2)


def attention(x):
    tokens = einops.rearrange(x, "b c h w -> b (h w) c")
    q, k, v = (einops.rearrange(tokens * scale, "b n (g d) -> b g n d", g=3) for scale in (0.2, 0.3, 1))
    return einops.rearrange(torch.softmax(q @ k.transpose(-1, -2), -1) @ v, "b g n d -> b n (g d)")


def pack_and_unpack(x):
    packed, shapes = einops.pack([x, x[:, :, 0]], "b c *")
    return einops.unpack(packed + 1, shapes, "b c *")


PROGRAMS = {
    "rearrange": lambda x: einops.rearrange(x, "b c h w -> b (h w) c") + 1,
    "a view": lambda x: einops.rearrange(x, "b c h w -> w b c h"),
    "nothing": lambda x: einops.rearrange(x, "... -> ...") * 1,
    "patches": patches_and_back,
    "attention": attention,
    "repeat": lambda x: einops.repeat(x, "b c h w -> b (r c) h w k", r=3, k=2) + 1,
    "expanded": lambda x: einops.repeat(x, "b c h w -> b c k h w", k=2),
    "by a size": lambda x: einops.repeat(x[:, 0], "b h w -> b h w n", n=x.shape[0]),
    "reduce": lambda x: einops.reduce(x, "b c (h p) (w q) -> b c h w", "mean", p=2, q=2),
    "maximum": lambda x: einops.reduce(x, "b c ... -> b c 1 1", "max") + x,
    "by a function": lambda x: einops.reduce(x, "b c h w -> b c", torch.sum),
    "einsum": lambda x: einops.einsum(x, x, "b c h w, b d h w -> b c d"),
    "pack": lambda x: einops.pack([x, x[:, :, 0]], "b c *"),
    "pack and unpack": pack_and_unpack,
    "unpack": lambda x: einops.unpack(x, [[1], [], [x.shape[3] - 2]], "b c h *"),
    "parse_shape": lambda x: einops.rearrange(x, "b c h w -> (b h) w c", **einops.parse_shape(x, "b _ h _")) * 2,
    "a layer": lambda x: LAYERS.patches(x) + 1,
    "a layer that reduces": lambda x: LAYERS.pool(x) + 1,
}


@pytest.fixture(autouse=True)
def empty_caches():
    """Each program meets its sizes for the first time."""
    for cached in (einops.einops._reconstruct_from_shape, einops.einops._prepare_transformation_recipe):
        cached.cache_clear()


@pytest.mark.parametrize("name", PROGRAMS)
def test_two_captures_for_all_sizes(name) -> None:
    calls = [call(torch.randn(size, requires_grad=True)) for size in SIZES]
    stats = check(lambda: PROGRAMS[name], *calls, *calls, captures=None, backward=True)
    assert stats.captures <= 2, stats.misses


@pytest.mark.parametrize("name", PROGRAMS)
def test_compiled(name) -> None:
    calls = [call(torch.randn(size, requires_grad=True)) for size in SIZES[:4]]
    stats = check(lambda: lambda x: PROGRAMS[name](x * 2), *calls, *calls, captures=None, backward=True, **NATIVE)
    assert stats.captures <= 2 and stats.compiled, stats.misses


def test_its_caches_count_as_in_eager_mode() -> None:
    def build():
        cached = [functools.lru_cache(cached.cache_parameters()["maxsize"])(cached.__wrapped__) for cached in (
            einops.einops._reconstruct_from_shape, einops.einops._prepare_transformation_recipe)]
        state = SimpleNamespace(cached=cached, told=[])
        return (lambda x: einops.rearrange(x, "b c h w -> b (h w) c") + 1), state

    def begin(state):
        einops.einops._reconstruct_from_shape, einops.einops._prepare_transformation_recipe = state.cached

    def tell(state):
        state.told.append([cached.cache_info() for cached in state.cached])
    before = einops.einops._reconstruct_from_shape, einops.einops._prepare_transformation_recipe
    try:
        check(build, begin, *(step for size in SIZES for step in (call(torch.randn(size)), tell)), captures=2)
    finally:
        einops.einops._reconstruct_from_shape, einops.einops._prepare_transformation_recipe = before


def test_sizes_that_do_not_fit() -> None:
    sizes = [(2, 3, 4, 6), (3, 3, 8, 10), (4, 3, 5, 4), (5, 3, 12, 8), (2, 3, 10, 3), (7, 3, 2, 6), (2, 3, 5, 5), (2, 3, 0, 4)]
    calls = [call(torch.randn(size)) for size in sizes]
    check(lambda: PROGRAMS["patches"], *calls, *calls, captures=None, fullgraph=False)

    def caught(x):
        try:
            return PROGRAMS["patches"](x)
        except einops.EinopsError as error:
            return x + 1, str(error)
    check(lambda: caught, *calls, *calls, captures=None, fullgraph=False, recompile_limit=40)


def test_a_model() -> None:
    class Vision(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = torch.nn.Sequential(layers.Rearrange(PATCHES, p=2, q=2), torch.nn.Linear(12, 8))
            self.qkv, self.out = torch.nn.Linear(8, 24), torch.nn.Linear(8, 2)

        def forward(self, x):
            tokens = self.patches(x)
            q, k, v = (einops.rearrange(part, "b n (g d) -> b g n d", g=2) for part in self.qkv(tokens).chunk(3, -1))
            mixed = einops.rearrange(torch.softmax(q @ k.transpose(-1, -2), -1) @ v, "b g n d -> b n (g d)")
            return self.out(einops.reduce(mixed + tokens, "b n d -> b d", "mean"))

    def build():
        torch.manual_seed(0)
        return Vision()
    stats = check(build, *(call(torch.randn(size)) for size in SIZES), captures=None, backward=True, **NATIVE)
    assert stats.captures <= 2, stats.misses
