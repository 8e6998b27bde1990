"""Tensor maps as the emulator reads them: 128 bytes that mean nothing to a GPU; see `Map` in tma.h.

What the driver refuses is refused here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from jitdnn.devices.tensor_map import ALIGNMENT, MAP_BYTES, WORKSPACE, TensorMap
from jitdnn.errors import DeviceError
from jitdnn.tensor import DTYPES

_MARK = 0x70616D74
"""What begins no map that somebody else made."""
_CORNERS = {3: (-(2**15), 2**15 - 1), 4: (-128, 127), 5: (-16, 15)}
"""The least and the greatest corner of an im2col map of a rank."""


def check(tensor_map: TensorMap, pointers: int) -> None:
    """Raises DeviceError for a map that the driver would not make."""
    rank = tensor_map.rank

    def must(holds: bool, what: str) -> None:
        if not holds:
            raise DeviceError(f"tensor map: {what}: {tensor_map}")

    must(tensor_map.operand == WORKSPACE or 0 <= tensor_map.operand < pointers, "no such operand")
    must(3 <= rank <= 5, "the rank must be 3 to 5")
    must(len(tensor_map.strides) == rank - 1, "there must be a stride for each axis but the innermost")
    must(len(tensor_map.steps) == rank, "there must be a step for each axis")
    must(all(1 <= extent <= 2**32 - 1 for extent in tensor_map.extents), "extents must be positive")
    must(
        all(stride % ALIGNMENT == 0 and 0 < stride < 2**40 for stride in tensor_map.strides),
        f"strides must be positive multiples of {ALIGNMENT} bytes",
    )
    must(all(1 <= step <= 8 for step in tensor_map.steps), "steps must be 1 to 8")
    must(tensor_map.steps[0] == 1, "the step of the innermost axis must be 1")
    must(not tensor_map.is_rounded or tensor_map.dtype == "f32", "f32 alone is rounded to tf32")
    must(tensor_map.row_bytes in (128, 64, 32), "rows of a box must have 128, 64 or 32 bytes")
    if tensor_map.corners is None:
        must(len(tensor_map.box) == rank, "a box must have an extent for each axis")
        spans = [
            (extent - 1) * step + 1 for extent, step in zip(tensor_map.box, tensor_map.steps, strict=True)
        ]
        must(all(1 <= span <= 256 for span in spans), "extents of a box must be 1 to 256")
        return
    must(len(tensor_map.box) == 2, "the box of an im2col map is channels and pixels")
    must(1 <= tensor_map.box[1] <= 1024, "pixels of a box must be 1 to 1024")
    must(tensor_map.steps[-1] == 1, "the step of the outermost axis must be 1")
    least, greatest = _CORNERS[rank]
    for corner in tensor_map.corners:
        must(len(corner) == rank - 2, "a corner must have a position for each axis between the ends")
        must(all(least <= one <= greatest for one in corner), f"corners must be within [{least}, {greatest}]")


def encoded(tensor_map: TensorMap, pointers: Sequence[int], workspace: int) -> bytes:
    """The map over what a call gives. Raises DeviceError for an address that is not aligned."""
    begin = workspace if tensor_map.operand == WORKSPACE else pointers[tensor_map.operand]
    address = begin + tensor_map.offset
    if address % ALIGNMENT:
        raise DeviceError(f"tensor map: address {address:#x} must be a multiple of {ALIGNMENT}: {tensor_map}")
    lower, upper = tensor_map.corners or ((), ())
    values = struct.pack(
        "<Q4Q5II5H3h3h5B4B", address, *_filled(tensor_map.strides, 4), *_filled(tensor_map.extents, 5), _MARK,
        *_filled(tensor_map.box, 5), *_filled(lower, 3), *_filled(upper, 3), *_filled(tensor_map.steps, 5),
        DTYPES[tensor_map.dtype], tensor_map.rank, tensor_map.corners is not None, tensor_map.is_rounded,
    )  # fmt: skip
    return values.ljust(MAP_BYTES, b"\0")


def _filled(values: Sequence[int], count: int) -> tuple[int, ...]:
    return (*values, *(0,) * (count - len(values)))
