"""CTC loss and its gradient on GPUs: every kind, type and order, long targets, and numbers that are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings

import jitdnn as jd
from cases import ARRANGEMENTS, AnyArray, arranged, random_values
from examples import examples
from harness import check
from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.gpu.ctc.algorithm import CtcRecursion
from jitdnn.problems import CtcLoss, Problem, parse
from jitdnn.rtcg.expression import trace
from jitdnn.tensor import numpy_dtype
from strategies import ctc_losses

DIRECTIONS = ("fwd", "bwd")
SIZES = [
    "t1 n1 a1 s0",
    "t1 n1 a2 s1",
    "t7 n3 a5 s3",
    "t40 n2 a300 s31",
    "t40 n2 a17 s32",
    "t3 n2 a4 s6",  # too short for many
    "t0 n2 a3 s2",
    "t5 n0 a3 s2",
    "t5 n2 a3 s0",
]
KINDS = [
    "logits blank3",
    "probs zero_infinity",
    "logits none labels32 inlen32 outlen32",
    "sum concatenated9",
    "probs none concatenated9 zero_infinity blank5",
]


def ctc(words: str, direction: str) -> Problem:
    return parse(f"ctc_loss_{direction} {words}")


def inputs_for(problem: Problem) -> list[AnyArray]:
    """Random sources; probabilities are such."""
    assert isinstance(problem, CtcLoss)
    rng = np.random.default_rng(0)
    values = {o.name: random_values(rng, o) for o in problem.sources}
    if problem.inputs_are != "logits" and problem.x.size:
        powers = np.exp(values["x"].astype(np.float64))
        x = powers / powers.sum(axis=2, keepdims=True)
        values["x"] = (np.log(x) if problem.inputs_are == "log_probs" else x).astype(
            numpy_dtype(problem.dtype)
        )
    values["target_lengths"].flat[:1] = problem.longest
    values["input_lengths"].flat[:1] = problem.x.shape[0]
    return list(values.values())


def check_ctc(problem: Problem, device: Any, **options: Any) -> None:
    assert check(problem, device, inputs=inputs_for(problem), **options) == {"recursion"}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("words", SIZES)
def test_sizes(words: str, direction: str, device: Any) -> None:
    check_ctc(ctc("none " + words, direction), device)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("words", KINDS)
def test_kinds(words: str, direction: str, device: Any) -> None:
    check_ctc(ctc(f"t14 n4 a7 s4 {words}", direction), device)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_types(dtype: str, direction: str, device: Any) -> None:
    check_ctc(ctc(f"logits t14 n3 a20 s4 zero_infinity {dtype}", direction), device)


@pytest.mark.parametrize(
    "arrangement", [name for name in ARRANGEMENTS if name not in ("repeated", "overlapping")]
)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_orders_in_memory(direction: str, arrangement: str, device: Any) -> None:
    check_ctc(arranged(ctc("logits none t9 n3 a18 s4", direction), arrangement), device)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_several_labels_of_a_thread(direction: str, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What long targets take, with threads few enough that short ones take it: 4 labels each, and 16."""
    for most, words in ((32, "t150 n2 a9 s66"), (32, "t130 n1 a3 s40")):
        monkeypatch.setattr("jitdnn.kernels.gpu.ctc.algorithm._ONE_EACH", most // 2)
        check_ctc(ctc(f"logits none {words}", direction), device, scales=((1.0, 0.0),))
    monkeypatch.setattr("jitdnn.kernels.gpu.ctc.algorithm._ONE_EACH", 4)
    monkeypatch.setattr("jitdnn.kernels.gpu.ctc.algorithm._MOST_THREADS", 4)
    monkeypatch.setattr("jitdnn.kernels.gpu.ctc.algorithm._JOINT", 8)
    check_ctc(ctc("logits none t130 n2 a5 s50", direction), device, scales=((1.0, 0.0),))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_long_sequences_keep_their_digits(direction: str, device: Any) -> None:
    """The gradient of single precision does not lose digits with the size of the loss."""
    check_ctc(ctc("logits sum t600 n1 a6 s120", direction), device, scales=((1.0, 0.0),))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_wrong_numbers_lead_nowhere(direction: str, device: Any) -> None:
    """A kernel that meets labels and lengths that there are not reads nothing beside its inputs."""
    for words, place in (("s3", "targets"), ("s3", "input_lengths"), ("s3", "target_lengths"),
                         ("s3 concatenated4", "target_lengths"), ("s3 concatenated4", "targets")):  # fmt: skip
        problem = ctc(f"none t4 n2 a5 {words}", direction)
        for wrong in (-1, 5, 2**40, -(2**62)):
            values = dict(zip((o.name for o in problem.sources), inputs_for(problem), strict=True))
            values[place].flat[-1] = wrong
            check(problem, device, inputs=list(values.values()), scales=((1.0, 0.0),))


@settings(
    max_examples=examples(15),
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(problem=ctc_losses())
def test_any_ctc_loss(problem: Problem, device: Any) -> None:
    assert isinstance(problem, CtcLoss)
    assume(problem.x.shape[2] > 1)  # of one symbol the loss is 0, and an error has nothing to be relative to
    check_ctc(problem, device)


@pytest.mark.parametrize("is_padded", [True, False])
def test_arrays_on_the_device(is_padded: bool, device: Any) -> None:
    """Labels and lengths on the host are copied, those on the device taken where they are."""
    name = "{}:{}".format(*device.device_id)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20, 3, 8)).astype(np.float32)
    times, counts = np.array([20, 12, 15]), np.array([6, 0, 4], np.int32)
    labels = rng.integers(1, 8, (3, 6)) if is_padded else rng.integers(1, 8, 10)
    how: dict[str, Any] = {"inputs": "logits"}
    expected = jd.ctc_loss(x, labels, times, counts, **how)
    slope = np.full(1, 0.7, np.float32)
    gradient = jd.ctc_loss_backward(slope, x, labels, times, counts, **how)
    there = [jd.to_device(array, name) for array in (labels, times, counts)]
    for numbers in ([labels, times, counts], [labels, times.tolist(), there[2]], there):
        logits = jd.to_device(x, name)
        loss = jd.ctc_loss(logits, *numbers, **how)
        dx = jd.ctc_loss_backward(jd.to_device(slope, name), logits, *numbers, **how)
        np.testing.assert_allclose(loss.numpy(), expected, rtol=1e-5)
        np.testing.assert_allclose(dx.numpy(), gradient, rtol=1e-4, atol=1e-6)


def test_wrong_labels_of_arrays_on_the_device(device: Any) -> None:
    """The host looks at what it has; of what is on the device a sequence's wrong label makes its own loss NaN."""
    name = "{}:{}".format(*device.device_id)
    x = jd.to_device(np.zeros((4, 2, 5), np.float32), name)
    labels, steps, counts = np.array([[1, 2], [3, 7]]), np.array([4, 4]), np.array([2, 2])
    with pytest.raises(InvalidArgument, match="label 7"):
        jd.ctc_loss(x, labels, steps, counts)
    loss = jd.ctc_loss(x, jd.to_device(labels, name), steps, counts, reduction="none").numpy()
    assert np.isfinite(loss[0])
    assert np.isnan(loss[1])
    with pytest.raises(InvalidArgument, match="add up to 5"):
        jd.ctc_loss(
            x, jd.to_device(labels.ravel(), name), steps, jd.to_device(counts + np.array([0, 1]), name)
        )
    with pytest.raises(InvalidShape, match="target_lengths has shape"):
        jd.ctc_loss(x, labels, steps, jd.to_device(counts[:1], name))


def test_gradients_that_are_zero_whatever_comes_back(device: Any) -> None:
    name = "{}:{}".format(*device.device_id)
    x = jd.to_device(np.random.default_rng(0).standard_normal((6, 3, 4)).astype(np.float32), name)
    dloss = jd.to_device(np.array([1, np.inf, np.nan], np.float32), name)
    labels, counts = np.array([[1, 2], [1, 2], [3, 3]]), np.array([2, 2, 2])
    how: dict[str, Any] = {"inputs": "logits", "reduction": "none", "zero_infinity": True}
    dx = jd.ctc_loss_backward(dloss, x, labels, np.array([6, 3, 2]), counts, **how).numpy()
    assert np.isfinite(dx[:, 0]).all()
    assert dx[:, 0].any()
    assert (dx[3:, 1] == 0).all()
    assert (dx[:, 2] == 0).all()  # too short for a repetition


def test_refusals(device: Any) -> None:
    algorithm = CtcRecursion()
    problem = ctc("t5 n2 a3 s2", "fwd")
    assert "no epilogue" in str(algorithm.refuse(problem, device, Epilogue(trace(lambda a: a))))
    assert "2^31 thread blocks" in str(algorithm.refuse(ctc("t100000 n100000 a2 s2", "fwd"), device))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_compiles(direction: str, architecture: Any) -> None:
    for words in (
        "logits t1000 n32 a32 s200",
        "probs none t100 n4 a5000 s4000 f64",
        "t900 n8 a40 s9000 bf16",
    ):
        CtcRecursion().build(ctc(words, direction), architecture)
