"""Creation of instances, in Python."""
from __future__ import annotations

from typing import Any

from capture.interp.models import polyfill


@polyfill(type.__call__, applies=lambda *args, **kwargs: args and isinstance(args[0], type) and args[0] is not type)
def instantiate(cls: type, /, *args: Any, **kwargs: Any) -> Any:
    """`type.__call__`: a new instance of `cls`, initialised when it is one."""
    obj = cls.__new__(cls, *args, **kwargs)
    if isinstance(obj, cls):
        type(obj).__init__(obj, *args, **kwargs)
    return obj
