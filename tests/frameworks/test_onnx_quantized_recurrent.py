"""DynamicQuantizeLSTM of com.microsoft against onnxruntime on one thread, whose own operator it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jitdnn as jd
from jitdnn.errors import InvalidShape, InvalidType, NotSupported

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")

from conformance import INSTRUCTION_SETS  # noqa: E402
from jitdnn.frameworks import onnx as backend  # noqa: E402
from jitdnn.ops.quantized_lstm import QuantizedSteps, pack, quantized_lstm  # noqa: E402
from jitdnn.rtcg.expression import trace  # noqa: E402
from onnx_models import by_onnxruntime, feeds, one_node, with_constants  # noqa: E402

Array = np.ndarray[Any, Any]
_CONSTANT = ("in1", "in2", "in3", "in7", "in8", "in9", "in10", "in11")


def layer(
    seed: int, steps: int, batch: int, width: int, hidden: int, direction: str, *, dtype: Any = np.int8,
    is_each: bool = False, lengths: list[int] | None = None, has_states: bool = False, has_peepholes: bool = False,
) -> list[Any]:  # fmt: skip
    """The inputs of a layer, with a scale and a zero for all weights, or `is_each` column."""
    rng = np.random.default_rng(seed)
    count = 2 if direction == "bidirectional" else 1

    def normal(factor: float, *shape: int) -> Array:
        return (rng.standard_normal(shape) * factor).astype(np.float32)

    limits = np.iinfo(dtype)
    w, r = (
        rng.integers(limits.min, limits.max + 1, (count, rows, 4 * hidden)).astype(dtype)
        for rows in (width, hidden)
    )
    shape = (count, 4 * hidden) if is_each else (count,)
    scales = [rng.uniform(0.002, 0.006, shape).astype(np.float32) for _ in range(2)]
    zero = np.full(shape, 0 if dtype == np.int8 else 117, dtype)
    states = [normal(0.5, count, batch, hidden) if has_states else None for _ in range(2)]
    return [
        normal(1.0, steps, batch, width), w, r, normal(0.2, count, 8 * hidden),
        None if lengths is None else np.array(lengths, np.int32), *states,
        normal(0.3, count, 3 * hidden) if has_peepholes else None, scales[0], zero, scales[1], zero,
    ]  # fmt: skip


def agrees(make: Callable[[int], list[Any]], constant: bool = True, seed: int = 0, **attributes: Any) -> None:
    """Within rounding of float32 for one of four seeds. A state that lies that near to a tie may be quantized to the
    next number, 1/255 of the range away: then results are apart by what that is multiplied by, and no more."""
    for one in range(seed, seed + 4):
        if _gap(make(one), constant, attributes) <= 2e-6:
            return
    raise AssertionError("results differ for each seed")


def _gap(inputs: list[Any], constant: bool, attributes: dict[str, Any]) -> float:
    """The largest difference."""
    model, given = (
        one_node("DynamicQuantizeLSTM", inputs, 3, 21, "com.microsoft", **attributes),
        feeds(inputs),
    )
    expected = by_onnxruntime(model, given)
    fixed = {name: given.pop(name) for name in _CONSTANT if name in given} if constant else {}
    worst = 0.0
    for one, other in zip(backend.prepare(with_constants(model, fixed)).run(given), expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        worst = max(worst, float(np.abs(one - other).max()))
    assert worst <= 2e-2
    return worst


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 1 << 20), st.integers(1, 5), st.integers(1, 6), st.sampled_from([1, 5, 33]),
    st.sampled_from([1, 4, 17, 37]), st.sampled_from(["forward", "reverse", "bidirectional"]), st.booleans(), st.data(),
)  # fmt: skip
def test_layers_are_those_of_onnxruntime(
    seed: int, steps: int, batch: int, width: int, hidden: int, direction: str, is_each: bool, data: Any
) -> None:
    lengths = data.draw(st.none() | st.lists(st.integers(0, steps), min_size=batch, max_size=batch))
    if lengths is not None and not any(lengths):
        lengths = None  # onnxruntime leaves y as it was
    dtype, others = data.draw(st.sampled_from([np.int8, np.uint8])), data.draw(st.booleans())
    holes, constant = data.draw(st.booleans()), data.draw(st.booleans())

    def make(number: int) -> list[Any]:
        return layer(
            number, steps, batch, width, hidden, direction, dtype=dtype, is_each=is_each, lengths=lengths,
            has_states=others, has_peepholes=holes,
        )  # fmt: skip

    agrees(make, constant, seed, hidden_size=hidden, direction=direction)


def test_other_forms() -> None:
    def make(seed: int) -> list[Any]:
        return layer(seed, 7, 2, 12, 20, "bidirectional")

    agrees(make, hidden_size=20, direction="bidirectional", input_forget=1)
    agrees(make, hidden_size=20, direction="bidirectional", clip=0.5)
    activations = ["HardSigmoid", "Tanh", "Relu"] * 2
    agrees(make, hidden_size=20, direction="bidirectional", activations=activations)
    agrees(lambda seed: layer(seed, 10, 1, 64, 160, "forward"), hidden_size=160)


def test_sequences_that_are_all_empty() -> None:
    inputs = layer(0, 3, 2, 5, 4, "forward", lengths=[0, 0], has_states=True)
    model = one_node("DynamicQuantizeLSTM", inputs, 3, 21, "com.microsoft", hidden_size=4)
    for result in backend.prepare(model).run(feeds(inputs)):
        assert not result.any()


def test_what_does_not_fit_is_refused() -> None:
    good = layer(0, 3, 2, 5, 4, "forward")
    cases: list[tuple[dict[int, Any], str]] = [
        ({1: good[1][:, :-1]}, "must be"),
        ({2: good[2][..., :-1]}, "must be"),
        ({4: np.array([3, 4], np.int32)}, "lengths"),
        ({8: np.ones(3, np.float32)}, "scales"),
    ]
    for changes, words in cases:
        inputs = [changes.get(place, value) for place, value in enumerate(good)]
        model = one_node("DynamicQuantizeLSTM", inputs, 3, 21, "com.microsoft", hidden_size=4)
        with pytest.raises((InvalidShape, NotSupported), match=words):
            backend.prepare(model).run(feeds(inputs))


def reference(
    gates: Array, r: Array, zero: int, scale: float, h: Array, c: Array
) -> tuple[Array, Array, Array]:
    """One direction forward in float64, of gates with biases: y, h and c."""
    ys = []
    for x in gates.astype(np.float64):
        low, high = min(h.min(), 0.0), max(h.max(), 0.0)
        step = (high - low) / 255 if high > low else 1.0
        middle = np.rint(np.clip(-low / step, 0, 255))
        states = np.clip(np.rint(h / step) + middle, 0, 255) - middle
        sums = x + (states @ (r.astype(np.float64) - zero)) * step * scale
        i, o, f, g = np.split(sums, 4, 1)
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
        ys.append(h)
    return np.stack(ys), h, c


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
@pytest.mark.parametrize("batch", [1, 5])
def test_instruction_sets(cpu: str, batch: int) -> None:
    rng, hidden, steps = np.random.default_rng(0), 21, 3
    r = rng.integers(0, 256, (1, hidden, 4 * hidden)).astype(np.uint8)
    gates = rng.standard_normal((steps, batch, 4 * hidden)).astype(np.float32)
    h, c = (rng.standard_normal((1, batch, hidden)).astype(np.float32) for _ in range(2))
    weights, sums, shifts = pack(r, [131])
    cell = trace(lambda i, f, g, c, p, q: jd.sigmoid(f) * c + jd.sigmoid(i) * jd.tanh(g))
    plan = QuantizedSteps(
        hidden, (False,), shifts, ((cell, trace(lambda o, c, p: jd.sigmoid(o) * jd.tanh(c))),)
    )
    flat = (1, 4, plan.padded)
    rest = (
        np.full(flat, 0.004, np.float32),
        np.zeros(flat, np.float32),
        np.zeros((1, 3, plan.padded), np.float32),
    )
    expected = reference(gates, r[0], 131, 0.004, h[0].astype(np.float64), c[0].astype(np.float64))
    with jd.settings(cpu=cpu, threads=1):
        handle = jd.Handle()
        ends = np.full(batch, steps, np.int32)
        # states with gaps: a column of a larger array
        wide = np.repeat(h, 3, 2)[..., ::3]
        y, hn, cn = quantized_lstm(
            gates, weights, sums, *rest, wide, c, ends, plan=plan, steps=steps, handle=handle
        )
        with pytest.raises(InvalidType, match="lengths is i64"):
            quantized_lstm(
                gates,
                weights,
                sums,
                *rest,
                h,
                c,
                ends.astype(np.int64),
                plan=plan,
                steps=steps,
                handle=handle,
            )
        with pytest.raises(InvalidShape, match="hx has shape"):
            quantized_lstm(
                gates, weights, sums, *rest, h[..., :-1], c, ends, plan=plan, steps=steps, handle=handle
            )
    for one, other in zip((y[:, 0], hn[0], cn[0]), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)
