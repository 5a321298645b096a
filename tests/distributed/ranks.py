"""Several processes that form a group: how tests start them, and wait for them."""
from __future__ import annotations

import datetime
import subprocess
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

from tests import compiling

SECONDS = 200           # after which ranks hang


def join(rank: int, folder: str, world: int, seconds: float = 60) -> None:
    """Makes this process a rank. seconds: how long torch waits for others."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world,
                            timeout=datetime.timedelta(seconds=seconds))


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
            process.kill()
            output.close()
    return ended, [Path(output.name).read_text() for output in outputs]
