#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <sys/mman.h>
#include <torch/version.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <mutex>
#include <sstream>
#include <unordered_set>

#include "executor/literals.h"
#include "executor/run.h"
#include "package/capture_package.h"
#include "package/file.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

using capture::executor::Value;

namespace {

// The fields of a description, in order, as `packages.py` writes them.
enum Description { kFormat, kTorch, kInstructions, kPlan, kLibrary, kConstants, kWeights, kInputs, kArguments, kOutputs };
enum Tensor { kName, kDtype, kSizes, kStrides, kOffset, kLength };

constexpr int64_t kFormatNumber = 1;

thread_local std::string error;

// Calls a function; nullptr if it throws, of which `capture_error` tells.
template <class Function>
auto guarded(Function function) noexcept -> decltype(function()) {
  try {
    return function();
  } catch (const c10::Error& thrown) {
    error = thrown.what_without_backtrace();
  } catch (const std::exception& thrown) {
    error = thrown.what();
  }
  return nullptr;
}

std::vector<int64_t> integers(const Value& values) {
  std::vector<int64_t> found;
  for (const Value& value : values.items()) found.push_back(value.integer());
  return found;
}

// The instruction sets of this processor, as Linux names them.
std::unordered_set<std::string> instructions() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("flags", 0) != 0 && line.rfind("Features", 0) != 0) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    return {std::istream_iterator<std::string>(words), {}};
  }
  return {};
}

void check_usable(const Value& description) {
  TORCH_CHECK_VALUE(description[kFormat].integer() == kFormatNumber,
                    "the package has another format; write it again with this version of capture");
  std::string version = std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR);
  TORCH_CHECK_VALUE(description[kTorch].text() == version, "the package is for torch ", description[kTorch].text(), ", and this is ",
                    version, "; write it again with this one");
  std::unordered_set<std::string> here = instructions();
  for (const Value& wanted : description[kInstructions].items()) {
    TORCH_CHECK_VALUE(here.count(wanted.text()), "the package needs a processor with ", wanted.text(),
                      "; write it again on one like this");
  }
}

// The library of the kernels has to be a file. Numbers of files come back once closed, and the loader compares names before it looks
// at a file: so each has a spelling of its own, the number of the opening, in `/.` and `/`.
std::string library_path(const char* bytes, size_t length, int& file) {
  static std::atomic<unsigned> opened{0};
  file = memfd_create("capture", MFD_CLOEXEC);
  TORCH_CHECK(file >= 0, "the kernels cannot be loaded: the system has no files in memory");
  for (size_t written = 0; written < length;) {
    ssize_t more = write(file, bytes + written, length - written);
    TORCH_CHECK(more > 0, "the kernels cannot be loaded: memory is short");
    written += static_cast<size_t>(more);
  }
  std::string path = "/proc/self/fd";
  for (unsigned number = ++opened; number != 0; number >>= 1) path += number & 1 ? "/." : "/";
  return path + "/" + std::to_string(file);
}

}  // namespace

struct CaptureResults {
  std::vector<at::Tensor> tensors;
  std::vector<std::string> dtypes;
};

struct CapturePackage {
  explicit CapturePackage(const char* path) : file(path) {
    const Value& description = file.description();
    check_usable(description);
    if (!description[kLibrary].is_none()) open_kernels(description[kLibrary]);
    for (const Value& constant : description[kConstants].items()) plan.constants.push_back(mapped(constant));
    for (const Value& weight : description[kWeights].items()) weights.push_back(mapped(weight));
    for (const Value& input : description[kInputs].items()) {
      inputs.push_back({input[kName].text(), input[kDtype].text(), integers(input[kSizes]), integers(input[kStrides])});
    }
    capture::executor::read_plan(description[kPlan], plan);
    for (const Value& argument : description[kArguments].items()) arguments.push_back(tensor_named(argument));
    for (const Value& output : description[kOutputs].items()) outputs.push_back(tensor_named(output));
  }

  // Where a tensor comes from: its number among the inputs, the weights, or the results of the plan.
  struct Place {
    enum class Kind { kInput, kWeight, kResult } kind;
    size_t number;
  };

  struct Input {
    std::string name, dtype;
    std::vector<int64_t> sizes, strides;
  };

  CaptureResults* run(const CaptureTensor* given, size_t count) {
    TORCH_CHECK_VALUE(count == inputs.size(), "the package takes ", inputs.size(), " arguments, not ", count);
    std::vector<at::Tensor> tensors;
    for (size_t i = 0; i < count; i++) tensors.push_back(argument(given[i], inputs[i]));
    std::vector<c10::IValue> values;
    for (Place place : arguments) values.emplace_back(place.kind == Place::Kind::kInput ? tensors[place.number] : weights[place.number]);
    std::vector<c10::IValue> made = run_plan(values);
    auto results = std::make_unique<CaptureResults>();
    for (Place place : outputs) {
      at::Tensor result = place.kind == Place::Kind::kResult ? made.at(place.number).toTensor()
                          : place.kind == Place::Kind::kInput ? tensors[place.number] : weights[place.number];
      results->tensors.push_back(place.kind == Place::Kind::kResult ? result : result.clone());
      results->dtypes.emplace_back(c10::getDtypeNames(result.scalar_type()).first);
    }
    return results.release();
  }

  capture::package::File file;
  capture::executor::Plan plan;
  std::vector<at::Tensor> weights;
  std::vector<Input> inputs;
  std::vector<Place> arguments, outputs;

 private:
  void open_kernels(const Value& part) {
    int number = -1;
    std::string path = library_path(file.data(part[0], part[1]), static_cast<size_t>(part[1].integer()), number);
    bool opened = capture::executor::open_library(path, plan);
    std::string why = opened ? "" : dlerror();
    close(number);
    TORCH_CHECK(opened, "the kernels cannot be loaded: ", why);
  }

  at::Tensor mapped(const Value& part) const {
    return at::from_blob(file.data(part[kOffset], part[kLength]), integers(part[kSizes]), integers(part[kStrides]),
                         capture::executor::dtype_named(part[kDtype].text()));
  }

  Place tensor_named(const Value& pair) const {
    const std::string& kind = pair[0].text();
    auto number = static_cast<size_t>(pair[1].integer());
    size_t end = kind == "input" ? inputs.size() : kind == "weight" ? weights.size() : plan.outputs.size();
    TORCH_CHECK_VALUE(number < end, "the package is damaged: there is no ", kind, " ", number);
    return {kind == "input" ? Place::Kind::kInput : kind == "weight" ? Place::Kind::kWeight : Place::Kind::kResult, number};
  }

  static at::Tensor argument(const CaptureTensor& given, const Input& input) {
    TORCH_CHECK_VALUE(given.dtype != nullptr && input.dtype == given.dtype, input.name, " is ",
                      given.dtype == nullptr ? "of no dtype" : given.dtype, ", not ", input.dtype);
    at::IntArrayRef sizes(given.sizes, given.dimensions);
    TORCH_CHECK_VALUE(sizes == at::IntArrayRef(input.sizes), input.name, " has the sizes ", sizes, ", not ", input.sizes);
    at::ScalarType dtype = capture::executor::dtype_named(input.dtype);
    at::Tensor tensor = given.strides == nullptr ? at::from_blob(given.data, sizes, dtype)
                                                 : at::from_blob(given.data, sizes, at::IntArrayRef(given.strides, given.dimensions), dtype);
    TORCH_CHECK_VALUE(given.data != nullptr || tensor.numel() == 0, input.name, " has no elements");
    return tensor;
  }

  std::vector<c10::IValue> run_plan(std::vector<c10::IValue>& values) {
    capture::executor::Leaves none({}, values);
    std::unique_ptr<capture::executor::Frame> frame;
    capture::executor::Workspace workspace;
    auto give_back = [&] {
      std::lock_guard<std::mutex> locked(mutex());
      frame->clear();
      return_workspace(std::move(workspace));
      idle_.push_back(std::move(frame));
    };
    {
      std::lock_guard<std::mutex> locked(mutex());
      if (idle_.empty()) {
        frame = std::make_unique<capture::executor::Frame>(plan);
      } else {
        frame = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    try {
      frame->set_arguments(values, true);
      {
        std::lock_guard<std::mutex> locked(mutex());
        workspace = capture::executor::take_workspace(frame->arena_bytes(), plan.device);
      }
      std::vector<c10::IValue> made = frame->run(workspace.memory.get(), none);
      give_back();
      return made;
    } catch (...) {
      give_back();
      throw;
    }
  }

  // Workspaces are shared by all packages.
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }

  std::vector<std::unique_ptr<capture::executor::Frame>> idle_;
};

EXPORTED const char* capture_error(void) { return error.c_str(); }

EXPORTED CapturePackage* capture_open(const char* path) {
  return guarded([&] { return std::make_unique<CapturePackage>(path).release(); });
}

EXPORTED void capture_close(CapturePackage* package) { delete package; }

EXPORTED size_t capture_input_count(const CapturePackage* package) { return package->inputs.size(); }

EXPORTED CaptureTensor capture_input(const CapturePackage* package, size_t number) {
  const CapturePackage::Input& input = package->inputs.at(number);
  return {input.name.c_str(), input.dtype.c_str(), input.sizes.size(), input.sizes.data(), input.strides.data(), nullptr};
}

EXPORTED CaptureResults* capture_run(CapturePackage* package, const CaptureTensor* inputs, size_t count) {
  return guarded([&] { return package->run(inputs, count); });
}

EXPORTED size_t capture_result_count(const CaptureResults* results) { return results->tensors.size(); }

EXPORTED CaptureTensor capture_result(const CaptureResults* results, size_t number) {
  const at::Tensor& tensor = results->tensors.at(number);
  return {"", results->dtypes[number].c_str(), static_cast<size_t>(tensor.dim()), tensor.sizes().data(), tensor.strides().data(),
          tensor.data_ptr()};
}

EXPORTED void capture_free(CaptureResults* results) { delete results; }
