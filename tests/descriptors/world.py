"""Classes that hold a descriptor, the ways in which a program comes to it, and what may change from outside between two calls."""
from __future__ import annotations

import functools
import operator
import random
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tests import helpers
from tests.descriptors.kinds import KINDS, Root
from tests.helpers import Call, call

World = Any
WAYS: dict[str, Callable[[World], Any]] = {
    "instance": lambda w: w.obj.m,
    "class": lambda w: w.Sub.m,
    "base": lambda w: w.Base.m,
    "type": lambda w: type(w.obj).m,
    "getattr": lambda w: getattr(w.obj, "m"),
    "getattr_or": lambda w: getattr(w.obj, "m", "missing"),
    "getattr_of_class": lambda w: getattr(w.Sub, "m", "missing"),
    "hasattr": lambda w: (hasattr(w.obj, "m"), hasattr(w.Sub, "m")),
    "attrgetter": lambda w: operator.attrgetter("m")(w.obj),
    "attrgetter_of_class": lambda w: operator.attrgetter("obj.__class__.m")(w),
    "generic": lambda w: object.__getattribute__(w.obj, "m"),
    "generic_of_class": lambda w: type.__getattribute__(w.Sub, "m"),
    "held": lambda w: w.Base.__dict__["m"],
    "bound": lambda w: w.Base.__dict__["m"].__get__(w.obj, w.Sub),
    "bound_to_class": lambda w: w.Base.__dict__["m"].__get__(None, w.Sub),
    "super": lambda w: w.obj.by_super(),
    "super_getattr": lambda w: w.obj.by_getattr(),
    "super_kept": lambda w: w.obj.by_kept_super(),
    "super_nested": lambda w: w.obj.by_nested(),
    "super_in_property": lambda w: w.obj.by_property,
    "super_in_class_method": lambda w: w.Sub.by_class(),
    "super_in_class_method_of_instance": lambda w: w.obj.by_class(),
    "super_in_init": lambda w: w.Sub(True).found,
    "super_in_new": lambda w: w.New().found,
    "super_of_instance": lambda w: super(w.Sub, w.obj).m,
    "super_of_class": lambda w: super(w.Sub, w.Sub).m,
    "super_unbound": lambda w: super(w.Sub).__get__(w.obj, w.Sub).m,
    "super_called": lambda w: w.obj.by_call(),
    "super_called_in_class_method": lambda w: w.Sub.by_class_call(),
    "super_in_own_m": lambda w: w.Caller().m(),
    "super_in_meta": lambda w: w.Sub.by_meta(),
    "stored": lambda w: w.kept,
    "grandchild": lambda w: w.Grandchild().m,
    "assign": lambda w: (setattr(w.obj, "m", "assigned"), w.obj.m)[1],
    "delete": lambda w: (delattr(w.obj, "m"), w.obj.m)[1],
}
USES: dict[str, Callable[[Any], Any]] = {
    "get": lambda found: found,
    "call": lambda found: found(2),
    "call_without": lambda found: found(),
    "keep": lambda found: [ask(1) for ask in (found, found)],
    "ask": lambda found: (callable(found), type(found), getattr(found, "__self__", "none"), getattr(found, "__name__", "none")),
    "compare": lambda found: (found == found, found is None),
}


def make_world(base: str, over: str | None, stored: str | None, meta: str | None) -> World:
    """`Sub` derives from `Mid` and `Base`, which has `m`; `over`, `stored`, `meta`: what Sub, the instance and the class of the
    classes have under that name, if anything."""
    w = types.SimpleNamespace()

    class Meta(type):
        def by_meta(cls):
            return super().mro()[0], cls.m

    class Base(Root, metaclass=Meta):
        pass

    class Mid(Base):
        pass

    class Sub(Mid):
        def __init__(self, asks=False):
            self.found = super().m if asks else None

        def by_super(self):
            return super().m

        def by_getattr(self):
            return getattr(super(), "m", "missing")

        def by_kept_super(self):
            parent = super()
            return parent.m, parent.m

        def by_nested(self):
            def inner():
                return super(Sub, self).m
            return [inner() for _ in range(2)]

        @property
        def by_property(self):
            return super().m

        @classmethod
        def by_class(cls):
            return super().m

        def by_call(self):
            return super().m(2)

        @classmethod
        def by_class_call(cls):
            return super().m(2)

    class New(Sub):
        def __new__(cls):
            self = super().__new__(cls)
            self.seen = super().m
            return self

        def __init__(self):
            self.found = self.seen

    class Caller(Sub):
        def m(self, *args):
            return "caller", super().m(*args)

    class Grandchild(Sub):
        pass

    class Other(Base):
        pass
    Base.m = KINDS[base]("base")
    if over is not None:
        Sub.m = KINDS[over]("over")
    if meta is not None:
        Meta.m = KINDS[meta]("meta")
    w.Meta, w.Base, w.Mid, w.Sub, w.New, w.Caller, w.Grandchild, w.Other = Meta, Base, Mid, Sub, New, Caller, Grandchild, Other
    w.obj = Sub()
    w.obj.s = "slotted"
    if stored is not None:
        vars(w.obj)["m"] = KINDS[stored]("stored")
    w.kept = None
    return w


def _hook(self, name):
    return "hook", name


def _reading(self, name):
    return ("reading", name) if name == "m" else object.__getattribute__(self, name)


def _reading_of_class(cls, name):
    return ("reading", name) if name == "m" else type.__getattribute__(cls, name)


def _keep(w: World) -> None:
    w.kept = w.obj.m


def _rename(cls: Any) -> None:
    found = vars(cls)["m"]
    if hasattr(found, "tag"):
        found.tag = "new tag"


def _silently(change: Callable[..., Any], *args: Any) -> None:
    """A change that some worlds do not admit: both worlds alike."""
    try:
        change(*args)
    except (AttributeError, TypeError, KeyError, ValueError):
        return


def _on_class(which: str, kind: str) -> Callable[[World], None]:
    return lambda w: setattr(getattr(w, which), "m", KINDS[kind](f"new of {which}"))


CHANGES: dict[str, Callable[[World], None]] = {
    **{f"{which}.m = {kind}": _on_class(which, kind) for which in ("Base", "Mid", "Sub", "Meta") for kind in KINDS},
    **{f"vars(obj)[m] = {kind}": functools.partial(lambda kind, w: vars(w.obj).__setitem__("m", KINDS[kind]("new")), kind)
       for kind in KINDS},
    "del vars(obj)[m]": lambda w: vars(w.obj).__delitem__("m"),
    **{f"del {which}.m": functools.partial(lambda which, w: type.__delattr__(getattr(w, which), "m"), which)
       for which in ("Base", "Mid", "Sub", "Meta")},
    "Root has m": lambda w: setattr(w.Base, "m", w.Base.__dict__["m"]),
    "another class": lambda w: setattr(w.obj, "__class__", w.Other),
    "a derived class": lambda w: setattr(w.obj, "__class__", w.Grandchild),
    "other bases": lambda w: setattr(w.Sub, "__bases__", (w.Other,)),
    "__getattr__": lambda w: setattr(w.Base, "__getattr__", _hook),
    "no __getattr__": lambda w: delattr(w.Base, "__getattr__"),
    "__getattr__ of classes": lambda w: setattr(w.Meta, "__getattr__", _hook),
    "__getattribute__": lambda w: setattr(w.Base, "__getattribute__", _reading),
    "no __getattribute__": lambda w: delattr(w.Base, "__getattribute__"),
    "__getattribute__ of classes": lambda w: setattr(w.Meta, "__getattribute__", _reading_of_class),
    "tag": lambda w: _rename(w.Base),
    "tag of Sub": lambda w: _rename(w.Sub),
    "slot": lambda w: setattr(w.obj, "s", "new in the slot"),
    "keep": _keep,
    "forget": lambda w: w.Base.__dict__["m"].cache_clear(),
    "another object": lambda w: setattr(w, "obj", w.Grandchild()),
}


@dataclass(frozen=True)
class Case:
    base: str
    over: str | None
    stored: str | None
    meta: str | None
    way: str
    use: str
    changes: tuple[str, ...]


def draw(seed: int, number: int) -> Case:
    """The case of this number: the same in every process."""
    r = random.Random(f"{seed} {number}")
    kinds = list(KINDS)
    base, way = kinds[number % len(kinds)], r.choice(list(WAYS))
    over, stored, meta = (r.choice(kinds) if r.random() < share else None for share in (0.4, 0.2, 0.15))
    families = sorted({change.partition(" = ")[0] for change in CHANGES})
    chosen = []
    for _ in range(3):
        family = r.choice(families)
        chosen.append(r.choice([change for change in CHANGES if change.partition(" = ")[0] == family]))
    return Case(base, over, stored, meta, way, r.choice(list(USES)), tuple(chosen))


def problems_of(case: Case, **compile_arguments: Any) -> list[str]:
    """How the captured world differs from the eager one."""
    way, use = WAYS[case.way], USES[case.use]

    def make():
        w = make_world(case.base, case.over, case.stored, case.meta)

        def program(x):
            return x + 1, use(way(w))
        return program, types.SimpleNamespace(program=program, w=w)
    steps: list[Any] = [_kept, *_calls()]
    for change in case.changes:
        steps += [functools.partial(_changed, change), *_calls()]
    engine = functools.partial(helpers.capture.compile, **compile_arguments)
    return helpers.compare(helpers.run(make, tuple(steps)), helpers.run(make, tuple(steps), engine))


def _calls() -> list[Call]:
    return [call(torch.ones(2)), call(torch.ones(2))]


def _kept(state: Any) -> None:
    _silently(_keep, state.w)


def _changed(change: str, state: Any) -> None:
    _silently(CHANGES[change], state.w)
