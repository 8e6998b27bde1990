"""CTC loss and its gradient: the recursion against the definition, all paths, and torch; every type and order."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, assume, given, settings

import jitdnn as jd
from conformance import ARRANGEMENTS, INSTRUCTION_SETS, AnyArray, arranged, check, random_values, unreached
from examples import examples
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.problems import CtcLoss, Problem, parse
from jitdnn.tensor import numpy_dtype
from strategies import ctc_losses

torch = pytest.importorskip("torch")
DIRECTIONS = ("fwd", "bwd")

SIZES = [
    "t1 n1 a1 s0",
    "t1 n1 a2 s1",
    "t7 n3 a5 s3",
    "t40 n2 a33 s15",
    "t40 n2 a17 s16",
    "t90 n2 a9 s33",
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


def inputs_for(problem: Problem, seed: int = 0) -> list[AnyArray]:
    """Random sources; probabilities are such."""
    assert isinstance(problem, CtcLoss)
    rng = np.random.default_rng(seed)
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


def check_ctc(problem: Problem, **options: Any) -> set[str]:
    return check(problem, inputs=inputs_for(problem), **options)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("words", SIZES)
def test_sizes(words: str, direction: str) -> None:
    check_ctc(ctc("none " + words, direction))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("words", KINDS)
def test_kinds(words: str, direction: str) -> None:
    check_ctc(ctc(f"t14 n4 a7 s4 {words}", direction))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_types(dtype: str, direction: str) -> None:
    check_ctc(ctc(f"logits t14 n3 a20 s4 zero_infinity {dtype}", direction))


@pytest.mark.parametrize(
    "arrangement", [name for name in ARRANGEMENTS if name not in ("repeated", "overlapping")]
)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_orders_in_memory(direction: str, arrangement: str) -> None:
    check_ctc(arranged(ctc("logits none t9 n3 a18 s4", direction), arrangement))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_narrower_instruction_sets(direction: str, cpu: str) -> None:
    check_ctc(ctc("logits t14 n3 a20 s4 zero_infinity", direction), cpu=cpu)


def test_every_algorithm_is_reached() -> None:
    assert unreached([ctc("t5 n2 a3 s2", direction) for direction in DIRECTIONS]) == set()


@settings(max_examples=examples(15), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(ctc_losses())
def test_any_ctc_loss(problem: Problem) -> None:
    assert isinstance(problem, CtcLoss)
    assume(problem.x.shape[2] > 1)  # of one symbol the loss is 0, and an error has nothing to be relative to
    check_ctc(problem, threads=(2,))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_one_symbol_costs_nothing(dtype: type) -> None:
    """Its probability is 1 whatever the logits are: the terms cancel, but for their rounding."""
    x = np.random.default_rng(0).standard_normal((13, 2, 1)).astype(dtype)
    loss = jd.ctc_loss(x, np.zeros((2, 0), np.int64), [13, 9], [0, 0], inputs="logits", reduction="none")
    np.testing.assert_allclose(loss, 0.0, atol=13 * 4 * np.finfo(np.float32).eps)


def test_all_paths() -> None:
    """The loss is the sum over every sequence of symbols that says the labels."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 1, 3))
    probabilities = np.exp(x) / np.exp(x).sum(axis=2, keepdims=True)
    for labels in ([1, 2], [1, 1], [2], [], [1, 2, 1]):
        total = 0.0
        for path in itertools.product(range(3), repeat=5):
            joined = [s for s, _ in itertools.groupby(path)]
            if [s for s in joined if s != 0] == labels:
                total += np.prod([probabilities[t, 0, s] for t, s in enumerate(path)])
        loss = jd.ctc_loss(x, np.array([labels], np.int64).reshape(1, -1), [5], [len(labels)], inputs="logits",
                           reduction="sum")  # fmt: skip
        np.testing.assert_allclose(loss, -np.log(total), rtol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("is_padded", [True, False])
def test_torch_agrees(is_padded: bool, reduction: str) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((30, 5, 8), generator=generator, requires_grad=True, dtype=torch.float64)
    times, counts = torch.tensor([30, 12, 25, 3, 1]), torch.tensor([10, 0, 7, 6, 1])
    targets = torch.randint(1, 8, (5, 10), generator=generator)
    if not is_padded:
        targets = torch.cat([row[:count] for row, count in zip(targets, counts, strict=True)])
    log_probs = logits.log_softmax(2)
    options: dict[str, Any] = {"reduction": reduction, "zero_infinity": True}
    expected = torch.nn.functional.ctc_loss(log_probs, targets, times, counts, **options)
    slope = torch.rand(expected.shape, generator=generator, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(expected, logits, slope)
    for kind, x in (("log_probs", log_probs), ("logits", logits), ("probs", log_probs.exp())):
        x = x.detach()
        loss = jd.ctc_loss(x, targets, times, counts, inputs=kind, **options)
        torch.testing.assert_close(loss.reshape(expected.shape), expected.detach())
        dx = jd.ctc_loss_backward(
            slope.reshape(loss.shape), x, targets, times, counts, inputs=kind, **options
        )
        torch.testing.assert_close(dx, gradient)


def test_long_sequences_keep_their_digits() -> None:
    """The gradient of single precision does not lose digits with the size of the loss."""
    problem = ctc("logits sum t600 n1 a6 s120", "bwd")
    check_ctc(problem, threads=(1,), scales=((1.0, 0.0),))


def test_impossible_sequences() -> None:
    x = np.zeros((3, 2, 4), np.float32)
    targets = np.array([[1, 1, 1], [1, 2, 3]])  # repetitions need blanks between
    loss = jd.ctc_loss(x, targets, [3, 3], [3, 3], inputs="logits", reduction="none")
    assert np.isposinf(loss[0])
    np.testing.assert_allclose(loss[1], 3 * np.log(4), rtol=1e-6)
    one = np.ones(2, np.float32)
    dx = jd.ctc_loss_backward(one, x, targets, [3, 3], [3, 3], inputs="logits", reduction="none")
    assert np.isnan(dx[:, 0]).all()
    assert np.isfinite(dx[:, 1]).all()
    options: dict[str, Any] = {"inputs": "logits", "reduction": "none", "zero_infinity": True}
    np.testing.assert_array_equal(jd.ctc_loss(x, targets, [3, 3], [3, 3], **options)[0], 0)
    zeroed = jd.ctc_loss_backward(one, x, targets, [3, 3], [3, 3], **options)
    np.testing.assert_array_equal(zeroed[:, 0], 0)
    np.testing.assert_array_equal(zeroed[:, 1], dx[:, 1])


@pytest.mark.parametrize("wrong", [-1, 5, 2**40, -(2**62)])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_wrong_numbers_lead_nowhere(direction: str, wrong: int) -> None:
    """A kernel that meets labels and lengths that there are not reads nothing beside its inputs."""
    for words, place in (("s3", "targets"), ("s3", "input_lengths"), ("s3", "target_lengths"),
                         ("s3 concatenated4", "target_lengths"), ("s3 concatenated4", "targets")):  # fmt: skip
        problem = ctc(f"none t4 n2 a5 {words}", direction)
        values = dict(zip((o.name for o in problem.sources), inputs_for(problem), strict=True))
        values[place].flat[-1] = wrong
        check(problem, inputs=list(values.values()), scales=((1.0, 0.0),), threads=(1,))


def test_errors() -> None:
    x, targets = np.zeros((4, 2, 5), np.float32), np.array([[1, 2], [3, 4]])
    with pytest.raises(InvalidShape, match=r"\(T, N, A\)"):
        jd.ctc_loss(x[0], targets, [4, 4], [2, 2])
    with pytest.raises(InvalidArgument, match="label 0"):
        jd.ctc_loss(x, targets * 0, [4, 4], [2, 2])
    with pytest.raises(InvalidArgument, match="label 5"):
        jd.ctc_loss(x, targets + 2, [4, 4], [2, 2])
    with pytest.raises(InvalidArgument, match="input_lengths has 5"):
        jd.ctc_loss(x, targets, [4, 5], [2, 2])
    with pytest.raises(InvalidArgument, match="target_lengths has 3"):
        jd.ctc_loss(x, targets, [4, 4], [3, 2])
    with pytest.raises(InvalidArgument, match="add up to 5"):
        jd.ctc_loss(x, targets.ravel(), [4, 4], [3, 2])
    with pytest.raises(InvalidShape, match="input_lengths has shape"):
        jd.ctc_loss(x, targets, [4], [2, 2])
    with pytest.raises(InvalidType, match="targets is f32"):
        jd.ctc_loss(x, x[0], [4, 4], [2, 2])
    with pytest.raises(InvalidArgument, match="blank is 5"):
        jd.ctc_loss(x, targets, [4, 4], [2, 2], blank=5)
    with pytest.raises(InvalidArgument, match="inputs"):
        jd.ctc_loss(x, targets, [4, 4], [2, 2], inputs="scores")
    with pytest.raises(InvalidArgument, match="reduction"):
        jd.ctc_loss(x, targets, [4, 4], [2, 2], reduction="avg")
