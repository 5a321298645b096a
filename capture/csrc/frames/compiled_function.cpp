#include "frames/compiled_function.h"

#include <c10/util/SmallVector.h>
#include <structmember.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "frames/code_cache.h"
#include "frames/frame_hook.h"
#include "frames/native_kinds.h"
#include "guards/call_kind.h"
#include "guards/guard_tree.h"
#include "guards/modes.h"
#include "frames/resumption.h"
#include "frames/stance.h"
#include "stopwatch.h"
#include "frames/tail_call.h"
#include "frames/trees.h"

namespace capture {
namespace {

PyObject* run_natively = nullptr;  // the singleton that on_miss returns
PyTypeObject* compiled_type = nullptr;
PyObject* plain_name = nullptr;    // the slot of a compiled module for what it stands for
unsigned int forks = 0;            // that led to this process

struct CompiledFunction {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* function;
  PyObject* on_miss;
  PyObject* on_error;
  PyObject* dict;
  PyObject* weakrefs;
  PyCodeObject* code;  // borrowed from function: the code object that `tree` is for
  PyObject* tree;      // borrowed from trees
  Trees* trees;
  uint64_t calls;  // that guards were evaluated for
  unsigned long long traced;  // calls that ran natively because lines are traced
  unsigned long long refused;  // … because there are too many entries for their kind
  unsigned long long deferred;  // … because captures of their kind were never hit
  NativeKinds* native_kinds;
  // Of the calls of a compiled module, NULL else: `current(module)` is asked what to call in the place of the function, or None, whenever
  // the class of the module, or of what it stands for, has changed. The answer, or NULL, and the classes that it holds for.
  PyObject* current;
  PyObject* instead;
  unsigned int version;
  PyTypeObject* plain_class;  // not owned, only compared
};

CompiledFunction* unpack(PyObject* object) { return reinterpret_cast<CompiledFunction*>(object); }

// Someone assigned `function.__code__`: guards of the old code say nothing about the new.
void switch_code(CompiledFunction* self, PyCodeObject* code) {
  PyObject* tree = code_cache_find(code, self->trees);
  if (tree == nullptr) {
    Ref fresh = Ref::steal(checked(
        PyObject_CallOneArg(reinterpret_cast<PyObject*>(Py_TYPE(self->tree)), reinterpret_cast<PyObject*>(code))));
    self->trees->add(code, fresh.get());
    tree = fresh.get();
  }
  self->code = code;
  self->tree = tree;
}

PyObject* call_mock(PyObject* mock, PyObject* const* arguments, size_t count, PyObject* lifted) {
  if (lifted == nullptr) return PyObject_Vectorcall(mock, arguments, count, nullptr);
  constexpr size_t kInline = 16;
  std::array<PyObject*, kInline> small;
  std::vector<PyObject*> large;
  PyObject** all = small.data();
  if (count + 1 > kInline) {
    large.resize(count + 1);
    all = large.data();
  }
  std::copy_n(arguments, count, all);
  all[count] = lifted;
  return PyObject_Vectorcall(mock, all, count + 1, nullptr);
}

// `arguments` go into a list, which the capture empties, so that they die when the program lets go of them; the frame gets them back
// if it is to run after all.
PyObject* call_on_miss(CompiledFunction* self, PyObject* function, PyObject** arguments, size_t count) {
  Ref list = Ref::steal(checked(PyList_New(static_cast<Py_ssize_t>(count))));
  for (size_t i = 0; i < count; i++) {
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), std::exchange(arguments[i], Py_NewRef(Py_None)));
  }
  Ref tree = Ref::borrow(self->tree);  // may be exchanged meanwhile
  Ref on_miss = Ref::borrow(self->on_miss);
  PyObject* result = PyObject_CallFunctionObjArgs(on_miss.get(), function, list.get(), tree.get(), nullptr);
  if (result == nullptr) {  // the program's exception: on_miss itself is not part of its traceback
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    Ref own = Ref::steal(traceback);
    PyObject* rest = traceback == nullptr ? nullptr
                                          : reinterpret_cast<PyObject*>(
                                                reinterpret_cast<PyTracebackObject*>(traceback)->tb_next);
    PyErr_Restore(type, value, Py_XNewRef(rest));
  }
  if (result == run_natively) {
    for (size_t i = 0; i < count; i++) {
      Ref placeholder = Ref::steal(std::exchange(arguments[i], Py_NewRef(PyList_GET_ITEM(list.get(), static_cast<Py_ssize_t>(i)))));
    }
  }
  return checked(result);
}

// A mock function raised. The result of on_error, with the error indicator clear, or NULL with the exception as on_error
// left it.
PyObject* call_on_error(CompiledFunction* self, PyObject* entry) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(value, traceback);
  Ref owned_type = Ref::steal(type), owned_value = Ref::steal(value), owned_traceback = Ref::steal(traceback);
  Ref on_error = Ref::borrow(self->on_error);
  Ref answer = Ref::steal(checked(PyObject_CallFunctionObjArgs(on_error.get(), entry, value, nullptr)));
  if (answer.get() == run_natively) return answer.release();
  PyErr_Restore(owned_type.release(), owned_value.release(), PyException_GetTraceback(value));
  return nullptr;
}

// Whether a call that no entry fits runs natively, as calls of its kind do by now.
bool is_refused(CompiledFunction* self, PyObject* const* arguments, size_t count, const Modes& modes) {
  if (self->native_kinds->empty() || !stance_is_default()) return false;
  Asks asks = self->native_kinds->count(call_kind(arguments, count, modes));
  self->refused += asks == Asks::Never;
  self->deferred += asks == Asks::Later;
  return asks != Asks::Python;
}

// How a call goes on once the guards were asked.
enum class Way { Done, Miss, Native };

struct Outcome {
  Way way;
  PyObject* result = nullptr;  // Done: NULL with an error
};

// Asks the guards about a call, whose arguments are those of its frame, and does what a hit does.
Outcome look_up(CompiledFunction* self, PyObject* function, PyCodeObject* code, PyObject* const* arguments) noexcept {
  try {
    if (code != self->code) switch_code(self, code);
    size_t count = argument_count(code);
    ModesAtEntry modes;
    bool timed = is_timed(self->calls++);
    uint64_t start = timed ? now_ns() : 0;
    Match match = guard_tree_match(self->tree, function, arguments, count, modes.modes());
    if (!match.entry) {
      return {is_refused(self, arguments, count, modes.modes()) ? Way::Native : Way::Miss};
    }
    auto* entry = reinterpret_cast<EntryObject*>(match.entry.get());
    entry->hits++;
    if (entry->mock == Py_None) return {Way::Native};
    Ref mock = Ref::borrow(entry->mock);  // may be exchanged while it runs
    uint64_t matched = timed ? now_ns() : 0, graph = 0;
    GraphClock clock(timed ? &graph : nullptr);
    PyObject* result = call_mock(mock.get(), arguments, count, match.lifted.get());
    if (timed && result != nullptr) {
      entry->samples++;
      entry->guard_ns += matched - start;
      entry->graph_ns += graph;
      entry->mock_ns += now_ns() - matched - graph;
    }
    if (result != nullptr) return {Way::Done, result};
    {
      SavedError error;
      modes.restore();
    }
    if (self->on_error == Py_None) return {Way::Done};
    Ref answer = Ref::steal(call_on_error(self, match.entry.get()));
    return {answer ? Way::Native : Way::Done};
  } catch (PythonError&) {
  } catch (std::exception& error) {
    PyErr_Format(PyExc_RuntimeError, "capture: %s", error.what());
  }
  return {Way::Done};
}

// Whether positional arguments are those of the frame as they are: none is missing, named or collected.
bool are_all(const PyCodeObject* code, size_t count, PyObject* kwnames) {
  return kwnames == nullptr && code->co_kwonlyargcount == 0 && count == static_cast<size_t>(code->co_argcount) &&
         (code->co_flags & (CO_VARARGS | CO_VARKEYWORDS)) == 0;
}

// The frame of a call that no hit has spared. `arguments`: a tuple that takes the place of the frame's own, or NULL; it is let go of
// at once, so that an argument lives no longer than the frame needs it. `known`: what the guards have said already.
class CompiledFrame final : public FrameTarget {
 public:
  CompiledFrame(CompiledFunction* self, PyObject* function, Ref* arguments, std::optional<Way> known)
      : FrameTarget(function), self_(self), arguments_(arguments), known_(known) {}

  PyObject* run(PyThreadState* tstate, _PyInterpreterFrame* frame) noexcept override {
    if (arguments_ != nullptr) {
      Ref tuple = std::move(*arguments_);
      PyObject** locals = frame_view_locals(frame);
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple.get()); i++) {
        PyObject* placeholder = locals[i];
        locals[i] = Py_NewRef(PyTuple_GET_ITEM(tuple.get(), i));
        Py_DECREF(placeholder);
      }
    }
    PyCodeObject* code = frame_view_code(frame);
    Outcome outcome = known_ ? Outcome{*known_} : look_up(self_, function(), code, frame_view_locals(frame));
    if (outcome.way == Way::Miss) outcome = miss(frame_view_locals(frame), argument_count(code));
    if (outcome.way == Way::Native) return run_frame_natively(tstate, frame);
    frame_view_discard(tstate, frame);
    return outcome.result;
  }

 private:
  Outcome miss(PyObject** arguments, size_t count) noexcept {
    try {
      PyObject* result = call_on_miss(self_, function(), arguments, count);
      if (result != run_natively) return {Way::Done, result};
      Py_DECREF(result);
      return {Way::Native};
    } catch (PythonError&) {
      return {Way::Done};
    }
  }

  CompiledFunction* self_;  // the caller holds it
  Ref* arguments_;
  std::optional<Way> known_;
};

// Whether the call runs as if nothing was compiled: a tracer of torch's or of lines is at work, or the program asks for it.
bool is_left_alone(CompiledFunction* self) {
  if (program_is_traced()) {
    self->traced++;
    return true;
  }
  return torch_is_tracing() || eager_is_forced();
}

// Makes the calls that `result` stands for, one after the other, until there is a result. After a fork in the midst of them the child
// goes on natively: it has not asked for anything to be captured.
PyObject* follow(PyObject* result) {
  unsigned int before = forks;
  while (result != nullptr && is_tail_call(result)) {
    auto* tail = reinterpret_cast<TailCall*>(result);
    Ref callable = Ref::steal(std::exchange(tail->callable, nullptr));
    Ref function = Ref::steal(std::exchange(tail->function, nullptr));
    Ref arguments = Ref::steal(std::exchange(tail->arguments, nullptr));
    Py_DECREF(result);
    if (function.get() == Py_None) {
      std::optional<PyObject*> outcome = is_resumption(callable.get()) ? resume(callable, function, arguments)
                                                                       : PyObject_Call(callable.get(), arguments.get(), nullptr);
      if (outcome) {
        result = *outcome;
        continue;
      }
    }
    CompiledFunction* self = unpack(callable.get());
    auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function.get()));
    Outcome outcome;
    {
      Unwatched scope;
      bool natively = forks != before || program_is_traced() || torch_is_tracing();  // from what was called between two traces on
      outcome = natively ? Outcome{Way::Native} : look_up(self, function.get(), code, &PyTuple_GET_ITEM(arguments.get(), 0));
    }
    result = outcome.result;
    if (outcome.way == Way::Done) continue;
    // The frame is made with placeholders: who calls a function holds its arguments until it returns.
    std::vector<PyObject*> placeholders(static_cast<size_t>(PyTuple_GET_SIZE(arguments.get())) + 1, Py_None);
    CompiledFrame frame(self, function.get(), &arguments, outcome.way);
    ArmedHook armed(frame);
    result = PyObject_Vectorcall(function.get(), placeholders.data() + 1,
                                 (placeholders.size() - 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  }
  return result;
}

PyObject* call_function(CompiledFunction* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  if (is_left_alone(self)) return PyObject_Vectorcall(self->function, args, nargsf, kwnames);
  std::optional<Way> known;
  auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(self->function));
  if (are_all(code, static_cast<size_t>(PyVectorcall_NARGS(nargsf)), kwnames)) {  // a hit needs no frame
    Outcome outcome;
    {
      Unwatched scope;
      outcome = look_up(self, self->function, code, args);
    }
    if (outcome.way == Way::Done) return follow(outcome.result);
    if (outcome.way == Way::Native) {  // needs no frame of ours, either
      Unwatched scope;
      return PyObject_Vectorcall(self->function, args, nargsf, kwnames);
    }
    known = outcome.way;
  }
  PyObject* result = nullptr;
  {
    CompiledFrame frame(self, self->function, nullptr, known);
    ArmedHook armed(frame);
    result = PyObject_Vectorcall(self->function, args, nargsf, kwnames);
  }
  return follow(result);
}

// What a compiled module stands for; itself, if it was made by its class.
Ref plain_module(PyObject* module) {
  PyObject* plain = PyObject_GenericGetAttr(module, plain_name);
  if (plain != nullptr) return Ref::steal(plain);
  PyErr_Clear();
  return Ref::borrow(module);
}

// What is to be called for a compiled module in the place of the function; NULL for the function. Throws PythonError.
PyObject* replacement(CompiledFunction* self, PyObject* module, PyObject* plain) {
  unsigned int version = Py_TYPE(module)->tp_version_tag;  // 0: the class has changed, and not been looked at since
  if (version == 0 || version != self->version || Py_TYPE(plain) != self->plain_class) {
    Ref current = Ref::borrow(self->current);
    Ref answer = Ref::steal(checked(PyObject_CallOneArg(current.get(), module)));
    Ref before = Ref::steal(std::exchange(self->instead, answer.get() == Py_None ? nullptr : answer.release()));
    self->version = Py_TYPE(module)->tp_version_tag;
    self->plain_class = Py_TYPE(plain);
  }
  return self->instead;
}

// The call of a compiled module is that of what it stands for: the program's code sees the module that it has made.
PyObject* call_module(CompiledFunction* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  try {
    Ref plain = plain_module(args[0]);
    Ref instead = Ref::borrow(replacement(self, args[0], plain.get()));
    if (instead) return PyObject_Vectorcall(instead.get(), args, nargsf, kwnames);
    if (plain.get() == args[0]) plain = plain_module(args[0]);  // by now there is one
    size_t count = static_cast<size_t>(PyVectorcall_NARGS(nargsf));
    c10::SmallVector<PyObject*, 16> all(args, args + count + (kwnames == nullptr ? 0 : PyTuple_GET_SIZE(kwnames)));
    all[0] = plain.get();
    PyObject* result = call_function(self, all.data(), count, kwnames);
    if (Py_TYPE(plain.get()) != self->plain_class) {  // a lazy module became another in the call, and so does this one
      SavedError error;
      try {
        replacement(self, args[0], plain.get());
      } catch (PythonError&) {
        PyErr_WriteUnraisable(args[0]);
      }
    }
    return result;
  } catch (PythonError&) {
    return nullptr;
  }
}

PyObject* call(PyObject* callable, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  CompiledFunction* self = unpack(callable);
  Ref keep = Ref::borrow(callable);
  bool of_module = self->current != nullptr && PyVectorcall_NARGS(nargsf) > 0;
  return of_module ? call_module(self, args, nargsf, kwnames) : call_function(self, args, nargsf, kwnames);
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"function", "tree", "on_miss", "on_error", nullptr};
  PyObject *function, *tree, *on_miss, *on_error = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OO|O:CompiledFunction", const_cast<char**>(names),
                                   &PyFunction_Type, &function, &tree, &on_miss, &on_error)) {
    return nullptr;
  }
  if (!is_guard_tree(tree)) {
    PyErr_Format(PyExc_TypeError, "tree must be a GuardTree, not %.200s", Py_TYPE(tree)->tp_name);
    return nullptr;
  }
  PyObject* object = type->tp_alloc(type, 0);
  if (object == nullptr) return nullptr;
  CompiledFunction* self = unpack(object);
  self->trees = new Trees;
  self->native_kinds = new NativeKinds;
  self->dict = Py_BuildValue("{sO}", "__wrapped__", function);
  self->vectorcall = call;
  self->function = Py_NewRef(function);
  self->on_miss = Py_NewRef(on_miss);
  self->on_error = Py_NewRef(on_error);
  self->code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function));
  self->tree = tree;
  try {
    checked(self->dict);
    self->trees->add(self->code, tree);
  } catch (PythonError&) {
    Py_CLEAR(object);
  }
  return object;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  CompiledFunction* self = unpack(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->function);
  Py_VISIT(self->on_miss);
  Py_VISIT(self->on_error);
  Py_VISIT(self->dict);
  Py_VISIT(self->current);
  Py_VISIT(self->instead);
  return self->trees != nullptr ? self->trees->traverse(visit, arg) : 0;  // not yet, while it is being created
}

int clear(PyObject* object) {
  // The function and its tree stay usable until deallocation: a finalizer in the same garbage may still call this.
  // Cycles are broken through on_miss, the dict and the trees' own tp_clear.
  CompiledFunction* self = unpack(object);
  Py_CLEAR(self->dict);
  Py_CLEAR(self->current);
  Py_CLEAR(self->instead);
  return 0;
}

void dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  CompiledFunction* self = unpack(object);
  PyObject_GC_UnTrack(object);
  if (self->weakrefs != nullptr) PyObject_ClearWeakRefs(object);
  delete self->trees;
  delete self->native_kinds;
  Py_CLEAR(self->function);
  Py_CLEAR(self->on_miss);
  Py_CLEAR(self->on_error);
  Py_CLEAR(self->dict);
  Py_CLEAR(self->current);
  Py_CLEAR(self->instead);
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* bind(PyObject* self, PyObject* instance, PyObject*) {
  return instance == nullptr || instance == Py_None ? Py_NewRef(self) : PyMethod_New(self, instance);
}

PyObject* itself(PyObject* self, PyObject*) { return Py_NewRef(self); }

PyObject* repr(PyObject* self) { return PyUnicode_FromFormat("<compiled %R>", unpack(self)->function); }

PyObject* refuse(PyObject* self, PyObject* args) {
  unsigned long long kind, calls = NativeKinds::kAll;
  if (!PyArg_ParseTuple(args, "K|K:_refuse", &kind, &calls)) return nullptr;
  unpack(self)->native_kinds->add(kind, calls);
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"_refuse", refuse, METH_VARARGS,
     "_refuse(kind, calls=all): so many calls of this `call_kind` that no entry fits run natively, until entries of any function come "
     "or go."},
    {"__copy__", itself, METH_NOARGS, "Itself, as of any function."},
    {"__deepcopy__", itself, METH_O, "Itself, as of any function."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef members[] = {
    {"function", T_OBJECT, offsetof(CompiledFunction, function), READONLY, "The original function."},
    {"tree", T_OBJECT, offsetof(CompiledFunction, tree), READONLY, "The guard tree of the function's current code."},
    {"traced", T_ULONGLONG, offsetof(CompiledFunction, traced), 0,
     "How many calls ran natively because a debugger or a tool that measures coverage was told of each line."},
    {"refused", T_ULONGLONG, offsetof(CompiledFunction, refused), 0,
     "How many calls ran natively because there are too many entries for calls of their kind."},
    {"deferred", T_ULONGLONG, offsetof(CompiledFunction, deferred), 0,
     "How many calls ran natively because captures of calls of their kind were never hit."},
    {"on_miss", T_OBJECT, offsetof(CompiledFunction, on_miss), READONLY, "Called when no entry applies."},
    {"current", T_OBJECT, offsetof(CompiledFunction, current), 0,
     "Of a compiled module: `current(module)` says what to call instead of the function, or None; asked when a class has changed."},
    {"__dictoffset__", T_PYSSIZET, offsetof(CompiledFunction, dict), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(CompiledFunction, weakrefs), READONLY, nullptr},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(CompiledFunction, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

// Attributes of the function that it compiles: who treats it as a function reads and sets them there.
PyObject* attribute_of_function(PyObject* self, void* name) {
  return PyObject_GetAttrString(unpack(self)->function, static_cast<const char*>(name));
}

int set_attribute_of_function(PyObject* self, PyObject* value, void* name) {
  return PyObject_SetAttrString(unpack(self)->function, static_cast<const char*>(name), value);
}

#define OF_FUNCTION(name) {name, attribute_of_function, set_attribute_of_function, nullptr, const_cast<char*>(name)}

// To `isinstance` it is a function: torch's own tools (TorchScript, fx, operators) and `inspect` take nothing else.
PyObject* class_of_functions(PyObject*, void*) { return Py_NewRef(reinterpret_cast<PyObject*>(&PyFunction_Type)); }

PyGetSetDef getters[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {"__class__", class_of_functions, nullptr, nullptr, nullptr},
    OF_FUNCTION("__code__"), OF_FUNCTION("__defaults__"), OF_FUNCTION("__kwdefaults__"), OF_FUNCTION("__closure__"),
    OF_FUNCTION("__globals__"), OF_FUNCTION("__builtins__"),
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyObject* note_fork(PyObject*, PyObject*) {
  forks++;
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"note_fork", note_fork, METH_NOARGS, "This process was forked just now: calls that were under way go on natively in it."},
    {nullptr, nullptr, 0, nullptr},
};

PyObject* run_natively_repr(PyObject*) { return PyUnicode_FromString("RUN_NATIVELY"); }

}  // namespace

PyObject* run_natively_sentinel() { return run_natively; }

bool is_compiled_function(PyObject* object) { return PyObject_TypeCheck(object, compiled_type); }

PyObject* compiled_function_target(PyObject* compiled) { return unpack(compiled)->function; }

PyObject* compiled_function_run(PyObject* compiled, PyThreadState* tstate, _PyInterpreterFrame* frame) noexcept {
  Ref keep = Ref::borrow(compiled);
  return follow(CompiledFrame(unpack(compiled), unpack(compiled)->function, nullptr, std::nullopt).run(tstate, frame));
}

void init_compiled_function(PyObject* module) {
  plain_name = checked(PyUnicode_InternFromString("capture_plain"));
  static PyType_Slot slots[] = {
      {Py_tp_doc, const_cast<char*>(
                      "CompiledFunction(function, tree, on_miss, on_error=None)\n\n"
                      "Calls like `function`; each call is looked up in `tree`, a GuardTree. When no entry applies,\n"
                      "on_miss(function, arguments: list, the tree) gives the result, or RUN_NATIVELY. When a mock\n"
                      "function raises, on_error(entry, exception) answers RUN_NATIVELY, to run the call again natively,\n"
                      "or None, to let the exception pass with the traceback that it has then.")},
      {Py_tp_new, reinterpret_cast<void*>(create)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
      {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(clear)},
      {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
      {Py_tp_descr_get, reinterpret_cast<void*>(bind)},
      {Py_tp_repr, reinterpret_cast<void*>(repr)},
      {Py_tp_methods, methods},
      {Py_tp_members, members},
      {Py_tp_getset, getters},
      {0, nullptr},
  };
  static PyType_Spec spec = {
      "capture._C.CompiledFunction", sizeof(CompiledFunction), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, slots};
  compiled_type = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&spec)));
  checked(PyModule_AddType(module, compiled_type));

  static PyType_Slot sentinel_slots[] = {{Py_tp_repr, reinterpret_cast<void*>(run_natively_repr)}, {0, nullptr}};
  static PyType_Spec sentinel_spec = {"capture._C.RunNatively", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT,
                                      sentinel_slots};
  Ref sentinel_type = Ref::steal(checked(PyType_FromSpec(&sentinel_spec)));
  run_natively = checked(PyObject_CallNoArgs(sentinel_type.get()));
  checked(PyModule_AddObjectRef(module, "RUN_NATIVELY", run_natively));
  checked(PyModule_AddFunctions(module, functions));
}

}  // namespace capture
