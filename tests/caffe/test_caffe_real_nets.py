"""Every net of the public files beside this checkout, in both phases, on small data in the formats that it names: read,
built, run forward and backward. Those of many weights run with JITDNN_TESTS=thorough alone, and are built here."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from examples import THOROUGH
from jitdnn.caffe import Net, NetParameter, NetState, parse, upgrade
from jitdnn.caffe.rules import filter_net
from jitdnn.caffe.schema_layers import BlobShape, InputParameter
from jitdnn.errors import InvalidArgument
from paths import ROOT, SHARED

FOLDER = SHARED / "prototxt"
FILES = sorted(file for file in FOLDER.rglob("*.prototxt") if "solver" not in file.name)
NAMES = [str(file.relative_to(FOLDER)) for file in FILES]
#: nets that a program completes before they are built (DIGITS: sources of data, classes), in stages, not phases
TEMPLATES = [name for name in NAMES if name.startswith("digits/")]
#: the stages that make up a net of the file, where phases alone do not
STAGES = {"mnist/mnist_autoencoder.prototxt": ("test-on-test",)}
MOST_IMAGES = 2
#: weights from which on a net counts as large
LARGE = 5_000_000

pytestmark = pytest.mark.skipif(not FILES, reason="no folder ../shared/prototxt beside this checkout")
CASES = [(name, phase) for name in NAMES if name not in TEMPLATES for phase in ("TRAIN", "TEST")]


@pytest.fixture(scope="module")
def caffe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with data where Caffe's own paths lead from it, which becomes the working directory."""
    pytest.importorskip("lmdb")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        import caffe_example_files as files

        folder = tmp_path_factory.mktemp("caffe")
        patch.chdir(folder)
        files.write_digits(folder / "examples/mnist")
        if find_spec("plyvel"):
            files.write_pairs(folder / "examples/siamese")
        files.write_small_images(folder / "examples/cifar10", 20)
        files.write_large_images(folder, 10)
        yield folder


def definition(name: str, phase: str) -> NetParameter:
    """The net of a file for a phase, with few images a batch and weights that are drawn afterwards."""
    net = upgrade(FOLDER / name)
    assert isinstance(net, NetParameter)
    state = NetState(phase=phase, stage=list(STAGES.get(name, ())) if phase == "TEST" else [])
    chosen = filter_net(net, state)
    chosen.state = state
    chosen.force_backward = True
    for layer in chosen.layer:
        if layer.has("data_param"):
            layer.data_param.batch_size = MOST_IMAGES
        if layer.has("input_param"):
            for shape in layer.input_param.shape:
                shape.dim[0] = 1
        for holder in ("convolution_param", "inner_product_param"):
            if layer.has(holder) and getattr(layer, holder).has("weight_filler"):
                getattr(layer, holder).weight_filler.type = "constant"
    return chosen


def drawn(net: Net) -> None:
    """Give the weights values as after a training: of a table of random numbers, since 60 million take seconds."""
    random = np.random.default_rng(7)
    table = random.standard_normal(1_000_003).astype(np.float32)
    for layer in net.layers:
        for index, blob in enumerate(layer.weights):
            if layer.type == "BatchNorm":
                blob.data[...] = (0.0, 1.0, 1.0)[index]
            else:
                fan_in = blob.size // blob.shape[0] if len(blob.shape) > 1 else 100
                start = int(random.integers(table.size))
                blob.data[...] = np.resize(np.roll(table, start), blob.shape) * np.sqrt(1 / fan_in)
    for name in net.inputs:
        blob = net.blobs[name]
        blob.data[...] = np.resize(table, blob.shape) * 60


def skip_if_large(net: NetParameter) -> None:
    """Leave large nets to JITDNN_TESTS=thorough: their kernels take a minute to compile."""
    count = Net(net, shapes_only=True).weight_count
    if count >= LARGE and not THOROUGH:
        pytest.skip(f"a net of {count:,} weights: JITDNN_TESTS=thorough runs it, here it was built")


@pytest.mark.parametrize(("name", "phase"), CASES)
def test_it_runs_forward_and_backward(name: str, phase: str, caffe: Path) -> None:
    net_file = definition(name, phase)
    skip_if_large(net_file)
    if "siamese" in name:  # LevelDB
        pytest.importorskip("plyvel")
    net = Net(net_file, seed=1, base=FOLDER / Path(name).parent)
    drawn(net)
    outputs = net.forward()
    assert outputs
    assert all(np.isfinite(values).all() for values in outputs.values())
    for node in net.nodes:
        for blob in node.top:
            assert np.isfinite(blob.data).all(), blob
            assert blob.data.any() or blob.size <= MOST_IMAGES, blob  # labels may all be 0
    losses = [blob.name for blob, _ in net.weighted_blobs()]
    if losses:
        assert 0 < net.loss < 1e5
    for output in outputs:
        if output not in losses:  # where nothing is a loss, of each output's sum of squares
            net.blobs[output].diff[...] = outputs[output]
    for blobs in net.weights.values():
        for blob in blobs:
            blob.diff.fill(np.float32(0))
    net.backward()
    for parameter in net.parameters:
        if parameter.lr_mult == 0:  # statistics
            continue
        if "siamese" in name and len(parameter.blob.shape) == 1:  # a bias falls out of the twins' difference
            continue
        gradient = parameter.blob.diff
        assert np.isfinite(gradient).all(), parameter.name
        assert gradient.any(), parameter.name


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_refused_by_the_name_of_what_it_lacks(name: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"{name}.*data_param\.source is missing"):
        Net(upgrade(FOLDER / name), NetState(stage=["train"]))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("stage", ["train", "val", "deploy"])
def test_a_template_runs_when_it_is_complete(name: str, stage: str, caffe: Path) -> None:
    net_file = upgrade(FOLDER / name)
    assert isinstance(net_file, NetParameter)
    is_digits = "lenet" in name
    state = NetState(phase="TRAIN" if stage == "train" else "TEST", stage=[stage])
    chosen = filter_net(net_file, state)
    chosen.state, chosen.force_backward = state, True
    for layer in chosen.layer:
        if layer.has("data_param"):
            part = "train" if stage == "train" else ("test" if is_digits else "val")
            layer.data_param.source = (
                f"examples/mnist/mnist_{part}_lmdb"
                if is_digits
                else f"examples/imagenet/ilsvrc12_{part}_lmdb"
            )
            layer.data_param.backend = "LMDB"
            layer.data_param.batch_size = MOST_IMAGES
        if layer.type == "InnerProduct" and not layer.inner_product_param.has("num_output"):
            layer.inner_product_param.num_output = 10
        if layer.type in ("Convolution", "InnerProduct"):
            holder = layer.convolution_param if layer.type == "Convolution" else layer.inner_product_param
            if holder.has("weight_filler"):
                holder.weight_filler.type = "constant"
    if stage == "deploy":
        image = (1, 1, 28, 28) if is_digits else (1, 3, 227, 227)
        source = parse('layer { name: "data" type: "Input" top: "data" }', NetParameter).layer[0]
        source.input_param = InputParameter(shape=[BlobShape(dim=list(image))])
        chosen.layer = [source, *chosen.layer]
    skip_if_large(chosen)
    net = Net(chosen, seed=1)
    drawn(net)
    outputs = net.forward()
    assert outputs
    assert all(np.isfinite(values).all() for values in outputs.values())
    if stage == "deploy":
        assert np.isclose(outputs["softmax"].sum(), 1.0)
    else:
        assert 0 < net.loss < 1e5
