# cython: language_level=3, boundscheck=False, wraparound=False, binding=True, auto_pickle=False
"""The compiled core: the hot path of launches, in the place of Python functions of equal meaning.

The Python code is the specification. `native.compiled` puts a function of this module in the place
of the Python function of the same qualified name, with `_` for `.`. The Python function is called
for everything unusual: lazy arguments, work of other streams that must be waited for, limits,
faults, classes that are not exactly the known ones. Rules and messages are there, once.

Attributes that are slots are read by their offsets, which `know` takes from the classes' own
descriptors; every class is compared exactly before. `Launch__form` is the slot `_form` of a `Launch`:
the names of the slots, and the constants that Python has, come from `core_table.py`, which reads the
classes when the core is compiled. The core opens no library: the backend hands in
the addresses of the driver's functions.

Half of the slots are of `device`, `ops` and `launch`, which say how an operation runs. The others
are of what it runs on, and each is read in a step that would else be a call of Python a launch:

- `tensors`: an argument is a tensor, so a launch asks each for its storage, its handle and what its
  plan depends on; allocations, fills and copies of whole tensors are operations as often as launches.
- `graphs`: the launch of a graph that needs no change of an access record.
- `collective`: the plan of a collective of several devices, submitted on all of them by one call.
- `backend`: memory from a pool without a lock, handles as the driver takes them, and the CPU
  device's queue, by which most tests and every program without a GPU run.

`tests/native/test_build_hook.py` holds the list of these classes, which does not grow.

What is borrowed is used at once, or held. Python code may run in every call that is not plainly C:
a property, a comparison or a hash of foreign objects, a `with nogil`, a reference that is given up
(a finaliser), and on Python 3.11 each new object that the collector knows. It may move a tensor,
free a storage, empty a dictionary or launch the same kernel. So:

- An object from a slot, a dict, a list or a tuple goes to a variable of type `object` (`get`,
  `found`), never to a `PyObject*` or an address, unless it is compared in the same expression.
- What a slot held before Python code ran is asked again, or was read to a variable before.
- The buffer of a `LaunchRecord` is filled and used without Python code in between.
- A new tuple is shown to the collector when it is `complete`.
- Who allocates makes the object first that owns the rest.
- `__dealloc__` uses C fields alone, or the class is `no_gc`: the collector clears objects first.

`tests/native/test_every_moment.py` takes everything away at every such moment; a new rule of this
kind has its fault under `held:` in `tests/native/faults.txt`.

This is one module, in parts; each part uses those that are included before it.
"""
from asyncio import _get_running_loop as get_running_loop, current_task
import _asyncio as asyncio_core  # after asyncio, which would import it a second time
from collections import deque
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_ITERABLE_COROUTINE
from types import FunctionType
from cpython.buffer cimport (
    PyBUF_ND, PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.contextvars cimport get_value
from cpython.dict cimport PyDict_SetItem, PyDict_Size
from cpython.list cimport PyList_Append, PyList_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF, Py_XINCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_New, PyTuple_SET_ITEM
from cython cimport no_gc
from libc.stdint cimport (
    int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t,
)
from libc.string cimport memcmp, memcpy, memset
from numpy import float32

include "core/declarations.pxi"
include "table.pxi"  # which `core_table.py` makes of the classes
include "core/slots.pxi"
include "core/locks.pxi"
include "core/call_sites.pxi"
include "core/driver.pxi"
include "core/launch_records.pxi"
include "core/clock.pxi"
include "core/journal.pxi"
include "core/streams.pxi"
include "core/readers.pxi"
include "core/lent.pxi"
include "core/fast_calls.pxi"
include "core/launches.pxi"
include "core/runs.pxi"
include "core/callers.pxi"
include "core/compositions.pxi"
include "core/arrays.pxi"
include "core/pools.pxi"
include "core/transfers.pxi"
include "core/packed_runs.pxi"
include "core/collectives.pxi"
include "core/graphs.pxi"
include "core/futures.pxi"
include "core/cpu.pxi"
