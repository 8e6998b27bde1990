r"""Which positions of its source a result meets along an axis, and in which taps; a strided dgrad by stride phases.

    results      UNIT * b - DELTA + e      e = 0 ... UNIT - 1, the results of block b
    positions    STEP * b + LEAST + i      i = 0 ... REACH - 1, that they read

With stride 2, 3 taps, padding 1, and UNIT 2, STEP 1 (DELTA 0):

    positions of dy         b         b + 1
                           / \       /
    results of dx       2b     2b + 1                  tap = e + LEAD - stride * (LEAST + i)

No tap meets an inserted zero. Where a result of a block meets fewer taps than another, the product has zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

from jitdnn.kernels.cuda.convolution.half_precision.shape import Shape


@dataclass(frozen=True)
class Axis:
    """The numbers of the module's text, and the number of blocks b along the axis."""

    unit: int
    step: int
    delta: int
    lead: int
    least: int
    reach: int
    blocks: int


def _axis(extent: int, taps: int, stride: int, before: int, step: int, delta: int) -> Axis:
    unit, lead = stride * step, before - delta
    least = -((taps - 1 - lead) // stride)
    most = (unit - 1 + lead) // stride
    return Axis(unit, step, delta, lead, least, most - least + 1, (extent - 1 + delta) // unit + 1)


def axis_choice(shape: Shape, axis: int, step: int) -> Axis:
    """The axis of a dgrad with the cheapest `delta`: 0, which keeps channels aligned in pairs, if it costs no more."""
    numbers = shape.spatial[axis], shape.taps[axis], shape.stride[axis], shape.before[axis]
    choices = [_axis(*numbers, step, delta) for delta in range(shape.stride[axis])]
    return min(choices, key=lambda a: (a.reach * -(-a.blocks // 16), a.reach, a.delta))
