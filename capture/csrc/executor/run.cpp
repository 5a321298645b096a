#include "executor/run.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "cuda/driver.h"

namespace capture::executor {
namespace {

int64_t floor_div(int64_t left, int64_t right) {
  TORCH_CHECK(right != 0, "a size is divided by zero");
  return left / right - (left % right != 0 && (left < 0) != (right < 0));
}

// Whether strides agree where they matter.
bool same_strides(at::IntArrayRef sizes, at::IntArrayRef left, at::IntArrayRef right) {
  if (left == right) return true;
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return true;
  for (size_t i = 0; i < sizes.size(); i++) {
    if (sizes[i] != 1 && left[i] != right[i]) return false;
  }
  return true;
}

// Whether the elements of a tensor are those in its memory: not their conjugates or negatives, nor zeros that have no memory.
bool is_in_memory(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet lazy({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});
  return !tensor.key_set().has_any(lazy);
}

constexpr int64_t kMostBlocks = 2147483647;  // of a grid, on all GPUs
constexpr uintptr_t kVectorBytes = 16;       // what a thread loads at once

// Raises what the bits mean that a kernel has set (plan.py).
void check_indices(uint8_t out_of_range) {
  TORCH_CHECK_INDEX((out_of_range & 1) == 0, "index out of range in self");
  TORCH_CHECK((out_of_range & 2) == 0, "index is out of bounds");
}

int64_t size_of(const at::Tensor& tensor, int64_t dim) {
  TORCH_CHECK(dim < tensor.dim(), "a tensor has ", tensor.dim(), " dimensions; the plan asks for the size of dimension ", dim);
  return tensor.size(dim);
}

}  // namespace

Frame::Frame(const Plan& plan)
    : plan_(plan),
      tensors_(plan.slots.size()),
      uncopied_(plan.slots.size()),
      addresses_(plan.slots.size()),
      kernel_numbers_(plan.steps.size()),
      fixed_arguments_(plan.steps.size()) {
  for (size_t i = 0; i < plan.slots.size(); i++) {
    if (plan.slots[i].kind == Slot::Kind::kConstant) set(i, plan.constants[plan.slots[i].position]);
  }
  if (!plan.symbolic) compute_numbers({});
}

// Arguments.

void Frame::set_arguments(std::vector<c10::IValue>& arguments, bool loose) {
  for (size_t i = 0; i < arguments.size(); i++) {
    TORCH_CHECK_VALUE(arguments[i].isTensor() == (plan_.input_slots[i] >= 0), "argument ", i, " must be ",
                      plan_.input_slots[i] >= 0 ? "a tensor" : "an int");
  }
  if (plan_.symbolic) compute_numbers(arguments);
  for (size_t i = 0; i < arguments.size(); i++) {
    if (plan_.input_slots[i] < 0) continue;
    auto slot = static_cast<size_t>(plan_.input_slots[i]);
    at::Tensor given = std::move(arguments[i]).toTensor();
    check(slot, given, loose);
    if (given.layout() != at::kStrided || (is_in_memory(given) && same_strides(given.sizes(), given.strides(), shapes_[slot].strides))) {
      set(slot, std::move(given));
    } else {
      uncopied_[slot] = std::move(given);
    }
  }
}

void Frame::check(size_t slot, const at::Tensor& tensor, bool loose) const {
  const Slot& declared = plan_.slots[slot];
  const auto& [name, dtype] = std::tie(declared.name, declared.dtype);
  at::IntArrayRef sizes = shapes_[slot].sizes, strides = shapes_[slot].strides;
  // Weights in a layout of oneDNN's have no strides; only its own operators read them.
  if (tensor.layout() == at::kMkldnn && tensor.scalar_type() == dtype && tensor.sizes() == sizes) return;
  c10::Device device = declared.kind == Slot::Kind::kHost ? c10::Device(c10::kCPU) : plan_.device;
  // Numbers that operators hand to each other, such as the seed of attention's dropout, lie where they like.
  bool anywhere = plan_.device.is_cuda() && tensor.dim() == 0 && !declared.in_kernels;
  TORCH_CHECK(tensor.device() == device || anywhere, name, " is on ", tensor.device(), ", not on ", device);
  TORCH_CHECK(tensor.scalar_type() == dtype && tensor.sizes() == sizes && (loose || same_strides(sizes, tensor.strides(), strides)), name, " is ",
                    tensor.scalar_type(), tensor.sizes(), " with strides ", tensor.strides(), ", not ", dtype, sizes, " with strides ", strides);
  TORCH_CHECK(loose || is_in_memory(tensor), name, " is a conjugate or negative view or zeros without memory, not a plain tensor");
}

void Frame::compute_numbers(const std::vector<c10::IValue>& arguments) {
  scratch_.resize(plan_.numbers.size());
  for (size_t i = 0; i < plan_.numbers.size(); i++) {
    const Row& row = plan_.numbers[i];
    auto left = [&] { return scratch_[static_cast<size_t>(row.left)]; };
    auto right = [&] { return scratch_[static_cast<size_t>(row.right)]; };
    switch (row.kind) {
      case Row::Kind::kConst: scratch_[i] = row.left; break;
      case Row::Kind::kArgument: scratch_[i] = arguments.at(static_cast<size_t>(row.left)).toInt(); break;
      case Row::Kind::kSize: scratch_[i] = size_of(arguments.at(static_cast<size_t>(row.left)).toTensor(), row.right); break;
      case Row::Kind::kAdd: scratch_[i] = left() + right(); break;
      case Row::Kind::kMul: scratch_[i] = left() * right(); break;
      case Row::Kind::kDiv: scratch_[i] = floor_div(left(), right()); break;
      case Row::Kind::kMod: scratch_[i] = left() - right() * floor_div(left(), right()); break;
      case Row::Kind::kMax: scratch_[i] = std::max(left(), right()); break;
    }
  }
  if (scratch_ == numbers_) return;
  numbers_ = scratch_;
  prepared_ = false;
  shapes_.clear();
  for (const Slot& slot : plan_.slots) shapes_.push_back({sizes(slot.sizes), sizes(slot.strides)});
}

// What stays as it is while integers and arena do.

void Frame::prepare(void* arena) {
  if (prepared_ && arena == arena_) return;
  prepared_ = false;
  arena_ = arena;
  for (size_t i = 0; i < plan_.slots.size(); i++) {
    const Slot& slot = plan_.slots[i];
    if (slot.kind == Slot::Kind::kArena) addresses_[i] = static_cast<char*>(arena) + numbers_[slot.position];
  }
  for (size_t i = 0; i < plan_.steps.size(); i++) {
    if (auto* kernel = std::get_if<KernelStep>(&plan_.steps[i])) {
      Sizes values = sizes(kernel->numbers);
      kernel_numbers_[i].assign(values.begin(), values.end());
    } else if (auto* launched = std::get_if<LaunchStep>(&plan_.steps[i])) {
      kernel_numbers_[i].clear();
      for (const Entry& entry : launched->entries) {
        for (Number number : entry.numbers) kernel_numbers_[i].push_back(numbers_[number]);
      }
    } else {
      const auto& args = std::get<ExternStep>(plan_.steps[i]).args;
      fixed_arguments_[i].clear();
      for (const Argument& argument : args) fixed_arguments_[i].push_back(argument.fixed ? value(argument) : c10::IValue());
    }
  }
  prepared_ = true;
}

// Running.

std::vector<c10::IValue> Frame::run(void* arena, const Leaves& leaves) {
  c10::AutoGradMode no_grad(false);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard without_autocast(c10::autocast_dispatch_keyset);  // its casts are in the plan
  std::optional<cuda::Current> device;
  if (plan_.device.is_cuda()) {
    device.emplace(plan_.device);
    use_stream();
  }
  prepare(arena);
  for (size_t i = 0; i < plan_.steps.size(); i++) {
    if (auto* kernel = std::get_if<KernelStep>(&plan_.steps[i])) {
      run_step(*kernel, kernel_numbers_[i]);
      release(kernel->released);
    } else if (auto* launched = std::get_if<LaunchStep>(&plan_.steps[i])) {
      run_step(*launched, kernel_numbers_[i]);
      release(launched->released);
    } else {
      const auto& call = std::get<ExternStep>(plan_.steps[i]);
      run_step(call, fixed_arguments_[i]);
      release(call.released);
    }
    hand_over(plan_.finished[i], leaves);
  }
  std::vector<c10::IValue> outputs;
  outputs.reserve(plan_.outputs.size());
  for (size_t i = 0; i < plan_.outputs.size(); i++) outputs.push_back(leaves.takes(i) ? c10::IValue() : value(plan_.outputs[i]));
  return outputs;
}

void Frame::run_step(const KernelStep& step, const std::vector<int64_t>& numbers) {
  c10::SmallVector<void*, 32> buffers;
  for (size_t slot : step.buffers) buffers.push_back(address(slot));
  uint8_t out_of_range = 0;   // bits: see plan.py
  if (step.checks) buffers.push_back(&out_of_range);
  {
    RECORD_FUNCTION(step.name, c10::ArrayRef<const c10::IValue>{});
    at::parallel_for(0, numbers_[step.total], numbers_[step.grain],
                     [&](int64_t begin, int64_t end) { step.function(buffers.data(), numbers.data(), begin, end); });
  }
  check_indices(out_of_range);
}

void Frame::run_step(const LaunchStep& step, const std::vector<int64_t>& numbers) {
  uint8_t out_of_range = 0;
  uint8_t* invalid = plan_.device.is_cpu() ? &out_of_range : nullptr;   // a GPU stops: to look would be to wait for it
  if (step.room == 0) {
    launch_one(step, numbers, &invalid);
  } else {
    launch_tables(step, numbers, &invalid);
  }
  check_indices(out_of_range);
}

void Frame::launch(const LaunchStep& step, size_t variant, int64_t blocks, void** parameters) {
  if (blocks == 0) return;
  TORCH_CHECK(blocks > 0 && blocks <= kMostBlocks, "kernel ", step.name, " would need ", blocks, " blocks");
  RECORD_FUNCTION(step.name, c10::ArrayRef<const c10::IValue>{});
  const Variant& chosen = step.variants[variant];
  plan_.launcher->launch(chosen.function, step.name, static_cast<unsigned>(blocks), chosen.threads, parameters, stream_);
}

void Frame::launch_one(const LaunchStep& step, const std::vector<int64_t>& numbers, uint8_t** invalid) {
  const Entry& entry = step.entries.front();
  c10::SmallVector<void*, 32> buffers;
  for (size_t slot : entry.buffers) buffers.push_back(address(slot));
  c10::SmallVector<void*, 64> parameters;
  for (size_t i = 0; i < buffers.size(); i++) {  // a parameter is copied from where it is
    bool by_value = plan_.slots[entry.buffers[i]].kind == Slot::Kind::kHost;
    parameters.push_back(by_value ? buffers[i] : &buffers[i]);
  }
  for (const int64_t& number : numbers) parameters.push_back(const_cast<int64_t*>(&number));
  if (step.checks) parameters.push_back(invalid);
  size_t variant = variant_of(entry);
  launch(step, variant, numbers_[entry.fits[variant].blocks], parameters.data());
}

// A table is what `Table` of cuda_kernel.h says: `room` + 1 blocks, then 8 bytes for each parameter of `room` entries.
void Frame::launch_tables(const LaunchStep& step, const std::vector<int64_t>& numbers, uint8_t** invalid) {
  size_t buffers = step.entries.front().buffers.size(), count = buffers + step.entries.front().numbers.size();
  size_t begin = (step.room + 2) / 2;  // of the parameters, in words of 8 bytes
  std::vector<uint64_t> table(begin + step.room * count);
  std::vector<size_t> chosen;
  for (const Entry& entry : step.entries) {
    for (size_t slot : entry.buffers) address(slot);  // which has memory from now on
    chosen.push_back(variant_of(entry));
  }
  for (size_t variant = 0; variant < step.variants.size(); variant++) {
    auto* first = reinterpret_cast<uint32_t*>(table.data());
    size_t used = 0;
    int64_t blocks = 0;
    auto flush = [&] {
      std::fill(first + used, first + step.room + 1, static_cast<uint32_t>(blocks));
      void* parameters[] = {table.data(), invalid};
      launch(step, variant, blocks, parameters);
      used = 0, blocks = 0;
    };
    for (size_t i = 0; i < step.entries.size(); i++) {
      const Entry& entry = step.entries[i];
      int64_t more = chosen[i] == variant ? numbers_[entry.fits[variant].blocks] : 0;
      if (more == 0) continue;
      if (used == step.room || blocks + more > kMostBlocks) flush();
      first[used] = static_cast<uint32_t>(blocks);
      uint64_t* words = table.data() + begin + used * count;
      for (size_t k = 0; k < buffers; k++) {
        const Slot& slot = plan_.slots[entry.buffers[k]];
        void* at = address(entry.buffers[k]);
        words[k] = 0;
        if (slot.kind == Slot::Kind::kHost) {
          std::memcpy(&words[k], at, c10::elementSize(slot.dtype));
        } else {
          std::memcpy(&words[k], &at, sizeof at);
        }
      }
      std::copy_n(numbers.begin() + static_cast<int64_t>(i * (count - buffers)), count - buffers, words + buffers);
      used++;
      blocks += more;
    }
    flush();
  }
}

size_t Frame::variant_of(const Entry& entry) {
  return static_cast<size_t>(std::find_if(entry.fits.begin(), entry.fits.end(), [&](const Fit& fit) { return usable(fit); }) - entry.fits.begin());
}

bool Frame::usable(const Fit& fit) {
  return std::all_of(fit.aligned.begin(), fit.aligned.end(),
                     [&](size_t slot) { return reinterpret_cast<uintptr_t>(address(slot)) % kVectorBytes == 0; }) &&
         std::all_of(fit.divisible.begin(), fit.divisible.end(),
                     [&](const auto& asked) { return numbers_[asked.first] % asked.second == 0; });
}

// Steps launch on the stream that torch uses on this thread. Of the memory that they use, temporaries and results come from torch's
// allocator during the call, hence in the order of this very stream, and the caller answers for arguments, as in eager mode.
// Constants are ours, and may be freed while kernels of any stream still read them: torch's allocator is told of each stream.
void Frame::use_stream() {
  stream_ = cuda::current_stream(plan_.device);
  c10::impl::VirtualGuardImpl guard(plan_.device.type());
  c10::Stream stream = guard.getStream(plan_.device);
  if (constants_used_on_ == stream) return;
  for (const at::Tensor& constant : plan_.constants) guard.recordDataPtrOnStream(constant.storage().data_ptr(), stream);
  constants_used_on_ = stream;
}

void Frame::run_step(const ExternStep& step, const std::vector<c10::IValue>& fixed) {
  stack_.clear();
  for (size_t i = 0; i < step.args.size(); i++) stack_.push_back(step.args[i].fixed ? fixed[i] : value(step.args[i]));
  step.op.callBoxed(stack_);
  keep_results(step);
  stack_.clear();
}

void Frame::keep_results(const ExternStep& step) {
  size_t number = 0;
  auto next = [&]() -> int64_t { return number < step.results.size() ? step.results[number++] : -1; };
  auto keep = [&](int64_t slot, at::Tensor result) {
    if (slot >= 0) keep_result(static_cast<size_t>(slot), std::move(result));
  };
  for (c10::IValue& result : stack_) {
    if (result.isTensorList()) {
      std::vector<at::Tensor> tensors = std::move(result).toTensorVector();
      for (at::Tensor& tensor : tensors) keep(next(), std::move(tensor));
    } else if (result.isTensor()) {
      keep(next(), std::move(result).toTensor());
    } else {
      next();
    }
  }
}

// What the plan takes for memory of its own must be that, with the strides that kernels were compiled for.
void Frame::keep_result(size_t slot, at::Tensor result) {
  const Slot& declared = plan_.slots[slot];
  if (!result.defined()) return;
  at::IntArrayRef wanted = shapes_[slot].sizes, strides = shapes_[slot].strides;
  TORCH_CHECK(result.scalar_type() == declared.dtype && result.sizes() == wanted, declared.name, " came out as ",
              result.scalar_type(), result.sizes(), ", not as ", declared.dtype, wanted);
  bool own = result.use_count() == 1 && result.has_storage() && result.storage().use_count() == 1;
  if (own && result.strides() == strides) return set(slot, std::move(result));
  if (own && same_strides(wanted, result.strides(), strides)) return set(slot, view_of(result, wanted, strides, 0, declared.dtype));
  at::Tensor copy = allocate(wanted, strides, declared.dtype, result.device());
  copy.copy_(result);
  set(slot, std::move(copy));
}

void Frame::release(const std::vector<size_t>& slots) {
  for (size_t slot : slots) {
    tensors_[slot].reset();
    addresses_[slot] = nullptr;
  }
}

// What leaves take of the outputs that are finished is added to their gradients and freed.
void Frame::hand_over(const std::vector<size_t>& outputs, const Leaves& leaves) {
  for (size_t output : outputs) {
    if (!leaves.takes(output)) continue;
    at::Tensor gradient = tensor(plan_.outputs[output]);
    release({plan_.outputs[output].slot});
    leaves.add(output, std::move(gradient));
  }
}

void Frame::clear() noexcept {
  stack_.clear();
  for (size_t i = 0; i < plan_.slots.size(); i++) {
    Slot::Kind kind = plan_.slots[i].kind;
    if (kind == Slot::Kind::kArena || kind == Slot::Kind::kConstant) continue;
    tensors_[i].reset();
    uncopied_[i].reset();
    addresses_[i] = nullptr;
  }
}

// Slots and arguments.

Frame::Sizes Frame::sizes(const Numbers& numbers) const {
  Sizes values;
  for (Number number : numbers) values.push_back(numbers_[number]);
  return values;
}

void Frame::set(size_t slot, at::Tensor tensor) {
  // Memory that is shared until it is written to stays shared, unless the plan writes to it.
  bool reads_only = !plan_.slots[slot].written;
  addresses_[slot] = !tensor.has_storage() ? nullptr : reads_only ? const_cast<void*>(tensor.const_data_ptr()) : tensor.mutable_data_ptr();
  tensors_[slot] = std::move(tensor);
}

void* Frame::address(size_t slot) {
  if (addresses_[slot] == nullptr && plan_.slots[slot].kind != Slot::Kind::kArena) tensor(slot);
  return addresses_[slot];
}

const at::Tensor& Frame::tensor(size_t slot) {
  if (!tensors_[slot].defined()) {
    const Slot& missing = plan_.slots[slot];
    at::Tensor given = std::move(uncopied_[slot]);
    TORCH_CHECK(missing.kind == Slot::Kind::kFresh || given.defined(), missing.name, " is used where it is not there");
    c10::Device device = given.defined() ? given.device() : plan_.device;
    at::Tensor made = allocate(shapes_[slot].sizes, shapes_[slot].strides, missing.dtype, device);
    if (given.defined()) made.copy_(given);
    set(slot, std::move(made));
  }
  return tensors_[slot];
}

at::Tensor Frame::tensor(const Argument& argument) {
  const Slot& slot = plan_.slots[argument.slot];
  int64_t offset = argument.offset ? numbers_[*argument.offset] : 0;
  if (slot.kind == Slot::Kind::kArena) {
    char* begin = static_cast<char*>(addresses_[argument.slot]) + offset * static_cast<int64_t>(c10::elementSize(argument.dtype));
    return tensor_over(begin, sizes(argument.sizes), sizes(argument.strides), argument.dtype, plan_.device);
  }
  const at::Tensor& base = tensor(argument.slot);
  return argument.whole ? base : view_of(base, sizes(argument.sizes), sizes(argument.strides), offset, argument.dtype);
}

c10::IValue Frame::value(const Argument& argument) {
  switch (argument.kind) {
    case Argument::Kind::kValue: return argument.value;
    case Argument::Kind::kTensor: return tensor(argument);
    case Argument::Kind::kList: return list(argument);
    case Argument::Kind::kNumber: break;
  }
  int64_t number = numbers_[argument.number];
  return argument.type->kind() == c10::TypeKind::FloatType ? c10::IValue(static_cast<double>(number)) : c10::IValue(number);
}

c10::IValue Frame::list(const Argument& argument) {
  c10::impl::GenericList items(argument.type);
  for (const Argument& item : argument.items) items.push_back(value(item));
  return items;
}

}  // namespace capture::executor
