"""What each layer makes of an image, and what it has learned: maps as tiles, numbers, histograms, filters.

Layers in place are shown as one with the layer whose result they change, and layers that only copy are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from jitdnn.caffe import Net
from jitdnn.caffe.graph import Node
from jitdnn.errors import InvalidArgument
from jitdnn.studio.look import pictures
from jitdnn.studio.look.classify import describe, given_image
from jitdnn.studio.look.evaluate import plain
from jitdnn.studio.look.trained import Array, Found, Given, Row, Trained, open_trained

BINS: Final = 32
_COPIES: Final = ("Split", "Silence")


def activations(
    home: Path, run: Row, dataset: Row, given: Given, *, weights: str = "", most: int = 128
) -> Found:
    """Every layer for one image: `layers`, each with name, type, shape, blob, count of weights, statistics, histogram
    and `tiles` (PNG of up to `most` maps), with the image and the answer as `classify` has them.
    """
    trained, data = open_trained(home, run, dataset, weights)
    image, _ = given_image(trained, data, dataset, given)
    answer = trained.fill(image[np.newaxis])[0]
    layers = [_activation(group, most) for group in groups(trained)]
    return {
        "image": pictures.image_png(image),
        "layers": layers,
        **describe(trained.task, answer, data.classes),
    }


def maps_of(home: Path, run: Row, dataset: Row, layer: str, given: Given, *, weights: str = "") -> Found:
    """All maps of one layer for one image, up to 4,096, larger."""
    trained, data = open_trained(home, run, dataset, weights)
    image, _ = given_image(trained, data, dataset, given)
    trained.fill(image[np.newaxis])
    for group in groups(trained):
        if layer in [node.layer.name for node in group]:
            return _activation(group, 4096)
    raise InvalidArgument(f"the net has no layer {layer!r} that is shown")


def learned(home: Path, run: Row, dataset: Row, weights: str = "", most: int = 256) -> list[Found]:
    """Every layer that has weights: each weight with its shape, statistics, histogram, and filters as a picture."""
    trained, _ = open_trained(home, run, dataset, weights)
    found = []
    for node in trained.one.nodes:
        if not node.layer.weights:
            continue
        blobs = [weight_row(blob.name, blob.data, most) for blob in node.layer.weights]
        found.append({"name": node.layer.name, "type": node.layer.type, "weights": blobs})
    return found


def weight_row(name: str, values: Array, most: int = 256) -> Found:
    """What is told of a weight, or of its gradient: shape, statistics, and filters or a matrix as a picture."""
    picture = None
    if values.ndim == 4 and max(values.shape[2:]) > 1:
        picture = pictures.filters_png(values, most)
    elif values.ndim == 2 and min(values.shape) > 1:
        picture = pictures.tiles(_shrunk(values)[np.newaxis], signed=True)
    return {
        "name": name, "shape": list(values.shape), "count": values.size, "picture": picture, **statistics(values),
    }  # fmt: skip


def groups(trained: Trained) -> list[list[Node]]:
    """The layers as they are shown: each with those in place behind it."""
    return groups_of(trained.one)


def units_of(trained: Trained, layer: str) -> tuple[list[Node], int]:
    """The layers shown under a name, and how many units (channels) they have. Raises InvalidArgument."""
    group = next((g for g in groups(trained) if layer in [node.layer.name for node in g]), None)
    if group is None or not group[0].bottom:
        raise InvalidArgument(f"the net has no layer {layer!r} with units to look for")
    shape = group[0].top[0].shape
    return group, shape[1] if len(shape) > 1 else 1


def check_units(layer: str, units: Sequence[int], count: int) -> None:
    """Raises InvalidArgument for a unit that the layer does not have."""
    if unknown := [unit for unit in units if not 0 <= unit < count]:
        raise InvalidArgument(f"layer {layer!r} has units 0 to {count - 1}, not {unknown[0]}")


def groups_of(net: Net) -> list[list[Node]]:
    """The same of any net."""
    found: list[list[Node]] = []
    by_blob: dict[int, list[Node]] = {}
    for node in net.nodes:
        if node.layer.type in _COPIES or not node.top:
            continue
        top = node.top[0]
        if node.bottom and node.bottom[0] is top and id(top) in by_blob:
            by_blob[id(top)].append(node)
        else:
            by_blob[id(top)] = [node]
            found.append(by_blob[id(top)])
    return found


def statistics(values: Array) -> Found:
    """Mean, deviation, extremes, share of zeros, a histogram of what is finite with its edges, and how much is not."""
    flat = values.reshape(-1)
    finite = flat[np.isfinite(flat)].astype(np.float64)
    counts, edges = np.histogram(finite, BINS) if finite.size else (np.zeros(BINS, int), np.array([0.0, 1.0]))
    return {
        "mean": plain(finite.mean()) if finite.size else None,
        "std": plain(finite.std()) if finite.size else None,
        "low": plain(finite.min()) if finite.size else None,
        "high": plain(finite.max()) if finite.size else None,
        "zero": float((flat == 0).mean()) if flat.size else 0.0,
        "not_finite": int(flat.size - finite.size),
        "histogram": counts.tolist(),
        "edges": [float(edges[0]), float(edges[-1])],
    }


def names_of(group: list[Node]) -> Found:
    """How layers that fill one blob in place are named, and the blob."""
    return {
        "name": " + ".join(node.layer.name for node in group),
        "layer": group[0].layer.name,
        "type": " + ".join(node.layer.type for node in group),
        "blob": group[0].top[0].name,
    }


def _activation(group: list[Node], most: int) -> Found:
    top = group[0].top[0]
    values = top.data[0] if top.data.ndim > 1 else top.data
    return {
        **names_of(group),
        "shape": list(values.shape),
        "units": values.shape[0] if values.ndim else 1,
        "weights": sum(blob.size for node in group for blob in node.layer.weights),
        "tiles": pictures.tiles(as_maps(values), most=most),
        **statistics(values),
    }


def as_maps(values: Array) -> Array:
    """What a blob holds for one image as maps (N, H, W): its channels, or a vector as a block."""
    if values.ndim == 3:
        return values
    if values.ndim == 2:
        return values[np.newaxis]
    if values.ndim > 3:
        return values.reshape(-1, *values.shape[-2:])
    return pictures.vector_as_map(values)


def _shrunk(matrix: Array, most: int = 512) -> Array:
    """A matrix of at most `most` rows and columns: means of blocks."""
    for axis in (0, 1):
        step = -(-matrix.shape[axis] // most)
        if step > 1:
            starts = np.arange(0, matrix.shape[axis], step)
            sizes = np.diff(np.append(starts, matrix.shape[axis]))
            matrix = np.add.reduceat(matrix, starts, axis) / np.expand_dims(sizes, 1 - axis)
    return matrix
