"""Random programs that replace and remove values whose death runs code, which changes what the program reads:
`python -m tests.lifetimes.deaths --cases N --seed S [--native]` compares them with eager mode, and prints those that differ."""
from __future__ import annotations

import argparse
import random
import sys
import weakref
from collections import deque
from types import SimpleNamespace
from typing import Any

import torch

import tests.search_settings  # noqa: F401
from tests.helpers import call, check

PLACES = {     # where a value is: how it is replaced, how it is removed, and then put back by the program
    "attribute": ("state.box.a = {new}", "del state.box.a; state.box.a = None"),
    "slot": ("state.slotted.a = {new}", "state.slotted.a = None"),
    "item": ("state.items[1] = {new}", "state.items.pop(1); state.items.insert(1, None)"),
    "last": ("state.more[-1] = {new}", "state.more.pop(); state.more.append(None)"),
    "all": ("state.pile[:] = [{new}]", "state.pile.clear(); state.pile.append(None)"),
    "key": ("state.table['a'] = {new}", "del state.table['a']; state.table['a'] = None"),
    "popped": ("state.other.update(a={new})", "state.other.pop('a'); state.other['a'] = None"),
    "queue": ("state.queue.append({new})", "state.queue.popleft(); state.queue.append(None)"),
    "class": ("state.cls.a = {new}", "state.cls.a = None"),
    "global": ("store({new})", "store(None)"),
    "cell": ("put({new})", "put(None)"),
}
READS = ["x = x * state.cfg.scale", "x = x + len(state.cfg.log)", "x = x + state.cfg.t", "x = x * 2 if state.cfg.flag else x - 1",
         "y = y + state.cfg.scale", "state.seen.append(state.cfg.scale)", "y = y * state.cfg.t",
         "x = x + state.cfg.names.get('n', 0)"]
NEW = ["x + 1", "y", "None", "3.5", "[x]", "(x, y)"]
ACTS = {
    "scale": lambda cfg: setattr(cfg, "scale", cfg.scale + 1), "log": lambda cfg: cfg.log.append("dead"),
    "tensor": lambda cfg: cfg.t.add_(1), "flag": lambda cfg: setattr(cfg, "flag", not cfg.flag),
    "names": lambda cfg: cfg.names.update(n=cfg.names.get("n", 0) + 1), "another": lambda cfg: setattr(cfg, "t", cfg.t + 2),
}
KINDS = ("finalizer", "slots", "callback", "finalize", "generator", "plain", "tensor", "number")
AROUND = ("bare", "list", "tuple", "dict", "object", "twice", "elsewhere", "attribute of a tensor")


class Plain:
    pass


class Loud:
    def __init__(self, act: Any, cfg: Any) -> None:
        self.act, self.cfg = act, cfg

    def __del__(self) -> None:
        self.act(self.cfg)


class Slotted:
    __slots__ = ("a", "act", "cfg")
    __del__ = Loud.__del__


def closed(act: Any, cfg: Any) -> Any:
    try:
        yield 1
        yield 2
    finally:
        act(cfg)


def value(state: Any, kind: str, around: str, act: Any) -> Any:
    """A value by whose death `act(state.cfg)` is called, or that dies quietly."""
    made: Any = Plain()
    if kind == "finalizer":
        made = Loud(act, state.cfg)
    elif kind == "slots":
        made = Slotted()
        made.act, made.cfg = act, state.cfg
    elif kind == "callback":
        state.refs.append(weakref.ref(made, lambda _: act(state.cfg)))
    elif kind == "finalize":
        weakref.finalize(made, act, state.cfg).atexit = False
    elif kind == "generator":
        made = closed(act, state.cfg)
        next(made)
    elif kind == "tensor":
        made = torch.ones(2)
    elif kind == "number":
        made = 7
    holder = Plain()
    holder.held = made
    tensor = torch.ones(1)
    if around == "attribute of a tensor":
        tensor.held = made
    if around == "elsewhere":
        state.kept.append(made)
    return {"bare": made, "list": [made], "tuple": (made, 1), "dict": {"k": [made]}, "object": holder, "twice": [made, made],
            "elsewhere": made, "attribute of a tensor": tensor}[around]


class Holder:
    __slots__ = ("a",)


def set_place(state: Any, place: str, new: Any) -> None:
    """What the program replaces or removes there."""
    if place in ("attribute", "slot", "class"):
        setattr({"attribute": state.box, "slot": state.slotted, "class": state.cls}[place], "a", new)
    elif place == "queue":
        state.queue.clear()
        state.queue.extend([new, None])
    elif place in ("global", "cell"):
        state.setters[place](new)
    else:
        container, key = {"item": (state.items, 1), "last": (state.more, -1), "all": (state.pile, 0), "key": (state.table, "a"),
                          "popped": (state.other, "a")}[place]
        container[key] = new


def draw(seed: int, number: int) -> tuple[str, list[tuple[str, str, str, str] | None]]:
    """The text of a program, and what is done before each call: (place, kind, around, act)."""
    rng = random.Random(f"{seed} {number}")
    places = rng.sample(list(PLACES), rng.randrange(1, 4))
    lines = []
    for place in places:
        lines += rng.sample(READS, rng.randrange(0, 3))
        lines.append(rng.choice(PLACES[place]).format(new=rng.choice(NEW)))
    lines += rng.sample(READS, rng.randrange(1, 4))
    body = "\n        ".join(lines)
    text = f"""
def make(state):
    contents = None
    def store(new):
        global stored
        stored = new
    def put(new):
        nonlocal contents
        contents = new
    state.setters.update({{"global": store, "cell": put}})
    def program(x):
        y = x * 3
        {body}
        return x, y
    return program
"""
    steps = [None if rng.random() < 0.4 else (rng.choice(places), rng.choice(KINDS), rng.choice(AROUND), rng.choice(list(ACTS)))
             for _ in range(6)]
    return text, steps


def compare(seed: int, number: int, backend: str = "eager") -> None:
    """Raises AssertionError where a program differs from eager mode."""
    text, steps = draw(seed, number)

    def made() -> tuple[Any, Any]:
        cfg = SimpleNamespace(scale=1.0, log=[], t=torch.zeros(2), flag=False, names={})
        hidden = SimpleNamespace(box=SimpleNamespace(a=None), slotted=Holder(), items=[0, None, 2], more=[1, None], pile=[None],
                                 table={"a": None}, other={"a": None}, queue=deque([None, None], 2),
                                 cls=type("Cls", (), {"a": None}),
                                 cfg=cfg, refs=[], kept=[], seen=[], setters={})
        hidden.slotted.a = None
        scope: dict[str, Any] = {"stored": None}
        exec(compile(text, f"<deaths {seed} {number}>", "exec"), scope)
        program = scope["make"](hidden)
        # Only what deaths may change is compared: a snapshot of what is yet to die would keep it alive.
        state = SimpleNamespace(cfg=cfg, seen=hidden.seen)
        worlds[id(state)] = hidden
        return program, state

    worlds: dict[int, Any] = {}
    calls: list[Any] = []
    for step in steps:
        if step is not None:
            place, kind, around, act = step
            calls.append(lambda state, place=place, kind=kind, around=around, act=act: set_place(
                worlds[id(state)], place, value(worlds[id(state)], kind, around, ACTS[act])))
        calls.append(call(torch.arange(2.0)))
    check(made, *calls, captures=None, fullgraph=False, backend=backend, tolerance=1e-6 if backend == "native" else None)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lifetimes.deaths", description=__doc__)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--native", action="store_true", help="with kernels")
    options = parser.parse_args()
    found = 0
    for number in range(options.first, options.first + options.cases):
        try:
            compare(options.seed, number, "native" if options.native else "eager")
        except Exception as error:
            found += 1
            text, steps = draw(options.seed, number)
            print(f"\n{number}: {text}\n{steps}\n{type(error).__name__}: {error!s:.1500}", flush=True)
    print(f"\n{options.cases} programs, {found} differ")
    return found > 0


if __name__ == "__main__":
    sys.exit(main())
