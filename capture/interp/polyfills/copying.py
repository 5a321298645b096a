"""What `copy` and `pickle` ask of an object, in Python."""
from __future__ import annotations

import copyreg
from typing import Any

from capture.interp.models import polyfill

HEAPTYPE = 1 << 9
C_STATE = (int, float, complex, str, bytes, bytearray, tuple, list, dict, set, frozenset, type, BaseException)


def is_plain_instance(obj: Any, *rest: Any) -> bool:
    """Whether all state of an object is its `__dict__`, so that the default protocol of `object` can be spelled out."""
    cls = type(obj)
    return bool(cls.__flags__ & HEAPTYPE) and not issubclass(cls, C_STATE) and not copyreg._slotnames(cls) and hasattr(obj, "__dict__")  # type: ignore[attr-defined]


@polyfill(object.__reduce_ex__, applies=lambda obj, protocol: is_plain_instance(obj) and protocol >= 2)
def object_reduce_ex(self: Any, protocol: int) -> Any:
    """`object.__reduce_ex__`, protocol 2 and later."""
    cls = type(self)
    if cls.__reduce__ is not object.__reduce__:
        return self.__reduce__()
    if hasattr(cls, "__getnewargs_ex__"):
        args, kwargs = self.__getnewargs_ex__()
        return copyreg.__newobj_ex__, (cls, args, kwargs), self.__getstate__(), None, None
    args = self.__getnewargs__() if hasattr(cls, "__getnewargs__") else ()
    return copyreg.__newobj__, (cls, *args), self.__getstate__(), None, None


@polyfill(object.__getstate__, applies=is_plain_instance)
def object_getstate(self: Any) -> Any:
    """`object.__getstate__`."""
    return self.__dict__ or None
