"""What decides and is another one on each call does not cost a capture each: after a few the trace ends where it does."""
from __future__ import annotations

import types

import pytest
import torch
from torch.nn import functional as F

import capture
from tests.helpers import call, check

X = torch.arange(24.0).view(6, 4)


def counted(program, *steps, most):
    """The program is as in eager mode, runs in traces alone, and is captured so often at most."""
    stats = check(program, *steps, captures=None, fullgraph=False)
    assert stats.captures <= most and not stats.native_calls and not stats.bailouts, stats
    return stats


# --- numbers and strings

DECIDING = {
    "size": lambda x, n: torch.zeros(n) + 1,
    "shape": lambda x, n: x.repeat(n, 1).view(n, -1) * 2,
    "dimension": lambda x, n: x.sum() + torch.ones(24).view(-1, n if 24 % n == 0 else 1).sum(0),
    "interpolation": lambda x, n: F.interpolate(x[None, None], size=(n, n)).relu(),
    "loop": lambda x, n: sum((x * i for i in range(n)), x),
    "list": lambda x, n: [x + i for i in range(n)],
    "key": lambda x, n: x * {i: float(i) for i in range(30)}[n],
    "name": lambda x, n: x * getattr(types.SimpleNamespace(**{f"v{i}": i for i in range(30)}), f"v{n}"),
    "steps": lambda x, n: torch.linspace(0, 1, n).cumsum(0) * x[0, 1],
}


@pytest.mark.parametrize("name", DECIDING)
def test_a_number_that_decides(name) -> None:
    counted(lambda: DECIDING[name], *(call(X, n) for n in range(1, 21)), *(call(X, n) for n in (20, 3, 1)), most=14)


def test_a_whole_graph_is_captured_for_each() -> None:
    check(lambda: lambda x, n: torch.zeros(n) + x.sum(), *(call(X, n) for n in range(1, 8)), captures=7, dynamic=False)


def test_the_report_says_what_decides_and_what_to_do() -> None:
    compiled = capture.compile(lambda x, n: torch.zeros(n) + x.sum(), backend="eager", dynamic=False)
    for n in range(1, 8):
        assert torch.equal(compiled(X, n), torch.zeros(n) + X.sum())
    text = str(capture.explain(compiled))
    assert "[changing-value]" in text and "the program depends on the value of n" in text, text


def test_a_few_values_are_traces_of_their_own() -> None:
    check(lambda: lambda x, n: x.view(n, -1) * 2, *(call(X, n) for n in (1, 2, 3, 1, 2, 3)), captures=3, hits=3, fullgraph=False,
          dynamic=False)


def test_numbers_that_decide_inside_of_other_things() -> None:
    def make():
        class Context:
            def __enter__(self):
                log.append("in")

            def __exit__(self, *raised):
                log.append("out")
        log = []

        def inner(x, n):
            with Context():
                for i in range(2):
                    x = torch.cat([x, torch.zeros(n, 4)])
                return x * 2

        def program(x, n):
            try:
                return inner(x, n) + 1
            finally:
                log.append(n)
        return program, log
    counted(make, *(call(X, n) for n in range(1, 16)), most=20)


# --- lists and dicts

def history(use):
    def make():
        state = types.SimpleNamespace(losses=[], table={})

        def program(x):
            loss = (x * x).mean()
            state.losses.append(loss.item())
            return x - loss, use(state)
        return program, state
    return make


@pytest.mark.parametrize("use", [
    lambda state: sum(state.losses[-3:]) / 3, lambda state: sum(state.losses[-10:]) / len(state.losses[-10:]),
    lambda state: sum(state.losses) / len(state.losses), lambda state: torch.tensor(state.losses).mean(),
    lambda state: max(state.losses), lambda state: [loss * 2 for loss in state.losses], lambda state: list(enumerate(state.losses)),
    lambda state: sorted(state.losses)[0], lambda state: state.losses.pop(0) if len(state.losses) > 5 else None,
    lambda state: state.losses == [1.0], lambda state: state.table.update({len(state.table): 1}) or list(state.table),
    lambda state: state.table.update({str(len(state.table)): 1}) or sum(state.table.values()),
], ids=lambda f: None)
def test_a_history_that_grows(use) -> None:
    counted(history(use), *(call(X + i) for i in range(20)), most=16)


def test_tensors_that_are_gathered() -> None:
    def make():
        state = types.SimpleNamespace(seen=[])

        def program(x):
            state.seen.append(x.mean(0))
            return torch.stack(state.seen).sum(0) * 2
        return program, state
    counted(make, *(call(X + i) for i in range(15)), most=8)


# --- loops that values end

def boxes(seed, count=12):
    torch.manual_seed(seed)
    corner = torch.rand(count, 2) * 4
    return torch.cat([corner, corner + 1 + torch.rand(count, 2)], 1), torch.rand(count)


def overlap(a, b):
    size = (torch.minimum(a[2:], b[:, 2:]) - torch.maximum(a[:2], b[:, :2])).clamp(min=0)
    common = size[:, 0] * size[:, 1]
    return common / ((a[2] - a[0]) * (a[3] - a[1]) + (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1]) - common)


def suppresses_by_order(b, scores):
    order, keep = scores.argsort(descending=True), []
    while order.numel() > 0:
        best = order[0]
        keep.append(best)
        if order.numel() == 1:
            break
        order = order[1:][overlap(b[best], b[order[1:]]) <= 0.2]
    return torch.stack(keep)


def suppresses_by_numbers(b, scores):
    order, keep = scores.sort(descending=True)[1], []
    while len(order):
        best = order[0].item()
        keep.append(best)
        order = order[torch.where(overlap(b[best], b[order]) < 0.2)[0]]
    return torch.tensor(keep), b[keep]


def suppresses_boxes(b, scores):
    kept = []
    while b.shape[0]:
        best = scores.argmax()
        kept.append((b[best], scores[best]))
        rest = overlap(b[best], b) < 0.2
        b, scores = b[rest], scores[rest]
    return [box * 2 for box, _ in kept], sum(score for _, score in kept)


@pytest.mark.parametrize("program", [suppresses_by_order, suppresses_by_numbers, suppresses_boxes], ids=lambda p: p.__name__)
def test_suppression_of_boxes(program) -> None:
    counted(lambda: program, *(call(*boxes(seed)) for seed in range(8)), most=8)


def decodes(x, limit):
    tokens = [1]
    while tokens[-1] != 0 and len(tokens) < limit:
        logits = x[tokens[-1] % 6] * (len(tokens) + 1)
        tokens.append(int(logits.argmax()) * 7 % 5)
    return torch.tensor(tokens)


def test_decoding_to_an_end() -> None:
    counted(lambda: decodes, *(call(X.roll(i, 0).roll(i, 1), 12) for i in range(10)), most=10)


def attends(x, edges):
    kept = edges[:, edges[0] != edges[1]]
    if kept.numel() > 0:
        messages = x[kept[0]] * (x[kept[0]] * x[kept[1]]).sum(1, keepdim=True).sigmoid()
        return x + torch.zeros_like(x).index_add_(0, kept[1], messages)
    return x - 1


def test_a_branch_on_how_many_edges_are_left() -> None:
    def edges(seed):
        torch.manual_seed(seed)
        return torch.randint(0, 6, (2, 10)) if seed % 3 else torch.arange(6).repeat(2, 1)[:, :4].contiguous()
    counted(lambda: attends, *(call(X / 10, edges(seed)) for seed in range(1, 10)), most=6)


class Named:
    """An object that is asked for its attributes in Python, and tells."""

    def __init__(self):
        self.asked = []

    def __getattr__(self, name):
        if not name.startswith("__deep"):
            self.asked.append(name)
        raise AttributeError(name)


def test_why_a_call_did_not_hit_is_told_without_asking_the_programs_objects():
    def make():
        key = Named()
        kept = {key: 1.0}
        return lambda x: x * kept[key], types.SimpleNamespace(key=key, kept=kept)

    def change(state):
        state.kept[state.key] = 2.0
    stats = check(make, call(X), change, call(X), lambda state: setattr(state.key, "more", 1), change, call(X), captures=None)
    assert stats.captures == 2 and stats.misses
