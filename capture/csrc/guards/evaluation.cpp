#include "guards/evaluation.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "cpython/dict_version.h"
#include "guards/tensor_properties.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // ma_version_tag, deprecated in 3.12 in favour of watchers

namespace capture {
namespace {

// What an unused watch looks at.
alignas(8) const uint64_t kAlways = 0;
constexpr uintptr_t kKindBits = 7;
constexpr size_t kAhead = 12;  // watches behind the last that are never used, so that fetching ahead finds some

uint64_t load(uintptr_t address) {
  uint64_t word;
  std::memcpy(&word, reinterpret_cast<const void*>(address), sizeof word);
  return word;
}

Watch unused() { return {reinterpret_cast<uintptr_t>(&kAlways), 0}; }

Watch word_at(const void* address) {
  auto number = reinterpret_cast<uintptr_t>(address);
  return {number, load(number)};
}

Watch live(uint32_t node) { return {(uintptr_t{node} << 3) | static_cast<uintptr_t>(WatchKind::Live), 0}; }

Watch rerun(size_t check, bool result) {
  return {(uintptr_t{check} << 3) | static_cast<uintptr_t>(WatchKind::Check), result};
}

// Sees to it that the version of a dict tells of all its changes. From 3.13 on the values of an instance's dict may lie within the
// instance, and attributes that are stored there leave the version as it is. Popping an item gives the dict values of its own.
void own_values([[maybe_unused]] PyObject* dict) {
#if PY_VERSION_HEX >= 0x030D0000
  if (reinterpret_cast<PyDictObject*>(dict)->ma_values == nullptr) return;
  static PyObject* const popitem = PyUnicode_InternFromString("popitem");
  const bool empty = PyDict_GET_SIZE(dict) == 0;
  if (empty && PyDict_SetItem(dict, popitem, Py_None) < 0) return PyErr_Clear();
  Ref item = Ref::steal(PyObject_CallMethodNoArgs(dict, popitem));
  bool failed = !item || (!empty && PyDict_SetItem(dict, PyTuple_GET_ITEM(item.get(), 0), PyTuple_GET_ITEM(item.get(), 1)) < 0);
  if (failed) PyErr_Clear();
#endif
}

// The version of a class, assigned by a lookup where it has none. The word after the tag is padding, and stays zero.
Watch version_of_class(uint32_t node, PyObject* object) {
  if (!PyType_Check(object)) return unused();
  auto* type = reinterpret_cast<PyTypeObject*>(object);
  static PyObject* const any_name = PyUnicode_InternFromString("__init__");
  if (type->tp_version_tag == 0) _PyType_Lookup(type, any_name);
  static_assert(offsetof(PyTypeObject, tp_version_tag) % 8 == 0);
  static_assert(offsetof(PyTypeObject, tp_finalize) == offsetof(PyTypeObject, tp_version_tag) + 8);
  return type->tp_version_tag == 0 ? live(node) : word_at(&type->tp_version_tag);
}

}  // namespace

Memory::Memory(const Program& program)
    : values(program.nodes.size()),
      versions(program.nodes.size()),
      failed(program.nodes.size()),
      root_failed(program.roots.size()),
      walked(program.roots.size()),
      watches(program.watch_owner.size() + kAhead + 1, unused()),
      tensors(program.tensor_owner.size()) {}

// value_of: the value of another node.
template <class ValueOf>
PyObject* Evaluation::step(const Node& node, ValueOf value_of) {
  PyObject* base = node.base == kNone ? nullptr : value_of(node.base);
  switch (node.step) {
    case Step::Local:
      return static_cast<size_t>(node.index) < arguments_.count ? arguments_.locals[node.index] : nullptr;
    case Step::Function: return arguments_.function;
    case Step::Constant:
    case Step::Literal: return node.key;
    case Step::ImportedModule: return module_step(node.key);
    case Step::Attr: return attribute_step(base, node.key, owned_);
    case Step::InstanceDict: return instance_dict_step(base);
    case Step::Item:
      return has_turned(node.hash, node.key) ? nullptr : item_step(base, node.key, node.hash.value, node.index);
    case Step::TypeOf: return reinterpret_cast<PyObject*>(Py_TYPE(base));
    case Step::TypeAttr: return type_attribute_step(base, node.key);
    case Step::Computed: break;
  }
  c10::SmallVector<PyObject*, 8> operands;
  for (uint32_t i = node.operands_begin; i < node.operands_end; i++) {
    operands.push_back(value_of(program_.operands[i]));
  }
  return computed_step(node.key, operands.data(), operands.size(), owned_);
}

void Evaluation::set_failed(uint32_t index, uint64_t mask) {
  if (memory_.failed[index] == mask) return;
  memory_.failed[index] = mask;
  changed_ = true;
}

void Evaluation::mark_unreachable(uint32_t index, bool pinned) {
  const Node& node = program_.nodes[index];
  for (uint32_t i = index; i < node.end; i++) {
    memory_.values[i] = nullptr;
    memory_.versions[i] = 0;
    set_failed(i, i == index ? node.required : 0);
  }
  uint32_t watches_end = program_.nodes[node.end - 1].watch_end;
  std::fill(memory_.watches.begin() + node.watch_begin, memory_.watches.begin() + watches_end, unused());
  uint32_t tensors_end = program_.nodes[node.end - 1].tensor_end;
  std::fill(memory_.tensors.begin() + node.tensor_begin, memory_.tensors.begin() + tensors_end, TensorWatch{});
  // Whether an item or class attribute appears is told by the version of its dict or class.
  if (pinned && has_watch(node.step)) memory_.watches[node.watch_begin] = live(index);
}

void Evaluation::walk(uint32_t index, bool pinned) {
  const Node& node = program_.nodes[index];
  PyObject* before = memory_.values[index];
  PyObject* value = step(node, [&](uint32_t other) { return memory_.values[other]; });
  if (value == nullptr) return mark_unreachable(index, pinned);
  memory_.values[index] = value;
  Watch* watch = memory_.watches.data() + node.watch_begin;
  auto emit = [&](Watch w) { *watch++ = pinned ? w : unused(); };
  TensorWatch* tensor = memory_.tensors.data() + node.tensor_begin;
  bool below_pinned = pinned;

  if (has_watch(node.step)) {
    PyObject* base = memory_.values[node.base];
    if (node.step == Step::TypeOf) {
      emit(word_at(&base->ob_type));
    } else if (node.step == Step::InstanceDict && instance_dict_slot(base) != nullptr) {
      emit(word_at(instance_dict_slot(base)));
    } else if (node.only_identity && attribute_slot(base, node.key) != nullptr) {
      emit(word_at(attribute_slot(base, node.key)));
    } else {
      emit(live(index));
      below_pinned = false;
    }
  }

  bool is_dict = PyDict_Check(value);
  bool items_unchanged = false;
  if (node.watches_dict) {
    if (is_dict) own_values(value);
    bool order_hidden = false;  // an OrderedDict can change its order and keep its version
    for (uint32_t i = node.checks_begin; i < node.checks_end; i++) {
      order_hidden |= program_.checks[i].watched == Watched::Order && PyODict_Check(value);
    }
    bool has_no_version = PyAnySet_Check(value) || (node.has_items && !is_dict && !PyTuple_Check(value));
    emit(order_hidden || has_no_version ? live(index)
         : is_dict                      ? word_at(&reinterpret_cast<PyDictObject*>(value)->ma_version_tag)
                                        : unused());
    if (is_dict) {
      items_unchanged = before == value && memory_.versions[index] == dict_version(value);
      memory_.versions[index] = dict_version(value);
    } else {
      memory_.versions[index] = 0;
    }
  }
  if (node.watches_type) emit(version_of_class(index, value));

  uint64_t failed = 0;
  for (uint32_t i = node.checks_begin; i < node.checks_end; i++) {
    const Check& check = program_.checks[i];
    bool passed = row_of(check).test(check, value);
    if (!passed) failed |= check.entries;
    switch (check.watched) {
      case Watched::Identity:
      case Watched::Keys:
      case Watched::Order:
      case Watched::Class:
      case Watched::Nothing:
        break;
      case Watched::Tensor:
        *tensor++ = {pinned ? value : nullptr, static_cast<const TensorProperties*>(check.native), passed};
        break;
      case Watched::Type:
        emit(word_at(&value->ob_type));
        break;
      case Watched::Truth:  // a class of the program's may come to have a say in it
        if (!PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_IMMUTABLETYPE)) {
          emit(rerun(i, passed));
          break;
        }
        [[fallthrough]];
      case Watched::Length:
        emit(length_field(value) != nullptr ? word_at(length_field(value)) : unused());
        break;
      case Watched::Value:  // only an object of expected's own, immutable type could ever pass
        emit(is_frozen(check.expected) ? unused() : rerun(i, passed));
        break;
      case Watched::Members:
        emit(PyFrozenSet_CheckExact(value) ? unused() : rerun(i, passed));
        break;
    }
  }
  set_failed(index, failed);

  for (uint32_t child = index + 1; child < node.end; child = program_.nodes[child].end) {
    if (program_.nodes[child].step != Step::Item) {
      walk(child, below_pinned);
    } else if (is_dict) {
      if (!items_unchanged) walk(child, true);
    } else {
      walk(child, below_pinned && PyTuple_Check(value));
    }
  }
}

uint32_t Evaluation::repair(uint32_t watch) {
  uint32_t node = program_.watch_owner[watch];
  walk(node, true);
  return program_.nodes[node].watch_end;
}

bool Evaluation::holds(const Watch& watch) const {
  switch (static_cast<WatchKind>(watch.address & kKindBits)) {
    case WatchKind::Word:
      return load(watch.address) == watch.expected;
    case WatchKind::Check: {
      const Check& check = program_.checks[watch.address >> 3];
      return row_of(check).test(check, memory_.values[check.node]) == (watch.expected != 0);
    }
    case WatchKind::Live:
      break;
  }
  return false;
}

void Evaluation::verify(const Node& root) {
  const Watch* watches = memory_.watches.data();
  const Node& last = program_.nodes[root.end - 1];
  for (uint32_t i = root.watch_begin, end = last.watch_end; i < end;) {
    // Most watches are words that did not change; what they lead to is fetched ahead of time.
    while (i < end && (watches[i].address & kKindBits) == 0 && load(watches[i].address) == watches[i].expected) {
      i++;
      __builtin_prefetch(reinterpret_cast<const void*>(watches[i + kAhead].address & ~kKindBits));
    }
    if (i < end) i = holds(watches[i]) ? i + 1 : repair(i);
  }
  // Tensors come last: now all of them are known to be there.
  for (size_t i = root.tensor_begin, end = last.tensor_end;;) {
    i = first_changed(memory_.tensors.data(), i, end);
    if (i == end) return;
    walk(program_.tensor_owner[i], true);
    i++;
  }
}

// The entries for these modes.
uint64_t Evaluation::fitting(const Modes& modes) const {
  uint64_t entries = program_.all_entries;
  for (const Relation& relation : program_.relations) {
    if (relation.form == Form::Modes && !holds(relation, modes)) entries &= ~relation.entry;
  }
  return entries;
}

uint64_t Evaluation::run(const Modes& modes) {
  uint64_t applying = fitting(modes);
  for (size_t r = 0; r < program_.roots.size() && applying != 0; r++) {
    uint32_t root = program_.roots[r];
    const Node& node = program_.nodes[root];
    if (node.is_live) {
      walk(root, false);
    } else if (!memory_.walked[r]) {
      walk(root, true);
    }
    memory_.walked[r] = true;
    verify(node);
    if (changed_) {
      uint64_t failed = 0;
      for (uint32_t i = root; i < node.end; i++) failed |= memory_.failed[i];
      memory_.root_failed[r] = failed;
      changed_ = false;
    }
    applying &= ~memory_.root_failed[r];
  }
  for (const Relation& relation : program_.relations) {
    if (relation.form != Form::Modes && (applying & relation.entry) && !holds(relation, modes)) {
      applying &= ~relation.entry;
    }
  }
  return applying;
}

std::vector<uint32_t> Evaluation::witnesses(const Modes& modes) const {
  std::vector<uint32_t> depth(program_.nodes.size());
  std::array<uint32_t, kMaxEntries> best;
  best.fill(kNone);
  uint64_t left = fitting(modes), found = 0;
  // The run ended at the root that ruled out the last entry: what is remembered of later roots is of an earlier run.
  for (size_t r = 0; r < program_.roots.size() && (left & ~found) != 0; r++) {
    uint32_t root = program_.roots[r];
    for (uint32_t i = root; i < program_.nodes[root].end; i++) {
      depth[i] = i == root ? 0 : depth[program_.nodes[i].base] + 1;
      for (uint64_t failed = memory_.failed[i] & left; failed != 0; failed &= failed - 1) {
        auto entry = static_cast<size_t>(__builtin_ctzll(failed));
        if (best[entry] == kNone || depth[i] < depth[best[entry]]) best[entry] = i;
        found |= uint64_t{1} << entry;
      }
    }
  }
  if ((left & ~found) != 0) return {};
  std::vector<uint32_t> nodes;
  for (; left != 0; left &= left - 1) nodes.push_back(best[static_cast<size_t>(__builtin_ctzll(left))]);
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  return nodes;
}

PyObject* Evaluation::follow(uint32_t index) {
  const Node& node = program_.nodes[index];
  PyObject* base = node.base == kNone ? nullptr : follow(node.base);
  if (node.base != kNone && base == nullptr) return nullptr;
  return step(node, [&](uint32_t other) { return other == node.base ? base : follow(other); });
}

bool Evaluation::are_ruled_out(const std::vector<uint32_t>& nodes, const Modes& modes) {
  uint64_t left = fitting(modes);
  for (size_t n = 0; n < nodes.size() && left != 0; n++) {
    const Node& node = program_.nodes[nodes[n]];
    PyObject* value = follow(nodes[n]);
    if (value == nullptr) {
      left &= ~node.required;
      continue;
    }
    for (uint32_t i = node.checks_begin; i < node.checks_end; i++) {
      const Check& check = program_.checks[i];
      if ((check.entries & left) != 0 && !row_of(check).test(check, value)) left &= ~check.entries;
    }
  }
  return left == 0;
}

void Evaluation::walk_all() {
  for (uint32_t root : program_.roots) walk(root, !program_.nodes[root].is_live);
}

bool Evaluation::holds(const Relation& relation, const Modes& modes) const {
  PyObject* value = relation.node == kNone ? nullptr : memory_.values[relation.node];
  switch (relation.form) {  // each form of a relation is that of one kind
    case Form::Modes: return *relation.modes == modes;
    case Form::Path: return value != nullptr && value == memory_.values[relation.operands[0].node];
    case Form::Other: return value != nullptr && value != memory_.values[relation.operands[0].node];
    case Form::Sides: return sides_hold(relation);
    default: return storage_holds(relation);
  }
}

std::optional<Difference> Evaluation::explain_failure(const Relation& relation, const Modes& modes) const {
  if (holds(relation, modes)) return std::nullopt;
  const CheckRow& row = row_of(relation.kind);
  if (relation.form == Form::Modes) return modes_difference(*relation.modes, modes);
  return Difference{row.expectation({}), row.finding({}, nullptr), ""};
}

// Of many objects: an optimizer's step has thousands.
bool Evaluation::sides_hold(const Relation& relation) const {
  c10::SmallVector<PyObject*, 16> first;
  for (const auto& operand : relation.operands) {
    if (operand.group == 0) continue;
    PyObject* value = memory_.values[operand.node];
    if (value == nullptr) return false;
    first.push_back(value);
  }
  std::sort(first.begin(), first.end(), std::less<>());
  if (std::adjacent_find(first.begin(), first.end()) != first.end()) return false;
  return std::none_of(relation.operands.begin(), relation.operands.end(), [&](const auto& operand) {
    return operand.group == 0 && std::binary_search(first.begin(), first.end(), memory_.values[operand.node], std::less<>());
  });
}

bool Evaluation::storage_holds(const Relation& relation) const {
  struct Place {
    long group;
    TensorMemory memory;
  };
  c10::SmallVector<Place, 8> places;
  places.reserve(relation.operands.size());
  for (const auto& operand : relation.operands) {
    PyObject* value = memory_.values[operand.node];
    Place place{operand.group, {}};
    if (value == nullptr || !tensor_memory(value, place.memory)) return false;
    if (operand.offset != kAnyOffset && operand.offset != place.memory.offset) return false;
    places.push_back(place);
  }
  // Same group: same storage. Different groups: different storages at different addresses.
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.group < b.group; });
  c10::SmallVector<const void*, 8> storages, addresses;
  for (size_t i = 0; i < places.size(); i++) {
    if (i > 0 && places[i].group == places[i - 1].group) {
      if (places[i].memory.storage != places[i - 1].memory.storage) return false;
      continue;
    }
    storages.push_back(places[i].memory.storage);
    if (places[i].memory.data != nullptr) addresses.push_back(places[i].memory.data);
  }
  for (auto* pointers : {&storages, &addresses}) {
    std::sort(pointers->begin(), pointers->end());
    if (std::adjacent_find(pointers->begin(), pointers->end()) != pointers->end()) return false;
  }
  return true;
}

}  // namespace capture
