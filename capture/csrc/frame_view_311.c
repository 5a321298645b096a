/* CPython 3.11: the caller of the evaluation function (_PyEval_Vector) clears the frame and pops it. */
#define Py_BUILD_CORE
#include "frame_view.h"
#include "internal/pycore_frame.h"

PyObject *frame_view_function(struct _PyInterpreterFrame *frame) {
    return (PyObject *)frame->f_func;
}

PyCodeObject *frame_view_code(struct _PyInterpreterFrame *frame) {
    return frame->f_code;
}

PyObject **frame_view_locals(struct _PyInterpreterFrame *frame) {
    return frame->localsplus;
}

void frame_view_discard(PyThreadState *tstate, struct _PyInterpreterFrame *frame) {
    (void)tstate;
    (void)frame;
}

void frame_view_set_lasti(PyFrameObject *frame, int lasti) {
    /* No local is to be shown: the free variables of a frame that has begun are expected to be cells. */
    frame->f_frame->stacktop = 0;
    frame->f_frame->prev_instr = _PyCode_CODE(frame->f_frame->f_code) + lasti / (int)sizeof(_Py_CODEUNIT);
}
