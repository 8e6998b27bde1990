"""V0, the syntax of 2013, becomes V1: names of types become enum values, a layer's fields move into the message of its
type, and layers of the type "padding" are folded into the `pad` of the convolution or pooling behind them.

    layers { layer { name: "conv1" type: "conv" num_output: 96 kernelsize: 11 } bottom: "data" top: "conv1" }
"""

from __future__ import annotations

import difflib

from jitdnn.caffe.message import Message
from jitdnn.caffe.schema import V1_TYPES, NetParameter, V1LayerParameter
from jitdnn.errors import InvalidArgument

# V0's names of the types, and V1's
V0_TYPES = {
    "accuracy": "ACCURACY",
    "bnll": "BNLL",
    "concat": "CONCAT",
    "conv": "CONVOLUTION",
    "data": "DATA",
    "dropout": "DROPOUT",
    "euclidean_loss": "EUCLIDEAN_LOSS",
    "flatten": "FLATTEN",
    "hdf5_data": "HDF5_DATA",
    "hdf5_output": "HDF5_OUTPUT",
    "im2col": "IM2COL",
    "images": "IMAGE_DATA",
    "infogain_loss": "INFOGAIN_LOSS",
    "innerproduct": "INNER_PRODUCT",
    "lrn": "LRN",
    "multinomial_logistic_loss": "MULTINOMIAL_LOGISTIC_LOSS",
    "pool": "POOLING",
    "relu": "RELU",
    "sigmoid": "SIGMOID",
    "softmax": "SOFTMAX",
    "softmax_loss": "SOFTMAX_LOSS",
    "split": "SPLIT",
    "tanh": "TANH",
    "window_data": "WINDOW_DATA",
}
_PADDING = "padding"
_LATER_NAMES = {V1_TYPES[later][1].lower(): name for name, later in V0_TYPES.items()}

_CONV, _INNER, _POOL = "convolution_param", "inner_product_param", "pooling_param"
_DATA, _IMAGES, _WINDOWS, _HDF5 = "data_param", "image_data_param", "window_data_param", "hdf5_data_param"

# where a field of V0 goes: for each type that may have it, the message and the name there; "" is the layer itself
_PLACES: dict[str, dict[str, tuple[str, str]]] = {
    "num_output": {"conv": (_CONV, "num_output"), "innerproduct": (_INNER, "num_output")},
    "biasterm": {"conv": (_CONV, "bias_term"), "innerproduct": (_INNER, "bias_term")},
    "weight_filler": {"conv": (_CONV, "weight_filler"), "innerproduct": (_INNER, "weight_filler")},
    "bias_filler": {"conv": (_CONV, "bias_filler"), "innerproduct": (_INNER, "bias_filler")},
    "pad": {"conv": (_CONV, "pad"), "pool": (_POOL, "pad")},
    "kernelsize": {"conv": (_CONV, "kernel_size"), "pool": (_POOL, "kernel_size")},
    "group": {"conv": (_CONV, "group")},
    "stride": {"conv": (_CONV, "stride"), "pool": (_POOL, "stride")},
    "pool": {"pool": (_POOL, "pool")},
    "dropout_ratio": {"dropout": ("dropout_param", "dropout_ratio")},
    "local_size": {"lrn": ("lrn_param", "local_size")},
    "alpha": {"lrn": ("lrn_param", "alpha")},
    "beta": {"lrn": ("lrn_param", "beta")},
    "k": {"lrn": ("lrn_param", "k")},
    "source": {
        "data": (_DATA, "source"),
        "images": (_IMAGES, "source"),
        "window_data": (_WINDOWS, "source"),
        "hdf5_data": (_HDF5, "source"),
        "infogain_loss": ("infogain_loss_param", "source"),
    },
    "batchsize": {
        "data": (_DATA, "batch_size"),
        "images": (_IMAGES, "batch_size"),
        "window_data": (_WINDOWS, "batch_size"),
        "hdf5_data": (_HDF5, "batch_size"),
    },
    "rand_skip": {"data": (_DATA, "rand_skip"), "images": (_IMAGES, "rand_skip")},
    "shuffle_images": {"images": (_IMAGES, "shuffle")},
    "new_height": {"images": (_IMAGES, "new_height")},
    "new_width": {"images": (_IMAGES, "new_width")},
    "concat_dim": {"concat": ("concat_param", "concat_dim")},
    "det_fg_threshold": {"window_data": (_WINDOWS, "fg_threshold")},
    "det_bg_threshold": {"window_data": (_WINDOWS, "bg_threshold")},
    "det_fg_fraction": {"window_data": (_WINDOWS, "fg_fraction")},
    "det_context_pad": {"window_data": (_WINDOWS, "context_pad")},
    "det_crop_mode": {"window_data": (_WINDOWS, "crop_mode")},
    "hdf5_output_param": {"hdf5_output": ("", "hdf5_output_param")},
    **{
        old: dict.fromkeys(("data", "images", "window_data"), ("transform_param", new))
        for old, new in (
            ("scale", "scale"), ("meanfile", "mean_file"), ("cropsize", "crop_size"), ("mirror", "mirror"),
        )
    },
}  # fmt: skip


def is_v0(net: NetParameter) -> bool:
    """Tell whether some layer is in V0 syntax."""
    return any(layer.has("layer") for layer in net.layers)


def upgrade_v0(net: NetParameter) -> NetParameter:
    """Return the net in V1 syntax; layers that are in V1 already stay. The argument is left as it is.

    Raises InvalidArgument, with all that is wrong, for types that do not exist, fields that a layer's type does not
    have, and padding that nothing can take up.
    """
    problems: list[InvalidArgument] = []
    result = net.copy()
    result.layers = [
        _upgrade_layer(layer, problems) if layer.has("layer") else layer
        for layer in _fold_padding(net, problems)
    ]
    if problems:
        raise InvalidArgument("\n".join(map(str, problems))).of(problems)
    return result


def _fold_padding(net: NetParameter, problems: list[InvalidArgument]) -> list[V1LayerParameter]:
    """The layers without those of padding, each of which goes to all that read it."""
    makers: dict[str, V1LayerParameter] = {}
    kept = []
    for original in net.layers:
        connection = original.copy()
        old = connection.layer if connection.has("layer") else None
        if old is not None and old.type == _PADDING:
            if (len(connection.bottom), len(connection.top)) != (1, 1):
                message = f"layer {old.name!r}{connection.where()}: padding has one bottom and one top"
                problems.append(InvalidArgument(message).at(connection.place()))
                continue
        else:
            for index, name in enumerate(connection.bottom):
                maker = makers.get(name)
                if maker is None or not maker.has("layer") or maker.layer.type != _PADDING:
                    continue
                if old is None or old.type not in ("conv", "pool") or len(connection.bottom) != 1:
                    kind = connection.type if old is None else old.type
                    message = (
                        f"layer {maker.layer.name!r}{maker.where()}: padding goes into a conv or pool with one bottom, "
                        f"and {(connection if old is None else old).name!r}{connection.where()} is {kind!r}"
                    )
                    problems.append(InvalidArgument(message).at(maker.place()))
                    continue
                old.pad = maker.layer.pad
                connection.bottom[index] = maker.bottom[0]
            kept.append(connection)
        for name in connection.top:
            makers[name] = connection
    return kept


def _upgrade_layer(connection: V1LayerParameter, problems: list[InvalidArgument]) -> V1LayerParameter:
    old = connection.layer
    new = connection.copy()
    new.clear("layer")
    new.name = old.name
    place = old.place() or connection.place()
    where = f"layer {old.name!r}{old.where() or connection.where()}"
    if old.type not in V0_TYPES:
        near = difflib.get_close_matches(old.type[:40].lower(), [*V0_TYPES, _PADDING, *_LATER_NAMES], n=1)
        meant = _LATER_NAMES.get(near[0], near[0]) if near else ""
        hint = f": did you mean {meant!r}?" if meant else f"; there are {', '.join(V0_TYPES)}, {_PADDING}"
        what = f"the type {old.type!r}, which V0 does not have" if old.type else "no type"
        problems.append(InvalidArgument(f"{where} has {what}{hint}").at(place))
        return new
    new.type = V0_TYPES[old.type]
    for field, value in old.copy().present():
        if field.name in ("name", "type"):
            continue
        if field.name in ("blobs_lr", "weight_decay"):
            setattr(new, field.name, value)
            continue
        target = _PLACES.get(field.name, {}).get(old.type)
        if target is None:
            message = f"{where}: a layer of type {old.type!r} has no {field.name}{old.where(field.name)}: take it out"
            problems.append(InvalidArgument(message).at(old.place(field.name)))
            continue
        _put(new, *target, value)
    return new


def _put(layer: V1LayerParameter, holder_name: str, name: str, value: object) -> None:
    holder: Message = layer
    if holder_name:
        if not layer.has(holder_name):
            setattr(layer, holder_name, type(getattr(layer, holder_name))())
        holder = getattr(layer, holder_name)
    setattr(holder, name, [value] if holder.fields[name].is_repeated else value)
