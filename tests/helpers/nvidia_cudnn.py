"""NVIDIA's cuDNN under the names of jitdnn.cudnn, by ctypes: the same programs run against both.

Only the functions that tests and benchmarks call; arrays are such as `jitdnn.tensor.borrow` takes, in the memory of
the GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cudnn_prototypes import Argument, read
from jitdnn.devices import cuda
from jitdnn.devices.cuda_driver import current, relaxed
from jitdnn.frameworks.cudnn_api.enums import CONSTANTS, ENUMERATIONS, cudnnStatus_t
from jitdnn.frameworks.cudnn_api.status import CudnnBadParam, CudnnError, CudnnNotSupported, failure
from jitdnn.kernels.cudnn import library
from jitdnn.tensor import borrow

__all__ = ["CudnnBadParam", "CudnnError", "CudnnNotSupported", "missing"]

_PROTOTYPES = read()
_DOUBLE = CONSTANTS["CUDNN_DATA_DOUBLE"]
_INT32 = CONSTANTS["CUDNN_DATA_INT32"]
_MOST_ALGORITHMS = 16
# functions that give their answer as the result
_ANSWERS = {
    "cudnnGetVersion": ctypes.c_size_t,
    "cudnnGetMaxDeviceVersion": ctypes.c_size_t,
    "cudnnGetCudartVersion": ctypes.c_size_t,
}
_IN = {
    "i": ctypes.c_int,
    "z": ctypes.c_size_t,
    "Q": ctypes.c_ulonglong,
    "f": ctypes.c_float,
    "g": ctypes.c_double,
}
_OUT = {
    ">i": ctypes.c_int, ">z": ctypes.c_size_t, ">Q": ctypes.c_ulonglong, ">f": ctypes.c_float, ">g": ctypes.c_double,
    ">s": ctypes.c_double, ">p": ctypes.c_void_p, ">d": ctypes.c_void_p, ">h": ctypes.c_void_p,
}  # fmt: skip
# what says how long arrays that are written are
_COUNTS = ("nbDimsRequested", "arrayLengthRequested", "nbDims", "seqLengthSizeRequested")


class _Perf(ctypes.Structure):
    _fields_ = (
        ("algo", ctypes.c_int), ("status", ctypes.c_int), ("time", ctypes.c_float), ("memory", ctypes.c_size_t),
        ("determinism", ctypes.c_int), ("mathType", ctypes.c_int), ("reserved", ctypes.c_int * 3),
    )  # fmt: skip


class AlgoPerf(NamedTuple):
    algo: int
    status: int
    time: float
    memory: int
    determinism: int
    mathType: int  # noqa: N815


class Object:
    """A handle or descriptor of the library, and the type of a tensor's data."""

    def __init__(self, pointer: int | None) -> None:
        self.pointer, self.data_type = pointer, None


def missing() -> str | None:
    """Why it cannot be called here; None if it can."""
    if not cuda.device_count():
        return "no NVIDIA GPU"
    return library.missing()


class _Call:
    """The arguments of one call in C's terms, and what comes back."""

    def __init__(self, name: str, arguments: list[Argument], given: tuple[Any, ...]) -> None:
        self.values: dict[str, Any] = {}
        wanted = [argument.name for argument in arguments if not argument.kind.startswith(">")]
        if len(given) != len(wanted):
            raise TypeError(f"{name} takes {', '.join(wanted)}")
        self.values = dict(zip(wanted, given, strict=True))
        self.kept: list[Any] = []
        self.results: list[tuple[Argument, Any]] = []
        described = [value for value in given if isinstance(value, Object) and value.data_type is not None]
        self.data_type = described[0].data_type if described else None
        self.is_double = any(value.data_type == _DOUBLE for value in described)
        self.arguments = [self.passed(argument) for argument in arguments]

    def passed(self, argument: Argument) -> Any:
        kind, name = argument
        if kind.startswith(">"):
            return self.result(argument)
        value = self.values[name]
        if kind in _IN:
            return _IN[kind](value)
        if value is None:
            return None
        if kind in "hd":
            return ctypes.c_void_p(value.pointer)
        if kind == "I":
            array = np.ascontiguousarray(value, np.int32)
            self.kept.append(array)
            return ctypes.c_void_p(array.ctypes.data)
        if kind == "s":
            whole = name == "valuePtr" and self.data_type == _INT32
            number = (ctypes.c_int if whole else ctypes.c_double if self.is_double else ctypes.c_float)(value)
            self.kept.append(number)
            return ctypes.byref(number)
        return ctypes.c_void_p(value if isinstance(value, int) else borrow(value).pointer)

    def result(self, argument: Argument) -> Any:
        if argument.kind == ">perf":
            place: Any = (_Perf * _MOST_ALGORITHMS)()
        elif argument.kind == ">I":
            count = next(self.values[name] for name in _COUNTS if name in self.values)
            place = (ctypes.c_int * max(count, 1))()
        else:
            place = _OUT[argument.kind]()
        self.results.append((argument, place))
        return ctypes.byref(place) if not isinstance(place, ctypes.Array) else place

    def returned(self) -> Any:
        found = []
        for argument, place in self.results:
            if argument.kind == ">perf":
                count = next(
                    place.value for other, place in self.results if other.name == "returnedAlgoCount"
                )
                found.append(
                    [AlgoPerf(*(getattr(one, field) for field in AlgoPerf._fields)) for one in place[:count]]
                )
            elif argument.kind == ">I":
                found.append(tuple(place))
            elif argument.kind in (">d", ">h"):
                found.append(Object(place.value))
            elif argument.name != "returnedAlgoCount":
                found.append(place.value)
        if not found:
            return None
        return found[0] if len(found) == 1 else tuple(found)


def _parts(name: str, given: tuple[Any, ...], found: Any) -> Any:
    """Addresses inside of an array of weights as slices of it."""
    if name not in ("cudnnGetRNNWeightParams", "cudnnGetMultiHeadAttnWeights"):
        return found
    weights, descs = given[4], (given[6], given[7]) if name == "cudnnGetRNNWeightParams" else (given[5],)
    array, parts = borrow(weights), []
    for address, desc in zip(found if isinstance(found, tuple) else (found,), descs, strict=True):
        if not address:
            parts.append(None)
            continue
        itemsize = weights.dtype.itemsize
        extents = __getattr__("cudnnGetTensorNdDescriptor")(desc, 3)[2]
        start = (address - array.pointer) // itemsize
        parts.append(weights[start : start + int(np.prod(extents))])
    return tuple(parts) if len(parts) > 1 else parts[0]


def _function(name: str) -> Callable[..., Any]:
    arguments = _PROTOTYPES[name]
    own = getattr(ctypes.CDLL(library.library().path), name)
    own.restype = _ANSWERS.get(name, ctypes.c_int)

    def called(*given: Any) -> Any:
        if name == "cudnnCreate":
            given = ()
        call = _Call(name, arguments, given)
        device = cuda.device()
        with current(device.device_id[1]), relaxed():
            status = own(*call.arguments)
        device.synchronize()
        if name in _ANSWERS:
            return status
        if status:
            raise failure(cudnnStatus_t(status), name, library.library().reason(status))
        for place, argument in enumerate(a for a in arguments if not a.kind.startswith(">")):
            if argument.name == "dataType":
                given[0].data_type = given[place]
        return _parts(name, given, call.returned())

    return called


_functions: dict[str, Callable[..., Any]] = {}


def __getattr__(name: str) -> Any:
    if name in CONSTANTS:
        return CONSTANTS[name]
    if name in ENUMERATIONS:
        return ENUMERATIONS[name]
    if name not in _PROTOTYPES:
        raise AttributeError(name)
    if name not in _functions:
        _functions[name] = _function(name)
    return _functions[name]
