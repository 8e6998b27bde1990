"""Pointwise operators as text: ours and torch's compute the same of it, and other text is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from jitdnn.errors import InvalidArgument  # noqa: E402
from jitdnn.frameworks.torch.tail import applied, expression_of  # noqa: E402

UNARY = ("relu", "sigmoid", "tanh", "exp", "erf", "neg", "expm1", "silu", "abs")
BINARY = ("add", "sub", "mul", "maximum")


@st.composite
def tails(draw: Any) -> list[Any]:
    """Some steps over the result and two operands."""
    steps: list[Any] = []
    for number in range(draw(st.integers(1, 6))):
        place = st.integers(0, 2 + number).map(lambda one: f"%{one}")
        if draw(st.booleans()):
            name = draw(st.sampled_from(UNARY))
            steps.append([f"aten.{name}.default", [draw(place)], {}])
        else:
            name = draw(st.sampled_from(BINARY))
            kind = "default" if name == "maximum" else "Tensor"
            named = {"alpha": 2} if name == "sub" and draw(st.booleans()) else {}
            steps.append([f"aten.{name}.{kind}", [draw(place), draw(place)], named])
    return steps


@settings(max_examples=30, deadline=None)
@given(tails())
def test_both_compute_the_same(steps: list[Any]) -> None:
    text = json.dumps(steps)
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(2, 3, 2, 2, generator=generator, dtype=torch.float64)
    bias = torch.randn(3, generator=generator, dtype=torch.float64)
    other = torch.randn(2, 3, 2, 2, generator=generator, dtype=torch.float64)
    theirs = applied(text, y, [bias, other])
    ours = expression_of(text, 2).evaluate(*(np.asarray(one) for one in (y, bias.view(-1, 1, 1), other)))
    np.testing.assert_allclose(ours, np.asarray(theirs), rtol=1e-12, atol=1e-12)


def test_conditions_and_casts() -> None:
    text = json.dumps(
        [
            ["cast", ["%0", "torch.float64"], {}],
            ["aten.gt.Scalar", ["%1", 0], {}],
            ["aten.mul.Tensor", ["%1", 0.25], {}],
            ["aten.where.self", ["%2", "%1", "%3"], {}],
        ]
    )
    y = torch.tensor([[-2.0, 0.0, 3.0]], dtype=torch.float64)
    expected = torch.nn.functional.leaky_relu(y, 0.25)
    torch.testing.assert_close(applied(text, y, []), expected)
    np.testing.assert_allclose(expression_of(text, 0).evaluate(np.asarray(y)), np.asarray(expected))


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "1", "[1]", '["add"]', '[["aten.add.Tensor"]]', '[["aten.add.Tensor", ["%0", "%9"], {}]]',
        '[["aten.add.Tensor", ["%0", "%-1"], {}]]', '[["aten.add.Tensor", ["%0", "x"], {}]]',
        '[["aten.system.default", ["%0"], {}]]', '[["os.system", ["ls"], {}]]', '[["aten.relu.default", [], {}]]',
        '[["aten.relu.default", ["%0"], {"other": 1}]]', '[["cast", ["%0", "torch.int8"], {}]]',
        '[["aten.relu.default", ["%0", ["%0"]], {}]]', '[["aten.gt.Scalar", ["%0", 0], {}]]', "[" * 5000,
        '[["aten.add.Tensor", ["%0", 1], {}],' * 9000, '[["aten.add.Tensor", ["%0", "%٣"], {}]]',
    ],
)  # fmt: skip
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        expression_of(text, 1)
