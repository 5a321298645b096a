"""Plans on GPUs that are the processor in disguise; `test_gpu.py` runs this in a process whose driver is another."""
from __future__ import annotations

import ctypes
import os
import threading

import pytest
import torch

from capture import _C
from capture.backends.native.plan import Plan
from tests.backends.native.programs import compile_library

from .launches import SOURCE, choosing, doubling, indices, ramp, through_arena

driver = ctypes.CDLL("libcuda.so.1")
device = ctypes.CDLL(os.environ["FAKE_TORCH_DEVICE"])       # registers itself with torch


@pytest.fixture(scope="module")
def cubin(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return compile_library(tmp_path_factory.mktemp("kernels"), SOURCE).read_bytes()


@pytest.fixture(autouse=True)
def as_before():
    device.fake_set_device(0)
    yield
    assert driver.fake_contexts_pushed() == 0
    for index in range(2):
        device.fake_set_stream(index, ctypes.c_int64(0))


def run_on(index: int, plan: Plan, cubin: bytes, *constants: torch.Tensor) -> _C.Executor:
    return _C.Executor(plan, [cubin], list(constants), f"cuda:{index}")


def values(tensor: torch.Tensor) -> list[float]:
    assert tensor.device.type == "cuda"
    return list((ctypes.c_float * tensor.numel()).from_address(tensor.data_ptr()))


def launched() -> list[tuple[int, ...]]:
    """(device, blocks, threads, stream) of all launches so far."""
    found = []
    for number in range(driver.fake_launches()):
        row = (ctypes.c_int64 * 4)()
        driver.fake_launch(number, row)
        found.append(tuple(row))
    return found


def test_what_the_driver_has() -> None:
    assert _C.cuda_devices() == (13000, [("Fake 0", 9, 0), ("Fake 1", 9, 0)])


def test_kernels_run_on_the_device_and_on_torchs_stream(cubin: bytes) -> None:
    for index, stream in ((0, 0), (1, 77), (0, 5)):
        device.fake_set_stream(index, ctypes.c_int64(stream))
        before = len(launched())
        (y,) = run_on(index, through_arena(), cubin)()
        assert y.device == torch.device("cuda", index) and values(y) == [2. * i for i in range(100)]
        assert launched()[before:] == [(index, 3, 32, stream)] * 2
        assert device.fake_device() == 0


def test_a_context_that_is_current_is_not_pushed_again(cubin: bytes) -> None:
    run = run_on(0, ramp(), cubin)
    driver.cuCtxPushCurrent_v2.argtypes = [ctypes.c_void_p]
    context = ctypes.c_void_p()
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    driver.cuCtxPushCurrent_v2(context)
    pushed = driver.fake_calls(b"cuCtxPushCurrent_v2")
    try:
        run()
        assert driver.fake_calls(b"cuCtxPushCurrent_v2") == pushed and driver.fake_contexts_pushed() == 1
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))


def test_other_threads_have_no_context_of_their_own(cubin: bytes) -> None:
    run, results = run_on(1, ramp(), cubin), []
    threads = [threading.Thread(target=lambda: results.append((values(run()[0]), driver.fake_contexts_pushed()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [([float(i) for i in range(100)], 0)] * 4


def test_results_are_arguments_of_other_plans_on_the_same_device(cubin: bytes) -> None:
    (x,) = run_on(0, ramp(), cubin)()
    (y,) = run_on(0, doubling(), cubin)(x)
    assert values(y) == [2. * i for i in range(100)]
    with pytest.raises(RuntimeError, match="input0 is on cuda:0, not on cuda:1"):
        run_on(1, doubling(), cubin)(x)
    with pytest.raises(RuntimeError, match="input0 is on cpu, not on cuda:0"):
        run_on(0, doubling(), cubin)(torch.zeros(100))


def test_the_variant_follows_from_addresses_on_the_device(cubin: bytes) -> None:
    (x,) = run_on(0, ramp(), cubin)()
    before = len(launched())
    assert values(run_on(0, choosing(), cubin)(x)[0]) == [4.] * 100
    assert launched()[before:] == [(0, 2, 16, 0)]


def test_a_cubin_is_loaded_once_for_each_device(cubin: bytes) -> None:
    other = cubin + b"other"
    loads = driver.fake_calls(b"cuModuleLoadData")
    for index in (0, 1, 0, 1):
        run_on(index, ramp(), other)()
    assert driver.fake_calls(b"cuModuleLoadData") == loads + 2


def test_kernels_are_looked_for_in_all_cubins(cubin: bytes) -> None:
    other = _kernel_alone("another")
    (y,) = _C.Executor(ramp(), [other, cubin], [], "cuda:0")()
    assert values(y) == [float(i) for i in range(100)]
    with pytest.raises(ValueError, match="the library has no kernel ramp"):
        _C.Executor(ramp(), [other], [], "cuda:0")


def _kernel_alone(name: str) -> bytes:
    from capture.backends.native.toolchain import find_compiler
    return find_compiler().compile([f'extern "C" void {name}__emulated(unsigned, unsigned, void**) {{}}'])


def test_a_launch_that_fails_names_the_kernel(cubin: bytes) -> None:
    run = run_on(0, through_arena(), cubin)
    live = device.fake_allocated() - device.fake_freed()
    driver.fake_fail(b"cuLaunchKernel", 701)
    with pytest.raises(RuntimeError, match=r"^kernel step0 cannot be launched: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES \(too many "):
        run()
    assert device.fake_allocated() - device.fake_freed() == live
    assert values(run()[0])[:3] == [0, 2, 4]


@pytest.mark.parametrize(("function", "text"), [("cuModuleLoadData", "kernels cannot be loaded to cuda:0: CUDA_ERROR_FAKE"),
                                                ("cuModuleGetFunction", "kernel ramp cannot be loaded: CUDA_ERROR_FAKE")])
def test_what_cannot_be_loaded(cubin: bytes, function: str, text: str) -> None:
    driver.fake_fail(function.encode(), 209)
    with pytest.raises(RuntimeError, match=text):
        run_on(0, ramp(), cubin + function.encode())
    assert values(run_on(0, ramp(), cubin + function.encode())()[0])[:3] == [0, 1, 2]


def test_a_device_that_is_not_there(cubin: bytes) -> None:
    with pytest.raises(RuntimeError, match="cuda:2 cannot be used"):
        run_on(2, ramp(), cubin)


def test_there_is_no_byte_for_indices_out_of_range(cubin: bytes) -> None:
    assert values(run_on(0, indices(1), cubin)()[0]) == [6]


def test_the_arena_is_torchs_and_is_given_back_at_the_end(cubin: bytes) -> None:
    run = run_on(0, through_arena(), cubin)
    for _ in range(3):
        allocated, freed = device.fake_allocated(), device.fake_freed()
        (y,) = run()
        assert (device.fake_allocated() - allocated, device.fake_freed() - freed) == (2, 1)
        del y
        assert device.fake_freed() - freed == 2
    assert _C.workspace_bytes() == 0


def test_torchs_allocator_is_told_of_streams_that_read_constants(cubin: bytes) -> None:
    (constant,) = run_on(0, ramp(), cubin)()
    run, recorded = run_on(0, doubling("constant"), cubin, constant), device.fake_recorded()
    told = []
    for stream in (0, 0, 3, 3, 0):
        device.fake_set_stream(0, ctypes.c_int64(stream))
        assert values(run()[0])[:3] == [0, 2, 4]
        told.append(device.fake_recorded() - recorded)
    assert told == [1, 1, 2, 2, 3]
