/* CPython 3.13: a frame executes an object, which is a code object, and refers to its present instruction; values of instances lie
 * within them. */
#define Py_BUILD_CORE
#include "cpython/frame_view.h"
#include "internal/pycore_code.h"
#include "internal/pycore_dict.h"
#include "internal/pycore_frame.h"
#include "internal/pycore_object.h"
#include "cpython/frame_view_since_312.h"

PyCodeObject *frame_view_code(struct _PyInterpreterFrame *frame) {
    return _PyFrame_GetCode(frame);
}

void frame_view_discard(PyThreadState *tstate, struct _PyInterpreterFrame *frame) {
    discard(tstate, frame, _PyFrame_GetCode(frame));
}

void frame_view_set_lasti(PyFrameObject *frame, int lasti) {
    frame->f_frame->stacktop = 0;           /* no local is to be shown */
    frame->f_frame->instr_ptr = _PyCode_CODE(_PyFrame_GetCode(frame->f_frame)) + lasti / (int)sizeof(_Py_CODEUNIT);
}

int has_own_attributes(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    if (type->tp_flags & Py_TPFLAGS_MANAGED_DICT) {
        PyDictObject *dict = _PyObject_GetManagedDict(object);
        if (dict != NULL || !(type->tp_flags & Py_TPFLAGS_INLINE_VALUES)) return has_items((PyObject *)dict);
        PyDictValues *values = _PyObject_InlineValues(object);
        return values->valid && values->size > 0;
    }
    return type->tp_dictoffset > 0 && has_items(*(PyObject **)((char *)object + type->tp_dictoffset));
}
