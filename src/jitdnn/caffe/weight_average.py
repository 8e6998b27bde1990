"""An exponential moving average of the weights, which is tested and kept in the place of the weights that are trained.

After the update of iteration i (from 0), for each weight w and its average e, those of BatchNorm's statistics included:

    e ← w + k (e − w),   k = min(ema_decay, (1 + i) / (10 + i))

so that early weights, which are random, are forgotten early (the averages of TensorFlow with `num_updates`; Polyak and
Juditsky 1992 for the idea).
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np

from jitdnn.caffe.blob import Array
from jitdnn.caffe.layouts import flat
from jitdnn.caffe.net import Net
from jitdnn.ops.elementwise import elementwise


class WeightAverage:
    """The averages of the weights of `net`, each where its weight is: in the host's memory or on a GPU."""

    def __init__(self, net: Net, decay: float) -> None:
        """Averages with `decay`, from 0 to less than 1, that begin with the weights as they are."""
        self._net, self._decay = net, decay
        self._blobs = {parameter.name: parameter.blob.like("average") for parameter in net.parameters}
        dtype = net.parameters[0].blob.dtype if net.parameters else None
        self._step = elementwise("e, w, keep: w + keep * (e - w)", dtype)
        self.begin()

    @property
    def arrays(self) -> dict[str, Array]:
        """The averages on the host by LAYER/INDEX, to be read and written."""
        return {name: blob.data for name, blob in self._blobs.items()}

    @property
    def nbytes(self) -> int:
        """The bytes of all averages."""
        return sum(blob.nbytes for blob in self._blobs.values())

    def begin(self) -> None:
        """Begin anew with the weights as they are."""
        for parameter in self._net.parameters:
            np.copyto(self._blobs[parameter.name].data, parameter.blob.data)

    def update(self, iteration: int) -> None:
        """Take up the weights behind the update of this iteration, counted from 0."""
        keep = min(self._decay, (1 + iteration) / (10 + iteration))
        device = self._net.device
        with nullcontext() if device is None else device.handle:
            for parameter in self._net.parameters:
                average = flat(self._blobs[parameter.name].values)
                self._step(average, flat(parameter.blob.values), keep, out=average)

    def share_with(self, net: Net) -> None:
        """Give the averages to a net that has the weights of ours, in their place."""
        averages = {id(parameter.blob.owner): parameter.name for parameter in self._net.parameters}
        for blobs in net.weights.values():
            for blob in blobs:
                name = averages.get(id(blob.owner))
                if name is not None:
                    blob.share(self._blobs[name], blob.shape)

    def save(self, path: Path) -> None:
        """Write the averages as `Net.save_weights` writes the weights. Raises what that raises."""
        trained = {parameter.name: parameter.blob.data.copy() for parameter in self._net.parameters}
        arrays = self.arrays
        try:
            self._put(arrays)
            self._net.save_weights(path)
        finally:
            self._put(trained)

    def _put(self, arrays: dict[str, Array]) -> None:
        for parameter in self._net.parameters:
            np.copyto(parameter.blob.data, arrays[parameter.name])
