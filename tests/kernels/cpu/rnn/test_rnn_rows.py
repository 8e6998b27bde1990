"""Recurrent layers whose weights are read where they lie, row by row: few sequences, no packing."""

from __future__ import annotations

import pytest

from conformance import INSTRUCTION_SETS, check
from jitdnn.devices.cpu import host
from jitdnn.kernels.cpu.rnn.algorithm import RowSteps
from jitdnn.problems import Recurrent, parse
from jitdnn.tensor import TensorDescriptor

ROW_STEPS = [
    "lstm t1 n1 inputs128 hidden32",
    "lstm t3 n2 inputs7 hidden21 bidirectional layers2",
    "gru t4 n1 inputs33 hidden19 bidirectional",
    "gru t2 n3 inputs5 hidden9 layers3 input_bias",
    "tanh t3 n2 inputs16 hidden17 recurrent_bias",
    "relu t3 n1 inputs18 hidden40 no_bias",
]


@pytest.mark.parametrize("words", ROW_STEPS)
def test_rows_of_weights(words: str) -> None:
    problem = parse(f"rnn_fwd {words}")
    assert isinstance(problem, Recurrent)
    assert RowSteps().refuse(problem, host(1)) is None
    check(problem)


@pytest.mark.parametrize("dtype", ["f64", "bf16"])
def test_rows_of_weights_of_other_types(dtype: str) -> None:
    check(parse(f"rnn_fwd gru t2 n1 inputs9 hidden19 {dtype}"))


def test_rows_of_weights_for_several_numbers_of_steps() -> None:
    """One code for all of them."""
    for steps in (1, 4):
        check(parse(f"rnn_fwd lstm t{steps} n2 inputs9 hidden19 bidirectional"))


def test_rows_of_weights_with_strides_and_without_states() -> None:
    x, y = TensorDescriptor((3, 2, 7), (28, 14, 2), "f32"), TensorDescriptor((3, 2, 42), (1, 3, 6), "f32")
    for problem in (
        Recurrent("fwd", "lstm", 3, 2, 7, 21, is_batch_major=True, has_states=False, clip=(-0.2, 0.3)),
        Recurrent("fwd", "gru", 3, 2, 7, 21, is_bidirectional=True, orders=(("x", x), ("y", y))),
    ):
        assert "row_steps" in check(problem)


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
def test_rows_of_weights_with_narrower_vectors(cpu: str) -> None:
    check(parse("rnn_fwd lstm t2 n1 inputs7 hidden21 f64"), cpu=cpu)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("lstm t3 n2 inputs7 hidden21 proj5", "projection"),
        ("lstm t3 n2 inputs7 hidden21 lengths64", "lengths"),
        ("lstm t3 n2 inputs7 hidden21 layers9", "layers"),
        ("lstm t3 n2 inputs7 hidden21 training", "training"),
        ("lstm t3 n2 inputs7 hidden4000", "units"),
    ],
)
def test_refused_rows_of_weights(words: str, why: str) -> None:
    reason = RowSteps().refuse(parse(f"rnn_fwd {words}"), host(1))
    assert reason is not None
    assert why in reason
