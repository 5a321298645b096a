"""The verdict on one case: it runs eagerly twice, and then under each engine, from the same seeds each time."""
from __future__ import annotations

import contextlib
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from paritybench_subset import standins
from paritybench_subset.cases import Case
from paritybench_subset.compare import differences
from paritybench_subset.engines import Engine
from paritybench_subset.operators import Counting, holds, missing
from paritybench_subset.results import CORRECT, Reason, Result, Verdict

MODES = ("eval", "train")
EAGER = "eager"
FIRST_HOOK = 1_000_000      # hooks are numbered process-wide: the same hook must get the same number in each run


@dataclass
class Run:
    """What one run of a case left behind: all that is compared. `operators`: those of its last call, by name. `beginning`:
    parameters and buffers before the first call, which differ where the program leaves memory as it finds it."""

    module: nn.Module
    beginning: list[torch.Tensor] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    arguments: list[Any] = field(default_factory=list)
    random: list[torch.Tensor] = field(default_factory=list)
    operators: Counter[str] = field(default_factory=Counter)

    @property
    def state(self) -> dict[str, Any]:
        return {"result": self.results, "arguments": self.arguments, "module": self.module, "random numbers": self.random}


@dataclass(frozen=True)
class Judge:
    """How cases are judged: with how many calls, and with which tolerance of floating-point values."""

    calls: int = 3
    tolerance: float = 1e-4

    def judge(self, project: str, case: Case, mode: str, engines: dict[str, Callable[[], Engine]],
              began: Callable[[str], None] = lambda phase: None) -> Iterator[Result]:
        """The results of a case in one mode: one for each engine, or one that is about the case. `began` is told of every phase."""
        began(EAGER)
        reference = self.reference(case, mode)
        if not isinstance(reference, Run):
            yield Result(project, case.name, mode, "", *reference)
            return
        for name, make in engines.items():
            began(name)
            start = time.perf_counter()
            engine = make()
            verdict, reasons, lacking = self.under(engine, case, mode, reference)
            compiled, uncompiled = (engine.operations(), engine.uncompiled()) if verdict in CORRECT else ([], {})
            yield Result(project, case.name, mode, name, verdict, reasons, sum(reference.operators.values()), lacking, compiled,
                         uncompiled, round(time.perf_counter() - start, 3))

    def reference(self, case: Case, mode: str) -> Run | tuple[Verdict, list[Reason]]:
        """The eager run of a case; or why it cannot be one."""
        standins.USED.clear()
        try:
            first = self.run(case, mode, Engine())
            second = self.run(case, mode, Engine(), counting=True)
        except (Exception, SystemExit) as error:
            return Verdict.NOT_RUNNABLE, [standins.reason() or reason_of(error)]
        if standins.USED:
            return Verdict.NOT_RUNNABLE, [standins.reason()]
        differing = differences(first.state, second.state, self.tolerance)
        if differing:
            return Verdict.NOT_DETERMINISTIC, [Reason("differs", line) for line in differing]
        if not second.operators:
            return Verdict.EMPTY, []
        first.operators = second.operators
        return first

    def under(self, engine: Engine, case: Case, mode: str, reference: Run) -> tuple[Verdict, list[Reason], dict[str, int]]:
        """The verdict on an engine, the reasons for it, and which operators its graphs lack."""
        try:
            run = self.run(case, mode, engine, counting=True)
        except (Exception, SystemExit) as error:
            other = engine.again(error)
            if other is not None:
                return self.under(other, case, mode, reference)
            return Verdict.ERROR, [reason_of(error)], {}
        differing = differences(reference.state, run.state, self.tolerance)
        if differing:
            before = differences(reference.beginning, run.beginning, 0)
            if before:
                return Verdict.NOT_DETERMINISTIC, [Reason("begins otherwise", line) for line in before], {}
            return Verdict.WRONG, [Reason("differs", line) for line in differing] + engine.obstacles(self.calls), {}
        obstacles = engine.obstacles(self.calls)
        lacking = missing(reference.operators, run.operators) if engine.graphs.counter is not None else {}
        if not obstacles and not holds(reference.operators, lacking):
            obstacles = [Reason("missing-operators", ", ".join(sorted(lacking)))]
        return Verdict.BREAKS if obstacles else Verdict.ONE_GRAPH, obstacles, lacking

    def run(self, case: Case, mode: str, engine: Engine, counting: bool = False) -> Run:
        """Runs a case from its construction on. `counting`: the operators of the last call. Raises what the case raises."""
        seed(0)
        run = Run(case.build())
        run.beginning = [tensor.detach().clone() for tensor in (*run.module.parameters(), *run.module.buffers())
                         if not is_lazy(tensor)]
        with contextlib.suppress(Exception):        # some modules have a `train` of their own, which fails
            run.module.train(mode == "train")
        program = engine.compile(run.module)
        for number in range(self.calls):
            seed(number + 1)
            args, kwargs = case.arguments()
            run.arguments.append((args, kwargs))
            last = counting and number == self.calls - 1
            if last:
                engine.count_into(run.operators)
            with Counting() if last and type(engine) is Engine else contextlib.nullcontext() as counter:
                result = program(*args, **kwargs)
            if counter is not None:
                run.operators.update(counter.operators)
            run.results.append(result)
            run.random.append(torch.get_rng_state())
            if mode == "train":
                backpropagate(result)
        return run


def backpropagate(result: Any) -> None:
    """A backward pass from every differentiable tensor of a result, with a gradient that is different everywhere."""
    outputs = [t for t in tensors(result, set()) if t.requires_grad and t.grad_fn is not None and t.layout is torch.strided]
    gradients = [torch.arange(t.numel(), dtype=torch.float64).cos().to(t.dtype).view(t.shape) for t in outputs]
    if outputs:
        torch.autograd.backward(outputs, gradients)


def tensors(obj: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """The tensors of a result: in containers, and in attributes of objects that are no modules."""
    if id(obj) in seen:
        return
    seen.add(id(obj))
    if isinstance(obj, torch.Tensor):
        yield obj
        return
    parts: Iterable[Any] = obj.values() if isinstance(obj, dict) else obj if isinstance(obj, (list, tuple)) else ()
    if not isinstance(obj, (nn.Module, type)) and isinstance(getattr(obj, "__dict__", None), dict):
        parts = [*parts, *vars(obj).values()]
    for part in parts:
        yield from tensors(part, seen)


def seed(value: int) -> None:
    """The same start for the random numbers of torch, Python and numpy, and for the numbers of hooks."""
    RemovableHandle.next_id = FIRST_HOOK * (value + 1)
    torch.random.manual_seed(value)
    random.seed(value)
    np.random.seed(value)


def reason_of(error: BaseException) -> Reason:
    """The kind of an exception, its text, and the innermost line."""
    frames = traceback.extract_tb(error.__traceback__)
    text = str(error).strip().splitlines() or [""]
    return Reason(type(error).__name__, text[0][:300], f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "")
