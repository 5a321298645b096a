"""Callable objects of C, and functions that call their arguments."""
from __future__ import annotations

import functools
import operator
import types
from typing import Any

from capture.interp.core.registry import polyfill
from capture.interp.polyfills.stand_ins import StandIn, class_of, stand_in
from capture.refgraph.lookup import MISSING, PARTS_OF_PARTIALS, is_hidden


def always(*args: Any, **kwargs: Any) -> bool:
    return True


@polyfill(functools.partial.__call__, applies=lambda self, *args, **kwargs: not is_hidden(type(self), *PARTS_OF_PARTIALS))
def call_partial(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """`partial(function, …)(…)`."""
    return self.func(*self.args, *args, **{**self.keywords, **kwargs})


@polyfill(operator.itemgetter.__call__, applies=always)
def call_itemgetter(self: Any, x: Any, /) -> Any:
    """`itemgetter(…)(x)`."""
    keys = self.__reduce__()[1]
    if len(keys) == 1:
        return x[keys[0]]
    items = []
    for key in keys:
        items.append(x[key])
    return tuple(items)


@polyfill(operator.attrgetter.__call__, applies=always)
def call_attrgetter(self: Any, x: Any, /) -> Any:
    """`attrgetter(…)(x)`."""
    paths = self.__reduce__()[1]
    if len(paths) == 1:
        return resolve(x, paths[0])
    items = []
    for path in paths:
        items.append(resolve(x, path))
    return tuple(items)


def resolve(x: Any, path: str) -> Any:
    """`x.a.b.c`."""
    for name in path.split(".") if "." in path else (path,):        # which may be of a class of the program's
        x = getattr(x, name)
    return x


@polyfill(operator.methodcaller.__call__, applies=always)
def call_methodcaller(self: Any, x: Any, /) -> Any:
    """`methodcaller(name, …)(x)`."""
    parts = self.__reduce__()
    if parts[0] is operator.methodcaller:
        return getattr(x, parts[1][0])(*parts[1][1:])
    wrapped = parts[0]      # with keywords, a partial methodcaller
    return getattr(x, wrapped.args[0])(*parts[1], **wrapped.keywords)


@stand_in(type(functools.cmp_to_key(lambda a, b: 0)))
class Ordered(StandIn):
    """What `cmp_to_key` returns, and what that wraps each item in."""

    __slots__ = ("_compare", "obj")
    __hash__ = None  # type: ignore[assignment]

    def begin(self, compare: Any, obj: Any = None) -> None:
        self._compare, self.obj = compare, obj

    def __call__(self, obj: Any) -> Any:
        return Ordered(self._compare, obj)

    def order(self, other: Any) -> Any:
        """What the function says of the two items."""
        if class_of(other) is not Ordered:
            raise TypeError("other argument must be K instance")
        return self._compare(self.obj, other.obj)

    def __lt__(self, other: Any) -> Any:
        return self.order(other) < 0

    def __le__(self, other: Any) -> Any:
        return self.order(other) <= 0

    def __eq__(self, other: Any) -> Any:
        return self.order(other) == 0

    def __ne__(self, other: Any) -> Any:
        return self.order(other) != 0

    def __gt__(self, other: Any) -> Any:
        return self.order(other) > 0

    def __ge__(self, other: Any) -> Any:
        return self.order(other) >= 0


@polyfill(functools.cmp_to_key, applies=lambda mycmp: True)
def cmp_to_key(mycmp: Any) -> Any:
    """`functools.cmp_to_key(mycmp)`."""
    return Ordered(mycmp)


@polyfill(operator.call, applies=always)
def call(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """`operator.call(function, …)`."""
    return function(*args, **kwargs)


@polyfill(*(cls.__call__ for cls in (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.MethodDescriptorType)),
          applies=always)
def call_by_name(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """`function.__call__(…)`."""
    return function(*args, **kwargs)


def call_of_class(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """The call of a compiled module, which is that of what it stands for."""
    return self._orig_mod(*args, **kwargs)


# -- memory ------------------------------------------------------------------------------------------------------------

def call_cached(cached: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """A call of an `lru_cache` of a function that only computes, if its arguments change from call to call. What the cache holds is
    known from what the function computes now."""
    kept = call_of_cache(cached, *args, **kwargs)
    return matched_with(kept, function(*args, **kwargs))


def call_of_cache(cached: Any, /, *args: Any, **kwargs: Any) -> Any:
    """The call itself."""
    return cached(*args, **kwargs)


def matched_with(kept: Any, computed: Any) -> Any:
    """What the cache holds, which is equal to what was computed."""
    return kept


def is_cached(user_function: Any, maxsize: Any, typed: Any, cache_info_type: Any) -> bool:
    return callable(user_function) and (maxsize is None or type(maxsize) is int)


@stand_in(type(functools.lru_cache(always)), applies=is_cached)
class Cached(StandIn):
    """What `functools.lru_cache(maxsize, typed)` makes of a function."""

    __slots__ = ("_function", "_maxsize", "_typed", "_info", "_memory", "_hits", "_misses", "__dict__")

    def begin(self, user_function: Any, maxsize: Any, typed: Any, cache_info_type: Any) -> None:
        self._function, self._maxsize, self._typed, self._info = user_function, maxsize, typed, cache_info_type
        self._memory: dict[Any, Any] = {}
        self._hits = self._misses = 0

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if self._maxsize == 0:
            self._misses += 1
            return self._function(*args, **kwargs)
        key = key_of(args, kwargs, self._typed)
        memory = self._memory
        found = memory.get(key, MISSING)
        if found is not MISSING:
            self._hits += 1
            if self._maxsize is not None:           # the last used goes last
                del memory[key]
                memory[key] = found
            return found
        self._misses += 1
        result = self._function(*args, **kwargs)
        if self._maxsize is not None and key not in memory and len(memory) >= self._maxsize:
            del memory[next(iter(memory))]
        memory[key] = result
        return result

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        return self if obj is None else types.MethodType(self, obj)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __reduce__(self) -> Any:
        return self.__qualname__  # type: ignore[attr-defined]

    def cache_info(self) -> Any:
        return self._info(self._hits, self._misses, self._maxsize, len(self._memory))

    def cache_clear(self) -> None:
        self._memory.clear()
        self._hits = self._misses = 0


def key_of(args: Any, kwargs: Any, typed: Any) -> Any:
    """Under what a call is remembered."""
    if not typed and not kwargs and len(args) == 1 and (type(args[0]) is int or type(args[0]) is str):
        return args[0]
    key = args
    if kwargs:
        key = (*key, MISSING, *kwargs.items())
    return (*key, *map(type, args), *map(type, kwargs.values())) if typed else key


# -- dispatch by class -------------------------------------------------------------------------------------------------

DISPATCH_CODE = functools.singledispatch(always).dispatch.__code__


def find_implementation(registry: Any, cls: Any) -> Any:
    """The function that `functools.singledispatch` chooses for a class. A model guards what that depends on."""
    return registry[cls] if cls in registry else functools._find_impl(cls, registry)  # type: ignore[attr-defined]


def dispatch(registry: Any, cls: Any) -> Any:
    """The inner function `dispatch` of a `functools.singledispatch`, without its cache."""
    return find_implementation(registry, cls)
