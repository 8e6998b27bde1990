"""Packing and transforms of Winograd's tiles: a vector of channels at a time, each one function of the generated code.

pack input        : rows of x to [row][position][lanes of channels], zero where x ends (transposed squares, or copies)
data transform    : a tile of that, or of x itself, to all points of V:  B^T d B
filter transform  : the packed taps of one subfilter to all points of U:  G w G^T
inverse transform : all points of M to the tile's results as [row][position][lanes of channels]:  A^T M A
store output      : that to y with alpha, beta and the epilogue
"""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.convolution.winograd.axes import is_inside
from jitdnn.kernels.cpu.convolution.winograd.plan import WinogradPlan
from jitdnn.kernels.cpu.correlation import View
from jitdnn.kernels.cpu.microkernel.constant_matrix import apply_to_grid
from jitdnn.kernels.cpu.microkernel.epilogue_store import Blend
from jitdnn.kernels.cpu.microkernel.transpose import transpose
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value


def trace_pack_input(module: Module, name: str, p: WinogradPlan, channels: int) -> Function:
    """Trace ``name(x, to, slice, row, column, count)`` for the first ``channels`` of a vector of channels.

    ``x`` points to the image's first position and channel; ``slice``, ``row`` and ``column`` are the first positions to
    read on the third axis and the two tiled ones, which may be outside; ``count`` columns are packed: neighbours, or
    the data of one tile where tiles are packed one by one.
    """
    c, lanes = p.c, p.lanes
    with module.function(
        name, x=c.x.dtype, to=c.dtype, slice=None, row=None, column=None, count=None
    ) as (k, (x, to, slice_, row, column, count), function):  # fmt: skip
        x = x + slice_ * c.x.space[p.untiled]
        there = is_inside(slice_, p.slices.positions)
        for i in k.range(p.rows.alpha):
            at = row + i * p.rows.spacing
            inside = there & is_inside(at, p.rows.axis.positions)
            line, target = x + at * c.x.space[p.tiled[0]], to + i * (p.packed_pitch * lanes)
            if p.x_is_channels_last:
                _copy_vectors(k, p, line, target, inside, column, count, channels)
            else:
                _copy_squares(k, p, line, target, inside, column, count, channels)
    return function


def _copy_vectors(
    k: Builder, p: WinogradPlan, line: Pointer, target: Pointer, inside: Value, column: Value, count: Value,
    channels: int,
) -> None:  # fmt: skip
    x = p.c.x
    for j in k.range(0, count):
        at = column + j * p.pack_step
        here = inside & is_inside(at, p.columns.axis.positions)
        mask = k.mask(k.select(here, k.integer(channels), 0), p.lanes)
        vector = line.load_strided(at * x.space[p.tiled[1]], x.channels, p.lanes, mask)
        target.store(_masked(k, x.channels, vector, mask), j * p.lanes)


def _copy_squares(
    k: Builder, p: WinogradPlan, line: Pointer, target: Pointer, inside: Value, column: Value, count: Value,
    channels: int,
) -> None:  # fmt: skip
    x, lanes = p.c.x, p.lanes
    stride = x.space[p.tiled[1]]
    blank = k.constant(0, p.c.dtype, lanes)
    # padding on either side is no part of a square: images of 16 columns fill theirs
    before = k.select(inside, (-column).max(0).min(count), count)
    end = (k.integer(p.columns.axis.positions) - column).max(before).min(count)
    for j in k.range(0, before):
        target.store(blank, j * lanes)
    for j in k.range(before, end, lanes):
        mask = k.mask(end - j, lanes)
        square = [
            _masked(
                k,
                stride,
                line.load_strided((column + j) * stride + i * x.channels, stride, lanes, mask),
                mask,
            )
            if i < channels
            else blank
            for i in range(lanes)
        ]
        for i, vector in enumerate(transpose(k, square)):
            target.store(vector, (j + i) * lanes)
    for j in k.range(end, count):
        target.store(blank, j * lanes)


def _masked(k: Builder, stride: int, vector: Value, mask: Value) -> Value:
    """A broadcast load (stride 0) ignores its mask."""
    return k.select(mask, vector, 0.0) if stride == 0 else vector


Kind = tuple[bool, bool]
"""Whether the subfilter of the rows and that of the columns are short."""


def trace_data_transform(
    module: Module, name: str, p: WinogradPlan, dtype: str, rows: int, columns: int, kind: Kind
) -> Function:
    """Trace ``name(data, to)``: a tile of type ``dtype``, with ``rows`` and ``columns`` from datum to datum, to V."""
    lanes = p.lanes
    matrices = p.rows.data_matrix(kind[0]), p.columns.data_matrix(kind[1])
    with module.function(name, data=dtype, to=p.c.dtype) as (k, (data, to), function):
        grid = [
            [data.load(i * rows + j * columns, lanes) for j in range(len(matrices[1]))]
            for i in range(len(matrices[0]))
        ]
        _store_points(to, apply_to_grid(k, matrices, grid), p.columns.alpha, p.v_pitch)
    return function


def trace_filter_transform(module: Module, name: str, p: WinogradPlan, kind: Kind) -> Function:
    """Trace ``name(packed, to)``: the packed taps of one subfilter, of one channel, to U."""
    lanes, strides = p.lanes, p.tap_strides
    a, b = p.rows.filter_matrix(kind[0]), p.columns.filter_matrix(kind[1])
    with module.function(name, packed=p.c.dtype, to=p.c.dtype) as (k, (packed, to), function):
        steps = p.rows.tap_step * strides[p.tiled[0]], p.columns.tap_step * strides[p.tiled[1]]
        grid = [
            [packed.load(i * steps[0] + j * steps[1], lanes) for j in range(len(b[0]))]
            for i in range(len(a[0]))
        ]
        _store_points(to, apply_to_grid(k, (a, b), grid), p.columns.alpha, p.u_pitch)
    return function


def _store_points(to: Pointer, grid: Sequence[Sequence[Value]], width: int, pitch: int) -> None:
    for i, row in enumerate(grid):
        for j, value in enumerate(row):
            to.store(value, (i * width + j) * pitch)


def trace_inverse_transform(module: Module, name: str, p: WinogradPlan) -> Function:
    """Trace ``name(sums, to)``: M of a tile at all points to its results in a tile row."""
    lanes, dilation = p.lanes, p.columns.dilation
    with module.function(name, sums=p.c.dtype, to=p.c.dtype) as (k, (sums, to), function):
        width = p.columns.alpha
        grid = [
            [sums.load((i * width + j) * p.m_pitch, lanes) for j in range(width)] for i in range(p.rows.alpha)
        ]
        matrices = p.rows.filtering().result, p.columns.filtering().result
        for i, row in enumerate(apply_to_grid(k, matrices, grid)):
            for j, value in enumerate(row):
                to.store(value, (i * p.result_pitch + j * dilation) * lanes)
    return function


def trace_store_output(module: Module, name: str, p: WinogradPlan, epilogue: Epilogue | None) -> Function:
    """Trace ``name(results, scale, y, operands..., channels, rows, columns, pitch)``: a tile row's results to y.

    The pointers are to the first result; ``scale`` points to alpha and beta, two doubles; rows are ``pitch`` elements
    apart. Of the results only those that exist are stored.
    """
    c = p.c
    views = (c.y, *c.operands)
    operands = {f"operand{i}": view.dtype for i, view in enumerate(c.operands)}
    with module.function(
        name, results=c.dtype, scale="f64", y=c.y.dtype, **operands, channels=None, rows=None, columns=None, pitch=None
    ) as (k, (results, scale, *rest), function):  # fmt: skip
        pointers, (channels, rows, columns, pitch) = rest[: len(views)], rest[len(views) :]
        blend = Blend(k, k.convert(scale.load(0), c.dtype), k.convert(scale.load(1), c.dtype), epilogue)
        for i in k.range(0, rows):
            lines = [
                pointer + i * (p.rows.dilation * view.space[p.tiled[0]])
                for pointer, view in zip(pointers, views, strict=True)
            ]
            source = results + i * pitch
            if p.y_is_channels_last:
                _store_vectors(k, p, source, blend, lines, views, channels, columns)
            else:
                _store_squares(k, p, source, blend, lines, views, channels, columns)
    return function


def _store_vectors(
    k: Builder, p: WinogradPlan, source: Pointer, blend: Blend, lines: Sequence[Pointer], views: Sequence[View],
    channels: Value, columns: Value,
) -> None:  # fmt: skip
    mask = k.mask(channels, p.lanes)
    for j in k.range(0, columns):
        targets = [line + j * v.space[p.tiled[1]] for line, v in zip(lines, views, strict=True)]
        strides = [v.channels for v in views]
        _store(k, p, source.load(j * p.lanes, p.lanes), blend, targets, strides, mask)


def _store_squares(
    k: Builder, p: WinogradPlan, source: Pointer, blend: Blend, lines: Sequence[Pointer], views: Sequence[View],
    channels: Value, columns: Value,
) -> None:  # fmt: skip
    lanes = p.lanes
    strides = [v.space[p.tiled[1]] for v in views]
    for j in k.range(0, columns, lanes):
        mask = k.mask(columns - j, lanes)
        square = [source.load((j + i) * lanes, lanes) for i in range(lanes)]
        for i, value in enumerate(transpose(k, square)):
            with k.when(channels > i):
                targets = [
                    line + (j * stride + i * v.channels)
                    for line, stride, v in zip(lines, strides, views, strict=True)
                ]
                _store(k, p, value, blend, targets, strides, mask)


def _store(
    k: Builder, p: WinogradPlan, value: Value, blend: Blend, targets: Sequence[Pointer], strides: Sequence[int],
    mask: Value,
) -> None:  # fmt: skip
    operands = [
        target.load_strided(0, stride, p.lanes, mask)
        for target, stride in zip(targets[1:], strides[1:], strict=True)
    ]
    blend.store(targets[0], strides[0], value, operands, mask)
