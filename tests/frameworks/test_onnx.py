"""Models of ONNX: its own node tests against the record, and what the backend promises beyond them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitdnn.errors import InvalidArgument, NotSupported

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import onnx_nodes  # noqa: E402
from jitdnn.frameworks import onnx as backend  # noqa: E402

FLOAT, BOOL = TensorProto.FLOAT, TensorProto.BOOL
Array = np.ndarray[Any, Any]

RECORD = json.loads(onnx_nodes.RECORD.read_text(encoding="utf-8"))
PARTS = 20  # so that several processes share them, and each day takes some


def _values(text: str, element: int = FLOAT) -> list[Any]:
    """Values from names with their number of axes: "x4 y2"."""
    return [
        helper.make_tensor_value_info(word[:-1], element, [f"{word}_{axis}" for axis in range(int(word[-1]))])
        for word in text.split()
    ]


def _model(nodes: list[Any], inputs: str, outputs: str, constants: dict[str, Array] | None = None) -> Any:
    tensors = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "test", _values(inputs), _values(outputs), tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def _net() -> Any:
    """Convolution, activation and pooling with weights inside of the model."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "v", "d"], ["y"], transB=1),
    ]
    shapes = {"w": (4, 3, 3, 3), "b": (4,), "v": (5, 64), "d": (5,)}
    constants = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return _model(nodes, "x4", "y2", constants)


@pytest.mark.parametrize("part", range(PARTS))
def test_onnx_tests_are_as_recorded(part: int) -> None:
    """All node tests, over some days, and the small models in files: none fails, and those that are refused are exactly
    those of docs/onnx.json, for the reasons there."""
    cases = [*onnx_nodes.cases(), *onnx_nodes.model_cases()][part::PARTS]
    outcomes = [onnx_nodes.run(case) for case in cases]
    assert not {outcome.name: outcome.reason for outcome in outcomes if outcome.verdict == "failed"}
    if RECORD["onnx"] != onnx.__version__:
        pytest.skip(f"the record is that of onnx {RECORD['onnx']}: none failed, but others may be refused")
    names = {case.name for case in cases}
    recorded = {name: reason for name, reason in _recorded().items() if name in names}
    assert {outcome.name: outcome.reason for outcome in outcomes if outcome.verdict == "refused"} == recorded


@pytest.mark.skipif(RECORD["onnx"] != onnx.__version__, reason=f"the record is that of onnx {RECORD['onnx']}")
def test_the_record_counts_all() -> None:
    """What it says has passed is what it does not say is refused."""
    refused = _recorded()
    outcomes, models = (
        [
            onnx_nodes.Outcome(
                case.name,
                onnx_nodes.operators_of(case),
                "refused" if case.name in refused else "passed",
                refused.get(case.name, ""),
            )
            for case in cases
        ]
        for cases in (onnx_nodes.cases(), onnx_nodes.model_cases())
    )
    assert onnx_nodes.summary(outcomes, models) == RECORD


def _recorded() -> dict[str, str]:
    """The reason for each test that is refused."""
    return {
        name: reason
        for refused in (RECORD["refused"], RECORD["models"]["refused"])
        for reason, names in refused.items()
        for name in names
    }


def test_a_wrong_result_fails_its_node_test(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in onnx_nodes.cases() if case.name == "test_gemm_all_attributes")
    assert onnx_nodes.run(case).verdict == "passed"
    monkeypatch.setattr("jitdnn.frameworks.onnx.backend.Prepared.run", lambda self, inputs: [inputs[2]])
    assert onnx_nodes.run(case).verdict == "failed"


def test_a_net_agrees_with_the_reference_of_onnx() -> None:
    from onnx.reference import ReferenceEvaluator

    model = _net()
    x = np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    prepared = backend.prepare(model)
    for inputs in ([x], {"x": x}):
        (y,) = prepared.run(inputs)
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    assert prepared.inputs == ("x",)
    assert prepared.outputs == ("y",)
    (y,) = backend.run_model(model, [x])
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_a_whole_net_agrees_with_the_reference_of_onnx() -> None:
    """SqueezeNet as it ships in onnx, where all weights are one number, with weights that differ."""
    from onnx import version_converter
    from onnx.reference import ReferenceEvaluator

    rng = np.random.default_rng(0)
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    model = onnx.load(folder / "light_squeezenet.onnx")
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    filled = [node for node in model.graph.node if node.op_type == "ConstantOfShape"]
    for node in filled:
        shape = tuple(shapes[node.input[0]])
        deviation = np.sqrt(2 / max(1, np.prod(shape[1:])))
        weights = rng.normal(0, deviation, shape).astype(np.float32)
        model.graph.node.remove(node)
        model.graph.initializer.append(numpy_helper.from_array(weights, node.output[0]))
    model.ir_version = 8
    model = version_converter.convert_version(model, 15)
    prepared = backend.prepare(model)
    x = rng.standard_normal((1, 3, 224, 224)).astype(np.float32)
    (name,) = prepared.inputs
    (expected,) = ReferenceEvaluator(model).run(None, {name: x})
    (y,) = prepared.run({name: x})
    assert y.shape == (1, 1000, 1, 1)
    assert expected.max() < 0.9  # or the comparison would be one of ones and zeros
    np.testing.assert_allclose(y, expected, rtol=1e-2, atol=1e-6)


def test_one_node_runs_alone() -> None:
    a, b = np.random.default_rng(2).standard_normal((2, 4, 4)).astype(np.float32)
    (y,) = backend.run_node(helper.make_node("MatMul", ["a", "b"], ["y"]), [a, b])
    np.testing.assert_allclose(y, a @ b, rtol=1e-5, atol=1e-5)


def test_initializers_that_are_inputs_too_may_be_given_or_not() -> None:
    model = _net()
    model.graph.input.append(_values("d1")[0])
    x = np.zeros((1, 3, 8, 8), np.float32)
    prepared = backend.prepare(model)
    assert prepared.inputs == ("x",)
    (without,) = prepared.run([x])
    (given,) = prepared.run({"x": x, "d": np.zeros(5, np.float32)})
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    np.testing.assert_allclose(without - given, weights["d"][None], rtol=1e-5, atol=1e-5)


def test_results_are_the_callers_own() -> None:
    """A view of an input or of a constant of the model would let the caller change either."""
    nodes = [helper.make_node("Reshape", ["x", "s"], ["y"]), helper.make_node("Identity", ["s"], ["z"])]
    prepared = backend.prepare(_model(nodes, "x2", "y1 z1", {"s": np.array([6])}))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y, z = prepared.run([x])
    y[:], z[:] = -1, 2
    assert (x == np.arange(6).reshape(2, 3)).all()
    assert prepared.run([x])[0].shape == (6,)


def test_values_that_nobody_reads_again_are_dropped() -> None:
    nodes = [helper.make_node("Transpose", [f"v{n}"], [f"v{n + 1}"]) for n in range(4)]
    prepared = backend.prepare(_model(nodes, "v02", "v42"))
    assert [step.dead for step in prepared._graph.steps] == [("v0",), ("v1",), ("v2",), ("v3",)]


def test_bodies_read_the_values_around_them() -> None:
    """A branch that names a value of the outer graph, which is read nowhere else."""
    transposed = helper.make_node("Transpose", ["x"], ["t"])
    yes = helper.make_graph([helper.make_node("Identity", ["t"], ["a"])], "yes", [], _values("a2"))
    no = helper.make_graph([helper.make_node("Identity", ["x"], ["b"])], "no", [], _values("b2"))
    chosen = helper.make_node("If", ["c"], ["y"], then_branch=yes, else_branch=no)
    graph = helper.make_graph(
        [transposed, chosen], "test", [*_values("x2"), *_values("c0", BOOL)], _values("y2")
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    prepared = backend.prepare(model)
    np.testing.assert_array_equal(prepared.run([x, np.array(True)])[0], x.T)
    np.testing.assert_array_equal(prepared.run([x, np.array(False)])[0], x)


def test_functions_of_the_model_are_put_in_place() -> None:
    body = [helper.make_node("MatMul", ["a", "a"], ["b"]), helper.make_node("Transpose", ["b"], ["c"])]
    function = helper.make_function("mine", "Twice", ["a"], ["c"], body, [helper.make_opsetid("", 21)])
    graph = helper.make_graph(
        [helper.make_node("Twice", ["x"], ["y"], domain="mine")], "test", _values("x2"), _values("y2")
    )
    versions = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]
    model = helper.make_model(graph, functions=[function], opset_imports=versions, ir_version=10)
    x = np.arange(9, dtype=np.float32).reshape(3, 3)
    np.testing.assert_allclose(backend.run_model(model, [x])[0], (x @ x).T)


def test_what_is_not_covered_is_refused_by_name() -> None:
    unknown = _model([helper.make_node("Sideways", ["x", "x"], ["y"], domain="mine")], "x3", "y2")
    unknown.opset_import.append(helper.make_opsetid("mine", 1))
    with pytest.raises(NotSupported, match=r"operator mine\.Sideways is not covered"):
        backend.prepare(unknown)
    assert not backend.Backend.is_compatible(unknown)
    assert backend.Backend.is_compatible(_net())
    node = helper.make_node("Transpose", ["x"], ["y"], sideways=1)
    with pytest.raises(NotSupported, match=r"Transpose: attribute 'sideways' .*perm"):
        backend.run_node(node, [np.zeros((2, 2), np.float32)])
    with pytest.raises(NotSupported, match="Conv: 4 inputs are not covered"):
        backend.run_node(helper.make_node("Conv", list("abcd"), ["y"]), [np.zeros(1)] * 4)
    with pytest.raises(NotSupported, match="MatMul: types of the operands"):
        backend.run_node(helper.make_node("MatMul", ["a", "a"], ["y"]), [np.zeros((2, 2), np.int32)] * 2)


def test_wrong_arguments_are_named() -> None:
    model = _net()
    prepared = backend.prepare(model)
    x = np.zeros((1, 3, 8, 8), np.float32)
    with pytest.raises(InvalidArgument, match="2 inputs are given and the model takes 1"):
        prepared.run([x, x])
    with pytest.raises(InvalidArgument, match=r"missing: \['x'\], unknown: \['z'\]"):
        prepared.run({"z": x})
    with pytest.raises(InvalidArgument, match="runs on"):
        backend.prepare(model, "CUDA")
    with pytest.raises(InvalidArgument, match="no options"):
        backend.prepare(model, fast=True)
    model.graph.node[0].input[0] = "nowhere"
    with pytest.raises(InvalidArgument, match="not a valid model"):
        backend.prepare(model)
    assert backend.supports_device("CPU")
    assert not backend.supports_device("CUDA")


def test_tensors_in_other_files_are_refused() -> None:
    model = _net()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    with pytest.raises(NotSupported, match="lies in another file"):
        backend.graph.array_of(tensor)
