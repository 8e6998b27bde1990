"""What nets give to the command line: `extract-features` and `classify`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import caffe_protobuf
from caffe_commands import ACCURACY, DATA, SCORE, net_file
from caffe_databases import read_database
from command_line import call
from jitdnn.caffe import load_net

# ---- extract-features


@pytest.mark.parametrize("suffix", ["npz", "h5"])
def test_features_are_those_of_the_batches(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, suffix: str
) -> None:
    """Images one behind the other, and one number a batch of a blob without axes."""
    file, weights, out = (
        net_file(tmp_path, DATA, SCORE, ACCURACY),
        tmp_path / "w.npz",
        tmp_path / f"f.{suffix}",
    )
    net = load_net(file, seed=1)
    net.save_weights(weights)
    expected: dict[str, list[np.ndarray]] = {"score": [], "accuracy": []}
    for _ in range(3):
        net.forward()
        for name, found in expected.items():
            found.append(np.atleast_1d(net.blobs[name].data.copy()))
    options = ["--weights", weights, "--blobs", "score,accuracy", "--iterations", "3"]
    code, text, _ = call(capsys, "extract-features", file, out, *options)
    assert code == 0
    assert text == f"score: 60 x 10\naccuracy: 3\nwrote {out}\n"
    if suffix == "npz":
        found = dict(np.load(out))
    else:
        with pytest.importorskip("h5py").File(out) as features:
            found = {name: features[name][()] for name in features}
    assert set(found) == set(expected)
    for name, parts in expected.items():
        np.testing.assert_array_equal(found[name], np.concatenate(parts))
        assert found[name].dtype == np.float32


@pytest.mark.parametrize("backend", ["lmdb", "leveldb"])
def test_features_in_databases_as_caffes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, backend: str
) -> None:
    """A record for each image, float_data of (C, H, W), the number in ten digits; read by other libraries."""
    file, weights = net_file(tmp_path, DATA, SCORE, ACCURACY), tmp_path / "w.npz"
    net = load_net(file, seed=1)
    net.save_weights(weights)
    expected: dict[str, list[np.ndarray]] = {"data": [], "score": [], "accuracy": []}
    for _ in range(2):
        net.forward()
        for name, parts in expected.items():
            parts.extend(np.atleast_1d(net.blobs[name].data.copy()))
    out = ",".join(str(tmp_path / f"{name}_db") for name in expected)
    options = ["--weights", weights, "--blobs", ",".join(expected), "--iterations", "2", "--backend", backend]
    code, text, err = call(capsys, "extract-features", file, out, *options)
    assert code == 0, err
    assert text == f"data: 40 records\nscore: 40 records\naccuracy: 2 records\nwrote {out}\n"
    kind = caffe_protobuf.classes()["Datum"]
    for name, images in expected.items():
        records = read_database(tmp_path / f"{name}_db")
        assert [key for key, _ in records] == [b"%010d" % number for number in range(len(images))]
        for (_, value), image in zip(records, images, strict=True):
            found = kind.FromString(value)
            shape = (*np.shape(image), 1, 1, 1)[:3]
            assert (found.channels, found.height, found.width) == shape
            np.testing.assert_array_equal(np.float32(found.float_data), np.ravel(image))
            assert not found.data
    assert not list(tmp_path.glob(".*"))
    code, _, err = call(capsys, "extract-features", file, out, *options)
    assert code == 1
    assert "exists already" in err


@pytest.mark.parametrize(
    ("out", "backend", "words"),
    [
        ("a", "lmdb", "2 blobs (data, score) go to as many databases, and 1"),
        ("a,./a", "lmdb", "give each blob one of its own"),
        ("a,b", "hdf5", "backend is 'hdf5': there are lmdb and leveldb"),
        ("a,file/b", "lmdb", "cannot be written"),
    ],
)
def test_databases_of_features_that_cannot_be(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    out: str,
    backend: str,
    words: str,
) -> None:
    file, weights = net_file(tmp_path, DATA, SCORE), tmp_path / "w.npz"
    load_net(file).save_weights(weights)
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    options = ["--weights", weights, "--blobs", "data,score", "--iterations", "1", "--backend", backend]
    code, _, err = call(capsys, "extract-features", file, out, *options)
    assert code == 1
    assert words in err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("blobs", "out", "words"),
    [
        ("scores", "f.npz", "no blob 'scores': did you mean 'score'?"),
        ("score,score", "f.npz", "name each once"),
        ("score", "f.txt", "written as .npz or .h5"),
        ("score", "no/f.npz", "cannot write"),
    ],
)
def test_features_that_cannot_be(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, blobs: str, out: str, words: str
) -> None:
    file, weights = net_file(tmp_path, DATA, SCORE), tmp_path / "w.npz"
    load_net(file).save_weights(weights)
    before = sorted(tmp_path.iterdir())
    options = ["--weights", weights, "--blobs", blobs, "--iterations", "1"]
    code, _, err = call(capsys, "extract-features", file, tmp_path / out, *options)
    assert code == 1
    assert words in err
    assert sorted(tmp_path.iterdir()) == before
    code, _, err = call(
        capsys, "extract-features", "package:models/lenet_deploy.prototxt", tmp_path / "f.npz", *options
    )
    assert "features are extracted from a net with a layer that reads data" in err


@pytest.mark.parametrize("out", ["f.npz", "f.h5"])
def test_features_on_a_full_disk(capsys: pytest.CaptureFixture[str], tmp_path: Path, out: str) -> None:
    resource = pytest.importorskip("resource")
    file, weights = net_file(tmp_path, DATA, SCORE), tmp_path / "w.npz"
    load_net(file).save_weights(weights)
    before = sorted(tmp_path.iterdir())
    options = ["--weights", weights, "--blobs", "data", "--iterations", "2"]
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, most[1]))
    try:
        code, _, err = call(capsys, "extract-features", file, tmp_path / out, *options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert code == 1
    assert "cannot be kept in" in err
    assert "File too large" in err
    assert sorted(tmp_path.iterdir()) == before


# ---- classify

COLOURS = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 4 dim: 4 } } }
layer { name: "mean" type: "Pooling" bottom: "data" top: "mean" pooling_param { pool: AVE global_pooling: true } }
layer { name: "score" type: "InnerProduct" bottom: "mean" top: "score" inner_product_param { num_output: 3 } }
"""


@pytest.fixture
def colours(tmp_path: Path) -> Path:
    """A net whose scores are the means of blue, green and red, less those of the mean; its weights, names, an image."""
    image = pytest.importorskip("PIL.Image")
    file = tmp_path / "colours.prototxt"
    file.write_text(COLOURS)
    net = load_net(file)
    net.weights["score"][0].data[...] = np.eye(3)
    net.save_weights(tmp_path / "colours.npz")
    (tmp_path / "names.txt").write_text("blue\ngreen\nred\n")
    (tmp_path / "two.txt").write_text("blue\ngreen\n")
    np.save(tmp_path / "mean.npy", np.full((3, 9, 9), [[[10.0]], [[0.0]], [[100.0]]]))
    image.fromarray(np.full((8, 8, 3), (200, 40, 120), np.uint8)).save(tmp_path / "image.png")
    return tmp_path


def test_classify(capsys: pytest.CaptureFixture[str], colours: Path) -> None:
    command = [
        "classify",
        colours / "colours.prototxt",
        colours / "image.png",
        "--weights",
        colours / "colours.npz",
    ]
    title = f"---------- Prediction for {colours}/image.png ----------"
    code, out, _ = call(capsys, *command, "--labels", colours / "names.txt")
    assert code == 0
    assert out.splitlines() == [title, '200.0000 - "red"', '120.0000 - "blue"', '40.0000 - "green"']
    code, out, _ = call(
        capsys, *command, "--mean", colours / "mean.npy", "--top", "2", "--input-scale", "0.5"
    )
    assert out.splitlines() == [title, '55.0000 - "0"', '50.0000 - "2"']
    code, out, _ = call(capsys, *command, "--oversample", "--resize", "5,6", "--channel-swap", "0,1,2")
    assert out.splitlines()[1:] == ['200.0000 - "0"', '120.0000 - "2"', '40.0000 - "1"']


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--labels", "mean.npy"], "cannot be read as text"),
        (["--labels", "two.txt"], "names 2 classes, and the net has 3: a line for each"),
        (["--mean", "absent.npy"], "absent.npy"),
        (["--resize", "3,9"], "--resize is 3,9: height and width of at least 4,4"),
        (["--resize", "x"], "give integers between commas"),
        (["--channel-swap", "0,0,1"], "must name each of the 3 channels"),
    ],
)
def test_what_cannot_be_classified(
    capsys: pytest.CaptureFixture[str],
    colours: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(colours)
    command = ["classify", "colours.prototxt", "image.png", "--weights", "colours.npz"]
    code, out, err = call(capsys, *command, *options)
    assert (code, out) == (1, "")
    assert words in err
