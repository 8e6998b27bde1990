"""Copies of many boxes of bytes by one call of generated code, in which no other thread waits for Python's lock."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from jitdnn.rtcg.compile import Library, load
from jitdnn.rtcg.isa import isa
from jitdnn.rtcg.recording import compiling

_TEXT = """
declare void @llvm.memcpy.p0.p0.i64(ptr noalias, ptr noalias, i64, i1)

define void @copy_rows(ptr %sources, i64 %target, i64 %boxes, i64 %box_step, i64 %planes, i64 %from_plane,
                       i64 %to_plane, i64 %rows, i64 %from_row, i64 %to_row, i64 %bytes) nounwind {
start:
  br label %box
box:
  %b = phi i64 [0, %start], [%next_b, %box_end]
  %source_at = getelementptr i64, ptr %sources, i64 %b
  %source = load i64, ptr %source_at
  %offset = mul i64 %b, %box_step
  %to = add i64 %target, %offset
  br label %plane
plane:
  %p = phi i64 [0, %box], [%next_p, %plane_end]
  %plane_from = mul i64 %p, %from_plane
  %plane_to = mul i64 %p, %to_plane
  %from_first = add i64 %source, %plane_from
  %to_first = add i64 %to, %plane_to
  br label %row
row:
  %r = phi i64 [0, %plane], [%next_r, %row]
  %row_from = mul i64 %r, %from_row
  %row_to = mul i64 %r, %to_row
  %from = add i64 %from_first, %row_from
  %into = add i64 %to_first, %row_to
  %x = inttoptr i64 %from to ptr
  %y = inttoptr i64 %into to ptr
  call void @llvm.memcpy.p0.p0.i64(ptr %y, ptr %x, i64 %bytes, i1 false)
  %next_r = add i64 %r, 1
  %more_rows = icmp slt i64 %next_r, %rows
  br i1 %more_rows, label %row, label %plane_end
plane_end:
  %next_p = add i64 %p, 1
  %more_planes = icmp slt i64 %next_p, %planes
  br i1 %more_planes, label %plane, label %box_end
box_end:
  %next_b = add i64 %b, 1
  %more_boxes = icmp slt i64 %next_b, %boxes
  br i1 %more_boxes, label %box, label %end
end:
  ret void
}
"""


def copy_rows(
    sources: NDArray[np.int64],
    target: int,
    box_step: int,
    planes: tuple[int, int, int],
    rows: tuple[int, int, int],
    row_bytes: int,
) -> None:
    """Copy boxes of bytes: of each some planes of some rows, from the addresses `sources` to one after the other from
    `target` on, `box_step` bytes apart.

    `planes` and `rows`: how many there are, how far apart they are in a source, and how far in the target, in bytes.
    All memory must be there, and sources must not overlap the target; nothing checks it.
    """
    if len(sources) and min(planes[0], rows[0], row_bytes) > 0:
        function, _ = _function()
        function(sources.ctypes.data, target, len(sources), box_step, *planes, *rows, row_bytes)


@functools.cache
def _function() -> tuple[Callable[..., None], Library]:
    with compiling():
        library = load("copy_rows", _TEXT, isa("host"), lambda module: module.write(_TEXT))
    # a function of ctypes' CFUNCTYPE gives Python's lock back while it runs
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *(ctypes.c_int64,) * 10)
    return prototype(library.address("copy_rows")), library
