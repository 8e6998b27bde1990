"""Looking inside: what is shown of a layer is what the layer holds, gradients are gradients, and units answer."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
from PIL import Image

import studio_trained
from jitdnn.errors import InvalidArgument
from jitdnn.studio.data.drawing import class_colour
from jitdnn.studio.look import gradients, layers, maximize, pictures, saliency, strongest
from jitdnn.studio.look.trained import Given, open_trained
from studio_trained import Case


@pytest.fixture(scope="module")
def digits() -> Case:
    return studio_trained.digits()


def test_layers_in_place_are_shown_as_one(digits: Case) -> None:
    found = pickle.loads(pickle.dumps(layers.activations(*digits, Given(part="test", at=3))))
    assert [layer["name"] for layer in found["layers"]] == [
        "digits", "conv1 + relu1", "pool1", "ip1 + relu2 + drop", "ip2", "prob",
    ]  # fmt: skip
    conv = found["layers"][1]
    trained, data = open_trained(*digits)
    trained.predict(np.asarray(data.images("test")[3:4]))
    values = trained.one.blobs["conv1"].data[0]
    assert conv["shape"] == [8, 11, 11]
    assert conv["weights"] == 8 * 25 + 8
    assert conv["mean"] == pytest.approx(values.mean(), rel=1e-5)
    assert conv["low"] == values.min() == 0  # after the ReLU
    assert sum(conv["histogram"]) == values.size
    assert conv["zero"] == pytest.approx((values == 0).mean())
    picture = Image.open(io.BytesIO(conv["tiles"].png))
    assert picture.size == (conv["tiles"].width, conv["tiles"].height)
    pixels = np.asarray(picture)  # palette: one number a value, and the gaps
    assert (pixels[:11, :11] == pictures.levels(values[0], values.min(), values.max())).all()
    alone = layers.maps_of(*digits, "relu1", Given(part="test", at=3))
    assert alone["tiles"].png == conv["tiles"].png
    with pytest.raises(InvalidArgument, match="no layer 'conv9'"):
        layers.maps_of(*digits, "conv9", Given(part="test", at=3))


def test_what_was_learned(digits: Case) -> None:
    found = layers.learned(*digits)
    assert [each["name"] for each in found] == ["conv1", "ip1", "ip2"]
    trained, _ = open_trained(*digits)
    weight = found[0]["weights"][0]
    values = trained.one.weights["conv1"][0].data
    assert weight["shape"] == [8, 1, 5, 5]
    assert weight["std"] == pytest.approx(values.std(), rel=1e-4)
    assert weight["picture"].high == pytest.approx(abs(values).max(), rel=1e-6)
    assert found[0]["weights"][1]["picture"] is None


def test_the_gradient_is_that_of_the_score(digits: Case) -> None:
    """Against differences of scores in the pixels that matter most."""
    trained, data = open_trained(*digits)
    image = trained.prepare(np.asarray(data.images("test")[5:6]))
    net = trained.net_with_gradient(trained.scores)
    gradient = saliency.score_gradient(net, trained, image, 4)[0].copy()
    weights = {name: [blob.diff.copy() for blob in blobs] for name, blobs in net.weights.items()}
    assert all(not diff.any() for diffs in weights.values() for diff in diffs)  # nobody asked for those
    step = 1e-3
    for place in np.argsort(-abs(gradient).ravel())[:6]:
        moved = np.repeat(image, 2, 0)
        moved.reshape(2, -1)[:, place] += [step, -step]
        high, low = trained.run(moved, trained.scores)[:, 4].astype(np.float64)
        assert gradient.ravel()[place] == pytest.approx((high - low) / (2 * step), rel=0.02)
    plain = saliency.gradient_map(trained, image[0], 4)
    np.testing.assert_allclose(plain, abs(gradient).max(0), rtol=1e-6)
    smooth = saliency.gradient_map(trained, image[0], 4, copies=7, seed=1)
    assert smooth.shape == plain.shape
    assert np.corrcoef(smooth.ravel(), plain.ravel())[0, 1] > 0.5
    np.testing.assert_array_equal(smooth, saliency.gradient_map(trained, image[0], 4, copies=7, seed=1))


@pytest.mark.parametrize("kind", ["gradient", "smooth", "occlusion"])
@pytest.mark.parametrize("task", ["classification", "segmentation", "regression"])
def test_maps_of_an_image(task: str, kind: str, digits: Case) -> None:
    case = digits if task == "classification" else studio_trained.of_task(task)
    found = saliency.saliency(*case, kind, Given(part="test", at=2), target=1)
    size = {"classification": (26, 26), "segmentation": (12, 10), "regression": (8, 8)}[task]
    assert found["map"].shape == size
    assert np.isfinite(found["map"]).all()
    assert found["map"].any()
    assert Image.open(io.BytesIO(found["overlay"])).size == size[::-1]
    with pytest.raises(InvalidArgument, match="no class 99"):
        saliency.saliency(*case, kind, Given(part="test", at=2), target=99)


def test_occlusion_is_how_far_the_answer_falls(digits: Case) -> None:
    trained, data = open_trained(*digits)
    image = trained.prepare(np.asarray(data.images("test")[5:6]))[0]
    target = int(trained.run(image[None])[0].argmax())
    found = saliency.occlusion_map(trained, image, target, patch=26)  # one patch: the whole image
    covered = np.full_like(image, image.mean())
    fall = trained.run(image[None])[0, target] - trained.run(covered[None])[0, target]
    np.testing.assert_allclose(found, fall, rtol=1e-6)
    with pytest.raises(InvalidArgument, match="27 pixels does not fit"):
        saliency.occlusion_map(trained, image, target, patch=27)


def test_units_answer_more_strongly(digits: Case) -> None:
    for layer, units in (("conv1", [0, 3, 7]), ("ip2", list(range(10)))):
        found = maximize.maximize(*digits, layer, units, steps=24)
        for image in found["images"]:
            assert image["after"] > image["before"]
        assert Image.open(io.BytesIO(found["images"][0]["png"])).size == (26, 26)
    trained, _ = open_trained(*digits)
    inputs, _, after = maximize.ascend(trained, "ip2", [6], 24, 0.06, 0)
    assert trained.run(inputs, "ip2")[0, 6] == pytest.approx(after[0], rel=1e-5)
    assert trained.run(inputs)[0].argmax() == 6
    assert inputs.min() >= 0
    assert inputs.max() <= 255 * 0.0125 + 1e-5  # what an image may hold
    changed = maximize.maximize(*digits, "ip2", [3], steps=4, at=5)
    assert changed["images"][0]["after"] > changed["images"][0]["before"]


def test_maximize_refuses(digits: Case) -> None:
    for options, match in (
        ({"layer": "conv1", "units": [8]}, "units 0 to 7, not 8"),
        ({"layer": "digits", "units": [0]}, "no layer 'digits'"),
        ({"layer": "conv1", "units": []}, "0 units: 1 to 64"),
        ({"layer": "conv1", "units": [0], "steps": 10**9}, "1 to 1024"),
        ({"layer": "conv1", "units": [0], "rate": float("nan")}, "rate is nan"),
    ):
        with pytest.raises(InvalidArgument, match=match):
            maximize.maximize(*digits, **options)


def test_pictures_of_numbers_that_are_none() -> None:
    nothing = pictures.tiles(np.full((3, 4, 5), np.nan))
    assert (nothing.low, nothing.high) == (0, 1)
    page = np.asarray(Image.open(io.BytesIO(pictures.tiles(np.array([[[0, np.inf, 1]]])).png)))
    assert page.tolist() == [[0, 254, 254]]
    assert pictures.tiles(np.zeros((0, 4, 4))).count == 0
    assert pictures.tiles(np.zeros((1000, 2, 2)), most=10).count == 10
    assert pictures.vector_as_map(np.arange(50)).shape == (1, 7, 8)
    colour = np.zeros((3, 2, 2), np.uint8)
    colour[0] = 255  # blue, as Caffe has it
    assert np.asarray(Image.open(io.BytesIO(pictures.image_png(colour))))[0, 0].tolist() == [0, 0, 255]
    boxes = [
        pictures.Box(0.1, 0, np.inf, 5),
        pictures.Box(1, 1, 6, 6, "cat", 2),
        pictures.Box(1, 1, 3, 3, dashed=True),
    ]
    drawn = np.asarray(Image.open(io.BytesIO(pictures.boxes_over(np.zeros((1, 8, 8), np.uint8), boxes))))
    assert tuple(drawn[6 * 40, 3 * 40]) == class_colour(3)
    assert len({class_colour(k) for k in range(100)}) == 100


def test_gradients_of_layers_are_those_of_the_score(digits: Case) -> None:
    """By what a layer makes and by weights, against differences of scores where they are largest."""
    found = pickle.loads(pickle.dumps(gradients.gradients(*digits, Given(part="test", at=5), target=4)))
    assert [layer["layer"] for layer in found["layers"]] == ["digits", "conv1", "pool1", "ip1", "ip2"]
    assert found["class"] == 4
    last = found["layers"][-1]
    assert (last["low"], last["high"], last["zero"]) == (0, 1, pytest.approx(0.9))  # d score / d scores
    assert last["tiles"].low == -last["tiles"].high == -1
    trained, data = open_trained(*digits)
    image = trained.prepare(np.asarray(data.images("test")[5:6]))
    assert found["score"] == pytest.approx(float(trained.run(image, trained.scores)[0, 4]), rel=1e-5)
    hidden = trained.run(image, "ip1")[0]
    told = {each["name"]: each["weights"] for each in found["learned"]}
    assert told["ip2"][0]["high"] == pytest.approx(
        hidden.max(), rel=1e-5
    )  # d score / d w[4] is what it is given
    assert told["ip2"][1]["high"] == 1
    assert found["layers"][1]["shape"] == [8, 11, 11]
    assert told["conv1"][0]["picture"] is not None
    assert told["conv1"][0]["std"] > 0
    again = gradients.gradients(*digits, Given(part="test", at=5), target=4)
    assert again["learned"][0]["weights"][0]["high"] == told["conv1"][0]["high"]  # nothing is added to
    with pytest.raises(InvalidArgument, match="0 to 9"):
        gradients.gradients(*digits, Given(part="test", at=5), target=10)


def test_gradient_by_a_blob_against_differences(digits: Case) -> None:
    """One more of a pixel moves the score by the gradient of the input's layer."""
    found = gradients.gradients(*digits, Given(part="test", at=5), target=4)
    trained, data = open_trained(*digits)
    image = trained.prepare(np.asarray(data.images("test")[5:6]))
    net = trained.net_with_gradient(trained.scores)
    wanted = saliency.score_gradient(net, trained, image, 4)
    assert found["layers"][0]["low"] == pytest.approx(float(wanted.min()), rel=1e-5)
    assert found["layers"][0]["high"] == pytest.approx(float(wanted.max()), rel=1e-5)


@pytest.mark.parametrize("layer", ["conv1", "ip2"])
def test_images_that_units_answer_to_most(digits: Case, layer: str) -> None:
    """Against all answers of all images at once."""
    trained, data = open_trained(*digits)
    images = np.asarray(data.images("test"))
    every = trained.run(trained.prepare(images), layer)
    every = every.reshape(len(images), every.shape[1], -1).max(2)
    found = pickle.loads(pickle.dumps(strongest.strongest(*digits, layer, [5, 0], part="test", shown=4)))
    assert (found["looked"], found["count"]) == (500, 500)
    assert [unit["unit"] for unit in found["units"]] == [5, 0]
    for unit in found["units"]:
        answers = every[:, unit["unit"]]
        values = [image["value"] for image in unit["images"]]
        np.testing.assert_allclose(values, np.sort(answers)[::-1][:4], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            [answers[image["at"]] for image in unit["images"]], values, rtol=1e-5, atol=1e-6
        )
        assert unit["mean"] == pytest.approx(answers.mean(), rel=1e-4, abs=1e-5)
        has_places = [image["row"] is not None for image in unit["images"]]
        assert has_places == [layer == "conv1"] * 4
        if layer == "conv1":
            assert all(0 < image["row"] < 1 and 0 < image["column"] < 1 for image in unit["images"])
    some = strongest.strongest(*digits, layer, [1], part="test", images=50)
    assert some["looked"] == 50
    assert strongest.strongest(*digits, layer, [1], part="train", seconds=0)["looked"] == 256


def test_units_that_are_not_there_have_no_images(digits: Case) -> None:
    with pytest.raises(InvalidArgument, match="units 0 to 7, not 8"):
        strongest.strongest(*digits, "conv1", [1, 8])
    with pytest.raises(InvalidArgument, match="no layer 'conv9'"):
        strongest.strongest(*digits, "conv9", [0])
    with pytest.raises(InvalidArgument, match="65 units"):
        strongest.strongest(*digits, "conv1", [0] * 65)
    with pytest.raises(InvalidArgument, match="0 shown"):
        strongest.strongest(*digits, "conv1", [0], shown=0)
