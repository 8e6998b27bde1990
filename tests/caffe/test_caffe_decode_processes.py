"""Processes that decode images: the same batches as by threads, whatever happens to the processes."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jitdnn as jd
from caffe_databases import datum, write_lmdb
from jitdnn.caffe import Net, load_net
from jitdnn.caffe.decode_processes import DecodeProcess, Recipe, can_start
from jitdnn.caffe.decoding import Batch, Part, make
from jitdnn.caffe.images import encode_image
from jitdnn.caffe.pipeline import Waited, _Look
from jitdnn.caffe.raw_images import RawForm
from jitdnn.caffe.schema_layers import TransformationParameter
from jitdnn.caffe.sources import DatabaseSource, ListSource, Source
from jitdnn.caffe.transform import Transformer
from jitdnn.errors import InvalidArgument, InvalidShape
from other_processes import children, command, is_running, wait_until

pytestmark = pytest.mark.skipif(not can_start(), reason="this system has no memory without a name")
pytest.importorskip("PIL")

RANDOM = np.random.default_rng(5)
IMAGES = RANDOM.integers(0, 256, (13, 3, 9, 12), np.uint8)
CROP = "crop_size: 7 mirror: true mean_value: 100 scale: 0.5"
LONGEST = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images as files, their list, the windows of a detector, and a database of encoded images."""
    lines, windows = [], []
    for index, image in enumerate(IMAGES):
        name = f"{index}.{'png' if index % 2 else 'jpg'}"
        (tmp_path / name).write_bytes(encode_image(image, name[-3:]))
        lines.append(f"{name} {index}\n")
        windows.append(f"# {index}\n{name}\n3\n9\n12\n2\n{index + 1} 0.8 1 1 6 5\n0 0.1 2 0 11 8\n")
    (tmp_path / "list.txt").write_text("".join(lines))
    (tmp_path / "windows.txt").write_text("".join(windows))
    rows = [(b"%03d" % index, datum(image, index, "png")) for index, image in enumerate(IMAGES)]
    write_lmdb(tmp_path / "db", rows)
    return tmp_path


def net_of(folder: Path, kind: str, transform: str = CROP) -> Net:
    fields = {
        "ImageData": f'image_data_param {{ source: "{folder}/list.txt" root_folder: "{folder}/" batch_size: 6 '
        "shuffle: true }",
        "Data": f'data_param {{ source: "{folder}/db" batch_size: 6 backend: LMDB }}',
        "WindowData": f'window_data_param {{ source: "{folder}/windows.txt" root_folder: "{folder}/" batch_size: 6 }}',
    }[kind]
    text = f'layer {{ name: "d" type: "{kind}" top: "data" top: "label" {fields} transform_param {{ {transform} }} }}'
    return load_net(text, "TRAIN", seed=3, dtype="f64")


def batches(net: Net, count: int) -> list[np.ndarray]:
    found = []
    for _ in range(count):
        for blob in net.nodes[0].top:
            blob.data.fill(np.nan)
        found += [blob.copy() for blob in net.forward().values()]
    return found


def processes() -> list[int]:
    """Those of this process that decode."""
    return [pid for pid in children(os.getpid()) if b"decode_processes" in command(pid)]


def batches_until_there(net: Net) -> list[np.ndarray]:
    """Batches until its processes are handed over to its threads."""
    found = batches(net, 1)
    starter = net.layers[0]._pipeline._work.threads[-1]
    assert starter.name == "jitdnn start"
    starter.join(LONGEST)
    assert not starter.is_alive()
    return found


@pytest.mark.parametrize("kind", ["ImageData", "Data", "WindowData"])
def test_batches_are_those_of_threads(folder: Path, kind: str) -> None:
    with jd.settings(data_processes=1):
        net = net_of(folder, kind)
        found = batches_until_there(net)
    asked = len(found)
    assert len(processes()) == 1
    found += batches(net, 12)  # more than were made ahead
    wanted = batches(net_of(folder, kind), len(found) // 2)
    assert len(wanted) > asked
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    del net
    gc.collect()
    wait_until(lambda: not processes())


def test_they_end_with_their_layer_and_a_thread_goes_on_for_one_that_was_killed(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with jd.settings(data_processes=2):
        net = net_of(folder, "ImageData")
        found = batches_until_there(net) + batches(net, 20)
    with caplog.at_level(logging.WARNING, logger="jitdnn"):
        assert len(processes()) == 2
        for pid in processes():
            os.kill(pid, signal.SIGKILL)
        found += batches(net, 20)
    assert "was ended by SIGKILL: its thread decodes from now on" in caplog.text
    for mine, theirs in zip(found, batches(net_of(folder, "ImageData"), 41), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    del net
    gc.collect()
    wait_until(lambda: not processes())


def parts(folder: Path, source: Source, transform: TransformationParameter, raw: bool) -> tuple[Recipe, Part]:
    dtype = np.dtype(np.float32)
    transformer = Transformer(transform, folder, "TRAIN", (3, 9, 12), dtype)
    form = (
        RawForm.like(IMAGES[0], transformer.shape, lambda size: np.full(size, 7, np.uint8)) if raw else None
    )
    walk = source.records(0)
    records = [next(walk).record for _ in range(5)]
    images = None if raw else np.full((6, *transformer.shape), np.nan, dtype)
    batch = Batch(images, np.full(6, -1, dtype), 0, {}, None if form is None else form.new(6))
    # not the first record of its batch
    part = Part(batch, 1, records, transformer.draw(np.random.default_rng(1), 5))
    ready = source.for_process()
    assert ready is not None
    return Recipe(ready, transformer, form, dtype), part


@pytest.mark.parametrize("raw", [True, False])
def test_one_process_makes_what_is_made_here(folder: Path, raw: bool) -> None:
    transform = TransformationParameter(crop_size=7, mirror=True, mean_value=[3.0])
    source = DatabaseSource(folder / "db", None)  # records are views of its file
    recipe, mine = parts(folder, source, transform, raw)
    process = DecodeProcess(recipe)
    try:
        assert process.wait()
        assert process.make(mine) is None
        assert mine.is_decoded
        _, wanted = parts(folder, source, transform, raw)
        assert make(source, recipe.transformer, wanted) is None
        np.testing.assert_array_equal(mine.batch.labels, wanted.batch.labels)
        if raw:
            assert mine.batch.raw is not None
            assert wanted.batch.raw is not None
            np.testing.assert_array_equal(mine.batch.raw.images, wanted.batch.raw.images)
            np.testing.assert_array_equal(mine.batch.raw.table[1:], wanted.batch.raw.table[1:])
        else:
            np.testing.assert_array_equal(mine.batch.images, wanted.batch.images)
        # what is wrong with a record is told in the same words, and the process goes on
        mine.records[2] = (b"bad", b"\x22\x05hello\x38\x01")
        with pytest.raises(InvalidArgument) as wrong:
            process.make(mine)
        with pytest.raises(InvalidArgument) as wanted_error:
            make(source, recipe.transformer, mine)
        assert str(wrong.value) == str(wanted_error.value)
        mine.records[2] = (b"small", datum(IMAGES[0][:, :4], 1, "png"))
        with pytest.raises(InvalidShape, match="small"):
            process.make(mine)
        # a decoder that does not survive an image says which ones it may be
        os.kill(processes()[0], signal.SIGSEGV)
        with pytest.raises(InvalidArgument, match=r"'000' to .*'004' was ended by SIGSEGV"):
            process.make(mine)
    finally:
        process.end()


def test_they_end_with_the_process_that_they_work_for(folder: Path) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\nimport jitdnn as jd\n"
        "sys.path[:0] = sys.argv[2:]\nimport test_caffe_decode_processes as here\n"
        "with jd.settings(data_processes=1):\n"
        "    net = here.net_of(Path(sys.argv[1]), 'Data')\n    net.forward()\n"
        "here.wait_until(lambda: len(here.processes()) == 1)\nprint(*here.processes(), flush=True)\ntime.sleep(600)\n"
    )
    paths = [str(Path(__file__).parent), *(path for path in sys.path if path.endswith("helpers"))]
    command = [sys.executable, "-c", script, str(folder), *paths]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        (pid,) = parent.stdout.readline().split()
        parent.kill()
    wait_until(lambda: not is_running(int(pid)))


def test_a_net_that_waits_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("jitdnn.caffe.pipeline.perf_counter", lambda: now)
    for share in (0.0, 0.04, 0.06, 1.0):
        look, waited, seen = _Look(), Waited(), []
        for batch in range(32):
            now += 1.0
            waited.seconds += 1.0 if batch < 8 else share  # the first ones are not there yet
            seen.append(look.is_starving(waited))
        assert any(seen) == (share > 0.05)
        assert not any(seen[:15])


def test_sources_without_files_have_none(folder: Path) -> None:
    source = ListSource([(folder / "0.jpg", 1)], "RGB")
    ready = source.for_process()
    assert isinstance(ready, ListSource)
    assert not ready.files
    assert source.files
