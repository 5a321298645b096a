"""Operations of which users' programs make sizes: pooling over whole images, distributions, tensors made like others."""
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.distributions import Bernoulli, Categorical, Normal
from torch.nn import functional as F

from tests.helpers import call, check

LABELS = torch.tensor([[1, 2], [2, 1]]), torch.tensor([4, 4]), torch.tensor([2, 2])
TABLE = torch.linspace(-1, 1, 30).reshape(10, 3)


def image(x: torch.Tensor) -> torch.Tensor:
    return x[None, None]


def indices(x: torch.Tensor) -> torch.Tensor:
    return (x.abs() * 3).long() % 10


PROGRAMS: dict[str, Callable[[torch.Tensor], object]] = {
    "average over all": lambda x: F.avg_pool2d(image(x), x.size()),
    "average over rows": lambda x: F.avg_pool2d(image(x), (x.size(0), 2)),
    "average over half": lambda x: F.avg_pool2d(image(x), (x.size(0) // 2, 1)),
    "average of volumes": lambda x: F.avg_pool3d(image(x)[None], (1, x.size(0), 2)),
    "maximum over rows": lambda x: F.max_pool2d(image(x), (x.size(0), 1)),
    "maximum and where": lambda x: F.max_pool2d(image(x), (x.size(0), 1), return_indices=True),
    "maximum, rounded up": lambda x: F.max_pool2d(image(x), (x.size(0) - 1, 2), stride=1, ceil_mode=True),
    "maximum over time": lambda x: F.max_pool1d(x.t()[None], x.size(0)).squeeze(2),
    "norm over all": lambda x: F.lp_pool2d(image(x), 2, (x.size(0), 2), stride=(x.size(0), 2)),
    "adaptive maximum": lambda x: F.adaptive_max_pool1d(x.t()[None], 1).view(1, -1),
    "adaptive maximum and where": lambda x: F.adaptive_max_pool2d(image(x), (None, 2), return_indices=True),
    "a product from the left": lambda x: x.__rmatmul__(x.t()[None].repeat(2, 1, 1)),
    "windows": lambda x: F.unfold(image(x), (2, 2), padding=1, stride=2),
    "sampled": lambda x: F.grid_sample(image(x), torch.zeros(1, x.shape[0], 3, 2)),
    "affine": lambda x: F.affine_grid(torch.eye(2, 3)[None].repeat(x.shape[0], 1, 1), (x.shape[0], 1, 4, 4)),
    "a loss of sequences": lambda x: F.ctc_loss(x.t()[:, None].expand(4, 2, -1).log_softmax(-1), *LABELS, reduction="none"),
    "bags": lambda x: F.embedding_bag(indices(x), TABLE),
    "bags at offsets": lambda x: F.embedding_bag(indices(x).view(-1), TABLE, torch.arange(0, x.numel() + 1, 2), None, 2.0, False,
                                                 "sum", False, None, True),
    "normal": lambda x: torch.normal(x, x.exp()), "normal of numbers": lambda x: torch.normal(0.0, 1.0, (x.shape[0], 2)),
    "normal in place": lambda x: x.new_empty(x.shape[0], 3).normal_(),
    "a density": lambda x: Normal(x, x.exp()).log_prob(x), "drawn": lambda x: Normal(x, x.exp()).rsample(),
    "classes": lambda x: Categorical(logits=x).entropy(), "a class": lambda x: Categorical(logits=x).sample(),
    "bits": lambda x: Bernoulli(logits=x).sample(),
    "type": lambda x: x * 2 if x.type() == "torch.FloatTensor" else x,
    "new": lambda x: x.new(x.shape[0], 3).zero_() + 1, "new as": lambda x: x.new(x.size()).zero_() + x,
    "new of data": lambda x: x.new([1.0, 2.0]) + x.sum(), "new tensor": lambda x: x.new_tensor([[1.0], [2.0]]) + x.sum(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_two_captures_do(name: str) -> None:
    steps = [call(torch.linspace(-1, 1, 4 * n).reshape(n, 4)) for n in (4, 6, 8, 14, 5)]
    check(lambda: PROGRAMS[name], *steps, captures=2)


# Names that torch's functions have from numpy.
NUMPY_NAMES: dict[str, Callable[[torch.Tensor], object]] = {
    "max": lambda x: torch.max(x, axis=1), "min": lambda x: x.min(axis=0, keepdims=True), "median": lambda x: x.median(axis=1),
    "mode": lambda x: torch.mode(x, axis=1), "var_mean": lambda x: torch.var_mean(x, axis=1, keepdims=True),
    "std": lambda x: torch.std(x, axis=1), "sum": lambda x: torch.sum(x, axis=0, keepdims=True),
    "all": lambda x: (x > 0).all(axis=1),
    "argmin": lambda x: torch.argmin(x, axis=0, keepdims=True), "amax": lambda x: torch.amax(x=x, axis=(0, 1)),
    "aminmax": lambda x: torch.aminmax(x, axis=1), "kthvalue": lambda x: torch.kthvalue(x, 1, axis=1),
    "cat": lambda x: torch.cat([x, x], axis=0), "stack": lambda x: torch.stack([x, x], axis=1),
    "unbind": lambda x: x.unbind(axis=1),
    "unsqueeze": lambda x: x.unsqueeze(axis=1), "select": lambda x: torch.select(x, axis=1, index=0),
    "gather": lambda x: torch.gather(x, axis=1, index=indices(x) % 2), "chunk": lambda x: torch.chunk(x, 2, axis=1),
    "narrow": lambda x: torch.narrow(x, axis=1, start=0, length=2), "softmax": lambda x: torch.softmax(x, axis=1),
    "matmul": lambda x: torch.matmul(x, x2=x.t()), "maximum": lambda x: torch.maximum(x1=x, x2=x * 2),
    "exp": lambda x: torch.exp(x=x),
    "two vectors": lambda x: F.cosine_similarity(x1=x, x2=x + 1, dim=0), "distances": lambda x: torch.cdist(x1=x, x2=x)}


@pytest.mark.parametrize("name", NUMPY_NAMES)
def test_names_of_numpy(name: str) -> None:
    steps = [call(torch.linspace(-1, 1, 4 * n).reshape(n, 4)) for n in (4, 6, 8, 14, 5)]
    check(lambda: NUMPY_NAMES[name], *steps, captures=2)


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
@pytest.mark.parametrize("key", [[[0, 1], [1, 2]], [[0, 2]], [(0, 1), [2, 1]], [0, 1], ([[0, 1], [1, 2]],), [[0, 1]] * 32])
def test_subscripts_of_lists(key: object) -> None:
    """torch takes some lists of lists for tuples."""
    check(lambda: lambda x: x[key] + 1, *[call(torch.arange(4.0 * n).view(n, 4)) for n in (4, 6, 8, 6)], captures=None)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_size_is_no_data(backend: str) -> None:
    options = {"options": {"background": False}} if backend == "native" else {}
    for program in (lambda x: x.new(x.size()).zero_(), lambda x: x.new(torch.Size([2, 3]), device="cpu").fill_(2),
                    lambda x: x.new((2, 3)), lambda x: x.new(x[0, 0].size()).zero_(), lambda x: x.new(),
                    lambda x: torch.Tensor.new(x.long(), x.size()).zero_()):
        check(lambda program=program: program, *[call(torch.ones(3, 4))] * 3, backend=backend, **options)


NUMBERS: dict[str, Callable[[torch.Tensor, int], object]] = {
    "counts": lambda x, n: torch.bincount(indices(x).flatten(), minlength=n) * 2,
    "counts of rows": lambda x, n: torch.bincount(indices(x)[:, 0], x[:, 0], x.size(0)), "float": lambda x, n: x * float(x.size(0)),
    "float of a number": lambda x, n: x + float(n * 3)}


@pytest.mark.parametrize("options", [{}, {"backend": "native", "options": {"background": False}, "tolerance": 1e-5}],
                         ids=["graph", "kernels"])
@pytest.mark.parametrize("name", NUMBERS)
def test_two_captures_do_with_numbers(name: str, options: dict[str, object]) -> None:
    steps = [call(torch.linspace(-1, 1, 4 * size).reshape(size, 4), n) for size, n in (
        (4, 7), (6, 3), (9, 15), (14, 31), (5, 2), (4, 11), (7, 1), (31, 1000), (2, 0))]
    stats = check(lambda: NUMBERS[name], *steps, captures=2, **options)  # type: ignore[arg-type]
    assert not options or stats.compiled and not stats.compile_errors
