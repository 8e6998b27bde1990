"""The six types of solvers: their updates in float64, PyTorch's where they coincide, their fields, exact resume."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caffe_nets import FIXED, Array
from jitdnn.caffe import Solver, load_solver, snapshot
from jitdnn.caffe.update_rules import RULES
from jitdnn.errors import InvalidArgument, NotSupported, SnapshotError

# the fields that each type is tested with
FIELDS = {
    "SGD": "momentum: 0.9",
    "Nesterov": "momentum: 0.9",
    "AdaGrad": "delta: 0.01",
    "RMSProp": "delta: 0.01 rms_decay: 0.75",
    "AdaDelta": "momentum: 0.75 delta: 0.01",
    "Adam": "momentum: 0.75 momentum2: 0.5 delta: 0.01",
}


def solver_of(
    kind: str, fields: str, size: int, dtype: str = "f64", layer: str = "", **options: Any
) -> Solver:
    """A solver of a net whose loss is the product of its only weights with what stands in `x`."""
    return load_solver(
        f"""
        net_param {{
          layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 1 dim: {size} }} }} }}
          layer {{ name: "l" type: "InnerProduct" bottom: "x" top: "l" loss_weight: 1
                   inner_product_param {{ num_output: 1 bias_term: false }} {layer} }}
        }}
        max_iter: 100 snapshot_after_train: false type: "{kind}" {fields}
        """,
        dtype=dtype,
        **options,
    )


def trained(solver: Solver, start: Array, gradients: list[Array]) -> list[Array]:
    """The weights after each step, whose gradients are given."""
    weights = solver.net.weights["l"][0].data
    weights[...] = start
    found = []
    for gradient in gradients:
        solver.net.blobs["x"].data[...] = gradient
        solver.step(1)
        found.append(weights[0].copy())
    return found


def reference(
    kind: str, solver: Any, start: Array, gradients: list[Array], rates: list[float]
) -> list[Array]:
    """Caffe's formulas in float64, without decay."""
    w, first, second = start.astype(np.float64), np.zeros(start.shape), np.zeros(start.shape)
    mu, delta, found = solver.momentum, solver.delta, []
    for t, (g, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        if kind == "SGD":
            first = mu * first + rate * g
            d = first
        elif kind == "Nesterov":
            before, first = first, mu * first + rate * g
            d = (1 + mu) * first - mu * before
        elif kind == "AdaGrad":
            first = first + g**2
            d = rate * g / (np.sqrt(first) + delta)
        elif kind == "RMSProp":
            first = solver.rms_decay * first + (1 - solver.rms_decay) * g**2
            d = rate * g / (np.sqrt(first) + delta)
        elif kind == "AdaDelta":
            first = mu * first + (1 - mu) * g**2
            step = g * np.sqrt((second + delta) / (first + delta))
            second = mu * second + (1 - mu) * step**2
            d = rate * step
        else:
            beta = solver.momentum2
            first = mu * first + (1 - mu) * g
            second = beta * second + (1 - beta) * g**2
            d = rate * math.sqrt(1 - beta**t) / (1 - mu**t) * first / (np.sqrt(second) + delta)
        w = w - d
        found.append(w)
    return found


def numbers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("f64", 1e-12), ("f32", 2e-6)])
def test_updates_are_caffes(kind: str, dtype: str, tolerance: float) -> None:
    """Rates that change, a size that no vector divides, and gradients that are 0."""
    gradients = list(numbers(1, 6, 1, 37))
    gradients[0][0, 3] = gradients[3][0, 3] = 0
    start = numbers(2, 1, 37)
    solver = solver_of(kind, FIELDS[kind] + ' lr_policy: "exp" base_lr: 0.1 gamma: 0.75', 37, dtype)
    found = trained(solver, start, gradients)
    expected = reference(kind, solver.parameter, start, gradients, [0.1 * 0.75**i for i in range(6)])
    np.testing.assert_allclose(found, np.reshape(expected, (6, 37)), rtol=tolerance, atol=tolerance)


@settings(max_examples=20, deadline=None)
@given(
    kind=st.sampled_from(list(FIELDS)),
    decay=st.floats(0, 1),
    multiplier=st.floats(0, 3),
    clip=st.sampled_from([-1.0, 0.5, 100.0]),
    batches=st.integers(1, 3),
    is_l2=st.booleans(),
)
def test_clipping_iter_size_decay_and_multipliers_come_before_the_rule(
    kind: str, decay: float, multiplier: float, clip: float, batches: int, is_l2: bool
) -> None:
    start, gradients = numbers(3, 1, 5), list(numbers(4, 2, 1, 5))
    solver = solver_of(
        kind,
        f'{FIELDS[kind]} {FIXED} weight_decay: {decay!r} clip_gradients: {clip} iter_size: {batches} '
        f'regularization_type: "{"L2" if is_l2 else "L1"}"',
        5,
        layer=f"param {{ lr_mult: {multiplier!r} decay_mult: 2 }}",
    )  # fmt: skip
    found = trained(solver, start, gradients)
    if multiplier == 0:  # then there is no gradient, only decay, and nothing moves
        np.testing.assert_array_equal(found[-1], start[0])
        return
    w, given_so_far = start, []
    for index, gradient in enumerate(gradients):
        g = gradient * batches
        norm = np.linalg.norm(g)
        g = (g * clip / norm if 0 <= clip < norm else g) / batches
        given_so_far.append(g + 2 * decay * (w if is_l2 else np.sign(w)))
        w = reference(kind, solver.parameter, start, given_so_far, [0.1 * multiplier] * (index + 1))[-1]
        np.testing.assert_allclose(found[index], w[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "fields", "optimizer", "options"),
    [
        ("SGD", "momentum: 0.9", "SGD", {"momentum": 0.9}),
        ("Nesterov", "momentum: 0.9", "SGD", {"momentum": 0.9, "nesterov": True}),
        ("AdaGrad", "delta: 1e-3", "Adagrad", {"eps": 1e-3}),
        ("RMSProp", "delta: 1e-3 rms_decay: 0.9", "RMSprop", {"eps": 1e-3, "alpha": 0.9}),
        ("AdaDelta", "momentum: 0.9 delta: 1e-3", "Adadelta", {"eps": 1e-3, "rho": 0.9}),
        # PyTorch's epsilon stands behind the correction of the bias: they coincide where it is 0
        ("Adam", "momentum: 0.9 delta: 0", "Adam", {"eps": 0.0, "betas": (0.9, 0.999)}),
    ],
)  # fmt: skip
def test_updates_are_pytorchs(kind: str, fields: str, optimizer: str, options: dict[str, Any]) -> None:
    """At one rate, which is inside of Caffe's momentum and outside of PyTorch's, with decay."""
    torch = pytest.importorskip("torch")
    start, gradients = numbers(5, 1, 21), list(numbers(6, 8, 1, 21))
    solver = solver_of(kind, f"{fields} {FIXED} weight_decay: 0.01", 21)
    found = trained(solver, start, gradients)
    leaf = torch.tensor(start[0].copy(), requires_grad=True)
    other = getattr(torch.optim, optimizer)([leaf], lr=0.1, weight_decay=0.01, **options)
    for gradient, w in zip(gradients, found, strict=True):
        leaf.grad = torch.tensor(gradient[0])
        other.step()
        np.testing.assert_allclose(w, leaf.detach().numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", FIELDS)
def test_kept_updates_are_what_the_weights_lost(kind: str) -> None:
    solver = solver_of(kind, FIELDS[kind] + " snapshot_diff: true " + FIXED, 37)
    start, gradients = numbers(7, 1, 37), list(numbers(8, 2, 1, 37))
    before, after = trained(solver, start, gradients)
    np.testing.assert_allclose(solver.net.weights["l"][0].diff[0], before - after, rtol=1e-9, atol=1e-12)


# ---- histories


@pytest.mark.parametrize(("kind", "count"), [("SGD", 1), ("AdaGrad", 1), ("AdaDelta", 2), ("Adam", 2)])
def test_histories_stand_in_the_order_of_caffes_files(kind: str, count: int) -> None:
    solver = load_solver(
        f'net: "package:models/lenet.prototxt" type: "{kind}" snapshot_after_train: false ' + FIXED
    )
    names = [parameter.name for parameter in solver.net.parameters]
    second = {"AdaDelta": "u", "Adam": "v"}.get(kind)
    assert list(solver.method.history) == names + [f"{name}/{second}" for name in names if second]
    assert sum(a.nbytes for a in solver.method.history.values()) == 4 * count * solver.net.weight_count


def test_a_limit_on_memory_counts_every_history() -> None:
    pytest.importorskip("scipy")
    peaks = []
    for kind in ("SGD", "Adam"):
        solver = solver_of(kind, FIXED, 1000, "f32", memory_limit="least")
        assert solver.net.memory_plan is not None
        peaks.append(solver.net.memory_plan.peak)
        weights = solver.net.weight_count
    assert peaks[1] - peaks[0] == 4 * weights


NET = """
  net_param {{
    layer {{ name: "d" type: "Data" top: "data" top: "label" data_param {{ source: "{source}" batch_size: 3 }} }}
    layer {{ name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
             inner_product_param {{ num_output: 3 weight_filler {{ type: "xavier" }} }} }}
    layer {{ name: "drop" type: "Dropout" bottom: "ip" top: "ip" }}
    layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }}
  }}
  lr_policy: "exp" gamma: 0.9 base_lr: 0.05 weight_decay: 0.01 max_iter: 9 snapshot: 4 snapshot_diff: true
  snapshot_prefix: "{folder}/run"
"""


@pytest.fixture
def text(tmp_path: Path) -> str:
    random = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", data=random.standard_normal((7, 1, 3, 5)), label=random.integers(0, 3, 7))
    return NET.format(source=tmp_path / "d.npz", folder=tmp_path)


@pytest.mark.parametrize("kind", FIELDS)
def test_resume_is_exact(kind: str, text: str, tmp_path: Path) -> None:
    text += f' type: "{kind}" {FIELDS[kind]}'
    through = load_solver(text, seed=1)
    through.solve()
    again = load_solver(text, seed=2)
    again.solve(tmp_path / "run_iter_4.jdsnap")
    assert again.iteration == 9
    for parameter, other in zip(through.net.parameters, again.net.parameters, strict=True):
        np.testing.assert_array_equal(parameter.blob.data, other.blob.data)
    for name, history in through.method.history.items():
        assert history.any()
        np.testing.assert_array_equal(history, again.method.history[name])


def test_snapshots_with_updates_resume_and_give_weights(text: str, tmp_path: Path) -> None:
    """snapshot_diff: the last updates are in the file, and in the way of nobody."""
    solver = load_solver(text + ' type: "Adam" momentum: 0.9', seed=1)
    solver.step(2)
    path = solver.snapshot()
    _, arrays = snapshot.read(path)
    for parameter in solver.net.parameters:
        np.testing.assert_array_equal(arrays[f"diff/{parameter.name}"], parameter.blob.diff)
        assert parameter.blob.diff.any()
    without = load_solver(text.replace("snapshot_diff: true", "") + ' type: "Adam" momentum: 0.9')
    without.restore(path)
    assert without.iteration == 2
    assert without.net.load_weights(path) == ["ip"]
    with pytest.raises(SnapshotError, match="of type Adam, this one is AdaGrad"):
        load_solver(text + ' type: "AdaGrad"').restore(path)


# ---- fields


@pytest.mark.parametrize(
    ("fields", "kind", "reason"),
    [
        ('type: "AdaGrad"\nmomentum: 0.9', InvalidArgument, r"momentum is 0.9 \(line 2\): type 'AdaGrad' has none"),
        ('type: "RMSProp"\nmomentum: 0.9', InvalidArgument, r"momentum is 0.9 \(line 2\): type 'RMSProp' has none"),
        ('type: "RMSProp"\n\nrms_decay: 1', InvalidArgument, r"rms_decay is 1 \(line 3\).*less than 1"),
        ('type: "RMSProp" rms_decay: -1', InvalidArgument, r"rms_decay is -1 \(line 1\).*at least 0"),
        ('type: "AdaGrad" delta: -1', InvalidArgument, r"delta is -1 \(line 1\)"),
        ('type: "AdaDelta" momentum: 1.5', InvalidArgument, r"momentum is 1.5 \(line 1\).*less than 1"),
        ('type: "Adam" momentum: 1', InvalidArgument, r"momentum is 1 \(line 1\)"),
        ('type: "Adam" momentum2: 1', InvalidArgument, r"momentum2 is 1 \(line 1\)"),
        ('type: "Nesterov" momentum: -1', InvalidArgument, r"momentum is -1 \(line 1\)"),
        ('regularization_type: "L3"', InvalidArgument, r"'L3' \(line 1\): there are L1, L2"),
        ('type: "ADAM"', NotSupported, r"'ADAM' \(line 1\): there are SGD, .*; did you mean 'Adam'\?"),
        ('type: "Lion"', NotSupported, "there are SGD, Nesterov, AdaGrad, RMSProp, AdaDelta, Adam$"),
    ],
)  # fmt: skip
def test_fields_that_cannot_be(fields: str, kind: type[Exception], reason: str) -> None:
    net = ' net_param { input: "x" input_shape { dim: 1 } } snapshot_after_train: false '
    with pytest.raises(kind, match=reason):
        load_solver(fields + net + FIXED)


def test_old_names_of_the_types() -> None:
    net = ' net_param { input: "x" input_shape { dim: 1 } } snapshot_after_train: false '
    for old, new in zip(("SGD", "NESTEROV", "ADAGRAD", "RMSPROP", "ADADELTA", "ADAM"), RULES, strict=True):
        assert load_solver(f"solver_type: {old}" + net + FIXED).parameter.type == new
