"""What users run into: forced gradients, inputs that are reshaped, and errors that say which file and which layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from caffe_nets import FIXED, differences
from jitdnn.caffe import load_net, load_solver
from jitdnn.errors import InvalidArgument, InvalidShape, ParseError

SPLIT = """
  force_backward: true
  layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
  layer { name: "t" type: "TanH" bottom: "x" top: "t" }
  layer { name: "a" type: "Power" bottom: "t" top: "a" power_param { scale: 2 } }
  layer { name: "b" type: "Sigmoid" bottom: "t" top: "b" }
"""


def test_forced_gradients_through_a_split_without_a_loss() -> None:
    """The gradients of the outputs are the caller's: those of both readers are added up."""
    net = load_net(SPLIT, dtype="f64")
    random = np.random.default_rng(0)
    x, da, db = (random.standard_normal((2, 3)) for _ in range(3))
    net.forward(x=x)
    net.backward()
    assert not net.blobs["x"].diff.any()
    net.blobs["a"].diff[...], net.blobs["b"].diff[...] = da, db
    net.backward()
    found = net.blobs["x"].diff.copy()

    def loss() -> float:
        outputs = net.forward(x=x)
        return float((outputs["a"] * da).sum() + (outputs["b"] * db).sum())

    np.testing.assert_allclose(found, differences(loss, x), atol=1e-8)


def test_forced_gradients_of_a_split_whose_readers_have_none() -> None:
    """A blob that only labels are taken from has a gradient of 0."""
    net = load_net(
        """force_backward: true
           layer { name: "x" type: "Input" top: "x" top: "l" input_param { shape { dim: 2 dim: 1 } } }
           layer { name: "t" type: "Power" bottom: "l" top: "t" }
           layer { name: "a" type: "SoftmaxWithLoss" bottom: "x" bottom: "t" }
           layer { name: "b" type: "Accuracy" bottom: "x" bottom: "t" top: "b" }"""
    )
    net.blobs["t"].diff.fill(7)
    net.forward(x=np.ones((2, 1)), l=np.zeros((2, 1)))
    net.backward()
    assert not net.blobs["t"].diff.any()


POOLED = """
  layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 1 dim: 8 dim: 8 } } }
  layer { name: "p" type: "Pooling" bottom: "x" top: "p" pooling_param { kernel_size: 2 stride: 2 } }
"""


@pytest.mark.parametrize("is_called", [True, False])
def test_a_reshaped_input_blob_is_carried_through(is_called: bool) -> None:
    """By `reshape()` without arguments, and by a forward pass."""
    net = load_net(POOLED)
    net.blobs["x"].reshape((3, 1, 4, 6))
    if is_called:
        net.reshape()
        assert net.blobs["p"].shape == (3, 1, 2, 3)
    x = np.random.default_rng(0).standard_normal((3, 1, 4, 6))
    found = net.forward(x=x)["p"]
    np.testing.assert_allclose(found, x.reshape(3, 1, 2, 2, 3, 2).max(axis=(3, 5)), rtol=1e-6)
    net.reshape(x=(1, 1, 2, 2))
    assert net.forward()["p"].shape == (1, 1, 1, 1)


# ---- inputs


def test_an_input_without_a_shape_beside_the_layer_that_makes_it() -> None:
    net = load_net('input: "x"' + POOLED)
    assert net.inputs == ["x"]
    assert [layer.type for layer in net.layers] == ["Input", "Pooling"]


def test_an_input_without_a_shape() -> None:
    with pytest.raises(InvalidArgument, match=r"input 'y' \(line 1\) has no shape: give input_shape"):
        load_net('input: "x" input: "y"' + POOLED)


# ---- errors that name the file and the layer


@pytest.mark.parametrize("crop", ["", "transform_param { crop_size: 4 }"])
def test_folders_of_unequal_images_name_the_file_and_the_layer(tmp_path: Path, crop: str) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "cats").mkdir()
    for name, size in (("a.png", (6, 5)), ("b.png", (6, 5)), ("c.png", (7, 3))):
        image.fromarray(np.zeros(size[::-1], np.uint8)).save(tmp_path / "cats" / name)
    net = load_net(
        f'layer {{ name: "d" type: "Data" top: "data" {crop} '
        f'data_param {{ source: "{tmp_path}" batch_size: 3 }} }}'
    )
    with pytest.raises(InvalidShape, match=rf"layer 'd' \(Data\) \(line 1\): {tmp_path}/cats/c\.png: "):
        net.forward()


def test_images_of_an_array_are_named_by_number(tmp_path: Path) -> None:
    file = tmp_path / "d.npz"
    np.savez(file, data=np.zeros((2, 1, 3, 3)))
    with pytest.raises(InvalidArgument, match="crop_size 4 is larger than an image of 3 x 3"):
        load_net(
            f'layer {{ name: "d" type: "Data" top: "x" transform_param {{ crop_size: 4 }} '
            f'data_param {{ source: "{file}" batch_size: 1 }} }}'
        )


def test_a_net_in_the_place_of_a_solver_and_the_other_way_round(tmp_path: Path) -> None:
    net, solver = tmp_path / "net.prototxt", tmp_path / "solver.prototxt"
    net.write_text(POOLED)
    solver.write_text(f'net: "{net}" base_lr: 1 lr_policy: "fixed"')
    with pytest.raises(InvalidArgument, match=rf"{net} is a net, not a solver"):
        load_solver(net)
    with pytest.raises(InvalidArgument, match=rf"{solver} is a solver, not a net"):
        load_net(solver)
    with pytest.raises(InvalidArgument, match="this text is a net"):
        load_solver(POOLED)
    with pytest.raises(ParseError, match="did you mean 'base_lr'"):
        load_solver("bas_lr: 1 # {")


def test_paths_of_caffes_own_files_start_from_its_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From any working directory; only where the file lies in one of Caffe's folders, and the path is of one."""
    for folder in ("examples/mnist", "models/lenet", "elsewhere"):
        (tmp_path / "caffe" / folder).mkdir(parents=True)
    (tmp_path / "caffe" / "examples" / "mnist" / "net.prototxt").write_text(POOLED)
    monkeypatch.chdir(tmp_path)
    text = f'net: "examples/mnist/net.prototxt" snapshot_after_train: false {FIXED}'
    for folder in ("examples/mnist", "models/lenet", "elsewhere"):
        file = tmp_path / "caffe" / folder / "solver.prototxt"
        file.write_text(text)
        if folder != "elsewhere":
            assert load_solver(file).net.inputs == ["x"]
            continue
        with pytest.raises(InvalidArgument, match="does not exist"):
            load_solver(file)
