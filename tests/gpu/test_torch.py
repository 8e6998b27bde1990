"""`jitdnn.torch` with tensors on a GPU: values, gradients, statistics, steps, streams, and who runs."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jitdnn.torch as jt  # noqa: E402
from jitdnn.frameworks.torch import inductor_groups, inductor_launches, kinds, settled, steps, together  # noqa: E402
from jitdnn.frameworks.torch.backend import register  # noqa: E402
from jitdnn.frameworks.torch.calls import CALLS  # noqa: E402
from torch_kernels import TOLERANCE, agree, random, watched  # noqa: E402

if not torch.cuda.is_available():
    pytest.skip("PyTorch has no GPU here", allow_module_level=True)

# of PyTorch, where the first call of a thread of its autograd is a product
pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")

nn, F = torch.nn, torch.nn.functional
ON = "cuda"
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@pytest.fixture(autouse=True)
def alone() -> Any:
    torch.manual_seed(0)
    backends = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [one.allow_tf32 for one in backends]
    for one in backends:
        one.allow_tf32 = False
    kinds.forget()
    yield
    kinds.forget()
    for one, value in zip(backends, before, strict=True):
        one.allow_tf32 = value


def on(*tensors: Any) -> tuple[Any, ...]:
    return tuple(None if one is None else one.to(ON) for one in tensors)


LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "conv": (lambda: nn.Conv2d(8, 16, 3, padding=1), (2, 8, 9, 7)),
    "conv of stride 2 without a bias": (lambda: nn.Conv2d(3, 8, 5, 2, 2, bias=False), (3, 3, 13, 12)),
    "depthwise": (lambda: nn.Conv2d(24, 24, 3, padding=1, groups=24, bias=False), (2, 24, 9, 11)),
    "grouped": (lambda: nn.Conv2d(16, 32, 3, padding=1, groups=4), (2, 16, 7, 9)),
    "conv1d": (lambda: nn.Conv1d(5, 7, 3, dilation=2), (2, 5, 17)),
    "conv3d": (lambda: nn.Conv3d(4, 6, 3, padding=1), (2, 4, 5, 6, 7)),
    "transposed": (lambda: nn.ConvTranspose2d(6, 4, 2, 2), (2, 6, 5, 4)),
    "linear": (lambda: nn.Linear(24, 17), (5, 24)),
    "linear of sequences": (lambda: nn.Linear(24, 16), (3, 5, 24)),
    "batch norm": (lambda: nn.BatchNorm2d(7), (4, 7, 6, 5)),
    "batch norm of rows": (lambda: nn.BatchNorm1d(33), (9, 33)),
    "layer norm": (lambda: nn.LayerNorm(63), (3, 5, 63)),
    "group norm": (lambda: nn.GroupNorm(2, 6), (2, 6, 5, 7)),
    "instance norm": (lambda: nn.InstanceNorm2d(5, affine=True), (2, 5, 6, 7)),
    "rms norm": (lambda: nn.RMSNorm(65), (3, 65)),
    "max pool": (lambda: nn.MaxPool2d(3, 2, 1), (2, 5, 9, 8)),
    "avg pool": (lambda: nn.AvgPool2d(2), (2, 5, 8, 7)),
    "adaptive": (lambda: nn.AdaptiveAvgPool2d(1), (2, 5, 8, 7)),
    "adaptive maximum": (lambda: nn.AdaptiveMaxPool2d(2), (2, 5, 8, 6)),
    "silu": (nn.SiLU, (3, 65)),
    "gelu": (nn.GELU, (3, 65)),
    "hardswish": (nn.Hardswish, (3, 65)),
    "softmax": (lambda: nn.Softmax(1), (3, 65)),
    "upsample": (lambda: nn.Upsample(scale_factor=2.0, mode="bilinear"), (1, 3, 5, 4)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, dtype: Any) -> None:
    """Values and all gradients, three times: looked up, then remembered; both orders of channels."""
    make, shape = LAYERS[name]
    if name == "hardswish" and dtype is torch.float64:
        pytest.skip("PyTorch's own multiplies by 1/6 of single precision on a GPU")
    stock = make().to(ON, torch.float64)
    ours = jt.convert(copy.deepcopy(stock).to(dtype), measure="never")
    for seed in range(3):
        x = random(*shape, dtype=torch.float64, seed=seed).to(ON)
        if seed == 2 and len(shape) in LAST:
            x = x.contiguous(memory_format=LAST[len(shape)])
        given, wide = x.to(dtype).requires_grad_(), x.requires_grad_()
        y, expected = ours(given), stock(wide)
        dy = random(*expected.shape, dtype=torch.float64, seed=7).to(ON)
        found = torch.autograd.grad(y, [given, *ours.parameters()], dy.to(dtype))
        wanted = torch.autograd.grad(expected, [wide, *stock.parameters()], dy)
        tolerance = 10 * TOLERANCE[dtype]
        for one, other in zip((y, *found), (expected, *wanted), strict=True):
            assert one.shape == other.shape
            torch.testing.assert_close(
                one.double(),
                other,
                rtol=tolerance,
                atol=tolerance * max(1.0, float(other.detach().abs().max())),
            )


UNDER_AUTOCAST: dict[str, tuple[Any, tuple[int, ...], Any]] = {
    "layer norm": (lambda: nn.LayerNorm(63), (3, 5, 63), torch.float32),
    "group norm": (lambda: nn.GroupNorm(2, 6), (2, 6, 5, 7), torch.float32),
    "instance norm": (lambda: nn.InstanceNorm3d(8, affine=True), (2, 8, 3, 4, 5), torch.bfloat16),
    "instance norm, activation": (
        lambda: nn.Sequential(nn.InstanceNorm3d(8, affine=True), nn.LeakyReLU(0.01)), (2, 8, 3, 4, 5), torch.bfloat16
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNDER_AUTOCAST)
def test_normalizations_under_autocast(name: str) -> None:
    """Of half precision, to the types that torch's have; remembered, and not taken for calls without autocast."""
    make, shape, dtype = UNDER_AUTOCAST[name]
    stock = make().to(ON)
    exact, ours = copy.deepcopy(stock).double(), jt.convert(copy.deepcopy(stock), measure="never")
    for seed in range(4):
        x = random(*shape, seed=seed).to(ON, torch.bfloat16)
        x = x.contiguous(memory_format=LAST[len(shape)]) if seed == 3 and len(shape) in LAST else x
        given, wide = x.requires_grad_(), x.detach().double().requires_grad_()
        with torch.autocast(ON, torch.bfloat16):
            y, expected = ours(given), exact(wide)
            assert y.dtype == stock(x).dtype == dtype
        is_short = seed in (1, 2) or (seed == 3 and len(shape) not in LAST)
        assert type(y.grad_fn).__name__ == ("_LayerBackward" if is_short else "_CallBackward")
        dy = random(*shape, seed=7).to(ON, dtype)
        found = torch.autograd.grad(y, [given, *ours.parameters()], dy)
        wanted = torch.autograd.grad(expected, [wide, *exact.parameters()], dy.double())
        types = (dtype, torch.bfloat16, *[torch.float32] * len(found[1:]))
        for one, other, kind in zip((y, *found), (expected, *wanted), types, strict=True):
            agree(one, other, kind, name)
    assert ours(random(*shape).to(ON)).dtype is torch.float32
    with torch.autocast(ON, torch.bfloat16):
        assert ours(random(*shape).to(ON)).dtype is torch.float32


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(cell: Any) -> None:
    stock = cell(8, 16, 2, bidirectional=True, batch_first=True).to(ON)
    ours = jt.convert(copy.deepcopy(stock), measure="never")
    x = random(3, 7, 8).to(ON).requires_grad_()
    found, wanted = (
        [y, *torch.autograd.grad(y.square().sum(), [x, *one.parameters()])]
        for one in (ours, stock)
        for y in (one(x)[0],)
    )
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def network() -> Any:
    def block(c: int, k: int, act: Any, **options: Any) -> Any:
        return nn.Sequential(
            nn.Conv2d(c, k, 3, padding=1, bias=False, **options), nn.BatchNorm2d(k), act(inplace=True)
        )

    return nn.Sequential(
        block(3, 16, nn.ReLU6), block(16, 16, nn.SiLU, groups=16), nn.Conv2d(16, 8, 1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    ).to(ON, memory_format=torch.channels_last)  # fmt: skip


def trained(model: Any, count: int, cast: Any = None) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    losses = []
    for number in range(count):
        dtype = next(model.parameters()).dtype
        x = random(4, 3, 12, 10, seed=number % 3).to(ON, dtype).contiguous(memory_format=torch.channels_last)
        labels = torch.arange(4, device=ON)
        with torch.autocast(ON, cast or torch.float16, enabled=cast is not None):
            loss = F.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("measure", ["never", "first"])
@pytest.mark.parametrize("cast", [None, torch.bfloat16])
def test_steps_are_torchs(cast: Any, measure: str) -> None:
    stock = network()
    exact = copy.deepcopy(stock).double()
    ours = jt.convert(copy.deepcopy(stock), measure=measure)
    found, wanted = trained(ours, 6, cast), trained(exact, 6)
    torch.testing.assert_close(found, wanted, rtol=0.05 if cast else 1e-3, atol=0.02 if cast else 1e-3)
    for (name, one), other in zip(ours.named_buffers(), exact.buffers(), strict=True):
        if one.is_floating_point():
            torch.testing.assert_close(
                one.double(), other, rtol=0.1 if cast else 1e-3, atol=0.05 if cast else 1e-3
            )
        else:
            assert int(one) == int(other) == 6, name
    if measure == "never":
        assert all(
            m.__dict__[CALLS].entries for m in ours.modules() if isinstance(m, (nn.Conv2d, nn.BatchNorm2d))
        )
        if cast:
            assert ours.__dict__[together.TOGETHER]._casts


def test_weights_are_cast_together_and_anew() -> None:
    model = jt.convert(network(), measure="never").eval()
    x = random(4, 3, 12, 10).to(ON)
    with torch.no_grad(), torch.autocast(ON, torch.bfloat16):
        for number in range(5):
            found, wanted = model(x), jt.revert(copy.deepcopy(model))(x)
            torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.05)
            for parameter in model.parameters():
                parameter.mul_(1.1)
            assert all(one.copy is None for one in model.__dict__[together.TOGETHER]._casts.values()), number


def test_a_model_settles_on_the_faster_steps() -> None:
    model = jt.convert(network())
    trained(model, 2)
    assert steps.decision(model) is None
    trained(model, 100)
    decision = steps.decision(model)
    assert decision is not None
    assert decision.seconds
    assert decision.stock_seconds
    assert decision.is_ours is (decision.seconds <= decision.stock_seconds)
    known = [one for one in model.modules() if type(one) in {*steps.ACTIVE, *steps.BYPASSED}]
    bypassed = {one for one in known if type(one) in steps.ACTIVE}
    assert bypassed == (set(steps.of(model).bypassed) if decision.is_ours else set(known))


def test_streams_and_captured_graphs() -> None:
    model = jt.convert(network().eval(), measure="never")
    x = random(4, 3, 12, 10).to(ON).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        expected = jt.revert(copy.deepcopy(model))(x)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                y = model(x)
        torch.cuda.current_stream().wait_stream(stream)
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        y.zero_()
        graph.replay()
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
        x.mul_(0.5)
        graph.replay()
        torch.testing.assert_close(y, jt.revert(copy.deepcopy(model))(x), rtol=1e-4, atol=1e-4)


def test_half_precision_with_parameters_of_float32() -> None:
    def mine(x: Any, weight: Any, bias: Any) -> Any:
        with jt.use(measure="never"):
            return F.batch_norm(x, None, None, weight, bias, True, 0.1, 1e-3)

    def torchs(x: Any, weight: Any, bias: Any) -> Any:
        return F.batch_norm(x, None, None, weight, bias, True, 0.1, 1e-3)

    for dtype in (torch.bfloat16, torch.float16):
        x = random(4, 24, 7, 5).to(ON, dtype).contiguous(memory_format=torch.channels_last)
        weight, bias = on(random(24), random(24))
        for _ in range(2):
            y = mine(x, weight, bias)
            tolerance = TOLERANCE[dtype]
            torch.testing.assert_close(
                y.double(),
                torchs(x.double(), weight.double(), bias.double()),
                rtol=tolerance,
                atol=4 * tolerance,
            )


@pytest.mark.parametrize("form", [torch.channels_last, torch.contiguous_format])
def test_operands_elsewhere(form: Any) -> None:
    """Later calls of a kind find their operands at other addresses, those of earlier ones still being there."""
    model = jt.convert(
        nn.Conv2d(64, 64, 3, padding=1, bias=False).to(ON, torch.bfloat16, memory_format=form),
        measure="never",
    )
    wide, tolerance = model.weight.detach().double(), TOLERANCE[torch.bfloat16]
    kept = []
    for seed in range(4):
        x, dy = (
            random(4, 64, 14, 14, seed=one).to(ON, torch.bfloat16, memory_format=form)
            for one in (seed, 9 - seed)
        )
        x.requires_grad_()
        y = model(x)
        kept.append((x, dy, y, *torch.autograd.grad(y, [x, model.weight], dy)))
    for x, dy, y, *grads in kept:
        inputs = [x.detach().double().requires_grad_(), wide.clone().requires_grad_()]
        wanted = F.conv2d(*inputs, padding=1)
        exact = (wanted.detach(), *torch.autograd.grad(wanted, inputs, dy.double()))
        for one, other in zip((y.detach(), *grads), exact, strict=True):
            scale = float(other.abs().max())
            torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance * scale)


def test_compiled_whole() -> None:
    model = jt.convert(network().eval(), measure="never")
    x = random(4, 3, 12, 10).to(ON)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with watched() as seen:
        found = compiled(x)
    assert {kind.name for kind in seen} >= {"forward"}
    torch.testing.assert_close(found, jt.revert(copy.deepcopy(model))(x), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_graphs_of_inductors(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code calls our launches, in training and with what follows a convolution, also as CUDA graphs."""
    from torch._inductor.utils import run_and_get_code

    register()
    torch._dynamo.reset()
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    layers = (nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 4, 1))
    model = nn.Sequential(*layers).to(ON, memory_format=torch.channels_last)
    twin = copy.deepcopy(model).double()
    fast = torch.compile(model, backend="jitdnn_inductor", options={"measure": "never", "mode": mode})

    def step(x: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return torch.autograd.grad(fast(x).square().sum(), list(model.parameters()))

    def infer(x: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            return [fast(x)]

    for run, name in ((step, "jitdnn_convolution("), (infer, "jitdnn_convolution_pointwise(")):
        for turn in range(4):
            x = random(2, 3, 9, 7).to(ON).contiguous(memory_format=torch.channels_last)
            if turn:
                found = run(x)
            else:
                found, codes = run_and_get_code(run, x)
                assert any(f"extern_kernels.{name}" in code for code in codes)
                assert not any(re.search(r"torch\.ops\.jitdnn\.\w+\.default\(", code) for code in codes)
            y = twin(x.double())
            wanted = torch.autograd.grad(y.square().sum(), list(twin.parameters())) if run is step else [y]
            for one, other in zip(found, wanted, strict=True):
                torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-3)
    if torch.cuda.device_count() == 1:
        assert any(calls.records for calls in settled._native.values())


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_small_kernels_of_inductors(mode: str) -> None:
    """Steps under autocast: casts and counters in few kernels, launched by the short way, results as without them."""
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from torch._inductor.utils import run_and_get_code

    register()
    torch._dynamo.reset()
    torch.manual_seed(0)
    convolutions = [
        nn.Conv2d(3, 72, 3, padding=1),
        *(nn.Conv2d(72, 72, 3, padding=1, bias=False) for _ in "ab"),
    ]
    layers = [layer for one in convolutions for layer in (one, nn.BatchNorm2d(72), nn.ReLU())]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(72, 5))
    model = model.to(ON, memory_format=torch.channels_last)
    twin = copy.deepcopy(model)
    options = {"measure": "never", "mode": mode, "fx_graph_cache": False}

    def step(run: Any, own: Any, x: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast("cuda", torch.bfloat16):
            y = run(x)
        return [one.clone() for one in torch.autograd.grad(y.float().square().sum(), list(own.parameters()))]

    images = [random(8, 3, 16, 16).to(ON).contiguous(memory_format=torch.channels_last) for _ in range(4)]
    with torch._functorch.config.patch(enable_autograd_cache=False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(inductor_groups, "MOST", 1)
            alone = torch.compile(twin, backend="jitdnn_inductor", options=options)
            wanted = [step(alone, twin, x) for x in images]
        fast = torch.compile(model, backend="jitdnn_inductor", options=options)
        first, codes = run_and_get_code(step, fast, model, images[0])
    # casts of weights, counters, and casts of the weights' gradients
    assert sum(len(re.findall(r"triton_for_\w+\.run\(", code)) for code in codes) == 3
    for found, others in zip([first, *(step(fast, model, x) for x in images[1:])], wanted, strict=True):
        for one, other in zip(found, others, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))
    counters = [layer.num_batches_tracked.item() for layer in model if isinstance(layer, nn.BatchNorm2d)]
    assert counters == [4] * 3
    if mode == "default" and not hasattr(CachingAutotuner, "_build_fast_launcher"):
        names = [name for code in PyCodeCache.modules for name in vars(code).values()]
        kernels = [one for one in names if isinstance(one, inductor_launches._Kernel)]
        assert sum(one._short is not None and one.run is one._short.call for one in kernels) >= 3
