"""A cuDNN in Python: its functions have C's types, remember what they were told, and compute on memory of the host."""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jitdnn.kernels.cudnn.descriptors import TYPES
from jitdnn.kernels.cudnn.library import PROTOTYPES
from jitdnn.kernels.reference import rounded
from jitdnn.problems import Convolution
from jitdnn.tensor import TensorDescriptor, layout_order, numpy_dtype, packed_strides

NAMES = {number: name for name, number in TYPES.items()}
DIRECTIONS = {"Forward": "fwd", "BackwardData": "bwd_data", "BackwardFilter": "bwd_filter"}
NOT_SUPPORTED = 3000
WORKSPACE = 4096


@dataclass
class Run:
    """One call that computes."""

    direction: str
    handle: int
    stream: int
    thread: int
    algorithm: int
    workspace: int
    size: int
    problem: Convolution
    math: int
    compute: str


@dataclass
class FakeCudnn:
    """`functions` stands in for the opened library.

    `statuses`: what functions return in place of 0, by name. `needs`: bytes of workspace by algorithm, WORKSPACE else.
    """

    version: int = 91900
    statuses: dict[str, int] = field(default_factory=dict)
    needs: dict[int, int] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    words: bytes = b"because\n it is so"
    runs: list[Run] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    objects: dict[int, dict[str, Any]] = field(default_factory=dict)
    problems: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._next = 1
        self._name = ctypes.create_string_buffer(b"CUDNN_STATUS_FAKE")
        self._lock = threading.Lock()
        for name, (result, *arguments) in PROTOTYPES.items():
            if name in self.without:
                continue
            # a callback cannot return a string: its address is as good
            kind = ctypes.c_void_p if result is ctypes.c_char_p else result
            setattr(self, name, ctypes.CFUNCTYPE(kind, *arguments)(self._called(name)))

    def _called(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            with self._lock:
                self.calls[name] += 1
                try:
                    return self.statuses.get(name) or self._answer(name.removeprefix("cudnn"), arguments)
                except BaseException as error:
                    self.problems.append(error)
                    return 4000

        return call

    def alive(self, kind: str) -> int:
        """Objects of a kind that were not destroyed."""
        return sum(one["kind"] == kind for one in self.objects.values())

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if name == "GetVersion":
            return self.version
        if name == "GetErrorString":
            return ctypes.addressof(self._name)
        if name == "GetLastErrorString":
            ctypes.memmove(arguments[0], self.words + b"\0", len(self.words) + 1)
            return None
        if name.startswith("Create"):
            self.objects[self._next] = {
                "kind": name.removeprefix("Create") or "Handle",
                "stream": 0,
                "groups": 1,
            }
            arguments[0][0] = self._next
            self._next += 1
        elif name.startswith("Destroy"):
            assert self.objects.pop(arguments[0])["kind"] == name.removeprefix("Destroy")
        elif name.startswith("Set"):
            self._set(name, self.objects[arguments[0]], arguments[1:])
        elif name.endswith("WorkspaceSize"):
            handle, *described, number, size = arguments
            assert self.objects[handle]["kind"] == "Handle"
            direction = DIRECTIONS[name.removeprefix("GetConvolution").removesuffix("WorkspaceSize")]
            self._problem(direction, described[0], described[1], described[3], described[2])
            size[0] = self.needs.get(number, WORKSPACE)
        else:
            self._compute(DIRECTIONS[name.removeprefix("Convolution")], *arguments)
        return 0

    def _set(self, name: str, thing: dict[str, Any], arguments: tuple[Any, ...]) -> None:
        if name == "SetStream":
            thing["stream"] = arguments[0] or 0
        elif name == "SetTensorNdDescriptor":
            kind, rank, shape, strides = arguments
            assert rank in (4, 5)
            thing["tensor"] = TensorDescriptor(tuple(shape[:rank]), tuple(strides[:rank]), NAMES[kind])
        elif name == "SetFilterNdDescriptor":
            kind, layout, rank, dims = arguments
            shape = tuple(dims[:rank])
            strides = packed_strides(shape, layout_order(("nchw", "nhwc")[layout], rank))
            thing["tensor"] = TensorDescriptor(shape, strides, NAMES[kind])
        elif name == "SetConvolutionNdDescriptor":
            rank, pads, strides, dilations, mode, compute = arguments
            thing["padding"] = tuple((pad, pad) for pad in pads[:rank])
            thing["stride"], thing["dilation"] = tuple(strides[:rank]), tuple(dilations[:rank])
            thing["mode"] = ("convolution", "cross_correlation")[mode]
            thing["compute"] = NAMES[compute]
        else:
            thing[{"SetConvolutionGroupCount": "groups", "SetConvolutionMathType": "math"}[name]] = arguments[
                0
            ]

    def _problem(self, direction: str, first: int, second: int, result: int, convolution: int) -> Convolution:
        """The problem that descriptors stand for, in the order of the library's arguments."""
        order = {"fwd": "xwy", "bwd_data": "wyx", "bwd_filter": "xyw"}[direction]
        found = dict(zip(order, (first, second, result), strict=True))
        for letter, number in found.items():
            assert self.objects[number]["kind"] == (
                "FilterDescriptor" if letter == "w" else "TensorDescriptor"
            )
        how = self.objects[convolution]
        x, w, y = (self.objects[found[letter]]["tensor"] for letter in "xwy")
        return Convolution(
            direction, x, w, y, how["stride"], how["padding"], how["dilation"], how["groups"], how["mode"]
        )

    def _compute(
        self, direction: str, handle: int, alpha: int, d1: int, p1: int, d2: int, p2: int, convolution: int,
        number: int, workspace: int | None, size: int, beta: int, d3: int, p3: int,
    ) -> None:  # fmt: skip
        problem = self._problem(direction, d1, d2, d3, convolution)
        how, real = self.objects[convolution], ctypes.c_double if problem.dtype == "f64" else ctypes.c_float
        a, b = (real.from_address(address).value for address in (alpha, beta))
        state = self.objects[handle]
        self.runs.append(
            Run(
                direction, handle, state["stream"], threading.get_ident(), number, workspace or 0, size, problem,
                how["math"], how["compute"],
            )
        )  # fmt: skip
        descriptors = [self.objects[one]["tensor"] for one in (d1, d2, d3)]
        first, second, result = (_view(*pair) for pair in zip((p1, p2, p3), descriptors, strict=True))
        # the reference takes its inputs in the order of the problem's operands
        given = (second, first) if direction == "bwd_data" else (first, second)
        found = a * problem.reference(*(array.astype(np.float64) for array in given))
        if b:
            found += b * result.astype(np.float64)
        result[...] = rounded(found, result.dtype)


def _view(pointer: int, tensor: TensorDescriptor) -> Any:
    """The elements of a tensor at an address of the host."""
    dtype = numpy_dtype(tensor.dtype)
    low, high = tensor.span()
    memory = (ctypes.c_uint8 * ((high - low + 1) * dtype.itemsize)).from_address(
        pointer + low * dtype.itemsize
    )
    strides = [stride * dtype.itemsize for stride in tensor.strides]
    return np.lib.stride_tricks.as_strided(np.frombuffer(memory, dtype)[-low:], tensor.shape, strides)
