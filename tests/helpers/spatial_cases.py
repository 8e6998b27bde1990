"""Problems of spatial transformers, for hypothesis."""

from __future__ import annotations

import hypothesis.strategies as st

from jitdnn.problems import AffineGrid, GridSample
from jitdnn.problems.spatial_transformer import MODES, PADDINGS, SAMPLE_DIRECTIONS
from jitdnn.tensor import COMMON_DTYPES
from strategies import descriptors


@st.composite
def grid_samples(draw: st.DrawFn) -> GridSample:
    rank, dtype = draw(st.sampled_from((2, 2, 3))), draw(st.sampled_from(COMMON_DTYPES))
    extents = st.sampled_from((1, 2, 5, 17) if rank == 2 else (1, 2, 4))
    images, channels = draw(st.integers(0, 2)), draw(st.sampled_from((1, 3, 17)))
    shape = (images, channels, *(draw(extents) for _ in range(rank)))
    size = tuple(draw(extents) for _ in range(rank))
    direction = draw(st.sampled_from(SAMPLE_DIRECTIONS))
    written = {"fwd": "y", "bwd_data": "x", "bwd_grid": "dgrid"}[direction]
    shapes = {"x": shape, "grid": (images, *size, rank), "y": (images, channels, *size)}
    if direction == "bwd_grid":
        shapes["dgrid"] = shapes["grid"]
    tensors = {
        name: draw(descriptors(extents_, dtype, is_output=name == written))
        for name, extents_ in shapes.items()
    }
    return GridSample(
        direction, mode=draw(st.sampled_from(MODES)), padding=draw(st.sampled_from(PADDINGS)),
        align_corners=draw(st.booleans()), **tensors,
    )  # fmt: skip


@st.composite
def affine_grids(draw: st.DrawFn) -> AffineGrid:
    rank, dtype = draw(st.sampled_from((2, 3))), draw(st.sampled_from(COMMON_DTYPES))
    shape = (draw(st.integers(0, 2)), *(draw(st.sampled_from((1, 2, 5, 17))) for _ in range(rank)))
    direction = draw(st.sampled_from(("fwd", "bwd")))
    return AffineGrid(
        direction,
        draw(descriptors((shape[0], rank, rank + 1), dtype, is_output=direction == "bwd")),
        draw(descriptors((*shape, rank), dtype, is_output=direction == "fwd")),
        draw(st.booleans()),
    )
