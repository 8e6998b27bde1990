"""PriorBox against its formula by loops and against OpenCV."""

from __future__ import annotations

import math

import numpy as np
import pytest

from caffe_nets import forward, one_layer
from jitdnn.errors import InvalidArgument

MAP, IMAGE = (2, 3, 2, 4), (2, 3, 40, 60)


@pytest.mark.parametrize(
    ("fields", "flip", "most", "step"),
    [
        ("min_size: 12 aspect_ratio: 2 aspect_ratio: 3", True, None, (20, 15)),
        ("min_size: 12 max_size: 30 aspect_ratio: 2 flip: false step: 16", False, 30, (16, 16)),
        ("min_size: 12 aspect_ratio: 2 aspect_ratio: 0.5 aspect_ratio: 1 clip: true step_h: 8 step_w: 10", True, None,
         (8, 10)),
    ],
)  # fmt: skip
def test_prior_boxes(fields: str, flip: bool, most: int | None, step: tuple[int, int]) -> None:
    net, _ = one_layer(f'type: "PriorBox" prior_box_param {{ {fields} variance: 0.1 variance: 0.2 '
                       "variance: 0.3 variance: 0.4 }", MAP, IMAGE)  # fmt: skip
    boxes, variances = forward(net)[0].reshape(2, -1, 4)
    ratios = [2.0, 0.5] if flip else [2.0]
    if "3" in fields.split("max")[0].replace("30", "") and flip and "aspect_ratio: 3" in fields:
        ratios += [3.0, 1 / 3]
    expected = []
    for i in range(MAP[2]):
        for j in range(MAP[3]):
            x, y = (j + 0.5) * step[1], (i + 0.5) * step[0]
            sizes = [(12.0, 12.0)]
            if most:
                sizes.append((math.sqrt(12 * most),) * 2)
            sizes += [(12 * math.sqrt(r), 12 / math.sqrt(r)) for r in ratios]
            expected += [
                [(x - w / 2) / 60, (y - h / 2) / 40, (x + w / 2) / 60, (y + h / 2) / 40] for w, h in sizes
            ]
    wanted = np.array(expected)
    np.testing.assert_allclose(boxes, wanted.clip(0, 1) if "clip" in fields else wanted, rtol=1e-12)
    np.testing.assert_array_equal(variances, np.tile([0.1, 0.2, 0.3, 0.4], (len(boxes), 1)))


def test_as_in_opencv() -> None:
    cv2 = pytest.importorskip("cv2")
    if not hasattr(cv2.dnn, "readNetFromCaffe"):
        pytest.skip("this OpenCV does not read Caffe's files: install opencv-python-headless<5")
    fields = "min_size: 10 min_size: 20 max_size: 15 max_size: 33 aspect_ratio: 2 aspect_ratio: 3 clip: true"
    text = f"""
        name: "n"
        layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 1 dim: 3 dim: 40 dim: 60 }} }} }}
        layer {{ name: "m" type: "Pooling" bottom: "x" top: "m"
                 pooling_param {{ pool: AVE kernel_size: 10 stride: 10 }} }}
        layer {{ name: "b" type: "PriorBox" bottom: "m" bottom: "x" top: "b" prior_box_param {{
          {fields} variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.2 }} }}
    """
    peer = cv2.dnn.readNetFromCaffe(np.frombuffer(text.encode(), np.uint8))
    peer.setInput(np.zeros((1, 3, 40, 60), np.float32))
    expected = peer.forward("b")
    net, _ = one_layer(f'type: "PriorBox" prior_box_param {{ {fields} variance: 0.1 variance: 0.1 variance: 0.2 '
                       "variance: 0.2 }", (1, 3, 4, 6), (1, 3, 40, 60))  # fmt: skip
    np.testing.assert_allclose(forward(net), expected, atol=1e-6)


def test_what_prior_box_refuses() -> None:
    for fields, match in (
        ("", "min_size is"),
        ("min_size: 3 max_size: 2", "each above its own"),
        ("min_size: 3 aspect_ratio: 0", "must be positive"),
        ("min_size: 3 variance: 1 variance: 2", "give one, or 4"),
        ("min_size: 3 step_h: 2", "give step, or both step_h and step_w"),
        ("min_size: 3 step: -2", "step is"),
    ):
        with pytest.raises(InvalidArgument, match=match):
            one_layer(f'type: "PriorBox" prior_box_param {{ {fields} }}', MAP, IMAGE)
    with pytest.raises(InvalidArgument, match="4 axes"):
        one_layer('type: "PriorBox" prior_box_param { min_size: 3 }', MAP, (2, 3))
