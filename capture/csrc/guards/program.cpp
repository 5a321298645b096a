#include "guards/program.h"

#include <algorithm>
#include <unordered_map>

namespace capture {
namespace {

// The tree before it is flattened.
struct Draft {
  const EntrySpec::Node* spec;
  uint32_t base;
  std::vector<uint32_t> operands;
  std::vector<uint32_t> children;
  std::vector<Check> checks;
  uint64_t required = 0;
  uint32_t position = kNone;  // in the flattened tree
};

bool keys_match(Step step, PyObject* left, PyObject* right) {
  if (left == right) return true;
  if (left == nullptr || right == nullptr) return false;
  if (step == Step::Constant || step == Step::Computed) return referent(left) == referent(right);
  // By value for what is compared by value anyway; all others merely fail to be shared.
  return is_scalar(left) && same(left, right);
}

size_t hash_of_key(PyObject* key) {
  if (key == nullptr) return 0;
  if (PyUnicode_CheckExact(key) || PyLong_CheckExact(key)) return static_cast<size_t>(PyObject_Hash(key));
  return reinterpret_cast<uintptr_t>(Py_TYPE(key));
}

class Builder {
 public:
  Program build(const std::vector<const EntrySpec*>& entries) {
    program_.all_entries = entries.size() == kMaxEntries ? ~uint64_t{0} : (uint64_t{1} << entries.size()) - 1;
    for (size_t i = 0; i < entries.size(); i++) add_entry(*entries[i], uint64_t{1} << i);
    for (uint32_t root : roots_) flatten(root, kNone);
    for (auto& nodes : program_.node_of) translate(nodes);
    for (auto& nodes : program_.lifted) translate(nodes);
    for (auto& losses : program_.losses) {
      for (Loss& loss : losses) {
        loss.node = drafts_[loss.node].position;
        loss.key_node = drafts_[loss.key_node].position;
      }
    }
    for (Node& node : program_.nodes) {
      for (uint32_t i = node.operands_begin; i < node.operands_end; i++) {
        program_.operands[i] = drafts_[program_.operands[i]].position;
      }
    }
    for (Relation& relation : program_.relations) {
      if (relation.node != kNone) relation.node = drafts_[relation.node].position;
      for (auto& operand : relation.operands) operand.node = drafts_[operand.node].position;
    }
    return std::move(program_);
  }

 private:
  void translate(std::vector<uint32_t>& nodes) const {
    for (uint32_t& node : nodes) node = drafts_[node].position;
  }

  void add_entry(const EntrySpec& spec, uint64_t bit) {
    std::vector<uint32_t> draft_of;
    draft_of.reserve(spec.nodes.size());
    for (const EntrySpec::Node& node : spec.nodes) {
      std::vector<uint32_t> operands;
      for (uint32_t operand : node.operands) operands.push_back(draft_of[operand]);
      draft_of.push_back(find_or_add(node, node.base == kNone ? kNone : draft_of[node.base], std::move(operands)));
    }
    for (const EntrySpec::Check& check : spec.checks) add_check(check, bit, draft_of);
    std::vector<uint32_t> lifted;
    for (uint32_t node : spec.lifted) {
      lifted.push_back(draft_of[node]);
      require(draft_of[node], bit);
    }
    std::vector<Loss> losses = spec.losses;
    for (Loss& loss : losses) {
      loss.node = draft_of[loss.node];
      loss.key_node = draft_of[loss.key_node];
      require(loss.node, bit);
      require(loss.key_node, bit);
    }
    program_.losses.push_back(std::move(losses));
    program_.lifted.push_back(std::move(lifted));
    program_.node_of.push_back(std::move(draft_of));
  }

  uint32_t find_or_add(const EntrySpec::Node& spec, uint32_t base, std::vector<uint32_t> operands) {
    size_t hash = hash_of_key(referent_or_null(spec.key.get())) * 31 + base * 1000003u + static_cast<size_t>(spec.step);
    auto [begin, end] = by_hash_.equal_range(hash);
    for (auto it = begin; it != end; ++it) {
      const Draft& draft = drafts_[it->second];
      if (draft.base == base && draft.spec->step == spec.step && draft.operands == operands &&
          keys_match(spec.step, draft.spec->key.get(), spec.key.get())) {
        return it->second;
      }
    }
    auto index = static_cast<uint32_t>(drafts_.size());
    drafts_.push_back({.spec = &spec, .base = base, .operands = std::move(operands), .children = {}, .checks = {}});
    by_hash_.emplace(hash, index);
    (base == kNone ? roots_ : drafts_[base].children).push_back(index);
    return index;
  }

  static PyObject* referent_or_null(PyObject* key) { return key == nullptr ? nullptr : referent(key); }

  void require(uint32_t index, uint64_t bit) {
    for (; index != kNone; index = drafts_[index].base) {
      Draft& draft = drafts_[index];
      if (draft.required & bit) return;
      draft.required |= bit;
      for (uint32_t operand : draft.operands) require(operand, bit);
    }
  }

  void add_check(const EntrySpec::Check& spec, uint64_t bit, const std::vector<uint32_t>& draft_of) {
    uint32_t node = spec.node == kNone ? kNone : draft_of[spec.node];
    if (const Form form = row_of(spec.kind).form; is_relation(form)) {
      Relation relation{spec.kind, form, bit, node, modes_from_python(spec.expected.get()), spec.operands};
      if (node != kNone) require(node, bit);
      for (auto& operand : relation.operands) {
        operand.node = draft_of[operand.node];
        const bool differs_unreached = form == Form::Other || (form == Form::Sides && operand.group == 0);
        if (!differs_unreached) require(operand.node, bit);
      }
      program_.relations.push_back(std::move(relation));
      return;
    }
    require(node, bit);
    Check check = make_check(spec.kind, node, bit, spec.expected.get(), spec.hash);
    for (Check& other : drafts_[node].checks) {
      if (other.kind == check.kind && expects_the_same(other, check)) {
        other.entries |= bit;
        return;
      }
    }
    drafts_[node].checks.push_back(check);
  }

  void flatten(uint32_t index, uint32_t base) {
    Draft& draft = drafts_[index];
    auto position = static_cast<uint32_t>(program_.nodes.size());
    draft.position = position;
    if (base == kNone) program_.roots.push_back(position);
    program_.nodes.push_back(make_node(draft, position, base));
    for (uint32_t child : drafts_[index].children) flatten(child, position);
    program_.nodes[position].end = static_cast<uint32_t>(program_.nodes.size());
  }

  Node make_node(const Draft& draft, uint32_t position, uint32_t base) {
    const EntrySpec::Node& spec = *draft.spec;
    Node node{};
    node.step = spec.step;
    node.base = base;
    node.required = draft.required;
    node.key = referent_or_null(spec.key.get());
    node.index = kNoIndex;
    if (spec.step == Step::Local) node.index = PyLong_AsSsize_t(spec.key.get());
    if (spec.step == Step::Item) {
      node.hash = spec.hash;
      if (PyLong_Check(spec.key.get())) {
        node.index = PyLong_AsSsize_t(spec.key.get());
        if (node.index == -1 && PyErr_Occurred()) {  // too large for any sequence
          PyErr_Clear();
          node.index = kNoIndex;
        }
      }
    }
    node.operands_begin = static_cast<uint32_t>(program_.operands.size());
    program_.operands.insert(program_.operands.end(), draft.operands.begin(), draft.operands.end());
    node.operands_end = static_cast<uint32_t>(program_.operands.size());

    for (uint32_t child : draft.children) {
      Step step = drafts_[child].spec->step;
      if (step == Step::Item) node.has_items = node.watches_dict = true;
      if (step == Step::TypeAttr) node.watches_type = true;
      bool reads_state = step == Step::InstanceDict || step == Step::Item;
      if (reads_state && spec.step == Step::Local && program_.instance_root == kNone) program_.instance_root = position;
    }
    node.is_live = spec.step == Step::Local || spec.step == Step::Function || spec.step == Step::ImportedModule ||
                   spec.step == Step::Computed;

    node.checks_begin = static_cast<uint32_t>(program_.checks.size());
    for (Check check : draft.checks) {
      check.node = position;
      if (check.watched == Watched::Keys || check.watched == Watched::Order) node.watches_dict = true;
      if (check.watched == Watched::Class) node.watches_type = true;
      program_.checks.push_back(check);
    }
    node.checks_end = static_cast<uint32_t>(program_.checks.size());
    node.only_identity = spec.step == Step::Attr && draft.children.empty() &&
                         std::all_of(draft.checks.begin(), draft.checks.end(),
                                     [](const Check& check) { return check.watched == Watched::Identity; });

    uint32_t watches = has_watch(node.step) + node.watches_dict + node.watches_type;
    for (const Check& check : draft.checks) watches += has_watch(check.watched);
    node.watch_begin = static_cast<uint32_t>(program_.watch_owner.size());
    program_.watch_owner.insert(program_.watch_owner.end(), watches, position);
    node.watch_end = static_cast<uint32_t>(program_.watch_owner.size());
    node.tensor_begin = static_cast<uint32_t>(program_.tensor_owner.size());
    for (const Check& check : draft.checks) {
      if (check.watched == Watched::Tensor) program_.tensor_owner.push_back(position);
    }
    node.tensor_end = static_cast<uint32_t>(program_.tensor_owner.size());
    return node;
  }

  Program program_;
  std::vector<Draft> drafts_;
  std::vector<uint32_t> roots_;
  std::unordered_multimap<size_t, uint32_t> by_hash_;
};

uint32_t parse_index(PyObject* object, size_t count, bool allow_none) {
  long index = PyLong_AsLong(object);
  if (index == -1 && PyErr_Occurred()) throw PythonError{};
  if (index == -1 && allow_none) return kNone;
  if (index < 0 || static_cast<size_t>(index) >= count) {
    PyErr_Format(PyExc_IndexError, "node %ld is not among the %zu before it", index, count);
    throw PythonError{};
  }
  return static_cast<uint32_t>(index);
}

// The items of a tuple of length `size`.
PyObject* const* parse_tuple(PyObject* object, Py_ssize_t size, const char* what) {
  if (!PyTuple_CheckExact(object) || (size >= 0 && PyTuple_GET_SIZE(object) != size)) {
    PyErr_Format(PyExc_TypeError, "%s must be a tuple of the documented length, not %R", what, object);
    throw PythonError{};
  }
  return &PyTuple_GET_ITEM(object, 0);
}

std::vector<PyObject*> parse_list(PyObject* object, const char* what) {
  if (!PyList_CheckExact(object)) {
    PyErr_Format(PyExc_TypeError, "%s must be a list, not %.200s", what, Py_TYPE(object)->tp_name);
    throw PythonError{};
  }
  std::vector<PyObject*> items;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object); i++) items.push_back(PyList_GET_ITEM(object, i));
  return items;
}

EntrySpec::Node parse_node(PyObject* object, size_t count) {
  PyObject* const* fields = parse_tuple(object, 3, "a node");
  EntrySpec::Node node;
  node.base = parse_index(fields[0], count, true);
  long step = PyLong_AsLong(fields[1]);
  if (step < 0 || step > static_cast<long>(Step::Computed)) {
    PyErr_Format(PyExc_ValueError, "unknown step %R", fields[1]);
    throw PythonError{};
  }
  node.step = static_cast<Step>(step);
  PyObject* key = fields[2];
  if (node.step == Step::Computed) {
    PyObject* const* parts = parse_tuple(key, 2, "the key of Computed");
    key = parts[0];
    PyObject* const* operands = parse_tuple(parts[1], -1, "the operands of Computed");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts[1]); i++) {
      node.operands.push_back(parse_index(operands[i], count, false));
    }
  }
  bool named = node.step == Step::Attr || node.step == Step::TypeAttr || node.step == Step::ImportedModule;
  if ((named && !PyUnicode_CheckExact(key)) || (node.step == Step::Local && !PyLong_CheckExact(key))) {
    PyErr_Format(PyExc_TypeError, "%s cannot have key %R", kStepNames[step], key);
    throw PythonError{};
  }
  node.key = Ref::borrow(key);
  if (node.step == Step::Item) node.hash = hash_key(key);
  if (named) {  // steps compare names by identity
    PyObject* name = node.key.release();
    PyUnicode_InternInPlace(&name);
    node.key = Ref::steal(name);
  }
  return node;
}

EntrySpec::Check parse_check(PyObject* object, size_t count) {
  PyObject* const* fields = parse_tuple(object, 3, "a check");
  EntrySpec::Check check;
  long kind = PyLong_AsLong(fields[1]);
  if (kind < 0 || kind >= static_cast<long>(kCheckKinds)) {
    PyErr_Format(PyExc_ValueError, "unknown kind %R", fields[1]);
    throw PythonError{};
  }
  check.kind = static_cast<Kind>(kind);
  const CheckRow& row = row_of(check.kind);
  bool nodeless = row.form == Form::Modes || row.form == Form::Places;
  check.node = parse_index(fields[0], count, nodeless);
  PyObject* expected = fields[2];
  if (row.form == Form::Path || row.form == Form::Other) {
    check.operands.push_back({parse_index(expected, count, false), 0, 0});
  } else if (row.form == Form::Sides) {
    PyObject* const* items = parse_tuple(expected, -1, "sides");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(expected); i++) {
      PyObject* const* parts = parse_tuple(items[i], 2, "an object of a side");
      check.operands.push_back({parse_index(parts[0], count, false), parts[1] == Py_True, 0});
    }
  } else if (row.form == Form::Places) {
    PyObject* const* items = parse_tuple(expected, -1, "places");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(expected); i++) {
      PyObject* const* parts = parse_tuple(items[i], 3, "a place");
      int64_t offset = parts[2] == Py_None ? kAnyOffset : PyLong_AsLongLong(parts[2]);
      check.operands.push_back({parse_index(parts[0], count, false), PyLong_AsLong(parts[1]), offset});
      if (PyErr_Occurred()) throw PythonError{};
    }
  } else if (row.form == Form::Modes && modes_from_python(expected) == nullptr) {
    PyErr_Format(PyExc_TypeError, "a %s guard expects a Modes, not %.200s", row.name, Py_TYPE(expected)->tp_name);
    throw PythonError{};
  }
  check.expected = Ref::borrow(expected);
  if (row.form == Form::Key) check.hash = hash_key(referent(expected));
  return check;
}

}  // namespace

int EntrySpec::traverse(visitproc visit, void* arg) const {
  for (const Node& node : nodes) Py_VISIT(node.key.get());
  for (const Check& check : checks) Py_VISIT(check.expected.get());
  for (const Ref& key : loss_keys) Py_VISIT(key.get());
  return 0;
}

EntrySpec parse_entry(PyObject* nodes, PyObject* checks, PyObject* lifted, PyObject* losses) {
  EntrySpec spec;
  for (PyObject* node : parse_list(nodes, "nodes")) spec.nodes.push_back(parse_node(node, spec.nodes.size()));
  for (PyObject* check : parse_list(checks, "checks")) spec.checks.push_back(parse_check(check, spec.nodes.size()));
  for (PyObject* node : parse_list(lifted, "lifted")) spec.lifted.push_back(parse_index(node, spec.nodes.size(), false));
  for (PyObject* loss : parse_list(losses, "losses")) {
    PyObject* const* parts = parse_tuple(loss, 3, "a loss");
    spec.loss_keys.push_back(Ref::borrow(parts[2]));
    spec.losses.push_back(make_loss(parse_index(parts[0], spec.nodes.size(), false), parts[1], spec.loss_keys.back(), spec.nodes.size()));
  }
  return spec;
}

Program build_program(const std::vector<const EntrySpec*>& entries) { return Builder().build(entries); }

}  // namespace capture
