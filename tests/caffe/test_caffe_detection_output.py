"""DetectionOutput against its rule by loops, and against OpenCV."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from caffe_nets import Array, forward, one_layer, shape_text
from jitdnn.errors import InvalidArgument

N, BOXES, CLASSES = 2, 30, 4


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(47)


def bottoms(random: np.random.Generator, classes: int = 1) -> list[Array]:
    low = random.uniform(0, 0.6, (BOXES, 2))
    priors = np.concatenate([low, low + random.uniform(0.2, 0.4, (BOXES, 2))], 1)
    variances = np.tile([0.1, 0.1, 0.2, 0.2], (BOXES, 1))
    return [
        random.normal(size=(N, BOXES * classes * 4)),
        random.dirichlet(np.ones(CLASSES), (N, BOXES)).reshape(N, -1),
        np.stack([priors, variances]).reshape(1, 2, -1),
    ]


def overlap(a: Array, b: Array) -> float:
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    if min(sides) <= 0:
        return 0.0
    common = sides[0] * sides[1]
    areas = [max(0, box[2] - box[0]) * max(0, box[3] - box[1]) for box in (a, b)]
    return common / (sum(areas) - common)


def expected(inputs: list[Array], code: str, shared: bool, threshold: float, most: int, keep: int, eta: float,
             least: float, is_encoded: bool) -> Array:  # fmt: skip
    rows: list[Any] = []
    priors, variances = inputs[2].reshape(2, BOXES, 4)
    for image in range(N):
        detections = []
        locations = inputs[0][image].reshape(BOXES, -1, 4)
        for label in range(1, CLASSES):
            scored = []
            for number in range(BOXES):
                p = priors[number]
                d = locations[number, 0 if shared else label] * (1 if is_encoded else variances[number])
                w, h = p[2] - p[0], p[3] - p[1]
                if code == "CORNER":
                    box = p + d
                elif code == "CORNER_SIZE":
                    box = p + d * [w, h, w, h]
                else:
                    x, y = (p[0] + p[2]) / 2 + d[0] * w, (p[1] + p[3]) / 2 + d[1] * h
                    w, h = np.exp(d[2]) * w, np.exp(d[3]) * h
                    box = np.array([x - w / 2, y - h / 2, x + w / 2, y + h / 2])
                score = inputs[1][image].reshape(BOXES, CLASSES)[number, label]
                if score > least:
                    scored.append((score, box))
            scored.sort(key=lambda each: -each[0])
            limit, kept = threshold, []
            for score, box in scored[: most if most > -1 else None]:
                if all(overlap(box, other) <= limit for _, other in kept):
                    kept.append((score, box))
                    if eta < 1 and limit > 0.5:
                        limit *= eta
            detections += [(label, score, box) for score, box in kept]
        best = sorted(detections, key=lambda each: -each[1])[: keep if keep > -1 else None]
        worst = min((score for _, score, _ in best), default=0)
        rows += [[image, label, score, *box] for label, score, box in detections if score >= worst and best]
    return np.array(rows)


@pytest.mark.parametrize(
    ("code", "shared", "threshold", "most", "keep", "eta", "least", "is_encoded"),
    [
        ("CENTER_SIZE", True, 0.45, 20, 15, 1.0, 0.2, False),
        ("CORNER", True, 0.3, -1, -1, 1.0, 0.0, False),
        ("CORNER_SIZE", False, 0.6, 12, 9, 1.0, 0.3, True),
        ("CENTER_SIZE", False, 0.9, -1, 40, 0.8, 0.1, False),
    ],
)
def test_detections(
    code: str, shared: bool, threshold: float, most: int, keep: int, eta: float, least: float, is_encoded: bool,
    random: np.random.Generator,
) -> None:  # fmt: skip
    inputs = bottoms(random, 1 if shared else CLASSES)
    top_k = f"top_k: {most}" if most > -1 else ""
    net, node = one_layer(
        f'type: "DetectionOutput" detection_output_param {{ num_classes: {CLASSES} code_type: {code} '
        f"keep_top_k: {keep} "
        f"share_location: {str(shared).lower()} variance_encoded_in_target: {str(is_encoded).lower()} "
        f"confidence_threshold: {least} nms_param {{ nms_threshold: {threshold} eta: {eta} {top_k} }} }}",
        *(each.shape for each in inputs),
    )
    found = forward(net, **{f"x{index}": each for index, each in enumerate(inputs)})
    wanted = expected(inputs, code, shared, threshold, most, keep, eta, least, is_encoded)
    assert found.shape == (1, 1, len(wanted), 7)
    assert len(wanted) > 10
    np.testing.assert_allclose(found[0, 0], wanted, rtol=1e-9, atol=1e-12)
    with pytest.raises(InvalidArgument, match="detections have no gradient"):
        node.layer.backward(node.top, [True, False, False], node.bottom)


def test_nothing_is_found(random: np.random.Generator) -> None:
    inputs = bottoms(random)
    net, _ = one_layer(
        f'type: "DetectionOutput" detection_output_param {{ num_classes: {CLASSES} confidence_threshold: 1 }}',
        *(each.shape for each in inputs),
    )
    found = forward(net, **{f"x{index}": each for index, each in enumerate(inputs)})
    np.testing.assert_array_equal(found[0, 0], [[0, *[-1] * 6], [1, *[-1] * 6]])


def test_as_in_opencv(random: np.random.Generator) -> None:
    cv2 = pytest.importorskip("cv2")
    if not hasattr(cv2.dnn, "readNetFromCaffe"):
        pytest.skip("this OpenCV does not read Caffe's files: install opencv-python-headless<5")
    inputs = [each.astype(np.float32) for each in bottoms(random)]
    layer = f"""type: "DetectionOutput" detection_output_param {{
        num_classes: {CLASSES} share_location: true background_label_id: 0 code_type: CENTER_SIZE keep_top_k: 20
        confidence_threshold: 0.1 nms_param {{ nms_threshold: 0.45 top_k: 25 }}
        save_output_param {{ label_map_file: "labels.prototxt" }} }}"""
    names = ("x0", "x1", "x2")
    text = (
        "".join(
            f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ {shape_text(each.shape)} }} }}\n'
            for name, each in zip(names, inputs, strict=True)
        )
        + f'layer {{ name: "l" bottom: "x0" bottom: "x1" bottom: "x2" top: "l" {layer} }}'
    )
    peer = cv2.dnn.readNetFromCaffe(np.frombuffer(text.encode(), np.uint8))
    for name, each in zip(names, inputs, strict=True):
        peer.setInput(each, name)
    theirs = peer.forward("l")
    net, _ = one_layer(layer, *(each.shape for each in inputs), dtype="f32")
    ours = forward(net, **dict(zip(names, inputs, strict=True)))
    assert ours.shape == theirs.shape
    # OpenCV's classes come in another order
    theirs = theirs[0, 0][np.lexsort((-theirs[0, 0, :, 2], theirs[0, 0, :, 1], theirs[0, 0, :, 0]))]
    np.testing.assert_allclose(ours[0, 0], theirs, rtol=1e-5, atol=1e-6)


def test_what_detection_output_refuses(random: np.random.Generator) -> None:
    shapes = [each.shape for each in bottoms(random)]
    for fields, match in (
        ("", "num_classes is missing"),
        ("num_classes: 5", r"\(N, 4 P\), \(N, 5 P\) and \(1, 2, 4 P\) are needed"),
        ("num_classes: 4 nms_param { eta: 0 }", r"eta 0 in \(0, 1\]"),
        ('num_classes: 4 save_output_param { output_directory: "x" }', "no file is written"),
    ):
        with pytest.raises(InvalidArgument, match=match):
            one_layer(f'type: "DetectionOutput" detection_output_param {{ {fields} }}', *shapes)
