"""Spellings that exporters write of one operation: layer and RMS norms, GELU, hard-swish, squeeze and excite.

Each against its nodes run one by one, against onnxruntime, and what became of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("onnx", reason="the extra `onnx` is not installed")

from onnx_spellings import check, filled, model_of, node


class Spelling:
    """Nodes of a normalization, and what may differ from one exporter to another."""

    def __init__(self, shape: list[int], axes: list[int], seed: int = 0) -> None:
        self.shape, self.axes = shape, axes
        inner = [shape[axis] for axis in sorted(a % len(shape) for a in axes)]
        self.constants: dict[str, Any] = {
            "two": np.float32(2), "eps": np.float32(1e-3), "one": np.float32(1),
            "w": filled(*inner, seed=seed + 1), "b": filled(*inner, seed=seed + 2),
        }  # fmt: skip
        self.mean, self.power, self.inverse, self.twice = True, True, "div", False
        self.swaps = self.weight = self.bias = True
        self.more: list[str] = []

    def model(self) -> Any:
        d = "d" if self.mean else "x"
        nodes = []
        if self.mean:
            nodes += [node("ReduceMean", "x", "m", axes=self.axes, keepdims=1), node("Sub", "x m", "d")]
            if self.twice:
                nodes.append(node("Sub", "x m", "d2"))
        other = "d2" if self.mean and self.twice else d
        nodes.append(node("Pow", f"{other} two", "q") if self.power else node("Mul", f"{other} {other}", "q"))
        nodes.append(node("ReduceMean", "q", "v", axes=self.axes, keepdims=1))
        nodes += [node("Add", "eps v" if self.swaps else "v eps", "e"), node("Sqrt", "e", "s")]
        if self.inverse == "div":
            nodes.append(node("Div", f"{d} s", "n"))
        else:
            nodes.append(
                node("Reciprocal", "s", "r") if self.inverse == "reciprocal" else node("Div", "one s", "r")
            )
            nodes.append(node("Mul", f"r {d}" if self.swaps else f"{d} r", "n"))
        last = "n"
        if self.weight:
            nodes.append(node("Mul", f"w {last}" if self.swaps else f"{last} w", "nw"))
            last = "nw"
        if self.bias:
            nodes.append(node("Add", f"{last} b", "nb"))
            last = "nb"
        nodes.append(node("Identity", last, "y"))
        return model_of(nodes, self.shape, self.constants, ["y", *self.more])


@settings(deadline=None, max_examples=8)
@given(st.data())
def test_any_spelling_is_one_primitive(data: Any) -> None:
    shape = data.draw(st.sampled_from([[2, 3, 7], [1, 65], [5, 1], [2, 3, 4, 17]]))
    count = data.draw(st.integers(1, len(shape) - 1))
    given = Spelling(shape, data.draw(st.permutations([axis - count for axis in range(count)])))
    given.mean, given.power, given.twice = (data.draw(st.booleans()) for _ in range(3))
    given.swaps, given.weight, given.bias = (data.draw(st.booleans()) for _ in range(3))
    given.inverse = data.draw(st.sampled_from(["div", "reciprocal", "one by"]))
    if not given.swaps and not given.weight:
        given.constants["b"] = given.constants["b"][..., :1]  # a bias that is broadcast
    kinds = check(given.model(), filled(*shape, seed=3))
    assert ("layer_norm" if given.mean else "rms_norm") in kinds
    assert "reduce" not in kinds


DIFFERENT = {
    "the power": {"two": np.float32(4)}, "a negative epsilon": {"eps": np.float32(-1e-9)},
    "several epsilons": {"eps": np.full((2, 3, 1), 1e-3, np.float32)},
}  # fmt: skip


@pytest.mark.parametrize("case", [*DIFFERENT, "other axes", "inner axes", "read elsewhere", "an output"])
def test_what_is_not_quite_it_stays_as_it_is(case: str) -> None:
    given = Spelling([2, 3, 7], [-1])
    if case in DIFFERENT:
        given.constants.update(DIFFERENT[case])
    model = None
    if case == "other axes":
        model = given.model()
        model.graph.node[0].attribute[0].ints[:] = [-2]
    elif case == "inner axes":
        given.axes, given.constants["w"], given.constants["b"] = (
            [1],
            filled(3, 1, seed=1),
            filled(3, 1, seed=2),
        )
    elif case == "read elsewhere":
        given.more = ["other"]
        model = given.model()
        model.graph.node.append(node("Exp", "d", "other"))
    elif case == "an output":
        given.more = ["v"]
    kinds = check(model or given.model(), filled(2, 3, 7, seed=5))
    assert "layer_norm" not in kinds
    # with the mean over other axes what is left is the root of a mean of squares
    assert ("rms_norm" in kinds) == (case == "other axes")


@pytest.mark.parametrize("weight", [(7,), (3, 7), (2, 1, 1), (1, 1, 7), ()])
def test_weights_are_taken_along_where_they_fit(weight: tuple[int, ...]) -> None:
    """Those that differ from row to row are multiplied behind it."""
    given = Spelling([2, 3, 7], [-1])
    given.constants["w"] = filled(*weight, seed=9)
    kinds = check(given.model(), filled(2, 3, 7, seed=5))
    fits = all(extent == 1 for extent in weight[:-1]) and weight != (2, 1, 1)
    assert kinds == (["layer_norm"] if fits else ["layer_norm", "pointwise"])


def test_gelu_by_erf_ends_a_product() -> None:
    nodes = [
        node("MatMul", "x w", "p"), node("Add", "p b", "h"), node("Div", "h root", "t"), node("Erf", "t", "f"),
        node("Add", "f one", "g"), node("Mul", "h g", "k"), node("Mul", "k half", "y"),
    ]  # fmt: skip
    constants = {
        "w": filled(9, 12, seed=1), "b": filled(12, seed=2), "root": np.float32(np.sqrt(2)), "one": np.float32(1),
        "half": np.float32(0.5),
    }  # fmt: skip
    assert check(model_of(nodes, [5, 9], constants, ["y"]), filled(5, 9)) == ["matmul"]


def test_hard_swish_and_the_gate_of_squeeze_and_excite() -> None:
    """What a gate by channel multiplies is read by the mean that makes it, so that this product is a kernel: with all
    formulas behind it."""
    nodes = [
        node("Conv", "x w0", "c"), node("Add", "c three", "a"), node("Clip", "a zero six", "l"),
        node("Mul", "c l", "p"), node("Div", "p six", "h"),
        node("GlobalAveragePool", "h", "g"), node("Conv", "g w1", "e0"), node("Relu", "e0", "e1"),
        node("Conv", "e1 w2", "e2"), node("Mul", "e2 sixth", "e3"), node("Add", "e3 half", "e4"),
        node("Clip", "e4 zero one", "e5"), node("Mul", "h e5", "q"), node("Add", "q h", "r"), node("Relu", "r", "y"),
    ]  # fmt: skip
    constants = {
        "w0": filled(8, 3, 1, 1, seed=1), "w1": filled(2, 8, 1, 1, seed=2), "w2": filled(8, 2, 1, 1, seed=3),
        "three": np.float32(3), "zero": np.float32(0), "six": np.float32(6), "sixth": np.float32(1 / 6),
        "half": np.float32(0.5), "one": np.float32(1),
    }  # fmt: skip
    kinds = check(model_of(nodes, [1, 3, 5, 7], constants, ["y"]), filled(1, 3, 5, 7))
    assert kinds == ["conv", "global_avg_pool", "conv", "conv", "pointwise"]
