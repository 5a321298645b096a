#include "package/file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace capture::package {
namespace {

using executor::Value;

constexpr char kMagic[] = "CAPPACK\1";
constexpr size_t kStart = 16, kPage = 4096;
constexpr int kDeepest = 64;

// Reads a description: each value is a letter and what it stands for (`packages.described`).
class Decoder {
 public:
  Decoder(const char* begin, const char* end) : at_(begin), end_(end) {}

  Value read(int depth = 0) {
    TORCH_CHECK_VALUE(depth < kDeepest, "the package is damaged");
    switch (*take(1)) {
      case 'n': return Value();
      case 't': return Value(true);
      case 'f': return Value(false);
      case 'i': return Value(fixed<int64_t>());
      case 'd': return Value(fixed<double>());
      case 'c': {
        double real = fixed<double>(), imaginary = fixed<double>();
        return Value(c10::complex<double>(real, imaginary));
      }
      case 's': {
        size_t length = size();
        return Value(std::string(take(length), length));
      }
      case 'l': {
        size_t count = size();
        TORCH_CHECK_VALUE(count <= static_cast<size_t>(end_ - at_), "the package is damaged");
        Value::List items(count);
        for (Value& item : items) item = read(depth + 1);
        return Value(std::move(items));
      }
      default: TORCH_CHECK_VALUE(false, "the package is damaged");
    }
  }

 private:
  const char* take(size_t count) {
    TORCH_CHECK_VALUE(count <= static_cast<size_t>(end_ - at_), "the package is damaged");
    const char* taken = at_;
    at_ += count;
    return taken;
  }

  template <class Number>
  Number fixed() {
    Number number;
    std::memcpy(&number, take(sizeof number), sizeof number);
    return number;
  }

  size_t size() { return static_cast<size_t>(fixed<uint64_t>()); }

  const char* at_;
  const char* end_;
};

}  // namespace

File::File(const std::string& path) {
  int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  TORCH_CHECK(file >= 0, path, " cannot be opened: ", std::strerror(errno));
  struct stat status {};
  if (fstat(file, &status) == 0 && status.st_size > 0) {
    length_ = static_cast<size_t>(status.st_size);
    void* mapped = mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);  // what is written stays in this process
    if (mapped != MAP_FAILED) begin_ = static_cast<char*>(mapped);
  }
  close(file);
  TORCH_CHECK(begin_ != nullptr, path, " cannot be read");
  try {
    uint64_t length = 0;
    TORCH_CHECK_VALUE(length_ >= kStart && std::memcmp(begin_, kMagic, sizeof kMagic - 1) == 0, path, " is no package");
    std::memcpy(&length, begin_ + sizeof kMagic - 1, sizeof length);
    TORCH_CHECK_VALUE(length <= length_ - kStart, path, " is damaged: a part is missing");
    description_ = Decoder(begin_ + kStart, begin_ + kStart + length).read();
    data_ = (kStart + static_cast<size_t>(length) + kPage - 1) / kPage * kPage;
  } catch (...) {
    munmap(begin_, length_);
    throw;
  }
}

File::~File() { munmap(begin_, length_); }

char* File::data(const Value& offset, const Value& length) const {
  auto first = static_cast<uint64_t>(offset.integer()), count = static_cast<uint64_t>(length.integer());
  TORCH_CHECK_VALUE(data_ <= length_ && first <= length_ - data_ && count <= length_ - data_ - first,
                    "the package is damaged: a part is missing");
  return begin_ + data_ + first;
}

}  // namespace capture::package
