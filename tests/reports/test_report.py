"""The report as data and as text: what it says of captures, breaks, recaptures and continuations."""
from __future__ import annotations

import gc
import json
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

import capture
from capture.config import RECAPTURE_LIMIT
from capture.errors import REASONS, ArgumentError, is_internal
from capture.history import Cause
from capture.refgraph.requirements import Kind
from capture.remedies import remedy
from capture.reports import text

X = torch.arange(3.0)


def decides(x):
    if x.sum() > 0:
        return x * 2
    return -x


def outer(x):
    return decides(x + 1) + 1


def opaque(x):
    y = x * 2
    gc.get_count()
    return y + 1


def branches(x, k, table):
    y = x * table["a"]
    if k > 3:
        y = y + 1
    return y


def frame_of(function, *calls):
    compiled = capture.compile(function)
    for args in calls:
        compiled(*args)
    frame, = capture.report(compiled).frames
    return frame


def line_of(function, text: str) -> int:
    lines = open(__file__).read().splitlines()
    first = function.__code__.co_firstlineno
    return next(n for n, line in enumerate(lines[first - 1:], first) if text in line)


@pytest.mark.parametrize(("subject", "before", "after", "word"), [
    ("args[0]", "shape (32, 8)", "shape (11, 8)", "drop_last"),
    ("args[0]", "shape (32,)", "shape (11,)", "drop_last"),
    ("past_key_values.layers[0].keys", "shape (2, 2, 7, 8)", "shape (2, 2, 8, 8)", "fixed size"),
    ("args[0]", "shape (2, 2)", "type NoneType", "fixed size"),
    ("self._modules['wte']._parameters['weight']", "shape (100, 8)", "shape (110, 8)", "parameters"),
    ("__function__.__globals__['o'].param_groups[0]['params'][0]", "requires_grad True", "requires_grad False", "freeze"),
    ("self._buffers['mask']", "device cpu", "device cuda:0", "move the module"),
])
def test_a_remedy_is_about_what_has_changed(subject, before, after, word) -> None:
    assert word in remedy(Cause("TENSOR", subject, before, after, None))


NET = torch.nn.Sequential(torch.nn.Linear(2, 2))


def test_paths_are_written_as_users_do() -> None:
    function = capture.compile(lambda x: NET[0](x), backend="eager")
    function(torch.ones(1, 2))
    NET[0].weight.requires_grad_(False)
    function(torch.ones(1, 2))
    (miss,) = capture.stats(function).misses
    (told,) = capture.report(function).frames[0].recaptures
    assert "NET.0.weight" in str(miss) and told.changes[0].subject == "NET.0.weight"


def test_paths_through_a_dict_whose_keys_are_tensors() -> None:
    """As the state of an optimizer is; the report compares paths."""
    keys = [torch.ones(3), torch.ones(3), torch.ones(4)]
    state = {key: torch.ones(len(key)) for key in keys}
    function = capture.compile(lambda: [state[key] * 2 for key in keys] + [state[keys[0]] + state[keys[1]]], backend="eager")
    function()
    for key, size in zip(keys, (5, 5, 6), strict=True):
        state[key] = torch.ones(size)
    function()
    sizes = [entry.sizes for entry in capture.report(function).frames[0].entries]
    assert sorted(map(len, sizes)) == [0, 2] and {len(size.paths) for size in max(sizes)} == {1, 2}


def test_a_break_names_the_lines_that_led_to_it_and_a_remedy() -> None:
    frame = frame_of(outer, (X,), (X,))
    broken, = frame.breaks
    assert broken.reason == "data-dependent" and broken.remedy == REASONS["data-dependent"].remedy
    assert [(p.function, p.line, p.text) for p in broken.stack] == [
        ("outer", line_of(outer, "decides(x"), "return decides(x + 1) + 1"),
        ("decides", line_of(decides, "x.sum"), "if x.sum() > 0:")]
    assert all(place.file == __file__ for place in broken.stack)


def test_continuations_are_found_under_their_frame() -> None:
    compiled = capture.compile(opaque)
    for _ in range(3):
        compiled(X)
    report = capture.report(compiled)
    frame, = report.frames
    rest, = frame.continuations
    assert frame.resumed is None and rest.resumed == frame.breaks[0] and rest.name.startswith("opaque resumed at ")
    assert [entry.outcome for entry in frame.entries] == ["partial"] and [entry.outcome for entry in rest.entries] == ["captured"]
    assert list(report.walk()) == [frame, rest] and (frame.graphs, rest.graphs) == (1, 1)
    mine = [f.name for f in capture.report().frames if f.captures and f.name.startswith("opaque")]     # of those not forgotten
    assert mine == ["opaque"]


@pytest.mark.parametrize(("change", "kind", "subject", "before", "after", "line"), [
    ((torch.ones(4), 1, {"a": 2.0}), "TENSOR", "x", "shape (3,)", "shape (4,)", "table["),
    ((X.double(), 1, {"a": 2.0}), "TENSOR", "x", "dtype torch.float32", "dtype torch.float64", "table["),
    ((X, 5, {"a": 2.0}), "TRUTH", "k > 3", "a false or empty value", "True", "if k > 3"),
    ((X, 1, {"a": "b"}), None, "table['a']", None, "'b'", "table["),
    ((X, 1, type("Table", (dict,), {})(a=2.0)), "TYPE", "table", None, None, "table["),
])
def test_a_recapture_tells_the_guard_the_values_the_line_and_a_remedy(change, kind, subject, before, after, line) -> None:
    compiled = capture.compile(branches)
    compiled(X, 1, {"a": 2.0})
    try:
        compiled(*change)
    except TypeError:
        pass
    recapture, = capture.report(compiled).frames[0].recaptures
    told, = recapture.changes
    assert told.subject == subject and kind in (None, told.kind) and before in (None, told.before) and after in (None, told.after)
    assert told.before != told.after and told.remedy
    assert (told.place.file, told.place.line, told.place.function) == (__file__, line_of(branches, line), "branches")


def test_modes_that_change_are_told_by_name() -> None:
    compiled = capture.compile(branches)
    compiled(X, 1, {"a": 2.0})
    with torch.no_grad():
        compiled(X, 1, {"a": 2.0})
    told, = capture.report(compiled).frames[0].recaptures[0].changes
    assert (told.kind, told.subject, told.before, told.after, told.remedy) == ("MODES", "grad", "True", "False",
                                                                                    Kind.MODES.row.remedy)
    with torch.autocast("cpu", dtype=torch.float16):
        compiled(X, 1, {"a": 2.0})
    told, = capture.report(compiled).frames[0].recaptures[1].changes
    assert (told.subject, told.before, told.after) == ("autocast on cpu", "off", "on")


def test_what_is_read_inside_of_torch_is_told_at_the_callers_line() -> None:
    loss = capture.compile(nn.MSELoss())
    for n in (2, 3):
        loss(torch.ones(n), torch.zeros(n))     # here
    frame, = capture.report(loss).frames
    place = frame.recaptures[0].changes[0].place
    assert place.text.endswith("# here") and place.file == __file__


def test_past_the_limit_the_user_is_told_once_and_entries_go_on() -> None:
    compiled = capture.compile(lambda x: x * 2, dynamic=False)
    sizes = [1, 2, 3, 4]
    with RECAPTURE_LIMIT.set(2), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            for n in sizes:
                assert torch.equal(compiled(torch.ones(n)), torch.full((n,), 2.0))
    frame, = capture.report(compiled).frames
    message, = [str(w.message) for w in caught]
    assert "CAPTURE_RECAPTURE_LIMIT" in message and f'File "{__file__}"' in message and "shape (2,), got shape (3,)" in message
    assert "pad or bucket what varies" in message
    assert (frame.captures, frame.hits, frame.native_calls, frame.uncounted) == (2, 4, 6, 6)
    assert [r.limited for r in frame.recaptures] == [False, True]
    assert "too many entries" in str(capture.report(compiled)) and "6 calls ran natively" in str(frame)
    with RECAPTURE_LIMIT.set(2), warnings.catch_warnings():
        warnings.simplefilter("error")          # what warnings do is the user's business: the program goes on
        fresh = capture.compile(lambda x: x * 3, dynamic=False)
        assert [fresh(torch.ones(n)).sum().item() for n in sizes] == [3.0, 6.0, 9.0, 12.0]


def test_entries_are_ordered_by_hits() -> None:
    compiled = capture.compile(lambda x: x + 1, dynamic=False)
    for n in (1, 2, 2, 2, 3, 3):
        compiled(torch.ones(n))
    assert [entry.hits for entry in capture.report(compiled).frames[0].entries] == [2, 1, 0]
    compiled(torch.ones(4))                     # a new entry: the tree puts the others in order
    assert [entry.hits for entry in compiled.tree.entries] == [2, 1, 0, 0]


def test_times_of_captures_and_hits() -> None:
    frame = frame_of(lambda x: x * 2, *[(X,)] * 4)
    seconds = frame.entries[0].seconds
    assert min(seconds.run, seconds.mock, seconds.graph, seconds.guards) > 0
    assert seconds.capture == pytest.approx(seconds.run + seconds.mock + seconds.graph + seconds.guards)
    assert min(seconds.hit_guards, seconds.hit_graph, seconds.hit_mock) > 0
    once, = frame_of(lambda x: x * 3, (X,)).entries
    assert once.seconds.hit_guards is None


def test_the_graph_as_data() -> None:
    linear = capture.compile(nn.Linear(3, 2))
    linear(torch.ones(1, 3))
    graph = capture.report(linear).frames[0].entries[0].graph
    assert graph.operations == 1 and [node.kind for node in graph.nodes] == ["input"] * 3 + ["operation", "output"]
    operation = graph.nodes[3]
    assert operation.label == "linear" and len(operation.inputs) == 3 and "linear" in graph.code
    multiplied = frame_of(lambda x: x * 2, (X,)).entries[0].graph.nodes[1]
    assert multiplied.label == "×" and multiplied.place.file == __file__


def test_json_holds_the_whole_tree() -> None:
    frame_of(opaque, (X,), (X,))
    compiled = capture.compile(opaque)
    compiled(X)
    data = json.loads(capture.report(compiled).json())
    frame, = data["frames"]
    assert frame["name"] == "opaque" and frame["continuations"][0]["resumed"]["reason"] == "opaque-call"
    assert frame["breaks"][0]["stack"][0]["text"] == 'gc.get_count()'


def deep(x, n):
    return deep(x, n - 1) if n else decides(x)


def test_a_break_takes_at_most_fifteen_lines_and_shows_nothing_of_ours() -> None:
    class Model(nn.Module):
        def forward(self, x):
            return deep(x, 20)
    model = capture.compile(nn.Sequential(Model()))
    model(X)
    frame, = capture.report(model).frames
    broken, = frame.breaks
    assert len(broken.stack) == 23 and not any(is_internal(place.file) for place in broken.stack)
    lines = list(text._break(broken))
    assert len(lines) <= 15 and "if x.sum() > 0:" in text.plain(lines) and "18 frames outside" in text.plain(lines)
    assert "torch/nn/modules" not in str(capture.report(model))


def test_explain_calls_what_it_explains() -> None:
    assert "entry 0: captured, 0 hits, 1 operation" in capture.explain(lambda x: x * 2, X)
    told = capture.explain(outer, X)
    assert "captured up to a break" in told and "outer resumed at test_report.py" in told and "remedy:" in told
    with pytest.raises(ArgumentError):
        capture.explain(3, X)
    with pytest.raises(ArgumentError):
        capture.report(len)


def test_past_the_limit_misses_are_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = capture.compile(lambda x: x * 2)
    with RECAPTURE_LIMIT.set(1), pytest.warns(UserWarning):
        for n in (1, 2):
            compiled(torch.ones(n))
        monkeypatch.setattr(type(compiled.tree), "explain", lambda *args: pytest.fail("explained"))
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))


def test_a_report_is_written_by_the_end_of_its_name(tmp_path) -> None:
    compiled = capture.compile(opaque)
    compiled(X)
    report = capture.report(compiled)
    for name in ("r.html", "r.json", "r.txt"):
        report.write(tmp_path / name)
    assert (tmp_path / "r.html").read_text() == report.html() and report.html().startswith("<!DOCTYPE html>")
    assert (tmp_path / "r.json").read_text() == report.json() and (tmp_path / "r.txt").read_text() == f"{report}\n"


def test_importing_draws_no_random_numbers() -> None:
    program = ("import random; random.seed(0); state = random.getstate(); import capture; str(capture.report()); "
               "assert state == random.getstate()")
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)


def test_the_report_is_a_function_whatever_was_imported_first() -> None:
    program = "import capture.reports.tree, capture.reports.build\nimport capture\nassert not capture.report().frames"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)


def test_the_summary_tells_how_each_graph_runs() -> None:
    compiled = capture.compile(opaque, dynamic=False)
    for n in (1, 2, 3, 3):
        compiled(X[:n])
    report = capture.report(compiled)
    assert "graph runs" not in str(report) and "graphs: each" not in str(report)
    for trace in [entry.payload for unit in compiled.capture_unit.family for entry in unit.tree.entries]:
        if trace.graph_module is not None:
            trace.graph_module.meta["note"] = "runs uncompiled: for a reason"
    assert "  3 graphs: each runs uncompiled: for a reason\n" in str(capture.report(compiled))


def test_breaks_without_an_entry_are_told() -> None:
    """Where a trace came to nothing, and the next one is to end earlier, no entry says why."""
    def program(x):
        def inner(t):
            gc.get_count()
            return t * 2
        return torch.vmap(inner)(x)
    compiled = capture.compile(program, backend="eager")
    compiled(X)
    told = capture.explain(compiled)
    assert "gc.get_count()" in told and "it ends at" not in told
