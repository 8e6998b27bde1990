"""Data layers of nets on a GPU: images go up as bytes, and the net gets what the processor makes, bit by bit."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from jitdnn.caffe import Net, load_net, load_solver
from jitdnn.caffe.blob_proto import write_binaryproto
from jitdnn.caffe.database_writers import new_database
from jitdnn.caffe.datum import encoded_datum, image_datum
from jitdnn.caffe.images import encode_image
from jitdnn.caffe.layers.data import SourceLayer
from jitdnn.caffe.parts import Part, Turns
from jitdnn.caffe.prototxt import parse
from jitdnn.caffe.schema import NetParameter, NetState
from jitdnn.errors import InvalidArgument, InvalidShape
from lone_group import LoneGroup

SIZE = (3, 12, 15)
WAYS = {
    "as they are": "",
    "scaled": "scale: 0.017",
    "values": "crop_size: 9 mirror: true mean_value: 104.1 mean_value: 117.2 mean_value: 123.3 scale: 0.017",
    "value": "crop_size: 12 mean_value: 104.1",
    "file": "mirror: true mean_file: 'mean.binaryproto'",
    "file, cropped": "crop_size: 7 mirror: true mean_file: 'mean.binaryproto' scale: -0.3",
}
SOURCES = {
    "bytes": 'type: "Data" data_param { source: "raw" backend: LMDB',
    "files": 'type: "Data" data_param { source: "encoded"',
    "grey": 'type: "Data" data_param { source: "encoded"',
    "list": 'type: "ImageData" image_data_param { source: "list.txt" shuffle: true root_folder: "ROOT/"',
    "mapped": 'type: "Data" data_param { source: "mapped"',
    "arrays": 'type: "Data" data_param { source: "arrays.npz"',
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eleven images in every form."""
    path = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(4)
    images = rng.integers(0, 256, (11, *SIZE), np.uint8)
    labels = np.arange(11)
    write_binaryproto(path / "mean.binaryproto", rng.normal(110, 20, (1, *SIZE)).astype(np.float32))
    write_binaryproto(path / "grey.binaryproto", rng.normal(110, 20, (1, 1, *SIZE[1:])).astype(np.float32))
    np.savez(path / "arrays.npz", data=images, label=labels)
    (path / "mapped").mkdir()
    np.save(path / "mapped/data.npy", images)
    np.save(path / "mapped/label.npy", labels)
    lines = []
    with new_database(path / "raw", "lmdb") as raw, new_database(path / "encoded", "lmdb") as encoded:
        for number, image in enumerate(images):
            key, content = f"{number:08d}".encode(), encode_image(image, "png")
            raw.put(key, image_datum(image, number))
            encoded.put(key, encoded_datum(content, number))
            (path / f"{number}.png").write_bytes(content)
            lines.append(f"{number}.png {number}\n")
    (path / "list.txt").write_text("".join(lines))
    with new_database(
        path / "mixed", "lmdb"
    ) as mixed:  # batches of 4: bytes, bytes and floats, floats, bytes
        for number in range(16):
            image = images[number % 11]
            made = image if number < 6 or number > 11 else image.astype(np.float32) / 3
            mixed.put(f"{number:08d}".encode(), image_datum(made, number))
    with new_database(path / "sizes", "lmdb") as sizes:
        for number in range(9):
            image = rng.integers(0, 256, (3, 9 + number % 4, 20 - number), np.uint8)
            made = (
                image_datum(image, number)
                if number % 2
                else encoded_datum(encode_image(image, "png"), number)
            )
            sizes.put(f"{number:08d}".encode(), made)
    (path / "masked").mkdir()
    np.save(path / "masked/data.npy", images)
    np.save(path / "masked/label.npy", rng.integers(0, 5, (11, *SIZE[1:])))
    return path


@pytest.fixture(autouse=True)
def _inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def data_net(
    device: str, source: str, transform: str, batch: int = 4, phase: str = "TRAIN", **options: Any
) -> Net:
    return load_net(data_layer(source, transform, batch), phase, seed=5, device=device, **options)


def data_layer(source: str, transform: str, batch: int = 4) -> str:
    source = source.replace("ROOT", str(Path.cwd()))
    return (
        f'layer {{ name: "data" top: "data" top: "label" {source} batch_size: {batch} }} '
        f"transform_param {{ {transform} }} }}\n"
    )


def layer_of(net: Net) -> SourceLayer:
    layer = net.layers[0]
    assert isinstance(layer, SourceLayer)
    return layer


def assert_same(one: Net, two: Net, batches: int = 6) -> None:
    for _ in range(batches):
        first, second = one.forward(), two.forward()
        assert first.keys() == second.keys()
        for name, values in first.items():
            assert values.dtype == second[name].dtype
            assert values.tobytes() == second[name].tobytes(), name


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    """What is said of images that are transformed on the host."""
    jd.log._told.young.clear()
    jd.log._told.old.clear()
    with jd.settings(log="warning"), caplog.at_level(logging.WARNING):
        yield lambda: [
            one.getMessage() for one in caplog.records if "transformed on the host" in one.getMessage()
        ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("source", SOURCES)
def test_batches_are_those_of_the_processor(source: str, way: str, name: str, told: Any) -> None:
    transform, phase = WAYS[way], "TEST" if source == "mapped" else "TRAIN"
    if source == "grey":
        if "value" in transform and transform.count("mean_value") > 1:
            transform = transform.replace("mean_value: 117.2 mean_value: 123.3", "")
        transform = transform.replace("mean.binaryproto", "grey.binaryproto") + " force_gray: true"
    nets = [data_net(each, SOURCES[source], transform, phase=phase) for each in ("cpu", name)]
    assert layer_of(nets[1]).raw_refusal is None
    assert not nets[1].blobs["data"].is_streamed
    assert_same(*nets)
    assert layer_of(nets[1])._upload is not None
    assert layer_of(nets[0])._form is None
    assert told() == []


@pytest.mark.parametrize("source", ["bytes", "arrays"])
def test_doubles(source: str, name: str, device: Any) -> None:
    if not device.has_f64:
        pytest.skip("the device has no double precision")
    nets = [data_net(each, SOURCES[source], WAYS["values"], dtype="f64") for each in ("cpu", name)]
    assert nets[1].blobs["data"].dtype == np.float64
    assert_same(*nets)
    assert layer_of(nets[1])._upload is not None


def test_images_of_other_sizes_are_cut_from(name: str, told: Any) -> None:
    """Some of them in files, which lie in another order."""
    source = 'type: "Data" data_param { source: "sizes"'
    nets = [data_net(each, source, "crop_size: 9 mirror: true mean_value: 99") for each in ("cpu", name)]
    assert_same(*nets)
    assert told() == []
    for each in ("cpu", name):
        net = data_net(each, source, "mirror: true")
        with pytest.raises(InvalidShape, match=r"record '00000001'.*all must have one size"):
            net.forward()


def test_a_batch_with_other_numbers_is_made_on_the_host(name: str, told: Any) -> None:
    source = 'type: "Data" data_param { source: "mixed"'
    nets = [data_net(each, source, "crop_size: 9 mirror: true mean_value: 99") for each in ("cpu", name)]
    made = []
    for _ in range(9):
        made.append(layer_of(nets[1])._upload)
        assert_same(*nets, batches=1)
    (message,) = told()
    assert "float32 and not bytes" in message
    assert "'data' (Data)" in message
    assert made[1] is not None  # the first one went up as bytes


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_masks_move_with_their_images(phase: str, name: str) -> None:
    nets = [
        data_net(each, 'type: "Data" data_param { source: "masked"', "crop_size: 9 mirror: true", phase=phase)
        for each in ("cpu", name)
    ]
    assert_same(*nets)
    assert layer_of(nets[1])._upload is not None


def test_what_cannot_go_up_as_bytes_is_told(name: str, told: Any, folder: Path) -> None:
    np.savez(
        folder / "floats.npz",
        data=np.random.default_rng(1).random((5, 3, 4, 4), np.float32),
        label=np.arange(5),
    )
    (folder / "shorts").mkdir(exist_ok=True)
    np.save(folder / "shorts/data.npy", np.arange(5 * 3 * 4 * 4, dtype=np.int16).reshape(5, 3, 4, 4))
    np.save(folder / "shorts/label.npy", np.arange(5))
    (folder / "windows.txt").write_text(f"# 0\n{folder}/0.png\n3\n12\n15\n2\n1 0.9 0 0 9 9\n0 0.1 2 2 8 8\n")
    cases = {
        'type: "Data" data_param { source: "floats.npz"': ("mirror: true", "float32 and not bytes"),
        'type: "Data" data_param { source: "shorts"': ("mirror: true", "int16 and not bytes"),
        'type: "WindowData" window_data_param { source: "windows.txt"': (
            "crop_size: 5",
            "its source makes numbers",
        ),
    }
    for number, (source, (transform, reason)) in enumerate(cases.items(), start=1):
        nets = [data_net(each, source, transform) for each in ("cpu", name)]
        assert_same(*nets, batches=3)
        assert nets[1].blobs["data"].is_streamed
        assert reason in str(layer_of(nets[1]).raw_refusal)
        assert len(told()) == number
        assert reason in told()[-1]


def test_what_a_program_writes_or_reads_is_whole(name: str) -> None:
    net, other = (data_net(each, SOURCES["bytes"], WAYS["values"]) for each in (name, "cpu"))
    for _ in range(3):
        net.forward()
        net.blobs["data"].data[...] = np.nan
        other.forward()
        assert_same(other, net, batches=1)


def test_a_state_goes_on_behind_the_batch_that_was_taken(name: str) -> None:
    for source in ("bytes", "list", "arrays"):
        one, two = (data_net(each, SOURCES[source], WAYS["file, cropped"]) for each in ("cpu", name))
        assert_same(one, two, batches=2)
        state = layer_of(two).state()
        assert state == layer_of(one).state()
        assert_same(one, two, batches=2)
        layer_of(one).restore(state)
        third = data_net(name, SOURCES[source], WAYS["file, cropped"])
        third.forward()
        layer_of(third).restore(state)
        assert_same(one, third)


def test_rows_of_one_of_several_processes(name: str) -> None:
    class Half(LoneGroup):
        size, rank = 2, 1

    for source in ("bytes", "files", "mapped", "arrays"):
        whole = data_net("cpu", SOURCES[source], WAYS["values"], batch=7)
        text = data_layer(SOURCES[source], WAYS["values"], 7)
        train = NetState(phase="TRAIN")
        part = Net(parse(text, NetParameter), train, seed=5, device=name, part=Part(Half()))  # type: ignore[arg-type]
        for _ in range(4):
            wanted, found = whole.forward(), part.forward()
            for key, values in wanted.items():
                assert values[3:].tobytes() == found[key].tobytes()


def test_processes_that_test_take_turns(name: str) -> None:
    text = data_layer(SOURCES["bytes"], WAYS["values"])
    for rank in range(2):
        part = Net(
            parse(text, NetParameter), NetState(phase="TEST"), seed=5, device=name, turns=Turns(rank, 2)
        )
        whole = data_net("cpu", SOURCES["bytes"], WAYS["values"], phase="TEST")
        for number in range(6):
            wanted = whole.forward()["data"].tobytes()
            if number % 2 == rank:
                assert part.forward()["data"].tobytes() == wanted
            else:
                layer_of(part).skip()


REST = """
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
        inner_product_param { num_output: 11 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


def test_training_is_that_by_the_host(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are the same bits, also of a run that was resumed, and with batches that are tested in between."""
    net = data_layer(SOURCES["bytes"], WAYS["values"]) + REST
    text = (
        f'net_param {{ {net} }} base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 random_seed: 1 max_iter: 99 '
        "test_iter: 2 test_interval: 2 test_initialization: false snapshot_after_train: false snapshot_prefix: 's'"
    )
    found = []
    for is_raw in (True, False):
        if not is_raw:
            monkeypatch.setattr("jitdnn.caffe.layers.data.refusal", lambda *_: "of the test")
        solver = load_solver(text, device=name)
        solver.step(3)
        path = solver.snapshot()
        solver.step(3)
        resumed = load_solver(text, device=name)
        resumed.restore(path)
        resumed.step(3)
        assert (layer_of(solver.net)._upload is not None) == is_raw
        found += [solver, resumed]
    for other in found[1:]:
        for one, two in zip(found[0].net.parameters, other.net.parameters, strict=True):
            assert one.blob.read().tobytes() == two.blob.read().tobytes()


def test_a_table_beyond_the_mean_is_refused_before_it_is_sent(name: str) -> None:
    net = data_net(name, SOURCES["bytes"], WAYS["file, cropped"])
    net.forward()
    layer = layer_of(net)
    batch = layer._pipeline.take()  # type: ignore[union-attr]
    assert batch.raw is not None
    batch.raw.table[2] = (SIZE[1] - 6, 0, 0)
    with pytest.raises(InvalidArgument, match="row 2 of the table"):
        layer._send(batch.raw, net.blobs["data"], lambda: None)
