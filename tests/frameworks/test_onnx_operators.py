"""Operators of ONNX beyond its node tests: older versions, two ways to one result, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitdnn.errors import InvalidArgument, NotSupported

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")

from onnx import helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from jitdnn.frameworks import onnx as backend  # noqa: E402

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def run(operator: str, inputs: list[Any], outputs: int = 1, version: int = 21, **attributes: Any) -> Any:
    """The outputs of one node; None stands for an input that is left out."""
    names = ["" if value is None else f"in{place}" for place, value in enumerate(inputs)]
    node = helper.make_node(operator, names, [f"out{n}" for n in range(outputs)], **attributes)
    given_ = [value for value in inputs if value is not None]
    results = backend.run_node(node, given_, opset_version=version)
    return results[0] if outputs == 1 else results


def reference(operator: str, inputs: list[Any], version: int, outputs: int = 1, **attributes: Any) -> Any:
    """What ONNX's own slow evaluator gives for the same."""
    names = [f"in{place}" for place in range(len(inputs))]
    nodes = [helper.make_node(operator, names, [f"out{n}" for n in range(outputs)], **attributes)]
    ins = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in zip(names, inputs, strict=True)
    ]
    outs = [helper.make_tensor_value_info(f"out{n}", 1, None) for n in range(outputs)]
    graph = helper.make_graph(nodes, "one", ins, outs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=8)
    results = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
    return results[0] if outputs == 1 else results


X = normal(2, 3, 4, 5)
OLDER: list[tuple[str, int, list[Array], dict[str, Any]]] = [
    ("TopK", 1, [X], {"axis": 2, "k": 3}),
    ("TopK", 9, [X], {"k": 5}),
    ("Squeeze", 11, [normal(2, 1, 3, 1)], {"axes": [1, -1]}),
    ("Unsqueeze", 11, [X], {"axes": [0, 2]}),
    ("ReduceSum", 11, [X], {"axes": [1, -1], "keepdims": 0}),
    ("ReduceMean", 13, [X], {"axes": [2]}),
    ("ReduceL2", 13, [X], {"axes": [0, 3], "keepdims": 0}),
    ("Split", 11, [X], {"axis": 3, "split": [2, 3]}),
    ("Slice", 9, [X], {"starts": [1, -3], "ends": [3, 100], "axes": [1, 3]}),
    ("Pad", 2, [X], {"pads": [0, 1, 0, 2, 0, 0, 1, 0], "value": 1.5}),
    ("Clip", 6, [X], {"min": -0.5, "max": 0.25}),
    ("Gelu", 20, [X], {"approximate": "tanh"}),
    ("Gather", 13, [X, np.array([[0, -1], [2, 1]])], {"axis": 1}),
]


@pytest.mark.parametrize(("operator", "version", "inputs", "attributes"), OLDER, ids=[c[0] for c in OLDER])
def test_older_forms_agree_with_the_reference(
    operator: str, version: int, inputs: list[Array], attributes: dict[str, Any]
) -> None:
    outputs = 2 if operator == "Split" else 1
    expected = reference(operator, inputs, version, outputs, **attributes)
    actual = run(operator, inputs, outputs, version, **attributes)
    pairs = zip(actual, expected, strict=True) if outputs > 1 else [(actual, expected)]
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_softmax_before_version_13_is_over_all_axes_that_follow() -> None:
    grown = np.exp(X.astype(np.float64))
    exact = grown / grown.sum((1, 2, 3), keepdims=True)
    np.testing.assert_allclose(run("Softmax", [X], version=11), exact, rtol=1e-5)
    np.testing.assert_allclose(run("LogSoftmax", [X], version=11, axis=1), np.log(exact), rtol=1e-5)
    first = run("Hardmax", [X], version=11, axis=1)
    assert (first.sum((1, 2, 3)) == 1).all()
    assert (np.argmax(first.reshape(2, -1), 1) == np.argmax(X.reshape(2, -1), 1)).all()


def test_broadcasting_before_version_7() -> None:
    y = normal(3, 4)
    expected = X - y[None, :, :, None]
    np.testing.assert_allclose(run("Sub", [X, y], version=6, broadcast=1, axis=1), expected, rtol=1e-6)
    np.testing.assert_allclose(
        run("PRelu", [X, y[:, 0]], version=6), np.where(X > 0, X, X * y[:, 0].reshape(3, 1, 1)), rtol=1e-6
    )


@given(st.data())
def test_slices_are_those_of_the_reference(data: Any) -> None:
    x = np.arange(42).reshape(6, 7)
    axes = data.draw(st.permutations([0, 1]).map(lambda order: order[: data.draw(st.integers(1, 2))]))
    bounds = st.integers(-12, 12)
    starts, ends = ([data.draw(bounds) for _ in axes] for _ in range(2))
    steps = [data.draw(st.sampled_from([-3, -1, 1, 2, 20])) for _ in axes]
    inputs = [x, *(np.array(values, np.int64) for values in (starts, ends, axes, steps))]
    np.testing.assert_array_equal(run("Slice", inputs), reference("Slice", inputs, 13))


def test_pads_may_be_negative() -> None:
    pads = np.array([0, -1, 2, 0, 0, 1, -3, -2])
    grown = np.pad(X, ((0, 0), (0, 1), (2, 0), (0, 0)), constant_values=7)
    expected = grown[:, 1:, :-3, :-2]
    np.testing.assert_array_equal(run("Pad", [X, pads, np.array(7, np.float32)]), expected)


# ---- recurrent layers: the library's against steps, and the forms that only steps have


def _layer(gates: int, directions: int = 2) -> list[Any]:
    """x (T, N, I), W, R, B, lengths and the first state, of sizes that differ."""
    steps, batch, width, hidden = 5, 3, 4, 6
    sizes = (
        (directions, gates * hidden, width),
        (directions, gates * hidden, hidden),
        (directions, 2 * gates * hidden),
    )
    return [
        normal(steps, batch, width), *(normal(*size) * 0.5 for size in sizes),
        np.array([5, 2, 3], np.int32), normal(directions, batch, hidden),
    ]  # fmt: skip


@pytest.mark.parametrize("operator", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_layers_and_steps_agree(operator: str, direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    directions = 2 if direction == "bidirectional" else 1
    inputs = _layer({"RNN": 1, "LSTM": 4, "GRU": 3}[operator], directions)
    options: dict[str, Any] = {"direction": direction, "hidden_size": 6}
    if operator == "GRU":
        options["linear_before_reset"] = 1
    if operator == "LSTM":
        inputs.append(normal(directions, 3, 6))
    count = 3 if operator == "LSTM" else 2
    fast = run(operator, inputs, count, **options)
    # a clip that nothing reaches takes the other way
    slow = run(operator, inputs, count, **options, clip=1e6)
    for one, other in zip(fast, slow, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def test_an_lstm_with_everything() -> None:
    """Peepholes, coupled gates, clipped sums and other activations, against the formulas of the specification."""
    x, w, r, b, _, h = (value.astype(np.float64) for value in _layer(4, 1))
    c, peepholes, clip = normal(1, 3, 6).astype(np.float64), normal(1, 18).astype(np.float64), 0.75
    actual = run(
        "LSTM", [x, w, r, b, None, h, c, peepholes], 3, hidden_size=6, clip=clip, input_forget=1,
        activations=["HardSigmoid", "Softsign", "Affine"], activation_alpha=[0.25, 0.0, 2.0],
        activation_beta=[0.375, 0.0, -0.5],
    )  # fmt: skip
    f = lambda v: np.clip(0.25 * np.clip(v, -clip, clip) + 0.375, 0, 1)  # noqa: E731
    p_i, p_o, _ = np.split(peepholes[0], 3)
    h, c = h[0], c[0]
    outputs = []
    for step in x:
        i, o, _, new = np.split(step @ w[0].T + h @ r[0].T + b[0, :24] + b[0, 24:], 4, 1)
        gate = f(i + p_i * c)
        new = np.clip(new, -clip, clip)
        c = (1 - gate) * c + gate * new / (1 + np.abs(new))
        h = f(o + p_o * c) * (2.0 * c - 0.5)
        outputs.append(h)
    np.testing.assert_allclose(actual[0][:, 0], outputs, rtol=1e-9)
    np.testing.assert_allclose(actual[1][0], h, rtol=1e-9)
    np.testing.assert_allclose(actual[2][0], c, rtol=1e-9)


def test_a_gru_resets_before_the_product_by_default() -> None:
    x, w, r, b, _, h = (value.astype(np.float64) for value in _layer(3, 1))
    y, last = run("GRU", [x, w, r, b, None, h], 2, hidden_size=6)
    state, (w_z, w_r, w_h), (r_z, r_r, r_h) = h[0], np.split(w[0], 3), np.split(r[0], 3)
    b_x, b_h = np.split(b[0], 2)
    outputs = []
    for step in x:
        z = _sigmoid(step @ w_z.T + state @ r_z.T + (b_x + b_h)[:6])
        reset = _sigmoid(step @ w_r.T + state @ r_r.T + (b_x + b_h)[6:12])
        new = np.tanh(step @ w_h.T + (reset * state) @ r_h.T + (b_x + b_h)[12:])
        state = (1 - z) * new + z * state
        outputs.append(state)
    np.testing.assert_allclose(y[:, 0], outputs, rtol=1e-9)
    np.testing.assert_allclose(last[0], state, rtol=1e-9)


def test_unknown_activations_and_directions_are_refused() -> None:
    inputs = _layer(1, 1)
    with pytest.raises(NotSupported, match="activation 'Cube' is not covered"):
        run("RNN", inputs, 2, activations=["Cube"])
    with pytest.raises(NotSupported, match="direction 'bidirectional' with weights for 1"):
        run("RNN", inputs, 2, direction="bidirectional")


# ---- two ways to one result


@pytest.mark.parametrize("masked", ["nothing", "bool", "float"])
@pytest.mark.parametrize("options", [{}, {"is_causal": 1}, {"left_window_size": 2, "right_window_size": 1}])
def test_attention_in_tiles_and_by_steps_agree(masked: str, options: dict[str, int]) -> None:
    q, k, v = normal(2, 4, 5, 8), normal(2, 2, 7, 8), normal(2, 2, 7, 6)
    mask = {"nothing": None, "bool": RNG.random((2, 1, 5, 7)) < 0.7, "float": normal(5, 7)}[masked]
    lengths = np.array([7, 4])
    tail = [None, None, lengths] if options else []
    inputs = [q, k, v, mask, *tail]
    tiled = run("Attention", inputs, version=25, **options)
    stepwise, *_ = run("Attention", inputs, 4, version=25, qk_matmul_output_mode=3, **options)
    np.testing.assert_allclose(tiled, stepwise, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"])
def test_resizing_and_its_matrices_agree(
    mode: str, coordinates: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"mode": mode, "coordinate_transformation_mode": coordinates}
    sizes = np.array([2, 3, 7, 3])
    ours = run("Resize", [X, None, None, sizes], **options)
    monkeypatch.setattr("jitdnn.frameworks.onnx.resize._OURS", frozenset())
    np.testing.assert_allclose(run("Resize", [X, None, None, sizes], **options), ours, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor"])
@pytest.mark.parametrize("coordinates", ["asymmetric", "half_pixel"])
def test_nearest_elements_are_those_of_onnxruntime(coordinates: str, rounding: str) -> None:
    """Of scales that float32 does not hold: 17 of scale 1.7 is element 10, by whose number it is 9.9999997."""
    runtime = pytest.importorskip("onnxruntime")
    x = np.arange(31, dtype=np.float32).reshape(1, 1, 1, 31)
    for scale in (0.3, 0.7, 1.1, 1.7, 2.3, 3.3):
        node = helper.make_node(
            "Resize", ["x", "", "scales"], ["y"], mode="nearest", nearest_mode=rounding,
            coordinate_transformation_mode=coordinates,
        )  # fmt: skip
        scales = np.array([1, 1, 1, scale], np.float32)
        graph = helper.make_graph(
            [node], "one",
            [helper.make_tensor_value_info("x", 1, x.shape)],
            [helper.make_tensor_value_info("y", 1, None)],
            [onnx.numpy_helper.from_array(scales, "scales")],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=8)
        session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        (ours,) = backend.prepare(model).run([x])
        np.testing.assert_array_equal(ours, session.run(None, {"x": x})[0], str(scale))


def test_resizing_any_axes() -> None:
    """More axes than the library resizes at once, N and C among them."""
    y = run("Resize", [X, None, np.array([2, 1, 2, 1], np.float32)], mode="nearest")
    np.testing.assert_array_equal(y, X.repeat(2, 0).repeat(2, 2))
    y = run("Resize", [X, None, np.full(4, 2, np.float32)], mode="nearest")
    np.testing.assert_array_equal(y, X.repeat(2, 0).repeat(2, 1).repeat(2, 2).repeat(2, 3))


def test_power_pooling_is_rounded_up() -> None:
    x = normal(1, 2, 7)
    y = run("LpPool", [x], kernel_shape=[3], strides=[2], pads=[1, 0], p=3, ceil_mode=1)
    padded = np.pad(np.abs(x), ((0, 0), (0, 0), (1, 2))) ** 3
    expected = np.stack([padded[..., start : start + 3].sum(-1) for start in (0, 2, 4, 6)], -1) ** (1 / 3)
    np.testing.assert_allclose(y, expected, rtol=1e-5)
    np.testing.assert_allclose(
        run("GlobalLpPool", [X], p=2)[..., 0, 0], np.sqrt((X**2).sum((2, 3))), rtol=1e-5
    )


def test_training_statistics_of_batch_normalization() -> None:
    """ONNX averages the variance that divides by the number of elements."""
    scale, bias, mean, variance = np.abs(normal(4, 3)) + 0.5
    y, new_mean, new_variance = run(
        "BatchNormalization", [X, scale, bias, mean, variance], 3, training_mode=1, momentum=0.8
    )
    own = X.mean((0, 2, 3)), X.var((0, 2, 3))
    np.testing.assert_allclose(new_mean, 0.8 * mean + 0.2 * own[0], rtol=1e-5)
    np.testing.assert_allclose(new_variance, 0.8 * variance + 0.2 * own[1], rtol=1e-5)
    expected = (X - own[0].reshape(3, 1, 1)) / np.sqrt(own[1].reshape(3, 1, 1) + 1e-5)
    expected = expected * scale.reshape(3, 1, 1) + bias.reshape(3, 1, 1)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_dropout_in_training() -> None:
    x = np.ones((50, 40), np.float32)
    inputs = [x, np.array(0.25, np.float32), np.array(True)]
    y, mask = run("Dropout", inputs, 2, seed=7)
    again, _ = run("Dropout", inputs, 2, seed=7)
    other, _ = run("Dropout", inputs, 2, seed=8)
    np.testing.assert_array_equal(y, again)
    assert (y != other).any()
    np.testing.assert_allclose(y, mask / 0.75, rtol=1e-6)
    assert abs(mask.mean() - 0.75) < 0.05


def test_running_sums_and_columns() -> None:
    total = run("CumSum", [X, np.array(2)], exclusive=1, reverse=1)
    np.testing.assert_allclose(total, X[:, :, ::-1].cumsum(2)[:, :, ::-1] - X, rtol=1e-4, atol=1e-5)
    ones = np.ones((1, 2 * 9, 9), np.float32)
    image = run("Col2Im", [ones, np.array([5, 5]), np.array([3, 3])])
    np.testing.assert_array_equal(image[0, 1, 2], [3, 6, 9, 6, 3])


def test_sequences_are_lists() -> None:
    a, b, c = normal(2), normal(3), normal(1)
    grown = run("SequenceInsert", [[a, b], c, np.array(-1)])
    assert [len(x) for x in grown] == [2, 1, 3]
    np.testing.assert_array_equal(run("SequenceAt", [grown, np.array(1)]), c)
    assert [len(x) for x in run("SequenceErase", [grown])] == [2, 1]
    assert run("SequenceLength", [grown]) == 3
    np.testing.assert_array_equal(run("ConcatFromSequence", [grown], axis=0), np.concatenate([a, c, b]))
    with pytest.raises(InvalidArgument, match="position 4 is outside of a sequence of 3"):
        run("SequenceAt", [grown, np.array(4)])
    with pytest.raises(InvalidArgument, match="position 3 is outside of a sequence of 3"):
        run("SequenceErase", [grown, np.array(3)])


# ---- numbers


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint32])
def test_integers_are_exact(dtype: Any) -> None:
    info = np.iinfo(dtype)
    x = np.array([info.max, info.min, 7, 100, 3], dtype)
    y = np.array([3, 7, 2, 9, 100], dtype)
    with np.errstate(over="ignore"):
        for operator, expected in (("Add", x + y), ("Sub", x - y), ("Mul", x * y), ("Max", np.maximum(x, y))):
            np.testing.assert_array_equal(run(operator, [x, y]), expected)
    np.testing.assert_array_equal(run("Mod", [x, y]), x % y)
    quotients = [int(a) // int(b) if a >= 0 else -(-int(a) // int(b)) for a, b in zip(x, y, strict=True)]
    np.testing.assert_array_equal(run("Div", [x, y]), np.array(quotients).astype(dtype))
    np.testing.assert_array_equal(run("Less", [x, y]), x < y)


def test_a_division_by_zero_does_not_end_the_program() -> None:
    x, y = np.array([5, -5, 0]), np.array([0, 0, 0])
    np.testing.assert_array_equal(run("Div", [x, y]), [0, 0, 0])
    np.testing.assert_array_equal(run("Mod", [x, y]), [0, 0, 0])


def test_numbers_without_axes() -> None:
    a, b = np.array(2.5, np.float32), np.array(-1.5, np.float32)
    for operator, expected in (("Add", 1.0), ("Max", 2.5), ("Pow", 2.5**-1.5)):
        y = run(operator, [a, b])
        assert y.shape == ()
        np.testing.assert_allclose(y, expected, rtol=1e-6)
    for operator in ("Relu", "Sigmoid", "Gelu", "Exp", "Floor"):
        assert run(operator, [a]).shape == ()


# ---- what is refused or wrong


def test_refusals_and_errors_name_the_reason() -> None:
    with pytest.raises(NotSupported, match=r"uint64 from 2\^63 on"):
        run("Less", [np.array([2**63], np.uint64), np.array([1], np.uint64)])
    with pytest.raises(NotSupported, match=r"beyond 2\^53"):
        run("ReduceSum", [np.array([2**60, 1])])
    with pytest.raises(NotSupported, match="text is not covered"):
        run("Less", [np.array(["a"], object), np.array(["b"], object)])
    with pytest.raises(NotSupported, match="training in the form of versions before 14"):
        run("BatchNormalization", [X, *normal(4, 3)], version=6)
    with pytest.raises(NotSupported, match="mode 'quintic' is not covered"):
        run("GridSample", [X, normal(2, 3, 3, 2)], mode="quintic")
    with pytest.raises(InvalidArgument, match="indices from 0 to 5 are outside of an extent of 3"):
        run("Gather", [normal(3, 2), np.array([0, 5])])
    with pytest.raises(InvalidArgument, match="targets from -1 to 3 are not all among 3 classes"):
        run("NegativeLogLikelihoodLoss", [normal(2, 3), np.array([-1, 3])])
    with pytest.raises(InvalidArgument, match="2 axes of space take 4 numbers"):
        run("Conv", [normal(1, 1, 5, 5), normal(1, 1, 3, 3)], pads=[1, 1])
    with pytest.raises(InvalidArgument, match=r"Reshape .*cannot reshape"):
        run("Reshape", [X, np.array([7])])


@pytest.mark.parametrize("largest", [0, 1])
def test_the_first_of_equals_is_picked(largest: int) -> None:
    x = np.array([[3, 1, 3, 2, 1], [0, 0, 0, 5, 5]], np.float32)
    values, places = run("TopK", [x, np.array([3])], 2, axis=1, largest=largest)
    order = np.argsort(-x if largest else x, 1, kind="stable")[:, :3]
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, 1))


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
def test_scattered_elements_are_combined(reduction: str) -> None:
    rng = np.random.default_rng(1)
    data, updates = rng.standard_normal((4, 5)), rng.standard_normal((3, 5))
    indices = np.stack([rng.permutation(4)[:3] for _ in range(5)], 1)
    if reduction != "none":
        indices[2] = indices[0]  # places that are met twice
    combined = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}.get(reduction)
    expected = data.copy()
    for row, column in np.ndindex(3, 5):
        place, value = (indices[row, column], column), updates[row, column]
        expected[place] = value if combined is None else combined(expected[place], value)
    found = run("ScatterElements", [data, indices, updates], axis=0, reduction=reduction)
    np.testing.assert_allclose(found, expected)
    found = run("ScatterElements", [data, indices - 4, updates], axis=0, reduction=reduction)
    np.testing.assert_allclose(found, expected)


def test_what_cannot_be_picked_names_the_reason() -> None:
    x = normal(3, 4)
    with pytest.raises(InvalidArgument, match="k is 5, and the axis has 4 elements"):
        run("TopK", [x, np.array([5])], 2)
    with pytest.raises(InvalidArgument, match="outside of an extent of 3"):
        run("ScatterElements", [x, np.full((1, 4), 3), normal(1, 4)])
    with pytest.raises(InvalidArgument, match="outside of an extent of 4"):
        run("ScatterND", [x, np.array([[0, -5]]), normal(1)])
