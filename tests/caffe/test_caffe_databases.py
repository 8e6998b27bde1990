"""Data layers over LMDB and LevelDB, ImageData over lists: what they read, in which order, and what they refuse."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caffe_databases import IMAGES, Array, datum, records, write_leveldb, write_lmdb
from jitdnn.caffe import Net, load_net
from jitdnn.caffe.databases import open_database
from jitdnn.caffe.datum import image_datum, read_datum
from jitdnn.caffe.images import resize_image
from jitdnn.errors import InvalidArgument, InvalidShape, JitdnnError, NotSupported


def data_net(source: Path, fields: str = "", transform: str = "", phase: str = "TEST", batch: int = 4) -> Net:
    return load_net(
        f"""layer {{ name: "d" type: "Data" top: "data" top: "label"
                     data_param {{ source: "{source}" batch_size: {batch} {fields} }}
                     transform_param {{ {transform} }} }}""",
        phase,
        seed=1,
    )


def list_net(source: Path, fields: str = "", transform: str = "", phase: str = "TEST", batch: int = 4) -> Net:
    return load_net(
        f"""layer {{ name: "d" type: "ImageData" top: "data" top: "label"
                     image_data_param {{ source: "{source}" batch_size: {batch} {fields} }}
                     transform_param {{ {transform} }} }}""",
        phase,
        seed=1,
    )


def batches(net: Net, count: int) -> tuple[Array, Array]:
    images, labels = [], []
    for _ in range(count):
        for blob in net.nodes[0].top:
            blob.data.fill(np.nan)
        outputs = net.forward()
        images.append(outputs["data"].copy())
        labels.append(outputs["label"].copy())
    return np.concatenate(images), np.concatenate(labels)


@pytest.fixture
def image_list(tmp_path: Path) -> Path:
    cv2 = pytest.importorskip("cv2")
    lines = []
    for index, image in enumerate(IMAGES):
        name = f"an image {index}.png"
        cv2.imwrite(str(tmp_path / name), np.ascontiguousarray(image.transpose(1, 2, 0)))
        lines.append(f"{name} {100 + index}\n")
    (tmp_path / "list.txt").write_text("".join(lines))
    return tmp_path / "list.txt"


# ---- databases


@pytest.mark.parametrize(("write", "backend"), [(write_lmdb, "LMDB"), (write_leveldb, "LEVELDB")])
@pytest.mark.parametrize("form", ["raw", "png", "float"])
def test_records_in_the_order_of_their_keys(tmp_path: Path, write: Any, backend: str, form: str) -> None:
    write(tmp_path / "db", reversed(records(form)))
    images, labels = batches(data_net(tmp_path / "db", f"backend: {backend}"), 8)
    order = np.arange(32) % 11
    np.testing.assert_array_equal(labels, 100 + order)
    np.testing.assert_array_equal(images, IMAGES[order])


def test_jpeg_records_are_what_opencv_decodes(tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    smooth = np.stack([cv2.resize(image.transpose(1, 2, 0)[:4, :4], (40, 30)) for image in IMAGES])
    found = records("jpg", smooth.transpose(0, 3, 1, 2))
    write_lmdb(tmp_path / "db", found)
    images, _ = batches(data_net(tmp_path / "db"), 2)
    grey, _ = batches(data_net(tmp_path / "db", transform="force_gray: true"), 2)
    for index in range(8):
        content = np.frombuffer(read_datum(found[index][1], "r").content, np.uint8)
        np.testing.assert_array_equal(images[index], cv2.imdecode(content, 1).transpose(2, 0, 1))
        np.testing.assert_array_equal(grey[index, 0], cv2.imdecode(content, 0))


def test_the_whole_transformation(tmp_path: Path) -> None:
    write_lmdb(tmp_path / "db", records())
    mean = np.random.default_rng(1).random((3, 9, 12), np.float32)
    np.save(tmp_path / "mean.npy", mean)
    transform = f'crop_size: 5 mirror: true scale: 0.5 mean_file: "{tmp_path}/mean.npy"'
    images, _ = batches(data_net(tmp_path / "db", transform=transform, phase="TRAIN", batch=110), 1)
    windows = (IMAGES - mean) * np.float32(0.5)
    places = set()
    for index, image in enumerate(images):
        whole = windows[index % 11]
        found = [
            (row, column, is_mirrored)
            for row in range(5)
            for column in range(8)
            for is_mirrored in (False, True)
            if np.array_equal(
                whole[:, row : row + 5, column : column + 5][..., :: -1 if is_mirrored else 1], image
            )
        ]
        assert len(found) == 1
        places.add(found[0])
    assert len(places) > 50  # of 80
    assert {place[2] for place in places} == {False, True}
    middle, _ = batches(data_net(tmp_path / "db", transform="crop_size: 5"), 1)
    np.testing.assert_array_equal(middle, IMAGES[:4, :, 2:7, 3:8])


def test_rand_skip_starts_below_it(tmp_path: Path) -> None:
    write_lmdb(tmp_path / "db", records())
    net = data_net(tmp_path / "db", "rand_skip: 5")
    start = net.layers[0].position
    assert 0 <= start < 5
    np.testing.assert_array_equal(batches(net, 2)[1], 100 + (start + np.arange(8)) % 11)


@pytest.mark.parametrize("write", [write_lmdb, write_leveldb])
def test_resume_goes_on_with_the_next_batch(tmp_path: Path, write: Any) -> None:
    write(tmp_path / "db", records())
    transform = "crop_size: 4 mirror: true"
    net = data_net(tmp_path / "db", transform=transform, phase="TRAIN")
    batches(net, 3)
    state = net.layers[0].state()
    wanted = batches(net, 6)
    other = data_net(tmp_path / "db", transform=transform, phase="TRAIN")
    batches(other, 1)  # what it made ahead is not what it shall go on with
    other.layers[0].restore(state)
    for mine, theirs in zip(batches(other, 6), wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("workers", [1, 2, 7])
@pytest.mark.parametrize("prefetch", [1, 9])
def test_batches_do_not_depend_on_the_workers(
    tmp_path: Path, workers: int, prefetch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lmdb(tmp_path / "db", records("png"))
    transform = "crop_size: 4 mirror: true"
    monkeypatch.setattr("jitdnn.caffe.pipeline.available_cores", lambda: 3)
    wanted = batches(data_net(tmp_path / "db", transform=transform, phase="TRAIN", batch=5), 7)
    monkeypatch.setattr("jitdnn.caffe.pipeline.available_cores", lambda: workers)
    found = batches(data_net(tmp_path / "db", f"prefetch: {prefetch}", transform, phase="TRAIN", batch=5), 7)
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_two_layers_share_a_database_and_waiting_is_counted(tmp_path: Path) -> None:
    write_lmdb(tmp_path / "db", records())
    first, second = data_net(tmp_path / "db"), data_net(tmp_path / "db", batch=3)
    np.testing.assert_array_equal(batches(first, 1)[0], IMAGES[:4])
    np.testing.assert_array_equal(batches(second, 1)[0], IMAGES[:3])
    assert first.layers[0].waited.batches == 1
    assert first.layers[0].waited.seconds > 0
    assert sorted(file.name for file in (tmp_path / "db").iterdir()) == ["data.mdb", "lock.mdb"]


# ---- what is refused


def test_a_bad_record_names_database_record_and_layer(tmp_path: Path) -> None:
    cases: list[tuple[bytes, type[JitdnnError], str]] = [
        (b"\x0a", InvalidArgument, "damaged"),
        (datum(IMAGES[0])[:-40], InvalidArgument, "damaged"),
        (datum(IMAGES[0, :, :8]), InvalidShape, r"shape \(3, 8, 12\), the first one \(3, 9, 12\)"),
        (datum(IMAGES[0]) + b"\x08\x05", InvalidShape, "says 5 x 9 x 12 values and has 324"),
        (datum(IMAGES[0], form="png")[:-60], InvalidArgument, "damaged|cannot be read as an image"),
        (datum(IMAGES[0]) + b"\x28" + b"\xff" * 5 + b"\x7f", InvalidArgument, "beyond 32 bits"),
    ]
    for number, (bad, kind, message) in enumerate(cases):
        folder = tmp_path / str(number)
        write_lmdb(folder, [*records(), (b"00000005_x", bad), (b"00000006_x", b"\x0a")])
        net = data_net(folder)
        batches(net, 1)
        for _ in range(2):
            with pytest.raises(kind, match=rf"'d' \(Data\).*{folder}, record '00000005_x'.*({message})"):
                net.forward()


def test_databases_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lmdb(tmp_path / "db", records())
    write_lmdb(tmp_path / "none", [])
    write_leveldb(tmp_path / "level", records())
    content = (tmp_path / "db" / "data.mdb").read_bytes()
    for name, data in (("short", content[:-4096]), ("tiny", content[:100]), ("other", b"x" * 9000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.mdb").write_bytes(data)
    for source, fields, message in [
        ("none", "", "without records"),
        ("short", "", "is cut off"),
        ("tiny", "", "is no database of LMDB"),
        ("other", "", "is no database of LMDB"),
        ("db", "backend: LEVELDB", "backend is LEVELDB, and .* is an LMDB database; write backend: LMDB"),
        ("level", "backend: LMDB", "write backend: LEVELDB"),
        ("db#train", "", "no part #train"),
    ]:
        with pytest.raises(InvalidArgument, match=rf"'d' \(Data\).*{message}"):
            data_net(tmp_path / source, fields)
    gc.collect()
    for module, source in (("lmdb", "db"), ("plyvel", "level")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(NotSupported, match="pip install"):
            data_net(tmp_path / source)


def test_what_is_no_database_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"x")
    before = sorted(tmp_path.rglob("*"))
    for name, message in (("none", "it does not exist"), ("file", "a folder"), ("folder", "CURRENT")):
        with pytest.raises(InvalidArgument, match=rf"{name} is no database: .*{message}"):
            open_database(tmp_path / name)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_damaged_leveldb(tmp_path: Path) -> None:
    write_leveldb(tmp_path / "db", records())
    for file in (tmp_path / "db").iterdir():
        if file.suffix in (".log", ".ldb"):
            content = bytearray(file.read_bytes())
            content[100:200] = b"\xff" * 100
            file.write_bytes(content)
    with pytest.raises(InvalidArgument, match=r"db"):
        batches(data_net(tmp_path / "db"), 4)


@pytest.mark.parametrize(("write", "backend"), [(write_lmdb, "LMDB"), (write_leveldb, "LEVELDB")])
def test_a_database_in_the_place_of_another_is_read(tmp_path: Path, write: Any, backend: str) -> None:
    nets = []
    for version in range(4):
        shutil.rmtree(tmp_path / "db", ignore_errors=True)
        write(tmp_path / "new", [(b"%08d" % index, datum(IMAGES[version], version)) for index in range(5)])
        os.rename(tmp_path / "new", tmp_path / "db")
        nets.append(data_net(tmp_path / "db", f"backend: {backend}"))
        # those that are open already read what they opened, and some are let go of
        for number, net in enumerate(nets):
            if net is not None:
                images, labels = batches(net, 3)
                assert set(labels) == {number}
                np.testing.assert_array_equal(images[0], IMAGES[number])
        if version == 2:
            nets[1] = None
            gc.collect()


def test_a_leveldb_that_another_process_reads(tmp_path: Path) -> None:
    write_leveldb(tmp_path / "db", records())
    program = "import sys, plyvel; kept = plyvel.DB(sys.argv[1]); print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "db")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline()
        with pytest.raises(InvalidArgument, match="another process has it open"):
            data_net(tmp_path / "db", "backend: LEVELDB")
        other.communicate()
    assert batches(data_net(tmp_path / "db", "backend: LEVELDB"), 1)[1].tolist() == [100, 101, 102, 103]


# ---- lists of images


def test_a_list_is_read_in_order(image_list: Path) -> None:
    images, labels = batches(list_net(image_list, f'root_folder: "{image_list.parent}/"'), 4)
    order = np.arange(16) % 11
    np.testing.assert_array_equal(labels, 100 + order)
    np.testing.assert_array_equal(images, IMAGES[order])


def test_a_shuffled_list_has_every_image_in_each_round(image_list: Path) -> None:
    fields = f'root_folder: "{image_list.parent}/" shuffle: true'
    net = list_net(image_list, fields, batch=11)
    rounds = batches(net, 3)[1].reshape(3, 11)
    assert [sorted(labels) for labels in rounds.tolist()] == [list(range(100, 111))] * 3
    assert len({tuple(labels) for labels in rounds.tolist()}) == 3
    net = list_net(image_list, fields, batch=4)
    batches(net, 4)
    state = net.layers[0].state()
    wanted = batches(net, 5)[1]
    other = load_net(_text(image_list, fields), seed=99)
    other.layers[0].restore(state)
    np.testing.assert_array_equal(batches(other, 5)[1], wanted)


def _text(source: Path, fields: str) -> str:
    return (
        'layer { name: "d" type: "ImageData" top: "data" top: "label" '
        f'image_data_param {{ source: "{source}" batch_size: 4 {fields} }} }}'
    )


def test_images_are_resized_as_by_opencv(image_list: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    fields = f'root_folder: "{image_list.parent}/" new_height: 7 new_width: 20'
    images, _ = batches(list_net(image_list, fields), 1)
    grey, _ = batches(list_net(image_list, fields + " is_color: false"), 1)
    for index in range(4):
        pixels = np.ascontiguousarray(IMAGES[index].transpose(1, 2, 0))
        wanted = cv2.resize(pixels, (20, 7)).transpose(2, 0, 1).astype(float)
        assert np.abs(images[index] - wanted).max() <= 1
        wanted = cv2.resize(cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY), (20, 7)).astype(float)
        assert np.abs(grey[index, 0] - wanted).max() <= 2
    many = np.random.default_rng(0).integers(0, 256, (1, 64, 50), np.uint8)
    assert np.abs(resize_image(many, (9, 90))[0].astype(float) - cv2.resize(many[0], (90, 9))).max() <= 1


def test_lists_that_cannot_be(image_list: Path, tmp_path: Path) -> None:
    root = f'root_folder: "{tmp_path}/"'
    for text, message in [
        ("", "names no images"),
        ("a.png 1\nb.png\n", "line 2: 'b.png' is not the name of an image, a blank and a label"),
        ("a.png one\n", "line 1"),
        ("a.png 99999999999\n", "line 1"),
        ("none.png 1\n", "none.png cannot be read as an image"),
        ("list.txt 1\n", "list.txt cannot be read as an image"),
    ]:
        (tmp_path / "bad.txt").write_text(text)
        with pytest.raises(InvalidArgument, match=rf"'d' \(ImageData\).*{message}"):
            list_net(tmp_path / "bad.txt", root)
    for fields, message in [("new_height: 5", "give both"), ("scale: 2", "V1 syntax")]:
        with pytest.raises(InvalidArgument, match=message):
            list_net(image_list, root + fields)
    lines = image_list.read_text().splitlines()
    image_list.write_text("\n".join([*lines[:6], "gone.png 3", *lines[6:]]))
    net = list_net(image_list, root)
    batches(net, 1)
    with pytest.raises(InvalidArgument, match=r"'d' \(ImageData\).*gone\.png"):
        net.forward()


# ---- records


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_records_are_protobufs(dtype: Any) -> None:
    import caffe_protobuf

    image = IMAGES[0].astype(dtype)
    theirs = caffe_protobuf.classes()["Datum"].FromString(image_datum(image, 7))
    assert (theirs.channels, theirs.height, theirs.width, theirs.label) == (3, 9, 12, 7)
    assert theirs.SerializeToString() == image_datum(image, 7)
    values = np.frombuffer(theirs.data, np.uint8) if dtype is np.uint8 else np.array(theirs.float_data)
    np.testing.assert_array_equal(values.reshape(image.shape), image)


# ---- threads


def test_threads_end_with_their_net(tmp_path: Path) -> None:
    write_lmdb(tmp_path / "db", records())

    def running() -> int:
        return sum(thread.name in ("jitdnn data", "jitdnn decode") for thread in threading.enumerate())

    gc.collect()
    net = data_net(tmp_path / "db")
    batches(net, 1)
    threads = list(net.layers[0]._pipeline._work.threads)
    assert all(thread.is_alive() for thread in threads)
    assert running() >= len(threads)
    del net
    gc.collect()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
