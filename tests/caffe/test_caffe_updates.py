"""Stochastic gradient descent: learning rates and updates by hand, and LeNet's by PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

from caffe_nets import FIXED, as_leaves, lenet_in_torch, relative_error
from jitdnn.caffe import Solver, SolverParameter, load_solver, parse
from jitdnn.caffe.policies import LearningRate
from jitdnn.errors import InvalidArgument

# ---- learning rates


def rates(text: str, iterations: int) -> list[float]:
    rate = LearningRate(parse(text, SolverParameter))
    return [rate.at(iteration) for iteration in range(iterations)]


def test_fixed() -> None:
    assert rates('lr_policy: "fixed" base_lr: 0.25', 3) == [0.25] * 3


def test_step() -> None:
    found = rates('lr_policy: "step" base_lr: 0.1 gamma: 0.5 stepsize: 10', 26)
    assert [found[i] for i in (0, 9, 10, 19, 20, 25)] == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.025, 0.025])


def test_exp() -> None:
    assert rates('lr_policy: "exp" base_lr: 2 gamma: 0.5', 4) == [2, 1, 0.5, 0.25]


def test_inv() -> None:
    found = rates('lr_policy: "inv" base_lr: 0.01 gamma: 0.0001 power: 0.75', 10_001)
    # the first is what Caffe's own log of LeNet says at iteration 100; (1 + 1)^-0.75 = 0.5946035575
    assert f"{found[100]:g}" == "0.00992565"
    assert found[10_000] == pytest.approx(0.005946035575, rel=1e-9)


def test_multistep_takes_at_most_one_step_an_iteration() -> None:
    found = rates('lr_policy: "multistep" base_lr: 8 gamma: 0.5 stepvalue: 3 stepvalue: 3 stepvalue: 6', 8)
    assert found == [8, 8, 8, 4, 2, 2, 1, 1]


def test_poly() -> None:
    found = rates('lr_policy: "poly" base_lr: 0.01 power: 0.5 max_iter: 100', 101)
    assert [found[i] for i in (0, 75, 96, 100)] == pytest.approx([0.01, 0.005, 0.002, 0])
    beyond = LearningRate(parse('lr_policy: "poly" base_lr: 0.01 power: 0.5 max_iter: 100', SolverParameter))
    assert beyond.at(150) == 0


def test_sigmoid_rises() -> None:
    found = rates('lr_policy: "sigmoid" base_lr: 1 gamma: 0.1 stepsize: 50', 101)
    # 1 / (1 + e^5) = 0.0066928509
    assert [found[i] for i in (0, 50, 100)] == pytest.approx([0.0066928509, 0.5, 1 - 0.0066928509], rel=1e-7)
    assert rates('lr_policy: "sigmoid" base_lr: 1 gamma: 1000 stepsize: 5', 1) == [0]


def test_sigmoid_falls_where_gamma_is_negative() -> None:
    found = rates('lr_policy: "sigmoid" base_lr: 1 gamma: -0.1 stepsize: 50', 101)
    assert [found[i] for i in (0, 50, 100)] == pytest.approx([1 - 0.0066928509, 0.5, 0.0066928509], rel=1e-7)


def test_cosine() -> None:
    found = rates('lr_policy: "cosine" base_lr: 0.2 max_iter: 100', 101)
    # cos 60 degrees is 1/2
    assert [found[i] for i in (0, 50, 100)] == pytest.approx([0.2, 0.1, 0])
    third = LearningRate(parse('lr_policy: "cosine" base_lr: 0.2 max_iter: 90', SolverParameter)).at(30)
    assert third == pytest.approx(0.15)


@pytest.mark.parametrize(("iterations", "share"), [(100, 0.3), (40, 0.25), (7, 2 / 7)])
def test_one_cycle_is_that_of_pytorch(iterations: int, share: float) -> None:
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1)
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.4, total_steps=iterations, pct_start=share, cycle_momentum=False
    )
    wanted = []
    for _ in range(iterations):
        wanted.append(cycle.get_last_lr()[0])
        optimizer.step()
        cycle.step() if len(wanted) < iterations else None
    highest = round(share * iterations) - 1
    text = f'lr_policy: "onecycle" base_lr: 0.4 max_iter: {iterations} stepsize: {highest}'
    assert rates(text, iterations) == pytest.approx(wanted, rel=1e-12)
    # beyond the last iteration it stays
    rate = LearningRate(parse(text, SolverParameter))
    assert rate.at(iterations + 5) == pytest.approx(wanted[-1])


def test_warm_up() -> None:
    found = rates('lr_policy: "fixed" base_lr: 1 warmup_iter: 4', 6)
    assert found == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1])
    found = rates('lr_policy: "poly" power: 1 max_iter: 10 base_lr: 1 warmup_iter: 5 warmup_start_lr: 0.1', 8)
    assert found == pytest.approx([0.1, 0.18, 0.26, 0.34, 0.42, 0.5, 0.4, 0.3])
    steps = 'lr_policy: "multistep" gamma: 0.5 base_lr: 1 stepvalue: 2 stepvalue: 6 warmup_iter: 4'
    assert rates(steps, 8) == pytest.approx([0, 0.125, 0.25, 0.375, 0.5, 0.5, 0.25, 0.25])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("base_lr: 1", "lr_policy is not set: there are fixed"),
        ('base_lr: 1 lr_policy: "cosinus"', r"unknown lr_policy 'cosinus' \(line 1\)"),
        ('base_lr: 1 lr_policy: "cosine"', "needs max_iter"),
        ('base_lr: 1 lr_policy: "onecycle" max_iter: 9', "needs stepsize"),
        ('base_lr: 1 lr_policy: "onecycle" max_iter: 9 stepsize: 9', "from 1 to 8"),
        ('base_lr: 1 lr_policy: "onecycle" max_iter: 9 stepsize: 0', "from 1 to 8"),
        ('base_lr: 1 lr_policy: "fixed" warmup_iter: -1', "warmup_iter is -1"),
        ('base_lr: 1 lr_policy: "fixed" warmup_iter: 3 warmup_start_lr: 2', "start above base_lr"),
        ('lr_policy: "fixed"', "base_lr"),
        ('lr_policy: "fixed" base_lr: -1', "base_lr is -1"),
        ('lr_policy: "fixed" base_lr: nan', r"base_lr is nan \(line 1\)"),
        ('lr_policy: "fixed" base_lr: inf', "base_lr is inf"),
        ('base_lr: 1 lr_policy: "step"', "needs gamma and stepsize"),
        ('base_lr: 1 lr_policy: "step" gamma: 0.1 stepsize: 0', "stepsize is 0"),
        ('base_lr: 1 lr_policy: "inv" gamma: 1', "needs power"),
        ('base_lr: 1 lr_policy: "poly" power: 1', "needs max_iter"),
        ('base_lr: 1 lr_policy: "sigmoid" gamma: 0.1 stepsize: -1', "stepsize is -1"),
    ],
)
def test_policies_that_cannot_be(text: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        LearningRate(parse(text, SolverParameter))


# ---- updates by hand: the loss is w · x, so that its gradient is x


def linear(fields: str, x: list[float], w: list[float], layer: str = "") -> Solver:
    """A solver of a net whose loss is the product of its only weights, `w`, with `x`."""
    solver = load_solver(
        f"""
        net_param {{
          layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 1 dim: {len(x)} }} }} }}
          layer {{ name: "l" type: "InnerProduct" bottom: "x" top: "l" loss_weight: 1
                   inner_product_param {{ num_output: 1 bias_term: false }} {layer} }}
        }}
        max_iter: 10 snapshot_after_train: false
        {fields}
        """,
        dtype="f64",
    )
    solver.net.blobs["x"].data[...] = x
    solver.net.weights["l"][0].data[...] = w
    return solver


def weights_after(solver: Solver, steps: int) -> list[list[float]]:
    found = []
    for _ in range(steps):
        solver.step(1)
        found.append(solver.net.weights["l"][0].data[0].tolist())
    return found


def test_plain_descent() -> None:
    assert weights_after(linear(FIXED, [1, -2], [0, 0]), 2) == [
        pytest.approx([-0.1, 0.2]),
        pytest.approx([-0.2, 0.4]),
    ]


def test_momentum() -> None:
    """h = ½ h + 0.1: 0.1, 0.15, 0.175; w = −0.1, −0.25, −0.425."""
    found = weights_after(linear(FIXED + "momentum: 0.5", [1], [0]), 3)
    assert found == [pytest.approx([w]) for w in (-0.1, -0.25, -0.425)]


def test_the_rate_is_inside_of_the_momentum() -> None:
    """The rate falls to 0.01 at iteration 2: h = 0.1, 0.15, 0.085, 0.0525; outside, 0.0175 at once."""
    fields = 'lr_policy: "multistep" base_lr: 0.1 gamma: 0.1 stepvalue: 2 momentum: 0.5'
    found = weights_after(linear(fields, [1], [0]), 4)
    assert found == [pytest.approx([w]) for w in (-0.1, -0.25, -0.335, -0.3875)]


def test_weight_decay_l2() -> None:
    """g = 1 + 0.5 · 2 = 2, w = 1.8; g = 1.9, w = 1.61."""
    found = weights_after(linear(FIXED + "weight_decay: 0.5", [1], [2]), 2)
    assert found == [pytest.approx([1.8]), pytest.approx([1.61])]


def test_weight_decay_l1() -> None:
    """g = 1 ± 0.5, and without a sign at 0."""
    fields = FIXED + 'weight_decay: 0.5 regularization_type: "L1"'
    assert weights_after(linear(fields, [1, 1, 1], [2, -2, 0]), 1) == [pytest.approx([1.85, -2.05, -0.1])]


def test_multipliers_of_rate_and_decay() -> None:
    """lr = 0.1 · 3, λ = 0.5 · 4: g = 1 + 2 · 2 = 5, w = 2 − 1.5."""
    solver = linear(FIXED + "weight_decay: 0.5", [1], [2], "param { lr_mult: 3 decay_mult: 4 }")
    assert weights_after(solver, 1) == [pytest.approx([0.5])]


def test_clipping() -> None:
    """The gradient (3, 4) has the norm 5: clipped to 2 it is (1.2, 1.6), and clipped to 6 itself."""
    assert weights_after(linear(FIXED + "clip_gradients: 2", [3, 4], [0, 0]), 1) == [
        pytest.approx([-0.12, -0.16])
    ]
    assert weights_after(linear(FIXED + "clip_gradients: 6", [3, 4], [0, 0]), 1) == [
        pytest.approx([-0.3, -0.4])
    ]


def test_clipping_sees_the_sum_before_it_is_divided_and_decayed() -> None:
    """Two batches sum to (6, 8), norm 10; clipped to 5 (3, 4), halved (1.5, 2), plus ½ · (2, 2) (2.5, 3)."""
    fields = FIXED + "iter_size: 2 clip_gradients: 5 weight_decay: 0.5"
    assert weights_after(linear(fields, [3, 4], [2, 2]), 1) == [pytest.approx([1.75, 1.7])]


def test_the_norm_for_clipping_is_that_of_all_weights() -> None:
    text = """
        net_param {
          layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 1 } } }
          layer { name: "l" type: "InnerProduct" bottom: "x" top: "l" loss_weight: 1
                  inner_product_param { num_output: 1 } }
        }
        snapshot_after_train: false clip_gradients: 1
    """
    solver = load_solver(text + FIXED, dtype="f64")
    solver.net.blobs["x"].data[...] = 0.75
    solver.step(1)
    # (0.75, 1) has the norm 1.25
    assert [float(blob.data.item()) for blob in solver.net.weights["l"]] == pytest.approx([-0.06, -0.08])


def test_iter_size_averages() -> None:
    solver = linear(FIXED + "iter_size: 3", [1], [0])
    assert weights_after(solver, 1) == [pytest.approx([-0.1])]


# ---- LeNet against PyTorch


def test_five_updates_of_lenet_are_pytorchs() -> None:
    """Rates, momentum, decay and multipliers together; the rate falls after each update."""
    torch = pytest.importorskip("torch")
    solver = load_solver(
        """net: "package:models/lenet.prototxt" base_lr: 0.01 lr_policy: "exp" gamma: 0.5 momentum: 0.9
           weight_decay: 0.0005 max_iter: 5 snapshot_after_train: false""",
        seed=1,
        dtype="f64",  # in single precision two maxima of a pooling may be so near that theirs is another one
    )
    weights = as_leaves(torch, solver.net)
    start = {name: leaf.detach().numpy().copy() for name, leaf in weights.items()}
    history = {name: torch.zeros_like(leaf) for name, leaf in weights.items()}
    for iteration in range(5):
        solver.step(1)
        blobs = solver.net.blobs
        labels = torch.tensor(blobs["label"].data.astype(np.int64))
        loss = lenet_in_torch(torch, weights, torch.tensor(blobs["data"].data), labels)
        gradients = torch.autograd.grad(loss, list(weights.values()))
        with torch.no_grad():
            for (name, leaf), gradient in zip(weights.items(), gradients, strict=True):
                rate = 0.01 * 0.5**iteration * (2 if name.endswith("/1") else 1)
                history[name] = 0.9 * history[name] + rate * (gradient + 0.0005 * leaf)
                leaf -= history[name]
    for parameter in solver.net.parameters:
        name = parameter.name
        moved = parameter.blob.data - start[name]
        assert relative_error(moved, weights[name].detach().numpy() - start[name]) < 1e-9, name
        assert relative_error(solver.method.history[name], history[name].numpy()) < 1e-9, name
