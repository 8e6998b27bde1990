"""Problems that the tests of windows and of resizing run on every target."""

from __future__ import annotations

import hypothesis.strategies as st

from jitdnn.problems import Problem, Resize, parse
from jitdnn.problems.resize import COORDINATES, MODES, ROUNDINGS
from jitdnn.tensor import COMMON_DTYPES, TensorDescriptor
from strategies import descriptors

DIRECTIONS = ("fwd", "bwd")

LRN_SHAPES = [
    "across shape1x1x1 size1 beta1.0",
    "across shape2x7x5x9 size5 alpha0.3",
    "across shape2x7x5x9 size5 alpha0.3 nhwc",
    "across shape1x64x3x33 size3 alpha0.5 k1.0",
    "across shape3x70x5 size4 alpha0.5 k1.0 nhwc",  # an even window looks further behind
    "across shape2x3x2x40 size9 alpha0.5 beta0.5",  # larger than the channels
    "across shape2x3x2x40 size9 alpha0.5 beta0.5 nhwc",
    "across shape2x40x90 size17 alpha1.0 beta0.6",  # more than is unrolled
    "across shape1x3x100x3 size20 alpha2.0 nhwc",
    "across shape1x20x600 size5 alpha1.0",
    "across shape2x21x3x5 size16 alpha1.0",
    "across shape2x9x3x5 size2 alpha1.0 k0.0 nhwc",
    "across shape2x16x3x5 size5 alpha0.5 nhwc",
    "across shape2x12x5 size16 alpha0.5 k1.0 nhwc",
    "across shape3x32x2x3 size6 alpha0.5 bf16 nhwc",
    "within shape2x5x9x40 size3 alpha1.0 k1.0",
    "within shape1x19x6x7 size5 alpha0.5 beta0.6 nhwc",
    "within shape2x3x4x5x6 size2 alpha1.0",
    "within shape1x3x3x2x17 size4 alpha1.0 nhwc",
    "within shape2x3x70 size5 alpha1.0 beta1.0",
    "within shape1x2x20x3 size19 alpha30.0",
    "across shape2x37x4x9 size5 alpha0.5 f64 nhwc",
    "within shape2x3x9x11 size5 alpha0.5 f64",
    "across shape0x3x5 size3",
]
DIVISIVE_SHAPES = [
    "shape2x5x9x40 size3 alpha1.0 k1.0",
    "means shape2x5x9x40 size3 alpha1.0 k1.0",
    "means shape1x19x6x7 size5 alpha0.5 beta0.6 nhwc",
    "means shape2x3x4x5x6 size2 alpha1.0",
    "means shape3x2x19 size4 alpha1.5 beta0.5",
    "means shape1x1x1 size1 alpha1.0 beta1.0",
    "means shape2x3x5x18 size18 alpha2.0 f64",
    "means shape0x3x5 size3",
]
RESIZE_SHAPES = [
    "shape2x3x5x7 out10x14",  # whole multiples: places follow a pattern
    "shape1x2x5x40 out10x80",
    "shape1x3x64 out256",
    "shape1x2x6x64 out3x16",
    "shape1x3x9x33 out4x50",
    "shape2x70x5x7 out9x8 nhwc",
    "shape1x5x4x33 out8x66 nhwc",
    "shape1x2x4x5x6 out3x5x13",
    "shape1x2x30x50 out7x3",  # many taps backward
    "shape1x1x1x1 out3x4",
    "shape2x1x7x7 out1x1",
    "shape0x3x4 out5",
]


def lrn(words: str, direction: str) -> Problem:
    return parse(f"lrn_{direction} {words}")


def lrn_of_halves(layout: str, direction: str, dtype: str) -> list[Problem]:
    return [
        lrn(f"across shape2x37x3x9 size5 alpha0.5 {dtype} {layout}", direction),
        lrn(f"within shape2x18x7x9 size3 alpha0.5 {dtype} {layout}", direction),
    ]


def divisive_norm(words: str, direction: str) -> Problem:
    return parse(f"divisive_norm_{direction} {words}")


@st.composite
def resizes(draw: st.DrawFn) -> Resize:
    rank, dtype = draw(st.integers(1, 3)), draw(st.sampled_from(COMMON_DTYPES))
    extents = st.sampled_from((1, 2, 3, 7, 16, 18) if rank < 3 else (1, 2, 5))
    batch = (draw(st.integers(0, 2)), draw(st.sampled_from((1, 3, 17))))
    shape = (*batch, *(draw(extents) for _ in range(rank)))
    size = (*batch, *(draw(extents) for _ in range(rank)))
    scales = None
    if draw(st.booleans()):
        scales = tuple(draw(st.floats(0.25, 4)) for _ in range(rank))
    direction = draw(st.sampled_from(DIRECTIONS))
    names = ("x", "y") if direction == "fwd" else ("dy", "dx")
    tensors = {
        name: draw(descriptors(shape if name[-1] == "x" else size, dtype, is_output=name == names[1]))
        for name in names
    }
    packed = {"x": TensorDescriptor.packed(shape, dtype), "y": TensorDescriptor.packed(size, dtype)}
    mode, coordinates = draw(st.sampled_from(MODES)), draw(st.sampled_from(COORDINATES))
    return Resize(
        direction, mode, coordinates=coordinates, rounding=draw(st.sampled_from(ROUNDINGS)), scales=scales,
        cubic=draw(st.sampled_from((-0.75, -0.5))), **{**packed, **tensors},
    )  # fmt: skip
