"""Batch normalization of channels that are neighbours in memory, in the order of memory.

Rows of one channel are as far apart as a pixel has channels, so a pass over all pixels for some channels reads a part
of each page, and the next channels' pass comes back to all of them. Here pixels are in runs: of a run all channels are
done, some vectors of them at a time, before the next run. That is what is done of images, for any run of pixels: batch
and space are one axis, which is cut into runs in place of images.

Results are written pixel by pixel. With 1,024 channels pixels are 4 KiB apart: channel by channel, a load would have
the last 12 bits of the address of the store before it, for which it then waits.
"""

from __future__ import annotations

from dataclasses import replace
from math import log, prod
from typing import Any

from jitdnn.kernels.cpu import cost
from jitdnn.problems.batch_norm import BatchNorm
from jitdnn.problems.normalization import LIKE_X
from jitdnn.rtcg.processor import Processor
from jitdnn.tensor import DTYPES, TensorDescriptor

CHANNELS = (1,)  # the axis that results are written along
_RUN = 64  # pixels: of shorter runs the sums are many, of longer ones the pages
_SHORTEST, _LONGEST = 16, 512


def in_runs(problem: BatchNorm, processor: Processor) -> BatchNorm | None:
    """The same problem with x of shape (runs, C, pixels of a run); None where pixels are no one axis, or in no runs."""
    pixels, channels = problem.count, problem.x.shape[1]
    if channels == 1 or not all(_is_one_axis(o.descriptor) for o in problem.operands if o.name in LIKE_X):
        return None
    most = processor.l2(cost.NORMALIZATION_RUN_L2) // (channels * DTYPES[problem.x.dtype])
    run = _divisor(pixels, min(_RUN, most))
    if run is None:
        return None
    shape = pixels // run, channels, run
    strides = run * channels, 1, channels

    def of(tensor: TensorDescriptor | None) -> TensorDescriptor | None:
        return None if tensor is None else TensorDescriptor(shape, strides, tensor.dtype)

    in_pieces: dict[str, Any] = {name: of(getattr(problem, name)) for name in sorted(LIKE_X)}
    return replace(problem, **in_pieces)


def _is_one_axis(tensor: TensorDescriptor) -> bool:
    """Whether channels are neighbours, and pixels of all images follow each other without gaps."""
    channels, distance = tensor.shape[1], tensor.shape[1]
    for axis in reversed([0, *range(2, len(tensor.shape))]):
        if tensor.shape[axis] > 1 and tensor.strides[axis] != distance:
            return False
        distance *= tensor.shape[axis]
    return tensor.strides[1] == 1 and distance == prod(tensor.shape) and channels > 1


def _divisor(pixels: int, wanted: int) -> int | None:
    """The length of run nearest to the wanted one that divides all pixels."""
    lengths = [n for n in range(_SHORTEST, min(_LONGEST, pixels // 2) + 1) if pixels % n == 0]
    return min(lengths, key=lambda n: abs(log(n / max(1, wanted))), default=None)
