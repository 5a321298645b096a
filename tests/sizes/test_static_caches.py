"""Caches of one size that a counter fills, as those of `transformers`, larger than what a hit copies to undo its changes. They are
written to where a handler is in force: guards promise that no place in them is out of range."""
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import capture

pytestmark = pytest.mark.usefixtures("open_sizes", "kernels_at_once")
LAYERS, HEADS, WIDTH, ROOM = 3, 4, 32, 2200        # 1.1 megabytes each
NATIVE: dict[str, Any] = {"backend": "native", "options": {"background": False}}
BACKENDS = pytest.mark.parametrize("options", [{"backend": "eager"}, NATIVE], ids=["eager", "native"])


class Cache:
    def __init__(self, room: int) -> None:
        self.keys, self.values = (torch.zeros(1, HEADS, room, WIDTH) for _ in range(2))
        self.count = torch.tensor(0)

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(keys.shape[2]) + self.count
        self.count.add_(keys.shape[2])
        self.keys.index_copy_(2, places, keys)
        self.values.index_copy_(2, places, values)
        return self.keys, self.values


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, HEADS * WIDTH)
        self.layers = nn.ModuleList(nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH) for _ in range(LAYERS))
        self.log = list[str]()

    def forward(self, tokens: Tensor, mask: Tensor, caches: list[Cache]) -> Tensor:
        x = self.table(tokens)
        try:
            for layer, cache in zip(self.layers, caches):
                query, key, value = layer(x).view(1, -1, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
                keys, values = cache.update(key, value)
                y = nn.functional.scaled_dot_product_attention(query, keys, values, mask)
                x = x + y.transpose(1, 2).reshape(x.shape)
        except (IndexError, RuntimeError) as error:
            self.log.append(str(error))
        finally:
            self.log.append("left")
        return x


class Beside:
    """A decoder that is compiled, and the same one in eager mode: after each call results, caches and logs are equal."""

    def __init__(self, options: dict[str, Any]) -> None:
        torch.manual_seed(0)
        self.other = Decoder().eval()
        self.model = copy.deepcopy(self.other)
        self.compiled = capture.compile(self.model, **options)
        self.begin(ROOM)

    def begin(self, room: int) -> None:
        """With empty caches."""
        self.caches, self.others = ([Cache(room) for _ in range(LAYERS)] for _ in range(2))

    def __call__(self, count: int, rooms: int = 0) -> None:
        """So many tokens more. rooms: how many places the mask tells of, if not as many as there are."""
        tokens = torch.randint(0, 9, (1, count))
        mask = torch.arange(rooms or self.others[0].keys.shape[2]) <= self.others[0].count + torch.arange(count)[:, None]
        with torch.no_grad():
            torch.testing.assert_close(self.compiled(tokens, mask, self.caches), self.other(tokens, mask, self.others))
        assert self.model.log == self.other.log
        for ours, theirs in zip(self.caches, self.others):
            torch.testing.assert_close([ours.keys, ours.values, ours.count], [theirs.keys, theirs.values, theirs.count])

    @property
    def stats(self) -> Any:
        return capture.stats(self.compiled)


@BACKENDS
def test_one_graph_for_all_lengths(options: dict[str, Any]) -> None:
    run = Beside(options)
    for prompt, room in (5, ROOM), (9, ROOM + 40), (4, ROOM), (12, ROOM + 7):
        run.begin(room)
        for count in (prompt, *[1] * 4):
            run(count)
    assert run.stats.captures <= 3 and not run.stats.breaks and not run.stats.native_calls, run.stats
    assert run.stats.hits >= 16


@BACKENDS
def test_a_full_cache(options: dict[str, Any]) -> None:
    """The handler finds the state that eager mode has where a place is out of range: in a later layer, or at once."""
    run = Beside(options)
    for count in 5, 1, 1, 7, 1, 1:
        run(count)
    for start in (-2, -1, 1 - ROOM):                # the last layer's cache is fuller than the others, or its counter is wrong
        run.begin(ROOM)
        for caches in run.caches, run.others:
            caches[0].count.fill_(3)
            caches[-1].count.fill_(ROOM + start)
        for count in 1, 1, 1, 1:
            run(count)
    assert sum(text != "left" for text in run.model.log) >= 4, run.model.log


@BACKENDS
def test_a_mask_that_does_not_fit(options: dict[str, Any]) -> None:
    run = Beside(options)
    for count, rooms in (5, 0), (1, 0), (6, 0), (1, 0), (7, 3), (1, 3), (1, 0), (1, ROOM + 1), (1, 1), (4, 0):
        run(count, rooms)
    assert sum(text != "left" for text in run.model.log) == 3, run.model.log


def test_generate() -> None:
    """Of `transformers`, with one cache used again."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=99, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32, num_key_value_heads=4,
        max_position_embeddings=8192, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    eager = transformers.LlamaForCausalLM(config).eval()
    model = copy.deepcopy(eager)
    model.forward = capture.compile(model.forward, backend="eager")  # type: ignore[method-assign]
    caches = [transformers.StaticCache(config, max_cache_len=5000) for _ in range(2)]
    for length, count in (5, 6), (9, 4), (7, 5), (6, 8), (3, 4):
        prompt = torch.randint(3, 99, (1, length))
        said = []
        for program, cache in zip((eager, model), caches):
            cache.reset()
            said.append(program.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count, min_new_tokens=count,
                                         past_key_values=cache, do_sample=False, disable_compile=True))
        assert torch.equal(*said)
    stats = capture.stats(model.forward)
    assert stats.captures <= 4 and not stats.breaks and not stats.native_calls, stats


# --- indices along a dimension

CHANGES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "index_copy_": lambda table, index: table.index_copy_(0, index, torch.ones(len(index), 256)),
    "index_add_": lambda table, index: table.index_add_(dim=0, index=index, source=torch.ones(len(index), 256)),
    "index_fill_": lambda table, index: table.index_fill_(-2, index, 2.0),
    "index_select": lambda table, index: table.mul_(table.index_select(0, index).mean() + 2),
    "torch.index_select": lambda table, index: table.mul_(torch.index_select(table, 1, index).mean() + 2),
}


@pytest.mark.parametrize("rows", [(2000,), (2000, 2100, 1900)], ids=["one size", "sizes"])
@BACKENDS
@pytest.mark.parametrize("name", CHANGES)
def test_indices_along_a_dimension(name: str, options: dict[str, Any], rows: tuple[int, ...]) -> None:
    log: list[str] = []

    def change(table: Tensor, other: Tensor, index: Tensor) -> Tensor:
        try:
            other.add_(1)
            return CHANGES[name](table, index).sum()
        except (IndexError, RuntimeError) as error:
            log.append(type(error).__name__)
            return other.sum()
    compiled = capture.compile(change, **options)
    for call in range(10):
        size = rows[call % len(rows)]
        last = (255, 3, 255, 254, size, 7, 1, -1, 255, 0)[call]
        worlds = [[torch.arange(size * 256.0).view(size, 256) / 1e6, torch.zeros(size, 256), torch.tensor([1, 5, last])]
                  for _ in range(2)]
        ours = compiled(*worlds[0])
        seen = log[:]
        log.clear()
        torch.testing.assert_close(ours, change(*worlds[1]))
        torch.testing.assert_close(worlds[0], worlds[1])
        assert seen == log
        log.clear()
    assert capture.stats(compiled).hits


# --- sizes that do not go together

SIZED: dict[str, Callable[[Tensor, int], Tensor]] = {
    "zeros": lambda x, n: torch.zeros(n - 5).sum(),
    "full": lambda x, n: torch.full((2, n - 5), 1.5).sum(),
    "new_ones": lambda x, n: x.new_ones(n - 5, 2).sum(),
    "arange": lambda x, n: torch.arange(5, n).sum() + 0.5,
    "place": lambda x, n: x[5].sum() + x[-5].sum(),
    "counted place": lambda x, n: x[n - 5].sum(),
    "grouped heads": lambda x, n: nn.functional.scaled_dot_product_attention(
        x.view(1, -1, 1, 2), torch.ones(1, 2, 3, 2), torch.ones(1, 2, 3, 2), enable_gqa=True).sum(),
    "mask": lambda x, n: nn.functional.scaled_dot_product_attention(
        x.view(1, 1, n, 2), torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3, 2), torch.zeros(6, 3)).sum(),
}


@BACKENDS
@pytest.mark.parametrize("name", SIZED)
def test_sizes_that_fail(name: str, options: dict[str, Any]) -> None:
    """A later size that an operation refuses is met by the handler, after what came before it and nothing else."""
    log: list[str] = []

    def sized(x: Tensor, other: Tensor) -> Tensor:
        try:
            other.add_(1)
            return SIZED[name](x, x.shape[0])
        except (RuntimeError, IndexError) as error:
            log.append(type(error).__name__)
            return other.sum()
    compiled = capture.compile(sized, **options)
    ours, theirs = torch.zeros(2, 1200, 256)
    for size in 6, 8, 10, 12, 6, 4, 9, 7, 1, 6, 16:
        x = torch.arange(2.0 * size).view(size, 2)
        got = compiled(x, ours)
        seen = log[:]
        log.clear()
        torch.testing.assert_close(got, sized(x, theirs))
        assert seen == log
        assert torch.equal(ours, theirs)
        log.clear()
    assert capture.stats(compiled).hits
