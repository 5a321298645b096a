"""Programs that use capture, and compiling processes, as forks of processes that have done what takes both longer than most tests:
imports, and a first job.

Where a test is about how such a process starts, it is started as always.
"""
from __future__ import annotations

from dataclasses import dataclass

from capture.backends.native import sidecar
from tests import forkserver

DEVELOPMENT = "-X", "dev"
# What a program has imported; `torch.distributed.tensor` is what `torch.testing` imports when it first compares.
PROGRAM = "torch", "torch.distributed.tensor", "capture.api", "capture.backends.native", __name__, "gc:freeze"
DESCRIPTORS = 5         # the standard ones, JOBS and LIFE
AS_STARTED = "import ctypes; ctypes.CDLL(None).prctl(36, 1)\n"      # PR_SET_CHILD_SUBREAPER, which a fork does not inherit
_started = sidecar.command


def programs() -> forkserver.Server:
    """The server of programs. They begin with `prelude()`."""
    return forkserver.server(PROGRAM, (*DEVELOPMENT, "-W", "default::UserWarning"))


def prelude() -> str:
    """The lines that make the compiling processes of a program forks, too."""
    return f"from capture.backends.native import sidecar\nfrom tests import compiling\nsidecar.command = compiling.{forking()}\n"


def server() -> forkserver.Server:
    """The server of compiling processes."""
    return forkserver.server((f"{__name__}:warm_up", "gc:freeze"), DEVELOPMENT, **sidecar.ENVIRONMENT)


def warm_up() -> None:
    """In that server: what a compiling process does before its first job."""
    import tqdm

    from capture.backends.native import worker
    tqdm.tqdm.monitor_interval = 0      # torch.fx makes progress bars, and no thread is to watch them
    worker.warm_up(sidecar.COMPILE_JOB)


@dataclass(frozen=True)
class Forking:
    """What to put in the place of `sidecar.command`."""

    address: bytes

    def __call__(self, compile_job: str) -> list[str]:
        return forkserver.standing_in(self.address, AS_STARTED + _started(compile_job)[-1], DESCRIPTORS)


def forking() -> Forking:
    return Forking(server().address)
