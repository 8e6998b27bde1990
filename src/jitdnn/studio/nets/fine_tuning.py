"""Starting from trained weights: what fits is taken, what does not fit starts afresh under another name.

Caffe takes weights by the names of layers and refuses those of other shapes, so a layer that is to start afresh is
renamed.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from jitdnn.caffe.blob import Array
from jitdnn.caffe.net import Net
from jitdnn.caffe.weights import read_weight_file
from jitdnn.errors import InvalidArgument
from jitdnn.studio import texts
from jitdnn.studio.nets.binding import Bound

#: the file of a run that has the weights it starts from
START = "start.npz"


class Start(NamedTuple):
    """The arrays that are taken, by LAYER/INDEX, the names of the layers that they are of, and of those that start
    afresh."""

    arrays: dict[str, Array]
    kept: tuple[str, ...]
    fresh: tuple[str, ...]


def start_from(bound: Bound, net: Net, file: str, frozen: tuple[str, ...]) -> Start:
    """Take the weights of a file (.npz, .caffemodel, .h5 or a snapshot) that fit `net`, which was built of `bound`, and
    rename the layers of `bound` for which the file has weights of other shapes.

    Raises InvalidArgument for a file that cannot be read or has nothing for the net, and for a layer that is to be kept
    as it is and starts afresh.
    """
    arrays = read_weight_file(net, Path(file))
    kept, fresh, taken = list[str](), list[str](), dict[str, Array]()
    names = {layer.name for layer in bound.net.layer}
    for name, blobs in net.weights.items():
        own = {blob.name: blob.shape for blob in blobs}
        there = {key: array for key, array in arrays.items() if key.rpartition("/")[0] == name}
        if there and all(key in own and array.shape == own[key] for key, array in there.items()):
            kept.append(name)
            taken |= there
            continue
        fresh.append(name)
        if name in frozen:
            raise InvalidArgument(
                f"layer {name!r} cannot keep its weights as they are: {Path(file).name} has none for it"
            )
        layers = [layer for layer in bound.net.layer if layer.name == name]
        if not there:
            bound.changes.add(
                layers[0],
                texts.text("layer %(name)s starts afresh: it is not in the weights", name=repr(name)),
            )
            continue
        new = _new(name, names)
        names.add(new)
        for layer in layers:
            layer.name = new
        was = ", ".join(str(array.shape) for array in there.values())
        now = ", ".join(map(str, own.values()))
        bound.changes.add(
            layers[0],
            texts.text(
                "layer %(name)s starts afresh as %(new)s: it had weights %(was)s, and has %(now)s",
                name=repr(name),
                new=repr(new),
                was=was,
                now=now,
            ),
        )
    if not kept:
        raise InvalidArgument(
            f"no layer of the net has the name and the shapes of weights in {Path(file).name}: "
            f"it has {', '.join(sorted({key.rpartition('/')[0] for key in arrays})[:8])}"
        )
    return Start(taken, tuple(kept), tuple(fresh))


def _new(name: str, taken: set[str]) -> str:
    number = 2
    while f"{name}_{number}" in taken:
        number += 1
    return f"{name}_{number}"
