/* What the implementations of frame_view.h have in common: each includes this after the headers of its CPython. */
#include "cpython/frame_view.h"

PyObject **frame_view_locals(struct _PyInterpreterFrame *frame) {
    return frame->localsplus;
}

/* Where a thread keeps its current frame. */
#if PY_VERSION_HEX >= 0x030D0000
#define CURRENT_FRAME(tstate) ((tstate)->current_frame)
#else
#define CURRENT_FRAME(tstate) ((tstate)->cframe->current_frame)
#endif

struct _PyInterpreterFrame *frame_view_current(void) {
    return CURRENT_FRAME(_PyThreadState_UncheckedGet());
}

void frame_view_hide(struct _PyInterpreterFrame *frame) {
    CURRENT_FRAME(_PyThreadState_UncheckedGet()) = frame->previous;
}

void frame_view_show_again(struct _PyInterpreterFrame *frame) {
    CURRENT_FRAME(_PyThreadState_UncheckedGet()) = frame;
}

PyObject *frame_view_globals(struct _PyInterpreterFrame *frame) {
    return frame->f_globals;
}

PyObject *frame_view_names(struct _PyInterpreterFrame *frame) {
    return frame->f_locals;
}

int frame_view_shows_nothing(PyFrameObject *frame, PyCodeObject *code) {
    struct _PyInterpreterFrame *view = frame->f_frame;
    return view->owner == FRAME_OWNED_BY_FRAME_OBJECT && view->stacktop == 0 && frame_view_code(view) == code;
}

void frame_view_show(PyFrameObject *frame, PyObject *const *values, PyObject *names) {
    struct _PyInterpreterFrame *view = frame->f_frame;
    PyCodeObject *code = frame_view_code(view);
    int count = code->co_nlocalsplus, free = count - PyCode_GetNumFree(code);
    for (int i = free; i < count; i++) {    /* whoever asks for a free variable expects a cell */
        if (values[i] == NULL || !PyCell_Check(values[i])) return;
    }
    for (int i = 0; i < count; i++) {       /* a variable of an inlined comprehension may lie where 3.13.0 expects a cell */
        int in_cell = (_PyLocals_GetKind(code->co_localspluskinds, i) & CO_FAST_CELL) != 0;
        view->localsplus[i] = Py_XNewRef(in_cell && values[i] != NULL && !PyCell_Check(values[i]) ? NULL : values[i]);
    }
    view->stacktop = count;
    if (names != NULL && view->f_locals == NULL) view->f_locals = Py_NewRef(names);
}

static int has_items(PyObject *dict) {
    return dict != NULL && PyDict_GET_SIZE(dict) > 0;
}
