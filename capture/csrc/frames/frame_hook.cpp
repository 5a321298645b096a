#include "frames/frame_hook.h"

#include <utility>

namespace capture {
namespace {

thread_local FrameTarget* armed = nullptr;
thread_local bool not_intercepted = false;  // inside of a frame that was taken over
FrameInterceptor* interceptor = nullptr;

// Guarded by the GIL, as the interpreter's evaluation function itself is.
int armed_count = 0;
bool installed = false;
_PyFrameEvalFunction previous = _PyEval_EvalFrameDefault;

PyObject* evaluate_frame(PyThreadState* tstate, _PyInterpreterFrame* frame, int throwflag);

void install() {
  if (armed_count++ > 0 || installed) return;
  PyInterpreterState* interpreter = PyInterpreterState_Get();
  previous = _PyInterpreterState_GetEvalFrameFunc(interpreter);
  _PyInterpreterState_SetEvalFrameFunc(interpreter, evaluate_frame);
  installed = true;
}

void uninstall() {
  if (--armed_count > 0) return;
  PyInterpreterState* interpreter = PyInterpreterState_Get();
  // Somebody who hooked in on top of us may chain to us at any time: then we stay, and pass every frame on.
  if (_PyInterpreterState_GetEvalFrameFunc(interpreter) != evaluate_frame) return;
  _PyInterpreterState_SetEvalFrameFunc(interpreter, previous);
  installed = false;
}

PyObject* evaluate_frame(PyThreadState* tstate, _PyInterpreterFrame* frame, int throwflag) {
  FrameTarget* target = armed;
  if (target == nullptr || throwflag || frame_view_function(frame) != target->function()) {
    if (interceptor == nullptr || not_intercepted || throwflag || !interceptor->wants(frame_view_code(frame))) {
      return previous(tstate, frame, throwflag);
    }
    NotIntercepted scope(true);
    return interceptor->run(tstate, frame);
  }
  // Disarmed before anything runs, so that what the frame calls is evaluated at the interpreter's full speed.
  armed = nullptr;
  uninstall();
  NotIntercepted scope(true);
  return target->run(tstate, frame);
}

}  // namespace

NotIntercepted::NotIntercepted(bool value) : outer_(std::exchange(not_intercepted, value)) {}

NotIntercepted::~NotIntercepted() { not_intercepted = outer_; }

ArmedHook::ArmedHook(FrameTarget& target) : outer_(armed) {
  armed = &target;
  install();
}

ArmedHook::~ArmedHook() {
  if (armed != nullptr) uninstall();  // the frame never came: the arguments did not fit the signature
  armed = outer_;
}

bool frames_are_intercepted() { return interceptor != nullptr && !not_intercepted; }

void set_interceptor(FrameInterceptor* fresh) {
  if (interceptor == nullptr && fresh != nullptr) install();
  if (interceptor != nullptr && fresh == nullptr) uninstall();
  interceptor = fresh;
}

PyObject* pass_frame_on(PyThreadState* tstate, _PyInterpreterFrame* frame, bool deep) {
  NotIntercepted scope(deep);
  return previous(tstate, frame, 0);
}

PyObject* run_frame_natively(PyThreadState* tstate, _PyInterpreterFrame* frame) {
  return previous(tstate, frame, 0);
}

}  // namespace capture
