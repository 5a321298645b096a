"""Values that only a hit can compute: what tensors hold, and what effects return. They may be passed on, formatted and
calculated with; a decision on one cuts the trace where it is made."""
from __future__ import annotations

import contextlib
import io
import random
import time

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import capture
from tests.helpers import call, check

X = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
CALLS = call(X), call(X + 1), call(-X)
str(X), float(torch.ones(1, requires_grad=True))    # torch imports, and warns, at the first use only


def one_graph(make, *steps, **options):
    """The program is one graph without a break, and the same as in eager mode."""
    return check(make, *(steps or CALLS), graphs=1, breaks=0, **options)


# --- decisions on what is computed on every call

def branches_on_a_draw(x):
    if random.random() < 0.5:
        x = x * random.random()
    print(x.sum())
    return x + random.uniform(0, 1)


def branches_on_an_item(x):
    total = x.sum().item()
    print("total", total)
    y = x * 2
    if total > 3:
        return y, "big"
    return y - 1, "small"


def indexes_and_counts(x):
    n = int(x.abs().max())
    return x * 2, [10, 20, 30, 40, 50, 60][n], {4: "four", 5: "five"}.get(n), [i for i in range(n)], torch.zeros(n), x.view(-1)[:n]


def asks_for_the_type(x):
    value = x.sum().item()
    return x * 2, isinstance(value, float), isinstance(f"{value}", str), value is None, random.choice([1, None]) is None


def times_the_work(x):
    start = time.perf_counter()
    y = x @ x
    middle = time.perf_counter()
    z = y @ x
    return z, start < middle < time.perf_counter()


@pytest.mark.parametrize("program", [
    branches_on_a_draw, branches_on_an_item, indexes_and_counts, asks_for_the_type, times_the_work],
                         ids=lambda program: program.__name__)
def test_a_decision_cuts_the_trace_where_it_is_made(program) -> None:
    stats = check(lambda: program, *CALLS, *CALLS, captures=None, fullgraph=False)
    assert stats.breaks and stats.hits and not stats.bailouts


def test_a_number_of_numpy_is_converted_again_on_every_call() -> None:
    def program(x, number):
        return x * 2, float(number), f"{float(number):.1f}"
    one_graph(lambda: program, *[call(X, numpy.float64(n)) for n in range(3)])


def test_work_between_clocks_is_done_between_them_on_a_hit() -> None:
    def program(x):
        start = time.perf_counter()
        for _ in range(4):
            x = x @ x * 0.01
        middle = time.perf_counter()
        return x + 1, middle - start, time.perf_counter() - middle
    compiled = capture.compile(program, backend="eager")
    x = torch.rand(300, 300)
    results = [compiled(x) for _ in range(8)]
    assert min(work for _, work, _ in results[1:]) > min(rest for _, _, rest in results[1:]) and capture.stats(compiled).hits >= 7


# --- truth

def asks_without_deciding(x):
    done = bool(x.sum() > 3)
    print("done", done, not x[0, 0] > 0, x.max().__bool__())
    FLAGS.append(done & bool(x.min() < 0))
    return x * 2, done, not done, bool(x.sum().item())


def sorts_what_it_shows(x):
    metrics = {"loss": x.sum().item(), "acc": x.mean().item(), "top": x.max().item()}
    for name, value in sorted(metrics.items()):
        print(name, value)
    return sorted([("b", x[0, 0].item()), ("a", 1.0)]), ("a", x.min().item()) < ("b", 2.0), x * 2


def adds_in_place(x):
    total = 0
    for row in x.tolist():
        for value in row:
            total += value
    count = 1
    count *= x.sum().item()
    count -= 2
    return x * total + count, total, count


@pytest.mark.parametrize("program", [sorts_what_it_shows, adds_in_place], ids=lambda program: program.__name__)
def test_values_among_what_is_known(program) -> None:
    one_graph(lambda: program)


def test_tuples_that_differ_in_a_value_only_are_not_in_a_known_order() -> None:
    def program(x):
        first = sorted([("a", x[0, 0].item()), ("a", x[1, 1].item())])
        return first, sorted([(x.max().item(), "a"), (x.min().item(), "b")], reverse=True), x * 2
    stats = check(lambda: program, *CALLS, *CALLS, captures=None, fullgraph=False)
    assert stats.breaks and not stats.native_calls, stats


FLAGS: list[bool] = []


def test_truth_that_is_passed_on() -> None:
    def make():
        FLAGS.clear()
        return asks_without_deciding, FLAGS
    one_graph(make)


def decides_by_a_flag(x):
    big = bool(x.sum() > 3)
    print(big)
    y = x * 2
    if big:
        return y + 1
    return y if not x[0, 0] > 0 and x[0, 1] else y - 1


def stops_by_a_flag(x):
    rounds = 0
    while not bool(x.abs().sum() > 50):
        x = x * 2
        rounds += 1
        assert x.isfinite().all(), "finite"
    return x, rounds


@pytest.mark.parametrize("program", [decides_by_a_flag, stops_by_a_flag], ids=lambda program: program.__name__)
def test_truth_that_decides_cuts(program) -> None:
    stats = check(lambda: program, *CALLS, *CALLS, call(X * 9), captures=None, fullgraph=False)
    assert stats.breaks and stats.hits and not stats.bailouts and not stats.native_calls and stats.captures <= 12, stats


def test_the_truth_of_several_elements_raises_as_in_eager() -> None:
    def program(x):
        y = x * 2
        try:
            flag = bool(y)
        except RuntimeError as error:
            flag = str(error)
        return y, flag
    check(lambda: program, *CALLS, call(X[:1, :1]), call(X[:1, :1]), captures=None, fullgraph=False)


# --- values of tensors that are passed on

def passes_items_on(x):
    total = x.sum().item()
    ITEMS.append(total)
    return x * 2, total, float(x[0, 0]), int(x[1, 0]), x.tolist(), x.argmax().item()


ITEMS: list[float] = []


def formats(x):
    loss = x.abs().mean()
    old = "%s %.2f" % (x, loss), "{:.4f} {a}".format(loss.item(), a=x[0])
    return x * 2, f"{x}", f"loss {loss:.3f}", old, str([x, 1]), repr(loss)


def calculates_with_items(x):
    total = x.sum().item()
    return x * total + total, total * 2 + 1, round(total, 2), x.div(total + 10), max(total, 1.0), x.clamp(max=total)


def sums_a_list(x):
    return x + sum(x.view(-1).tolist())


def keeps_a_value_before_a_write(x):
    y = x * 2
    first = y[0, 0].item()
    y.add_(5)
    return y, first, y[0, 0].item()


@pytest.mark.parametrize("program", [passes_items_on, formats, calculates_with_items, sums_a_list, keeps_a_value_before_a_write],
                         ids=lambda program: program.__name__)
def test_values_of_tensors(program) -> None:
    def make():
        ITEMS.clear()
        return program, ITEMS
    one_graph(make)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64], ids=str)
def test_numbers_in_arithmetic_keep_types_and_bits(dtype) -> None:
    def program(x, y):
        n = x.max().item()
        y *= n
        return x * n, x + n * 3, n - x, y, x.sum() * n, x.float() * (n + 0.1), torch.add(x, n)
    x = torch.tensor([3.0, 1.0, 7.0]).to(dtype)
    one_graph(lambda: program, call(x, x + 1), call(x + 1, x), call(x * 3, x), hits=2)


class Queue(nn.Module):
    """Keys are written around the end of a queue, where a pointer in a buffer says."""

    def __init__(self):
        super().__init__()
        self.register_buffer("queue", torch.zeros(2, 6))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    def forward(self, x):
        pointer = int(self.pointer)
        self.queue[:, pointer:pointer + 2] = x
        row, last = self.queue[:, pointer], self.queue.select(1, pointer)
        pointer = (pointer + 2) % self.queue.shape[1]
        self.pointer[0] = pointer
        return row + 1, last * 2, pointer


def test_positions_that_a_tensor_holds() -> None:
    check(Queue, *CALLS, *CALLS, captures=2, breaks=0)


def test_a_position_moves_a_view() -> None:
    def program(x, n):
        row = x[int(n.sum())]
        return row, row.storage_offset(), x[int(n.sum()), :1]
    one_graph(lambda: program, *(call(X, torch.tensor([n])) for n in (0, 1, 0)))


def sizes_among_items(x):
    lengths = (x.abs().sum(1)).long().tolist()
    mask = torch.zeros(len(lengths), max(lengths))
    for i, n in enumerate(lengths):
        mask[i, :n] = 1
    return mask, torch.ones(sum(lengths)), torch.zeros(min(*lengths), 1), torch.arange(max(lengths) + 1)


def takes_as_many(x):
    n = int(x.abs().max())
    taken = x.view(-1)[:n]
    return taken * 2, taken.shape[0], x.view(-1)[1:n].sum(), x.roll(n, 0), x[0].narrow(0, n % 2, 1)


def fills_with_an_item(x):
    return torch.full((2,), x.mean().item()), torch.tensor([x[0, 0].item(), 1.0]), x.new_full((1,), int(x[1, 1]))


def sizes_of_results(x):
    n = int(x.abs().max())
    positive = x[x > 0]
    k = positive.shape[0]
    mask = torch.arange(n)[None] < torch.tensor([[1], [2]])
    largest = x.abs().max().long()
    return (torch.arange(largest).shape, torch.zeros(largest, 1).numel(), x.view(-1)[1:largest].shape[0], torch.zeros(n, 2),
            mask.sum(1), F.pad(x, [0, n]), x.view(-1).topk(min(n, 2))[0], positive.view(k, 1) * 2,
            positive.new_ones(positive.shape), x.new_ones((n, 1)), x.repeat(n, 1), torch.linspace(0, 1, n),
            x[None].expand(n, -1, -1).mean(0), mask.shape[1] + 1)


@pytest.mark.parametrize("program", [takes_as_many, fills_with_an_item, sizes_of_results, sizes_among_items],
                         ids=lambda program: program.__name__)
def test_slices_and_fillings(program) -> None:
    one_graph(lambda: program)


class Packed(nn.Module):
    """Sequences of lengths that tensors hold."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(2, 2, batch_first=True)

    def forward(self, x, lengths):
        by_number = pack_padded_sequence(x, lengths.tolist(), batch_first=True)
        by_tensor = pack_padded_sequence(x, (x[..., 0] > -100).sum(1), batch_first=True, enforce_sorted=False)
        (y, n), (z, _) = (pad_packed_sequence(self.rnn(packed)[0], batch_first=True) for packed in (by_number, by_tensor))
        return y, n, z.view(z.size(0), z.size(1), 2, -1).sum(2)


def test_packed_sequences_of_any_length() -> None:
    x = torch.linspace(-1, 1, 12).view(2, 3, 2)
    one_graph(Packed, *(call(x, torch.tensor(lengths)) for lengths in ([3, 2], [2, 1], [3, 3])))


@pytest.mark.parametrize("index", [lambda n: int(n), lambda n: (0, int(n)), lambda n: slice(None, int(n))],
                         ids=["row", "item", "slice"])
def test_a_position_out_of_range(index) -> None:
    def raises(x, n):
        return x.exp()[index(n.sum())]

    def catches(x, n):
        y = x.clone()
        try:
            y[index(n.sum())] = x[0, 0]
            z = torch.zeros(3 - n.sum().item())
        except (IndexError, RuntimeError):
            y, z = y - 1, None
        return y, z
    calls = [call(X, torch.tensor([n])) for n in (0, 1, 7, 1)]
    check(lambda: raises, *calls, captures=None)
    check(lambda: catches, *calls, captures=None, fullgraph=False)


def test_gradients_of_what_is_shown() -> None:
    def make():
        model = nn.Linear(2, 2)

        def program(x):
            y = model(x)
            loss = y.square().mean()
            print(f"loss {loss:.4f}", loss, y)
            return loss * loss.item()
        return program, model
    one_graph(make, *CALLS, backward=True)


def test_the_native_backend_prints_the_same() -> None:
    def program(w):
        y = (w * 2).relu()
        print(y, y.sum())
        y = y + y.sum().item()
        return y, f"{y}"
    compiled = capture.compile(program, fullgraph=True, backend="native")
    for scale in (1, 2, 3):
        outputs = []
        for function in (compiled, program):
            weight = (X * scale).requires_grad_()
            with contextlib.redirect_stdout(io.StringIO()) as output:
                y, text = function(weight)
            y.sum().backward()
            outputs.append((output.getvalue(), text, weight.grad.tolist()))
        assert outputs[0] == outputs[1]
        capture.wait()
    assert capture.stats(compiled).compiled == 1 and not capture.stats(compiled).compile_errors


READS = {
    "text": str,
    "items": torch.Tensor.tolist,
    "a row": lambda t: str(t[0]),
    "an item": lambda t: t[0].item(),
    "printed": print,
}
WRITES = {
    "a module": lambda m, x: m(x),
    "a function": lambda m, x: torch.nn.functional.batch_norm(x, m.running_mean, m.running_var, training=True),
    "the operator": lambda m, x: torch.batch_norm(x, m.weight, m.bias, m.running_mean, m.running_var, True, 0.1, 1e-5, False),
    "the kernel": lambda m, x: torch.native_batch_norm(x, m.weight, m.bias, m.running_mean, m.running_var, True, 0.1, 1e-5)[0],
    "statistics": lambda m, x: torch.batch_norm_update_stats(x, m.running_mean, m.running_var, 0.1),
    "of instances": lambda m, x: torch.nn.functional.instance_norm(x.t()[None], m.running_mean, m.running_var),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_running_statistics_are_read_before_they_are_written(read, write) -> None:
    """Normalisations count no version of what they write to."""
    def make():
        model = torch.nn.BatchNorm1d(2)

        def program(x):
            before = read(model.running_mean)
            y = write(model, x)
            return before, y, read(model.running_mean), read(model.running_var)
        return program, model
    x = torch.tensor([[1.0, -2.0], [3.0, 5.0]])
    check(make, call(x), call(x + 1), call(-x))


TEXTS = {
    "a method of text": lambda x: x * float(str(x[0, 0].item()).strip()),
    "a format": lambda x: x * float(f"{x[0, 0].item():.1f}".upper()),
    "a method of numbers": lambda x: x + int(x[0, 0].item()).bit_length(),
}


@pytest.mark.parametrize("program", TEXTS.values(), ids=TEXTS)
def test_methods_of_what_was_read(program) -> None:
    check(lambda: program, *CALLS, captures=None, fullgraph=False)


def test_the_address_of_a_tensor_that_is_given_other_memory() -> None:
    def make():
        tensor = torch.zeros(2)

        def program(x):
            before, address = tensor.data, tensor.data_ptr()
            tensor.data = x[0].clone()
            return before.data_ptr() == address, tensor.data_ptr() == before.data_ptr(), tensor.data_ptr() == address
        return program, tensor
    check(make, *CALLS, captures=None, fullgraph=False)


def test_how_many_values_there_are_decides() -> None:
    def program(x):
        metrics, items, pair = {"loss": x.sum().item()}, [x[0, 0].item()], (x.max().item(), random.random())
        if not metrics or not items or not pair:
            return x
        while items:
            metrics[f"item{len(items)}"] = items.pop()
        return x + len(pair), metrics, "loss" in metrics, len(metrics) > 1, bool(items), [*metrics], metrics and "some", not pair
    one_graph(lambda: program)


def test_members_of_a_set_that_are_equal_are_one() -> None:
    def program(x):
        members = {x[0, 0].item(), x[0, 1].item()}
        return x * 2, len(members)
    check(lambda: program, call(X), call(X), call(torch.ones(2, 2)), captures=None, fullgraph=False, breaks=None)
