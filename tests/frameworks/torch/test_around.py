"""What programs do around converted modules: other devices, tracers, changes in place, batches of gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import jitdnn.torch as jt  # noqa: E402
from jitdnn.frameworks.torch import choice, variety, whole  # noqa: E402
from jitdnn.settings import settings  # noqa: E402
from torch_kernels import all_ours, random, watched  # noqa: E402

F = nn.functional
OPTIONS = ({"measure": "never"}, {})


def net() -> Any:
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.SiLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 5),
    ]
    return nn.Sequential(*layers).double()


def test_a_model_without_data() -> None:
    with torch.device("meta"):
        model = net()
    jt.convert(model, measure="never")
    assert model(torch.empty(2, 3, 6, 6, dtype=torch.float64, device="meta")).shape == (2, 5)
    model.to_empty(device="cpu").load_state_dict(net().state_dict())
    x = random(2, 3, 6, 6, dtype=torch.float64)
    with all_ours("forward"):
        torch.testing.assert_close(model(x), net()(x))
    # what a module remembers of calls on the processor
    module = jt.convert(nn.Tanh(), measure="first")
    for _ in range(3):
        module(x)
    assert module(x.to("meta")).is_meta


def test_views_that_are_negated_when_they_are_read() -> None:
    z = torch.complex(random(2, 3, 6, 6), random(2, 3, 6, 6, seed=1))
    w = random(4, 3, 3, 3)
    for x in (z.imag, z.conj().imag, z.imag, z.conj().imag):  # of one form, the first kind is known by then
        with jt.use(measure="never"):
            y, s = F.conv2d(x, w), F.silu(x)
        torch.testing.assert_close(y, F.conv2d(x.clone(), w), rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(s, F.silu(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.MaxPool2d(2), (2, 3, 6, 6)),
        (nn.MaxPool1d(3, 2), (2, 3, 7)),
        (nn.AdaptiveMaxPool2d(2), (2, 3, 6, 6)),
        (nn.AvgPool2d(2), (2, 3, 6, 6)),
        (nn.LSTM(3, 4), (5, 2, 3)),
        (nn.BatchNorm2d(3), (2, 3, 4, 4)),
        (nn.Linear(6, 3), (2, 3, 6)),
    ],
)
def test_results_may_be_changed_in_place(module: Any, shape: Any) -> None:
    module = module.double()
    ours = jt.convert(copy.deepcopy(module), measure="never")
    x = random(*shape, dtype=torch.float64)
    found = []
    for one in (ours, ours, module):
        given = x.clone().requires_grad_()
        y = one(given * 1)
        y = y[0] if isinstance(y, tuple) else y
        y = y.mul(3).relu() if one is module else y.mul_(3).relu_()
        found.append((y, *torch.autograd.grad(y.square().sum(), [given, *one.parameters()])))
    torch.testing.assert_close(found[0], found[2])
    torch.testing.assert_close(found[1], found[2])


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: x.softmax(-1), (3, 5)),
        (lambda x: x.log_softmax(0), (3, 5)),
        (lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), (1, 2, 4, 4)),
        (lambda x: F.adaptive_avg_pool2d(x, 2), (1, 2, 4, 4)),
    ],
)
def test_what_gradients_do_not_read_may_be_changed(function: Any, shape: Any) -> None:
    x = random(*shape, dtype=torch.float64)
    given, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    with jt.use(measure="never"), all_ours("whole"):
        h = given * 1
        y = function(h)
    h.detach().zero_()
    found = torch.autograd.grad(y.square().sum(), given)
    torch.testing.assert_close(found, torch.autograd.grad(function(other).square().sum(), other))


def test_a_loss_may_be_changed_in_place() -> None:
    x = random(3, 5).requires_grad_()
    labels = torch.tensor([0, 4, 2])
    with all_ours("whole"):
        loss = jt.convert(nn.CrossEntropyLoss(), measure="never")(x, labels)
    loss /= 4
    wanted = F.cross_entropy(x, labels) / 4
    torch.testing.assert_close(torch.autograd.grad(loss, x), torch.autograd.grad(wanted, x))


@pytest.mark.parametrize("options", OPTIONS)
def test_gradients_of_a_batch_of_results(options: Any) -> None:
    stock = net().eval()
    model = jt.convert(copy.deepcopy(stock), **options)
    x, rows = random(2, 3, 6, 6, dtype=torch.float64), torch.eye(10, dtype=torch.float64).view(10, 2, 5)
    found = []
    for one in (model, model, stock):
        given = x.clone().requires_grad_()
        y = one(given)
        (batched,) = torch.autograd.grad(y, given, rows, is_grads_batched=True, retain_graph=True)
        mapped = torch.func.vmap(lambda dy: torch.autograd.grad(y, given, dy, retain_graph=True)[0])(rows)  # noqa: B023
        torch.testing.assert_close(batched, mapped)
        found.append(batched)
    torch.testing.assert_close(found[0], found[2])
    torch.testing.assert_close(found[1], found[2])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.softmax(-1), lambda x: F.interpolate(x, scale_factor=2.0), lambda x: F.group_norm(x, 2),
        lambda x: F.adaptive_max_pool2d(x, 2),
    ],
)  # fmt: skip
def test_batches_of_gradients_of_eager_functions(function: Any) -> None:
    x = random(2, 4, 4, 4, dtype=torch.float64).requires_grad_()
    with jt.use(measure="never"), all_ours("whole"):
        y = function(x)
    wanted = function(x)
    dy = random(3, *y.shape, dtype=torch.float64)
    for one in (
        torch.autograd.grad(y, x, dy, is_grads_batched=True, retain_graph=True)[0],
        torch.func.vmap(lambda v: torch.autograd.grad(y, x, v, retain_graph=True)[0])(dy),
    ):
        torch.testing.assert_close(
            one, torch.autograd.grad(wanted, x, dy, is_grads_batched=True, retain_graph=True)[0]
        )


@pytest.mark.parametrize("options", OPTIONS)
def test_gradients_of_each_image(options: Any) -> None:
    stock = net().eval()
    model = jt.convert(copy.deepcopy(stock), **options)
    x = random(3, 3, 6, 6, dtype=torch.float64)

    def each(one: Any) -> Any:
        def loss(parameters: Any, image: Any) -> Any:
            return torch.func.functional_call(one, parameters, (image[None],)).square().sum()

        parameters = {name: value.detach() for name, value in one.named_parameters()}
        return torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)

    torch.testing.assert_close(each(model), each(stock))


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Conv2d(3, 4, 3), lambda: nn.ConvTranspose2d(3, 4, 3), lambda: nn.Linear(4, 4),
        lambda: nn.BatchNorm2d(3), lambda: nn.LayerNorm(4), lambda: nn.RMSNorm(4), lambda: nn.MaxPool2d(2),
        lambda: nn.AdaptiveAvgPool2d(1), nn.GELU, lambda: nn.Softmax(1), lambda: nn.LSTM(4, 4),
    ],
)  # fmt: skip
def test_what_is_no_tensor_has_torchs_error(make: Any) -> None:
    stock = make()
    ours = jt.convert(copy.deepcopy(stock), measure="never")
    for given in (None, "x", [1.0]):
        said = []
        for model in (stock, ours):
            with pytest.raises((TypeError, AttributeError)) as raised:
                model(given)
            said.append((raised.type, str(raised.value)))
        assert said[0] == said[1]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("measure", ["never", "first"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(4, 4), lambda: nn.LayerNorm(4), lambda: nn.RMSNorm(4), nn.GELU, nn.Tanh,
        lambda: nn.Softmax(-1), lambda: nn.MaxPool2d(2), lambda: nn.BatchNorm2d(3), lambda: nn.Conv2d(3, 4, 1),
    ],
)  # fmt: skip
def test_tensors_without_one_shape_or_strides_are_torchs(make: Any, measure: str) -> None:
    """Nested ones of both layouts, sparse ones, oneDNN's, before and behind calls that a module remembers."""
    stock = make()
    ours = jt.convert(copy.deepcopy(stock), measure=measure)
    parts, square, image = [random(2, 4), random(3, 4)], random(4, 4), random(2, 3, 4, 4)
    given = [
        torch.nested.nested_tensor(parts, layout=torch.jagged),
        torch.nested.nested_tensor(parts, layout=torch.strided),
        square.to_sparse(),
        square.to_sparse_csr(),
    ]
    if torch.backends.mkldnn.is_available():
        given.append(image.to_mkldnn())
    dense = image if isinstance(stock, (nn.MaxPool2d, nn.BatchNorm2d, nn.Conv2d)) else square
    for _ in range(2):
        for x in given:
            wanted, found = outcome(stock, x), outcome(ours, x)
            assert type(found) is type(wanted)
            if isinstance(wanted, torch.Tensor):
                torch.testing.assert_close(plain(found), plain(wanted))
        for _ in range(12):
            ours(dense)


def outcome(model: Any, x: Any) -> Any:
    """The result, or the error."""
    try:
        return model(x)
    except (RuntimeError, ValueError) as error:
        return error


def plain(x: Any) -> Any:
    """The elements of a tensor of any layout."""
    if not x.is_nested:
        return x.to_dense() if x.layout is not torch.strided else x
    return x.values() if x.layout is torch.jagged else x.to_padded_tensor(0.0)


def test_converted_modules_are_leaves_of_traced_graphs() -> None:
    model = jt.convert(net().eval(), measure="never")
    traced = torch.fx.symbolic_trace(model)
    assert [node.op for node in traced.graph.nodes][1:-1] == ["call_module"] * len(model)
    x = random(2, 3, 6, 6, dtype=torch.float64)
    with all_ours("forward"):
        torch.testing.assert_close(traced(x), net().eval()(x))
    assert set(vars(jt.revert(model)[0])) == set(vars(net()[0]))


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Conv2d(4, 6, 3, stride=2, groups=2), (2, 4, 7, 7)),
        (nn.ConvTranspose1d(3, 4, 3), (2, 3, 5)),
        (nn.Linear(6, 4), (2, 3, 6)),
    ],
)
def test_operations_are_counted(module: Any, shape: Any) -> None:
    counts = []
    for one in (module, jt.convert(copy.deepcopy(module), measure="never")):
        with FlopCounterMode(display=False) as counter:
            one(random(*shape).requires_grad_()).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_rows_without_features() -> None:
    weight, bias = torch.empty(5, 0), random(5)
    with jt.use(measure="never"):
        assert torch.equal(F.linear(torch.empty(3, 0), weight, bias), bias.expand(3, 5))


def test_sizes_that_are_ever_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(variety, "MOST", 2)
    monkeypatch.setattr(choice, "SECONDS", 0.0)
    measured = []
    real = choice.measured
    for module in (choice, whole.choice):
        monkeypatch.setattr(
            module, "measured", lambda what, *rest: measured.append(what) or real(what, *rest)
        )
    model = jt.convert(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Mish(), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    stock = jt.revert(copy.deepcopy(model))
    counts = []
    with settings(cache=False), torch.no_grad():
        for width in (5, 6, 7, 8, 5):
            x = random(1, 2, 5, width)
            torch.testing.assert_close(model(x), stock(x), rtol=1e-5, atol=1e-5)
            counts.append(sum("forward" in what and "conv" in what for what in measured))
        assert counts == [1, 2, 2, 2, 2]
        assert sum("whole mish" in what for what in measured) <= 2
        with watched() as seen:
            model(random(1, 2, 5, 9))
        assert next(kind.decision.reason for kind in seen if kind.name == "forward") == variety.REASON
        # the same kinds are counted for each layer by itself
        other = jt.convert(nn.Conv2d(2, 4, 3))
        other(random(1, 2, 5, 5))
    assert sum("forward" in what and "conv" in what for what in measured) == 3
    asked = jt.convert(copy.deepcopy(stock), measure="never")
    with torch.no_grad(), all_ours("forward"):
        for width in (5, 6, 7):
            asked(random(1, 2, 5, width))


def test_a_fused_model_prepares_for_so_many_kinds_of_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    from jitdnn.frameworks.torch import fused

    monkeypatch.setattr(fused, "MOST_PROGRAMS", 2)
    captured = []
    real = fused.capture
    monkeypatch.setattr(fused, "capture", lambda *given: captured.append(1) or real(*given))
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.SiLU()).eval()
    fast = jt.fuse(model, measure="never")
    for number in (1, 2, 3, 4, 1, 2):
        x = random(number, 2, 5, 5)
        torch.testing.assert_close(fast(x), model(x).detach(), rtol=1e-5, atol=1e-5)
    assert len(captured) == 2


class Tagger(nn.Module):
    """A class for each word, as LSTM taggers have it."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(9, 3), layer
        self.classes = nn.Linear(layer.hidden_size * (1 + layer.bidirectional), 2)

    def forward(self, x: Any) -> Any:
        y, last = self.layer(self.words(x))
        return self.classes(y), last


@pytest.mark.parametrize(
    "layer",
    [
        nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True),
        nn.GRU(3, 4, dropout=0.0, bias=False),
        nn.RNN(3, 4, batch_first=True),
        nn.RNN(3, 4, 2, nonlinearity="relu"),
    ],
)
def test_recurrent_layers_of_fused_graphs(layer: Any) -> None:
    model = Tagger(layer).double().eval()
    x = torch.arange(21).view(3, 7) % 9
    fast = jt.fuse(model, measure="never")
    with torch.no_grad(), all_ours("whole") as seen:
        expected = model(x)
        fast(x)
        torch.testing.assert_close(fast(x), expected)
    assert seen  # as one node, and not step by step
    with jt.use(measure="never"), torch.no_grad():
        torch.testing.assert_close(model(x), expected)
