#include "executor/literals.h"

#include <ATen/ScalarOps.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include <unordered_map>

namespace capture::executor {
namespace {

[[noreturn]] void misplaced(const c10::TypePtr& type) {
  C10_THROW_ERROR(ValueError, "invalid plan: a literal is no " + type->str());
}

bool is_number(const Value& value) {
  return value.is<bool>() || value.is<int64_t>() || value.is<double>() || value.is<c10::complex<double>>();
}

c10::Scalar number(const Value& value) {
  if (value.is<bool>()) return value.truth();
  if (value.is<int64_t>()) return value.integer();
  if (value.is<double>()) return value.as<double>();
  return value.as<c10::complex<double>>();
}

at::Tensor as_tensor(const Value& value) {
  at::Tensor tensor = at::scalar_to_tensor(number(value));
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

template <class Item, class Read>
c10::IValue list_of(const Value& value, Read read) {
  c10::List<Item> list;
  for (const Value& item : value.items()) list.push_back(read(item));
  return list;
}

double real(const Value& value) { return value.is<int64_t>() ? static_cast<double>(value.integer()) : value.as<double>(); }

int64_t whole(const Value& value) { return value.is<bool>() ? value.truth() : value.integer(); }

c10::IValue list(const Value& value, const c10::TypePtr& element) {
  switch (element->kind()) {
    case c10::TypeKind::IntType: return list_of<int64_t>(value, whole);
    case c10::TypeKind::SymIntType: return list_of<int64_t>(value, whole);
    case c10::TypeKind::FloatType: return list_of<double>(value, real);
    case c10::TypeKind::BoolType: return list_of<bool>(value, [](const Value& item) { return item.truth(); });
    default: break;
  }
  c10::impl::GenericList items(element);
  for (const Value& item : value.items()) items.push_back(literal(item, element));
  return items;
}

}  // namespace

at::ScalarType dtype_named(const std::string& name) {
  const auto& dtypes = c10::getStringToDtypeMap();
  auto found = dtypes.find(name);
  if (found == dtypes.end()) C10_THROW_ERROR(ValueError, "invalid plan: " + name + " is no dtype");
  return found->second;
}

c10::IValue named_by_torch(const std::string& name) {
  static const std::unordered_map<std::string, int64_t> others = {
      {"strided", static_cast<int64_t>(c10::Layout::Strided)},
      {"sparse_coo", static_cast<int64_t>(c10::Layout::Sparse)},
      {"sparse_csr", static_cast<int64_t>(c10::Layout::SparseCsr)},
      {"contiguous_format", static_cast<int64_t>(c10::MemoryFormat::Contiguous)},
      {"preserve_format", static_cast<int64_t>(c10::MemoryFormat::Preserve)},
      {"channels_last", static_cast<int64_t>(c10::MemoryFormat::ChannelsLast)},
      {"channels_last_3d", static_cast<int64_t>(c10::MemoryFormat::ChannelsLast3d)}};
  auto found = others.find(name);
  return found != others.end() ? found->second : static_cast<int64_t>(dtype_named(name));
}

c10::IValue literal(const Value& value, const c10::TypePtr& declared) {
  c10::TypePtr type = declared;
  if (auto optional = declared->cast<c10::OptionalType>()) {
    if (value.is_none()) return {};
    type = optional->getElementType();
  }
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      if (value.is_none()) return {};
      if (is_number(value)) return as_tensor(value);
      break;
    case c10::TypeKind::NoneType:
      if (value.is_none()) return {};
      break;
    case c10::TypeKind::NumberType:
      if (is_number(value)) return number(value);
      break;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      if (value.is<int64_t>() || value.is<bool>()) return whole(value);
      break;
    case c10::TypeKind::FloatType:
      if (value.is<int64_t>() || value.is<double>()) return real(value);
      break;
    case c10::TypeKind::BoolType:
      if (value.is<bool>()) return value.truth();
      break;
    case c10::TypeKind::StringType:
      if (value.is<std::string>()) return value.text();
      break;
    case c10::TypeKind::ListType:
      if (value.is<Value::List>()) return list(value, type->expectRef<c10::ListType>().getElementType());
      break;
    default: break;
  }
  misplaced(type);
}

}  // namespace capture::executor
