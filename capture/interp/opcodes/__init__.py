"""One handler per opcode. Importing this package registers them all, and what runs code on a namespace."""
from __future__ import annotations

import dis

from capture.interp.core.instructions import ABSORBED, HALVES, HANDLERS
from capture.interp.dispatch import execution  # noqa: F401
from capture.interp.opcodes import (  # noqa: F401
    asynchronous,
    calling,
    classes,
    containers,
    control,
    exceptions,
    matching,
    names,
    operators,
    stack,
)

# CPython's own plumbing.
NOT_IN_CODE = frozenset({"INTERPRETER_EXIT", "RESERVED", "EXIT_INIT_CHECK", "ENTER_EXECUTOR"})
FIRST_PSEUDO_OPCODE = 256   # the compiler's own; never in finished code


def missing() -> list[str]:
    """The opcodes of the running CPython which finished code may contain and no handler covers."""
    return sorted(name for name, number in dis.opmap.items()
                  if number < FIRST_PSEUDO_OPCODE and not name.startswith("INSTRUMENTED_")
                  and name not in HANDLERS and name not in ABSORBED and name not in HALVES and name not in NOT_IN_CODE)


if missing():
    raise ImportError(f"no handler for the opcodes {', '.join(missing())}")
