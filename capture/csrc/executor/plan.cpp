#include "executor/plan.h"

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <algorithm>
#include <unordered_map>

namespace capture::executor {
namespace {

namespace py = pybind11;

constexpr unsigned kMostThreads = 1024;  // of a block, on all GPUs

[[noreturn]] void invalid(const std::string& text) { C10_THROW_ERROR(ValueError, "invalid plan: " + text); }

template <class Kind>
Kind named(const std::unordered_map<std::string, Kind>& names, const std::string& name) {
  auto found = names.find(name);
  if (found == names.end()) invalid("unknown " + name);
  return found->second;
}

at::ScalarType read_dtype(const std::string& name) {
  py::object object = py::module_::import("torch").attr(name.c_str());
  if (!THPDtype_Check(object.ptr())) invalid(name + " is no dtype");
  return reinterpret_cast<THPDtype*>(object.ptr())->scalar_type;
}

class Reader {
 public:
  Reader(py::handle source, Plan& plan) : source_(source), plan_(plan) {}

  void read() {
    if (py::cast<size_t>(source_.attr("constants")) != plan_.constants.size()) invalid("another number of constants is expected");
    for (py::handle row : field("numbers")) plan_.numbers.push_back(read_row(py::cast<py::tuple>(row)));
    for (py::handle slot : field("slots")) plan_.slots.push_back(read_slot(slot));
    plan_.input_slots = py::cast<std::vector<int64_t>>(source_.attr("input_slots"));
    for (int64_t slot : plan_.input_slots) {
      if (slot >= static_cast<int64_t>(plan_.slots.size())) invalid("there is no slot " + std::to_string(slot));
    }
    plan_.arena = number(source_.attr("arena"));
    for (py::handle step : field("steps")) {
      auto kind = py::cast<std::string>(step.attr("kind"));
      if (kind == "kernel") {
        plan_.steps.emplace_back(read_kernel(step));
        mark_used(step);
      } else if (kind == "launch") {
        plan_.steps.emplace_back(read_launch(step));
        for (py::handle entry : step.attr("entries")) mark_used(entry);
      } else {
        plan_.steps.emplace_back(read_extern(step));
      }
    }
    for (py::handle output : field("outputs")) {
      plan_.outputs.push_back(read_argument(py::cast<py::tuple>(output), c10::TensorType::get()));
      const Argument& read = plan_.outputs.back();
      if (read.kind == Argument::Kind::kTensor && plan_.slots[read.slot].kind == Slot::Kind::kArena) {
        invalid(plan_.slots[read.slot].name + " is returned, but lies in the arena");
      }
    }
    read_finished();
  }

 private:
  py::tuple field(const char* name) const { return py::cast<py::tuple>(source_.attr(name)); }

  void mark_used(py::handle step) {
    for (size_t used : slots(step.attr("buffers"))) plan_.slots[used].in_kernels = true;
  }

  Row read_row(const py::tuple& row) {
    using Kind = Row::Kind;
    static const std::unordered_map<std::string, Kind> kinds = {
        {"const", Kind::kConst}, {"argument", Kind::kArgument}, {"size", Kind::kSize}, {"add", Kind::kAdd},
        {"mul", Kind::kMul},     {"div", Kind::kDiv},           {"mod", Kind::kMod},   {"max", Kind::kMax}};
    Kind kind = named(kinds, py::cast<std::string>(row[0]));
    Row read{kind, py::cast<int64_t>(row[1]), row.size() > 2 ? py::cast<int64_t>(row[2]) : 0};
    if (kind == Kind::kArgument || kind == Kind::kSize) {
      plan_.symbolic = true;
    } else if (kind != Kind::kConst && std::max(read.left, read.right) >= static_cast<int64_t>(plan_.numbers.size())) {
      invalid("a number is used before it is computed");
    }
    return read;
  }

  void read_finished() {
    plan_.finished.resize(plan_.steps.size());
    auto steps = py::cast<std::vector<int64_t>>(source_.attr("finished"));
    if (steps.size() != plan_.outputs.size()) invalid("it does not say of each output when it is finished");
    for (size_t i = 0; i < steps.size(); i++) {
      if (steps[i] < 0) continue;
      if (plan_.outputs[i].kind != Argument::Kind::kTensor) invalid("an output that is no tensor is finished early");
      if (steps[i] >= static_cast<int64_t>(plan_.steps.size())) invalid("there is no step " + std::to_string(steps[i]));
      plan_.finished[static_cast<size_t>(steps[i])].push_back(i);
    }
  }

  Number number(py::handle value) const {
    auto found = py::cast<Number>(value);
    if (found >= plan_.numbers.size()) invalid("there is no number " + std::to_string(found));
    return found;
  }

  Numbers numbers(py::handle values) const {
    Numbers found;
    for (py::handle value : values) found.push_back(number(value));
    return found;
  }

  size_t slot(py::handle value) const {
    auto found = py::cast<size_t>(value);
    if (found >= plan_.slots.size()) invalid("there is no slot " + std::to_string(found));
    return found;
  }

  std::vector<size_t> slots(py::handle values) const {
    std::vector<size_t> found;
    for (py::handle value : values) found.push_back(slot(value));
    return found;
  }

  Slot read_slot(py::handle source) const {
    using Kind = Slot::Kind;
    static const std::unordered_map<std::string, Kind> kinds = {{"input", Kind::kInput},
                                                                {"host", Kind::kHost},
                                                                {"constant", Kind::kConstant},
                                                                {"arena", Kind::kArena},
                                                                {"fresh", Kind::kFresh},
                                                                {"result", Kind::kResult}};
    Slot read{named(kinds, py::cast<std::string>(source.attr("kind"))),
              py::cast<size_t>(source.attr("position")),
              py::cast<std::string>(source.attr("name")),
              read_dtype(py::cast<std::string>(source.attr("dtype"))),
              numbers(source.attr("sizes")),
              numbers(source.attr("strides")),
              py::cast<bool>(source.attr("written"))};
    if (read.kind == Kind::kArena && read.position >= plan_.numbers.size()) invalid("there is no offset for " + read.name);
    if (read.kind == Kind::kConstant && read.position >= plan_.constants.size()) invalid("there is no constant " + read.name);
    if (read.sizes.size() != read.strides.size()) invalid(read.name + " has not as many strides as sizes");
    return read;
  }

  KernelStep read_kernel(py::handle source) const {
    if (plan_.library == nullptr) invalid("it has kernels, but there is no library");
    auto symbol = py::cast<std::string>(source.attr("symbol"));
    auto function = reinterpret_cast<KernelFunction>(plan_.library->symbol(symbol));
    if (function == nullptr) invalid("the library has no kernel " + symbol);
    return {py::cast<std::string>(source.attr("name")),
            function,
            slots(source.attr("buffers")),
            numbers(source.attr("numbers")),
            number(source.attr("total")),
            number(source.attr("grain")),
            py::cast<bool>(source.attr("checks")),
            slots(source.attr("released"))};
  }

  LaunchStep read_launch(py::handle source) const {
    if (plan_.launcher == nullptr) invalid("it has kernels, but there is no library");
    LaunchStep step{py::cast<std::string>(source.attr("name")),
                    {},
                    {},
                    py::cast<size_t>(source.attr("room")),
                    py::cast<bool>(source.attr("checks")),
                    slots(source.attr("released"))};
    for (py::handle variant : source.attr("variants")) step.variants.push_back(read_variant(variant));
    for (py::handle entry : source.attr("entries")) step.entries.push_back(read_entry(entry, step));
    if (step.room == 0 && step.entries.size() != 1) invalid(step.name + " has no table for its entries");
    return step;
  }

  Variant read_variant(py::handle source) const {
    auto symbol = py::cast<std::string>(source.attr("symbol"));
    Variant read{plan_.launcher->function(symbol), py::cast<unsigned>(source.attr("threads"))};
    if (read.function == nullptr) invalid("the library has no kernel " + symbol);
    if (read.threads < 1 || read.threads > kMostThreads) invalid(symbol + " has " + std::to_string(read.threads) + " threads");
    return read;
  }

  Entry read_entry(py::handle source, const LaunchStep& step) const {
    Entry read{slots(source.attr("buffers")), numbers(source.attr("numbers")), {}};
    for (py::handle fit : source.attr("fits")) read.fits.push_back(read_fit(fit, step.name));
    if (read.fits.size() != step.variants.size()) invalid("an entry of " + step.name + " does not say which variants it can have");
    if (read.fits.empty() || !read.fits.back().aligned.empty() || !read.fits.back().divisible.empty()) {
      invalid("no variant of " + step.name + " can always be used");
    }
    const Entry& first = step.entries.empty() ? read : step.entries.front();
    if (read.buffers.size() != first.buffers.size() || read.numbers.size() != first.numbers.size()) {
      invalid("entries of " + step.name + " have different parameters");
    }
    return read;
  }

  Fit read_fit(py::handle source, const std::string& name) const {
    Fit read{number(source.attr("blocks")), slots(source.attr("aligned")), {}};
    for (py::handle pair : source.attr("divisible")) {
      auto asked = py::cast<py::tuple>(pair);
      read.divisible.emplace_back(number(asked[0]), py::cast<int64_t>(asked[1]));
      if (read.divisible.back().second < 1) invalid(name + " asks for multiples of " + std::to_string(read.divisible.back().second));
    }
    return read;
  }

  ExternStep read_extern(py::handle source) const {
    auto op = py::cast<std::string>(source.attr("op")), overload = py::cast<std::string>(source.attr("overload"));
    ExternStep step{py::cast<std::string>(source.attr("name")),
                    c10::Dispatcher::singleton().findSchemaOrThrow(op.c_str(), overload.c_str()),
                    {},
                    py::cast<std::vector<int64_t>>(source.attr("results")),
                    slots(source.attr("released"))};
    for (int64_t result : step.results) {
      if (result >= static_cast<int64_t>(plan_.slots.size())) invalid("there is no slot " + std::to_string(result));
    }
    auto given = py::cast<py::tuple>(source.attr("args"));
    std::unordered_map<std::string, py::tuple> named_args;
    for (py::handle pair : source.attr("kwargs")) {
      auto item = py::cast<py::tuple>(pair);
      named_args.emplace(py::cast<std::string>(item[0]), py::cast<py::tuple>(item[1]));
    }
    torch::jit::ToIValueAllowNumbersAsTensors allowed(takes_numbers_as_tensors(op));
    const auto& parameters = step.op.schema().arguments();
    if (given.size() > parameters.size()) invalid(op + " does not take so many arguments");
    for (size_t i = 0; i < parameters.size(); i++) {
      const c10::Argument& parameter = parameters[i];
      auto by_name = named_args.find(parameter.name());
      if (i < given.size()) {
        step.args.push_back(read_argument(py::cast<py::tuple>(given[i]), parameter.type()));
      } else if (by_name != named_args.end()) {
        step.args.push_back(read_argument(by_name->second, parameter.type()));
        named_args.erase(by_name);
      } else if (parameter.default_value().has_value()) {
        step.args.emplace_back().value = *parameter.default_value();
      } else {
        invalid(op + " needs an argument " + parameter.name());
      }
    }
    if (!named_args.empty()) invalid(op + " takes no argument " + named_args.begin()->first);
    return step;
  }

  // Whether Python may hand the operator a number where its schema says Tensor.
  static bool takes_numbers_as_tensors(const std::string& op) {
    auto symbol = c10::Symbol::fromQualString(op);
    return symbol.is_prims() || (symbol.is_aten() && torch::should_allow_numbers_as_tensors(symbol.toUnqualString()));
  }

  // An argument of the given type.
  Argument read_argument(const py::tuple& source, const c10::TypePtr& declared) const {
    c10::TypePtr type = declared;
    if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    Argument read;
    auto kind = py::cast<std::string>(source[0]);
    if (kind == "tensor" || kind == "view") {
      read_tensor(source, kind == "tensor", read);
    } else if (kind == "number") {
      read.kind = Argument::Kind::kNumber;
      read.number = number(source[1]);
      read.type = type;
    } else if (py::object literal; as_literal(source, literal)) {
      read.value = torch::jit::toIValue(literal, declared);
    } else {
      auto list = type->cast<c10::ListType>();
      if (!list) invalid("a list is given for an argument of type " + type->str());
      read.kind = Argument::Kind::kList;
      read.type = list->getElementType();
      for (py::handle item : source[1]) {
        read.items.push_back(read_argument(py::cast<py::tuple>(item), read.type));
        read.fixed = read.fixed && read.items.back().fixed;
      }
    }
    return read;
  }

  void read_tensor(const py::tuple& source, bool whole, Argument& read) const {
    read.kind = Argument::Kind::kTensor;
    read.slot = slot(source[1]);
    const Slot& of = plan_.slots[read.slot];
    read.fixed = of.kind == Slot::Kind::kArena || of.kind == Slot::Kind::kConstant;
    read.whole = whole;
    read.dtype = of.dtype;
    read.sizes = whole ? of.sizes : numbers(source[2]);
    read.strides = whole ? of.strides : numbers(source[3]);
    if (whole) return;
    read.offset = number(source[4]);
    if (!source[5].is_none()) read.dtype = read_dtype(py::cast<std::string>(source[5]));
  }

  // Whether the argument is the same in every call, and then what it is in Python.
  static bool as_literal(const py::tuple& source, py::object& literal) {
    auto kind = py::cast<std::string>(source[0]);
    if (kind == "literal") {
      literal = source[1];
    } else if (kind == "torch") {
      literal = py::module_::import("torch").attr(source[1]);
    } else if (kind == "device") {
      literal = py::module_::import("torch").attr("device")(source[1]);
    } else if (kind == "list") {
      py::list items;
      for (py::handle item : source[1]) {
        py::object value;
        if (!as_literal(py::cast<py::tuple>(item), value)) return false;
        items.append(value);
      }
      literal = items;
    } else {
      return false;
    }
    return true;
  }

  py::handle source_;
  Plan& plan_;
};

}  // namespace

namespace {

// The kernels of a plan that runs on the processor: its own, and CUDA's, emulated.
void open_library(Plan& plan, py::handle library) {
  auto path = py::cast<std::string>(py::module_::import("os").attr("fspath")(library));
  plan.library = std::make_unique<SharedLibrary>(path.c_str());
  if (!*plan.library) {
    PyErr_Format(PyExc_OSError, "the kernels cannot be loaded: %s", dlerror());
    throw python_error();
  }
  plan.launcher = cuda::emulator(*plan.library);
}

}  // namespace

Plan read_plan(PyObject* source, PyObject* library, PyObject* constants, c10::Device device) {
  Plan plan;
  plan.device = device;
  if (library != Py_None) {
    if (device.is_cuda()) {
      plan.launcher = cuda::gpu_launcher(device, py::cast<std::vector<std::string>>(library));
    } else {
      open_library(plan, library);
    }
  }
  for (py::handle constant : py::handle(constants)) {
    TORCH_CHECK_TYPE(THPVariable_Check(constant.ptr()), "constants must be tensors");
    plan.constants.push_back(THPVariable_Unpack(constant.ptr()));
    TORCH_CHECK_VALUE(plan.constants.back().device() == device, "a constant is on ", plan.constants.back().device(), ", not on ", device);
  }
  Reader(source, plan).read();
  return plan;
}

}  // namespace capture::executor
