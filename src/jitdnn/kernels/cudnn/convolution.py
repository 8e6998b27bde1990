"""cuDNN's convolutions by its legacy calls: one algorithm here for each of its algorithms and ways to multiply.

The library says what it supports, and how much workspace it wants, when it is asked about a problem; that runs nothing.
The times are guesses until they are measured.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from jitdnn.devices.cuda import CudaDevice
from jitdnn.devices.cuda_driver import current, is_current, relaxed
from jitdnn.errors import DeviceError
from jitdnn.kernels.algorithm import (
    UNIT_ROUNDOFF,
    Algorithm,
    Epilogue,
    KernelAlgorithm,
    PlannedKernel,
    storing_roundoff,
    summation_bound,
    terms,
)
from jitdnn.kernels.cudnn.descriptors import Descriptors, refuse_form
from jitdnn.kernels.cudnn.library import Handle, Library, handle, library, missing
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.tensor import DTYPES, compute_dtype

_CALLS = {"fwd": "Forward", "bwd_data": "BackwardData", "bwd_filter": "BackwardFilter"}
_LAUNCH = {"gemm": 2e-5, "winograd": 5e-5, "fft": 4.5e-5}  # seconds that a call takes at least
_CACHED = 4096  # problems whose workspace is remembered


@dataclass(frozen=True)
class Method:
    """How an algorithm computes: what its time and its error are guessed by."""

    name: str
    number: int  # in the library's enumeration of the direction
    kind: str  # "gemm", "fft" or "winograd"
    efficiency: float  # part of the units' rate that it reaches
    deterministic: bool = True
    is_on_units: bool = False  # 16-bit products go to the matrix units
    is_tf32: bool = False


class LegacyConvolution(KernelAlgorithm[Convolution, CudaDevice]):
    """One of cuDNN's algorithms in one direction."""

    problem = Convolution
    takes_float8 = False
    method: ClassVar[Method]

    @property
    def version(self) -> int:  # type: ignore[override]
        """The library's: times of another one are not used."""
        return 0 if missing() else library().version

    def refusal(self, problem: Convolution, device: CudaDevice, epilogue: Epilogue | None) -> str | None:
        if not isinstance(device, CudaDevice) or device.index < 0:
            return f"cuDNN runs on NVIDIA GPUs, and {device.name} is none"
        reason = missing()
        if reason is not None:
            return reason
        if epilogue is not None:
            return "cuDNN's legacy calls fuse nothing"
        reason = refuse_form(problem)
        if reason is not None:
            return reason
        if self.method.is_tf32 and problem.dtype != "f32":
            return f"only f32 is rounded to tf32, and the tensors are {problem.dtype}"
        needed = self._needed(problem, device)
        return needed if isinstance(needed, str) else None

    def _needed(self, problem: Convolution, device: CudaDevice) -> int | str:
        try:
            handle(library(), device.index)
        except DeviceError as error:
            return str(error)
        return _needed(library(), device.index, problem, self.method.number, self.method.is_tf32)

    def plan(self, problem: Convolution, device: CudaDevice, epilogue: Epilogue | None) -> PlannedKernel:
        needed = self._needed(problem, device)
        if isinstance(needed, str):
            raise DeviceError(f"{self.name} does not take {problem}: {needed}")
        return PlannedKernel(
            needed, _seconds(problem, device, self.method, needed),
            lambda: ConvolutionKernel(problem, device, self.method, needed),
        )  # fmt: skip

    def arithmetic(self, problem: Problem) -> str:
        return "tf32" if self.method.is_tf32 else super().arithmetic(problem)

    def error_of(self, problem: Convolution) -> float:
        return _error(problem, self.method)

    def spreads_to(self, problem: Convolution, device: CudaDevice, epilogue: Epilogue | None) -> str | None:
        if self.method.kind == "gemm":
            return None
        return "the other results of a tile that is transformed together"


def algorithm(method: Method) -> Algorithm:
    """The algorithm that computes by a method."""
    names = {"name": method.name, "deterministic": method.deterministic, "method": method}
    made: Algorithm = type("LegacyConvolution", (LegacyConvolution,), names)()
    return made


@lru_cache(maxsize=_CACHED)
def _needed(owner: Library, index: int, problem: Convolution, number: int, is_tf32: bool) -> int | str:
    """Bytes of workspace, or why the library does not take a problem."""
    name = f"cudnnGetConvolution{_CALLS[problem.direction]}WorkspaceSize"
    size = ctypes.c_size_t()
    try:
        described = Descriptors(owner, problem, is_tf32)
    except DeviceError as error:
        return str(error)
    first, second, result = _in_order(problem, (described.x, described.w, described.y))
    with current(index):
        status = owner[name](
            handle(owner, index).pointer,
            first,
            second,
            described.convolution,
            result,
            number,
            ctypes.byref(size),
        )
    if status:
        return f"cuDNN {owner.words} says {owner.reason(status)}"
    return int(size.value)


def _in_order(problem: Convolution, of_xwy: Sequence[Any]) -> tuple[Any, Any, Any]:
    """What belongs to x, w and y in the order of the library's arguments."""
    x, w, y = of_xwy
    return {"fwd": (x, w, y), "bwd_data": (w, y, x), "bwd_filter": (x, y, w)}[problem.direction]


class ConvolutionKernel:
    """A convolution described and ready to run. Threads may share it: each has its own handle."""

    def __init__(self, problem: Convolution, device: CudaDevice, method: Method, workspace: int) -> None:
        self._library, self._index = library(), device.index
        # what is made in a call could not be made while that call is captured into a graph
        handle(self._library, self._index)
        self._described = Descriptors(self._library, problem, method.is_tf32)
        self._name = f"cudnnConvolution{_CALLS[problem.direction]}"
        self._function = self._library[self._name]
        described = self._described
        self._order = _in_order(problem, (described.x, described.w, described.y))
        self._number, self._workspace = method.number, workspace
        # the operands of bwd_data come as (dy, w, dx)
        self._is_swapped = problem.direction == "bwd_data"
        self._real: type[ctypes.c_float | ctypes.c_double]
        self._real = ctypes.c_double if problem.dtype == "f64" else ctypes.c_float
        self._words = f"{method.name} of {problem}"
        self._has_run = False

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        state = handle(self._library, self._index)
        if not self._has_run:
            # the library loads its code now, also where the first call is captured
            with current(self._index), relaxed():
                self._run(state, stream, pointers, alpha, beta, workspace)
            self._has_run = True
        elif is_current(self._index):
            self._run(state, stream, pointers, alpha, beta, workspace)
        else:
            with current(self._index):
                self._run(state, stream, pointers, alpha, beta, workspace)

    def _run(
        self, state: Handle, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        first, second, result = pointers
        if self._is_swapped:
            first, second = second, first
        of_first, of_second, of_result = self._order
        real = self._real
        status = self._function(
            state.on(stream or 0), ctypes.byref(real(alpha)), of_first, first, of_second, second,
            self._described.convolution, self._number, workspace, self._workspace, ctypes.byref(real(beta)), of_result,
            result,
        )  # fmt: skip
        if status:
            raise self._library.failure(status, self._name, self._words)


def _seconds(problem: Convolution, device: CudaDevice, method: Method, workspace: int) -> float:
    """A guess: products at a part of the units' rate, and every byte of tensors and workspace once each way."""
    x, w, y = problem.x, problem.w, problem.y
    moved = sum(tensor.size for tensor in (x, w, y)) * DTYPES[problem.dtype]
    work = float(problem.flops)
    taps = math.prod(problem.filter_spatial)
    if method.is_tf32 or (method.is_on_units and problem.dtype in ("f16", "bf16")):
        rate = device.tensor_flops(problem.dtype)
    else:
        rate = device.peak_flops(problem.dtype)
    if method.kind == "winograd":
        work /= 2.25 if taps == 9 else 4.0
    elif method.kind == "fft":
        # a tile of 32 x 32 has 32 * 17 complex products, each of four real ones, for (32 - taps + 1)^2 results
        inside = math.prod(max(1, 33 - extent) for extent in problem.filter_spatial[-2:])
        work *= 4.0 * 32 * 17 / inside / taps
    narrow = min(x.shape[1], y.shape[1]) / problem.groups
    # few channels in a group leave most of a tile empty
    efficiency = method.efficiency * math.sqrt(min(1.0, max(narrow, 1.0) / 16))
    return _LAUNCH[method.kind] + work / (rate * efficiency) + (moved + 2.0 * workspace) / device.bandwidth


def _error(problem: Convolution, method: Method) -> float:
    """Relative error to declare, about twice what was seen of cuDNN 9 on an H100."""
    count, own = terms(problem), storing_roundoff(problem)
    unit = UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
    rounding = 2.0 * own if own > unit else 0.0
    if method.kind == "fft":
        # only products of spectra are added up: over channels, or over images for the filter
        depth = problem.n if problem.direction == "bwd_filter" else count / math.prod(problem.filter_spatial)
        return rounding + unit * (16.0 + math.sqrt(depth))
    if method.kind == "winograd":
        # tiles of 13 x 13 places for 5 x 5 taps cancel badly
        fixed, growth = (24.0, 1.8) if max(problem.filter_spatial) <= 3 else (8000.0, 400.0)
        return rounding + unit * (fixed + growth * math.sqrt(count))
    if method.is_tf32:
        # both factors are cut to 11 bits, in some kernels without rounding
        return summation_bound(problem) + count * 2.0**-26 + 2.0**-9
    if problem.dtype in ("f16", "bf16"):
        # the matrix units cut off as they add; what is not deterministic adds parts in the type of the result
        bound = max(summation_bound(problem) + count * 2.0**-26, rounding)
        return bound if method.deterministic else 8.0 * bound
    return summation_bound(problem)
