"""Resize and Upsample: the library's resizing, or products with a matrix for each axis.

The matrices serve what only ONNX has: anti-aliasing, cropping, symmetric half pixels, and weights of places outside
that are left out.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from jitdnn.frameworks.onnx.operator import Array, Site, table
from jitdnn.frameworks.onnx.spatial import Ints
from jitdnn.frameworks.onnx.views import bounded, chosen_axes, whole
from jitdnn.graph import primitives as jd

_OURS = {"half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"}
_MOST_AXES = 3  # that the library resizes at once
_MOST_PARTS = 1000  # of which a scale that somebody wrote down is a fraction


class _Form(NamedTuple):
    """How values between the elements are made."""

    mode: str
    coordinates: str
    rounding: str
    cubic: float
    antialias: bool
    excludes_outside: bool


class _Axis(NamedTuple):
    """What becomes of one axis. `start` and `end`: the part that is cropped, as shares of the axis."""

    number: int
    extent: int
    size: int
    scale: float
    start: float = 0.0
    end: float = 1.0

    @property
    def is_cut(self) -> bool:
        """True if the scale gives a fraction of an element more than there are."""
        return not math.isclose(self.scale * self.extent, self.size)

    @property
    def changes(self) -> bool:
        return self.size != self.extent or self.scale != 1.0 or (self.start, self.end) != (0.0, 1.0)


def resize(
    x: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    /,
    *,
    antialias: int = 0,
    axes: Ints | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
    site: Site,
) -> Any:
    if site.version < 11:  # (x, scales), and places that are multiples of 1 / scale
        scales, roi, coordinate_transformation_mode, nearest_mode = roi, None, "asymmetric", "floor"
    numbers = chosen_axes(axes, x.ndim) if axes is not None else tuple(range(x.ndim))
    plans = _axes(
        x, numbers, roi, scales, sizes, keep_aspect_ratio_policy, coordinate_transformation_mode, site
    )
    form = _Form(
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        cubic_coeff_a,
        bool(antialias),
        bool(exclude_outside),
    )
    changing = [plan for plan in plans if plan.changes]
    if mode == "nearest" and scales is not None and scales.size:
        x, changing = _picked(x, changing, form)
    # ONNX lets the corners of an output of 2.4 elements lie at its ends, and the library those of the 2 that there are
    is_cut = form.coordinates == "align_corners" and any(plan.is_cut for plan in changing)
    if form.coordinates in _OURS and not (form.antialias or form.excludes_outside or is_cut):
        for first in range(0, len(changing), _MOST_AXES):
            x = _resized(x, changing[first : first + _MOST_AXES], form)
        return x
    for plan in changing:
        x = _by_matrix(x, plan, form, extrapolation_value, site)
    return x


def upsample(x: Array, scales: Array, /, *, mode: str = "nearest", site: Site) -> Any:
    numbers = tuple(range(x.ndim))
    plans = _axes(x, numbers, None, scales, None, "stretch", "asymmetric", site)
    form = _Form(mode, "asymmetric", "floor", -0.75, False, False)
    changing = [plan for plan in plans if plan.changes]
    if mode == "nearest":
        x, changing = _picked(x, changing, form)
    for first in range(0, len(changing), _MOST_AXES):
        x = _resized(x, changing[first : first + _MOST_AXES], form)
    return x


def _axes(
    x: Array,
    numbers: Ints,
    roi: Array | None,
    scales: Array | None,
    sizes: Array | None,
    policy: str,
    coordinates: str,
    site: Site,
) -> list[_Axis]:
    extents = [x.shape[number] for number in numbers]
    if scales is not None and scales.size:
        factors = [float(scale) for scale in scales]
        targets = [math.floor(n * factor) for n, factor in zip(extents, factors, strict=True)]
    elif sizes is not None:
        targets = list(whole(sizes))
        factors = [target / n for n, target in zip(extents, targets, strict=True)]
        if policy != "stretch":
            factor = min(factors) if policy == "not_larger" else max(factors)
            factors = [factor] * len(extents)
            targets = [math.floor(n * factor + 0.5) for n in extents]
    else:
        raise site.refuse("neither scales nor sizes are given")
    crops = [(0.0, 1.0)] * len(extents)
    if coordinates == "tf_crop_and_resize":
        if roi is None:
            raise site.refuse("tf_crop_and_resize without a roi is not covered")
        crops = [(float(roi[i]), float(roi[i + len(extents)])) for i in range(len(extents))]
    shape = dict(enumerate(x.shape)) | dict(zip(numbers, targets, strict=True))
    bounded(tuple(max(extent, 0) for extent in shape.values()), x)
    return [
        _Axis(number, extent, size, scale, *crop)
        for number, extent, size, scale, crop in zip(numbers, extents, targets, factors, crops, strict=True)
    ]


def _picked(x: Array, changing: list[_Axis], form: _Form) -> tuple[Any, list[_Axis]]:
    """What is left to resize, to the elements that places in float32 are nearest to, as onnxruntime and PyTorch
    compute them: 17 of scale 1.7 is element 10, and a little less by the number that float32 has for 1.7.

    Axes get a scale by which exact places come to the same elements; where there is none, their elements are taken now.
    """
    left = []
    for plan in changing:
        if form.coordinates not in ("asymmetric", "half_pixel") or not plan.scale > 0:
            left.append(plan)
            continue
        half = np.float32(0.5 * (form.coordinates == "half_pixel"))
        places = (np.arange(plan.size, dtype=np.float32) + half) / np.float32(plan.scale) - half
        wanted = [_clamped(_rounded(float(place), form.rounding), plan) for place in places]
        meant = float(Fraction(plan.scale).limit_denominator(_MOST_PARTS))
        for scale in (plan.scale, *(meant * (1 + off) for off in (0.0, -1e-12, 1e-12))):
            if [_exactly(output, scale, plan, form) for output in range(plan.size)] == wanted:
                left.append(plan._replace(scale=scale))
                break
        else:
            x = np.take(x, np.array(wanted, np.int64), plan.number)
    return x, left


def _exactly(output: int, scale: float, plan: _Axis, form: _Form) -> int:
    """The element that an output is nearest to, without rounding."""
    half = Fraction(int(form.coordinates == "half_pixel"), 2)
    return _clamped(_rounded((output + half) / Fraction(scale) - half, form.rounding), plan)


def _clamped(element: int, plan: _Axis) -> int:
    return min(max(element, 0), plan.extent - 1)


def _resized(x: Array, plans: list[_Axis], form: _Form) -> Any:
    """By the library, which takes (N, C, space): the axes of space are these, the others are N and C."""
    over = [plan.number for plan in plans]
    kept = [axis for axis in range(x.ndim) if axis not in over]
    moved = x.transpose(*kept, *over)
    outer = moved.shape[: len(kept)]
    # two of the others stay as they are, so that a view remains one
    head = outer if len(outer) == 2 else (int(np.prod(outer)), 1)
    y = jd.resize(
        moved.reshape(*head, *(plan.extent for plan in plans)),
        tuple(plan.size for plan in plans),
        tuple(plan.scale for plan in plans),
        form.mode,
        form.coordinates,
        form.rounding,
        form.cubic,
    )
    return y.reshape(*outer, *(plan.size for plan in plans)).transpose(np.argsort([*kept, *over]))


def _by_matrix(x: Array, plan: _Axis, form: _Form, outside_value: float, site: Site) -> Array:
    """The product of every line along the axis with the matrix of its taps."""
    matrix, is_outside = np.zeros((plan.size, plan.extent)), np.zeros(plan.size, bool)
    for output in range(plan.size):
        place = _place(output, plan, form.coordinates, site)
        is_outside[output] = form.coordinates == "tf_crop_and_resize" and not 0 <= place <= plan.extent - 1
        for column, weight in _taps(place, plan, form, site).items():
            matrix[output, column] += weight
    lines = np.moveaxis(x, plan.number, -1)
    flat = lines.reshape(-1, plan.extent)
    y = jd.matmul(flat, np.ascontiguousarray(matrix.T.astype(x.dtype)))
    y[:, is_outside] = outside_value
    return np.moveaxis(y.reshape(*lines.shape[:-1], plan.size), -1, plan.number)


def _place(output: int, plan: _Axis, coordinates: str, site: Site) -> float:
    """Where an output stands among the elements."""
    width = plan.scale * plan.extent
    last = plan.extent - 1
    match coordinates:
        case "half_pixel":
            return (output + 0.5) / plan.scale - 0.5
        case "half_pixel_symmetric":
            offset = plan.extent / 2 * (1 - plan.size / width)
            return offset + (output + 0.5) / plan.scale - 0.5
        case "pytorch_half_pixel":
            return (output + 0.5) / plan.scale - 0.5 if plan.size > 1 else -0.5
        case "align_corners":
            return output * last / (width - 1) if width != 1 else 0.0
        case "asymmetric":
            return output / plan.scale
        case "tf_crop_and_resize":
            if plan.size == 1:
                return 0.5 * (plan.start + plan.end) * last
            return plan.start * last + output * (plan.end - plan.start) * last / (plan.size - 1)
    raise site.refuse(f"coordinate_transformation_mode {coordinates!r} is not covered")


def _taps(place: float, plan: _Axis, form: _Form, site: Site) -> dict[int, float]:
    """Columns and their weights; places outside count for the end next to them, or not at all."""
    if form.mode == "nearest":
        return {min(max(_rounded(place, form.rounding), 0), plan.extent - 1): 1.0}
    reach = {"linear": 1, "cubic": 2}.get(form.mode)
    if reach is None:
        raise site.refuse(f"mode {form.mode!r} is not covered")
    # anti-aliasing stretches the curve over as many elements as fall upon one output
    stretch = min(plan.scale, 1.0) if form.antialias else 1.0
    weights: dict[int, float] = {}
    for column in range(math.floor(place - reach / stretch), math.ceil(place + reach / stretch) + 1):
        weight = _curve((column - place) * stretch, form)
        inside = min(max(column, 0), plan.extent - 1)
        if weight and not (form.excludes_outside and inside != column):
            weights[inside] = weights.get(inside, 0.0) + weight
    total = sum(weights.values())
    return {column: weight / total for column, weight in weights.items()}


def _rounded(place: float | Fraction, rounding: str) -> int:
    down = math.floor(place)
    if rounding == "floor" or place == down:
        return down
    if rounding == "ceil":
        return down + 1
    half = place - down == 0.5
    return down + (rounding == "round_prefer_ceil" if half else place - down > 0.5)


def _curve(distance: float, form: _Form) -> float:
    """The weight of an element at a distance: a tent, or Keys' cubic."""
    d, a = abs(distance), form.cubic
    if form.mode == "linear":
        return max(1.0 - d, 0.0)
    if d <= 1.0:
        return ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0
    return ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a if d < 2.0 else 0.0


OPERATORS = table(Resize=resize, Upsample=upsample)
