# The line of the program that submits an operation.

cdef dict is_between = None  # of `callsite`: module name -> whether its frames are skipped
cdef object CallSite = None
cdef object latest_code = None  # of a program's line
cdef object latest_site = None, latest_place = None


def know_frames(dict between, kind):
    """Note what `callsite` knows of modules, and its class of call sites."""
    global is_between, CallSite
    is_between, CallSite = between, kind


def call_site(int above):
    cdef object site
    if on and above == 0:
        site = site_of_caller(-1)
        if site is not None:
            return site
    return python["call_site"](above)


cdef object site_of_caller(int above):
    """The call site of the Python code that is running; `above` as for `call_site`, from there."""
    global latest_code, latest_site
    cdef PyFrameObject* frame = PyEval_GetFrame()
    cdef PyFrameObject* behind
    cdef object site = latest_site, stepped_over = None
    while frame != NULL:
        code = na_code(frame)
        if code is not latest_code:
            between = found(is_between, PyFrame_GetGlobals(frame).get("__name__", ""))
            if between is None:
                break
            if between is True:
                behind = PyFrame_GetBack(frame)
                if behind == NULL:
                    break
                stepped_over = <object><PyObject*>behind  # it keeps the frame
                Py_DECREF(stepped_over)
                frame = behind
                continue
            latest_code = code
        if not is_place(site, code, PyFrame_GetLasti(frame)):
            site = latest_site = na_tuple(CallSite, (code, PyFrame_GetLasti(frame)))
        return site
    return None if above < 0 else python["call_site"](above)


cdef inline bint is_place(object place, object code, int instruction) except -1:
    """Whether a code object and an instruction, or None, are these."""
    return place is not None and PyTuple_GET_ITEM(place, 0) == <PyObject*>code and (
        <int><object>PyTuple_GET_ITEM(place, 1) == instruction
    )


cdef object made_at(PyFrameObject* frame):
    """The code object and the instruction of a frame; of many operations of a line, one tuple."""
    global latest_place
    cdef object place = latest_place
    code = na_code(frame)
    if not is_place(place, code, PyFrame_GetLasti(frame)):
        place = latest_place = (code, PyFrame_GetLasti(frame))
    return place
