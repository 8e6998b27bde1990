"""Functions that are ours in eager calls alone: values, first and second derivatives, who runs, what stays torch's."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

import jitdnn.torch as jt  # noqa: E402
from jitdnn.frameworks.torch import choice, whole  # noqa: E402
from jitdnn.frameworks.torch.functional import EAGER  # noqa: E402
from torch_kernels import all_ours, random, watched  # noqa: E402

F = nn.functional
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
QKV = ((2, 4, 5, 3), (2, 4, 7, 3), (2, 4, 7, 6))
MASK = torch.arange(35).view(5, 7) % 3 > 0
WEIGHTS = torch.arange(1.0, 6.0)
LABELS = torch.tensor([[1, 0, 4], [2, -100, 3]])


def case(function: Any, *shapes: tuple[int, ...]) -> Any:
    return function, shapes


CASES = {
    "softmax": case(lambda x: F.softmax(x, 1), (3, 4, 5)),
    "softmax of the last": case(lambda x: x.softmax(-1), (3, 7)),
    "log_softmax": case(lambda x: torch.log_softmax(x, 0), (3, 4)),
    "cross_entropy": case(lambda x: F.cross_entropy(x, LABELS), (2, 5, 3)),
    "cross_entropy, smoothed": case(
        lambda x: F.cross_entropy(x, LABELS, WEIGHTS.to(x.dtype), reduction="sum", label_smoothing=0.1),
        (2, 5, 3),
    ),
    "cross_entropy of each": case(lambda x: F.cross_entropy(x, LABELS, reduction="none"), (2, 5, 3)),
    "nearest": case(lambda x: F.interpolate(x, scale_factor=2.0), (2, 3, 4, 5)),
    "nearest-exact": case(lambda x: F.interpolate(x, (7, 3), mode="nearest-exact"), (2, 3, 4, 5)),
    "bilinear": case(lambda x: F.interpolate(x, scale_factor=(1.7, 0.6), mode="bilinear"), (2, 3, 4, 5)),
    "bilinear, again": case(
        lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear", recompute_scale_factor=True), (2, 3, 4, 5)
    ),
    "linear": case(lambda x: F.interpolate(x, 9, mode="linear", align_corners=True), (2, 3, 4)),
    "trilinear": case(lambda x: F.interpolate(x, 5, mode="trilinear"), (1, 2, 3, 4, 3)),
    "bicubic": case(lambda x: F.interpolate(x, (5, 9), mode="bicubic"), (1, 2, 4, 4)),
    "grid_sample": case(lambda x, g: F.grid_sample(x, 0.4 * g, align_corners=False), (2, 3, 4, 5), (2, 3, 3, 2)),
    "grid_sample, border": case(
        lambda x, g: F.grid_sample(x, 0.4 * g, padding_mode="border", align_corners=True),
        (1, 2, 3, 4, 3),
        (1, 2, 2, 2, 3),
    ),
    "group_norm": case(lambda x, w, b: F.group_norm(x, 2, w, b), (2, 4, 3, 5), (4,), (4,)),
    "group_norm of sequences": case(lambda x: F.group_norm(x, 3, eps=1e-3), (3, 6, 7)),
    "group_norm without a bias": case(lambda x, w: F.group_norm(x, 1, w), (2, 4, 5), (4,)),
    "instance_norm": case(
        lambda x, w, b: F.instance_norm(x, weight=w, bias=b, eps=1e-3), (2, 3, 4, 5), (3,), (3,)
    ),
    "instance_norm of volumes": case(lambda x: F.instance_norm(x), (2, 3, 2, 3, 4)),
    "rms_norm": case(lambda x, w: F.rms_norm(x, (5,), w, 1e-3), (2, 3, 5), (5,)),
    "rms_norm of two axes": case(lambda x: F.rms_norm(x, (3, 5)), (2, 3, 5)),
    "adaptive_avg_pool1d": case(lambda x: F.adaptive_avg_pool1d(x, 3), (2, 3, 9)),
    "adaptive_avg_pool2d": case(lambda x: F.adaptive_avg_pool2d(x, (2, None)), (2, 3, 6, 5)),
    "adaptive_avg_pool2d to 1": case(lambda x: F.adaptive_avg_pool2d(x, 1), (2, 3, 7, 5)),
    "adaptive_avg_pool3d": case(lambda x: F.adaptive_avg_pool3d(x, 2), (1, 2, 4, 2, 6)),
    "adaptive_max_pool1d": case(lambda x: F.adaptive_max_pool1d(x, 3), (2, 3, 9)),
    "adaptive_max_pool2d": case(lambda x: F.adaptive_max_pool2d(x, (2, 5)), (2, 3, 6, 5)),
    "adaptive_max_pool3d": case(lambda x: F.adaptive_max_pool3d(x, 2), (1, 2, 4, 2, 6)),
    "attention": case(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3), *QKV),
    "attention, causal": case(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *QKV),
    "attention, masked": case(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, MASK), *QKV),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives(name: str) -> None:
    function, shapes = CASES[name]
    given = [
        random(*shape, dtype=torch.float64, seed=place).requires_grad_() for place, shape in enumerate(shapes)
    ]

    def derivatives() -> list[Any]:
        y = function(*given)
        dy = random(*y.shape, dtype=torch.float64, seed=5)
        return [y, *torch.autograd.grad(y, given, dy)]

    expected = derivatives()
    with jt.use(measure="never"), all_ours("whole"):
        found = derivatives()
        torch.testing.assert_close(
            function(*(one.detach() for one in given)), expected[0], rtol=1e-10, atol=1e-10
        )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    if name not in ("bicubic", "grid_sample", "grid_sample, border"):  # torch has no second ones of these
        with jt.use(measure="never"):
            assert torch.autograd.gradgradcheck(function, given, fast_mode=True)


@pytest.mark.parametrize("name", ["bilinear", "grid_sample", "cross_entropy of each"])
def test_results_may_be_changed_in_place(name: str) -> None:
    function, shapes = CASES[name]
    given = [random(*shape, dtype=torch.float64, seed=place) for place, shape in enumerate(shapes)]

    def derivatives() -> list[Any]:
        leaves = [one.clone().requires_grad_() for one in given]
        y = function(*(one * 1 for one in leaves))
        y += 1  # a residual, as in feature pyramids
        return list(torch.autograd.grad(y.square().sum(), leaves))

    expected = derivatives()
    with jt.use(measure="never"), all_ours("whole"):
        found = derivatives()
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


CELLS = [
    (nn.LSTM, {}), (nn.GRU, {}), (nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    (nn.GRU, {"bidirectional": True, "bias": False, "batch_first": True}), (nn.LSTM, {"bias": False}),
    (nn.GRU, {"num_layers": 2, "dropout": 0.0}), (nn.RNN, {"num_layers": 2, "bidirectional": True}),
    (nn.RNN, {"nonlinearity": "relu", "batch_first": True}), (nn.RNN, {"bias": False}),
]  # fmt: skip


@pytest.mark.parametrize(("cell", "options"), CELLS)
@pytest.mark.parametrize("has_state", [False, True])
def test_recurrent_layers(cell: Any, options: Any, has_state: bool) -> None:
    torch.manual_seed(0)
    model = cell(3, 5, **options).double()
    twin = jt.convert(copy.deepcopy(model), measure="never")
    x = random(4, 2, 3, dtype=torch.float64).requires_grad_()
    layers = model.num_layers * (1 + model.bidirectional)
    batch = x.shape[0] if model.batch_first else x.shape[1]
    states = [random(layers, batch, 5, dtype=torch.float64, seed=n).requires_grad_() for n in range(2)]
    hx = (tuple(states) if cell is nn.LSTM else states[0]) if has_state else None
    used = states[: 1 + (cell is nn.LSTM)] if has_state else []

    def trained(own: Any) -> list[Any]:
        y, last = own(x, hx)
        outputs = [y, *(last if isinstance(last, tuple) else (last,))]
        total = sum((number + 1) * one.pow(2).sum() for number, one in enumerate(outputs))
        return [*outputs, *torch.autograd.grad(total, [x, *used, *own.parameters()])]

    with all_ours("whole"):
        found = trained(twin)
    torch.testing.assert_close(found, trained(model), rtol=1e-9, atol=1e-9)
    with torch.no_grad(), all_ours("whole"):
        torch.testing.assert_close(twin(x, hx), model(x, hx), rtol=1e-9, atol=1e-9)
    assert type(jt.revert(twin)) is cell


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_recurrent_layers_that_stay_torchs() -> None:
    x = random(4, 2, 3)
    packed = nn.utils.rnn.pack_padded_sequence(x, [4, 2])
    for options, given in (
        ({"dropout": 0.5, "num_layers": 2}, x),
        ({"proj_size": 2}, x),
        ({}, packed),
    ):
        model = nn.LSTM(3, 5, **options)
        twin = jt.convert(copy.deepcopy(model), measure="never")
        with watched() as seen:
            torch.manual_seed(1)
            found = twin(given)[0]
            torch.manual_seed(1)
            expected = model(given)[0]
        assert not any(kind.decision.is_ours for kind in seen)
        if given is packed:
            found, expected = found.data, expected.data
        torch.testing.assert_close(found, expected)
    model = nn.LSTM(3, 5)  # a sequence without a batch is a batch of one
    twin = jt.convert(copy.deepcopy(model), measure="never")
    with all_ours("whole"):
        torch.testing.assert_close(twin(x[:, 0])[0], model(x[:, 0])[0])


def test_modules() -> None:
    model = nn.Sequential(
        nn.Upsample(scale_factor=2.0, mode="bilinear"), nn.Softmax(1), nn.Flatten(2), nn.LogSoftmax(-1)
    )
    x = random(2, 3, 4, 4)
    expected = model(x)
    criterion = jt.convert(nn.CrossEntropyLoss(label_smoothing=0.1), measure="never")
    with all_ours("whole") as seen:
        y = jt.convert(model, measure="never")(x)
        loss = criterion(y, LABELS[:, :1].expand(2, 64).clamp(0, 2))
    assert len(seen) == 4
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(loss, jt.revert(criterion)(expected, LABELS[:, :1].expand(2, 64).clamp(0, 2)))


def test_what_stays_torchs() -> None:
    x = random(2, 3, 4, 4)
    labels = torch.tensor([[[0]], [[1]]]).expand(2, 4, 4)
    q = random(1, 2, 3, 4)
    with watched() as seen, jt.use(measure="never"):
        F.softmax(x, 1, dtype=torch.float64)
        F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True)
        F.interpolate(x, scale_factor=2, mode="area")
        F.cross_entropy(x, x.softmax(1).detach())
        F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
        F.dropout(x)
        F.adaptive_avg_pool2d(x, 3)  # windows of several sizes
        F.adaptive_max_pool2d(x, 2, return_indices=True)
        F.instance_norm(x, torch.zeros(3), torch.ones(3), use_input_stats=True)
        F.instance_norm(x, torch.zeros(3), torch.ones(3), use_input_stats=False)
        F.rms_norm(x.bfloat16(), (4,))
        F.elu(x, 2.0)
        F.embedding(labels, x[0, 0])
        with torch.autocast("cpu", torch.bfloat16):
            F.cross_entropy(x, labels)
            F.group_norm(x.bfloat16(), 3)
        torch.vmap(lambda x: F.softmax(x, 0))(x)
        torch.func.grad(lambda x: F.softmax(x, 1).square().sum())(x)
        with pytest.raises(IndexError):
            F.cross_entropy(x, labels + 2)
    # the classes' softmax of the test itself is ours
    assert [kind.reason for kind in (one.decision for one in seen)] == ["not measured, as asked"]


def test_compiled_and_exported_graphs_keep_torchs() -> None:
    model = jt.convert(nn.Sequential(nn.Upsample(scale_factor=2.0), nn.Softmax(1)), measure="never")
    x = random(1, 2, 3, 3)
    program = torch.export.export(model, (x,))
    assert not any("jitdnn" in str(node.target) for node in program.graph.nodes)
    with watched() as seen:
        torch.testing.assert_close(
            torch.compile(model, backend="aot_eager", fullgraph=True)(x), program.module()(x)
        )
    assert not seen


def test_the_whole_call_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [2.0, 1.0]
    monkeypatch.setattr(choice, "_measured", lambda ours, stock, *_: (ours(), stock(), *times)[-2:])
    x = random(3, 11).requires_grad_()
    expected = torch.autograd.grad(F.softmax(x, 1)[:, 0].sum(), x)
    for is_ours in (False, True):
        with watched() as seen, jt.use(threads=1, workspace_limit=1 + is_ours):  # a kind of its own
            found = torch.autograd.grad(F.softmax(x, 1)[:, 0].sum(), x)
        torch.testing.assert_close(found, expected)
        assert [(kind.name, kind.decision.is_ours) for kind in seen] == [("whole", is_ours)]
        times.reverse()
    assert EAGER.keys() == whole.ALONE.keys()


def test_a_tensor_of_a_class_of_its_own() -> None:
    class Own(torch.Tensor):
        pass

    x = random(2, 3, 4, 4).as_subclass(Own)
    model = jt.convert(nn.Sequential(nn.Conv2d(3, 3, 1), nn.Softmax(1), nn.SiLU()), measure="never")
    with watched() as seen:
        y = model(x)
    assert type(y) is Own
    assert not any(kind.name == "whole" for kind in seen)
