"""pycaffe's io, Classifier and Detector."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import jitdnn.caffe.pycaffe as caffe
from jitdnn.errors import InvalidArgument, InvalidShape

NET = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 3 dim: 3 dim: 6 dim: 6 } } }
    layer { name: "f" type: "InnerProduct" bottom: "x" top: "f" inner_product_param {
      num_output: 4 weight_filler { type: "gaussian" std: 0.01 } } }
    layer { name: "p" type: "Softmax" bottom: "f" top: "p" }
"""


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(43)


@pytest.fixture
def photo(tmp_path: Path, random: np.random.Generator) -> Path:
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "photo.png"
    image.fromarray(random.integers(0, 256, (9, 11, 3), dtype=np.uint8)).save(path)
    return path


def test_images_are_loaded(photo: Path, tmp_path: Path) -> None:
    from PIL import Image

    pixels = np.asarray(Image.open(photo))
    found = caffe.io.load_image(str(photo))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, pixels / 255, rtol=1e-6)
    grey = caffe.io.load_image(photo, color=False)
    assert grey.shape == (9, 11, 1)
    np.testing.assert_allclose(grey[..., 0], pixels @ [0.299, 0.587, 0.114] / 255, atol=1 / 255)
    (tmp_path / "no.png").write_bytes(b"none")
    with pytest.raises(InvalidArgument, match=r"no.png cannot be read as an image"):
        caffe.io.load_image(tmp_path / "no.png")


@pytest.mark.parametrize("order", [0, 1])
def test_images_are_resized(order: int, random: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    image = random.uniform(size=(5, 7, 4)).astype(np.float32)
    f = torch.nn.functional
    for size in ((9, 12), (3, 4)):
        found = caffe.io.resize_image(image, size, order)
        x = torch.tensor(image).permute(2, 0, 1)[None]
        how = {"mode": "nearest-exact"} if order == 0 else {"mode": "bilinear", "align_corners": False}
        np.testing.assert_allclose(
            found, f.interpolate(x, size, **how)[0].permute(1, 2, 0), rtol=1e-5, atol=1e-6
        )
    assert caffe.io.resize_image(image, (2, 2), 3).shape == (2, 2, 4)
    with pytest.raises(InvalidArgument, match="interp_order 7"):
        caffe.io.resize_image(image, (2, 2), 7)
    with pytest.raises(InvalidShape, match="two extents are needed"):
        caffe.io.resize_image(image[0], (2, 2))


def test_ten_parts_of_an_image(random: np.random.Generator) -> None:
    images = random.uniform(size=(2, 7, 8, 3)).astype(np.float32)
    found = caffe.io.oversample(list(images), (4, 5))
    assert found.shape == (20, 4, 5, 3)
    for start, image in zip((0, 10), images, strict=True):
        parts = [image[:4, :5], image[:4, 3:], image[3:, :5], image[3:, 3:], image[1:5, 1:6]]
        for number, part in enumerate(parts):
            np.testing.assert_array_equal(found[start + number], part)
            np.testing.assert_array_equal(found[start + 5 + number], part[:, ::-1])
    with pytest.raises(InvalidShape, match="has no part of 9 x 2"):
        caffe.io.oversample(list(images), (9, 2))


def test_a_transformer_and_back(random: np.random.Generator) -> None:
    transformer = caffe.io.Transformer({"data": (1, 3, 5, 6)})
    transformer.set_transpose("data", (2, 0, 1))
    transformer.set_channel_swap("data", (2, 1, 0))
    transformer.set_raw_scale("data", 255)
    transformer.set_mean("data", np.array([104, 117, 123]))
    transformer.set_input_scale("data", 0.5)
    image = random.uniform(size=(5, 6, 3)).astype(np.float32)
    kept = image.copy()
    found = transformer.preprocess("data", image)
    expected = (image.transpose(2, 0, 1)[::-1] * 255 - np.array([104, 117, 123])[:, None, None]) * 0.5
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(image, kept)
    np.testing.assert_allclose(transformer.deprocess("data", found[None]), image, atol=1e-5)
    assert transformer.preprocess("data", random.uniform(size=(10, 3, 3))).shape == (3, 5, 6)
    transformer.set_mean("data", np.ones((3, 10, 10)))
    assert transformer.mean["data"].shape == (3, 5, 6)
    for call, match in (
        (lambda: transformer.preprocess("x", image), "there is no input 'x': there are data"),
        (lambda: transformer.set_transpose("data", (0, 1)), "must name each axis"),
        (lambda: transformer.set_channel_swap("data", (0, 0, 1)), "each of the 3 channels"),
    ):
        with pytest.raises(InvalidArgument, match=match):
            call()
    for mean in (np.ones(2), np.ones((2, 3, 3))):
        with pytest.raises(InvalidShape, match="mean"):
            transformer.set_mean("data", mean)


def test_a_classifier(random: np.random.Generator, tmp_path: Path) -> None:
    net = caffe.Net(NET, caffe.TEST)
    weights = tmp_path / "w.npz"
    net.save(weights)
    settings = {
        "mean": np.array([10.0, 20, 30]),
        "raw_scale": 255,
        "channel_swap": (2, 1, 0),
        "input_scale": 0.02,
    }
    classifier = caffe.Classifier(NET, weights, image_dims=(8, 9), **settings)
    images = [random.uniform(size=(8, 9, 3)).astype(np.float32) for _ in range(4)]

    def scores(part: np.ndarray) -> np.ndarray:
        x = (part[..., ::-1] * 255 - [10, 20, 30]) * 0.02
        return net.forward_all(x=x.transpose(0, 3, 1, 2).astype(np.float32))["p"]

    middles = np.stack([image[1:7, 1:7] for image in images])
    np.testing.assert_allclose(classifier.predict(images, oversample=False), scores(middles), rtol=1e-4)
    tens = scores(caffe.io.oversample(images, (6, 6))).reshape(4, 10, 4).mean(1)
    np.testing.assert_allclose(classifier.predict(images), tens, rtol=1e-4)
    with pytest.raises(InvalidArgument, match="no image"):
        classifier.predict([])
    with pytest.raises(InvalidArgument, match="the net has no input"):
        caffe.Classifier(
            'layer { name: "d" type: "DummyData" top: "d" dummy_data_param { shape { dim: 1 } } }', None
        )


def test_a_detector(photo: Path, tmp_path: Path) -> None:
    weights = tmp_path / "w.npz"
    net = caffe.Net(NET, caffe.TEST)
    net.save(weights)
    image = caffe.io.load_image(photo)
    windows = [(0, 0, 6, 6), (2, 3, 8, 9), (1, 1, 9, 11), (0, 5, 5, 11)]
    detector = caffe.Detector(NET, weights, raw_scale=255)
    found = detector.detect_windows([(str(photo), np.array(windows)), (photo, [])])
    assert [tuple(each["window"]) for each in found] == windows
    assert {each["filename"] for each in found} == {str(photo)}
    parts = [
        caffe.io.resize_image(image[a:c, b:d], (6, 6)).transpose(2, 0, 1) * 255 for a, b, c, d in windows
    ]
    expected = net.forward_all(x=np.stack(parts))["p"]
    np.testing.assert_allclose([each["prediction"] for each in found], expected, rtol=1e-4)
    assert detector.detect_windows([]) == []
    with pytest.raises(InvalidArgument, match="is no part of an image of 9 x 11"):
        detector.detect_windows([(photo, (0, 0, 10, 3))])
    for window in ((0, 0, float("nan"), 3), (0, 0, 4, float("inf"))):
        with pytest.raises(InvalidArgument, match="four finite numbers"):
            detector.detect_windows([(photo, [window])])


def test_windows_with_what_is_around_them(photo: Path) -> None:
    image = caffe.io.load_image(photo)
    mean = np.array([51.0, 102, 153])
    detector = caffe.Detector(NET, None, mean=mean, raw_scale=255, channel_swap=(2, 1, 0), context_pad=1)
    # 6 pixels, 1 of them on each side: windows of 4 x 4 are not resized
    np.testing.assert_allclose(detector.crop(image, np.array([2, 3, 6, 7])), image[1:7, 2:8])
    corner = detector.crop(image, np.array([0, 0, 4, 4]))
    np.testing.assert_allclose(corner[1:, 1:], image[:5, :5])
    np.testing.assert_allclose(corner[0], np.tile(mean[::-1] / 255, (6, 1)), rtol=1e-6)
    with pytest.raises(InvalidArgument, match="context_pad 3 needs a square input of more than twice"):
        caffe.Detector(NET, None, context_pad=3)
