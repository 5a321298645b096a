"""Several processes that form a group: how tests start them, and wait for them."""
from __future__ import annotations

import datetime
import faulthandler
import subprocess
import time
import warnings
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist

from tests import compiling

SECONDS = 120           # after which ranks hang


def join(rank: int, folder: str, world: int, seconds: float = 60) -> None:
    """Makes this process a rank. seconds: how long torch waits for others. One that hangs tells where."""
    faulthandler.dump_traceback_later(SECONDS * 3 / 4)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world,
                            timeout=datetime.timedelta(seconds=seconds))


def leave() -> None:
    """Leaves the group. Where a model that finds unused parameters dies while the last collective of its backward pass is under
    way, torch waits for a thread that waits for the interpreter's lock, in eager mode too."""
    dist.barrier()
    time.sleep(0.2)
    dist.destroy_process_group()


def run(module: str, function: str, folder: Path, *args: object, world: int = 2) -> tuple[list[int], list[str]]:
    """Calls `function(rank, folder, *args)` of a module in each of so many processes. Returns how they ended, and what they wrote.
    Raises AssertionError if one of them hangs."""
    outputs = [open(folder / f"output{rank}", "w+") for rank in range(world)]
    processes = [compiling.programs().start(
        ["-c", f"{compiling.prelude()}from {module} import {function}\n{function}({rank}, {str(folder)!r}, *{args!r})"],
        output, output) for rank, output in enumerate(outputs)]
    deadline, ended = time.monotonic() + SECONDS, []
    try:
        for process in processes:
            ended.append(process.wait(max(deadline - time.monotonic(), 0)))
    except subprocess.TimeoutExpired:
        raise AssertionError("hangs:\n" + "\n".join(Path(output.name).read_text() for output in outputs)) from None
    finally:
        for process, output in zip(processes, outputs, strict=True):
            with suppress(ProcessLookupError):
                process.kill()
            output.close()
    return ended, [Path(output.name).read_text() for output in outputs]
