#include "guards/guard_tree.h"

#include <structmember.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <new>
#include <optional>
#include <tuple>
#include <vector>

#include "guards/checks.h"
#include "guards/evaluation.h"
#include "guards/program.h"

namespace capture {

// The entries of one code object.
class Tree {
 public:
  Tree() = default;
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;
  ~Tree() { clear(); }

  // Throws PythonError; then the tree is as before.
  void add(EntryObject* entry, EntrySpec spec);
  Match match(const Arguments& arguments, const Modes& modes);
  // List of (entry, index of the first check that fails or -1 for a lifted value, subject, expected, found).
  PyObject* explain(const Arguments& arguments, bool every);
  PyObject* entries() const;
  void discard(EntryObject* entry);
  void reorder();
  void note_death() { has_dead_ = true; }
  void clear();
  int traverse(visitproc visit, void* arg) const;

 private:
  struct Row {
    Ref entry;
    EntrySpec spec;
    EntryObject* object() const { return reinterpret_cast<EntryObject*>(entry.get()); }
  };
  // Marks the tree as in use, so that what it evaluates is not rebuilt meanwhile.
  struct InUse {
    explicit InUse(Tree& tree) : tree(tree) { tree.in_use_ = true; }
    ~InUse() { tree.in_use_ = false; }
    Tree& tree;
  };

  // Whether the program is that of the rows: one that is added while they are in use is not in it yet.
  bool is_current() const { return program_ != nullptr && program_->lifted.size() == rows_.size(); }
  static bool refers_to_the_dead(const EntrySpec& spec);
  void order();
  void discard_dead();
  void refresh();
  Memory& memory_for(const Arguments& arguments);
  std::optional<Difference> failure(const Row& row, size_t index, const Evaluation& evaluation, const Memory& memory,
                                    const Modes& modes, long& which) const;

  static constexpr size_t kMaxMemories = 32;

  std::deque<Row> rows_;  // which stay where they are while others are added
  std::unique_ptr<Program> program_;  // nullptr: to be built
  std::vector<std::unique_ptr<Memory>> memories_;
  size_t last_memory_ = 0;
  std::vector<uint32_t> witnesses_;  // nodes that ruled out all entries for the last call; none: an entry applied to it
  bool in_use_ = false;
  bool has_dead_ = false;  // some entry is not alive, and still here
};

uint64_t changes = 0;  // of the entries of all trees

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

namespace {

PyTypeObject* tree_type = nullptr;
PyTypeObject* entry_type = nullptr;

struct TreeObject {
  PyObject_HEAD
  Tree tree;
};

Tree& tree_of(PyObject* object) { return reinterpret_cast<TreeObject*>(object)->tree; }
EntryObject* entry_of(PyObject* object) { return reinterpret_cast<EntryObject*>(object); }

// Runs `body`; C++ exceptions become Python's.
template <class Body>
PyObject* guarded(Body body) {
  try {
    return body();
  } catch (PythonError&) {
  } catch (std::exception& error) {
    PyErr_Format(PyExc_RuntimeError, "capture: %s", error.what());
  }
  return nullptr;
}

PyObject* tree_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self != nullptr) new (&tree_of(self)) Tree;
  return self;
}

int tree_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return tree_of(self).traverse(visit, arg);
}

int tree_tp_clear(PyObject* self) {
  tree_of(self).clear();
  return 0;
}

void tree_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  tree_of(self).~Tree();
  type->tp_free(self);
  Py_DECREF(type);
}

bool require_entry(PyObject* object) {
  if (PyObject_TypeCheck(object, entry_type)) return true;
  PyErr_Format(PyExc_TypeError, "a CacheEntry is needed, not %.200s", Py_TYPE(object)->tp_name);
  return false;
}

PyObject* tree_add(PyObject* self, PyObject* args) {
  PyObject *entry, *nodes, *checks, *lifted, *losses;
  if (!PyArg_ParseTuple(args, "OOOOO:add", &entry, &nodes, &checks, &lifted, &losses) || !require_entry(entry)) return nullptr;
  return guarded([&] {
    tree_of(self).add(entry_of(entry), parse_entry(nodes, checks, lifted, losses));
    return Py_NewRef(Py_None);
  });
}

PyObject* tree_remove(PyObject* self, PyObject* entry) {
  if (!require_entry(entry)) return nullptr;
  if (entry_of(entry)->tree != &tree_of(self)) {
    PyErr_SetString(PyExc_ValueError, "the entry is not in this tree");
    return nullptr;
  }
  tree_of(self).discard(entry_of(entry));
  Py_RETURN_NONE;
}

PyObject* tree_clear(PyObject* self, PyObject*) {
  tree_of(self).clear();
  Py_RETURN_NONE;
}

// Calls body(Arguments) for Python arguments (function, args: list or tuple).
template <class Body>
PyObject* with_arguments(PyObject* args, Body body) {
  PyObject *function, *values;
  if (!PyArg_ParseTuple(args, "OO", &function, &values)) return nullptr;
  Ref tuple = Ref::steal(PySequence_Tuple(values));
  if (!tuple) return nullptr;
  return guarded([&] {
    return body(Arguments{function, &PyTuple_GET_ITEM(tuple.get(), 0), static_cast<size_t>(Py_SIZE(tuple.get()))});
  });
}

PyObject* tree_check(PyObject* self, PyObject* args) {
  return with_arguments(args, [&](const Arguments& arguments) {
    Match match = tree_of(self).match(arguments, Modes::current());
    return match.entry ? match.entry.release() : Py_NewRef(Py_None);
  });
}

PyObject* tree_explain(PyObject* self, PyObject* args) {
  return with_arguments(args, [&](const Arguments& arguments) { return tree_of(self).explain(arguments, false); });
}

PyObject* tree_explain_all(PyObject* self, PyObject* args) {
  return with_arguments(args, [&](const Arguments& arguments) { return tree_of(self).explain(arguments, true); });
}

PyObject* tree_entries(PyObject* self, void*) {
  return guarded([&] { return tree_of(self).entries(); });
}

PyMethodDef tree_methods[] = {
    {"_add", tree_add, METH_VARARGS, "_add(entry, nodes, checks, lifted, losses): see capture/guards/tree.py."},
    {"_explain", tree_explain, METH_VARARGS,
     "_explain(function, args) -> [(entry, index of the check or -1, subject, expected, found, aspect)]"},
    {"_explain_all", tree_explain_all, METH_VARARGS, "_explain_all(function, args): the same, of every check that fails."},
    {"check", tree_check, METH_VARARGS, "check(function, args): the entry that applies to these arguments, or None."},
    {"remove", tree_remove, METH_O, "Removes an entry. ValueError when it is not in this tree."},
    {"clear", tree_clear, METH_NOARGS, "Removes all entries."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef tree_getters[] = {
    {"entries", tree_entries, nullptr, "The entries alive, in the order in which they are tried: by hits when the last was added, then by age; superseded ones last.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyObject* entry_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *mock, *payload;
  if (!PyArg_ParseTuple(args, "OO:CacheEntry", &mock, &payload)) return nullptr;
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  entry_of(self)->mock = Py_NewRef(mock);
  entry_of(self)->payload = Py_NewRef(payload);
  entry_of(self)->alive = true;
  return self;
}

int entry_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(entry_of(self)->mock);
  Py_VISIT(entry_of(self)->payload);
  Py_VISIT(entry_of(self)->dict);
  return 0;
}

int entry_clear(PyObject* self) {
  // A cleared entry must never be found again; its mock stays an object, for whoever is about to call it.
  PyObject* mock = std::exchange(entry_of(self)->mock, Py_NewRef(Py_None));
  entry_of(self)->alive = false;
  if (entry_of(self)->tree != nullptr) entry_of(self)->tree->note_death();
  Py_CLEAR(entry_of(self)->payload);
  Py_CLEAR(entry_of(self)->dict);
  Py_DECREF(mock);
  return 0;
}

void entry_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  if (entry_of(self)->weakrefs != nullptr) PyObject_ClearWeakRefs(self);
  Py_CLEAR(entry_of(self)->mock);
  Py_CLEAR(entry_of(self)->payload);
  Py_CLEAR(entry_of(self)->dict);
  type->tp_free(self);
  Py_DECREF(type);
}

// An object that the entry depends on has died.
PyObject* entry_kill(PyObject* self, PyObject*) {
  entry_of(self)->alive = false;
  if (Tree* tree = entry_of(self)->tree) tree->discard(entry_of(self));
  Py_RETURN_NONE;
}

PyObject* entry_supersede(PyObject* self, PyObject*) {
  entry_of(self)->superseded = true;
  if (Tree* tree = entry_of(self)->tree) tree->reorder();
  Py_RETURN_NONE;
}

PyMethodDef entry_methods[] = {
    {"_supersede", entry_supersede, METH_NOARGS, "Has it tried after all others: another one fits the calls that it fits."},
    {"_kill", entry_kill, METH_NOARGS, "Takes the entry out of service, and out of its tree."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef entry_members[] = {
    {"mock", T_OBJECT, offsetof(EntryObject, mock), 0, "What a hit calls; None: the frame runs natively."},
    {"payload", T_OBJECT, offsetof(EntryObject, payload), 0, "The pipeline's own."},
    {"hits", T_ULONGLONG, offsetof(EntryObject, hits), READONLY, "How often the entry was used."},
    {"ran_natively", T_ULONGLONG, offsetof(EntryObject, ran_natively), READONLY,
     "Calls that it fitted and that ran natively all the same: what a hit replaces might have run code as it dies."},
    {"samples", T_ULONGLONG, offsetof(EntryObject, samples), READONLY, "How many of the hits were timed."},
    {"guard_ns", T_ULONGLONG, offsetof(EntryObject, guard_ns), READONLY, "Nanoseconds of those: guards,"},
    {"graph_ns", T_ULONGLONG, offsetof(EntryObject, graph_ns), READONLY, "graph,"},
    {"mock_ns", T_ULONGLONG, offsetof(EntryObject, mock_ns), READONLY, "mock function without the graph."},
    {"superseded", T_BOOL, offsetof(EntryObject, superseded), READONLY, "Whether another entry fits all that it fits."},
    {"alive", T_BOOL, offsetof(EntryObject, alive), READONLY, "False once removed, or once an object it needs died."},
    {"__dictoffset__", T_PYSSIZET, offsetof(EntryObject, dict), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(EntryObject, weakrefs), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

template <size_t N>
Ref names_tuple(const char* const (&names)[N]) {
  Ref tuple = Ref::steal(checked(PyTuple_New(N)));
  for (size_t i = 0; i < N; i++) {
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), checked(PyUnicode_FromString(names[i])));
  }
  return tuple;
}

}  // namespace

Match guard_tree_match(PyObject* tree, PyObject* function, PyObject* const* arguments, size_t count,
                       const Modes& modes) {
  return tree_of(tree).match({function, arguments, count}, modes);
}

uint64_t guard_tree_changes() { return changes; }

bool is_guard_tree(PyObject* object) { return PyObject_TypeCheck(object, tree_type); }

void init_guard_tree(PyObject* module) {
  init_steps(module);
  static PyType_Slot tree_slots[] = {
      {Py_tp_doc, const_cast<char*>("The guarded entries of one code object; the base of capture.guards.tree.GuardTree.")},
      {Py_tp_new, reinterpret_cast<void*>(tree_new)},
      {Py_tp_dealloc, reinterpret_cast<void*>(tree_dealloc)},
      {Py_tp_traverse, reinterpret_cast<void*>(tree_traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(tree_tp_clear)},
      {Py_tp_methods, tree_methods},
      {Py_tp_getset, tree_getters},
      {0, nullptr},
  };
  static PyType_Spec tree_spec = {"capture._C.GuardTree", sizeof(TreeObject), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, tree_slots};
  tree_type = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&tree_spec)));
  checked(PyModule_AddType(module, tree_type));

  static PyType_Slot entry_slots[] = {
      {Py_tp_doc, const_cast<char*>("CacheEntry(mock, payload); the base of capture.guards.tree.CacheEntry.")},
      {Py_tp_new, reinterpret_cast<void*>(entry_new)},
      {Py_tp_dealloc, reinterpret_cast<void*>(entry_dealloc)},
      {Py_tp_traverse, reinterpret_cast<void*>(entry_traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(entry_clear)},
      {Py_tp_methods, entry_methods},
      {Py_tp_members, entry_members},
      {0, nullptr},
  };
  static PyType_Spec entry_spec = {"capture._C.CacheEntry", sizeof(EntryObject), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, entry_slots};
  entry_type = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&entry_spec)));
  checked(PyModule_AddType(module, entry_type));

  checked(PyModule_AddObjectRef(module, "STEPS", names_tuple(kStepNames).get()));
  Ref kinds = Ref::steal(checked(PyTuple_New(kCheckKinds)));
  for (size_t i = 0; i < kCheckKinds; i++) {
    const CheckRow& row = kCheckRows[i];
    PyObject* names = checked(Py_BuildValue("(ss)", row.name, kFormNames[static_cast<size_t>(row.form)]));
    PyTuple_SET_ITEM(kinds.get(), static_cast<Py_ssize_t>(i), names);
  }
  checked(PyModule_AddObjectRef(module, "KINDS", kinds.get()));
}

}  // namespace capture
