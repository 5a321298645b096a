/* CPython 3.12. */
#define Py_BUILD_CORE
#include "cpython/frame_view.h"
#include "internal/pycore_code.h"
#include "internal/pycore_dict.h"
#include "internal/pycore_frame.h"
#include "internal/pycore_object.h"
#include "cpython/frame_view_since_312.h"

PyCodeObject *frame_view_code(struct _PyInterpreterFrame *frame) {
    return frame->f_code;
}

void frame_view_discard(PyThreadState *tstate, struct _PyInterpreterFrame *frame) {
    discard(tstate, frame, frame->f_code);
}

void frame_view_set_lasti(PyFrameObject *frame, int lasti) {
    /* No local is to be shown: the free variables of a frame that has begun are expected to be cells. */
    frame->f_frame->stacktop = 0;
    frame->f_frame->prev_instr = _PyCode_CODE(frame->f_frame->f_code) + lasti / (int)sizeof(_Py_CODEUNIT);
}

/* The number of values is kept two bytes before them. */
static int has_values(PyDictValues *values) {
    return values != NULL && ((uint8_t *)values)[-2] > 0;
}

int has_own_attributes(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    if (type->tp_flags & Py_TPFLAGS_MANAGED_DICT) {
        PyDictOrValues where = *_PyObject_DictOrValuesPointer(object);
        return _PyDictOrValues_IsValues(where) ? has_values(_PyDictOrValues_GetValues(where)) : has_items(where.dict);
    }
    return type->tp_dictoffset > 0 && has_items(*(PyObject **)((char *)object + type->tp_dictoffset));
}
