"""PyTorch's quantized convolution as the peer of 8-bit convolution; its filter is packed before the clock runs.

Of uint8 images by int8 filters with a scale for each channel. Its images are ours plus 128, with that as their zero
point, and all scales are 1, so that both compute the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from jitdnn.problems.convolution import Convolution

_ZERO = 128


def refuse(problem: Convolution) -> str | None:
    """Why PyTorch cannot run the 8-bit problem, or None."""
    if (problem.x.dtype, problem.y.dtype) != ("i8", "i8") or len(problem.spatial) != 2:
        return "PyTorch convolves integers in two dimensions, to integers of 8 bits: i8 to i8 is compared"
    return None


def prepare(
    torch: Any, problem: Convolution, sets: Sequence[Sequence[npt.NDArray[Any]]], order: Any
) -> Callable[[int], Any]:
    """A function of the number of the set to run on, with images in the memory order ``order``."""
    scales, zeros = torch.ones(problem.k), torch.zeros(problem.k, dtype=torch.int64)
    padding = [before for before, _ in problem.padding]
    geometry = (list(problem.stride), padding, list(problem.dilation), problem.groups)

    def pair(x: npt.NDArray[Any], w: npt.NDArray[Any]) -> tuple[Any, Any]:
        image, filters = (torch.from_numpy(np.ascontiguousarray(array)).float() for array in (x, w))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # these two are deprecated; the kernels that they lead to are not
            taken = torch.quantize_per_tensor(image, 1.0, _ZERO, torch.quint8)
            packed = torch.quantize_per_channel(filters, scales, zeros, 0, torch.qint8)
        taken = taken.contiguous(memory_format=order)
        return taken, torch.ops.quantized.conv2d_prepack(packed, None, *geometry)

    pairs = [pair(*arrays) for arrays in sets]

    def run(number: int) -> Any:
        return torch.ops.quantized.conv2d(*pairs[number % len(pairs)], 1.0, _ZERO)

    return run


def to_numpy(output: Any) -> npt.NDArray[np.float64]:
    """A result of the runner as our integers."""
    array: npt.NDArray[np.float64] = output.int_repr().numpy().astype(np.float64) - _ZERO
    return array
