"""What kernels with box tiles share: rows of 32 channels in shared memory, and the TMA copies of their boxes."""

from __future__ import annotations

from dataclasses import replace

from jitdnn.devices.tensor_map import TensorMap
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.operands import Operand, line_map

Three = tuple[int, int, int]
CHANNELS, ROW = 32, 64
"""Of a row of shared memory, and its bytes."""
MOST_BOX = 256
"""Positions along an axis of a box of the copy engine."""
BARRIER_BYTES = 16  # of a stage
AMONG_OTHERS = 1.08
"""Factor on expected times, beside those of other products by warpgroups, which take some 8 % less than they are held
to (H200, 40 layers of 32 to 128 channels)."""
NOT_DIRECT = (
    "{} are read where they are: channels innermost, and a multiple of 16 bytes from one pixel to the next"
)


def box_map(operand: Operand, extents: Three) -> TensorMap:
    """Boxes of 32 channels by so many pixels, innermost axis first."""
    return replace(line_map(operand, CHANNELS, extents[0]), box=(CHANNELS, *extents, 1))
