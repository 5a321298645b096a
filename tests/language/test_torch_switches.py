"""Questions to torch whose answers are no tensors, switches, ranges of the profiler, and choices of kernels."""
from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import backends
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.profiler import record_function

from tests.helpers import call, check
from tests.programs import NATIVE, Programs

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
Y = torch.randn(2, 3, generator=torch.Generator().manual_seed(2))
LEAF = X.clone().requires_grad_()
plain, trained = Programs(), Programs()
X.to_sparse_csr(), torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=torch.long), torch.ones(1), (1,))     # which warn once


@pytest.fixture(autouse=True)
def settable():
    """Torch's own test suite, once imported, forbids to assign to some settings."""
    with backends.__allow_nonbracketed_mutation():
        yield


@plain.add(X)
def switches_of_compilers(x):
    if (torch.jit.is_scripting() or torch.jit.is_tracing() or torch._C._get_tracing_state() or torch.onnx.is_in_onnx_export()
            or torch.compiler.is_exporting()):
        return x
    return x * 2, torch.jit.is_scripting(), torch.jit.is_tracing()


@plain.add(X)
def whether_a_stream_is_captured(x):
    try:
        return x + torch.cuda.is_current_stream_capturing()
    except RuntimeError as error:       # torch was built with CUDA, and the machine has no driver
        return x * 2, type(error)


@plain.make(X)
def decorators_of_scripting():
    @torch.jit.ignore
    def ignored(x):
        return x * 2

    @torch.jit.unused
    def unused(x):
        return x + 1

    @torch.jit.export
    def exported(x):
        return ignored(unused(x))
    return lambda x: exported(x), None


@plain.make(X)
def a_scripted_function():
    @torch.jit.script
    def scripted(x):
        return x * 2 + 1
    return lambda x: scripted(x).sin()


@plain.add(X)
def annotations_of_scripting(x):
    items = torch.jit.annotate(list, [x])
    return torch.jit._unwrap_optional(items[0]) + 1


@plain.add(X)
def facts_about_types(x):
    return (x * torch.finfo(x.dtype).eps, torch.finfo(torch.float16).max, torch.iinfo(torch.int8).min, torch.finfo(x.dtype).bits,
            torch.promote_types(torch.int32, x.dtype), torch.result_type(x, 3), torch.can_cast(torch.float64, torch.int32))


@plain.add(X)
def a_mask_of_the_lowest_value(x):
    return x.masked_fill(x > 0, torch.finfo(x.dtype).min)


@plain.add(X)
def facts_about_shapes(x):
    return (torch.broadcast_shapes((2, 1), x.shape, (1, 3)), torch.Size([2, 3]) == x.shape, x.shape.numel(),
            torch.Size((1,)) + x.shape)


@plain.add(X, 3)
def facts_about_objects(x, n):
    return (torch.is_tensor(x), torch.is_tensor(n), torch.is_floating_point(x), torch.is_complex(x), torch.is_storage(x),
            torch.numel(x), torch.is_same_size(x, x), x.is_same_size(x.t()), torch.overrides.is_tensor_like(x), torch.typename(x))


@plain.add(X)
def defaults(x):
    return x.to(torch.get_default_dtype()), torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads() > 0


@plain.add(X)
def grad_modes(x):
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled(), x + 1


@plain.add(X)
def devices(x):
    return (torch.cuda.is_available(), x.to(torch.device("cpu")), x.device.type, x.is_cuda, torch.device("cuda", 1).index,
            torch.backends.mps.is_available(), torch.backends.cudnn.enabled)


@plain.add(X)
def versions(x):
    major, minor = torch.__version__.split(".")[:2]
    return x * (2 if (int(major), int(minor)) >= (1, 8) else 3)


@plain.add(X)
def a_deterministic_switch(x):
    return x + 1 if torch.are_deterministic_algorithms_enabled() else x * 2


@plain.add(X, Y)
def tensors_are_compared_and_the_answer_returned(x, y):
    return torch.equal(x, y), x.equal(x), torch.allclose(x, y), x + y


# --- modes of functions

class Noting(TorchFunctionMode):
    """Notes which functions are called, and doubles what relu returns."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.relu else result


@plain.add(X, **NATIVE)
def a_mode_of_functions_entered_inside(x):
    mode = Noting()
    y = x * 3
    with mode:
        y = torch.relu(y) * 2 + x.sum()
    return y + 1, mode.names


# --- ranges

@trained.add(LEAF)
def a_range(x):
    with record_function("work"):
        y = x.sin()
    with torch.autograd.profiler.record_function("more"):
        return y * 2


@plain.make(X)
def a_range_as_decorator():
    @record_function("all")
    def program(x):
        return x * 2
    return lambda x: program(x)


@plain.add(X)
def ranges_of_nvtx_and_itt(x):
    with torch.autograd.profiler.emit_nvtx(enabled=False):
        return x + 1


# --- kernels of attention

@trained.add(LEAF)
def a_choice_of_kernels(x):
    q = x[None, None]
    with sdpa_kernel(SDPBackend.MATH):
        a = F.scaled_dot_product_attention(q, q, q)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        return a + F.scaled_dot_product_attention(q, q, q, is_causal=True)


@trained.add(LEAF)
def a_mode_set_and_restored(x):
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    y = x * 2
    torch.set_grad_enabled(before)
    return x * y, y.requires_grad


# --- settings of cuDNN

def settings():
    return (torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic,
            torch.backends.cudnn.allow_tf32, torch.backends.cudnn.depthwise_kernel, torch.backends.cudnn.fp32_precision)


@trained.add(LEAF)
def a_loss_without_cudnn(x):
    with torch.backends.cudnn.flags(enabled=False):
        loss = F.ctc_loss(x[:, None].log_softmax(-1), torch.ones(1, 1, dtype=torch.long), torch.tensor([2]), torch.tensor([1]))
    return loss * 2


@trained.add(LEAF)
def settings_within_and_behind_a_block(x):
    with torch.backends.cudnn.flags(enabled=False, deterministic=True):
        first, y = settings(), x.sin()
        with torch.backends.cudnn.flags(allow_tf32=False):
            return first, settings(), y * 2, torch.backends.cudnn.is_acceptable(y)


@trained.add(LEAF)
def two_blocks_with_what_one_finds_behind_them(x):
    with torch.backends.cudnn.flags(enabled=False):
        y = x.sin()
    with torch.backends.cudnn.flags(benchmark=True):
        y = y * 2
    return y, settings()


@trained.add(LEAF)
def a_setting_assigned_and_restored(x):
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    y = x * 2
    torch.backends.cudnn.deterministic = before
    return y + 1


# --- sparse and back

@trained.add(LEAF)
def sparse_and_back(x):
    y = x.to_sparse().to_dense()
    return y * 2, y.shape, y.is_sparse


@plain.add(X, Y)
def sparse_products(x, y):
    s = x.relu().to_sparse()
    return torch.sparse.mm(s, y.t()), s @ y.t(), s.is_sparse, s.shape, s.layout


@plain.make(X)
def a_sparse_matrix_from_outside():
    adjacency = torch.eye(2).to_sparse()
    return lambda x: torch.sparse.mm(adjacency, x), SimpleNamespace(adjacency=adjacency)


@plain.add(X)
def a_sparse_tensor_from_indices(x):
    s = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), x[0, :2], (2, 2))
    return s.to_dense(), torch.sparse.sum(s), s.coalesce().to_dense()


@plain.add(X)
def compressed_rows(x):
    s = x.relu().to_sparse_csr()
    return s.to_dense(), s @ torch.ones(3, 1), s.shape


@plain.add(X)
def values_of_a_sparse_tensor(x):
    s = x.relu().to_sparse()
    return s.values() * 2, s.indices(), torch.sparse_coo_tensor(s.indices(), s.values() + 1, s.shape).to_dense()


test_values = pytest.mark.filterwarnings("ignore")(plain.test())


test_gradients = trained.test(backward=True)


def test_a_default_changes() -> None:
    def make():
        torch.set_default_dtype(torch.float32)
        return lambda x: x.to(torch.get_default_dtype())
    check(make, call(X), call(X), lambda state: torch.set_default_dtype(torch.float64), call(X), call(X), captures=2)


def test_the_choice_of_kernels_changes() -> None:
    def make():
        torch.backends.cuda.enable_flash_sdp(True)
        return lambda x: x + 1 if torch.backends.cuda.flash_sdp_enabled() else x * 2
    try:
        check(make, call(X), call(X), lambda state: torch.backends.cuda.enable_flash_sdp(False), call(X), call(X), captures=2)
    finally:
        torch.backends.cuda.enable_flash_sdp(True)


def test_the_choice_of_kernels_is_restored_when_an_operation_raises() -> None:
    def program(x, index):
        with sdpa_kernel(SDPBackend.MATH):
            return torch.index_select(x, 0, index)
    good, bad = torch.tensor([0, 1]), torch.tensor([7])
    check(lambda: program, call(X, good), call(X, good), call(X, bad), call(X, good), captures=None)
    assert torch.backends.cuda.flash_sdp_enabled()


def with_cudnn(program):
    """The program, with the settings that a process begins with."""
    torch.backends.cudnn.set_flags(True, False, None, False, True, "none", "auto")
    return program


def settings_of_cudnn_are(**values):
    """A change between two calls."""
    return lambda state: torch.backends.cudnn.set_flags(**{f"_{name}": value for name, value in values.items()})


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_settings_of_cudnn_change(backend: str, restored_settings_of_cudnn: None) -> None:
    """What they were is found again behind a block, on the first call and later ones."""
    def program(x):
        before = settings()
        with torch.backends.cudnn.flags(enabled=False):
            y = (x * 2).sin()
            print(torch.backends.cudnn.enabled)
        return y, before, settings()
    options = {"options": {"background": False}} if backend == "native" else {}
    check(lambda: with_cudnn(program), call(X), call(X), settings_of_cudnn_are(enabled=False), call(X), call(X),
          settings_of_cudnn_are(deterministic=True), call(X), settings_of_cudnn_are(allow_tf32=False), call(X), call(X), call(X),
          captures=4, backend=backend, tolerance=1e-6, **options)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", ["enabled", "deterministic", "benchmark", "allow_tf32", "depthwise_kernel"])
def test_a_setting_of_cudnn_is_left_otherwise_than_it_was(backend: str, name: str, restored_settings_of_cudnn: None) -> None:
    """The program sees it, and so do later calls. What is compiled does so as well."""
    values = ["native", "auto"] if name == "depthwise_kernel" else [True, False]

    def program(x, value):
        y = x * 2
        setattr(torch.backends.cudnn, name, value)
        return y.sin() + 1
    found = []
    options = {"options": {"background": False}} if backend == "native" else {}
    steps = [step for value in (0, 1, 1, 0, 0, 1) for step in (
        call(X, values[value]), lambda state: found.append(getattr(torch.backends.cudnn, name)))]
    check(lambda: with_cudnn(program), *steps, captures=None, backend=backend, tolerance=1e-6, **options)
    assert found[:6] == found[6:] == [values[value] for value in (0, 1, 1, 0, 0, 1)]


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_break_within_a_block_of_cudnn(backend: str, restored_settings_of_cudnn: None) -> None:
    """The next trace begins with other settings, and ends the block."""
    def program(x):
        with torch.backends.cudnn.flags(enabled=False, deterministic=True):
            y = (x * 2).sin()
            if y.sum() > 0:
                y = y + 1
            inside = settings()
            y = y * 3
        return y.cos(), inside, settings()
    options = {"options": {"background": False}} if backend == "native" else {}
    stats = check(lambda: with_cudnn(program), *[call(x) for x in (X, X, -X, -X, X, -X)], captures=None, fullgraph=False,
                  backend=backend, tolerance=1e-6, **options)
    assert stats.breaks == 1 and stats.native_calls == 0


@pytest.mark.parametrize("library", ["generic", "mkldnn"])
def test_a_precision_of_processors_is_set_between_traces(library: str, restored_settings_of_cudnn: None) -> None:
    module = torch.backends if library == "generic" else torch.backends.mkldnn

    def program(x):
        y = x @ x.t()
        before = module.fp32_precision
        module.fp32_precision = "ieee"
        z = y @ y
        module.fp32_precision = before
        return z @ z, module.fp32_precision
    stats = check(lambda: program, *[call(X)] * 4, captures=None, fullgraph=False, tolerance=1e-6)
    assert stats.breaks == 2 and stats.native_calls == 0


def test_settings_of_cudnn_are_restored_when_an_operation_raises(restored_settings_of_cudnn: None) -> None:
    def program(x, index, seen):
        try:
            with torch.backends.cudnn.flags(enabled=False):
                return torch.index_select(x, 0, index)
        finally:
            seen.append(settings())
    before, good, bad = settings(), torch.tensor([0, 1]), torch.tensor([7])
    check(lambda: with_cudnn(program), *[call(X, index, []) for index in (good, good, bad, good)], captures=None)
    assert settings() == before


def test_code_of_the_program_finds_settings_of_cudnn(restored_settings_of_cudnn: None) -> None:
    """An autograd function that runs in the graph."""
    class Asking(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2 if torch.backends.cudnn.enabled else x * 3

        @staticmethod
        def backward(ctx, grad):
            return grad

    def program(x):
        with torch.backends.cudnn.flags(enabled=False):
            y = Asking.apply(x)
        return y + Asking.apply(x)
    for options in ({}, {"backend": "native", "options": {"background": False}}):
        check(lambda: with_cudnn(program), call(X), call(X), settings_of_cudnn_are(enabled=False), call(X), call(X), captures=None,
              fullgraph=False, **options)


@pytest.fixture
def restored_settings_of_cudnn():
    yield
    with_cudnn(None)


def test_another_type_is_another_fact() -> None:
    check(lambda: lambda x: x * torch.finfo(x.dtype).eps, call(X), call(X), call(X.double()), call(X), captures=2)


def test_an_answer_about_values_decides() -> None:
    """It is supposed to be the same until it was not; from then on a local break: two graphs."""
    same, other = call(X, X.clone()), call(X, Y)
    stats = check(lambda: lambda x, y: x + 1 if torch.equal(x, y) else x - y, same, same, other, other, same,
                  captures=None, fullgraph=False)
    assert stats.breaks == 1 and stats.native_calls == 0
