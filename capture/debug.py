"""What CAPTURE_DEBUG prints on stderr, and the files of CAPTURE_DEBUG_DIR.

Level 1 prints the decisions of the cache, 2 also guards, graphs and mock functions; the native backend adds fusion and the IR at 3,
kernels and plans at 4. In CAPTURE_DEBUG_DIR each frame has a folder: `0.mock.py`, `0.graph.py` and `0.guards.txt` of its first
entry, and so on. Mock functions run from these files, so that debuggers stop in them; a continuation belongs to the user's own
file.
"""
from __future__ import annotations

import dataclasses
import itertools
import os
import re
import types
import weakref
from typing import Any

from capture.config import DEBUG, DEBUG_DIR
from capture.errors import note, warn

_folders: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()       # of frames, by the tree of their entries
_taken: set[str] = set()
SUFFIX = ".mock.py"
NAMED = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)


def say(level: int, text: str) -> None:
    """Prints `text` at a debug level."""
    if DEBUG.value >= level:
        note(f"capture: {text}")


def captured(name: str, entry: Any) -> None:
    """Tells that an entry was installed."""
    trace = entry.payload
    if DEBUG.value >= 1:
        say(1, f"captured {name}: {trace.operations} operations, {entry.guard_count} guards")
        say(2, "\n".join(["guards:", *(f"  {guard}" for guard in entry.guards), "graph:", trace.graph_module.code,
                          "mock:", trace.mock.source + legend(trace.mock)]))
    if trace.mock.filename.endswith(SUFFIX):
        stem = trace.mock.filename.removesuffix(SUFFIX)
        write(f"{stem}.graph.py", trace.graph_module.code.strip() + "\n")
        write(f"{stem}.guards.txt", "".join(f"{guard}\n" for guard in entry.guards))


def broken(name: str, report: Any) -> None:
    """Tells that a trace was given up, and why."""
    say(1, f"gave up {name}: [{report.reason.id}] {report.context}" + (f" at {report.stack[-1]}" if report.stack else ""))


def on_disk(code: Any, frame: Any, name: str, number: int) -> Any:
    """The code (a PythonCode) of mock function `number` of a frame of this name, as it is in a file of the debug folder; unchanged
    if there is no such folder, or it cannot be written to."""
    if not DEBUG_DIR.value:
        return code
    path = os.path.join(folder_of(frame, name), f"{number}{SUFFIX}")
    return dataclasses.replace(code, filename=path) if write(path, code.source + legend(code)) else code


def legend(code: Any) -> str:
    """What the names in a mock function (a PythonCode) stand for that are not those of arguments, as comments below it."""
    names = [(f"lifted[{place}]", str(source)) for place, source in enumerate(code.lifted)]
    names += [(name, "the tensor operations" if name == code.graph else described(value))
              for name, value in code.globals.items() if name != "__builtins__"]
    width = max((len(name) for name, _ in names), default=0)
    return "".join(f"# {name:<{width}}  {meaning}\n" for name, meaning in names)


def described(value: Any) -> str:
    """A short text on an object that a mock function uses as a global. Runs no code of the program."""
    if type(value) is weakref.ref:
        return f"a weak reference to {described(value())}"
    if type(value) is types.CodeType:
        return f"the code of {value.co_qualname}"
    if isinstance(value, type):
        module, name = (type.__getattribute__(value, attribute) for attribute in ("__module__", "__qualname__"))
    elif isinstance(value, NAMED):
        module, name = getattr(value, "__module__", None) or "builtins", value.__qualname__
    else:
        return f"an instance of {described(type(value))}"
    return f"{module}.{name}"


def folder_of(frame: Any, name: str) -> str:
    """The folder of a frame; frames of the same name have different ones. Those of earlier processes are written over."""
    if frame not in _folders:
        base = os.path.join(os.path.abspath(DEBUG_DIR.value), re.sub(r"[^\w.<>-]+", "_", name))
        candidates = itertools.chain([base], (f"{base}_{number}" for number in itertools.count(1)))
        _folders[frame] = next(folder for folder in candidates if folder not in _taken)
        _taken.add(_folders[frame])
    return _folders[frame]


def write(path: str, text: str) -> bool:
    """Writes a file of the debug folder. If that fails, the user is warned and the program goes on."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        warn(f"CAPTURE_DEBUG_DIR={DEBUG_DIR.value!r} cannot be written to: {error.strerror}; "
             f"set it to a folder that can, or unset it")
        return False
    return True
