# The functions of CPython, and a few of C, that the core calls.

cdef extern from "Python.h":
    ctypedef struct PyFrameObject:
        pass
    ctypedef void* PyThread_type_lock
    PyFrameObject* PyEval_GetFrame()
    object na_code "(PyObject *)PyFrame_GetCode" (PyFrameObject*)
    PyFrameObject* PyFrame_GetBack(PyFrameObject*)
    int PyFrame_GetLasti(PyFrameObject*)
    object PyFrame_GetGlobals(PyFrameObject*)
    PyObject* PyDict_GetItemWithError(object, object) except? NULL
    object PyType_GenericAlloc(PyTypeObject*, Py_ssize_t)
    Py_ssize_t PyObject_Size(object) except -1
    PyTypeObject* Py_TYPE(object) noexcept
    PyObject* PyList_GET_ITEM(object, Py_ssize_t) noexcept
    object PyNumber_Index(object)
    int PyFloat_Pack2(double, char*, int) except -1
    bint PyFloat_CheckExact(object) noexcept
    double PyFloat_AS_DOUBLE(object) noexcept
    unsigned long PyThread_get_thread_ident() noexcept
    PyThread_type_lock PyThread_allocate_lock()
    int PyThread_acquire_lock(PyThread_type_lock, int) nogil
    void PyThread_release_lock(PyThread_type_lock)
    void PyThread_free_lock(PyThread_type_lock)
    bint PyLong_CheckExact(object) noexcept
    bint PyTuple_CheckExact(object) noexcept
    void PyObject_GC_Track(PyObject*) noexcept
    void PyObject_GC_UnTrack(PyObject*) noexcept

cdef extern from *:
    """
    #include "structmember.h"
    #ifdef _WIN32
    #define NA_THREAD __declspec(thread)
    #else
    #define NA_THREAD __thread
    #endif
    #ifdef _WIN32
    #include <windows.h>
    static double na_now(void) {
        LARGE_INTEGER now, each;
        QueryPerformanceCounter(&now);
        QueryPerformanceFrequency(&each);
        return (double)now.QuadPart / (double)each.QuadPart;
    }
    #else
    #include <time.h>
    static double na_now(void) {  /* seconds of a clock that goes on */
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    }
    #endif
    static NA_THREAD long na_ordinal = -1;  /* of the device whose context is current */
    static NA_THREAD void *na_context = NULL;  /* that context, where the driver says which */
    static int (*na_get_current)(void **) = NULL;  /* the driver's `cuCtxGetCurrent` */
    static void na_note_current(void) {
        if (na_get_current != NULL && na_get_current(&na_context) != 0) na_context = NULL;
    }
    /* Whether this thread has to enter a device: it has not, or another library has switched to
       another device since. The driver looks at a thread's variable, which takes nanoseconds. */
    static inline int na_is_elsewhere(long ordinal) {
        void *current = NULL;
        if (na_ordinal != ordinal) return 1;
        if (na_get_current == NULL) return 0;
        return na_get_current(&current) != 0 || current != na_context;
    }
    static NA_THREAD int na_busy = 0;       /* this thread is enqueuing an operation */

    /* The offset of a slot that holds an object, or -1. */
    static Py_ssize_t na_offset(PyObject *descriptor) {
        PyMemberDef *member;
        if (!Py_IS_TYPE(descriptor, &PyMemberDescr_Type)) return -1;
        member = ((PyMemberDescrObject *)descriptor)->d_member;
        return member->type == T_OBJECT_EX || member->type == T_OBJECT ? member->offset : -1;
    }
    #define NA_SLOT(o, at) (*(PyObject **)((char *)(o) + (at)))
    static inline void na_put(PyObject *o, Py_ssize_t at, PyObject *value) {
        PyObject *old = NA_SLOT(o, at);
        Py_INCREF(value);
        NA_SLOT(o, at) = value;
        Py_XDECREF(old);
    }
    static void na_clear(PyObject *o, Py_ssize_t at) { Py_CLEAR(NA_SLOT(o, at)); }
    static inline PyObject *na_get(PyObject *o, Py_ssize_t at) { return NA_SLOT(o, at); }

    /* A new tuple of the class `cls`, which takes its items from a tuple. */
    static PyObject *na_tuple(PyObject *cls, PyObject *items) {
        PyObject *result = NULL;
    #if PY_VERSION_HEX < 0x030E0000
        Py_ssize_t i, n = PyTuple_GET_SIZE(items);
        result = ((PyTypeObject *)cls)->tp_alloc((PyTypeObject *)cls, n);
        for (i = 0; result != NULL && i < n; i++)
            PyTuple_SET_ITEM(result, i, Py_NewRef(PyTuple_GET_ITEM(items, i)));
    #else  /* tuples have more fields */
        PyObject *args = PyTuple_Pack(1, items);
        if (args != NULL) result = PyTuple_Type.tp_new((PyTypeObject *)cls, args, NULL);
        Py_XDECREF(args);
    #endif
        return result;
    }
    /* Put another item into a new tuple, of which nobody else knows. */
    static void na_replace(PyObject *items, Py_ssize_t i, PyObject *value) {
        PyObject *old = PyTuple_GET_ITEM(items, i);
        PyTuple_SET_ITEM(items, i, Py_NewRef(value));
        Py_DECREF(old);
    }
    /* Put a function before what a class does when it is called, or has ended; what it did. */
    static ternaryfunc na_call_before(PyTypeObject *cls, void *function) {
        ternaryfunc before = cls->tp_call;
        if ((void *)before == function) return NULL;
        cls->tp_call = (ternaryfunc)function;
        return before;
    }
    static destructor na_end_before(PyTypeObject *cls, void *function) {
        destructor before = cls->tp_finalize;
        if ((void *)before == function) return NULL;
        cls->tp_finalize = (destructor)function;
        return before;
    }
    #define na_version(cls) ((cls)->tp_version_tag)
    """
    double na_now() noexcept nogil
    long na_ordinal
    void* na_context
    int (*na_get_current)(void**) noexcept nogil
    void na_note_current() noexcept nogil
    bint na_is_elsewhere(long) noexcept nogil
    int na_busy
    Py_ssize_t na_offset(object) noexcept
    PyObject* na_get(PyObject*, Py_ssize_t) noexcept
    void na_put(PyObject*, Py_ssize_t, PyObject*) noexcept
    void na_clear(PyObject*, Py_ssize_t) noexcept
    object na_tuple(object, object)
    void replace_item "na_replace" (object, Py_ssize_t, object)
    ctypedef object (*ternaryfunc)(object, object, PyObject*)
    ctypedef void (*destructor)(PyObject*) noexcept
    ternaryfunc call_before "na_call_before" (PyTypeObject*, void*) noexcept
    destructor end_before "na_end_before" (PyTypeObject*, void*) noexcept
    unsigned na_version(PyTypeObject*) noexcept
