"""Which random number an element of a dropout gets on a GPU, as ATen's kernels have it: a model, for when ours are to draw them.

ATen launches `threads` threads, at most as many as the device runs at once. Thread number t draws from subsequence t of
Philox4x32-10, from the generator's offset on, four numbers at a time. Where all elements can be read `width` at a time, a
thread takes so many neighbouring ones for each draw (or two draws, for 8), else four that are `threads` apart.
"""
from __future__ import annotations

import torch
from torch import Tensor

WORD = 0xFFFFFFFF
BLOCK = 256         # threads of a block of ATen's kernels
DRAWN = 4           # numbers that a thread draws at a time


def philox(seed: int, offset: Tensor, subsequence: Tensor) -> Tensor:
    """The four words of each (offset, subsequence), in a last dimension. An offset counts draws of four."""
    words = [offset & WORD, offset >> 32 & WORD, subsequence & WORD, subsequence >> 32 & WORD]
    key = [seed & WORD, seed >> 32 & WORD]
    for _ in range(10):
        first, second = _product(0xD2511F53, words[0]), _product(0xCD9E8D57, words[2])
        words = [second[1] ^ words[1] ^ key[0], second[0], first[1] ^ words[3] ^ key[1], first[0]]
        key = [key[0] + 0x9E3779B9 & WORD, key[1] + 0xBB67AE85 & WORD]
    return torch.stack(words, -1)


def _product(factor: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """The low and the high word of a product, of which int64 holds each part without overflow."""
    low, high = factor * (word & 0xFFFF), factor * (word >> 16)
    high += low >> 16
    return (high & 0xFFFF) << 16 | low & 0xFFFF, high >> 16


def uniform(words: Tensor) -> Tensor:
    """Words as float32 above 0 and up to 1, as `curand_uniform` makes them."""
    return words.to(torch.float32) * 2.0**-32 + 2.0**-33


def threads_of(elements: int, resident: int) -> int:
    """How many threads draw for so many elements; resident: that the device runs at once."""
    return min(resident // BLOCK, -(-elements // BLOCK)) * BLOCK


def advance(elements: int, resident: int) -> int:
    """By how much the generator's offset grows."""
    return ((elements - 1) // (threads_of(elements, resident) * DRAWN) + 1) * DRAWN


def width_of(elements: int, itemsize: int, most: int) -> int:
    """How many elements a thread reads at a time, in memory that begins at a multiple of 16 bytes; most: of any dtype."""
    width = min(most, 16 // itemsize)
    while elements % width:
        width //= 2
    return width


def drawn(elements: int, seed: int, offset: int, resident: int, width: int) -> Tensor:
    """The number that each element gets, in the order of memory."""
    threads, place = threads_of(elements, resident), torch.arange(elements)
    if width > 1:
        chunk, within = place // width, place % width
        thread, turn = chunk % threads, chunk // threads
        draw, word = turn * -(-width // DRAWN) + within // DRAWN, within % DRAWN
    else:
        thread, turn = place % threads, place // (threads * DRAWN)
        draw, word = turn, place // threads % DRAWN
    return uniform(philox(seed, offset // DRAWN + draw, thread).gather(-1, word[:, None]).squeeze(-1))
