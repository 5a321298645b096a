"""Guards in words: by the object that they are about, and what an explanation says first."""
from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import capture
from capture.reports.source import short
from capture.reports.tree import Condition

SCALE = 3
LIMITS = {"most": 4}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x: Tensor, k: int, name: str) -> Tensor:
        y = self.layers(x)
        if k > LIMITS["most"] or name == "double":
            y = y * SCALE
        return y


def conditions(model: nn.Module, *args: object) -> dict[str, list[str]]:
    """What the first entry requires of each object's state."""
    compiled = capture.compile(model)
    with torch.no_grad():
        compiled(*args)
    frame, = capture.report(compiled).frames
    found: dict[str, list[str]] = {}
    for condition in frame.entries[0].guards:
        assert isinstance(condition, Condition) and str(condition) == condition.expression
        if condition.words:
            found.setdefault(condition.subject, []).append(condition.words)
    return found


def test_the_state_of_each_object_stands_under_its_name() -> None:
    found = conditions(Net(), torch.ones(3, 4), 5, "single")
    assert found["args"] == ["tuple", "has length 3", "[0] float32, (3, 4)"] and found["args[1] > LIMITS['most']"] == ["is true"]
    assert found["self.layers.0"] == ["Linear", ".weight float32, (8, 4), requires_grad", ".bias float32, (8,), requires_grad"]
    assert found["self.layers.1"] == ["ReLU", ".inplace is False"]
    assert found["torch's modes"] == ["grad False"]
    assert not any("hooks" in text or "_modules" in text for texts in found.values() for text in texts)


@pytest.mark.parametrize("decides, first, second, told", [
    (lambda s: s.startswith("a"), "ab", "ac", ("startswith(s, 'a')", "is true")),
    (lambda s: s.strip() == "k", " k ", "k ", ("strip(s) == 'k'", "is true")),
    (lambda s: getattr(1, s.lower()), "REAL", "Imag", ("lower(s)", "is 'imag'")),
    (lambda s: s.bit_length() > 2, 5, 9, ("bit_length(s) > 2", "is true")),
    (lambda s: s.is_integer(), 5.0, 6.0, ("is_integer(s)", "is true")),
])
def test_what_methods_of_a_changing_value_say_is_told(decides: Callable[[Any], Any], first: Any, second: Any,
                                                      told: tuple[str, str]) -> None:
    def f(x: Tensor, s: Any) -> Tensor:
        return x + 1 if decides(s) else x - 1
    compiled = capture.compile(f, backend="eager")
    for value in (first, second):                   # a value that has changed is no longer guarded itself, but what it decides
        assert torch.equal(compiled(torch.ones(2), value), f(torch.ones(2), value))
    frame, = capture.report(compiled).frames
    assert told in [(condition.subject, condition.words) for entry in frame.entries for condition in entry.guards]
    assert told[0] in str(capture.explain(compiled))


def test_a_hook_is_told() -> None:
    net = Net()
    net.layers[1].register_forward_hook(lambda module, args, result: result + 1)
    assert "._forward_hooks is true" in conditions(net, torch.ones(3, 4), 5, "single")["self.layers.1"]


def test_what_is_unusual_of_a_tensor_is_told() -> None:
    compiled = capture.compile(lambda x, y: x + y)
    compiled(torch.ones(3, 4, dtype=torch.float64).t(), torch.ones(3, requires_grad=True))
    frame, = capture.report(compiled).frames
    assert {c.subject: c.words for c in frame.entries[0].guards if c.subject in "xy"} == {
        "x": "float64, (4, 3), strides (1, 4)", "y": "float32, (3,), requires_grad"}


def attends(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    if q.shape[1] > 4:
        q = q[:, -4:]
    scores = q @ k.transpose(1, 2)
    if k.shape[1] % 2:
        scores = scores + 1
    return scores.softmax(-1) * len(mask)


def test_sizes_have_names_and_the_lines_that_decided_by_them() -> None:
    compiled = capture.compile(attends, backend="eager")
    for b, t, n, m in ((2, 6, 8, 3), (4, 8, 10, 5), (3, 9, 12, 5)):
        compiled(torch.ones(b, t, 8), torch.ones(b, n, 8), torch.ones(m, 2))
    frame, = capture.report(compiled).frames
    entry = max(frame.entries, key=lambda entry: entry.hits)
    assert [(size.name, size.paths) for size in entry.sizes] == [
        ("s0", ("q.shape[0]", "k.shape[0]")), ("s1", ("q.shape[1]",)), ("s2", ("k.shape[1]",)), ("s3", ("mask.shape[0]",))]
    told = {condition.words: condition.place for condition in entry.guards if condition.is_of_sizes and condition.words}
    assert set(told) == {"s1 > 4", "(-4 + s1) >= 0", "(s2 % 2) == 0"}
    assert [place.text for place in told.values() if place] == ["if q.shape[1] > 4:", "q = q[:, -4:]", "if k.shape[1] % 2:"]
    text = str(frame)
    assert "    s0 = q.shape[0] = k.shape[0]\n" in text and "    q: float32, (s0, s1, 8)\n" in text
    assert f"    s1 > 4           {short(__file__)}:{told['s1 > 4'].line}: if q.shape[1] > 4:\n" in text
    assert "s0 = q.shape[0] = k.shape[0]" in capture.report(compiled).html() and "(s0, s2, 8)" in capture.report(compiled).json()


def test_a_size_that_the_program_fixed_is_told_as_a_number() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        for i in range(y.shape[0]):
            x = x + i
        return x + y.sum()
    compiled = capture.compile(program, backend="eager")
    for n in (3, 4):
        compiled(torch.ones(n, 2), torch.ones(n, 2))
    entry = max(capture.report(compiled).frames[0].entries, key=lambda entry: entry.at)
    assert [size.paths for size in entry.sizes] == [("x.shape[0]",)]
    assert [c.words for c in entry.guards if c.is_of_sizes] == ["y.shape[0] == 4"]
    assert {c.subject: c.words for c in entry.guards if c.subject in "xy"} == {"x": "float32, (s0, 2)", "y": "float32, (4, 2)"}


def test_an_explanation_begins_with_what_was_captured_and_how_it_runs() -> None:
    def f(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x
    first, *rest = capture.explain(f, torch.ones(3)).splitlines()
    assert "captured with 1 break (1 capture, 1 graph, 2 operations); 0 hits" in first
    text = "\n".join(rest)
    titles = ("remedy:", "entry 0:", "guards: ", "graph:", "mock function:")
    assert sorted(titles, key=text.index) == list(titles)
    assert "    x: float32, (3,)\n" in text and "modes()" not in text and max(map(len, rest)) < 250


def test_a_notebook_shows_the_page() -> None:
    compiled = capture.compile(lambda x: x + 1)
    compiled(torch.ones(2))
    report = capture.report(compiled)
    assert report._repr_html_().startswith("<iframe srcdoc=\"&lt;!DOCTYPE html&gt;") and report._repr_html_().count("<") == 2


def test_capture_disabled() -> None:
    program = """if True:
        import torch, capture
        from capture.backends.native import sidecar
        calls = []
        @capture.compile
        def f(x):
            calls.append(1)
            return x + 1
        for _ in range(3): f(torch.ones(2))
        model = capture.compile(torch.nn.Linear(2, 2))
        model(torch.ones(2))
        assert calls == [1, 1, 1] and not sidecar._pool.threads
        assert capture.stats(f).captures == 0 and capture.stats(f).native_calls == 3, capture.stats(f)
        assert "3 calls ran natively" in capture.explain(f) and capture.wait()
        """
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=100,
                   env={"CAPTURE_DISABLE": "1", "PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"})
