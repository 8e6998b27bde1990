"""Contractions on the ordinary units: a gathered operand times a plain one, for any strides, types and sizes.

`Contraction` states one in numbers; `lower_convolution` and `lower_matmul` make it of problems. The kernel is
`gemm.c`, which says what the numbers mean. Everything but structure is an argument, so that one compiled kernel
serves every size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jitdnn.devices.gpu import GpuDevice, Kernel, Launch, Source, read_text
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.gpu.prelude.epilogue import epilogue_source
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.matmul import MatMul
from jitdnn.tensor import DTYPES, REAL_DTYPES, TensorDescriptor, compute_dtype

_THREADS = 256
_GROUPS_WANTED = 4  # a multiprocessor, before the terms are split among groups
_MOST_SPLITS = 64
_FEWEST_TERMS = 256  # of a split
_EFFICIENCY = 0.6  # of the peak, of the large tiles


@dataclass(frozen=True)
class Axis:
    """One axis of space; `gemm.c` says what becomes of the numbers.

    `residues`: (stride, before, dilation, results, period) where rows go by residues of the stride.
    """

    grid: int
    g_mul: int
    g_off: int
    taps: int
    g_step: int
    extent: int
    g_stride: int
    p_stride: int
    y_stride: int
    t_start: int = 0
    t_step: int = 1
    y_mul: int = 1
    y_off: int = 0
    residues: tuple[int, int, int, int, int] | None = None


@dataclass(frozen=True)
class Batch:
    """An axis of independent contractions: groups, or a batch of matrices."""

    extent: int
    g: int
    p: int
    y: int


@dataclass(frozen=True)
class Contraction:
    """Strides are in elements. `rows` and `terms` name the free digits (extent, step in g, step in y or p), `columns`
    (extent, step in p, step in y). `place` are the indices of an element of y in the names of `gemm.c`."""

    operands: tuple[TensorDescriptor, TensorDescriptor, TensorDescriptor]
    rows: tuple[int, int, int]
    terms: tuple[int, int, int]
    columns: tuple[int, int, int]
    axes: tuple[Axis, ...]
    batches: tuple[Batch, ...]
    place: tuple[str, ...]
    dtype: str  # of the arithmetic
    p_base: int = 0
    y_base: int = 0
    sums: str = ""

    @property
    def by_residues(self) -> bool:
        return any(axis.residues for axis in self.axes)

    @property
    def row_count(self) -> int:
        return self.rows[0] * math.prod(axis.grid for axis in self.axes)

    @property
    def term_count(self) -> int:
        """Terms of a sum; of the residue with the most taps."""
        taps = (-(-axis.taps // axis.residues[4]) if axis.residues else axis.taps for axis in self.axes)
        return self.terms[0] * math.prod(taps)

    @property
    def group_count(self) -> int:
        return math.prod(batch.extent for batch in self.batches)

    @property
    def residue_count(self) -> int:
        return math.prod(axis.residues[0] for axis in self.axes if axis.residues)


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
            residues = (stride, before, dilation, grid, period)
            axes.append(Axis(-(-grid // stride), 1, 0, taps, 0, *extents, residues=residues))
    if any(axis.residues for axis in axes):
        axes = [
            axis if axis.residues else replace(axis, residues=(1, axis.g_off, -axis.g_step, axis.grid, 1))
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
        ("free_digit", "group_digits[0] * columns + column", *(f"space[{a}]" for a in range(len(axes)))),
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
        ("group_digits[0] * columns + column", "free_digit", *taps),
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
        (*(f"group_digits[{i}]" for i in range(len(batches))), "free_digit", "column"),
        problem.dtype,
    )


@dataclass(frozen=True)
class Tiling:
    """Rows and columns of a group of threads, terms at a time, rows and columns of a thread."""

    rows: int
    columns: int
    depth: int
    thread_rows: int
    thread_columns: int

    @property
    def shared(self) -> int:
        """Elements of group memory."""
        return 2 * self.depth * (self.rows + self.columns + 8)


# by the size of an element of the sums, larger tiles first
_TILINGS = {
    4: (Tiling(128, 128, 8, 8, 8), Tiling(128, 64, 8, 8, 4), Tiling(64, 64, 8, 4, 4), Tiling(128, 16, 8, 4, 2),
        Tiling(256, 4, 8, 4, 1), Tiling(256, 1, 8, 1, 1)),
    8: (Tiling(64, 64, 8, 4, 4), Tiling(128, 16, 8, 4, 2), Tiling(256, 4, 8, 4, 1), Tiling(256, 1, 8, 1, 1)),
}  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """How a contraction is cut, and how long that should take."""

    tiling: Tiling
    splits: int
    split_steps: int
    seconds: float


def choose(c: Contraction, device: GpuDevice) -> Choice:
    """The tiling, and number of parts that the terms are cut into, that should be fastest."""
    item = DTYPES[c.sums or compute_dtype(c.dtype)]
    return min((_cut(c, tiling, device) for tiling in _TILINGS[item]), key=lambda choice: choice.seconds)


def _cut(c: Contraction, tiling: Tiling, device: GpuDevice) -> Choice:
    tiles = (
        -(-c.row_count // tiling.rows) * -(-c.columns[0] // tiling.columns) * c.group_count * c.residue_count
    )
    steps = max(1, -(-c.term_count // tiling.depth))
    splits = 1
    if not c.by_residues:
        wanted = -(-_GROUPS_WANTED * device.multiprocessors // max(1, tiles))
        splits = max(1, min(wanted, _MOST_SPLITS, c.term_count // _FEWEST_TERMS))
    split_steps = -(-steps // splits)
    splits = -(-steps // split_steps)
    # registers full of sums feed the units; small tiles wait for the group's memory
    work = tiling.thread_rows * tiling.thread_columns
    efficiency = _EFFICIENCY * work / (work + 2 * (tiling.thread_rows + tiling.thread_columns))
    rate = efficiency * device.peak_flops(c.dtype) / device.multiprocessors
    waves = -(-tiles * splits // device.multiprocessors)
    flops = 2 * tiling.rows * tiling.columns * split_steps * tiling.depth
    moved = sum(tensor.nbytes for tensor in c.operands)
    if splits > 1:
        moved += 2 * splits * c.group_count * c.row_count * c.columns[0] * 4
    seconds = 4e-6 * (1 + (splits > 1)) + max(waves * flops / rate, moved / device.bandwidth)
    return Choice(tiling, splits, split_steps, seconds)


def workspace(c: Contraction, device: GpuDevice) -> int:
    """Bytes for the partial sums."""
    choice = choose(c, device)
    if choice.splits == 1:
        return 0
    results = c.group_count * c.row_count * c.columns[0]
    return choice.splits * results * DTYPES[c.sums or compute_dtype(c.dtype)]


def build(c: Contraction, device: GpuDevice, epilogue: Epilogue | None) -> Kernel:
    """The kernel; pointers in the order of the operands, then those of the epilogue."""
    choice = choose(c, device)
    tiling = choice.tiling
    tiles_g, tiles_p = -(-c.row_count // tiling.rows), -(-c.columns[0] // tiling.columns)
    numbers: dict[str, int] = {
        "tiles_g": tiles_g, "tiles_p": tiles_p, "splits": choice.splits, "split_steps": choice.split_steps,
        "groups": c.group_count, "p_base": c.p_base, "y_base": c.y_base,
        "rows_free": c.rows[0], "row_free_g": c.rows[1], "row_free_y": c.rows[2],
        "k_free": c.terms[0], "k_free_g": c.terms[1], "k_free_p": c.terms[2],
        "columns": c.columns[0], "column_p": c.columns[1], "column_y": c.columns[2],
    }  # fmt: skip
    for name in (
        "grid", "g_mul", "g_off", "taps", "g_step", "extent", "g_stride", "p_stride", "y_stride", "t_start",
        "t_step", "y_mul", "y_off",
    ):  # fmt: skip
        numbers |= {f"{name}{a}": getattr(axis, name) for a, axis in enumerate(c.axes)}
    for number, name in enumerate(("stride", "before", "dilation", "result", "period")):
        numbers |= {f"{name}{a}": axis.residues[number] for a, axis in enumerate(c.axes) if axis.residues}
    for name in ("extent", "g", "p", "y"):
        numbers |= {f"group_{name}{a}": getattr(batch, name) for a, batch in enumerate(c.batches)}
    fused = epilogue_source(epilogue, c.operands[2], compute_dtype(c.dtype), 3)
    source = Source(
        "contraction",
        fused.functions + read_text("gpu/gemm", "gemm.c"),
        (*_structure(c, tiling).items(), ("PARAMETERS", ", ".join(f"i64 {name}" for name in numbers)),
         ("EPILOGUE_PARAMETERS", fused.parameters), ("EPILOGUE(sum)", fused.apply("sum", c.place))),
    )  # fmt: skip
    groups = tiles_g * tiles_p * choice.splits * c.group_count * c.residue_count
    launches = [Launch("contract", groups, _THREADS)]
    if choice.splits > 1:
        results = c.group_count * c.row_count * c.columns[0]
        launches.append(Launch("finish", -(-results // _THREADS), _THREADS))
    pointers = 3 + (len(epilogue.operands) if epilogue else 0)
    return device.kernel(source, launches, pointers, list(numbers.values()))


def _structure(c: Contraction, tiling: Tiling) -> dict[str, object]:
    """What is compiled in."""
    g, p, y = c.operands
    computing = compute_dtype(c.dtype)
    most = max(max(map(abs, tensor.span())) for tensor in c.operands)
    lists = [[f"name##{a}" for a in range(len(parts))] for parts in (c.axes, c.batches)]
    counts = max(c.row_count * max(c.residue_count, 1), c.term_count, c.group_count * c.row_count)
    return {
        "G_TYPE": g.dtype, "P_TYPE": p.dtype, "Y_TYPE": y.dtype, "SUM": c.sums or computing, "REAL": computing,
        "Y_IS_WHOLE": int(y.dtype not in REAL_DTYPES),
        "INDEX": "i32" if most < 2**31 - 2**20 else "i64", "NUMBER": "u32" if counts < 2**31 else "u64",
        "AXES": len(c.axes), "GROUP_AXES": len(c.batches), "RESIDUES": int(c.by_residues),
        "TG": tiling.rows, "TP": tiling.columns, "TK": tiling.depth, "RG": tiling.thread_rows,
        "RP": tiling.thread_columns, "GROUP_THREADS": _THREADS,
        "G_ALONG_K": int(_is_nearer(c.terms[1], c.rows[1], [axis.g_stride for axis in c.axes], c)),
        "P_ALONG_K": int(_nearest(c.terms[2], [axis.p_stride for axis in c.axes]) < abs(c.columns[1])),
        "FREE_INNER": int(_is_first(c.terms[1], [axis.g_stride for axis in c.axes])),
        "ROW_FREE_INNER": int(_is_first(c.rows[1], [axis.g_stride for axis in c.axes])),
        "LANES_ALONG_P": int(abs(c.columns[2]) <= _nearest(c.rows[2], [axis.y_stride for axis in c.axes])),
        "LIST(name)": f"{{{', '.join('(i32)' + name for name in lists[0])}}}",
        "STRIDE_LIST(name)": f"{{{', '.join(lists[0])}}}", "GROUP_LIST(name)": f"{{{', '.join(lists[1])}}}",
    }  # fmt: skip


def _nearest(free: int, steps: Sequence[int]) -> int:
    """The smallest step that leads anywhere."""
    return min((abs(step) for step in (free, *steps) if step), default=0)


def _is_first(free: int, steps: Sequence[int]) -> bool:
    return 0 < abs(free) <= min((abs(step) for step in steps if step), default=abs(free))


def _is_nearer(term: int, row: int, steps: Sequence[int], c: Contraction) -> bool:
    """Whether neighbouring terms of the gathered operand are closer than neighbouring rows."""
    if _is_first(term, steps):
        return True
    # where rows are pixels, neighbours are close enough
    return c.place[0] != "free_digit" and not _is_first(row, steps)
