"""Which extents of a problem are arguments of its kernel: those that vary from call to call, not the configuration.

The batch, rows of a matrix, pixels of convolutions with one tap, and strides that follow from them. One image is a
configuration of its own. What sizes are chosen from them (register tiles, blocks, how channels are divided) is part of
the code, as are channels, filters and strides between neighbours. A kernel is traced with such extents in place of
numbers, and what tracing decides by them is noted (`rtcg/extents.py`): the code is for every problem for which it would
decide the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jitdnn.kernels.cpu.correlation import Axis, Correlation, InterleavedPhases, View
from jitdnn.rtcg.extents import Extents

#: whether code that cannot be traced with extents is an error, as in the tests, and not compiled for each shape
is_strict = False
_LEAST_STRIDE = 16  # what is nearer is read by shuffles or as one vector: that is another code


def with_extents(
    code: Any, extents: Extents, takes_pixels: bool = False, phase_strides: Sequence[int] = (1, 1, 1, 1)
) -> Any:
    """A plan, a correlation or a tuple of such, with extents in place of the numbers that vary.

    A dataclass may have a method ``with_extents`` of its own, which gets itself with extents in it and adds others.
    ``takes_pixels``: also those of images, as plans say whose inner loops have no strides between rows of pixels.
    ``phase_strides``: how many results of stride phases that are computed together lie from one result of a phase to
    the next, along the batch and the three axes, as their plans say.
    """
    if isinstance(code, Correlation):
        return _correlation(code, extents, takes_pixels, phase_strides)
    if isinstance(code, InterleavedPhases) and code.is_single:
        return InterleavedPhases.single(_correlation(code.whole, extents, takes_pixels, phase_strides))
    if isinstance(code, tuple) and type(code) is tuple:
        return tuple(with_extents(each, extents, takes_pixels, phase_strides) for each in code)
    if dataclasses.is_dataclass(code) and not isinstance(code, type):
        takes_pixels = getattr(code, "takes_pixels", takes_pixels)
        phase_strides = getattr(code, "phase_strides", phase_strides)
        own = {field.name: getattr(code, field.name) for field in dataclasses.fields(code) if field.init}
        new = {name: with_extents(value, extents, takes_pixels, phase_strides) for name, value in own.items()}
        changed = {name: value for name, value in new.items() if value is not own[name]}
        made: Any = dataclasses.replace(code, **changed) if changed else code
        further = getattr(code, "with_extents", None)
        return made if further is None else further(made, extents)
    return code


def _correlation(
    c: Correlation, extents: Extents, takes_pixels: bool, phase_strides: Sequence[int]
) -> Correlation:
    # along an axis with one result of each stride phase there are as many results as phases
    reached = [
        axis.results * axis.positions * phases for axis, phases in zip(c.axes, phase_strides[1:], strict=True)
    ]

    def view(name: str, given: View) -> View:
        (batch,) = _used((given.batch,), (c.batch,))
        batch = stride_extent(extents, f"{name}.batch", batch)
        d, h, w = _used(given.space, reached)
        if takes_pixels:
            d, h = stride_extent(extents, f"{name}.planes", d), stride_extent(extents, f"{name}.rows", h)
        return dataclasses.replace(given, batch=batch, groups=_used(given.groups, c.groups), space=(d, h, w))

    axes = [_axis(i, axis, extents, takes_pixels) for i, axis in enumerate(c.axes)]
    return dataclasses.replace(
        c,
        batch=extents.extent("batch", c.batch) if c.batch > 1 else c.batch,
        axes=(axes[0], axes[1], axes[2]),
        x=view("x", c.x),
        w=dataclasses.replace(c.w, groups=_used(c.w.groups, c.groups)),
        y=view("y", c.y),
        operands=tuple(view(f"operand{i}", operand) for i, operand in enumerate(c.operands)),
    )


def _axis(number: int, axis: Axis, extents: Extents, takes_pixels: bool) -> Axis:
    if axis.is_plain and axis.positions == axis.results and axis.results > 1:
        rows: Any = extents.extent(f"rows{number}", axis.results)
        return dataclasses.replace(axis, results=rows, positions=rows)
    if takes_pixels and axis.results > 1:
        results: Any = extents.extent(f"results{number}", axis.results)
        positions: Any = extents.extent(f"positions{number}", axis.positions)
        return dataclasses.replace(axis, results=results, positions=positions)
    return axis


def _used(strides: Sequence[int], extents: Sequence[int]) -> tuple[int, ...]:
    """The strides with 0 for those by which nobody goes, as there is one element: they may be anything."""
    return tuple(
        0 if of == 1 and abs(stride) >= _LEAST_STRIDE else stride
        for stride, of in zip(strides, extents, strict=True)
    )


def stride_extent(extents: Extents, name: str, stride: int) -> Any:
    """The stride as an extent; a short one stays a number."""
    return extents.extent(name, stride) if abs(stride) >= _LEAST_STRIDE else stride
