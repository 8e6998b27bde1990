"""Convolutions and matrix products as contractions, described by numbers."""

from __future__ import annotations

import math
from dataclasses import replace

from jitdnn.kernels.gpu.gemm.plan import Axis, Batch, Contraction
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.matmul import MatMul


def lower_convolution(problem: Convolution) -> Contraction:
    """A convolution of any direction."""
    return _lower_filter(problem) if problem.direction == "bwd_filter" else _lower_data(problem)


def _lower_data(problem: Convolution) -> Contraction:
    """Forward, or the gradient of the data: rows are positions of the result, terms are channels and taps."""
    is_forward = problem.direction == "fwd"
    x, w, y, groups = problem.x, problem.w, problem.y, problem.groups
    source, result = (x, y) if is_forward else (y, x)
    own, other = w.shape[0] // groups, w.shape[1]  # channels of y and of x in a group
    axes = []
    p_base = 0
    for a in range(len(problem.spatial)):
        p_stride = w.strides[2 + a]
        if problem.mode == "convolution":  # taps from the last to the first
            p_base += (w.shape[2 + a] - 1) * p_stride
            p_stride = -p_stride
        stride, dilation, before = problem.stride[a], problem.dilation[a], problem.padding[a][0]
        extents = (source.shape[2 + a], source.strides[2 + a], p_stride, result.strides[2 + a])
        taps, grid = w.shape[2 + a], result.shape[2 + a]
        if is_forward:
            axes.append(Axis(grid, stride, -before, taps, dilation, *extents))
        elif stride == 1:
            axes.append(Axis(grid, 1, before, taps, -dilation, *extents))
        else:
            period = stride // math.gcd(stride, dilation)
            stride_phases = (stride, before, dilation, grid, period)
            axes.append(Axis(-(-grid // stride), 1, 0, taps, 0, *extents, stride_phases=stride_phases))
    if any(axis.stride_phases for axis in axes):
        axes = [
            axis
            if axis.stride_phases
            else replace(axis, stride_phases=(1, axis.g_off, -axis.g_step, axis.grid, 1))
            for axis in axes
        ]
    ours, theirs = (own, other) if is_forward else (other, own)
    w_ours, w_theirs = (w.strides[0], w.strides[1]) if is_forward else (w.strides[1], w.strides[0])
    return Contraction(
        (source, w, result),
        (problem.n, source.strides[0], result.strides[0]),
        (theirs, source.strides[1], w_theirs),
        (ours, w_ours, result.strides[1]),
        tuple(axes),
        (Batch(groups, theirs * source.strides[1], own * w.strides[0], ours * result.strides[1]),),
        ("free_digit", "batch_digits[0] * columns + column", *(f"space[{a}]" for a in range(len(axes)))),
        problem.dtype,
        p_base=p_base,
        sums="i32" if problem.is_integer else "",
    )


def _lower_filter(problem: Convolution) -> Contraction:
    """The gradient of the filter: rows are channels of x and taps, terms are pixels, columns are channels of y."""
    x, w, y, groups = problem.x, problem.w, problem.y, problem.groups
    own, other = w.shape[0] // groups, w.shape[1]
    axes = []
    y_base = 0
    for a in range(len(problem.spatial)):
        y_stride = w.strides[2 + a]
        if problem.mode == "convolution":
            y_base += (w.shape[2 + a] - 1) * y_stride
            y_stride = -y_stride
        axes.append(
            Axis(
                w.shape[2 + a], problem.dilation[a], -problem.padding[a][0], y.shape[2 + a], problem.stride[a],
                x.shape[2 + a], x.strides[2 + a], y.strides[2 + a], y_stride,
            )
        )  # fmt: skip
    taps = [f"space[{a}]" for a in range(len(axes))]
    if problem.mode == "convolution":
        taps = [f"{w.shape[2 + a] - 1} - {tap}" for a, tap in enumerate(taps)]
    return Contraction(
        (x, y, w),
        (other, x.strides[1], w.strides[1]),
        (problem.n, x.strides[0], y.strides[0]),
        (own, y.strides[1], w.strides[0]),
        tuple(axes),
        (Batch(groups, other * x.strides[1], own * y.strides[1], own * w.strides[0]),),
        ("batch_digits[0] * columns + column", "free_digit", *taps),
        problem.dtype,
        y_base=y_base,
    )


def lower_matmul(problem: MatMul) -> Contraction:
    """A matrix product: rows and terms have no space."""
    a, b, c = problem.a, problem.b, problem.c
    batches = tuple(
        Batch(*numbers)
        for numbers in zip(c.shape[:-2], a.strides[:-2], b.strides[:-2], c.strides[:-2], strict=True)
    )
    return Contraction(
        (a, b, c),
        (problem.m, a.strides[-2], c.strides[-2]),
        (problem.k, a.strides[-1], b.strides[-2]),
        (problem.n, b.strides[-1], c.strides[-1]),
        (Axis(1, 0, 0, 1, 0, 1, 0, 0, 0),),
        batches or (Batch(1, 0, 0, 0),),
        (*(f"batch_digits[{i}]" for i in range(len(batches))), "free_digit", "column"),
        problem.dtype,
    )
