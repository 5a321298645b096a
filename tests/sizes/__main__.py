"""`python -m tests.sizes --seed 3`: operators and programs called with sizes at random, compared with eager mode in everything."""
from __future__ import annotations

import argparse
import collections
import importlib
import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import tests.search_settings  # noqa: F401

# read when capture is imported
os.environ.setdefault("CAPTURE_FREE_SIZES", "1")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sizes", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first one, of programs")
    parser.add_argument("--programs", type=int, default=0, help="so many random programs, in place of operators")
    parser.add_argument("--kind", choices=("at_random", "layouts", "users"), default="at_random", help="of random programs")
    parser.add_argument("--subset", action="store_true", help="the programs of paritybench_subset, in place of operators")
    parser.add_argument("--length", type=int, default=7, help="lines of a random program")
    parser.add_argument("--samples", type=int, default=1, help="of each of torch's operators")
    parser.add_argument("--calls", type=int, default=8, help="with other sizes, of each program")
    parser.add_argument("--only", default="", help="operators whose names contain this")
    parser.add_argument("--handled", action="store_true", help="operators that a handler surrounds, after a write not undone")
    parser.add_argument("--every", type=int, default=1, help="operators, or programs of the subset: one of so many")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no other program is begun")
    parser.add_argument("--native", action="store_true", help="with kernels, within a tolerance of 1e-4")
    options = parser.parse_args()
    native: dict[str, Any] = {"backend": "native", "options": {"background": False}, "tolerance": 1e-4} if options.native else {}
    ran = failed = 0
    captures: dict[str, int] = collections.defaultdict(int)
    warnings.simplefilter("ignore")
    end = time.monotonic() + options.seconds
    for name, text in (programs if options.programs else of_subset if options.subset else operators)(options, native, captures):
        ran += 1
        if text is not None:
            failed += 1
            print(f"FAILED {name}\n{text[:1800]}\n", flush=True)
        if time.monotonic() > end:
            break
    print(f"{ran} programs, {failed} failed; captures: {sum(captures.values())}")
    often = sorted(((count, name) for name, count in captures.items() if count > 3), reverse=True)
    print("captured most often:", *(f"{name} {count}" for count, name in often), sep="\n  ")
    return bool(failed)


def operators(options: Any, native: dict[str, Any], captures: dict[str, int]) -> Iterator[tuple[str, str | None]]:
    """Each operator: what it is called, and what is wrong with it."""
    from tests.sizes.operators import cases, examine
    for case in cases(options.samples, options.calls, options.seed, options.only, options.every, options.handled):
        for dynamic in (True, None):
            stats, text = attempt(lambda: examine(case, dynamic=dynamic, **native))
            captures[case.name] = max(captures[case.name], stats.captures if stats else 0)
            yield f"{case.name} dynamic={dynamic}: {[[getattr(a, 'shape', a) for a in args] for args in case.calls]}"[:700], text


def programs(options: Any, native: dict[str, Any], captures: dict[str, int]) -> Iterator[tuple[str, str | None]]:
    """Each program: its text, made smaller if something is wrong with it, and what that is."""
    from tests.sizes.at_random import shrunk
    kind = importlib.import_module(f"tests.sizes.{options.kind}")
    for seed in range(options.seed, options.seed + options.programs):
        program, dynamic = kind.generate(seed, options.length, options.calls), seed % 2 == 0 or None

        def wrong(made: Any, dynamic: bool | None = dynamic) -> tuple[Any, str | None]:
            return attempt(lambda: kind.examine(made, dynamic=dynamic, **native))
        stats, text = wrong(program)
        captures["all"] += stats.captures if stats else 0
        if text is not None:
            parts = [name for name, value in vars(program).items() if isinstance(value, tuple)]
            program = shrunk(program, lambda made: wrong(made)[1] is not None, parts)
            text = wrong(program)[1] or text
        yield f"dynamic={dynamic} {program}\n{program.text}", text


def of_subset(options: Any, native: dict[str, Any], captures: dict[str, int]) -> Iterator[tuple[str, str | None]]:
    """Each program of the subset, with each of its sizes."""
    from tests.sizes.subset import examine, varied
    for one in varied(options.every, options.seed):
        counts, text = attempt(lambda: examine(one, native.get("backend", "eager")))
        if counts is not None and counts[1] > 2 * counts[0]:
            captures[f"{one} ({counts[0]} for one size)"] = counts[1]
        if counts is not None or text is not None:      # else eager mode does not take these sizes
            yield str(one), text


def attempt(run: Any) -> tuple[Any, str | None]:
    """What it returns, and else what is wrong."""
    import capture
    try:
        return run(), None
    except AssertionError as error:
        return None, str(error)
    except Exception:
        return None, traceback.format_exc(limit=-3)
    finally:
        capture.reset()


if __name__ == "__main__":
    sys.exit(main())
