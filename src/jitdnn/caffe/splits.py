"""A blob with several readers gets a Split layer, whose backward pass adds the gradients of all readers up.

Names are Caffe's: blob `ip2` of layer `ip2` becomes `ip2_ip2_0_split_0`, `ip2_ip2_0_split_1`. In-place layers
make a new version of a blob, and readers belong to the version that they see.
"""

from __future__ import annotations

from collections import defaultdict

from jitdnn.caffe.schema import LayerParameter, NetParameter
from jitdnn.errors import InvalidArgument

Place = tuple[int, int]  # (index of the layer, index of its top)


def insert_splits(net: NetParameter) -> NetParameter:
    """Return a copy of the net in which every top has at most one reader, loss weights counting as one.

    Raises InvalidArgument for bottoms that no earlier layer makes, with what there is.
    """
    problems: list[InvalidArgument] = []
    sources: dict[Place, Place] = {}
    readers: dict[Place, int] = defaultdict(int)
    latest: dict[str, Place] = {}
    for i, layer in enumerate(net.layer):
        for j, name in enumerate(layer.bottom):
            if name not in latest:
                problems.append(_unknown_bottom(net, layer, name, list(latest)))
                continue
            sources[i, j] = latest[name]
            readers[latest[name]] += 1
        for j, name in enumerate(layer.top):
            latest[name] = (i, j)
        for j, weight in enumerate(layer.loss_weight):
            if weight and j < len(layer.top):
                readers[i, j] += 1

    if problems:
        raise (
            problems[0] if len(problems) == 1 else InvalidArgument("\n".join(map(str, problems))).of(problems)
        )
    used: dict[Place, int] = defaultdict(int)
    result = net.copy()
    result.layer = []
    for i, original in enumerate(net.layer):
        layer = original.copy()
        for j, name in enumerate(original.bottom):
            source = sources[i, j]
            if readers[source] > 1:
                layer.bottom[j] = _split_blob(net.layer[source[0]].name, name, source[1], used[source])
                used[source] += 1
        result.layer.append(layer)
        for j, name in enumerate(original.top):
            if readers[i, j] > 1:
                split = LayerParameter(name=_split_layer(layer.name, name, j), type="Split", bottom=[name])
                split.position = layer.position
                split.top = [_split_blob(layer.name, name, j, k) for k in range(readers[i, j])]
                weight = layer.loss_weight[j] if j < len(layer.loss_weight) else 0.0
                if weight:
                    split.loss_weight = [weight] + [0.0] * (len(split.top) - 1)
                    layer.loss_weight[j] = 0.0
                    used[i, j] += 1
                result.layer.append(split)
    return result


def _split_layer(layer: str, blob: str, index: int) -> str:
    return f"{blob}_{layer}_{index}_split"


def _split_blob(layer: str, blob: str, index: int, reader: int) -> str:
    return f"{_split_layer(layer, blob, index)}_{reader}"


def _unknown_bottom(net: NetParameter, layer: LayerParameter, name: str, known: list[str]) -> InvalidArgument:
    message = f"layer {layer.name!r}{layer.where('bottom')}: no layer before it has a top {name!r}"
    by_name = next((other for other in net.layer if other.name == name and other.top), None)
    if by_name is not None:
        message += f"; {name!r} is the name of a layer, whose first top is {by_name.top[0]!r}"
    elif known:
        message += f"; there are {', '.join(known)}"
    return InvalidArgument(message).at(layer.place("bottom"))
