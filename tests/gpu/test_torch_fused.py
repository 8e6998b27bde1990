"""`jt.fuse` and the backend "jitdnn" with tensors on a GPU: values, types, streams, captures, and who runs."""

from __future__ import annotations

import gc
import threading
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jitdnn.torch as jt  # noqa: E402
from jitdnn.devices.gpu import OutOfMemory  # noqa: E402
from jitdnn.errors import NotSupported  # noqa: E402
from jitdnn.frameworks.torch import fused_gpu  # noqa: E402
from jitdnn.frameworks.torch.backend import register  # noqa: E402
from jitdnn.frameworks.torch.choice import Decision  # noqa: E402
from jitdnn.frameworks.torch.fused_gpu import Unfused  # noqa: E402
from jitdnn.frameworks.torch.gpu_program import GpuProgram  # noqa: E402
from torch_zoo import SMALL, settled  # noqa: E402

if not torch.cuda.is_available():
    pytest.skip("PyTorch has no GPU here", allow_module_level=True)

# of PyTorch, where the first call of a thread of its autograd is a product
pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")

nn, F = torch.nn, torch.nn.functional
#: largest error of the largest element, against float64
BOUNDS = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 8e-2}


@pytest.fixture(autouse=True)
def exact() -> Any:
    torch.manual_seed(0)
    backends = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [one.allow_tf32 for one in backends]
    for one in backends:
        one.allow_tf32 = False
    yield
    for one, value in zip(backends, before, strict=True):
        one.allow_tf32 = value
    # a capture that failed leaves its stream, and PyTorch's generator in the state of a capture
    torch.cuda.set_stream(torch.cuda.default_stream())
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(torch.Generator("cuda").graphsafe_get_state())


class Block(nn.Module):
    """Attention and a perceptron of a transformer."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.heads = heads

    def forward(self, x: Any) -> Any:
        n, t, c = x.shape
        q, k, v = self.qkv(self.before(x)).reshape(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, c)
        x = x + self.out(y)
        return x + self.mlp(self.between(x))


class Transformer(nn.Module):
    """Patches of an image with a class token before them."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.token = nn.Parameter(0.1 * torch.randn(1, 1, width))
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Any) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        return self.head(self.norm(self.blocks(x))[:, 0])


class Mixed(nn.Module):
    """An operator that has no translation between others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 24), nn.Linear(24, 7)

    def forward(self, x: Any) -> Any:
        y = torch.cumsum(torch.relu(self.first(x)), 1)
        return self.last(y), y.sum(1)


NETS = {**SMALL, "transformer": Transformer}


def made(name: str) -> Any:
    net = NETS[name]()
    return (net if name == "transformer" else settled(net)).eval()


def ours(model: Any, **options: Any) -> Any:
    return jt.fuse(model, **{"measure": "never", **options})


def programs(fused: Any) -> list[Any]:
    return [
        prepared.program
        for function, _ in fused._functions.values()
        for prepared in function._programs.young.values()
    ]


def agrees(got: Any, exact: Any, dtype: Any) -> None:
    assert got.dtype == dtype
    assert got.shape == exact.shape
    assert got.is_cuda
    scale = max(1e-3, exact.abs().max().item())
    assert (got.double() - exact).abs().max().item() <= BOUNDS[dtype] * scale


@pytest.mark.parametrize("dtype", list(BOUNDS))
@pytest.mark.parametrize("name", NETS)
def test_networks(name: str, dtype: Any) -> None:
    """Launched, captured, replayed; other values, another batch, channels last, and results of their own."""
    model = made(name).cuda()
    double = made(name).cuda().double()
    double.load_state_dict(model.state_dict())
    model = model.to(dtype)
    double.load_state_dict(model.state_dict())
    fused = ours(model)
    kept = []
    with torch.no_grad():
        for batch in (2, 2, 2, 1, 2):
            x = torch.randn(batch, 3, 32, 32, device="cuda", dtype=dtype)
            kept.append((fused(x), double(x.double())))
        y = x.contiguous(memory_format=torch.channels_last)
        for _ in range(2):
            kept.append((fused(y), double(y.double())))
    for got, exact in kept:
        agrees(got, exact, dtype)
    assert all(isinstance(one, GpuProgram) for one in programs(fused))
    assert not any(one.division.others for one in programs(fused))


def test_images_come_out_as_they_would() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, 4, 3)).cuda().eval()
    for form in (torch.contiguous_format, torch.channels_last):
        own = model.to(memory_format=form)
        x = torch.randn(2, 3, 9, 7, device="cuda").contiguous(memory_format=form)
        with torch.no_grad():
            wanted = own(x)
            got = ours(own)(x)
        assert got.stride() == wanted.stride()
        torch.testing.assert_close(got, wanted)


def test_autocast() -> None:
    model = made("resnet18").cuda()
    fused = ours(model)
    x = torch.randn(2, 3, 32, 32, device="cuda")
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        wanted = model(x)
        got = fused(x)
    assert got.dtype == wanted.dtype == torch.bfloat16
    torch.testing.assert_close(
        got.double(), model.double()(x.double()), rtol=0, atol=8e-2 * wanted.abs().max().item()
    )


def test_changed_weights_are_noticed() -> None:
    model = made("resnet18").cuda()
    fused = ours(model)
    x = torch.randn(2, 3, 32, 32, device="cuda")
    with torch.no_grad():
        fused(x)
        for parameter in model.parameters():
            parameter.mul_(1.1)
        torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-4)


def test_what_has_no_translation_is_torch_s() -> None:
    model = Mixed().cuda().eval()
    fused = ours(model)
    x = torch.randn(5, 16, device="cuda")
    with torch.no_grad():
        for _ in range(3):
            for got, wanted in zip(fused(x), model(x), strict=True):
                torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    (program,) = programs(fused)
    assert [str(node.target) for node in program.division.others] == ["aten.cumsum.default"]


def test_a_model_of_other_operators_runs_itself() -> None:
    class Sums(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.cumsum(torch.cumprod(x, 1), 1).sort(1)[0]

    fused = ours(Sums().eval())
    x = torch.randn(3, 5, device="cuda")
    assert torch.equal(fused(x), Sums()(x))
    (program,) = programs(fused)
    assert isinstance(program, Unfused)
    assert "covered" in program.reason


def test_measured_beside_the_model() -> None:
    model = made("mobilenet_v2").cuda().half()
    fused = jt.fuse(model)
    x = torch.randn(1, 3, 64, 64, device="cuda").half()
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fused(x).float(), model(x).float(), rtol=2e-2, atol=2e-2)


def test_a_call_within_a_capture() -> None:
    model = made("resnet18").cuda()
    fused = ours(model)
    x = torch.randn(2, 3, 32, 32, device="cuda")
    with torch.no_grad():
        with pytest.raises(NotSupported, match="before the capture"):
            captured(lambda: fused(x))
        torch.cuda.synchronize()
        fused(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = fused(x)
            again = fused(got[:, :3, None, None].expand(2, 3, 32, 32) + x)
        for _ in range(2):
            x.normal_()
            graph.replay()
            own = fused(x)  # beside the replay
            torch.testing.assert_close(got, model(x), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(own, got, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(again, model(got[:, :3, None, None] + x), rtol=1e-4, atol=1e-4)


def captured(run: Any) -> None:
    """Run something in a capture that is not kept, and which must not come to an end by it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a graph that stays empty
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            run()


@pytest.mark.parametrize("is_same_stream", [False, True])
def test_what_is_collected_in_a_capture_does_not_end_it(is_same_stream: bool) -> None:
    """Programs go with the collector of cycles, which may begin in the middle of anything."""
    model, x = made("resnet18").cuda(), torch.randn(2, 3, 32, 32, device="cuda")
    stream = torch.cuda.Stream()
    with torch.no_grad():
        wanted = model(x)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            fused = ours(model)
            for _ in range(3):
                fused(x)
        y, graph = torch.zeros_like(wanted), torch.cuda.CUDAGraph()
        gc.collect()  # graphs of PyTorch's that other tests have left end a capture
        with torch.cuda.graph(graph, stream=stream if is_same_stream else None):
            y.add_(wanted)
            del fused
            gc.collect()
            y.add_(wanted)
        graph.replay()
        assert torch.equal(y, wanted + wanted)
        torch.testing.assert_close(ours(model)(x), wanted, rtol=1e-4, atol=1e-4)


def test_streams_and_threads() -> None:
    model = made("resnet18").cuda()
    fused = ours(model)
    inputs = [torch.randn(2, 3, 32, 32, device="cuda") for _ in range(4)]
    found: list[Any] = [None] * 4

    def run(number: int) -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(5):
                found[number] = fused(inputs[number])
            torch.cuda.current_stream().synchronize()

    torch.cuda.synchronize()
    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with torch.no_grad():
        for x, got in zip(inputs, found, strict=True):
            torch.testing.assert_close(got, model(x), rtol=1e-4, atol=1e-4)


def test_tf32_as_torch_allows_it() -> None:
    model = nn.Conv2d(64, 64, 3, padding=1).cuda().eval()
    x = torch.randn(4, 64, 16, 16, device="cuda")
    fused = ours(model)
    exact = model.double()(x.double()).detach()
    model.float()
    errors = []
    for allowed in (False, True):
        torch.backends.cudnn.allow_tf32 = allowed
        with torch.no_grad():
            got = fused(x)
        errors.append(((got - exact).abs().max() / exact.abs().max()).item())
    assert errors[0] < 2e-6
    assert errors[1] < 2e-3


def test_a_limit_on_memory_is_refused() -> None:
    fused = jt.fuse(made("resnet18").cuda(), memory_limit="24 MiB")
    with pytest.raises(NotSupported, match="memory_limit"), torch.no_grad():
        fused(torch.randn(1, 3, 32, 32, device="cuda"))
    free = ours(made("resnet18").cuda())
    assert free.footprint(torch.randn(1, 3, 32, 32, device="cuda")).bytes > 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Dynamo's own
def test_the_backend() -> None:
    torch.compiler.reset()
    register()  # where the package is not installed
    model = made("resnet18").cuda()
    compiled = torch.compile(model, backend="jitdnn", options={"measure": "never"})
    with torch.no_grad():
        for batch in (2, 3, 2):
            x = torch.randn(batch, 3, 32, 32, device="cuda")
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_slower_is_inductor_s(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    register()  # where the package is not installed
    monkeypatch.setattr(fused_gpu, "decide", lambda *_: Decision(False, "slower"))
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).cuda().eval()
    compiled, x = torch.compile(model, backend="jitdnn"), torch.randn(2, 3, 9, 7, device="cuda")
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


def test_without_memory_the_model_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise OutOfMemory("none is left")

    monkeypatch.setattr(fused_gpu, "GpuProgram", fails)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).cuda().eval()
    fused, x = ours(model), torch.randn(2, 3, 9, 7, device="cuda")
    with torch.no_grad():
        torch.testing.assert_close(fused(x), model(x))
    (program,) = programs(fused)
    assert "none is left" in program.reason


def test_rms_norm_and_normalize() -> None:
    model = nn.Sequential(nn.RMSNorm(48), nn.Linear(48, 24), nn.SiLU()).cuda().eval()
    fused, x = ours(model), torch.randn(5, 7, 48, device="cuda")
    with torch.no_grad():
        torch.testing.assert_close(fused(x), model(x), rtol=1e-5, atol=1e-5)
    (program,) = programs(fused)
    assert not program.division.others
