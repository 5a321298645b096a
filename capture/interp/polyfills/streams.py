"""Lazy iterators as generators: map, filter, zip and enumerate over Python code, and itertools."""
from __future__ import annotations

import itertools
import operator
from typing import Any

from capture.interp.models import polyfill
from capture.interp.special import is_native_iterable, is_native_iterator

MISSING = object()


def always(*args: Any, **kwargs: Any) -> bool:
    return True


def iterators(iterables: Any) -> Any:
    """`iter` of each."""
    result = []
    for iterable in iterables:
        result.append(iter(iterable))
    return result


# -- builtins ----------------------------------------------------------------------------------------------------------

@polyfill(map, applies=lambda *args: len(args) > 1)
def map_(function: Any, *iterables: Any) -> Any:
    """`map(function, *iterables)`."""
    if len(iterables) == 1:
        return mapped(function, iter(iterables[0]))
    return mapped_together(function, iterators(iterables))


def mapped(function: Any, iterator: Any) -> Any:
    """`function(x)` for each item."""
    for item in iterator:
        yield function(item)


def mapped_together(function: Any, parts: Any) -> Any:
    """`function(x, y, …)` for the items of several iterators."""
    for items in zipped(parts, False):
        yield function(*items)


@polyfill(filter, applies=lambda *args: len(args) == 2)
def filter_(function: Any, iterable: Any) -> Any:
    """`filter(function, iterable)`."""
    return filtered(function, iter(iterable), True)


def filtered(function: Any, iterator: Any, wanted: bool) -> Any:
    """The items of which `function` says `wanted`."""
    for item in iterator:
        if (True if (item if function is None else function(item)) else False) is wanted:
            yield item


def is_zipped_in_python(*iterables: Any, **strict: Any) -> bool:
    """Whether C cannot walk over the iterables in step, as far as the trace can follow."""
    shared = [x for x in iterables if is_native_iterator(x)]
    if not all(is_native_iterable(x) or is_native_iterator(x) for x in iterables):
        return True
    return len(set(map(id, shared))) < len(shared)


@polyfill(zip, applies=is_zipped_in_python)
def zip_(*iterables: Any, strict: Any = False) -> Any:
    """`zip(*iterables, strict=strict)`."""
    return zipped(iterators(iterables), strict)


def zipped(parts: Any, strict: Any) -> Any:
    """Tuples of the items of several iterators."""
    while parts:
        items = []
        for part in parts:
            item = next(part, MISSING)
            if item is MISSING:
                if strict:
                    check_ends(parts, len(items))
                return
            items.append(item)
        yield tuple(items)


def check_ends(parts: Any, ended: int) -> None:
    """Raises the error of `zip(strict=True)` unless all iterators end with number `ended`, the first that does."""
    if ended:
        raise ValueError(f"zip() argument {ended + 1} is shorter than argument{'s 1-' if ended > 1 else ' '}{ended}")
    for i in range(1, len(parts)):
        if next(parts[i], MISSING) is not MISSING:
            raise ValueError(f"zip() argument {i + 1} is longer than argument{'s 1-' if i > 1 else ' '}{i}")


@polyfill(enumerate, applies=lambda iterable, start=0: is_zipped_in_python(iterable) or type(start) is not int)
def enumerate_(iterable: Any, start: Any = 0) -> Any:
    """`enumerate(iterable, start)`."""
    return counted(iter(iterable), operator.index(start))


def counted(iterator: Any, n: int) -> Any:
    """Items with their numbers."""
    for item in iterator:
        yield n, item
        n += 1


# -- itertools ---------------------------------------------------------------------------------------------------------

@polyfill(itertools.chain, applies=always)
def chain(*iterables: Any) -> Any:
    """`itertools.chain(*iterables)`."""
    for iterable in iterables:
        for item in iterable:
            yield item


@polyfill(itertools.chain.from_iterable, applies=always)
def chain_from_iterable(iterables: Any) -> Any:
    """`itertools.chain.from_iterable(iterables)`."""
    for iterable in iterables:
        for item in iterable:
            yield item


@polyfill(itertools.count, applies=always)
def count(start: Any = 0, step: Any = 1) -> Any:
    """`itertools.count(start, step)`."""
    while True:
        yield start
        start = start + step


@polyfill(itertools.cycle, applies=always)
def cycle(iterable: Any) -> Any:
    """`itertools.cycle(iterable)`."""
    return cycled(iter(iterable))


def cycled(iterator: Any) -> Any:
    """The items again and again."""
    saved = []
    for item in iterator:
        yield item
        saved.append(item)
    while saved:
        for item in saved:
            yield item


@polyfill(itertools.repeat, applies=always)
def repeat(object: Any, times: Any = None) -> Any:
    """`itertools.repeat(object, times)`."""
    if times is None:
        while True:
            yield object
    for _ in range(times):
        yield object


@polyfill(itertools.accumulate, applies=always)
def accumulate(iterable: Any, func: Any = None, *, initial: Any = None) -> Any:
    """`itertools.accumulate(iterable, func, initial=initial)`."""
    iterator = iter(iterable)
    total = initial
    if initial is None:
        total = next(iterator, MISSING)
        if total is MISSING:
            return
    yield total
    for item in iterator:
        total = total + item if func is None else func(total, item)
        yield total


@polyfill(itertools.islice, applies=always)
def islice(iterable: Any, *bounds: Any) -> Any:
    """`itertools.islice(iterable, start, stop, step)`."""
    limits = slice(*bounds)
    start, stop, step = limits.start or 0, limits.stop, 1 if limits.step is None else limits.step
    for bound in (start, 0 if stop is None else stop):
        if not isinstance(bound, int) or bound < 0:
            raise ValueError("Indices for islice() must be None or an integer: 0 <= x <= sys.maxsize."
                             if len(bounds) > 1 else
                             "Stop argument for islice() must be None or an integer: 0 <= x <= sys.maxsize.")
    if step < 1:
        raise ValueError("Step for islice() must be a positive integer or None.")
    return sliced(iter(iterable), start, stop, step)


def sliced(iterator: Any, start: int, stop: Any, step: int) -> Any:
    """Items `start`, `start + step`, … before `stop`."""
    i, wanted = 0, start
    while stop is None or i < stop:
        item = next(iterator, MISSING)
        if item is MISSING:
            return
        if i == wanted:
            yield item
            wanted += step
        i += 1


@polyfill(itertools.starmap, applies=always)
def starmap(function: Any, iterable: Any) -> Any:
    """`itertools.starmap(function, iterable)`."""
    return spread(function, iter(iterable))


def spread(function: Any, iterator: Any) -> Any:
    """`function(*items)` for each."""
    for items in iterator:
        yield function(*items)


@polyfill(itertools.takewhile, applies=always)
def takewhile(predicate: Any, iterable: Any) -> Any:
    """`itertools.takewhile(predicate, iterable)`."""
    for item in iterable:
        if not predicate(item):
            return
        yield item


@polyfill(itertools.dropwhile, applies=always)
def dropwhile(predicate: Any, iterable: Any) -> Any:
    """`itertools.dropwhile(predicate, iterable)`."""
    dropping = True
    for item in iterable:
        if dropping and predicate(item):
            continue
        dropping = False
        yield item


@polyfill(itertools.filterfalse, applies=always)
def filterfalse(function: Any, iterable: Any) -> Any:
    """`itertools.filterfalse(function, iterable)`."""
    return filtered(function, iter(iterable), False)


@polyfill(itertools.compress, applies=always)
def compress(data: Any, selectors: Any) -> Any:
    """`itertools.compress(data, selectors)`."""
    for item, selected in zip(data, selectors):
        if selected:
            yield item


@polyfill(itertools.pairwise, applies=always)
def pairwise(iterable: Any) -> Any:
    """`itertools.pairwise(iterable)`."""
    last = MISSING
    for item in iterable:
        if last is not MISSING:
            yield last, item
        last = item


@polyfill(itertools.zip_longest, applies=always)
def zip_longest(*iterables: Any, fillvalue: Any = None) -> Any:
    """`itertools.zip_longest(*iterables, fillvalue=fillvalue)`."""
    return zipped_longest(iterators(iterables), fillvalue)


def zipped_longest(parts: Any, fillvalue: Any) -> Any:
    """Tuples of the items of several iterators, until the last ends."""
    while True:
        items = []
        left = False
        for part in parts:
            item = next(part, MISSING)
            if item is MISSING:
                item = fillvalue
            else:
                left = True
            items.append(item)
        if not left:
            return
        yield tuple(items)


@polyfill(itertools.product, applies=always)
def product(*iterables: Any, repeat: int = 1) -> Any:
    """`itertools.product(*iterables, repeat=repeat)`."""
    pools = []
    for iterable in iterables:
        pools.append(tuple(iterable))
    pools = pools * repeat
    results: list[tuple[Any, ...]] = [()]
    for pool in pools:
        longer = []
        for head in results:
            for item in pool:
                longer.append(head + (item,))
        results = longer
    return iter(results)


@polyfill(itertools.permutations, applies=always)
def permutations(iterable: Any, r: Any = None) -> Any:
    """`itertools.permutations(iterable, r)`."""
    pool = tuple(iterable)
    return picked(pool, itertools_orders(len(pool), len(pool) if r is None else r, "permutations"))


@polyfill(itertools.combinations, applies=always)
def combinations(iterable: Any, r: int) -> Any:
    """`itertools.combinations(iterable, r)`."""
    pool = tuple(iterable)
    return picked(pool, itertools_orders(len(pool), r, "combinations"))


@polyfill(itertools.combinations_with_replacement, applies=always)
def combinations_with_replacement(iterable: Any, r: int) -> Any:
    """`itertools.combinations_with_replacement(iterable, r)`."""
    pool = tuple(iterable)
    return picked(pool, itertools_orders(len(pool), r, "combinations_with_replacement"))


def itertools_orders(n: int, r: int, kind: str) -> list[tuple[int, ...]]:
    """The choices of `r` among `n` indices; a model computes them in C."""
    return list(getattr(itertools, kind)(range(n), r))


def picked(pool: Any, orders: Any) -> Any:
    """The items of `pool` at the indices of each of `orders`."""
    for indices in orders:
        items = []
        for i in indices:
            items.append(pool[i])
        yield tuple(items)


@polyfill(itertools.groupby, applies=always)
def groupby(iterable: Any, key: Any = None) -> Any:
    """`itertools.groupby(iterable, key)`; each group is complete when it is yielded."""
    group: list[Any] = []
    current = MISSING
    for item in iterable:
        rank = item if key is None else key(item)
        if current is not MISSING and not (rank is current or rank == current):
            yield current, iter(group)
            group = []
        current = rank
        group.append(item)
    if current is not MISSING:
        yield current, iter(group)


@polyfill(itertools.tee, applies=always)
def tee(iterable: Any, n: int = 2) -> Any:
    """`itertools.tee(iterable, n)`."""
    iterator = iter(iterable)
    queue: list[Any] = []
    results = []
    for _ in range(n):
        results.append(shared(iterator, queue))
    return tuple(results)


def shared(iterator: Any, queue: list[Any]) -> Any:
    """The items of `iterator`, of which others that share `queue` may have taken some."""
    i = 0
    while True:
        if i == len(queue):
            item = next(iterator, MISSING)
            if item is MISSING:
                return
            queue.append(item)
        yield queue[i]
        i += 1
