"""The float64 references of the other operations against PyTorch and NumPy; every gradient by differences."""

from __future__ import annotations

import numpy as np
import pytest

from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.problems import Activation, AddTensor, MatMul, Softmax, parse
from jitdnn.problems.activation import FUNCTIONS
from torch_references import close, dot, random_inputs, tensors

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("algorithm", ["fast", "accurate", "log"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((3, 7), (1,)), ((2, 3, 4, 5), (1,)), ((2, 3, 4, 5), (1, 2, 3)), ((5,), (0,)), ((2, 3), (0,)),
        ((2, 3, 4), (0, 2)), ((0, 3), (1,)), ((3, 1), (1,)),
    ],
)  # fmt: skip
def test_softmax_is_torchs(shape: tuple[int, ...], axis: tuple[int, ...], algorithm: str) -> None:
    forward = Softmax.make("fwd", shape, axis, algorithm, "f64")
    backward = Softmax.make("bwd", shape, axis, algorithm, "f64")
    (x,) = random_inputs(forward)
    (tx,) = tensors(x)
    total = torch.logsumexp(tx, axis, keepdim=True) if tx.numel() else tx.sum(axis, keepdim=True)
    ty = tx - total if algorithm == "log" else torch.exp(tx - total)
    y = forward.reference(x)
    close(y, ty)
    dy = np.random.default_rng(1).standard_normal(shape)
    (dx,) = torch.autograd.grad(ty, tx, torch.tensor(dy))
    close(backward.reference(dy, y), dx)


def test_softmax_of_large_numbers() -> None:
    x = np.array([[1000.0, 1000, -1000]])
    assert Softmax.make("fwd", (1, 3), dtype="f64").reference(x).tolist() == [[0.5, 0.5, 0]]
    log = Softmax.make("fwd", (1, 3), algorithm="log", dtype="f64").reference(x)
    np.testing.assert_allclose(log, [[-np.log(2), -np.log(2), -2000 - np.log(2)]], rtol=1e-15)


TORCH_ACTIVATIONS = {
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "selu": torch.selu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "mish": torch.nn.functional.mish,
    "hard_sigmoid": torch.nn.functional.hardsigmoid,
    "hard_swish": torch.nn.functional.hardswish,
    "identity": lambda x: x * 1.0,
    "clipped_relu": torch.nn.functional.relu6,
    "leaky_relu": torch.nn.functional.leaky_relu,
    "elu": torch.nn.functional.elu,
    "swish": torch.nn.functional.silu,
    "softplus": torch.nn.functional.softplus,
}


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
def test_activations_are_torchs(function: str) -> None:
    x = np.concatenate([np.linspace(-30, 30, 481), [-700.0, 800.0, 1e-300, -1e-9]])
    (tx,) = tensors(x)
    ty = TORCH_ACTIVATIONS[function](tx)
    y = Activation.make("fwd", function, x.shape, dtype="f64").reference(x)
    # PyTorch loses the digits of lower tails, and takes softplus for x beyond 20
    # and for hard_sigmoid's gradient a sixth in single precision
    atol = {"softplus": 3e-9, "hard_sigmoid": 3e-8}.get(function, 1e-14)
    np.testing.assert_allclose(y, ty.detach().numpy(), rtol=1e-13, atol=atol)
    dy = np.random.default_rng(0).standard_normal(x.shape)
    (dx,) = torch.autograd.grad(ty, tx, torch.tensor(dy))
    for saved, values in (("x", x), ("y", y)):
        if saved == "y" and FUNCTIONS[function].derivative_from_y is None:
            continue
        ours = Activation.make("bwd", function, x.shape, saved=saved, dtype="f64").reference(dy, values)
        np.testing.assert_allclose(ours, dx.numpy(), rtol=1e-9, atol=atol)


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
def test_derivatives_of_activations_are_their_slopes(function: str) -> None:
    definition = FUNCTIONS[function]
    x = np.random.default_rng(0).uniform(-4, 4, 200)
    x = x[(np.abs(x) > 1e-3) & (np.abs(np.abs(x) - 3) > 1e-3)]  # away from the corners
    step = 1e-5
    slope = (definition.forward(x + step) - definition.forward(x - step)) / (2 * step)
    np.testing.assert_allclose(definition.derivative(x), slope, rtol=1e-6, atol=1e-9)
    if definition.derivative_from_y is not None:
        np.testing.assert_allclose(
            definition.derivative_from_y(definition.forward(x)),
            definition.derivative(x),
            rtol=1e-9,
            atol=1e-14,
        )


def test_activations_at_the_ends() -> None:
    x = np.array([-np.inf, -1e308, 0.0, 1e308, np.inf])
    assert FUNCTIONS["sigmoid"].forward(x).tolist() == [0, 0, 0.5, 1, 1]
    assert FUNCTIONS["relu"].forward(x).tolist() == [0, 0, 0, 1e308, np.inf]
    assert FUNCTIONS["tanh"].forward(x).tolist() == [-1, -1, 0, 1, 1]
    for function in FUNCTIONS.values():
        with np.errstate(all="ignore"):
            assert np.isnan(function.forward(np.array([np.nan]))).all()


@pytest.mark.parametrize(
    ("a", "b"),
    [((2, 3), (3, 4)), ((1, 1), (1, 1)), ((5, 2, 3), (3, 4)), ((5, 1, 2, 3), (6, 3, 4)), ((2, 0), (0, 4)),
     ((0, 2, 3), (0, 3, 4))],
)  # fmt: skip
def test_matmul_is_numpys(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    problem = MatMul.make(a, b, "f64")
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal(a), rng.standard_normal(b)
    inputs = [
        np.broadcast_to(m, o.descriptor.shape) for m, o in zip((left, right), problem.inputs, strict=True)
    ]
    close(problem.reference(*inputs), left @ right)


def test_addition_broadcasts() -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.array([10.0, 20, 30])
    problem = AddTensor.make((2, 3), (3,), "f64")
    expected = [[10, 21, 32], [13, 24, 35]]
    assert problem.reference(a, np.broadcast_to(b, (2, 3))).tolist() == expected
    copied = AddTensor.make((2, 3), dtype="f64").reference(a)
    assert copied.tolist() == a.tolist()
    assert not np.shares_memory(copied, a)


# gradients by differences: directions of each input of each differentiable forward problem

DIFFERENTIABLE = [
    ("conv_fwd n2 c4 h5 w4 k6 r3 s2 stride2 pad1:0 dil1x2 g2 f64", ["conv_bwd_data", "conv_bwd_filter"]),
    ("pool_fwd max n2 c3 h7 w6 window3 stride2 pad1 ceil f64", ["pool_bwd"]),
    ("pool_fwd avg exclude_pad n2 c3 h7 w6 window3 stride2 pad1 ceil f64", ["pool_bwd"]),
    ("softmax_fwd accurate shape2x5x3 axis1 f64", ["softmax_bwd"]),
    ("softmax_fwd log shape2x5x3 axis1x2 f64", ["softmax_bwd"]),
    ("activation_fwd tanh shape3x7 f64", ["activation_bwd"]),
    ("activation_fwd sigmoid shape3x7 f64", ["activation_bwd"]),
]


@pytest.mark.parametrize(("text", "kinds"), DIFFERENTIABLE)
def test_gradients_are_differences(text: str, kinds: list[str]) -> None:
    forward = parse(text)
    inputs = random_inputs(forward)
    rng = np.random.default_rng(1)
    dy = rng.standard_normal(forward.output.shape)
    for which, kind in enumerate(kinds):
        backward = parse(text.replace(text.split()[0], kind, 1))
        known = {"dy": dy, "y": forward.reference(*inputs)}
        known |= {operand.name: array for operand, array in zip(forward.inputs, inputs, strict=True)}
        gradient = backward.reference(*(known[operand.name] for operand in backward.inputs))
        direction = rng.standard_normal(inputs[which].shape)
        step = 1e-6
        ends = []
        for sign in (1, -1):
            moved = list(inputs)
            moved[which] = inputs[which] + sign * step * direction
            ends.append(dot(forward.reference(*moved), dy))
        assert dot(gradient, direction) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6)


def test_references_refuse_other_shapes() -> None:
    problem = parse("conv_fwd n1 c2 w5 k3 s3 f64")
    with pytest.raises(InvalidArgument, match=r"takes 2 inputs \(x, w\), got 1"):
        problem.reference(np.zeros((1, 2, 5)))
    with pytest.raises(InvalidShape, match=r"w has shape \(3, 2, 4\), the problem says \(3, 2, 3\)"):
        problem.reference(np.zeros((1, 2, 5)), np.zeros((3, 2, 4)))


@pytest.mark.parametrize(
    "text",
    [
        "conv_fwd n1 c2 w5 k3 s3 f64",
        "conv_bwd_data n1 c2 w5 k3 s3 f64",
        "conv_bwd_bias n2 k3 q4",
        "matmul m2 k3 n4",
        "pool_fwd avg n1 c2 w6 window3",
        "pool_fwd max n1 c2 w6 window3",
        "softmax_fwd accurate shape2x3 axis1",
        "softmax_fwd log shape2x3 axis1",
        "softmax_bwd accurate shape2x3 axis1",
        "activation_fwd tanh shape5",
        "activation_bwd sigmoid shape5",
        "add shape2x3",
    ],
)
def test_infinities_take_part_without_a_warning(text: str) -> None:
    problem = parse(text)
    inputs = [np.zeros(operand.descriptor.shape) for operand in problem.inputs]
    for array in inputs:
        array.flat[0], array.flat[1] = np.inf, -np.inf
    problem.reference(*inputs)  # warnings are errors
    assert [array.flat[0] for array in inputs] == [np.inf] * len(inputs)
