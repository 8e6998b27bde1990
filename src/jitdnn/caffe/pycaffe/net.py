"""Net as pycaffe has it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from jitdnn.caffe import load_net
from jitdnn.caffe.blob import Array
from jitdnn.caffe.layers import Layer
from jitdnn.caffe.net import Net as CoreNet
from jitdnn.caffe.pycaffe import mode
from jitdnn.caffe.views import BlobView
from jitdnn.caffe.weights import share_weights
from jitdnn.errors import InvalidArgument, InvalidShape

Path = str | PathLike[str]


class LayerView:
    """A layer of a net: its `type` and `blobs`, the weights."""

    def __init__(self, layer: Layer) -> None:
        self.type = layer.type
        self.blobs = [BlobView(blob) for blob in layer.weights]

    def __repr__(self) -> str:
        return f"<layer {self.type}>"


class Net:
    """`Net(FILE, phase)`, `Net(FILE, phase, weights=FILE)` or, as old code has it, `Net(FILE, FILE of weights, phase)`.

    `blobs` and `params` are ordered by layer: blobs by name, and lists of weights by the layer's name, whose `data` and
    `diff` are the net's own arrays. `inputs` and `outputs` are names, `layers` all layers with those that split;
    `core` is the library's own net.
    """

    def __init__(
        self,
        network_file: Path,
        *arguments: Any,
        phase: int | None = None,
        weights: Path | None = None,
        level: int = 0,
        stages: Sequence[str] | None = None,
    ) -> None:
        """Build the net, as `jitdnn.caffe.load_net` does; `phase` is TRAIN or TEST. Raises as that does."""
        given = list(arguments)
        if len(given) > 2:
            raise InvalidArgument(f"Net takes a file, a phase and weights, not {1 + len(given)} arguments")
        if len(given) == 2:
            weights, given = given[0], given[1:]
        if given:
            phase = given[0]
        if phase not in (mode.TRAIN, mode.TEST):
            raise InvalidArgument(f"the phase is {phase!r}: it must be TRAIN or TEST")
        self._set(
            load_net(
                network_file,
                mode.PHASES[phase],
                level=level,
                stages=tuple(stages or ()),
                weights=weights,
                seed=mode.next_seed(),
                device=mode.device(),
                python_layers=mode.python_layers(),
            )
        )

    @classmethod
    def of(cls, core: CoreNet) -> Self:
        """Make one of a net of the library, which stays the same net."""
        net = cls.__new__(cls)
        net._set(core)
        return net

    def _set(self, core: CoreNet) -> None:
        self.core = core
        self.blobs: OrderedDict[str, BlobView] = OrderedDict(
            (name, BlobView(blob)) for name, blob in core.blobs.items()
        )
        self.params: OrderedDict[str, list[BlobView]] = OrderedDict(
            (name, [BlobView(blob) for blob in blobs]) for name, blobs in core.weights.items()
        )
        self.layers = [LayerView(layer) for layer in core.layers]
        self._layer_names = [layer.name for layer in core.layers]
        self.layer_dict: OrderedDict[str, LayerView] = OrderedDict(
            zip(self._layer_names, self.layers, strict=True)
        )
        self.top_names = self._names("top")
        self.bottom_names = self._names("bottom")

    def _names(self, side: str) -> OrderedDict[str, list[str]]:
        return OrderedDict(
            (node.layer.name, [blob.name for blob in getattr(node, side)]) for node in self.core.nodes
        )

    @property
    def name(self) -> str:
        return self.core.name

    @property
    def inputs(self) -> list[str]:
        """The names of the blobs that the caller fills."""
        return list(self.core.inputs)

    @property
    def outputs(self) -> list[str]:
        """The names of the blobs that no layer reads."""
        return list(self.core.outputs)

    @property
    def blob_loss_weights(self) -> OrderedDict[str, float]:
        """The loss weight of each blob."""
        weights = OrderedDict.fromkeys(self.blobs, 0.0)
        for node in self.core.nodes:
            for blob, weight in zip(node.top, node.loss_weights, strict=True):
                if blob.name in weights:
                    weights[blob.name] = weight
        return weights

    # ---- running

    def forward(
        self,
        blobs: Iterable[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        **inputs: ArrayLike,
    ) -> dict[str, Array]:
        """Run the layers from the one named `start` to the one named `end`, and return the net's outputs (with `end`:
        its tops) and those named in `blobs`, by name; they are the net's own arrays.

        `inputs` are copied into the input blobs first: all of them must be given then.
        """
        first = 0 if start is None else self._index(start)
        last = None if end is None else self._index(end)
        wanted = [*(self.outputs if end is None else self.top_names[end]), *(blobs or ())]
        self._check(wanted)
        if inputs:
            if set(inputs) != set(self.inputs):
                has = f"has {', '.join(self.inputs)}: give all of them" if self.inputs else "has no inputs"
                raise InvalidArgument(f"the inputs given are {', '.join(sorted(inputs))}, and the net {has}")
            for name, values in inputs.items():
                _copy(values, self.blobs[name].data, f"input {name!r}")
        self.core.forward_layers(first, last)
        return {name: self.blobs[name].data for name in wanted}

    def backward(
        self,
        diffs: Iterable[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        **outputs: ArrayLike,
    ) -> dict[str, Array]:
        """Run the backward pass from the layer named `start` (the last one) down to the one named `end` (the first),
        and return the gradients of the net's inputs (with `end`: of its bottoms) and of the blobs named in `diffs`.

        `outputs` are copied into the gradients of the output blobs first: all of them must be given then. Gradients of
        weights are added up, as in the library. Layers that neither a loss nor `force_backward` reaches do nothing.
        """
        first = None if start is None else self._index(start)
        last = 0 if end is None else self._index(end)
        wanted = [*(self.inputs if end is None else self.bottom_names[end]), *(diffs or ())]
        self._check(wanted)
        if outputs:
            if set(outputs) != set(self.outputs):
                raise InvalidArgument(
                    f"the gradients given are of {', '.join(sorted(outputs))}, and the net's outputs are "
                    f"{', '.join(self.outputs)}: give all of them"
                )
            for name, values in outputs.items():
                _copy(values, self.blobs[name].diff, f"the gradient of {name!r}")
        self.core.backward_layers(first, last)
        return {name: self.blobs[name].diff for name in wanted}

    def forward_all(self, blobs: Iterable[str] | None = None, **inputs: ArrayLike) -> dict[str, Array]:
        """Run `inputs` of any number of images in batches, and return all outputs, one row each (copies)."""
        names = list(blobs or ())
        found: dict[str, list[Array]] = {name: [] for name in (*self.outputs, *names)}
        count = _count(inputs)
        for batch in self._batches(inputs):
            for name, values in self.forward(names, None, None, **batch).items():
                found[name].extend(values.copy())
        return {name: np.asarray(rows[:count]) for name, rows in found.items()}

    def forward_backward_all(
        self, blobs: Iterable[str] | None = None, diffs: Iterable[str] | None = None, **arrays: ArrayLike
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Run forward and backward passes over inputs and gradients of outputs, `arrays`, in batches; return all
        outputs and all gradients (copies).
        """
        inputs = {name: arrays[name] for name in self.inputs if name in arrays}
        tops = {name: arrays[name] for name in self.outputs if name in arrays}
        names, gradients = list(blobs or ()), list(diffs or ())
        values: dict[str, list[Array]] = {name: [] for name in (*self.outputs, *names)}
        found: dict[str, list[Array]] = {name: [] for name in (*self.inputs, *gradients)}
        count = _count(arrays)
        top_batches: Iterable[dict[str, Array]] = self._batches(tops) if tops else iter(dict, None)
        for batch, top in zip(self._batches(inputs), top_batches, strict=False):
            for name, array in self.forward(names, None, None, **batch).items():
                values[name].extend(array.copy())
            for name, array in self.backward(gradients, None, None, **top).items():
                found[name].extend(array.copy())
        return (
            {name: np.asarray(rows[:count]) for name, rows in values.items()},
            {name: np.asarray(rows[:count]) for name, rows in found.items()},
        )

    def reshape(self) -> None:
        """Carry the shapes of the input blobs, `blobs[name].reshape(...)`, through all layers."""
        self.core.reshape()

    def clear_param_diffs(self) -> None:
        """Set the gradients of all weights to 0."""
        self.core.clear_gradients()

    # ---- weights

    def copy_from(self, weights: Path) -> None:
        """Copy the weights of a file into the layers of the same names. Raises as `jitdnn.caffe.Net.load_weights`."""
        self.core.load_weights(str(weights))

    def share_with(self, other: Net) -> None:
        """Make the weights those of the layers of the same names in another net."""
        share_weights(self.core, other.core)

    def save(self, path: Path) -> None:
        """Write all weights to a file: .caffemodel, .caffemodel.h5 or .npz."""
        self.core.save_weights(str(path))

    load_hdf5 = copy_from
    save_hdf5 = save

    # ---- helpers

    def _index(self, name: str) -> int:
        if name not in self._layer_names:
            raise InvalidArgument(f"there is no layer {name!r}: there are {', '.join(self._layer_names)}")
        return self._layer_names.index(name)

    def _check(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.blobs:
                raise InvalidArgument(f"there is no blob {name!r}: there are {', '.join(self.blobs)}")

    def _batches(self, arrays: Mapping[str, ArrayLike]) -> Iterator[dict[str, Array]]:
        """The arrays in pieces of the net's batch, the last one filled up with zeros."""
        count = _count(arrays)
        size = next(iter(self.blobs.values())).num
        for start in range(0, count, size):
            batch = {}
            for name, values in arrays.items():
                part = np.asarray(values)[start : start + size]
                filler = np.zeros((size - len(part), *part.shape[1:]), part.dtype)
                batch[name] = np.concatenate([part, filler]) if len(filler) else part
            yield batch


def _count(arrays: Mapping[str, ArrayLike]) -> int:
    counts = {name: len(np.asarray(values)) for name, values in arrays.items()}
    if len(set(counts.values())) != 1:
        raise InvalidArgument(f"arrays of as many rows each are needed, at least one; there are {counts}")
    return next(iter(counts.values()))


def _copy(values: ArrayLike, target: Array, what: str) -> None:
    array = np.asarray(values)
    if array.shape != target.shape:
        raise InvalidShape(
            f"{what} has shape {target.shape}, these values {array.shape}: reshape the blob first"
        )
    np.copyto(target, array, casting="unsafe")
