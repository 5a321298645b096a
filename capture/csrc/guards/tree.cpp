#include "guards/tree.h"

#include <algorithm>
#include <tuple>

#include "guards/checks.h"

namespace capture {

namespace {

uint64_t changes = 0;  // of the entries of all trees

}  // namespace

uint64_t guard_tree_changes() { return changes; }

void Tree::add(EntryObject* entry, EntrySpec spec) {
  changes++;
  if (entry->tree != nullptr) {
    PyErr_SetString(PyExc_ValueError, "the entry already is in a tree");
    throw PythonError{};
  }
  discard_dead();
  if (rows_.size() >= kMaxEntries) {
    PyErr_Format(PyExc_ValueError, "a guard tree holds at most %zu entries; remove some, or run natively", kMaxEntries);
    throw PythonError{};
  }
  rows_.push_back({Ref::borrow(reinterpret_cast<PyObject*>(entry)), std::move(spec)});
  if (!in_use_) {
    program_.reset();
    order();  // the new entry stays the last of those that were not hit either
    try {
      refresh();
    } catch (...) {
      std::erase_if(rows_, [&](const Row& row) { return row.object() == entry; });
      throw;
    }
  }
  entry->tree = this;
}

bool Tree::refers_to_the_dead(const EntrySpec& spec) {
  auto dead = [](PyObject* object) {
    return object != nullptr && PyWeakref_CheckRefExact(object) && referent_of(object) == Py_None;
  };
  return std::any_of(spec.nodes.begin(), spec.nodes.end(), [&](const auto& node) { return dead(node.key.get()); }) ||
         std::any_of(spec.checks.begin(), spec.checks.end(), [&](const auto& c) { return dead(c.expected.get()); });
}

// Where several entries apply, the one that was used most is taken, and one that is superseded only if no other is. The
// order changes only when the program is built anew.
void Tree::order() {
  std::stable_sort(rows_.begin(), rows_.end(), [](const Row& a, const Row& b) {
    return std::tuple(a.object()->superseded, b.object()->hits) < std::tuple(b.object()->superseded, a.object()->hits);
  });
}

void Tree::reorder() {
  if (in_use_) return;  // then with the next entry that is added
  program_.reset();
  order();
}

// Removes dead entries, unless an evaluation is using them.
void Tree::discard_dead() {
  if (in_use_ || !has_dead_) return;
  changes++;
  has_dead_ = false;
  auto alive = [](const Row& row) { return row.object()->alive; };
  program_.reset();
  memories_.clear();
  witnesses_.clear();
  std::vector<Row> dead;
  auto middle = std::stable_partition(rows_.begin(), rows_.end(), alive);
  std::move(middle, rows_.end(), std::back_inserter(dead));
  rows_.erase(middle, rows_.end());
  for (const Row& row : dead) row.object()->tree = nullptr;
  // `dead` is released last: that may run code which comes back here.
}

// Has the program built, if it is not current; nothing that an entry depends on is dead then.
void Tree::refresh() {
  discard_dead();
  while (!is_current()) {
    for (const Row& row : rows_) {
      if (!refers_to_the_dead(row.spec)) continue;
      row.object()->alive = false;
      note_death();
    }
    discard_dead();
    memories_.clear();
    witnesses_.clear();
    last_memory_ = 0;
    std::vector<const EntrySpec*> specs;
    for (const Row& row : rows_) specs.push_back(&row.spec);
    {
      InUse in_use(*this);
      program_ = std::make_unique<Program>(build_program(specs));
    }
    discard_dead();
  }
}

Memory& Tree::memory_for(const Arguments& arguments) {
  PyObject* instance = nullptr;
  if (program_->instance_root != kNone) {
    auto index = static_cast<size_t>(program_->nodes[program_->instance_root].index);
    if (index < arguments.count) instance = arguments.locals[index];
  }
  if (last_memory_ < memories_.size() && memories_[last_memory_]->instance == instance) return *memories_[last_memory_];
  for (size_t i = 0; i < memories_.size(); i++) {
    if (memories_[i]->instance != instance) continue;
    last_memory_ = i;
    return *memories_[i];
  }
  if (memories_.size() < kMaxMemories) {
    last_memory_ = memories_.size();
    memories_.push_back(std::make_unique<Memory>(*program_));
  } else {
    last_memory_ = (last_memory_ + 1) % kMaxMemories;
    *memories_[last_memory_] = Memory(*program_);
  }
  memories_[last_memory_]->instance = instance;
  return *memories_[last_memory_];
}

Match Tree::match(const Arguments& arguments, const Modes& modes) {
  if (in_use_) return {};  // called by code that runs inside of an evaluation: no entry can be trusted there
  discard_dead();
  if (rows_.empty()) return {};
  refresh();
  Match match;
  Memory& memory = memory_for(arguments);
  Evaluation evaluation(*program_, memory, arguments);  // released after the match holds what it found
  InUse in_use(*this);
  // Calls that no entry fits mostly come one after the other, for the same reason: what ruled all entries out last is asked first.
  if (!witnesses_.empty() && evaluation.are_ruled_out(witnesses_, modes)) return match;
  try {
    uint64_t applying = evaluation.run(modes);
    witnesses_.clear();
    if (applying == 0) {
      witnesses_ = evaluation.witnesses(modes);
      return match;
    }
    auto first = static_cast<size_t>(__builtin_ctzll(applying));
    match.entry = rows_[first].entry;
    const std::vector<Loss>& losses = program_->losses[first];
    if (!losses.empty() && may_run_code(losses, memory.values, evaluation.owned())) {
      match.natively = true;
      return match;
    }
    const std::vector<uint32_t>& lifted = program_->lifted[first];
    if (!lifted.empty()) {
      match.lifted = Ref::steal(checked(PyTuple_New(static_cast<Py_ssize_t>(lifted.size()))));
      for (size_t i = 0; i < lifted.size(); i++) {
        PyTuple_SET_ITEM(match.lifted.get(), static_cast<Py_ssize_t>(i), Py_NewRef(memory.values[lifted[i]]));
      }
    }
  } catch (...) {
    memory = Memory(*program_);
    throw;
  }
  return match;
}

// The first check of a row behind `which` that fails, whose place `which` becomes; nothing when there is none. -1: none yet, and no
// check, but a value that is missing.
std::optional<Difference> Tree::failure(const Row& row, size_t index, const Evaluation& evaluation, const Memory& memory,
                                        const Modes& modes, long& which) const {
  const std::vector<uint32_t>& node_of = program_->node_of[index];
  for (which++; which < static_cast<long>(row.spec.checks.size()); which++) {
    const EntrySpec::Check& spec = row.spec.checks[static_cast<size_t>(which)];
    uint32_t node = spec.node == kNone ? kNone : node_of[spec.node];
    if (const Form form = row_of(spec.kind).form; is_relation(form)) {
      Relation relation{spec.kind, form, 0, node, modes_from_python(spec.expected.get()), spec.operands};
      for (auto& operand : relation.operands) operand.node = node_of[operand.node];
      if (auto why = evaluation.explain_failure(relation, modes)) return why;
    } else {
      Check check = make_check(spec.kind, node, 0, spec.expected.get(), spec.hash);
      PyObject* value = memory.values[node];
      if (value == nullptr) return Difference{row_of(check).expectation(check), "nothing there", ""};
      if (auto why = explain_failure(check, value)) return why;
    }
  }
  which = -1;
  for (uint32_t node : program_->lifted[index]) {
    if (memory.values[node] == nullptr) return Difference{"a value to pass along", "nothing there", ""};
  }
  return std::nullopt;
}

PyObject* Tree::explain(const Arguments& arguments, bool every) {
  Ref reasons = Ref::steal(checked(PyList_New(0)));
  if (in_use_) return reasons.release();
  refresh();
  Memory memory(*program_);
  Modes modes = Modes::current();
  Evaluation evaluation(*program_, memory, arguments);
  InUse in_use(*this);
  evaluation.walk_all();
  for (size_t i = 0; i < rows_.size(); i++) {
    long which = -1;
    do {
      std::optional<Difference> why = failure(rows_[i], i, evaluation, memory, modes, which);
      if (!why) break;
      Ref reason = Ref::steal(checked(Py_BuildValue("(Olssss)", rows_[i].entry.get(), which, why->subject.c_str(),
                                                    why->expected.c_str(), why->found.c_str(), why->aspect.c_str())));
      checked(PyList_Append(reasons.get(), reason.get()));
    } while (every && which >= 0);
  }
  return reasons.release();
}

PyObject* Tree::entries() const {
  Ref list = Ref::steal(checked(PyList_New(0)));
  for (const Row& row : rows_) {
    if (row.object()->alive) checked(PyList_Append(list.get(), row.entry.get()));
  }
  return list.release();
}

void Tree::discard(EntryObject* entry) {
  entry->alive = false;
  note_death();
  discard_dead();
}

void Tree::clear() {
  for (const Row& row : rows_) row.object()->alive = false;
  note_death();
  discard_dead();
}

int Tree::traverse(visitproc visit, void* arg) const {
  for (const Row& row : rows_) {
    Py_VISIT(row.entry.get());
    if (int result = row.spec.traverse(visit, arg)) return result;
  }
  return 0;
}

}  // namespace capture
