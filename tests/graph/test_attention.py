"""Attention as exporters spell it out: what becomes one, against its nodes run one by one and onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the extra `onnx` is not installed")

from onnx import helper

from onnx_spellings import check, filled, model_of, node

N, H, T, D = 2, 3, 9, 8


def spelled(
    middle: list[Any], scores: str, shape: list[int], constants: dict[str, Any], more: Any = ()
) -> Any:
    """x is q, k and v one behind the other along its last axis; `middle` is what makes `scores` of `product`."""
    rank = len(shape)
    order = [*range(rank - 2), rank - 1, rank - 2]
    nodes = [
        helper.make_node("Split", ["x", "sizes"], ["q", "k", "v"], name="split", axis=-1),
        helper.make_node("Transpose", ["k"], ["kt"], name="turn", perm=order),
        node("MatMul", "q kt", "product"),
        *middle,
        node("Softmax", scores, "weights", axis=-1),
        node("MatMul", "weights v", "y"),
    ]
    constants = {
        "sizes": np.array([D, D, D], np.int64),
        "root": np.float32(8**0.5),
        "factor": np.float32(0.3),
        **constants,
    }
    return model_of(nodes, [*shape[:-1], 3 * D], constants, ["y", *more])


SHAPE = [N, H, T, D]
MASK = np.where(np.tril(np.ones((T, T))) > 0, 0.0, -np.inf).astype(np.float32)
MIDDLES: dict[str, tuple[list[Any], str, list[int], dict[str, Any]]] = {
    "divided": ([node("Div", "product root", "s")], "s", SHAPE, {}),
    "multiplied": ([node("Mul", "factor product", "s")], "s", SHAPE, {}),
    "not scaled": ([], "product", SHAPE, {}),
    "masked": ([node("Div", "product root", "d"), node("Add", "d mask", "s")], "s", SHAPE, {"mask": MASK}),
    "mask first": (
        [node("Mul", "product factor", "d"), node("Add", "mask d", "s")],
        "s",
        SHAPE,
        {"mask": filled(N, 1, 1, T)},
    ),
    "full mask": ([node("Add", "product mask", "s")], "s", SHAPE, {"mask": filled(N, H, T, T)}),
    "three axes": (
        [node("Div", "product root", "d"), node("Add", "d mask", "s")],
        "s",
        SHAPE[1:],
        {"mask": MASK},
    ),
}


@pytest.mark.parametrize("name", MIDDLES)
def test_becomes_one(name: str) -> None:
    middle, scores, shape, constants = MIDDLES[name]
    x = filled(*shape[:-1], 3 * D)
    kinds = check(spelled(middle, scores, shape, constants), x)
    assert kinds.count("attention") == 1
    assert "softmax" not in kinds
    assert "matmul" not in kinds


REFUSED: dict[str, tuple[list[Any], str, dict[str, Any], list[str]]] = {
    "scores are read elsewhere": ([node("Div", "product root", "s")], "s", {}, ["s"]),
    "weights leave": ([node("Div", "product root", "s")], "s", {}, ["weights"]),
    "two masks": ([node("Add", "product mask", "a"), node("Add", "a mask", "s")], "s", {"mask": MASK}, []),
    "the mask is scaled": (
        [node("Add", "product mask", "a"), node("Mul", "a factor", "s")],
        "s",
        {"mask": filled(T, T)},
        [],
    ),
    "another formula": ([node("Tanh", "product", "s")], "s", {}, []),
    "a number is subtracted": ([node("Sub", "product root", "s")], "s", {}, []),
    "a number is divided": ([node("Div", "factor product", "s")], "s", {}, []),
}


@pytest.mark.parametrize("name", REFUSED)
def test_stays_as_it_is(name: str) -> None:
    middle, scores, constants, more = REFUSED[name]
    x = filled(N, H, T, 3 * D)
    assert "attention" not in check(spelled(middle, scores, SHAPE, constants, more), x)


def test_another_axis_stays() -> None:
    model = spelled([], "product", SHAPE, {})
    (softmax,) = (one for one in model.graph.node if one.op_type == "Softmax")
    softmax.attribute[0].i = 2
    assert "attention" not in check(model, filled(N, H, T, 3 * D))
