"""`explain`: a row for each layer and direction, and nothing of the model changes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jitdnn.torch as jt  # noqa: E402
from torch_kernels import random  # noqa: E402

nn = torch.nn


def small() -> torch.nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3, bias=False)
    )


def test_rows() -> None:
    model = jt.convert(small(), measure="never")
    explained = jt.explain(model, random(2, 3, 6, 6))
    rows = {(row.layer, row.direction): row for row in explained.rows}
    assert {
        ("0", "forward"),
        ("0", "filter"),
        ("0", "bias"),
        ("3", "forward"),
        ("3", "data"),
        ("3", "filter"),
    } <= set(rows)
    assert ("3", "bias") not in rows
    assert ("0", "data") not in rows  # nobody asks for the gradient of the images
    assert {("1", "forward"), ("1", "gradients")} <= set(rows)
    for layer, direction in (
        ("0", "forward"),
        ("0", "filter"),
        ("3", "forward"),
        ("3", "data"),
        ("3", "filter"),
    ):
        row = rows[layer, direction]
        assert row.runs == "jitdnn"
        assert row.algorithm
        assert row.workspace is not None
        assert row.workspace >= 0
        assert row.error_bound is not None
        assert 0 < row.error_bound < 1e-2
        assert row.problem.startswith("conv_")
        assert row.seconds is None
    text = str(explained).splitlines()
    assert len(text) == 1 + len(explained.rows)
    assert text[0].split()[:3] == ["layer", "direction", "runs"]
    assert text[1].split()[:3] == ["0", "forward", "jitdnn"]
    assert explained.left_alone == ()


def test_nothing_of_the_model_changes() -> None:
    model = jt.convert(small(), measure="never")
    x = random(2, 3, 6, 6).requires_grad_()
    model(x).sum().backward()
    grads = [one.grad.clone() for one in (x, *model.parameters())]
    state = {name: one.clone() for name, one in model.state_dict().items()}
    hooks = [len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules()]
    jt.explain(model, x)
    assert all(torch.equal(one, two.grad) for one, two in zip(grads, (x, *model.parameters()), strict=True))
    assert all(torch.equal(state[name], one) for name, one in model.state_dict().items())
    assert [len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules()] == hooks
    assert model.training


def test_evaluation_and_what_is_left_alone() -> None:
    model = jt.convert(small().eval(), exclude=["3"], measure="never")
    explained = jt.explain(model, random(1, 3, 6, 6))
    assert [(row.layer, row.direction) for row in explained.rows] == [("0", "forward")]
    assert explained.left_alone == ("3",)
    directions = {row.direction for row in jt.explain(model, random(1, 3, 6, 6), gradients=True).rows}
    assert {"forward", "filter"} <= directions


def test_times_are_those_of_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    from jitdnn.frameworks.torch import choice

    monkeypatch.setattr(choice, "_measured", lambda *_: (2e-3, 1e-3))
    model = jt.convert(nn.Conv2d(3, 4, 3, padding=2).eval())
    explained = jt.explain(model, random(1, 3, 7, 6))
    (row,) = explained.rows
    assert (row.runs, row.seconds, row.stock_seconds) == ("torch", 2e-3, 1e-3)
    assert row.algorithm
    assert "2.000" in str(explained)
    assert "slower" in str(explained)


def test_a_model_that_raises_leaves_no_hooks() -> None:
    model = jt.convert(small(), measure="never")

    def hooks() -> list[int]:
        return [len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules()]

    before = hooks()
    with pytest.raises(RuntimeError):
        jt.explain(model, random(1, 5, 6, 6))
    assert hooks() == before


def test_under_use() -> None:
    with jt.use(measure="never"):
        explained = jt.explain(small().eval(), random(1, 3, 6, 6))
    assert next(row.layer for row in explained.rows if row.direction == "forward") == "0"


def test_layers_without_a_filter_have_their_names() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.SiLU(), nn.Flatten(), nn.Linear(16, 3))
    explained = jt.explain(jt.convert(model, measure="never"), random(2, 3, 6, 6))
    found = [(row.layer, row.direction) for row in explained.rows]
    assert len(found) == len(set(found))
    assert {("4", one) for one in ("forward", "data", "filter", "bias")} <= set(found)
    assert {(layer, one) for layer in "12" for one in ("forward", "data")} <= set(found)
    assert "" not in {layer for layer, _ in found}
