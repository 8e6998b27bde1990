"""A net for testing as a model of ONNX, with its preprocessing inside if wanted, and how far its answers are from
ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jitdnn import __version__
from jitdnn.caffe import Net
from jitdnn.caffe.transform import Transformer
from jitdnn.errors import InvalidArgument, NotSupported, needed
from jitdnn.studio.export.onnx_layers import FORMS
from jitdnn.studio.export.onnx_writer import IR_VERSION, OPSET, Writer

Array = NDArray[Any]
_IMAGES = 3  # of a batch while it is written: what has as many elements goes along with the number of images


@dataclass(frozen=True)
class Check:
    """Who ran a model, and the greatest distance of its outputs from ours, beside the greatest of ours."""

    runner: str
    distance: float
    largest: float


def refusals(net: Net) -> list[str]:
    """Which layers have no form in ONNX: layer, type, line; an empty list if all have one."""
    return [
        f"layer {node.layer.name!r} ({node.layer.type}){node.layer.parameter.where()}"
        for node in net.nodes
        if node.layer.type not in (*FORMS, "Input")
    ]


def to_onnx(
    net: Net,
    transformer: Transformer | None = None,
    outputs: Sequence[str] | None = None,
    facts: Mapping[str, str] | None = None,
) -> Any:
    """Return a net of phase TEST as an `onnx.ModelProto`, for any number of images (its own number if it takes no
    other), in float32.

    With the `transformer` the model takes images as they are, (N, C, H, W), 0 to 255, channels blue, green, red, and
    crops, subtracts and scales itself. `outputs`: names of blobs (None: the net's). `facts` become its metadata. Raises
    NotSupported naming every layer that ONNX has no form for, and without onnx installed; InvalidArgument.
    """
    with needed("models of ONNX are written with onnx: pip install 'jitdnn[onnx]'"):
        from onnx import TensorProto, checker, helper
    if net.state.phase != "TEST":
        raise InvalidArgument(f"the net is of phase {net.state.phase}: build it for TEST")
    if len(net.inputs) != 1:
        raise InvalidArgument(
            f"the net has {len(net.inputs)} inputs: models of one input of images are written"
        )
    if without := refusals(net):
        raise NotSupported(f"ONNX has no form for {'; '.join(without)}")
    wanted = list(net.outputs if outputs is None else outputs)
    for name in wanted:
        if name not in net.blobs:
            raise InvalidArgument(f"the net has no blob {name!r}: its outputs are {', '.join(net.outputs)}")
    shape = net.blobs[net.inputs[0]].shape
    is_open = _takes_any_number(net, shape)
    try:
        writer = Writer()
        for name in wanted:
            writer.reserve(name)
        image = writer.reserve("image" if "image" not in wanted else "image in")
        values = {net.inputs[0]: image if transformer is None else _preprocessed(writer, transformer, image)}
        _write_layers(writer, net, values)
        for name in wanted:
            writer.nodes.append(helper.make_node("Identity", [values[name]], [name], name=f"output {name}"))
        taken = shape[1:] if transformer is None else transformer.image
        infos = [
            helper.make_tensor_value_info(image, TensorProto.FLOAT, ["N" if is_open else shape[0], *taken]),
            *(
                helper.make_tensor_value_info(
                    name, TensorProto.FLOAT, _declared(net.blobs[name].shape, is_open)
                )
                for name in wanted
            ),
        ]
    finally:
        net.reshape(**{net.inputs[0]: shape})
    graph = helper.make_graph(
        writer.nodes, net.name or "net", infos[:1], infos[1:], initializer=writer.constants
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="jitdnn",
        producer_version=__version__,
    )  # fmt: skip
    helper.set_model_props(model, {name: str(value) for name, value in (facts or {}).items()})
    checker.check_model(model, full_check=True)
    return model


def check_onnx(
    model: Any, images: Array, expected: Mapping[str, Array], tolerance: float = 1e-4
) -> list[Check]:
    """Run a model by jitdnn's reader of ONNX, and by onnxruntime where it is installed, and compare.

    `images` are what the model takes, `expected` the net's outputs for them. Raises InvalidArgument if one of them is
    further away than `tolerance` times the greatest expected number (at least 1): then the model is not to be used.
    """
    from jitdnn.frameworks.onnx import prepare

    images = images.astype(np.float32)
    runs: dict[str, Callable[[], Sequence[Any]]] = {"jitdnn": lambda: prepare(model).run([images])}
    if find_spec("onnxruntime") is not None:
        runs["onnxruntime"] = lambda: _by_onnxruntime(model, images)
    names = [output.name for output in model.graph.output]
    found = []
    for runner, run in runs.items():
        distance = largest = 0.0
        for name, got in zip(names, run(), strict=True):
            distance = max(distance, _distance(np.asarray(got), expected[name]))
            largest = max(largest, float(np.abs(expected[name]).max(initial=0.0)))
        found.append(Check(runner, distance, largest))
        if not distance <= tolerance * max(1.0, largest):
            raise InvalidArgument(
                f"{runner} runs the model of ONNX to within {distance:.3g} of what the net gives; "
                f"{tolerance * max(1.0, largest):.3g} is allowed"
            )
    return found


def _preprocessed(writer: Writer, transformer: Transformer, image: str) -> str:
    """Crop the middle, subtract the mean, scale: what `Transformer` does in testing."""
    writer.begin("preprocessing")
    found = image
    if transformer.parameter.mirror:
        raise NotSupported("mirror is drawn at random, in testing too: a model of ONNX is fixed")
    mean = transformer.mean
    if transformer.crop:
        top, left = ((extent - transformer.crop) // 2 for extent in transformer.image[1:])
        bounds = ([top, left], [top + transformer.crop, left + transformer.crop], [2, 3])
        found = writer.node("Slice", [found, *(writer.integers(each, "bounds") for each in bounds)])
        if mean is not None and mean.shape[1:] != (1, 1):
            mean = mean[:, top : top + transformer.crop, left : left + transformer.crop]
    if mean is not None:
        found = writer.node("Sub", [found, writer.weight(mean, "mean")])
    if transformer.scale != 1:
        found = writer.node("Mul", [found, writer.number(float(transformer.scale))])
    return found


def _write_layers(writer: Writer, net: Net, values: dict[str, str]) -> None:
    """Write the layers in order; `values` has by the name of a blob what holds it now, as layers in place change
    that."""
    for node in net.nodes:
        layer = node.layer
        if layer.type == "Input":
            continue
        writer.begin(layer.name)
        try:
            results = FORMS[layer.type](writer, node, [values[blob.name] for blob in node.bottom])
        except NotSupported as error:
            where = f"layer {layer.name!r} ({layer.type}){layer.parameter.where()}"
            raise NotSupported(f"ONNX has no form for {where}: {error.message}") from None
        values.update(zip((blob.name for blob in node.top), results, strict=True))


def _takes_any_number(net: Net, shape: Sequence[int]) -> bool:
    """Give the net the number of images with which it is written; False for a net that takes its own number only."""
    try:
        net.reshape(**{net.inputs[0]: (_IMAGES, *shape[1:])})
    except InvalidArgument:
        net.reshape(**{net.inputs[0]: shape})
        return False
    return True


def _declared(shape: Sequence[int], is_open: bool) -> list[int | str | None]:
    """A shape as it is declared: the number of images, and what comes of it, is open."""
    if not is_open or not shape:
        return list(shape)
    return ["N" if shape[0] == _IMAGES else None, *shape[1:]]


def _distance(got: Array, expected: Array) -> float:
    if got.shape != expected.shape:
        return math.inf
    return float(np.abs(got.astype(np.float64) - expected).max(initial=0.0))


def _by_onnxruntime(model: Any, images: Array) -> list[Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: list[Any] = session.run(None, {session.get_inputs()[0].name: images})
    return found
