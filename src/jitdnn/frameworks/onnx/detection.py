"""NonMaxSuppression and RoiAlign."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.frameworks.onnx.operator import Array, Site, table
from jitdnn.frameworks.onnx.pointwise import pointwise
from jitdnn.frameworks.onnx.views import bounded, checked_indices
from jitdnn.graph import primitives as jd

_MOST_SAMPLES = 1 << 12  # of a bin's side: a box would be larger than any image


def non_max_suppression(
    boxes: Array,
    scores: Array,
    most: Array | None = None,
    overlap: Array | None = None,
    least_score: Array | None = None,
    /,
    *,
    center_point_box: int = 0,
    site: Site,
) -> Array:
    """Rows of (image, class, box), the best first: a box goes that overlaps one kept by more than the threshold."""
    if boxes.ndim != 3 or boxes.shape[2] != 4 or scores.ndim != 3 or scores.shape[::2] != boxes.shape[:2]:
        raise InvalidShape(
            f"{site.operator}: boxes {boxes.shape} and scores {scores.shape} must be (N, boxes, 4), (N, classes, boxes)"
        )
    count = 0 if most is None else int(most.item())
    threshold = np.float32(0 if overlap is None else overlap.item())
    found: list[Array] = []
    for image in range(len(boxes) if count > 0 else 0):
        corners, areas = _corners(boxes[image], bool(center_point_box))
        for kind, score in enumerate(scores[image]):
            chosen = (
                np.arange(len(score)) if least_score is None else np.flatnonzero(score > least_score.item())
            )
            # of equal scores the lower index comes first
            order = chosen[np.argsort(-score[chosen], kind="stable")]
            kept = _kept(corners, areas, order, threshold, count)
            found.append(np.stack((np.full(len(kept), image), np.full(len(kept), kind), kept), 1))
    return np.concatenate(found).astype(np.int64) if found else np.zeros((0, 3), np.int64)


def _corners(boxes: Array, is_centred: bool) -> tuple[Array, Array]:
    """(low, high) of both axes, (2, boxes, 2), and areas."""
    values = boxes.astype(np.float32, copy=False)
    first, second = values[:, :2], values[:, 2:]
    if is_centred:
        corners = np.stack((first - second / 2, first + second / 2))
    else:
        corners = np.stack((np.minimum(first, second), np.maximum(first, second)))
    return corners, (corners[1] - corners[0]).prod(1)


def _kept(corners: Array, areas: Array, order: Array, threshold: Any, count: int) -> Array:
    kept: list[int] = []
    while order.size and len(kept) < count:
        best, rest = order[0], order[1:]
        kept.append(best)
        sides = np.minimum(corners[1, best], corners[1, rest]) - np.maximum(
            corners[0, best], corners[0, rest]
        )
        common = np.where((sides > 0).all(1), sides[:, 0] * sides[:, 1], np.float32(0))
        union = areas[best] + areas[rest] - common
        is_real = (common > 0) & (areas[best] > 0) & (areas[rest] > 0) & (union > 0)
        share = np.divide(common, union, out=np.zeros_like(common), where=is_real)
        order = rest[~(is_real & (share > threshold))]
    return np.array(kept, np.int64)


def roi_align(
    x: Array,
    rois: Array,
    images: Array,
    /,
    *,
    coordinate_transformation_mode: str | None = None,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    site: Site,
) -> Array:
    """Boxes with as many samples a bin, of one image, are sampled together."""
    if x.ndim != 4 or rois.ndim != 2 or rois.shape[1] != 4 or images.shape != (len(rois),):
        raise InvalidShape(
            f"{site.operator}: x {x.shape}, rois {rois.shape} and batch_indices {images.shape} must be (N, C, H, W), "
            "(R, 4) and (R,)"
        )
    if mode not in {"avg", "max"}:
        raise site.refuse(f"mode {mode!r} is not covered")
    transformation = coordinate_transformation_mode or (
        "half_pixel" if site.version >= 16 else "output_half_pixel"
    )
    is_half = transformation == "half_pixel"
    size = np.array((output_height, output_width))
    if size.min() < 1:
        raise InvalidArgument(
            f"{site.operator}: an output of {output_height} x {output_width} has no elements"
        )
    result = np.empty(bounded((len(rois), x.shape[1], output_height, output_width), x), x.dtype)
    # x before y in a box, rows before columns in an image
    corners = rois.astype(np.float32) * np.float32(spatial_scale) - np.float32(0.5 if is_half else 0.0)
    starts, extents = corners[:, 1::-1], corners[:, 3:1:-1] - corners[:, 1::-1]
    if not is_half:
        extents = np.maximum(extents, np.float32(1))
    if not np.isfinite(corners).all():
        raise InvalidArgument(f"{site.operator}: a box is not finite")
    grids = (
        np.ceil(extents / size).astype(np.int64)
        if sampling_ratio <= 0
        else np.full(extents.shape, sampling_ratio)
    )
    grids = np.maximum(grids, 0)
    if grids.size and grids.max() > _MOST_SAMPLES:
        raise InvalidArgument(
            f"{site.operator}: a bin would have {grids.max()} samples a side: at most {_MOST_SAMPLES}"
        )
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, image in enumerate(checked_indices(images, len(x), site).tolist()):
        groups[image, *grids[number].tolist()].append(number)
    for (image, *grid), numbers in groups.items():
        if not all(grid):
            result[numbers] = 0  # no sample
            continue
        places = [
            _places(starts[numbers, axis], extents[numbers, axis] / size[axis], int(size[axis]), grid[axis])
            for axis in range(2)
        ]
        pool = _average if mode == "avg" else _greatest
        result[numbers] = pool(
            x[image], places, (len(numbers), output_height, grid[0], output_width, grid[1])
        )
    return result


def _places(starts: Array, bins: Array, count: int, samples: int) -> Array:
    """Where the samples stand: (boxes, bins * samples)."""
    share = np.arange(count)[:, None] + (np.arange(samples) + 0.5) / samples
    return starts[:, None].astype(np.float64) + bins[:, None].astype(np.float64) * share.reshape(1, -1)


def _inside(places: list[Array], extents: tuple[int, ...]) -> Array:
    """Samples more than an element outside of the image are 0: (boxes, rows, columns)."""
    rows, columns = ((p >= -1.0) & (p <= n) for p, n in zip(places, extents, strict=True))
    return rows[:, :, None] & columns[:, None, :]


def _average(x: Array, places: list[Array], shape: tuple[int, ...]) -> Array:
    height, width = x.shape[1:]
    boxes, rows, columns = shape[0], shape[1] * shape[2], shape[3] * shape[4]
    wide = np.dtype(np.float64 if x.dtype == np.float64 else np.float32)
    grid = np.empty((1, boxes * rows, columns, 2), wide)
    view = grid.reshape(boxes, rows, columns, 2)
    view[..., 0] = ((2 * places[1] + 1) / width - 1)[:, None, :]
    view[..., 1] = ((2 * places[0] + 1) / height - 1)[:, :, None]
    bounded((len(x), *grid.shape[1:3]), x)
    samples = jd.grid_sample(x[None].astype(wide, copy=False), grid, "linear", "border")
    inside = _inside(places, (height, width))
    if not inside.all():
        seen = inside.reshape(1, 1, boxes * rows, columns)
        samples = pointwise(lambda v, m: jd.where(m != 0.0, v, 0.0), samples, seen)
    sums = jd.reduce(samples.reshape(len(x), *shape), "avg", (3, 5))
    return (
        np.asarray(sums).reshape(len(x), boxes, shape[1], shape[3]).swapaxes(0, 1).astype(x.dtype, copy=False)
    )


def _greatest(x: Array, places: list[Array], shape: tuple[int, ...]) -> Array:
    """The greatest of the four neighbours of all samples, each times its weight: what ONNX's reference and onnxruntime
    take as the maximum."""
    lows, highs, shares = [], [], []
    for place, extent in zip(places, x.shape[1:], strict=True):
        near = np.clip(place, 0, extent - 1)
        low = np.floor(near).astype(np.int64)
        lows.append(low)
        highs.append(np.minimum(low + 1, extent - 1))
        shares.append(near - low)
    inside = _inside(places, x.shape[1:])
    best: Array | None = None
    for row, row_share in ((lows[0], 1 - shares[0]), (highs[0], shares[0])):
        for column, column_share in ((lows[1], 1 - shares[1]), (highs[1], shares[1])):
            weight = np.where(inside, row_share[:, :, None] * column_share[:, None, :], 0.0).astype(
                np.float32
            )
            found = x[:, row[:, :, None], column[:, None, :]]
            if best is None:
                best = pointwise(lambda v, w: v * w, found, weight)
            else:
                best = pointwise(lambda b, v, w: jd.maximum(b, v * w), best, found, weight)
    assert best is not None
    greatest = jd.reduce(best.reshape(len(x), *shape), "max", (3, 5))
    return np.asarray(greatest).reshape(len(x), shape[0], shape[1], shape[3]).swapaxes(0, 1)


OPERATORS = table(NonMaxSuppression=non_max_suppression, RoiAlign=roi_align)
