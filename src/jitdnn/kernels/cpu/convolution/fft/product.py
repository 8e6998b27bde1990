"""Products of spectra, summed: the middle of a convolution by Fourier transforms.

    r[g, i, j, f] = sum over k of  a[g, i, k, f] * b[g, j, k, f]        plus the former r, if beta is 1

or the conjugate of a in its place. Complex numbers are pairs of neighbours. Frequencies are in the lanes, since no sum
runs over them, and a task is some of them of one group.
"""

from __future__ import annotations

import itertools
from dataclasses import astuple, dataclass

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import Arguments, CpuKernel
from jitdnn.kernels.cpu.schedule.boundary import when
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.builder import Builder, Module, Pointer, Value
from jitdnn.rtcg.compile import Library, load

_TASK_REALS = 1024
_ROWS, _COLUMNS = 3, 4  # the register tile: sums for i and for j
_POINTERS = 3


@dataclass(frozen=True)
class ProductShape:
    """Extents, and the strides of a and b along (g, their own index, k) and of r along (g, i, j), in reals.

    ``reals`` is twice the number of frequencies, which are neighbours in all three.
    """

    groups: int
    rows: int
    columns: int
    depth: int
    reals: int
    a: tuple[int, int, int]
    b: tuple[int, int, int]
    r: tuple[int, int, int]


def product_library(device: CpuDevice, dtype: str, is_conjugate: bool) -> Library:
    """The code of the products of spectra whose parts are of ``dtype``; with the conjugate of a if ``is_conjugate``."""

    def generate(module: Module) -> None:
        _trace(module, dtype, is_conjugate)

    return load("fft_product", (dtype, is_conjugate, device.isa.name), device.isa, generate)


def product_kernel(library: Library, device: CpuDevice, shape: ProductShape) -> CpuKernel:
    """The kernel ``(stream, (a, b, r), alpha, beta, workspace)`` of one shape; r is added to if beta is 1."""
    groups, *extents, a, b, r = astuple(shape)
    tasks = groups * ceil_div(shape.reals, _TASK_REALS)
    return CpuKernel(library, [("product", tasks)], _POINTERS, device.threads, [*extents, *a, *b, *r])


def _trace(module: Module, dtype: str, is_conjugate: bool) -> None:
    lanes = module.isa.lanes(dtype)
    # a product of complex numbers needs pairs: without vectors they are made of two lanes
    lanes = max(2, lanes)
    with module.task("product") as (k, args, task, _):
        arguments = Arguments(k, args, _POINTERS)
        rows, columns, depth, reals = (arguments.extra(i) for i in range(4))
        strides = [[arguments.extra(4 + 3 * i + axis) for axis in range(3)] for i in range(3)]
        blocks = (reals + (_TASK_REALS - 1)) // _TASK_REALS
        group, first = task // blocks, task % blocks * _TASK_REALS
        tensors = [arguments.pointer(i, dtype) + group * strides[i][0] for i in range(3)]
        adds = arguments.beta(dtype) != 0.0
        for f in k.range(first, (first + _TASK_REALS).min(reals), lanes):
            starts = [tensor + f for tensor in tensors]
            is_whole = f + lanes <= reals
            for mask in (None, k.mask(reals - f, lanes)):
                with k.when(is_whole if mask is None else ~is_whole):
                    code = _Tile(k, starts, strides, (depth, adds), is_conjugate, lanes, mask)
                    done = rows // _ROWS * _ROWS
                    for height, start, stop in ((_ROWS, 0, done), (1, done, rows)):
                        for i in k.range(start, stop, height):
                            whole = columns // _COLUMNS * _COLUMNS
                            for j in k.range(0, whole, _COLUMNS):
                                code.accumulate(i, height, j, _COLUMNS)
                            for j in k.range(whole, columns):
                                code.accumulate(i, height, j, 1)


class _Tile:
    def __init__(
        self, k: Builder, starts: list[Pointer], strides: list[list[Value]], depth: tuple[Value, Value],
        is_conjugate: bool, lanes: int, mask: Value | None,
    ) -> None:  # fmt: skip
        self.k, self.lanes, self.mask = k, lanes, mask
        (self.a, self.b, self.r), (self.a_strides, self.b_strides, self.r_strides) = starts, strides
        self.depth, self.adds = depth
        self.dtype = self.a.dtype
        # b times i, or times -i for the conjugate of a, is b with its parts exchanged and one of them negated
        ones = k.constant(1.0, self.dtype, lanes)
        signs = k.shuffle(
            ones, -ones, [lane + lanes * ((lane % 2 == 0) != is_conjugate) for lane in range(lanes)]
        )
        self.signs = signs

    def accumulate(self, i: Value, height: int, j: Value, width: int) -> None:
        """A register tile of ``height`` x ``width`` results, from (i, j) on, over the whole depth."""
        k, lanes = self.k, self.lanes
        index = list(itertools.product(range(height), range(width)))
        sums = {at: k.register(k.constant(0.0, self.dtype, lanes)) for at in index}
        even, odd = [lane & ~1 for lane in range(lanes)], [lane | 1 for lane in range(lanes)]
        for depth in k.range(self.depth):
            a, b = self.a + depth * self.a_strides[2], self.b + depth * self.b_strides[2]
            lefts = [a.load((i + row) * self.a_strides[1], lanes, self.mask) for row in range(height)]
            parts = [(k.shuffle(left, left, even), k.shuffle(left, left, odd)) for left in lefts]
            for column in range(width):
                right = b.load((j + column) * self.b_strides[1], lanes, self.mask)
                rotated = k.shuffle(right, right, [lane ^ 1 for lane in range(lanes)]) * self.signs
                for row, (real, imaginary) in enumerate(parts):
                    register = sums[row, column]
                    register.set(k.fma(imaginary, rotated, k.fma(real, right, register.get())))
        for (row, column), register in sums.items():
            target = self.r + ((i + row) * self.r_strides[1] + (j + column) * self.r_strides[2])
            with when(k, self.adds):
                register += target.load(0, lanes, self.mask)
            target.store(register.get(), 0, self.mask)
