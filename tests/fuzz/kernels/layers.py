"""Random convolutions of sizes that kernels of GPUs stumble over, small enough for an emulator."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fuzz.draw import Draw
from jitdnn.problems import Convolution, FusedConvolution
from jitdnn.tensor import TensorDescriptor

# whole tiles and blocks of 64 channels, a few more and less, and multiples of 16 bytes
_CHANNELS = (64, 8, 16, 32, 72, 40, 128, 24, 96, 136, 56, 65, 33, 3, 1, 5, 12, 4, 160, 192)
_LAYOUTS = ("nhwc",) * 12 + ("nchw",) * 2 + (None,)
FEW = (3, 1, 4, 8, 2, 5, 7, 6, 16, 12)


@dataclass(frozen=True)
class Wish:
    """What a kernel is made for: most problems are of that kind, so that few are refused.

    `channels`, `outputs`: of x and of y, in all; `dtypes`: of x; `ranks`: numbers of axes of space. `stride`, `taps`
    and `dilation`: choices along each axis, `last` those along the last one: (taps, stride, dilation), each None for
    the same as along others. `layouts`: any, most of them channels last, if there are none.
    """

    directions: tuple[str, ...] = ("fwd", "bwd_data")
    dtypes: tuple[str, ...] = ("bf16", "f16")
    channels: tuple[int, ...] = _CHANNELS
    outputs: tuple[int, ...] = _CHANNELS
    ranks: tuple[int, ...] = (2, 3, 2, 1, 2)
    groups: tuple[int, ...] = (1,) * 8 + (2, 3)
    taps: tuple[int, ...] = (3, 1, 2, 3, 5, 4, 7)
    stride: tuple[int, ...] = (1, 1, 1, 2, 3)
    dilation: tuple[int, ...] = (1, 1, 1, 1, 2, 3, 6)
    last: tuple[tuple[int, ...] | None, tuple[int, ...] | None, tuple[int, ...] | None] = (None, None, None)
    padding: tuple[int, ...] = (1, 0, 2, 1, 3, 5, 9)
    extents: tuple[int, ...] = (4, 5, 7, 3, 9, 1, 2, 8, 12, 6, 17, 33, 20, 64)
    has_patches: bool = False
    operations: int = 6_000_000
    results: tuple[str, ...] = ()
    layouts: tuple[str | None, ...] = ()

    def narrowed(self, draw: Draw) -> Wish:
        """Problems that share most of their code: of one direction, type and rank, with few numbers of channels."""
        dtype = draw.pick(self.dtypes)
        integers, float8 = ("f32", "i32", "i8"), ("f32", "f16", "bf16", "f8e4m3")
        results = integers if dtype == "i8" else float8 if dtype.startswith("f8") else (dtype,)
        return replace(
            self,
            directions=("fwd",) if dtype == "i8" else (draw.pick(self.directions),),
            dtypes=(dtype,),
            channels=(draw.pick(self.channels), draw.pick(self.channels)),
            outputs=(draw.pick(self.outputs), draw.pick(self.outputs)),
            ranks=(draw.pick(self.ranks),),
            groups=(draw.pick(self.groups),),
            results=(draw.pick(results),),
            layouts=(draw.weighted(*((1, one) for one in self.layouts or _LAYOUTS)),),
        )


def layer(draw: Draw, wish: Wish) -> Convolution | None:
    """A convolution as it is wished for, mostly, of a narrowed wish; None where it would be too large."""
    rank = draw.pick(wish.ranks)
    dtype, direction = draw.pick(wish.dtypes), draw.pick(wish.directions)
    groups = draw.pick(wish.groups)
    channels, outputs = draw.pick(wish.channels), draw.pick(wish.outputs)
    if groups < 0:  # one channel of each
        groups = channels
        outputs = channels * draw.pick((1, 1, 2))
    channels, outputs = (max(groups, n // groups * groups) for n in (channels, outputs))
    taps, stride, dilation, padding, extents = ([] for _ in range(5))  # type: ignore[var-annotated]
    for axis in range(rank):
        own = wish.last if axis == rank - 1 else (None, None, None)
        taps.append(draw.pick(own[0] or (wish.taps if rank < 3 else tuple(t for t in wish.taps if t < 6))))
        stride.append(draw.pick(own[1] or wish.stride))
        dilation.append(draw.pick(own[2] or wish.dilation))
        before = draw.pick(wish.padding)
        padding.append((before, before if draw.chance(0.6) else draw.pick(wish.padding)))
        extents.append(draw.pick(wish.extents))
    if wish.has_patches:
        stride, dilation, padding = list(taps), [1] * rank, [(0, 0)] * rank
        if not draw.chance(0.05):
            extents = [max(1, e // t) * t for e, t in zip(extents, taps, strict=True)]
    elif draw.chance(0.4):  # as layers mostly are
        padding = [((t - 1) * d // 2, (t - 1) * d // 2) for t, d in zip(taps, dilation, strict=True)]
    batch = draw.pick((2, 1, 3, 1, 5))
    mode = draw.weighted((5, "cross_correlation"), (1, "convolution"))

    def results() -> list[int]:
        return [
            (n + a + b - d * (t - 1) - 1) // s + 1
            for n, (a, b), d, t, s in zip(extents, padding, dilation, taps, stride, strict=True)
        ]

    for axis in range(rank):
        if results()[axis] < 1:
            missing = dilation[axis] * (taps[axis] - 1) + 1 - extents[axis] - sum(padding[axis])
            if draw.chance(0.5):
                extents[axis] += missing
            else:
                padding[axis] = padding[axis][0] + missing, padding[axis][1]
    while True:
        operations = 2 * batch * outputs * channels // groups * math.prod(taps) * math.prod(results())
        pixels = batch * math.prod(extents) * max(channels, outputs)
        if max(operations / wish.operations, pixels / 200_000) <= 1:
            break
        axis = max(range(rank), key=lambda a: extents[a])
        shorter = extents[axis] // 2
        least = dilation[axis] * (taps[axis] - 1) + 1 - sum(padding[axis])
        if wish.has_patches:
            shorter = shorter // taps[axis] * taps[axis]
        if shorter >= max(1, least):
            extents[axis] = shorter
        elif batch > 1:
            batch = 1
        elif outputs // 2 >= groups and outputs > 8 and groups < channels:
            outputs = max(groups, outputs // 2 // groups * groups)
        elif channels // 2 >= groups and channels > 8 and groups < channels:
            channels = max(groups, channels // 2 // groups * groups)
        else:
            return None
    x_shape, w_shape = (batch, channels, *extents), (outputs, channels // groups, *taps)
    y_shape = (batch, outputs, *results())
    second = draw.pick(("f8e4m3", "f8e5m2")) if dtype.startswith("f8") else dtype
    result, usual = draw.pick(wish.results), draw.pick(wish.layouts)
    made = []
    fields = {"fwd": "xwy", "bwd_data": "ywx", "bwd_filter": "xyw"}[direction]
    for name, shape in zip("xwy", (x_shape, w_shape, y_shape), strict=True):
        one = (dtype, second, result)[fields.index(name)]
        made.append(_tensor(draw, shape, one, usual, is_output=name == fields[2]))
    x, w, y = made
    return Convolution(
        direction, x, w, y, tuple(stride), tuple(padding), tuple(dilation), groups, mode
    )  # fmt: skip


def _tensor(
    draw: Draw, shape: tuple[int, ...], dtype: str, layout: str | None, is_output: bool
) -> TensorDescriptor:
    """Packed, or some channels of a wider tensor, or in any order."""
    layout = layout or draw.pick(("nhwc", "nchw"))
    how = draw.weighted((16, "packed"), (4, "slice"), (1, "odd slice"), (1, "any"))
    if how == "packed":
        return TensorDescriptor.packed(shape, dtype, layout)
    if how == "any":
        return TensorDescriptor(shape, draw.strides(shape, is_output), dtype)
    more = draw.pick((8, 16, 64)) if how == "slice" else draw.pick((1, 3, 2))
    wide = (shape[0], shape[1] + more, *shape[2:])
    return TensorDescriptor(shape, TensorDescriptor.packed(wide, dtype, layout).strides, dtype)


def with_sums(draw: Draw, problem: Convolution, prologue: bool, sums: bool) -> FusedConvolution:
    """With a prologue, sums by channel, or both."""
    activation = (
        draw.pick(("relu", "identity", "sigmoid", "swish", "tanh", "leaky_relu")) if prologue else None
    )
    return FusedConvolution.of(problem, activation, sums, by_image=sums and draw.chance(0.5))
