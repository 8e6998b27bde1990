"""Problems as correlations: what each result of a convolution or of a matrix product reads, in any direction.

A strided dgrad is a correlation for each stride phase. Where a filter fits into its stride, stride phases that see
one tap each are groups of one correlation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jitdnn.kernels.cpu.correlation import (
    Axis,
    Correlation,
    FilterView,
    InterleavedPhases,
    StridePhase,
    Taps,
    View,
)
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.matmul import MatMul
from jitdnn.rtcg.isa import WIDENED
from jitdnn.tensor import TensorDescriptor, compute_dtype


def _three(strides: Sequence[int]) -> tuple[int, int, int]:
    a, b, c = (0,) * (3 - len(strides)) + tuple(strides)
    return a, b, c


def stored_dtype(dtype: str, computing: str) -> str:
    """A type in memory as pointers state it: ``stored:loaded`` if it is loaded as another type than its own.

    Types of 8 and 16 bits are always loaded as f32 and state only themselves.
    """
    return (
        dtype if dtype == computing or (dtype in WIDENED and computing == "f32") else f"{dtype}:{computing}"
    )


def view_of(tensor: TensorDescriptor, groups: int, computing: str) -> View:
    """A tensor [N, C, space] whose channels form groups."""
    n, c, *space = tensor.strides
    return View(stored_dtype(tensor.dtype, computing), n, (tensor.shape[1] // groups * c,), c, _three(space))


def lower_convolution(
    problem: Convolution, operands: Sequence[TensorDescriptor] = (), separate: bool = False
) -> tuple[Correlation, ...]:
    """The correlations that together write every element of the result of fprop or dgrad once.

    wgrad sums the same products, so it is lowered to the correlation of its fprop. With ``separate`` each stride
    phase of the last axis of a dgrad is a correlation of its own, and those of an axis follow each other.
    """
    whole, stated = _without_axes(problem, operands), list(_stated_axes(problem))
    if problem.direction != "bwd_data":
        axes = [_fprop_axis(axis) for axis in stated]
        return (replace(whole, axes=_pad_axes(axes)),)
    runs = [_phase_runs(axis) for axis in stated[:-1]] + [_phase_runs(stated[-1], not separate)]
    return tuple(_of_phase_runs(whole, stated, chosen) for chosen in itertools.product(*runs))


def lower_single_position(
    problem: Convolution, operands: Sequence[TensorDescriptor] = ()
) -> Correlation | None:
    """A dgrad whose filter has the size of its image, without padding: a matrix product, dx[n, cs] = dy[n, k] w[k, cs].

    None if it is no such problem, or if channels and positions of a tensor are not contiguous.
    """
    stated = list(_stated_axes(problem))
    if problem.direction != "bwd_data" or any(
        axis.results != 1 or axis.positions != axis.taps or axis.before or axis.dilation > 1 or axis.flipped
        for axis in stated
    ):
        return None
    strides = [_contiguous_stride(tensor) for tensor in (problem.w, problem.x, *operands)]
    if any(stride is None for stride in strides):
        return None
    whole = _without_axes(problem, operands)
    w_stride, y_stride, *others = (stride or 0 for stride in strides)

    def rows_are_images(view: View, stride: int) -> View:
        return replace(view, channels=stride, space=(0, 0, view.batch))

    return replace(
        whole,
        width=whole.width * math.prod(axis.positions for axis in stated),
        x=rows_are_images(whole.x, whole.x.channels),
        w=replace(whole.w, results=w_stride, space=(0, 0, 0)),
        y=rows_are_images(whole.y, y_stride),
        operands=tuple(rows_are_images(v, stride) for v, stride in zip(whole.operands, others, strict=True)),
    )


def _contiguous_stride(tensor: TensorDescriptor) -> int | None:
    """The stride of all axes but the first as a single axis, or None if they are not one."""
    dims = [dim for dim in zip(tensor.shape[1:], tensor.strides[1:], strict=True) if dim[0] != 1]
    if not dims:
        return 1
    joins = all(outer[1] == inner[0] * inner[1] for outer, inner in itertools.pairwise(dims))
    return dims[-1][1] if joins else None


def lower_stride_phases(problem: Convolution, operands: Sequence[TensorDescriptor] = ()) -> InterleavedPhases:
    """A strided dgrad as stride phases that are computed together; those without taps are left out."""
    whole, stated = _without_axes(problem, operands), list(_stated_axes(problem))
    every = [[_dgrad_axis(axis, r) for r in range(min(axis.stride, axis.positions))] for axis in stated]
    padded = [[Axis(1, 1, 1, Taps(1))]] * (3 - len(stated)) + every
    covering = [replace(axes[0], taps=_covering([axis.taps for axis in axes])) for axes in padded]
    whole = replace(whole, axes=(covering[0], covering[1], covering[2]))
    stride_phases = []
    for remainder in itertools.product(*(range(len(axes)) for axes in padded)):
        taps = [padded[i][r].taps for i, r in enumerate(remainder)]
        a, b, c = (replace(axis, taps=own) for axis, own in zip(covering, taps, strict=True))
        stride_phases.append(
            StridePhase((remainder[0], remainder[1], remainder[2]), replace(whole, axes=(a, b, c)))
        )
    strides = [len(axes) for axes in padded]
    extents = [1] * (3 - len(stated)) + [axis.positions for axis in stated]
    return InterleavedPhases(
        whole, (strides[0], strides[1], strides[2]), (extents[0], extents[1], extents[2]),
        tuple(stride_phase for stride_phase in stride_phases if stride_phase.c.taps),
    )  # fmt: skip


def _covering(several: Sequence[Taps]) -> Taps:
    """Contiguous taps that read all positions that any of several taps read."""
    several = [taps for taps in several if taps.count] or [Taps(1)]
    lowest = min(taps.lowest for taps in several)
    highest = max(taps.lowest + taps.span for taps in several)
    return Taps(highest - lowest + 1, 0, 1, lowest, 1)


def _without_axes(problem: Convolution, operands: Sequence[TensorDescriptor]) -> Correlation:
    """The correlation of an fprop or dgrad, with axes of space that are still to be set."""
    groups = problem.groups
    forward = problem.direction != "bwd_data"
    data, result = (problem.x, problem.y) if forward else (problem.y, problem.x)
    k, c, *space = problem.w.strides
    group = problem.w.shape[0] // groups * k
    computing = compute_dtype(problem.dtype)
    results, channels = (k, c) if forward else (c, k)
    w = FilterView(stored_dtype(problem.w.dtype, computing), (group,), results, channels, _three(space))
    return Correlation(
        dtype=computing,
        batch=result.shape[0],
        groups=(groups,),
        depth=data.shape[1] // groups,
        width=result.shape[1] // groups,
        axes=(Axis(1, 1, 1, Taps(1)),) * 3,
        x=view_of(data, groups, computing),
        w=w,
        y=view_of(result, groups, computing),
        operands=tuple(view_of(o, groups, computing) for o in operands),
    )


@dataclass(frozen=True)
class _PhaseRun:
    """Neighbouring stride phases of one axis that differ only in the filter element of their first tap."""

    first: int
    count: int
    axis: Axis
    start_step: int


def _phase_runs(stated: _StatedAxis, join: bool = True) -> list[_PhaseRun]:
    """The stride phases of an axis as few runs: one or two if the filter is not larger than the stride."""
    runs: list[_PhaseRun] = []
    for remainder in range(min(stated.stride, stated.positions)):
        axis = _dgrad_axis(stated, remainder)
        if runs and join:
            last = runs[-1]
            is_alike = replace(axis, taps=replace(axis.taps, start=last.axis.taps.start)) == last.axis
            step = axis.taps.start - last.axis.taps.start
            if is_alike and (last.count == 1 or step == last.count * last.start_step):
                start_step = step if last.count == 1 else last.start_step
                runs[-1] = replace(last, count=last.count + 1, start_step=start_step)
                continue
        runs.append(_PhaseRun(remainder, 1, axis, 0))
    return runs


def _of_phase_runs(
    whole: Correlation, stated: Sequence[_StatedAxis], chosen: Sequence[_PhaseRun]
) -> Correlation:
    """The part of a dgrad with one run of stride phases for each axis; the phases of a run count as groups."""
    pad = 3 - len(stated)
    strides = (1,) * pad + tuple(axis.stride for axis in stated)
    firsts = (0,) * pad + tuple(run.first for run in chosen)
    many = [(pad + i, run) for i, run in enumerate(chosen) if run.count > 1]

    def result(view: View) -> View:
        every = _every(view, strides, firsts)
        return replace(every, groups=every.groups + tuple(view.space[axis] for axis, _ in many))

    return replace(
        whole,
        groups=whole.groups + tuple(run.count for _, run in many),
        axes=_pad_axes([run.axis for run in chosen]),
        x=replace(whole.x, groups=whole.x.groups + (0,) * len(many)),
        w=replace(
            whole.w,
            groups=whole.w.groups + tuple(whole.w.space[axis] * run.start_step for axis, run in many),
        ),
        y=result(whole.y),
        operands=tuple(result(o) for o in whole.operands),
    )


@dataclass(frozen=True)
class _StatedAxis:
    """One axis of a convolution as its problem states it."""

    positions: int
    results: int
    taps: int
    stride: int
    before: int
    dilation: int
    flipped: bool


def _stated_axes(problem: Convolution) -> Iterator[_StatedAxis]:
    flipped = problem.mode == "convolution"
    for i, positions in enumerate(problem.x.shape[2:]):
        results, taps = problem.y.shape[2 + i], problem.w.shape[2 + i]
        before, dilation = problem.padding[i][0], problem.dilation[i]
        yield _StatedAxis(positions, results, taps, problem.stride[i], before, dilation, flipped)


def _fprop_axis(stated: _StatedAxis) -> Axis:
    start, increment = (stated.taps - 1, -1) if stated.flipped else (0, 1)
    taps = Taps(stated.taps, start, increment, -stated.before, stated.dilation)
    return Axis(stated.results, stated.positions, stated.stride, taps)


def _dgrad_axis(stated: _StatedAxis, remainder: int) -> Axis:
    """The axis of a stride phase: result p is position ``remainder + p * stride``.

    Tap r reads p + (remainder + before - r * dilation) / stride, and is left out where that is no integer.
    """
    results = -(-(stated.positions - remainder) // stated.stride)
    distances = {r: remainder + stated.before - r * stated.dilation for r in range(stated.taps)}
    hits = [r for r, distance in distances.items() if distance % stated.stride == 0]
    if not hits:
        return Axis(results, stated.results, 1, Taps(0))
    offsets = [distances[r] // stated.stride for r in hits]
    elements = [stated.taps - 1 - r if stated.flipped else r for r in hits]
    if len(hits) == 1:
        return Axis(results, stated.results, 1, Taps(1, elements[0], 1, offsets[0], 1))
    increment, shift = elements[1] - elements[0], offsets[1] - offsets[0]
    return Axis(results, stated.results, 1, Taps(len(hits), elements[0], increment, offsets[0], shift))


def _pad_axes(axes: Sequence[Axis]) -> tuple[Axis, Axis, Axis]:
    a, b, c = (Axis(1, 1, 1, Taps(1)),) * (3 - len(axes)) + tuple(axes)
    return a, b, c


def _every(view: View, strides: Sequence[int], firsts: Sequence[int]) -> View:
    """The view of every ``strides``-th position from ``firsts`` on."""
    offset = sum(r * s for r, s in zip(firsts, view.space, strict=True))
    space = _three([s * step for s, step in zip(view.space, strides, strict=True)])
    return replace(view, space=space, offset=view.offset + offset)


def lower_matmul(problem: MatMul, operands: Sequence[TensorDescriptor] = ()) -> Correlation:
    """c[m, n] = sum over k of a[m, k] b[k, n]: m as pixels, k as channels read, n as channels made."""
    a, b, c = problem.a, problem.b, problem.c
    batch = tuple(c.shape[:-2]) or (1,)

    def groups(tensor: TensorDescriptor) -> tuple[int, ...]:
        """Strides along the batch; 0 along what is broadcast."""
        own = [
            0 if extent == 1 else stride
            for extent, stride in zip(tensor.shape[:-2], tensor.strides[:-2], strict=True)
        ]
        return (0,) * (len(batch) - len(own)) + tuple(own)

    def view(tensor: TensorDescriptor) -> View:
        """A matrix whose rows are pixels and whose columns are channels."""
        dtype = stored_dtype(tensor.dtype, computing)
        return View(dtype, 0, groups(tensor), tensor.strides[-1], (0, 0, tensor.strides[-2]))

    computing = compute_dtype(problem.dtype)
    m, depth = a.shape[-2:]
    return Correlation(
        dtype=computing,
        batch=1,
        groups=batch,
        depth=depth,
        width=b.shape[-1],
        axes=_pad_axes([Axis(m, m, 1, Taps(1))]),
        x=view(a),
        w=FilterView(stored_dtype(b.dtype, computing), groups(b), b.strides[-1], b.strides[-2], (0, 0, 0)),
        y=view(c),
        operands=tuple(view(o) for o in operands),
    )
