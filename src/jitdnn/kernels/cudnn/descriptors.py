"""A convolution as cuDNN has it described: tensors with strides, a dense filter, paddings, groups and arithmetic.

Convolutions over one axis are those over two of which the first has one place.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache

from jitdnn.kernels.cudnn.library import Library
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import TensorDescriptor, layout_order, packed_strides

TYPES = {"f32": 0, "f64": 1, "f16": 2, "bf16": 9}  # CUDNN_DATA_*
_FORMATS = {"nchw": 0, "nhwc": 1}  # CUDNN_TENSOR_*
_MODES = {"convolution": 0, "cross_correlation": 1}  # CUDNN_CONVOLUTION, CUDNN_CROSS_CORRELATION
_DEFAULT_MATH, _TENSOR_OP_MATH, _FMA_MATH = 0, 1, 3  # CUDNN_*
_LARGEST = 2**31  # numbers of C's int, and what the library counts elements with


@lru_cache(maxsize=512)  # every algorithm asks
def refuse_form(problem: Convolution) -> str | None:
    """What of a convolution cannot be put into cuDNN's descriptors."""
    for operand in problem.operands:
        if operand.descriptor.dtype not in TYPES:
            return (
                f"it is called for {', '.join(TYPES)} here, and {operand.name} is {operand.descriptor.dtype}"
            )
        if not operand.descriptor.size:
            return f"{operand.name} of shape {operand.descriptor.shape} is empty, which cuDNN does not take"
        reason = _refuse_tensor(operand.name, operand.descriptor)
        if reason is not None:
            return reason
    uneven = next((pair for pair in problem.padding if pair[0] != pair[1]), None)
    if uneven is not None:
        return f"padding {uneven}: (before, after) differ: cuDNN pads both sides alike"
    if (
        max(max(pair) for pair in problem.padding) >= _LARGEST
        or max(problem.stride + problem.dilation) >= _LARGEST
    ):
        return f"padding, stride and dilation must be below {_LARGEST}"
    if filter_format(problem) is None:
        return (
            f"the filter of shape {problem.w.shape} has strides {problem.w.strides}: cuDNN takes dense ones only, in "
            "the order nchw or nhwc"
        )
    return None


def _refuse_tensor(name: str, tensor: TensorDescriptor) -> str | None:
    for extent, stride in zip(tensor.shape, tensor.strides, strict=True):
        if extent > 1 and stride <= 0:
            return f"{name} has stride {stride}: cuDNN takes strides of 1 and more"
    low, high = tensor.span()
    if high - low + 1 >= _LARGEST:
        return f"{name} spans {high - low + 1} elements: cuDNN's legacy calls number fewer than {_LARGEST}"
    return None


def filter_format(problem: Convolution) -> str | None:
    """`nchw` or `nhwc`, in which the filter is dense; where it is in both, that of the data."""
    w = problem.w
    fits = [
        layout
        for layout in ("nchw", "nhwc")
        if settled_strides(w, layout) == packed_strides(w.shape, layout_order(layout, len(w.shape)))
    ]
    if len(fits) == 2:
        sides = [problem.x, problem.y]
        # what is dense in both orders says nothing
        wide = [side for side in sides if side.shape[1] > 1 and max(side.shape[2:]) > 1]
        return wide[0].nearest_layout if wide else "nchw"
    return fits[0] if fits else None


def settled_strides(tensor: TensorDescriptor, layout: str) -> tuple[int, ...]:
    """The strides, where an extent is 1 those that a tensor in this layout would have: the library compares them."""
    strides, step = list(tensor.strides), 1
    for axis in reversed(layout_order(layout, len(tensor.shape))):
        if tensor.shape[axis] == 1:
            strides[axis] = step
        step = max(step, strides[axis] * tensor.shape[axis])
    return tuple(strides)


def _order_of(tensor: TensorDescriptor, layout: str) -> str:
    """The order in which a tensor is dense, the given one if that is one of them; else the nearest."""
    for order in (layout, "nhwc" if layout == "nchw" else "nchw"):
        dense = packed_strides(tensor.shape, layout_order(order, len(tensor.shape)))
        if settled_strides(tensor, order) == dense:
            return order
    return tensor.nearest_layout


def _plane(tensor: TensorDescriptor) -> TensorDescriptor:
    """A tensor with one axis of space as one with two."""
    if len(tensor.shape) != 3:
        return tensor
    (n, c, w), (by_n, by_c, by_w) = tensor.shape, tensor.strides
    return TensorDescriptor((n, c, 1, w), (by_n, by_c, 1, by_w), tensor.dtype, tensor.offset)


def _math(dtype: str, is_tf32: bool) -> int:
    """What the matrix units may be used for: never for f32 unless its factors may be rounded."""
    if dtype == "f64":
        return _DEFAULT_MATH
    return _TENSOR_OP_MATH if is_tf32 or dtype != "f32" else _FMA_MATH


def _numbers(values: Sequence[int]) -> ctypes.Array[ctypes.c_int]:
    return (ctypes.c_int * len(values))(*values)


class Descriptors:
    """The library's descriptors of x, w, y and of how they are convolved; they are destroyed with this object.

    They are only read once they are made, so that all threads may use them. Raises DeviceError.
    """

    def __init__(self, library: Library, problem: Convolution, is_tf32: bool) -> None:
        self._library = library
        self._problem = str(problem)
        # made one after the other: what was made before a failure is destroyed
        self._made: list[tuple[str, ctypes.c_void_p]] = []
        layout = filter_format(problem) or "nchw"
        self.x = self._tensor(problem.x, layout)
        self.y = self._tensor(problem.y, layout)
        self.w = self._make("Filter")
        kind, shape = TYPES[problem.dtype], _numbers(_plane(problem.w).shape)
        self._call("cudnnSetFilterNdDescriptor", self.w, kind, _FORMATS[layout], len(shape), shape)
        self.convolution = self._make("Convolution")
        added = 1 if len(problem.spatial) == 1 else 0
        self._call(
            "cudnnSetConvolutionNdDescriptor",
            self.convolution,
            len(problem.spatial) + added,
            _numbers([0] * added + [before for before, _ in problem.padding]),
            _numbers([1] * added + list(problem.stride)),
            _numbers([1] * added + list(problem.dilation)),
            _MODES[problem.mode],
            TYPES["f64" if problem.dtype == "f64" else "f32"],
        )
        self._call("cudnnSetConvolutionGroupCount", self.convolution, problem.groups)
        self._call("cudnnSetConvolutionMathType", self.convolution, _math(problem.dtype, is_tf32))

    def _tensor(self, given: TensorDescriptor, layout: str) -> ctypes.c_void_p:
        made = self._make("Tensor")
        tensor = _plane(given)
        strides = settled_strides(tensor, _order_of(tensor, layout))
        shape, steps = _numbers(tensor.shape), _numbers(strides)
        self._call("cudnnSetTensorNdDescriptor", made, TYPES[tensor.dtype], len(shape), shape, steps)
        return made

    def _make(self, kind: str) -> ctypes.c_void_p:
        made = self._library.made(f"{kind}Descriptor")
        self._made.append((kind, made))
        return made

    def _call(self, name: str, *arguments: object) -> None:
        self._library.check(name, self._problem, *arguments)

    def __del__(self) -> None:
        try:
            for kind, made in self._made:
                self._library[f"cudnnDestroy{kind}Descriptor"](made)
        except Exception:
            return  # when Python ends, names and the library may be gone
