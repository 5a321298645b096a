"""Tables of the results, for a terminal."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rich.markup import escape
from rich.table import Table

from paritybench_subset.results import CORRECT, COUNTED, Result, Verdict, counts


def summary(results: Iterable[Result]) -> Table:
    """How often each verdict was given; percentages are of the cases that count."""
    results = list(results)
    unloaded = sum(not result.case for result in results)
    table = Table(title="verdicts", caption=f"{unloaded} projects cannot be imported" if unloaded else None)
    for name in ("engine", "mode", "counted", "one graph", "%", "correct %", "breaks", "wrong", "error", "crash", "timeout",
                 "not runnable", "not deterministic", "empty"):
        table.add_column(name, justify="left" if name in ("engine", "mode") else "right")
    for (engine, mode), row in sorted(counts(results).items()):
        if mode:
            number = sum(row[verdict] for verdict in COUNTED)
            correct = sum(row[verdict] for verdict in CORRECT)
            table.add_row(engine, mode, str(number), str(row[Verdict.ONE_GRAPH]), _percent(row[Verdict.ONE_GRAPH], number),
                          _percent(correct, number), *(str(row[verdict]) for verdict in list(Verdict)[1:]))
    return table


def compiled(results: Iterable[Result]) -> Table | None:
    """How much of the graphs runs in compiled code, by engine and mode; None where nothing compiles."""
    rows: dict[tuple[str, str], list[list[tuple[int, int]]]] = {}
    for result in results:
        if result.compiled:
            rows.setdefault((result.engine, result.mode), []).append(result.compiled)
    if not rows:
        return None
    table = Table("engine", "mode", "cases", "every graph compiled in part %", "operations", "of these compiled %",
                  title="compiled code")
    for (engine, mode), cases in sorted(rows.items()):
        graphs = [graph for case in cases for graph in case]
        whole, ours = sum(number for _, number in graphs), sum(number for number, _ in graphs)
        in_part = sum(all(number for number, _ in case) for case in cases)
        table.add_row(engine, mode, str(len(cases)), _percent(in_part, len(cases)), str(whole), _percent(ours, whole))
    return table


def uncompiled(results: Iterable[Result], most: int = 25) -> Table | None:
    """Why operations do not run in compiled code, the reason of most operations first; None where all do, or nothing compiles."""
    number: Counter[tuple[str, str]] = Counter()
    cases: Counter[tuple[str, str]] = Counter()
    for result in results:
        reasons = {(result.engine, reason): count for reason, count in result.uncompiled.items()}
        number.update(reasons)
        cases.update(reasons.keys())
    if not number:
        return None
    table = Table("engine", "operations", "cases", "reason", title="why operations are not compiled")
    for (engine, reason), count in number.most_common(most):
        table.add_row(engine, str(count), str(cases[engine, reason]), escape(reason[:160]))
    return table


def reasons(results: Iterable[Result], most: int = 25) -> Table:
    """Why counted cases are not one graph: the first reason of each, the most frequent first."""
    found: Counter[tuple[str, str, str, str]] = Counter()
    examples: dict[tuple[str, str, str, str], Result] = {}
    for result in results:
        if result.verdict in COUNTED and result.reasons:
            first = result.reasons[0]
            key = result.engine, result.verdict.value, first.id, first.detail
            found[key] += 1
            examples.setdefault(key, result)
    table = Table("engine", "cases", "verdict", "reason", "detail", "for example", title="why not in one graph", show_lines=False)
    for key, number in found.most_common(most):
        engine, verdict, reason, detail = key
        example = examples[key]
        where = escape(f"{example.project}: {example.case} ({example.mode})")
        table.add_row(engine, str(number), verdict, reason, escape(detail[:120]), where)
    return table


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else "–"
