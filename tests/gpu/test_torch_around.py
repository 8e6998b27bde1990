"""`jitdnn.torch` on a GPU with what stands around a model: blocks, the process, transforms, copies, checkpoints."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jitdnn.torch as jt  # noqa: E402
from jitdnn.frameworks.torch import kinds  # noqa: E402
from torch_kernels import all_ours, random, watched  # noqa: E402

if not torch.cuda.is_available():
    pytest.skip("PyTorch has no GPU here", allow_module_level=True)

# of PyTorch, where the first call of a thread of its autograd is a product
pytestmark = pytest.mark.filterwarnings(
    "ignore:Attempting to run cuBLAS", "ignore::DeprecationWarning", "ignore::FutureWarning"
)

nn, F = torch.nn, torch.nn.functional
ON = "cuda"


@pytest.fixture(autouse=True)
def alone() -> Any:
    torch.manual_seed(0)
    backends = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [one.allow_tf32 for one in backends]
    for one in backends:
        one.allow_tf32 = False
    kinds.forget()
    yield
    jt.uninstall()
    kinds.forget()
    for one, value in zip(backends, before, strict=True):
        one.allow_tf32 = value


def on(*shape: int, dtype: Any = torch.float64, seed: int = 0) -> Any:
    return random(*shape, dtype=dtype, seed=seed).to(ON)


class Net(nn.Module):
    """A layer of each kind that has a state, and dropout."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.GroupNorm(2, 8), nn.GELU(),
        )  # fmt: skip
        self.drop, self.norm, self.head = nn.Dropout(dropout), nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        return self.head(self.norm(self.drop(self.body(x)).mean((2, 3))))


def net(**options: Any) -> Any:
    torch.manual_seed(0)
    return Net(**options).to(ON, torch.float64)


def converted(model: Any, **options: Any) -> Any:
    return jt.convert(copy.deepcopy(model), **{"measure": "never", **options})


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)


def gradients(model: Any, x: Any) -> list[Any]:
    """The result, and the gradients of the input and all parameters."""
    x = x.clone().requires_grad_()
    y = model(x)
    return [y, *torch.autograd.grad(y.square().sum(), [x, *model.parameters()])]


def test_there_and_back() -> None:
    stock, x = net(), on(4, 3, 8, 8)
    ours = converted(stock)
    with all_ours():
        close(gradients(ours, x), gradients(stock, x))
    jt.revert(ours)
    with watched() as seen:
        gradients(ours, x)
    assert not seen


def test_use_and_install() -> None:
    """Functions of a block and of the process, also of torch's own that are no modules."""
    x, w = on(2, 4, 9, 7), on(6, 4, 3, 3)
    q, k, v = (on(2, 3, 10, 8, seed=seed) for seed in range(3))
    grid, labels = on(2, 5, 6, 2).tanh(), torch.tensor([1, 3], device=ON)
    table, words = on(11, 6), torch.randint(11, (3, 4), device=ON)
    calls = {
        "conv2d": lambda: F.conv2d(x, w, padding=1),
        "reflect": lambda: F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), w),
        "transposed": lambda: F.conv_transpose2d(x, w.transpose(0, 1), stride=2, output_padding=1),
        "complex": lambda: F.conv2d(torch.complex(x, x), torch.complex(w, -w)),
        "max_pool": lambda: F.max_pool2d(x, 3, 2, 1),
        "avg_pool": lambda: F.avg_pool2d(x, 2),
        "adaptive": lambda: F.adaptive_avg_pool2d(x, 3),
        "batch_norm": lambda: F.batch_norm(x, None, None, training=True),
        "layer_norm": lambda: F.layer_norm(x, (7,)),
        "group_norm": lambda: F.group_norm(x, 2),
        "instance_norm": lambda: F.instance_norm(x),
        "gelu": lambda: F.gelu(x),
        "softmax": lambda: F.softmax(x, 1),
        "cross_entropy": lambda: F.cross_entropy(x[:, :, 0, 0], labels),
        "mse": lambda: F.mse_loss(x, torch.zeros_like(x)),
        "attention": lambda: F.scaled_dot_product_attention(q, k, v),
        "resize": lambda: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
        "grid_sample": lambda: F.grid_sample(x, grid, align_corners=False),
        "embedding": lambda: F.embedding(words, table),
        "linear": lambda: F.linear(x, on(5, 7)),
    }
    wanted = {name: call() for name, call in calls.items()}
    for _ in range(2):  # looked up, and remembered
        with jt.use(measure="never"):
            for name, call in calls.items():
                close(call(), wanted[name])
    jt.install(measure="never")
    with all_ours("forward"):
        close(calls["conv2d"](), wanted["conv2d"])
    for name in ("transposed", "complex", "reflect"):
        close(calls[name](), wanted[name])
    jt.uninstall()
    with watched() as seen:
        assert torch.equal(calls["conv2d"](), wanted["conv2d"])
    assert not seen


def test_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    stock, x = net(), on(4, 3, 8, 8)
    ours = converted(stock)
    monkeypatch.setenv("JITDNN_DISABLE", "1")
    with watched() as seen:
        close(gradients(ours, x), gradients(stock, x))
    assert not any(kind.decision.is_ours for kind in seen)
    assert not any(map(jt.is_converted, converted(stock).modules()))


def test_padding_modes_and_lazy_layers() -> None:
    for make in (
        lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"),
        lambda: nn.Conv2d(3, 4, 3, padding="same"),
        lambda: nn.LazyConv2d(4, 3),
        lambda: nn.ConvTranspose2d(3, 4, 3, 2, output_padding=1),
    ):
        torch.manual_seed(0)
        stock = make().to(ON, torch.float64)
        ours = converted(stock)
        x = on(2, 3, 8, 7)
        with torch.random.fork_rng(devices=[0]):
            wanted = stock(x)
        ours(x)
        ours.load_state_dict(stock.state_dict())
        close(ours(x), wanted)


def test_dropout_is_torchs() -> None:
    """The numbers of torch's generator, so that a seed gives what it gave."""
    stock, x = net(dropout=0.5), on(4, 3, 8, 8)
    ours = converted(stock)
    torch.manual_seed(5)
    wanted = gradients(stock, x)
    torch.manual_seed(5)
    close(gradients(ours, x), wanted)


def test_transforms() -> None:
    """vmap, and gradients of each image by `torch.func`; forward derivatives; a Hessian's product."""
    stock = net().eval()
    ours, x = converted(stock).eval(), on(4, 3, 8, 8)

    def each(model: Any) -> Any:
        values = dict(model.named_parameters())

        def loss(values: Any, one: Any) -> Any:
            return torch.func.functional_call(model, values, (one[None],)).square().sum()

        return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(values, x)

    close(each(ours), each(stock))
    tangent = on(4, 3, 8, 8, seed=1)
    close(torch.func.jvp(ours, (x,), (tangent,)), torch.func.jvp(stock, (x,), (tangent,)))

    def second(model: Any) -> Any:
        given = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(model(given).square().sum(), given, create_graph=True)
        return torch.autograd.grad((first * tangent).sum(), [given, *model.parameters()], allow_unused=True)

    close(second(ours), second(stock))


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_checkpoints(is_reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    stock, x = net(dropout=0.5), on(4, 3, 8, 8)
    ours = converted(stock)

    def run(model: Any) -> Any:
        torch.manual_seed(3)
        given = x.clone().requires_grad_()
        y = checkpoint(model, given, use_reentrant=is_reentrant)
        y.square().sum().backward()
        found = [y, given.grad, *(one.grad for one in model.parameters())]
        model.zero_grad()
        return found

    for _ in range(3):
        close(run(ours), run(stock))


def test_copies_and_pickles() -> None:
    stock, x = net(), on(4, 3, 8, 8)
    for graphs in (False, True):
        ours = converted(stock, graphs=graphs)
        for _ in range(8):
            gradients(ours, x)
        whole = io.BytesIO()
        torch.save(ours, whole)
        whole.seek(0)
        ours.load_state_dict(stock.state_dict())
        for other in (
            copy.deepcopy(ours),
            pickle.loads(pickle.dumps(ours)),
            torch.load(whole, weights_only=False),
        ):
            assert {name for name, one in other.named_modules() if jt.is_converted(one)} == {
                name for name, one in ours.named_modules() if jt.is_converted(one)
            }
            other.load_state_dict(stock.state_dict())
            close(gradients(other, x), gradients(copy.deepcopy(stock), x))


def test_a_tensor_of_a_class_of_its_own() -> None:
    own: Any = type("Own", (torch.Tensor,), {})
    stock, x = net(), on(4, 3, 8, 8).as_subclass(own)
    ours = converted(stock)
    y = ours(x)
    assert type(y) is own
    close(y.as_subclass(torch.Tensor), stock(x).as_subclass(torch.Tensor))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("measure", ["never", "first"])
def test_nested_tensors(measure: str) -> None:
    stock = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU()).to(ON, torch.float64)
    ours, dense = converted(stock, measure=measure), on(5, 8)
    parts = [on(2, 8), on(3, 8)]
    for layout in (torch.jagged, torch.strided):
        x = torch.nested.nested_tensor(parts, layout=layout)
        for _ in range(2):
            for one, other in zip(ours(x).unbind(), stock(x).unbind(), strict=True):
                close(one, other)
            for _ in range(10):
                ours(dense)


def test_a_limit_on_memory() -> None:
    """The step's peak stays within it, and its results are those without."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3, padding=1)]
    for _ in range(6):
        layers += [nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)]
    stock = nn.Sequential(*layers).to(ON)
    x = on(8, 3, 64, 64, dtype=torch.float32)
    state = copy.deepcopy(stock.state_dict())

    def loss(y: Any) -> Any:
        return y.square().mean()

    def step(model: Any) -> tuple[list[Any], int]:
        model.load_state_dict(state)
        model.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        loss(model(x)).backward()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
        return [one.grad for one in model.parameters()], peak

    for _ in range(2):
        wanted, free = step(stock)
    limit = int(0.7 * free)
    ours = jt.convert(copy.deepcopy(stock), measure="never", memory_limit=limit, loss=loss)
    for _ in range(3):
        found, peak = step(ours)
    assert peak <= limit
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)
