"""The trained weights of a net: sharing by name, and how they leave and enter it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jitdnn.caffe import model_files, snapshot
from jitdnn.caffe.arrays import read_npz
from jitdnn.caffe.blob import Array, Blob
from jitdnn.caffe.graph import LayerGraph, Parameter
from jitdnn.caffe.layers.base import Layer
from jitdnn.caffe.schema import NetParameter, ParamSpec
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.files import write_whole

#: as messages say it
WEIGHT_FILES = ".npz, .caffemodel, .caffemodel.h5"


def collect_parameters(layers: Sequence[Layer]) -> list[Parameter]:
    """Make weights with the same `param { name }` one, and return all that there are, in the order of the
    layers.

    Raises InvalidArgument for multipliers or shapes that contradict each other, or too many param.
    """
    parameters: list[Parameter] = []
    owners: dict[str, tuple[Parameter, ParamSpec]] = {}
    names: set[str] = set()
    for layer in layers:
        specs = layer.parameter.param
        if len(specs) > len(layer.weights):
            raise layer.invalid(
                f"{len(specs)} param for {len(layer.weights)} weights: take the last ones out", "param"
            )
        if layer.weights and layer.name in names:
            raise layer.invalid("another layer with weights has this name: rename one of them", "name")
        if layer.weights:
            names.add(layer.name)
        for index, blob in enumerate(layer.weights):
            spec = specs[index] if index < len(specs) else ParamSpec()
            layer.weight_needs_gradient[index] = spec.lr_mult != 0
            if spec.name and spec.name in owners:
                _share(layer, index, spec, *owners[spec.name])
                continue
            parameter = Parameter(blob.name, blob, spec.lr_mult, spec.decay_mult)
            parameters.append(parameter)
            if spec.name:
                owners[spec.name] = (parameter, spec.copy())
    return parameters


def _share(layer: Layer, index: int, spec: ParamSpec, owner: Parameter, agreed: ParamSpec) -> None:
    blob = layer.weights[index]
    is_exact = spec.share_mode == "STRICT"
    if blob.size != owner.blob.size or (is_exact and blob.shape != owner.blob.shape):
        raise layer.invalid(
            f"param {spec.name!r} has shape {blob.shape} here and {owner.blob.shape} in {owner.name}: they "
            f"must agree {'exactly (share_mode STRICT)' if is_exact else 'in size'}",
            "param",
        )
    blob.share(owner.blob, blob.shape)
    for name in ("lr_mult", "decay_mult"):
        if not spec.has(name):
            continue
        value = getattr(spec, name)
        if agreed.has(name) and getattr(agreed, name) != value:
            raise layer.invalid(
                f"param {spec.name!r} has {name} {value:g} here and {getattr(agreed, name):g} before: "
                "they must agree",
                "param",
            )
        setattr(agreed, name, value)
        setattr(owner, name, value)


def weight_arrays(net: LayerGraph) -> dict[str, Array]:
    """Return the arrays of all weights (not copies) by LAYER/INDEX; shared ones stand once, under their
    owner.
    """
    return {parameter.name: parameter.blob.data for parameter in net.parameters}


def copy_weights(net: LayerGraph, arrays: Mapping[str, Array], source: str) -> list[str]:
    """Copy arrays named LAYER/INDEX into the layers of those names, and return the layers that got some.

    Names that the net does not have are left alone, as in Caffe: rename a layer to start it afresh. Raises
    InvalidShape if a shape differs, InvalidArgument if no name fits or the number of weights of a layer
    differs, InvalidType if values are no real numbers; nothing is copied then.
    """
    found: list[str] = []
    copies: list[tuple[Blob, Array]] = []  # made when all of them fit, so that a net is never half loaded
    owned = {parameter.name for parameter in net.parameters}
    for layer_name, blobs in net.weights.items():
        count = sum(1 for name in arrays if name.rpartition("/")[0] == layer_name)
        own = [blob for blob in blobs if blob.name in owned]
        if count == 0:
            continue
        if count not in (len(own), len(blobs)):
            raise InvalidArgument(
                f"{source} has {count} weights for layer {layer_name!r}, and the net {len(own)}: "
                "rename the layer to start it afresh"
            )
        for blob in blobs:
            if blob.name not in arrays:
                continue
            values = arrays[blob.name]
            if values.shape != blob.shape:
                raise InvalidShape(
                    f"{blob.name} has shape {values.shape} in {source}, and {blob.shape} in the net: "
                    "rename the layer to start it afresh"
                )
            if values.dtype.kind not in "buif":
                raise InvalidType(f"{blob.name} is {values.dtype} in {source}: weights are real numbers")
            copies.append((blob, values))
        found.append(layer_name)
    if arrays and not found:
        raise InvalidArgument(
            f"no layer of the net has a weight in {source}, which has {', '.join(sorted(arrays)[:6])} ..."
        )
    for blob, values in copies:
        np.copyto(blob.data, values, casting="same_kind")
    return found


def share_weights(net: LayerGraph, source: LayerGraph) -> None:
    """Make the weights of `net` views of those of the layers of the same name in `source`."""
    theirs = source.weights
    for name, blobs in net.weights.items():
        if name not in theirs:
            continue
        shapes, others = [blob.shape for blob in blobs], [blob.shape for blob in theirs[name]]
        if shapes != others:
            raise InvalidShape(f"layer {name!r} has weights {others} in training and {shapes} in testing")
        for blob, other in zip(blobs, theirs[name], strict=True):
            blob.share(other)


def save_weights(net: LayerGraph, definition: NetParameter, path: Path) -> None:
    """Write all weights to a file, whole or not at all: .npz (arrays named LAYER/INDEX), .caffemodel or .h5
    (model_files.py). Raises InvalidArgument.
    """
    if path.suffix in (model_files.BINARY, *model_files.HDF5):
        model_files.write_weights(net, definition, path)
        return
    if path.suffix != ".npz":
        raise InvalidArgument(f"weights are saved as {WEIGHT_FILES}, and {path} ends otherwise")
    write_npz(path, weight_arrays(net))


def write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays named LAYER/INDEX, whole or not at all. Raises InvalidArgument."""
    named: dict[str, Any] = dict(arrays)
    try:
        write_whole(path, lambda file: np.savez(file, **named))
    except OSError as error:
        raise InvalidArgument(f"cannot write {path}: {error}") from error


def load_weights(net: LayerGraph, path: Path) -> list[str]:
    """Copy weights from a file of `save_weights`, of Caffe or from a snapshot, by the names of layers (`copy_weights`).

    Raises InvalidArgument for a file that is none of them, SnapshotError for a damaged snapshot.
    """
    return copy_weights(net, read_weight_file(net, path), str(path))


def read_weight_file(net: LayerGraph, path: Path) -> dict[str, Array]:
    """Read what `load_weights` copies: arrays by LAYER/INDEX."""
    if path.suffix == snapshot.SUFFIX:
        named = snapshot.read(path).arrays.items()
        return {name.removeprefix("weights/"): array for name, array in named if name.startswith("weights/")}
    if path.suffix == ".npz":
        return read_npz(path)
    if path.suffix not in (model_files.BINARY, *model_files.HDF5):
        raise InvalidArgument(
            f"weights are read from {WEIGHT_FILES} and {snapshot.SUFFIX} files, and {path} is none"
        )
    arrays = model_files.read_weights(
        path, {name: [blob.shape for blob in blobs] for name, blobs in net.weights.items()}
    )
    if not arrays:
        raise InvalidArgument(f"no layer of the net has a weight in {path}: layers go by their names")
    return arrays
