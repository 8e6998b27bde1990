"""What is told of a run: every kernel and function of the host in its order, in the names of the front's nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitdnn

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

FLOAT = TensorProto.FLOAT


def filled(*shape: int) -> Any:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def prepared(nodes: list[Any], shape: list[int], outputs: list[str], **constants: Any) -> Any:
    graph = helper.make_graph(
        nodes, "test", [helper.make_tensor_value_info("x", FLOAT, shape)],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )  # fmt: skip
    opset = [helper.make_opsetid("", 17)]
    return jitdnn.onnx.prepare(helper.make_model(graph, opset_imports=opset, ir_version=8), threads=1)


def node(op: str, reads: str, makes: str, **attributes: Any) -> Any:
    return helper.make_node(op, reads.split(), makes.split(), name=f"{op.lower()}_{makes}", **attributes)


def test_what_follows_an_unknown_shape_is_told_too() -> None:
    model = prepared(
        [
            node("Relu", "x", "r"), node("NonZero", "r", "places"), node("Cast", "places", "c", to=FLOAT),
            node("Exp", "c", "e"), node("ReduceSum", "e", "y", keepdims=0),
        ],
        [3, 4], ["y"],
    )  # fmt: skip
    x = filled(3, 4)
    events = model.profile([x])
    names = [event["name"] for event in events]
    assert names[:2] == ["Relu 'relu_r'", "NonZero 'nonzero_places'"]
    assert list(dict.fromkeys(names[2:])) == ["Cast 'cast_c'", "Exp 'exp_e'", "ReduceSum 'reducesum_y'"]
    assert all(event["dur"] > 0 for event in events)
    starts = [event["ts"] for event in events]
    assert starts == sorted(starts)
    for measure in (True, False):
        text = model.explain([x], measure=measure)
        assert "1 functions of the host" in text
        assert "NonZero 'nonzero_places'" in text
        assert "ReduceSum 'reducesum_y'" in text
        assert "2 lists of kernels" in text
    kernels = [event for event in events if event["cat"] != "host"]
    assert f"{len(kernels)} kernels" in text


def test_nodes_without_a_plan_are_told_one_by_one() -> None:
    """An input that is a sequence: no plan is made."""
    graph = helper.make_graph(
        [node("ConcatFromSequence", "x", "c", axis=0), node("Relu", "c", "y")], "test",
        [helper.make_tensor_sequence_value_info("x", FLOAT, None)],
        [helper.make_tensor_value_info("y", FLOAT, None)],
    )  # fmt: skip
    model = jitdnn.onnx.prepare(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )
    events = model.profile({"x": [filled(2, 3), filled(1, 3)]})
    assert [event["name"] for event in events] == [
        "ConcatFromSequence 'concatfromsequence_c'",
        "Relu 'relu_y'",
    ]
    assert all(event["dur"] > 0 for event in events)
    assert "input 'x' is a sequence" in model.explain({"x": [filled(2, 3)]})


@pytest.mark.parametrize("case", ["output", "others", "shape"])
def test_reasons_are_in_the_names_of_the_model(case: str) -> None:
    nodes = [node("Conv", "x w", "c")]
    outputs = ["y"]
    if case == "output":
        nodes.append(node("Relu", "c", "y"))
        outputs.append("c")
    elif case == "others":
        nodes += [node("Relu", "c", "y"), node("MaxPool", "c", "p", kernel_shape=[2, 2])]
        outputs.append("p")
    else:
        nodes.append(node("Add", "c wide", "y"))
    model = prepared(nodes, [1, 2, 5, 5], outputs, w=filled(3, 2, 3, 3), wide=filled(2, 3, 3, 3))
    text = model.explain([filled(1, 2, 5, 5)])
    wanted = {
        "output": "not fused: the result of Conv 'conv_c' is an output of the graph",
        "others": "not fused: the result of Conv 'conv_c' is read by MaxPool 'maxpool_p', too",
        "shape": "not fused: its result is float32 of 2x3x3x3, and that of Conv 'conv_c' float32 of 1x3x3x3",
    }
    assert wanted[case] in text
    assert "%" not in text.replace(" %", "")


def test_reasons_of_the_host_say_who_computes() -> None:
    model = prepared([node("Det", "x", "y")], [3, 3], ["y"])
    text = model.explain([filled(3, 3)])
    assert "run by the host: NumPy computes it" in text
