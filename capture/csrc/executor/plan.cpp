#include "executor/plan.h"

#include <algorithm>
#include <unordered_map>

#include "executor/literals.h"

namespace capture::executor {
namespace {

constexpr unsigned kMostThreads = 1024;  // of a block, on all GPUs

[[noreturn]] void invalid(const std::string& text) { C10_THROW_ERROR(ValueError, "invalid plan: " + text); }

template <class Kind>
Kind named(const std::unordered_map<std::string, Kind>& names, const std::string& name) {
  auto found = names.find(name);
  if (found == names.end()) invalid("unknown " + name);
  return found->second;
}

// The fields of plan.py's records, in order.
namespace fields {
enum Plan { kNumbers, kInputSlots, kConstants, kSlots, kSteps, kOutputs, kFinished, kArena };
enum Slot { kSlotKind, kPosition, kSlotName, kDtype, kSizes, kStrides, kWritten };
enum Step { kStepKind, kStepName };
enum Kernel { kSymbol = 2, kBuffers, kKernelNumbers, kTotal, kGrain, kKernelChecks, kKernelReleased };
enum Launch { kVariants = 2, kEntries, kRoom, kLaunchChecks, kLaunchReleased };
enum Extern { kOp = 2, kOverload, kArgs, kKwargs, kResults, kExternReleased };
enum Variant { kVariantSymbol, kThreads };
enum Entry { kEntryBuffers, kEntryNumbers, kFits };
enum Fit { kBlocks, kAligned, kDivisible };
}  // namespace fields

std::vector<int64_t> integers(const Value& values) {
  std::vector<int64_t> found;
  for (const Value& value : values.items()) found.push_back(value.integer());
  return found;
}

// A size, or a position in a table.
size_t count(const Value& value) {
  if (value.integer() < 0) invalid(std::to_string(value.integer()) + " is negative");
  return static_cast<size_t>(value.integer());
}

class Reader {
 public:
  Reader(const Value& source, Plan& plan) : source_(source), plan_(plan) {}

  void read() {
    if (count(source_[fields::kConstants]) != plan_.constants.size()) invalid("another number of constants is expected");
    for (const Value& row : source_[fields::kNumbers].items()) plan_.numbers.push_back(read_row(row));
    for (const Value& slot : source_[fields::kSlots].items()) plan_.slots.push_back(read_slot(slot));
    plan_.input_slots = integers(source_[fields::kInputSlots]);
    for (int64_t slot : plan_.input_slots) {
      if (slot >= static_cast<int64_t>(plan_.slots.size())) invalid("there is no slot " + std::to_string(slot));
    }
    plan_.arena = number(source_[fields::kArena]);
    for (const Value& step : source_[fields::kSteps].items()) {
      const std::string& kind = step[fields::kStepKind].text();
      if (kind == "kernel") {
        plan_.steps.emplace_back(read_kernel(step));
        mark_used(step[fields::kBuffers]);
      } else if (kind == "launch") {
        plan_.steps.emplace_back(read_launch(step));
        for (const Value& entry : step[fields::kEntries].items()) mark_used(entry[fields::kEntryBuffers]);
      } else {
        plan_.steps.emplace_back(read_extern(step));
      }
    }
    for (const Value& output : source_[fields::kOutputs].items()) {
      plan_.outputs.push_back(read_argument(output, c10::TensorType::get()));
      const Argument& read = plan_.outputs.back();
      if (read.kind == Argument::Kind::kTensor && plan_.slots[read.slot].kind == Slot::Kind::kArena) {
        invalid(plan_.slots[read.slot].name + " is returned, but lies in the arena");
      }
    }
    read_finished();
  }

 private:
  void mark_used(const Value& buffers) {
    for (size_t used : slots(buffers)) plan_.slots[used].in_kernels = true;
  }

  Row read_row(const Value& row) {
    using Kind = Row::Kind;
    static const std::unordered_map<std::string, Kind> kinds = {
        {"const", Kind::kConst}, {"argument", Kind::kArgument}, {"size", Kind::kSize}, {"add", Kind::kAdd},
        {"mul", Kind::kMul},     {"div", Kind::kDiv},           {"mod", Kind::kMod},   {"max", Kind::kMax}};
    Kind kind = named(kinds, row[0].text());
    Row read{kind, row[1].integer(), row.items().size() > 2 ? row[2].integer() : 0};
    if (kind == Kind::kArgument || kind == Kind::kSize) {
      plan_.symbolic = true;
    } else if (kind != Kind::kConst && std::max(read.left, read.right) >= static_cast<int64_t>(plan_.numbers.size())) {
      invalid("a number is used before it is computed");
    }
    return read;
  }

  void read_finished() {
    plan_.finished.resize(plan_.steps.size());
    std::vector<int64_t> steps = integers(source_[fields::kFinished]);
    if (steps.size() != plan_.outputs.size()) invalid("it does not say of each output when it is finished");
    for (size_t i = 0; i < steps.size(); i++) {
      if (steps[i] < 0) continue;
      if (plan_.outputs[i].kind != Argument::Kind::kTensor) invalid("an output that is no tensor is finished early");
      if (steps[i] >= static_cast<int64_t>(plan_.steps.size())) invalid("there is no step " + std::to_string(steps[i]));
      plan_.finished[static_cast<size_t>(steps[i])].push_back(i);
    }
  }

  Number number(const Value& value) const {
    size_t found = count(value);
    if (found >= plan_.numbers.size()) invalid("there is no number " + std::to_string(found));
    return found;
  }

  Numbers numbers(const Value& values) const {
    Numbers found;
    for (const Value& value : values.items()) found.push_back(number(value));
    return found;
  }

  size_t slot(const Value& value) const {
    size_t found = count(value);
    if (found >= plan_.slots.size()) invalid("there is no slot " + std::to_string(found));
    return found;
  }

  std::vector<size_t> slots(const Value& values) const {
    std::vector<size_t> found;
    for (const Value& value : values.items()) found.push_back(slot(value));
    return found;
  }

  Slot read_slot(const Value& source) const {
    using Kind = Slot::Kind;
    static const std::unordered_map<std::string, Kind> kinds = {{"input", Kind::kInput},
                                                                {"host", Kind::kHost},
                                                                {"constant", Kind::kConstant},
                                                                {"arena", Kind::kArena},
                                                                {"fresh", Kind::kFresh},
                                                                {"result", Kind::kResult}};
    Slot read{named(kinds, source[fields::kSlotKind].text()),
              count(source[fields::kPosition]),
              source[fields::kSlotName].text(),
              dtype_named(source[fields::kDtype].text()),
              numbers(source[fields::kSizes]),
              numbers(source[fields::kStrides]),
              source[fields::kWritten].truth()};
    if (read.kind == Kind::kArena && read.position >= plan_.numbers.size()) invalid("there is no offset for " + read.name);
    if (read.kind == Kind::kConstant && read.position >= plan_.constants.size()) invalid("there is no constant " + read.name);
    if (read.sizes.size() != read.strides.size()) invalid(read.name + " has not as many strides as sizes");
    return read;
  }

  KernelStep read_kernel(const Value& source) const {
    if (plan_.library == nullptr) invalid("it has kernels, but there is no library");
    const std::string& symbol = source[fields::kSymbol].text();
    auto function = reinterpret_cast<KernelFunction>(plan_.library->symbol(symbol));
    if (function == nullptr) invalid("the library has no kernel " + symbol);
    return {source[fields::kStepName].text(),
            function,
            slots(source[fields::kBuffers]),
            numbers(source[fields::kKernelNumbers]),
            number(source[fields::kTotal]),
            number(source[fields::kGrain]),
            source[fields::kKernelChecks].truth(),
            slots(source[fields::kKernelReleased])};
  }

  LaunchStep read_launch(const Value& source) const {
    if (plan_.launcher == nullptr) invalid("it has kernels, but there is no library");
    LaunchStep step{source[fields::kStepName].text(),
                    {},
                    {},
                    count(source[fields::kRoom]),
                    source[fields::kLaunchChecks].truth(),
                    slots(source[fields::kLaunchReleased])};
    for (const Value& variant : source[fields::kVariants].items()) step.variants.push_back(read_variant(variant));
    for (const Value& entry : source[fields::kEntries].items()) step.entries.push_back(read_entry(entry, step));
    if (step.room == 0 && step.entries.size() != 1) invalid(step.name + " has no table for its entries");
    return step;
  }

  Variant read_variant(const Value& source) const {
    const std::string& symbol = source[fields::kVariantSymbol].text();
    Variant read{plan_.launcher->function(symbol), static_cast<unsigned>(count(source[fields::kThreads]))};
    if (read.function == nullptr) invalid("the library has no kernel " + symbol);
    if (read.threads < 1 || read.threads > kMostThreads) invalid(symbol + " has " + std::to_string(read.threads) + " threads");
    return read;
  }

  Entry read_entry(const Value& source, const LaunchStep& step) const {
    Entry read{slots(source[fields::kEntryBuffers]), numbers(source[fields::kEntryNumbers]), {}};
    for (const Value& fit : source[fields::kFits].items()) read.fits.push_back(read_fit(fit, step.name));
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

  Fit read_fit(const Value& source, const std::string& name) const {
    Fit read{number(source[fields::kBlocks]), slots(source[fields::kAligned]), {}};
    for (const Value& asked : source[fields::kDivisible].items()) {
      read.divisible.emplace_back(number(asked[0]), asked[1].integer());
      if (read.divisible.back().second < 1) invalid(name + " asks for multiples of " + std::to_string(read.divisible.back().second));
    }
    return read;
  }

  ExternStep read_extern(const Value& source) const {
    const std::string &op = source[fields::kOp].text(), &overload = source[fields::kOverload].text();
    ExternStep step{source[fields::kStepName].text(),
                    c10::Dispatcher::singleton().findSchemaOrThrow(op.c_str(), overload.c_str()),
                    {},
                    integers(source[fields::kResults]),
                    slots(source[fields::kExternReleased])};
    for (int64_t result : step.results) {
      if (result >= static_cast<int64_t>(plan_.slots.size())) invalid("there is no slot " + std::to_string(result));
    }
    const Value::List& given = source[fields::kArgs].items();
    std::unordered_map<std::string, const Value*> named_args;
    for (const Value& pair : source[fields::kKwargs].items()) named_args.emplace(pair[0].text(), &pair[1]);
    const auto& parameters = step.op.schema().arguments();
    if (given.size() > parameters.size()) invalid(op + " does not take so many arguments");
    for (size_t i = 0; i < parameters.size(); i++) {
      const c10::Argument& parameter = parameters[i];
      auto by_name = named_args.find(parameter.name());
      if (i < given.size()) {
        step.args.push_back(read_argument(given[i], parameter.type()));
      } else if (by_name != named_args.end()) {
        step.args.push_back(read_argument(*by_name->second, parameter.type()));
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

  // An argument of the given type.
  Argument read_argument(const Value& source, const c10::TypePtr& declared) const {
    c10::TypePtr type = declared;
    if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    Argument read;
    const std::string& kind = source[0].text();
    if (kind == "tensor" || kind == "view") {
      read_tensor(source, kind == "tensor", read);
    } else if (kind == "number") {
      read.kind = Argument::Kind::kNumber;
      read.number = number(source[1]);
      read.type = type;
    } else if (kind == "torch") {
      read.value = named_by_torch(source[1].text());
    } else if (kind == "device") {
      read.value = c10::Device(source[1].text());
    } else if (Value value; as_literal(source, value)) {
      read.value = literal(value, declared);
    } else {
      auto list = type->cast<c10::ListType>();
      if (!list) invalid("a list is given for an argument of type " + type->str());
      read.kind = Argument::Kind::kList;
      read.type = list->getElementType();
      for (const Value& item : source[1].items()) {
        read.items.push_back(read_argument(item, read.type));
        read.fixed = read.fixed && read.items.back().fixed;
      }
    }
    return read;
  }

  void read_tensor(const Value& source, bool whole, Argument& read) const {
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
    if (!source[5].is_none()) read.dtype = dtype_named(source[5].text());
  }

  // Whether an argument is a literal, or a list of such, and then which.
  static bool as_literal(const Value& source, Value& found) {
    if (source[0].text() == "literal") {
      found = source[1];
      return true;
    }
    if (source[0].text() != "list") return false;
    Value::List items(source[1].items().size());
    for (size_t i = 0; i < items.size(); i++) {
      if (!as_literal(source[1][i], items[i])) return false;
    }
    found = Value(std::move(items));
    return true;
  }

  const Value& source_;
  Plan& plan_;
};

}  // namespace

bool open_library(const std::string& path, Plan& plan) {
  plan.library = std::make_unique<SharedLibrary>(path.c_str());
  if (!*plan.library) return false;
  plan.launcher = cuda::emulator(*plan.library);
  return true;
}

void read_plan(const Value& source, Plan& plan) { Reader(source, plan).read(); }

}  // namespace capture::executor
