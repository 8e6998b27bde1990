"""debug_info: what it tells, when, and that it changes nothing."""

from __future__ import annotations

import logging
import re

import numpy as np
import pytest

from caffe_nets import FIXED
from jitdnn.caffe import load_net, load_solver
from jitdnn.caffe.events import Debugged, Displayed, Event, Iterated

NET = """
  layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 } } }
  layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" param { name: "w" }
          inner_product_param { num_output: 2 weight_filler { type: "constant" value: 0.5 } } }
  layer { name: "relu" type: "ReLU" bottom: "ip" top: "ip" }
  layer { name: "sum" type: "Reduction" bottom: "ip" top: "sum" loss_weight: 1 }
"""


CONV = """convolution_param {
    num_output: 3 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } bias_filler { type: "gaussian" } }"""


def test_lines_by_hand() -> None:
    """x = (1, 3), W = ½: ip = 2, 2; the gradients of the bias are 1, of the weights 1 and 3."""
    seen: list[Event] = []
    solver = load_solver(
        f"net_param {{ {NET} }} {FIXED} max_iter: 3 display: 2 debug_info: true snapshot_after_train: false",
        listener=seen.append,
    )
    solver.net.blobs["x"].data[...] = 1, 3
    solver.step(1)
    assert [event.line for event in seen if isinstance(event, Debugged)] == [
        "    [Forward] Layer x, top blob x data: 2",
        "    [Forward] Layer ip, top blob ip data: 2",
        "    [Forward] Layer ip, param blob w data: 0.5",
        "    [Forward] Layer ip, param blob 1 data: 0",
        "    [Forward] Layer relu, top blob ip data: 2",
        "    [Forward] Layer sum, top blob sum data: 4",
        "    [Backward] Layer sum, bottom blob ip diff: 1",
        "    [Backward] Layer relu, bottom blob ip diff: 1",
        "    [Backward] Layer ip, param blob 0 diff: 2",
        "    [Backward] Layer ip, param blob 1 diff: 1",
        "    [Backward] All net params (data, diff): L1 norm = (2, 10); L2 norm = (1, 4.69042)",
        "    [Update] Layer ip, param 0 data: 0.5; diff: 0.2",
        "    [Update] Layer ip, param 1 data: 0; diff: 0.1",
    ]
    assert seen[0].lines() == ["    [Forward] Layer x, top blob x data: 2"]
    # as in Caffe only where the loss is displayed
    solver.step(2)
    assert {event.iteration for event in seen if isinstance(event, Debugged)} == {0, 2}
    assert [event.iteration for event in seen if isinstance(event, (Displayed, Iterated))] == [0, 1, 2, 2, 3]


def test_layers_in_place_are_told_of_by_themselves() -> None:
    """A convolution makes -2 and its ReLU 0, though they are computed together otherwise."""
    seen: list[Event] = []
    solver = load_solver(
        """net_param {
             layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 1 dim: 2 dim: 2 } } }
             layer { name: "conv" type: "Convolution" bottom: "x" top: "conv" convolution_param {
                     num_output: 1 kernel_size: 1 weight_filler { type: "constant" value: -1 } } }
             layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
             layer { name: "sum" type: "Reduction" bottom: "conv" top: "sum" loss_weight: 1 }
           } max_iter: 1 display: 1 debug_info: true snapshot_after_train: false """
        + FIXED,
        listener=seen.append,
    )
    solver.net.blobs["x"].data.fill(2)
    solver.step(1)
    lines = [event.line for event in seen if isinstance(event, Debugged)]
    assert "    [Forward] Layer conv, top blob conv data: 2" in lines
    assert "    [Forward] Layer relu, top blob conv data: 0" in lines


@pytest.mark.parametrize("memory_limit", [None, "least"])
def test_training_is_the_same_with_it(memory_limit: str | None) -> None:
    """Also under a limit on memory, where layers that run twice are told of once."""
    layers = [
        f"""layer {{ name: "{kind}{i}" type: "{kind}" bottom: "{below}" top: "{kind}{i}" {fields} }}"""
        for i, (kind, below, fields) in enumerate(
            (
                ("Convolution", "x", CONV),
                ("TanH", "Convolution0", ""),
                ("Convolution", "TanH1", CONV),
                ("TanH", "Convolution2", ""),
                ("Reduction", "TanH3", "loss_weight: 1"),
            )
        )
    ]
    start = 'layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 dim: 3 dim: 9 dim: 9 } } }'
    text = f"net_param {{ {start} {' '.join(layers)} }} max_iter: 2 display: 1 snapshot_after_train: false {FIXED}"
    weights = []
    for fields in ("", "debug_info: true"):
        seen: list[Event] = []
        solver = load_solver(text + fields, listener=seen.append, seed=1, memory_limit=memory_limit)
        solver.step(2)
        weights.append([parameter.blob.data.copy() for parameter in solver.net.parameters])
    for plain, debugged in zip(*weights, strict=True):
        np.testing.assert_allclose(plain, debugged, rtol=1e-5, atol=1e-7)
    plan = solver.net.memory_plan
    assert bool(plan and plan.rerun) is (memory_limit is not None)
    lines = [event.line for event in seen if isinstance(event, Debugged) and event.iteration == 1]
    tops = [line for line in lines if re.match(r" {4}\[Forward\] Layer \S+, top blob", line)]
    assert len(tops) == len(set(tops)) == sum(len(node.top) for node in solver.net.nodes)
    assert all(re.search(r": (\d|L1 norm = \(\d)", line) for line in lines)


def test_a_net_tells_the_log(caplog: pytest.LogCaptureFixture) -> None:
    net = load_net("debug_info: true" + NET)
    with caplog.at_level(logging.WARNING, "jitdnn"):
        net.forward(x=[[1, 3]])
        net.backward()
    messages = [record.getMessage() for record in caplog.records]
    assert messages[1] == "    [Forward] Layer ip, top blob ip data: 2"
    assert messages[-1].startswith("    [Backward] All net params")
