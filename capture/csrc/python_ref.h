// Owning references to Python objects, and the one way in which C++ code of this extension reports a Python error.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <utility>

namespace capture {

// A strong reference, released by the destructor.
class Ref {
 public:
  Ref() = default;
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref(const Ref& other) noexcept : object_(Py_XNewRef(other.object_)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }

  static Ref steal(PyObject* object) {
    Ref ref;
    ref.object_ = object;
    return ref;
  }
  static Ref borrow(PyObject* object) { return steal(Py_XNewRef(object)); }

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// Thrown where the Python error indicator is set; boundaries to CPython turn it into a NULL result.
struct PythonError {};

inline PyObject* checked(PyObject* object) {
  if (object == nullptr) throw PythonError{};
  return object;
}

inline void checked(int status) {
  if (status < 0) throw PythonError{};
}

// What a weak reference refers to, borrowed: None once that is gone. (CPython 3.13 deprecates the macro: without the GIL it is
// unsafe.)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
inline PyObject* referent_of(PyObject* weak) { return PyWeakref_GET_OBJECT(weak); }
#pragma GCC diagnostic pop

// What an object that may be held weakly stands for.
inline PyObject* referent(PyObject* object) { return PyWeakref_CheckRefExact(object) ? referent_of(object) : object; }

// The error indicator, put aside for the lifetime of this object.
class SavedError {
 public:
  SavedError() { PyErr_Fetch(&type_, &value_, &traceback_); }
  ~SavedError() { PyErr_Restore(type_, value_, traceback_); }
  SavedError(const SavedError&) = delete;
  SavedError& operator=(const SavedError&) = delete;

 private:
  PyObject *type_, *value_, *traceback_;
};

}  // namespace capture
