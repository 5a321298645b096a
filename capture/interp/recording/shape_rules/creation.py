"""Sizes of tensors that are made of nothing."""
from __future__ import annotations

import operator
from collections.abc import Sequence

from capture._C import is_a
from capture.interp.core.frame import Value
from capture.interp.recording.shape_rules.shaper import Shape, Shaper, Unknown, nested, pointwise, rule
from capture.refgraph.identical import NUMBERS
from capture.refgraph.repetitions import repetition
from capture.refgraph.sizes import Size, as_size


@rule("zeros", "ones", "empty", "rand", "randn", total=True)
def sized(c: Shaper, *size: Value, **kwargs: Value) -> Shape:
    if kwargs.keys() & {"out", "generator", "names"}:
        raise Unknown
    return not_negative(c, (*size, *(kwargs[name] for name in ("size",) if name in kwargs)))


def not_negative(c: Shaper, given: Sequence[Value]) -> Shape:
    """Sizes that the program gives, which may have calculated them."""
    shape = c.given(given)
    for size in shape:
        c.sizes.decide(operator.ge, size, 0)
    return shape


@rule("full", total=True)
def full(c: Shaper, size: Value, fill_value: Value, **kwargs: Value) -> Shape:
    return not_negative(c, [size])


@rule("randint")
def randint(c: Shaper, *args: Value, **kwargs: Value) -> Shape:
    return c.given([kwargs["size"] if "size" in kwargs else next(value for value in args if not is_a(value.real, int))])


@rule("new_zeros", "new_ones", "new_empty", total=True)
def new(c: Shaper, input: Value, *size: Value, **kwargs: Value) -> Shape:
    return sized(c, *size, **kwargs)


@rule("new_full")
def new_full(c: Shaper, input: Value, size: Value, fill_value: Value | None = None, **kwargs: Value) -> Shape:
    """Also of `new_tensor`, which takes what the tensor is to hold."""
    return nested(size.real) if fill_value is None else c.given([size])


@rule("arange", total=True)
def arange(c: Shaper, *bounds: Value, **kwargs: Value) -> Shape:
    given = [*bounds, *(kwargs[name] for name in ("start", "end", "step") if name in kwargs)]
    if any(type(bound.real) is not int for bound in given[:2]) or "out" in kwargs or "start" in kwargs and "end" not in kwargs:
        raise Unknown
    start, stop = (as_size(0), c.size(given[0])) if len(given) == 1 else (c.size(given[0]), c.size(given[1]))
    step = steps(c, given[2]) if len(given) > 2 else as_size(1)
    if step.real < 0:
        start, stop, step = -start, -stop, -step
    c.sizes.decide(operator.le, start, stop)
    exact = (stop - start).divided(step)
    return [c.sizes.quotient(stop - start + (step - 1), step) if exact is None else exact]


def steps(c: Shaper, value: Value) -> Size:
    """How far it is from one number to the next. A size that changes is positive."""
    if type(value.real) is int and value.real > 0 and c.sizes.is_free(value.shadow):
        step = c.size(value)
        c.sizes.decide(operator.gt, step, 0)
        return step
    step = c.fixed(value)
    if type(step) not in NUMBERS or not float(step).is_integer() or not step:
        raise Unknown
    return as_size(int(step))


@rule(*(f"{name}_window" for name in ("bartlett", "blackman", "hamming", "hann", "kaiser")))
def window(c: Shaper, window_length: Value, *args: Value, **kwargs: Value) -> Shape:
    return [c.size(window_length)]


@rule("eye")
def eye(c: Shaper, n: Value, m: Value | None = None, **kwargs: Value) -> Shape:
    return [c.size(n), c.size(n if m is None else m)]


@rule("randperm")
def randperm(c: Shaper, n: Value, **kwargs: Value) -> Shape:
    return [c.size(n)]


@rule("linspace", "logspace")
def linspace(c: Shaper, start: Value, end: Value, steps: Value, **kwargs: Value) -> Shape:
    return [c.size(steps)]


@rule("normal")
def normal(c: Shaper, *args: Value, **kwargs: Value) -> Shape:
    """Of tensors, or as many numbers as is said; in place, as many as there are."""
    sizes = [kwargs["size"]] if "size" in kwargs else [value for value in args if is_a(value.real, (list, tuple))]
    return c.given(sizes) if sizes else pointwise(c, *args, **kwargs)


@rule("new")
def legacy_new(c: Shaper, input: Value, data: Value) -> Shape:
    """Of lists of numbers; of sizes it is `new_empty`."""
    return nested(data.real)


@rule("tensor", "as_tensor")
def tensor(c: Shaper, data: Value, **kwargs: Value) -> Shape:
    """Of lists of numbers, which are as long as they are."""
    opened = repetition(data.shadow)
    if opened is None:
        return nested(data.real)
    c.sizes.decide(operator.ge, opened.times, 1)
    return [opened.length, *nested(data.real)[1:]]
