"""Which images of a data set the units of a layer answer to most (Zeiler and Fergus 2013, section 4).

A unit's answer is the greatest value of its channel over all places, as the layer and those in place behind it leave
it; where that is says what in the image it answered to.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jitdnn.errors import InvalidArgument
from jitdnn.studio.look.evaluate import plain
from jitdnn.studio.look.layers import check_units, units_of
from jitdnn.studio.look.trained import Array, Row, Trained, open_trained

MOST_UNITS: Final = 64
MOST_SHOWN: Final = 32
MOST_IMAGES: Final = 100_000
_PIECE: Final = 256  # images between two looks at the clock


def strongest(
    home: Path,
    run: Row,
    dataset: Row,
    layer: str,
    units: Sequence[int],
    *,
    part: str = "",
    shown: int = 8,
    images: int = 2000,
    seconds: float = 30.0,
    weights: str = "",
) -> dict[str, Any]:
    """The `shown` images of a part that each of some units answers to most, of up to `images` of them, spread over the
    part, and of as many as are looked at in so many seconds.

    `part` and `layer`, `looked` of `count` images, and `units`: each with its number, the mean of its answers and its
    `images`, the strongest first: `at` (the number of the image), `value`, and `row` and `column` of the middle of the
    place as parts of the height and the width. Raises InvalidArgument for a layer or units that are not there.
    """
    if not 1 <= len(units) <= MOST_UNITS:
        raise InvalidArgument(f"{len(units)} units: 1 to {MOST_UNITS} at a time")
    if not (1 <= shown <= MOST_SHOWN and 1 <= images <= MOST_IMAGES):
        raise InvalidArgument(
            f"{shown} shown of {images} images: 1 to {MOST_SHOWN} are shown, of 1 to {MOST_IMAGES:,}"
        )
    trained, data = open_trained(home, run, dataset, weights)
    group, count = units_of(trained, layer)
    check_units(layer, units, count)
    part = part or data.evaluation_part
    given = data.images(part)
    chosen = np.unique(np.linspace(0, len(given) - 1, min(images, len(given))).astype(np.int64))
    values, places = np.empty((0, len(units))), np.empty((0, len(units)), np.int64)
    end = time.monotonic() + seconds
    extents: tuple[int, ...] = ()
    for start in range(0, len(chosen), _PIECE):
        if start and time.monotonic() > end:
            break
        several = np.asarray(given[chosen[start : start + _PIECE]])
        found, where, extents = _answers(trained, group[-1].top[0].name, several, list(units))
        values, places = np.concatenate([values, found]), np.concatenate([places, where])
    looked = len(values)
    return {
        "layer": layer,
        "part": part,
        "looked": looked,
        "count": len(given),
        "units": [
            {
                "unit": int(unit),
                "mean": plain(values[:, k].mean()) if looked else None,
                "images": [
                    {
                        "at": int(chosen[row]),
                        "value": plain(values[row, k]),
                        **_middle(places[row, k], extents),
                    }
                    for row in np.argsort(-values[:, k], kind="stable")[:shown]
                ],
            }
            for k, unit in enumerate(units)
        ],
    }


def _answers(
    trained: Trained, blob: str, images: Array, units: list[int]
) -> tuple[Array, NDArray[np.int64], tuple[int, ...]]:
    """What units answer to images, (N, units), the number of the place where, and the extents of places."""
    found = trained.run(trained.prepare(images), blob)
    extents = found.shape[2:] or (1,)
    rows = found.reshape(len(images), found.shape[1] if found.ndim > 1 else 1, -1)[:, units].astype(
        np.float64
    )
    rows = np.nan_to_num(rows, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    where = rows.argmax(2)
    return np.take_along_axis(rows, where[..., np.newaxis], 2)[..., 0], where, extents


def _middle(place: int, extents: tuple[int, ...]) -> dict[str, float | None]:
    """The middle of a place of a map; None for what has no places."""
    if len(extents) < 2 or max(extents) == 1:
        return {"row": None, "column": None}
    *_, row, column = np.unravel_index(int(place), extents)
    return {"row": (float(row) + 0.5) / extents[-2], "column": (float(column) + 0.5) / extents[-1]}
