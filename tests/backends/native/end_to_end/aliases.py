"""Programs whose results share memory, and plans of what is done to these: run eagerly and compiled, by both backends."""
from __future__ import annotations

from typing import Any

from tests.aliasing.hunt import differences
from tests.aliasing.programs import Case

GRAD = "torch.randn(4, 4, requires_grad=True)"
PLAIN = "torch.randn(4, 4)"


def check(engine: dict[str, Any], inputs: tuple[str, ...], body: str, *plan: str) -> None:
    check_plans(engine, inputs, body, plan)


def check_plans(engine: dict[str, Any], inputs: tuple[str, ...], body: str, *plans: tuple[str, ...]) -> None:
    """The same of one compiled function: after each of its calls the first plan, and each other one after a hit."""
    first, *further = plans
    found = differences(Case(inputs, tuple(body.split("\n")), first), further=further, **engine)
    assert not found, "\n".join(found)
