"""What neither schemas nor tags say of torch's operators: one row for each fact, of names in ATen's spelling.

A name stands for the operator in place, too. Rows that say that something need not be feared are the only ones that soundness could
rest on; `tests/operators` runs what they name.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from capture._C import is_a

# Functions and methods of C without a schema, of which nothing is to be feared: they make tensors of other things, or are
# of generators.
MAKERS = frozenset("""
    tensor as_tensor asarray from_numpy frombuffer new _make_subclass __new__ deepcopy Generator manual_seed initial_seed get_state
    set_state clone_state graphsafe_get_state graphsafe_set_state _wrap_for_grad _unwrap_for_grad""".split())

# Operators in place that change more of a tensor than what it holds, besides those of torch.Tag.inplace_view: names of dimensions,
# history, the layout of sparse ones. (`addbmm_` lets a tensor of size 1 grow.)
RELAYING = frozenset("""
    addbmm_ rename_ requires_grad_ retain_grad set_data resize_as_sparse_ sparse_resize_ sparse_resize_and_clear_
    copy_sparse_to_sparse_ _coalesced_ _resize_output_ record_stream share_memory_""".split())

# … of these, those that change no memory.
RELAYING_ITSELF = frozenset({"rename_", "requires_grad_", "retain_grad"})

# Operators whose results lie in their operand's memory, though their schemas call them new.
SHARING = frozenset("unsafe_chunk unsafe_split unsafe_split_with_sizes _unsafe_view".split())

# Operators that, given tensors for their results, write these as if they lay as their own results would (also beside them), or
# have them lie so.
LAYING_OUT_THEMSELVES = frozenset("""
    _log_softmax _log_softmax_backward_data _softmax _softmax_backward_data adaptive_max_pool3d adaptive_max_pool3d_backward
    avg_pool3d avg_pool3d_backward cholesky_inverse fractional_max_pool2d fractional_max_pool2d_backward fractional_max_pool3d
    fractional_max_pool3d_backward gelu geqrf linalg_lu log_sigmoid_forward lu_unpack max_pool3d_with_indices
    max_pool3d_with_indices_backward max_unpool2d max_unpool3d multi_margin_loss_backward multilabel_margin_loss_backward
    multilabel_margin_loss_forward narrow_copy native_batch_norm nll_loss2d_backward reflection_pad2d reflection_pad2d_backward
    reflection_pad3d reflection_pad3d_backward replication_pad2d replication_pad2d_backward replication_pad3d
    replication_pad3d_backward triangular_solve tril triu upsample_bicubic2d_backward""".split())

# The shape of a result depends on values, besides torch.Tag.dynamic_output_shape.
DYNAMIC_SHAPE = frozenset("""
    values indices _values _indices col_indices row_indices nonzero_numpy _pack_padded_sequence _pad_packed_sequence""".split())


# Operators that read what a tensor holds, besides torch.Tag.data_dependent_output, or are called when Python is about to.
READING = frozenset(("resolve_neg", "tensor_split"))


def _of_tensors(args: Sequence[Any]) -> bool:
    return any(is_a(arg, torch.Tensor) for arg in args[1:])


def _of_masks(args: Sequence[Any]) -> bool:
    """Whether a subscript holds a mask, also as an item of a list."""
    subscripts, masks = list(args[1:]), (torch.bool, torch.uint8)
    for item in subscripts:
        if is_a(item, torch.Tensor) and item.dtype in masks:
            return True
        subscripts += item if is_a(item, (tuple, list)) else ()
    return False


# … or does for some arguments, given one by one, with those by name at the end.
SOMETIMES_DYNAMIC: dict[str, Callable[[Sequence[Any]], bool]] = {
    "where": lambda args: len(args) == 1,
    "one_hot": lambda args: len(args) == 1 or args[1] == -1,
    "repeat_interleave": lambda args: len(args) == 1 or _of_tensors(args),
    "tensor_split": _of_tensors,
    "index": _of_masks,
}
# Of whose results only the number of rows depends on values.
ROWS = frozenset({"nonzero", "argwhere"})
# Of what has a shape that depends on values: those whose results have as many dimensions whatever the sizes of operands are.
RANKED = ROWS | frozenset("""
    _unique _unique2 bincount index masked_select one_hot repeat_interleave unique unique_consecutive unique_dim values where
    _pack_padded_sequence _pad_packed_sequence""".split())
# Operators whose result is of the shape of their first operand, whatever the others are.
SHAPED_LIKE_FIRST = frozenset(
    "index_add index_copy index_fill index_put index_reduce put scatter scatter_add scatter_reduce".split())
# Operators whose result has no elements but those of their first operand, if they are given no other tensor and no dtype.
REARRANGING = frozenset("""
    clone contiguous detach expand flatten flip index narrow permute repeat reshape roll select squeeze t transpose unsqueeze
    view""".split())
# Operators that find places along a dimension of their first argument, or in all of it: which of their results these are; None, if
# there is only one.
FINDING: dict[str, int | None] = {
    **dict.fromkeys("argmax argmin argsort multinomial".split()),
    **dict.fromkeys("sort topk max min kthvalue mode median nanmedian cummax cummin".split(), 1)}
# Operators whose integers lie between two arguments, and from 0 up to their second argument if that is positive.
BOUNDING, REMAINDERS = frozenset({"clamp", "clip"}), frozenset({"remainder", "mod", "__mod__"})
# Operators that return a list with a tensor for each dimension, or as many as they say.
LISTS_OF_DIMENSIONS = frozenset("where nonzero_numpy gradient grad multi_head_attention_forward unravel_index".split())
# Whole networks, which are taken apart into their steps.
RECURRENT = frozenset("lstm gru rnn_tanh rnn_relu".split())
# Operators whose result has another number of dimensions where one is of size 1.
DROPS_DIMENSIONS = frozenset("squeeze squeeze_copy".split())

# The arguments by which normalisations are told to update running statistics, for which they count no version.
UPDATING = frozenset(("training", "train", "use_input_stats"))

# What makes a tensor of nothing but numbers, and is the same each time.
FACTORIES = frozenset("""
    tensor as_tensor asarray scalar_tensor arange range linspace logspace zeros ones full eye tril_indices triu_indices hann_window
    hamming_window bartlett_window blackman_window kaiser_window""".split())
# What computes new tensors of tensors, writes to none, and draws no random numbers, besides what tags and views tell.
COMPUTING = frozenset("""
    all amax amin any argmax argmin argsort broadcast_tensors bucketize cat concat cumprod cumsum deepcopy diag diff fill flip
    floor_divide full_like gather index index_put index_select isin _is_all_true kron masked_select matmul mean meshgrid mm new_full
    new_ones new_tensor new_zeros nonzero norm ones_like outer prod repeat repeat_interleave roll softmax sort stack std sum take
    tile to topk tril triu type type_as unique unique_consecutive var zero zeros_like copy""".split())

# What gives its first tensor other values, whatever it holds.
OVERWRITING = frozenset("fill zero copy".split())

# Operators that look at the shape and type alone of the other tensor that they are given.
SHAPED_AS_OTHER = frozenset("expand_as reshape_as view_as type_as to".split())

# Operators that autocast lets pass, and whose kernels call others that it casts: matrix products. It is off in kernels that tracing
# or compiled code calls. (It knows `pinverse` on the CPU alone, `bilinear` on GPUs alone.)
CASTING_WITHIN = frozenset("""
    linalg_pinv pinverse linalg_polar bilinear _trilinear _euclidean_dist _foreach_mm _transformer_encoder_layer_fwd""".split())

# Namespaces of operators in which other processes take part.
COMMUNICATING = frozenset("_c10d_functional _c10d_functional_autograd c10d c10d_functional symm_mem".split())

# What makes a tensor of memory as it is, to which nothing is written.
UNWRITTEN = frozenset("""
    empty empty_like empty_permuted empty_quantized empty_strided new_empty new_empty_strided _empty_affine_quantized
    _empty_per_channel_affine_quantized""".split())


# What raises for some values of floats: a singular matrix, a negative probability …
RAISING = frozenset("""
    embedding embedding_bag embedding_renorm one_hot bincount masked_scatter repeat_interleave _assert_async
    cross_entropy nll_loss ctc_loss multi_margin_loss multilabel_margin_loss binary_cross_entropy gaussian_nll_loss cov multinomial
    bernoulli binomial poisson normal histc histogram histogramdd quantile nanquantile segment_reduce pack_padded_sequence
    _pack_padded_sequence sparse_coo_tensor sparse_csr_tensor cholesky cholesky_inverse cholesky_solve inverse lu_solve lu_unpack lu
    _lu_with_info logdet slogdet svd pinverse geqrf lobpcg pca_lowrank svd_lowrank nuclear_norm matrix_power
    triangular_solve istft""".split())
# … and of these, what torch takes apart before a trace sees it, without its check of a second tensor: a window, probabilities.
CHECKING = frozenset("istft nanquantile quantile".split())
# … as does all of torch.linalg, but for these.
RAISING_PREFIX = "linalg_"
NEVER_RAISING = frozenset("""
    linalg_cross linalg_diagonal linalg_matmul linalg_multi_dot linalg_vander linalg_vecdot linalg_vector_norm normalize""".split())
# … or does for some arguments.
SOMETIMES_RAISING: dict[str, Callable[[Sequence[Any]], bool]] = {"norm": lambda args: "nuc" in args[1:]}
# Operators that take any integers besides their first argument. (Others take them for indices, which may be out of range.)
TAKING_ANY_INTEGERS = frozenset("""
    addbmm addmm addmv addr allclose baddbmm block_diag bmm broadcast_tensors bucketize cartesian_prod cat cdist concat copy
    cross diff dot dstack einsum expand_as hstack inner isclose isin kron linear matmul meshgrid mm mv outer reshape_as
    scaled_dot_product_attention searchsorted stack tensordot to trapezoid type_as vdot view_as vstack""".split())
# Operators that are given a tensor, a dimension of it and indices along that.
INDEXING_DIMENSION = frozenset(
    "gather index_add index_copy index_fill index_select scatter scatter_add scatter_reduce".split())
# Operators whose second argument is a subscript.
SUBSCRIPTING = frozenset({"index", "index_put", "index_put_"})
# Of integers they have no result where the divisor is zero.
QUOTIENTS = frozenset("floor_divide remainder fmod".split())


# -- numbers among the arguments ---------------------------------------------------------------------------------------

# Operations whose result has the same shape and type whatever number they are given …
NUMERIC = frozenset("""
    add sub mul div true_divide divide multiply subtract floor_divide remainder fmod pow eq ne lt le gt ge where masked_fill clamp
    clip fill full_like lerp rsub addcdiv addcmul""".split())
# … and which convert a number to the type of the tensor before anything else is done.
CONVERTING = frozenset("add sub mul subtract multiply".split())

# Operations for which a number decides how many elements the result has, or which tensor it is.
DECIDING = frozenset(("arange", "range", "scale_factor"))
# Integers of which no more follows than which elements the result has, as of a subscript.
MOVING = {"roll": "shifts", "triu": "diagonal", "tril": "diagonal", "select": "index", "narrow": "start"}
# Operations which integers tell how many elements the result has, and nothing else: neither how many dimensions nor of which type.
# The first argument of those which make a tensor of nothing is one of these integers, too.
MAKING = frozenset("arange empty eye full linspace ones rand randint randn randperm range zeros".split())
# Lists of sizes, or of places, say of how many tensors the result is by their length; an integer does so itself.
SPLITTING = frozenset("split split_with_sizes split_with_sizes_copy tensor_split unsafe_split unsafe_split_with_sizes".split())
# What may ask a list for its items by its class's methods: data and subscripts; all others read what lies in it.
ASKING_LISTS = frozenset("""
    tensor as_tensor asarray new_full new __new__ index index_put sparse_coo_tensor sparse_compressed_tensor
    sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor sparse_bsc_tensor nested_tensor""".split())
# Operations that put the items of a list next to one another.
JOINING = frozenset("as_tensor cat concat concatenate stack tensor".split())
# … along a dimension that they have.
CONCATENATING = frozenset("cat concat concatenate".split())
SIZING = MAKING | SPLITTING | frozenset("""
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d adaptive_max_pool2d bincount broadcast_to expand interpolate
    kthvalue multinomial narrow new_empty new_full new_ones new_zeros one_hot pad _pad_packed_sequence repeat repeat_interleave
    reshape tile topk unfold view""".split())


# -- costs -------------------------------------------------------------------------------------------------------------

# Views that cost nothing to make again.
FREE_VIEWS = frozenset("alias as_strided broadcast_in_dim expand permute select slice split squeeze t unsqueeze view".split())
# What costs little, and can be one kernel with what reads it, besides those and operations on single elements.
FUSIBLE = frozenset("""
    _grad_sum_to_size _low_memory_max_pool_offsets_to_indices _to_copy _unsafe_view amax any arange argmax broadcast_tensors clone
    convert_element_type empty empty_like full full_like gather index iota lift_fresh lift_fresh_copy max mean min native_dropout
    new_zeros ones rand_like randn_like reshape scalar_tensor std sum sum_to_size to triu type_as var var_mean zeros
    zeros_like""".split())

# -- linear in arguments -----------------------------------------------------------------------------------------------

# What makes zeros, whatever it is given.
ZEROS = frozenset("zero zeros zeros_like new_zeros".split())
# … and what fills a new tensor with one of its arguments.
FILLED = {"full": "fill_value", "full_like": "fill_value", "new_full": "fill_value", "scalar_tensor": "s"}
# The arguments in which an operation is linear, together; all of them where none is named. (Views are, too, and what computes a
# gradient in that which it is given first.)
LINEAR: dict[str, tuple[str, ...]] = {
    **dict.fromkeys("""
        neg add sub rsub sum mean cat stack clone _to_copy copy positive flip roll cumsum trace tril triu repeat constant_pad_nd
        conj_physical _unsafe_view unsafe_split unsafe_split_with_sizes unsafe_chunk""".split(), ()),
    **dict.fromkeys("index index_select gather take".split(), ("self",)),
    **dict.fromkeys("scatter scatter_add select_scatter slice_scatter".split(), ("self", "src", "value")),
    **dict.fromkeys("index_add index_copy".split(), ("self", "source")),
    "index_put": ("self", "values"), "fill": ("self", "value"), "where": ("self", "other"), "masked_fill": ("self", "value")}
# … each by itself, where the others are factors.
LINEAR_IN_EACH = {"mul": ("self", "other"), "div": ("self",), "mm": ("self", "mat2"), "bmm": ("self", "mat2"),
                  "mv": ("self", "vec"), "dot": ("self", "tensor")}
