"""What the extension module (`csrc/`) offers to Python, for type checkers. What it means is said there, and by `help()`."""
import builtins
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, final

import torch

# -- calls -------------------------------------------------------------------------------------------------------------

@final
class RunNatively: ...

RUN_NATIVELY: Final[RunNatively]

@final
class CompiledFunction:
    """A function whose frames are looked up in a guard tree before they run. It takes attributes as any function does."""

    function: Final[types.FunctionType]
    tree: Final[GuardTree]
    on_miss: Final[Callable[..., Any]]
    traced: int
    current: Callable[[Any], Any] | None        # of a compiled module: what to call in the place of `function`, if anything
    __wrapped__: types.FunctionType
    __name__: str
    __qualname__: str
    capture_unit: Any                           # capture.unit.Unit
    capture_rebuild: Callable[..., Any]

    def __init__(self, function: Callable[..., Any], tree: GuardTree, on_miss: Callable[..., Any],
                 on_error: Callable[..., Any] | None = None) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any: ...

@final
class TailCall:
    def __init__(self, callable: Callable[..., Any], function: types.FunctionType | None, arguments: tuple[Any, ...],
                 /) -> None: ...

class Resumption:
    """What `capture.resumption.Resumption` extends."""

    stand_ins: tuple[types.CodeType | None, ...]
    code: types.CodeType
    keeps_function: bool
    compiled: Any                               # CompiledFunction, or None before the first use
    idle: Any
    loop: Any

@final
class Switch:
    target: Callable[..., Any]
    tier: Any                                   # capture.backends.native.tiers.Tier, or None

    def __init__(self, target: Callable[..., Any], tier: Any = None) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

def note_fork() -> None: ...
def watch(choosers: dict[str, Callable[[types.FunctionType, Any], Any]] | None, /) -> None: ...
def trees(code: types.CodeType, /) -> list[GuardTree]: ...
def continuation(code: types.CodeType, globals: dict[str, Any], cells: tuple[types.CellType, ...], /) -> types.FunctionType: ...

# -- guards ------------------------------------------------------------------------------------------------------------

STEPS: Final[tuple[str, ...]]
KINDS: Final[tuple[str, ...]]

class CacheEntry:
    mock: Any
    payload: Any                                # capture.unit.Trace
    guards: Any                                 # set by capture.guards.tree
    hits: Final[int]
    samples: Final[int]
    guard_ns: Final[int]
    graph_ns: Final[int]
    mock_ns: Final[int]
    alive: Final[bool]

    def _kill(self) -> None: ...

class GuardTree:
    """What `capture.guards.tree.GuardTree` extends."""

    entries: Any                                # list of CacheEntry

    def __init__(self, code: types.CodeType) -> None: ...
    def _add(self, entry: CacheEntry, nodes: list[Any], checks: list[Any], lifted: list[Any], /) -> None: ...
    def _explain(self, function: types.FunctionType, args: Sequence[Any], /) -> list[tuple[Any, int, str, str, str]]: ...
    def check(self, function: types.FunctionType, args: Sequence[Any], /) -> CacheEntry | None: ...
    def remove(self, entry: CacheEntry, /) -> None: ...
    def clear(self) -> None: ...

@final
class TensorProperties:
    type: Final[builtins.type]
    dtype: Final[torch.dtype]
    device: Final[torch.device]
    shape: Final[tuple[int, ...]]
    stride: Final[tuple[int, ...]]
    requires_grad: Final[bool]
    is_leaf: Final[bool]
    has_attributes: Final[bool]
    keys: Final[int]
    any_shape: Final[bool]

    @staticmethod
    def of(tensor: Any, /) -> TensorProperties: ...
    def of_any_shape(self) -> TensorProperties: ...
    def matches(self, x: Any, /) -> bool: ...

def tensor_properties(tensor: Any, /) -> TensorProperties: ...

@final
class Modes:
    def __getattr__(self, name: str) -> Any: ...
    @staticmethod
    def current() -> Modes: ...

def modes() -> Modes: ...

# -- plans of kernels --------------------------------------------------------------------------------------------------

@final
class Executor:
    def __init__(self, plan: Any, library: str | None = None, constants: Sequence[Any] = ()) -> None: ...
    def __call__(self, *args: Any) -> tuple[Any, ...]: ...
    def run_boxed(self, arguments: list[Any], edges: tuple[int, ...] = (), loose: int = 0, /) -> tuple[Any, ...]: ...

@final
class Snapshot:
    def __init__(self, positions: tuple[int, ...], inputs: tuple[Any, ...]) -> None: ...
    def matches(self, inputs: tuple[Any, ...], /) -> bool: ...

def release_workspaces() -> int: ...
def workspace_bytes() -> int: ...

# -- asked by Python ---------------------------------------------------------------------------------------------------

def reraise(exception: BaseException, /) -> Any: ...
def set_handled_exception(exception: BaseException | None, /) -> None: ...
def show_locals(traceback: types.TracebackType, code: types.CodeType, bound: dict[int, Any], names: Any, /) -> None: ...
def make_traceback(tb_next: types.TracebackType | None, code: types.CodeType, globals: dict[str, Any], lasti: int,
                   lineno: int, /) -> types.TracebackType: ...
@final
class Undo:
    def __init__(self, written: tuple[torch.Tensor, ...], counted: tuple[torch.Tensor, ...],
                 dropped: tuple[torch.Tensor, ...]) -> None: ...
    def put_back(self) -> None: ...


def get_random_state() -> torch.Tensor: ...
def set_random_state(state: torch.Tensor, /) -> None: ...
def can_look_ahead(iterator: Any, /) -> bool: ...
def has_item(iterator: Iterator[Any], ahead: int, /) -> bool: ...
def peek(iterator: Iterator[Any], ahead: int, /) -> Any: ...
def skip(iterator: Iterator[Any], count: int, /) -> None: ...
def hashed_keys(container: Any, /) -> list[tuple[Any, int]]: ...
def candidates(container: Any, hash: int, /) -> list[Any]: ...
def put(container: Any, key: Any, value: Any, hash: int, /) -> None: ...
def take_out(container: Any, key: Any, hash: int, /) -> None: ...
