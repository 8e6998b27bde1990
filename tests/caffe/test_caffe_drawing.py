"""Drawings of nets: every layer and edge is there, boxes do not overlap, texts are safe."""

from __future__ import annotations

import re
from itertools import combinations
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitdnn.caffe import parse, upgrade
from jitdnn.caffe.drawing import svg_text
from jitdnn.caffe.rules import filter_net
from jitdnn.caffe.schema import NetParameter, NetState
from paths import SHARED

SVG = "{http://www.w3.org/2000/svg}"


class Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float
    text: str


def drawn(net: NetParameter) -> tuple[list[Box], list[str]]:
    """The layers' boxes and the edges' paths; all lies inside of the picture, and boxes beside each other."""
    root = ElementTree.fromstring(svg_text(net))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    boxes = []
    for group in root.iter(f"{SVG}g"):
        (rect,), (text,) = group.findall(f"{SVG}rect"), group.findall(f"{SVG}text")
        x, y, w, h = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        assert text.text is not None
        boxes.append(Box(x, y, x + w, y + h, text.text))
        assert (x, y) >= (0, 0)
        assert x + w <= width
        assert y + h <= height
    for one, other in combinations(boxes, 2):
        assert (
            one.right <= other.left + 0.2
            or other.right <= one.left + 0.2
            or one.bottom <= other.top
            or other.bottom <= one.top
        )
    return boxes, [path.attrib["d"] for path in root.iter(f"{SVG}path")]


def net_of(text: str) -> NetParameter:
    return parse(text, NetParameter)


def test_lenet() -> None:
    net = filter_net(upgrade("package:models/lenet.prototxt"), NetState(phase="TRAIN"))  # type: ignore[arg-type]
    boxes, edges = drawn(net)
    assert [box.text for box in boxes][:3] == [
        "digits  Data", "conv1  Convolution  20, 5", "pool1  Pooling  MAX 2 / 2",
    ]  # fmt: skip
    assert len(boxes) == len(net.layer)
    relu = next(box for box in boxes if box.text == "relu1  ReLU")
    assert relu.top == next(box for box in boxes if box.text.startswith("ip1")).bottom  # in place: in one box
    tops = [box.top for box in boxes]
    assert tops == sorted(tops)
    assert len(edges) > len(net.layer) - 2  # the labels' way to the loss has a place in each rank


def test_names_are_only_text() -> None:
    boxes, _ = drawn(
        net_of('name: "<script>" layer { name: "</text><a href=\\"x\\">&" type: "ReLU" top: "b" }')
    )
    assert boxes[0].text == '</text><a href="x">&  ReLU'
    assert "<script>" not in svg_text(net_of('name: "<script>"'))


def test_nothing_is_drawn_of_nothing() -> None:
    assert drawn(NetParameter()) == ([], [])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sets(st.integers(0, 7), max_size=3), st.booleans()), min_size=1, max_size=14))
def test_any_net(layers: list[tuple[set[int], bool]]) -> None:
    """All layers are there once, and as many ways into each as it has bottoms that come from other boxes."""
    text = "".join(
        f'layer {{ name: "{"n" * (1 + 7 * (i % 3))}{i}" type: "X" '
        + " ".join(f'bottom: "t{j}"' for j in sorted(bottoms))
        + f' top: "t{min(bottoms) if is_in_place and bottoms else i % 8}" }}'
        for i, (bottoms, is_in_place) in enumerate(layers)
    )
    boxes, edges = drawn(net_of(text))
    assert len(boxes) == len(layers)
    ends = [re.findall(r"[\d.]+", edge)[-2:] for edge in edges if "V" not in edge]
    for x, y in ends:  # each way ends on the upper edge of a box
        assert any(abs(box.top - float(y)) < 0.2 and box.left < float(x) < box.right for box in boxes)


@pytest.mark.skipif(not SHARED.is_dir(), reason="no folder ../shared beside this checkout")
def test_googlenet() -> None:
    net = upgrade(SHARED / "prototxt" / "bvlc_googlenet" / "train_val.prototxt")
    assert isinstance(net, NetParameter)
    net = filter_net(net, NetState(phase="TRAIN"))
    boxes, _ = drawn(net)
    assert len(boxes) == len(net.layer) > 150
