// Plain data that a plan is made of, wherever it comes from: Python's objects, or a file.
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/complex.h>

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace capture::executor {

class Value {
 public:
  using List = std::vector<Value>;

  Value() = default;
  template <class Content>
  explicit Value(Content content) : content_(std::move(content)) {}

  template <class Content>
  bool is() const { return std::holds_alternative<Content>(content_); }
  bool is_none() const { return is<std::monostate>(); }

  // What it is. Throws ValueError for a value of another kind.
  template <class Content>
  const Content& as() const {
    if (auto* content = std::get_if<Content>(&content_)) return *content;
    C10_THROW_ERROR(ValueError, "invalid plan: it holds something of another kind than is expected");
  }
  int64_t integer() const { return as<int64_t>(); }
  bool truth() const { return as<bool>(); }
  const std::string& text() const { return as<std::string>(); }
  const List& items() const { return as<List>(); }

  // An item of a list. Throws ValueError where there is none.
  const Value& operator[](size_t place) const {
    if (place >= items().size()) C10_THROW_ERROR(ValueError, "invalid plan: a field is missing");
    return items()[place];
  }

 private:
  std::variant<std::monostate, bool, int64_t, double, c10::complex<double>, std::string, List> content_;
};

}  // namespace capture::executor
