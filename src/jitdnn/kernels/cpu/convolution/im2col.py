"""Convolution as Caffe does it: unfold one image into a matrix of columns, then one product of the BLAS.

For every image (and, stacked in one call, every group):

    columns [C R S, P Q]  each column holds the patch of the input that one output pixel reads
    fwd         y  [K, P Q]       =  w [K, C R S] @ columns
    bwd_data    columns           =  w^T @ dy [K, P Q], then every column is added to the patch it belongs to
    bwd_filter  dw [K, C R S]     =  sum over images of dy @ columns^T

With channels-last input the matrix is stored as [P Q, R S C], so that unfolding still copies contiguous
channels. A 1x1 filter with stride 1 and no padding needs no columns: the image is the matrix. NumPy cannot
add into a product's destination, so the filter gradient unfolds several small images at once (at least
`FILTER_DEPTH` columns), which keeps the additions of partial sums few.

The BLAS is NumPy's own and has its own threads: the handle's number of threads does not apply to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.algorithm import Epilogue, KernelAlgorithm, PlannedKernel
from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import DTYPES, TensorDescriptor, packed_strides, strided_view

FloatArray = np.ndarray[Any, np.dtype[np.floating[Any]]]

# Columns of a wgrad's product; with fewer, adding the partial sums would take longer than the product.
FILTER_DEPTH = 1024

# Channels of a group from which on columns of channels-last images are stored as [P Q, R S C]; folding adds to them.
LEAST_CHANNELS = 2
LEAST_CHANNELS_FOLDED = 8

GEMM_EFFICIENCY = 0.5  # of the peak, reached by OpenBLAS: 0.45 measured on Zen 5, 0.85 on Zen 4
NARROW = 16  # rows or columns; a product with fewer leaves registers idle
VECTOR_PIXELS = 3  # added to the pixels of a product: one with a single column is faster than in proportion
SECONDS_AN_IMAGE = 1.2e-5  # of Python around an image


class Axes(NamedTuple):
    """A strided block of memory: its axes, and the offset of its first element in its tensor or buffer."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int = 0


def _merged_stride(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """The stride of the axes as a single one, or None if they are not one."""
    axes = [(extent, stride) for extent, stride in zip(shape, strides, strict=True) if extent != 1]
    for (_, outer), (extent, inner) in pairwise(axes):
        if outer != extent * inner:
            return None
    return axes[-1][1] if axes else 1


def _stacked_matrix(axes: Axes) -> Axes | None:
    """Axes [stack, rows, columns...] as a [stack, rows, columns] matrix that the BLAS reads without a copy.

    None unless elements are adjacent along rows or along columns, and do not overlap the other way.
    """
    row_stride = axes.strides[1]
    column_stride = _merged_stride(axes.shape[2:], axes.strides[2:])
    if column_stride is None:
        return None
    height, width = axes.shape[1], prod(axes.shape[2:])
    # The stride of an extent of 1 is arbitrary: choose one that makes the matrix contiguous.
    if width == 1:
        column_stride = 1
    elif height == 1:
        row_stride = width if column_stride == 1 else 1
    is_row_major = column_stride == 1 and row_stride >= width
    is_column_major = row_stride == 1 and column_stride >= height
    if not (is_row_major or is_column_major):
        return None
    return Axes((axes.shape[0], height, width), (axes.strides[0], row_stride, column_stride), axes.start)


class _Layout:
    """All of a problem that does not depend on pointers: matrices, buffers, and their offsets in the workspace.

    Names of axes: groups G, channels C and filters K of one group, taps R S, output pixels P Q; `batch`
    images are unfolded together.
    """

    def __init__(self, problem: Convolution) -> None:
        x, w, y = problem.x, problem.w, problem.y
        self.dtype = x.dtype
        self.images = x.shape[0]
        self.groups = groups = problem.groups
        self.rank = rank = len(x.shape) - 2
        self.is_flipped = problem.mode == "convolution"
        self.taps = taps = w.shape[2:]
        spatial, outputs = x.shape[2:], y.shape[2:]
        c, k = x.shape[1] // groups, y.shape[1] // groups
        depth, pixels = c * prod(taps), prod(outputs)
        extents = tuple(e + sum(pair) for e, pair in zip(spatial, problem.padding, strict=True))
        is_padded = extents != spatial
        self.is_pointwise = prod(taps) == 1 and not is_padded and set(problem.stride) == {1}
        # few channels are copied, and above all added, more slowly than rows of pixels
        least = LEAST_CHANNELS_FOLDED if problem.direction == "bwd_data" else LEAST_CHANNELS
        self.is_channels_last = x.strides[1] == 1 and c >= least and prod(spatial) > 1
        self.batch = 1
        if problem.direction == "bwd_filter":
            self.batch = min(ceil_div(FILTER_DEPTH, pixels), max(1, self.images))
        wide = self.batch * pixels

        self.x_image = self.image(x)  # [G, C, H, W]
        self.y_image = self.image(y)  # [G, K, P, Q]
        self.w_full = self.filters(w)  # [G, K, C, R, S] or [G, K, R, S, C]
        self.w_matrix = _stacked_matrix(self.w_full)  # [G, K, depth]
        self.w_packed = Axes((groups, k, depth), (k * depth, depth, 1))
        self.w_packed_full = Axes(self.w_full.shape, packed_strides(self.w_full.shape, range(rank + 3)))

        # Columns [batch, G, C, R, S, P, Q], stored [G, C, R, S, batch, P, Q] or [G, batch, P, Q, R, S, C].
        shape = (self.batch, groups, c, *taps, *outputs)
        tap_axes, pixel_axes = range(3, rank + 3), range(rank + 3, 2 * rank + 3)
        if self.is_channels_last:
            self.columns = Axes(shape, packed_strides(shape, (1, 0, *pixel_axes, *tap_axes, 2)))
            self.columns_matrix = Axes((groups, depth, wide), (depth * wide, 1, depth))
        else:
            self.columns = Axes(shape, packed_strides(shape, (1, 2, *tap_axes, 0, *pixel_axes)))
            self.columns_matrix = Axes((groups, depth, wide), (depth * wide, wide, 1))

        # The columns are filled from windows [G, C, R, S, P, Q] of the image, or of a padded copy of it.
        source = self.x_image
        self.padded: Axes | None = None
        if is_padded or (problem.direction == "bwd_data" and not self.is_pointwise):
            shape = (groups, c, *extents)
            order = (*range(2, rank + 2), 0, 1) if self.is_channels_last else range(rank + 2)
            source = self.padded = Axes(shape, packed_strides(shape, order))
        steps = source.strides[2:]
        start = sum(pair[0] * step for pair, step in zip(problem.padding, steps, strict=True))
        self.interior = Axes(self.x_image.shape, source.strides, start)
        tap_steps = tuple(d * step for d, step in zip(problem.dilation, steps, strict=True))
        pixel_steps = tuple(s * step for s, step in zip(problem.stride, steps, strict=True))
        self.windows = Axes((groups, c, *taps, *outputs), (*source.strides[:2], *tap_steps, *pixel_steps))

        # Matrices without a copy where strides allow it: x of a 1x1 filter, and y, [G, channels, batch P Q].
        self.x_matrix = self._as_matrix(self.x_image, x.strides[0]) if self.is_pointwise else None
        self.y_matrix = self._as_matrix(self.y_image, y.strides[0])
        # A product or a copy of y, [batch, G, K, P, Q]: in the order of y, with the images next to the pixels.
        shape = (self.batch, groups, k, *outputs)
        if y.strides[1] == 1 and groups * k > 1:
            self.y_packed = Axes(shape, packed_strides(shape, (0, *range(3, rank + 3), 1, 2)))
        else:
            self.y_packed = Axes(shape, packed_strides(shape, (1, 2, 0, *range(3, rank + 3))))
        self.y_packed_matrix = Axes(
            (groups, k, wide), (*self.y_packed.strides[1:3], self.y_packed.strides[-1])
        )
        self._reserve_buffers(problem.direction, columns=depth * groups * wide, filters=groups * k * depth)

    def image(self, tensor: TensorDescriptor) -> Axes:
        """One image of a tensor [N, channels, ...] as [G, channels of a group, ...]."""
        channels = tensor.shape[1] // self.groups
        return Axes(
            (self.groups, channels, *tensor.shape[2:]), (channels * tensor.strides[1], *tensor.strides[1:])
        )

    def filters(self, tensor: TensorDescriptor) -> Axes:
        """A tensor [K, C, R, S] as [G, K of a group, depth axes], flipped if the problem says so.

        The depth axes come in the order in which a column holds them: C R S, or R S C for channels-last x.
        """
        k = tensor.shape[0] // self.groups
        axes = (*range(2, self.rank + 2), 1) if self.is_channels_last else range(1, self.rank + 2)
        strides, start = list(tensor.strides), 0
        if self.is_flipped:
            for axis in range(2, self.rank + 2):
                start += (tensor.shape[axis] - 1) * strides[axis]
                strides[axis] = -strides[axis]
        return Axes(
            (self.groups, k, *(tensor.shape[axis] for axis in axes)),
            (k * strides[0], strides[0], *(strides[axis] for axis in axes)),
            start,
        )

    def _as_matrix(self, image: Axes, batch_stride: int) -> Axes | None:
        """`batch` images as one matrix [G, channels, batch pixels], or None if strides do not allow it."""
        shape = (*image.shape[:2], self.batch, *image.shape[2:])
        return _stacked_matrix(Axes(shape, (*image.strides[:2], batch_stride, *image.strides[2:])))

    def _reserve_buffers(self, direction: str, columns: int, filters: int) -> None:
        """Assign an offset in the workspace to each buffer that the direction may need."""
        self.offsets: dict[str, int] = {}
        self.bytes = 0

        def reserve(name: str, elements: int) -> None:
            self.offsets[name] = self.bytes
            self.bytes += ceil_div(elements * DTYPES[self.dtype], 64) * 64

        if self.x_matrix is None or direction == "bwd_data":
            reserve("columns", columns)
        if self.padded is not None:
            reserve("image", prod(self.padded.shape))
        if direction == "bwd_filter":
            reserve("sum", filters)
            if self.images > self.batch:
                reserve("part", filters)
        elif self.w_matrix is None:
            reserve("filters", filters)
        # fprop may need a product outside of y (beta, an epilogue), dgrad and wgrad a copy of dy for the BLAS
        if direction == "fwd" or self.y_matrix is None:
            reserve("product", prod(self.y_packed.shape))


def _multiply(a: FloatArray, b: FloatArray, out: FloatArray) -> None:
    """out = a @ b for stacks of matrices.

    NumPy uses the BLAS only if the rows of `out` are contiguous. A product of depth 1 does not need it.
    """
    if a.shape[2] == 1:
        np.multiply(a, b, out=out)
    elif out.strides[-1] == out.itemsize:
        np.matmul(a, b, out=out)
    else:
        np.matmul(b.swapaxes(1, 2), a.swapaxes(1, 2), out=out.swapaxes(1, 2))


class _Call:
    """One call: views of its operands and of the workspace, each made once."""

    def __init__(
        self, kernel: Im2colKernel, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        self.kernel = kernel
        self.layout = kernel.layout
        self.pointers = pointers
        self.alpha = alpha
        self.beta = beta
        self.workspace = workspace
        self.is_plain = beta == 0.0 and kernel.epilogue is None
        self._views: dict[object, FloatArray] = {}

    def _view(self, pointer: int, axes: Axes) -> FloatArray:
        pointer += axes.start * DTYPES[self.layout.dtype]
        return strided_view(pointer, axes.shape, axes.strides, self.layout.dtype)

    def buffer(self, name: str, axes: Axes) -> FloatArray:
        """A buffer of the workspace; `axes` must be an attribute of the layout."""
        found = self._views.get((name, id(axes)))
        if found is None:
            found = self._view(self.workspace + self.layout.offsets[name], axes)
            self._views[name, id(axes)] = found
        return found

    def image(self, operand: int, axes: Axes, number: int) -> FloatArray:
        """An operand's image `number` as `axes` (which may extend over the images behind it)."""
        found = self._views.get((operand, id(axes)))
        if found is None:
            images = Axes(
                (self.layout.images, *axes.shape),
                (self.kernel.batch_strides[operand], *axes.strides),
                axes.start,
            )
            found = self._views[operand, id(axes)] = self._view(self.pointers[operand], images)
        selected: FloatArray = found[number]
        return selected

    def narrow(self, matrix: FloatArray, count: int) -> FloatArray:
        """The part of a [G, rows, batch P Q] matrix that belongs to the first `count` images."""
        if count == self.layout.batch:
            return matrix
        return matrix[:, :, : matrix.shape[2] * count // self.layout.batch]

    def finish(self, output: FloatArray, result: FloatArray, operands: Sequence[FloatArray]) -> None:
        """output = alpha * epilogue(result, *operands) + beta * output; `result` may be overwritten."""
        epilogue = self.kernel.epilogue
        if epilogue is not None:
            result = epilogue.expression.evaluate(result, *operands)
        self.scale(result)
        if self.beta == 0.0:
            np.copyto(output, result)
        else:
            np.multiply(output, self.beta, out=output)
            np.add(output, result, out=output)

    def scale(self, result: FloatArray) -> None:
        if self.alpha != 1.0:
            np.multiply(result, self.alpha, out=result)

    def finish_image(self, output: Axes, number: int, result: FloatArray) -> None:
        operands = [self.image(3 + i, axes, number) for i, axes in enumerate(self.kernel.operand_axes)]
        self.finish(self.image(2, output, number), result, operands)

    def weights(self) -> FloatArray:
        """The filters as [G, K, depth], copied once if the BLAS cannot read their strides."""
        layout = self.layout
        if layout.w_matrix is not None:
            return self._view(self.pointers[1], layout.w_matrix)
        np.copyto(self.buffer("filters", layout.w_packed_full), self._view(self.pointers[1], layout.w_full))
        return self.buffer("filters", layout.w_packed)

    def clear_image(self) -> None:
        """Zero the padded image: the padding stays zero, the interior is overwritten image by image."""
        if self.layout.padded is not None:
            self.buffer("image", self.layout.padded).fill(0.0)

    def unfold(self, first: int, count: int) -> FloatArray:
        """Columns [G, depth, count P Q] of `count` images of x."""
        layout = self.layout
        if layout.x_matrix is not None:
            return self.narrow(self.image(0, layout.x_matrix, first), count)
        columns = self.buffer("columns", layout.columns)
        for number in range(count):
            if layout.padded is not None:
                np.copyto(
                    self.buffer("image", layout.interior), self.image(0, layout.x_image, first + number)
                )
                windows = self.buffer("image", layout.windows)
            else:
                windows = self.image(0, layout.windows, first + number)
            np.copyto(columns[number], windows)
        return self.narrow(self.buffer("columns", layout.columns_matrix), count)

    def fold(self) -> FloatArray:
        """Add every column to the pixels of the image that it belongs to."""
        layout = self.layout
        columns: FloatArray = self.buffer("columns", layout.columns)[0]
        if layout.is_pointwise:
            return columns.reshape(layout.x_image.shape)
        self.clear_image()
        windows = self.buffer("image", layout.windows)
        for tap in np.ndindex(*layout.taps):
            target = windows[:, :, *tap]
            np.add(target, columns[:, :, *tap], out=target)
        return self.buffer("image", layout.interior)

    def gradient(self, operand: int, first: int, count: int) -> FloatArray:
        """dy of `count` images as [G, K, count P Q], copied if the BLAS cannot read its strides."""
        layout = self.layout
        if layout.y_matrix is not None:
            return self.narrow(self.image(operand, layout.y_matrix, first), count)
        for number in range(count):
            np.copyto(
                self.buffer("product", layout.y_packed)[number],
                self.image(operand, layout.y_image, first + number),
            )
        return self.narrow(self.buffer("product", layout.y_packed_matrix), count)

    def forward(self) -> None:
        layout = self.layout
        weights = self.weights()
        self.clear_image()
        for number in range(layout.images):
            columns = self.unfold(number, 1)
            if self.is_plain and layout.y_matrix is not None:
                output = self.image(2, layout.y_matrix, number)
                _multiply(weights, columns, output)
                self.scale(output)
            else:
                _multiply(weights, columns, self.buffer("product", layout.y_packed_matrix))
                self.finish_image(layout.y_image, number, self.buffer("product", layout.y_packed)[0])

    def backward_data(self) -> None:
        layout = self.layout
        weights = self.weights().swapaxes(1, 2)
        for number in range(layout.images):
            gradient = self.gradient(0, number, 1)
            if self.is_plain and layout.x_matrix is not None:
                output = self.image(2, layout.x_matrix, number)
                _multiply(weights, gradient, output)
                self.scale(output)
            else:
                _multiply(weights, gradient, self.buffer("columns", layout.columns_matrix))
                self.finish_image(layout.x_image, number, self.fold())

    def backward_filter(self) -> None:
        layout = self.layout
        self.clear_image()
        is_direct = self.is_plain and layout.images <= layout.batch and layout.w_matrix is not None
        if is_direct and layout.w_matrix is not None:
            total = self._view(self.pointers[2], layout.w_matrix)
        else:
            total = self.buffer("sum", layout.w_packed)
        if layout.images == 0:
            total.fill(0.0)
        for first in range(0, layout.images, layout.batch):
            count = min(layout.batch, layout.images - first)
            columns = self.unfold(first, count).swapaxes(1, 2)
            if first == 0:
                _multiply(self.gradient(1, first, count), columns, total)
            else:
                part = self.buffer("part", layout.w_packed)
                _multiply(self.gradient(1, first, count), columns, part)
                np.add(total, part, out=total)
        if is_direct:
            self.scale(total)
            return
        operands = [
            self._view(pointer, axes)
            for pointer, axes in zip(self.pointers[3:], self.kernel.operand_axes, strict=True)
        ]
        result = self.buffer("sum", layout.w_packed_full)
        self.finish(self._view(self.pointers[2], layout.w_full), result, operands)


class Im2colKernel:
    """The kernel: a few calls of NumPy for each image."""

    _DIRECTIONS: ClassVar = {
        "fwd": _Call.forward,
        "bwd_data": _Call.backward_data,
        "bwd_filter": _Call.backward_filter,
    }

    def __init__(self, problem: Convolution, epilogue: Epilogue | None) -> None:
        self.layout = _Layout(problem)
        self.epilogue = epilogue
        self._run = self._DIRECTIONS[problem.direction]
        operands = epilogue.operands if epilogue is not None else ()
        descriptors = [*(operand.descriptor for operand in problem.operands), *operands]
        self.batch_strides = [descriptor.strides[0] for descriptor in descriptors]
        axes_of = self.layout.filters if problem.direction == "bwd_filter" else self.layout.image
        self.operand_axes = [axes_of(operand) for operand in operands]

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        # overflow and NaN are results here, as in every other kernel
        with np.errstate(all="ignore"):
            self._run(_Call(self, pointers, alpha, beta, workspace))


class Im2col(KernelAlgorithm[Convolution, CpuDevice]):
    """Unfold every image into columns and multiply with NumPy's BLAS, as Caffe does: the baseline.

    Workspace: the columns of one image (of several small ones for wgrad), a padded copy of the image if there is
    padding, the product where the BLAS cannot write it to the output, and packed filters where the BLAS cannot read
    their strides. Not declared deterministic: NumPy's BLAS guarantees no order of sums.
    """

    name = "im2col"
    problem = Convolution
    deterministic = False
    only_by_name = (
        "its products run on NumPy's BLAS, whose threads no setting limits and which spin on after it"
    )

    def refusal(self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        tensors = (operand.descriptor for operand in problem.operands)
        if any(tensor.dtype not in ("f32", "f64") for tensor in tensors):
            return "its products are computed by NumPy's BLAS, which takes f32 and f64 only"
        return None

    def plan(self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        layout = _Layout(problem)
        seconds = _seconds(problem, layout, device)
        return PlannedKernel(layout.bytes, seconds, lambda: Im2colKernel(problem, epilogue))


def _seconds(problem: Convolution, layout: _Layout, device: CpuDevice) -> float:
    moved = 0 if layout.x_matrix is not None else prod(layout.columns.shape) // layout.batch
    if layout.padded is not None:
        moved += prod(layout.padded.shape)
    # folding reads, adds and writes every element where unfolding only copies it
    traffic = (4 if problem.kind == "conv_bwd_data" else 2) * moved * DTYPES[layout.dtype] * layout.images
    # a matrix of few rows or columns leaves most of a product's registers idle
    groups, k, depth = layout.w_packed.shape
    pixels = prod(problem.y.shape[2:])
    narrow = min(1.0, min(k, depth) / NARROW)
    if problem.kind != "conv_bwd_filter":
        narrow *= min(1.0, (pixels + VECTOR_PIXELS) / NARROW)
    if problem.kind == "conv_bwd_filter":  # each product of some images reads and writes all of dw
        traffic += 2 * groups * k * depth * DTYPES[layout.dtype] * layout.images // layout.batch
    traffic += sum(prod(tensor.shape) for tensor in (problem.x, problem.y)) * DTYPES[layout.dtype]
    products = problem.flops / (narrow * GEMM_EFFICIENCY * device.peak_flops(problem.dtype))
    processor = device.isa.processor
    copy_rate = cost.IM2COL_COPY_L2_RATE * processor.l2_rate * processor.clock
    return products + traffic / copy_rate + SECONDS_AN_IMAGE * (1 + layout.images)
