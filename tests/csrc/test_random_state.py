"""The state of random numbers: torch's, and read by many threads at once."""
from __future__ import annotations

import pytest
import torch

from capture import _C
from tests import compiling

# A finalizer that the garbage collector runs lets another thread go on, wherever an object is made.
READERS = """
import gc, sys, threading, time
import torch
from capture import _C

class Cycle:
    def __init__(self):
        self.cycle = self
    def __del__(self):
        time.sleep(1e-4)

def read():
    for _ in range(300):
        Cycle()
        _C.set_random_state(_C.get_random_state())

gc.set_threshold(1)
threads = [threading.Thread(target=read, daemon=True) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("all have ended")
"""


def test_it_is_the_state_of_torch() -> None:
    torch.manual_seed(3)
    state = _C.get_random_state()
    assert torch.equal(state, torch.get_rng_state())
    drawn = torch.rand(5)
    assert not torch.equal(state, _C.get_random_state())
    _C.set_random_state(state)
    assert torch.equal(torch.rand(5), drawn)
    _C.set_random_state(torch.get_rng_state())


@pytest.mark.parametrize("wrong", [None, 3, torch.zeros(2), torch.zeros(7, dtype=torch.uint8)])
def test_what_is_no_state(wrong: object) -> None:
    with pytest.raises((TypeError, RuntimeError)):
        _C.set_random_state(wrong)


def test_threads_that_collect_garbage_while_they_read_it() -> None:
    done = compiling.programs().run(["-c", READERS], timeout=100)
    assert (done.returncode, done.stdout) == (0, "all have ended\n"), done.stderr
