"""Weights in Caffe's own files: .caffemodel, a NetParameter with blobs in its layers, and .caffemodel.h5, its twin.

A binary file holds the weights of every layer, those that layers share once in each; HDF5 has `data/LAYER/INDEX`,
shared ones only under the layer that owns them. Both are what Caffe writes, and what it accepts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jitdnn.caffe import hdf5
from jitdnn.caffe.blob import Array, Shape
from jitdnn.caffe.blob_proto import (
    Parts,
    StoredBlob,
    blob_parts,
    field_parts,
    read_blob,
    read_whole,
    real_array,
    write_parts,
)
from jitdnn.caffe.graph import LayerGraph
from jitdnn.caffe.schema import NetParameter
from jitdnn.caffe.wire import LENGTH, Reader, encode
from jitdnn.errors import InvalidArgument

BINARY = ".caffemodel"
HDF5 = (".h5", ".hdf5")

# numbers of fields: the layers of a net in V2 and V1, and in each syntax the name of a layer and its blobs
_LAYER, _LAYERS = 100, 2
_FIELDS = {"V2": (1, 7), "V1": (4, 6), "V0": (1, 50)}
_V0_LAYER = 1


class StoredLayer(NamedTuple):
    """The name of a layer in a file, and its weights."""

    name: str
    blobs: list[StoredBlob]


def read_weights(path: Path, wanted: Mapping[str, list[Shape]]) -> dict[str, Array]:
    """Read the weights of the layers in `wanted`, which has the shapes of each; return arrays by LAYER/INDEX.

    A blob of an old file, whose shape is num, channels, height and width, gets the shape that is wanted if they mean
    the same. Raises InvalidArgument for a file that is damaged, NotSupported without h5py.
    """
    if path.suffix in HDF5:
        return _read_hdf5(path, wanted)
    arrays: dict[str, Array] = {}
    for layer in read_layers(path):
        shapes = wanted.get(layer.name)
        if shapes is None:
            continue
        for index, blob in enumerate(layer.blobs):
            is_same = blob.is_legacy and index < len(shapes) and blob.fits(shapes[index])
            arrays[f"{layer.name}/{index}"] = blob.data.reshape(shapes[index]) if is_same else blob.data
    return arrays


def read_layers(path: Path) -> list[StoredLayer]:
    """The layers of a binary file that have weights, in V2, V1 or V0 syntax. Raises InvalidArgument."""
    reader = Reader(str(path))
    found: list[StoredLayer] = []
    for number, kind, _, content in reader.fields(read_whole(path, "a model")):
        if kind == LENGTH and number in (_LAYER, _LAYERS):
            found += _layer(content, "V2" if number == _LAYER else "V1", reader)
    return [layer for layer in found if layer.blobs]


def write_weights(net: LayerGraph, definition: NetParameter, path: Path, *, with_diff: bool = False) -> None:
    """Write the weights of a net to a file of Caffe's, whole or not at all, with their gradients if asked for.

    The suffix says which: .caffemodel has the definition of the net too, .h5 the weights alone. Raises InvalidArgument.
    """
    if path.suffix in HDF5:
        _write_hdf5(net, path, with_diff)
        return
    plain = NetParameter()
    plain.merge(definition)
    plain.clear("layer")
    parts: Parts = [encode(plain)]
    for layer, node in zip(definition.layer, net.nodes, strict=True):
        written = layer.copy()
        if written.top == [f"({layer.name})"]:  # a loss without a top got one for the net's own use
            written.clear("top")
        layer_parts: Parts = [encode(written)]
        for blob in node.layer.weights:
            diff = blob.diff if with_diff else None
            layer_parts += field_parts(_FIELDS["V2"][1], blob_parts(blob.data, diff))
        parts += field_parts(_LAYER, layer_parts)
    write_parts(path, parts, "a model")


def _layer(content: memoryview, syntax: str, reader: Reader) -> list[StoredLayer]:
    """The layer of these bytes; of one in V1 syntax that holds one in V0 syntax, that one too."""
    name_field, blobs_field = _FIELDS[syntax]
    name, blobs, inner = "", list[memoryview](), list[StoredLayer]()
    for number, kind, _, data in reader.fields(content):
        if kind != LENGTH:
            continue
        if number == name_field:
            name = reader.text(data, "the name of a layer")
        elif number == blobs_field:
            blobs.append(data)
        elif syntax == "V1" and number == _V0_LAYER:
            inner += _layer(data, "V0", reader)
    what = f"layer {name!r}, weight"
    found = [read_blob(data, reader, f"{what} {index}") for index, data in enumerate(blobs)]
    return [StoredLayer(name, found), *inner]


def _read_hdf5(path: Path, wanted: Mapping[str, list[Shape]]) -> dict[str, Array]:
    with hdf5.opened(path) as file:
        module = hdf5.h5py()
        # links are not followed, as they may lead into another file
        is_inside = isinstance(file.get("data", getlink=True), module.HardLink)
        if not is_inside or not isinstance(file["data"], module.Group):
            raise InvalidArgument(f"{path} is no model of Caffe: it has no group data")
        return {
            name: hdf5.array(dataset, path, f"data/{name}")
            for name, dataset in hdf5.datasets(file["data"], path).items()
            if name.rpartition("/")[0] in wanted
        }


def _write_hdf5(net: LayerGraph, path: Path, with_diff: bool) -> None:
    def fill(file: Any) -> None:
        root = file.create_group("data")
        diffs = file.create_group("diff") if with_diff else None
        for parameter in net.parameters:
            root.create_dataset(parameter.name, data=real_array(parameter.blob.data))
            if diffs is not None:
                diffs.create_dataset(parameter.name, data=real_array(parameter.blob.diff))

    hdf5.write(path, fill)
