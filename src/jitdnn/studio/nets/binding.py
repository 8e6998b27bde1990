"""A net as text, bound to a data set: its sources are replaced, and its end fits the task.

A text from anywhere names no file: layers that read or write files of their own choice are refused by name, and every
source is replaced by the data set that was chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jitdnn.caffe.blob import Shape
from jitdnn.caffe.lenient import repaired
from jitdnn.caffe.message import Message
from jitdnn.caffe.prototxt import parse
from jitdnn.caffe.schema import LayerParameter, NetParameter, NetStateRule, ParamSpec
from jitdnn.caffe.schema_layers import BlobShape, DataParameter, InputParameter, TransformationParameter
from jitdnn.caffe.transform import Transformer
from jitdnn.caffe.upgrade import upgrade_net
from jitdnn.errors import InvalidArgument, NotSupported, ParseError
from jitdnn.studio import texts
from jitdnn.studio.nets.changes import Changes
from jitdnn.studio.nets.facts import DataFacts
from jitdnn.studio.nets.heads import fit_heads
from jitdnn.studio.nets.options import Options

REFUSED = {
    "Python": "it runs code of its own",
    "HDF5Data": "it reads files of its own choice",
    "ImageData": "it reads files of its own choice",
    "WindowData": "it reads files of its own choice",
    "HDF5Output": "it writes files of its own choice",
}
_REPLACED = ("Data", "MemoryData")
# fields that name files, beside those of layers of data
_FILES = {("infogain_loss_param", "source"), ("detection_output_param", "save_output_param")}
# test batches are at least half as large as training's, and not smaller than this where there are so many images
_TEST_BATCH = 32


@dataclass(frozen=True)
class Bound:
    """A net in V2 syntax that reads a data set, and what was changed for it. `data` names the blobs of images and of
    labels."""

    net: NetParameter
    changes: Changes
    data: tuple[str, str]


def read(text: str) -> tuple[NetParameter, Changes]:
    """Parse a net in any syntax of Caffe; what a web page damaged is repaired, and listed.

    Raises ParseError for a text that is none, as it stands.
    """
    try:
        return upgrade_net(parse(text, NetParameter)), Changes()
    except ParseError as error:
        strict = error
    try:
        found = repaired(text)
    except (InvalidArgument, NotSupported):
        raise strict from None
    if not found.repairs:
        raise strict
    return found.net, Changes(found.repairs)


def bind(text: str, options: Options, facts: DataFacts, home: Path, folder: Path) -> Bound:
    """Read a net and bind it to a data set for files in `folder`.

    Raises ParseError and InvalidArgument with the line, NotSupported for a layer that may not be there.
    """
    net, changes = read(text)
    if not net.layer:
        raise InvalidArgument("the net has no layers yet: paste one, or choose one of the gallery")
    for layer in net.layer:
        _refuse_files(layer)
    data = _replace_data(net, options, facts, home, folder, changes)
    transform = next(layer for layer in net.layer if layer.type == "Data").transform_param
    fit_heads(net, facts, [data[1]], transformed(transform, facts.shape), changes)
    return Bound(net, changes, data)


def with_inputs(bound: Bound, options: Options, facts: DataFacts, phase: str) -> NetParameter:
    """The net with Input layers in the place of its data: its shapes, without reading any file."""
    net = bound.net.copy()
    for layer in net.layer:
        if layer.type != "Data":
            continue
        batch = layer.data_param.batch_size
        image = transformed(layer.transform_param, facts.shape)
        shapes: list[Shape] = [(batch, *image), facts.label_shape(batch)]
        if facts.task == "segmentation":
            shapes[1] = (batch, *image[1:])
        layer.type = "Input"
        layer.input_param = InputParameter(shape=[BlobShape(dim=list(s)) for s in shapes[: len(layer.top)]])
        layer.clear("data_param")
        layer.clear("transform_param")
    return net


def transformed(parameter: TransformationParameter, image: Shape) -> Shape:
    """The shape of an image (C, H, W) as a net gets it. Raises InvalidShape for one that is smaller than its crop,
    InvalidArgument for means that do not fit its channels."""
    plain = parameter.copy()
    plain.clear("mean_file")
    return Transformer(plain, None, "TEST", image, np.dtype(np.float32)).shape


def test_batch(images: int, batch: int) -> int:
    """The size of test batches: that with the fewest images counted twice, of up to `batch`, the largest of these."""
    most = min(images, max(batch, _TEST_BATCH))
    return min(range(most, (most - 1) // 2, -1), key=lambda size: -images % size)


def _refuse_files(layer: LayerParameter) -> None:
    if layer.type in REFUSED:
        raise NotSupported(
            f"layer {layer.name!r} ({layer.type}){layer.where()} is not for the studio: {REFUSED[layer.type]}. Write a "
            "layer of type Data, and it reads the data set that is chosen"
        ).at(layer.place())
    for holder, field in _FILES:
        message: Message = getattr(layer, holder)
        if message.has(field):
            raise NotSupported(
                f"layer {layer.name!r} ({layer.type}){layer.where(holder)} names a file, {holder}.{field}: nets of the "
                "studio read and write no files of their own choice"
            ).at(layer.place(holder))


def _replace_data(
    net: NetParameter, options: Options, facts: DataFacts, home: Path, folder: Path, changes: Changes
) -> tuple[str, str]:
    old = [layer for layer in net.layer if layer.type in _REPLACED]
    if not old:
        old = [layer for layer in net.layer if layer.type == "Input"][:1]
        if old:
            changes.add(
                old[0], texts.text("layer %(name)s (Input) reads the data set", name=repr(old[0].name))
            )
    if not old:
        raise InvalidArgument(
            'the net has no layer of data: begin it with layer { name: "data" type: "Data" top: "data" top: "label" }'
        )
    names = next((layer.top for layer in old if len(layer.top) > 1), old[0].top)
    data, label = names[0], names[1] if len(names) > 1 else "label"
    if any(layer.top[:1] != [data] for layer in old):
        raise InvalidArgument(
            "the net has several layers of data whose tops have other names: one for training and one for testing are "
            f"needed, both with top {data!r} and top {label!r}"
        )
    _, batch = options.sizes
    place = min(index for index, layer in enumerate(net.layer) if any(layer is each for each in old))
    made = []
    for phase, part in (("TRAIN", "train"), ("TEST", facts.tested)):
        like = next((layer for layer in old if _is_for(layer, phase)), old[0])
        layer = LayerParameter(
            name=like.name, type="Data", top=[data, label], include=[NetStateRule(phase=phase)]
        )
        layer.position, layer.positions = like.position, dict(like.positions)
        transform = _transform(like, options, facts, changes)
        if any(True for _ in transform.present()):
            layer.transform_param = transform
        count = batch if part == "train" and phase == "TRAIN" else test_batch(facts.counts[part], batch)
        layer.data_param = DataParameter(source=facts.source(part, home, folder), batch_size=count)
        made.append(layer)
    net.layer = [layer for layer in net.layer if not any(layer is each for each in old)]
    net.layer[place:place] = made
    return data, label


def _is_for(layer: LayerParameter, phase: str) -> bool:
    if layer.include:
        return any(rule.phase == phase for rule in layer.include if rule.has("phase"))
    return not any(rule.phase == phase for rule in layer.exclude if rule.has("phase"))


def _transform(
    layer: LayerParameter, options: Options, facts: DataFacts, changes: Changes
) -> TransformationParameter:
    """What the text says is done to images, with what the options say in its place."""
    result = layer.transform_param.copy()
    if result.has("mean_file"):
        if result.mean_file != "mean.npy":
            changes.add(
                layer,
                texts.text("layer %(name)s: the mean image is that of the data set", name=repr(layer.name)),
            )
        result.mean_file = "mean.npy"
    if options.mirror is not None:
        result.mirror = options.mirror
    if options.crop is not None:
        result.crop_size = options.crop
    if options.scale is not None:
        result.scale = options.scale
    if options.mean != "as in the net":
        result.clear("mean_file")
        result.clear("mean_value")
        if options.mean == "image":
            result.mean_file = "mean.npy"
        elif options.mean == "pixel":
            result.mean_value = [0.0] * facts.shape[0]  # filled in when the files are written
    for name in ("force_color", "force_gray"):
        result.clear(name)
    return result


def freeze(bound: Bound, weights: Mapping[str, int], names: Sequence[str]) -> None:
    """Give the weights of those layers a rate of 0; `weights` has the number of weights of each layer that has some.

    Raises InvalidArgument for a layer that is not there or has nothing to train.
    """
    missing = [name for name in names if name not in weights]
    if missing:
        raise InvalidArgument(
            f"there is no layer {missing[0]!r} with weights to freeze: there are {', '.join(weights) or 'none'}"
        )
    for layer in bound.net.layer:
        if layer.name in names:
            missing_specs = weights[layer.name] - len(layer.param)
            layer.param = [
                _frozen(spec) for spec in [*layer.param, *(ParamSpec() for _ in range(missing_specs))]
            ]
            bound.changes.add(layer, texts.text("layer %(name)s keeps its weights", name=repr(layer.name)))


def _frozen(spec: ParamSpec) -> ParamSpec:
    result = spec.copy()
    result.lr_mult = result.decay_mult = 0.0
    return result
