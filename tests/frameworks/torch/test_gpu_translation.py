"""Operators of ATen as graphs of the engine that runs on GPUs: translated, and run on the processor beside PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from examples import examples  # noqa: E402
from jitdnn.errors import NotSupported  # noqa: E402
from jitdnn.frameworks.torch.gpu_program import Engines, GpuProgram  # noqa: E402
from jitdnn.frameworks.torch.graph import capture  # noqa: E402


class Calls(nn.Module):
    """A function of tensors and modules."""

    def __init__(self, function: Callable[..., Any], *modules: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(modules)
        self.function = function

    def forward(self, *tensors: Any) -> Any:
        return self.function(*self.parts, *tensors)


def program(
    model: nn.Module, inputs: Sequence[Any], options: str = ""
) -> tuple[GpuProgram, Callable[..., Any]]:
    """A model's translation for inputs of this kind, and the model as a function of them that gives a list."""
    named = [*model.named_parameters(), *model.named_buffers()]
    names, constants = [name for name, _ in named], [tensor.detach() for _, tensor in named]

    def run(*tensors: Any) -> list[Any]:
        held = dict(zip(names, tensors, strict=False))
        found = torch.func.functional_call(model, held, tensors[len(names) :])
        return [found] if isinstance(found, torch.Tensor) else list(found)

    traced = capture(run, [*constants, *inputs], "a model", options)
    return GpuProgram(traced, constants, options, Engines(None, options)), lambda *x: run(*constants, *x)


def agrees(model: nn.Module, *inputs: Any, others: Sequence[str] = (), bound: float = 1e-12) -> GpuProgram:
    """Values, shapes, types and order in memory are the model's; `others`: what PyTorch runs."""
    model = model.eval().double()
    with torch.no_grad():
        made, run = program(model, inputs)
        for _ in range(2):
            for got, wanted in zip(made(*inputs), run(*inputs), strict=True):
                assert got.shape == wanted.shape
                assert got.dtype == wanted.dtype
                torch.testing.assert_close(got, wanted, rtol=bound, atol=bound)
                assert got.data_ptr() not in [x.data_ptr() for x in inputs]
    assert [str(node.target) for node in made.division.others] == list(others)
    return made


def real(*shape: int) -> Any:
    return torch.randn(*shape, dtype=torch.float64)


def norm(channels: int) -> nn.Module:
    """A batch normalization of which nothing is 0 or 1."""
    made = nn.BatchNorm2d(channels)
    for tensor, low in (
        (made.running_mean, -1.0),
        (made.running_var, 0.5),
        (made.weight, -1.0),
        (made.bias, -1.0),
    ):
        nn.init.uniform_(tensor, low, 2.0)
    return made


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...]]] = {
    "convolution, normalization, rectifier": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), norm(8), nn.ReLU(inplace=True)), ((2, 3, 9, 7),),
    ),
    "normalization first": (lambda: nn.Sequential(norm(3), nn.Conv2d(3, 4, 1), nn.SiLU()), ((2, 3, 5, 7),)),
    "depthwise with a residual": (
        lambda: Calls(lambda c, n, x: F.hardswish(n(c(x)) + x), nn.Conv2d(6, 6, 5, padding=2, groups=6), norm(6)),
        ((1, 6, 7, 9),),
    ),
    "transposed": (lambda: nn.ConvTranspose2d(6, 4, 3, 2, 1, 1), ((2, 6, 5, 4),)),
    "one axis": (lambda: nn.Conv1d(5, 7, 3, dilation=2, padding=2), ((2, 5, 17),)),
    "three axes": (lambda: nn.Conv3d(4, 6, 3, padding=1, groups=2), ((2, 4, 5, 6, 7),)),
    "a gate of channels": (
        lambda: Calls(lambda c, x: x * torch.sigmoid(c(x.mean((2, 3), keepdim=True))) + x, nn.Conv2d(8, 8, 1)),
        ((2, 8, 5, 7),),
    ),
    "pools": (
        lambda: Calls(lambda x: (
            F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 2, 2, 0, False, False),
            F.max_pool2d(x, 3, 2, 1, ceil_mode=True), F.adaptive_avg_pool2d(x, (3, 2)), F.adaptive_avg_pool2d(x, 1),
            F.adaptive_max_pool2d(x, 2),
        )),
        ((2, 5, 11, 9),),
    ),
    "sums": (
        lambda: Calls(lambda x: (
            x.mean((1, 2)), x.sum(1), x.amax(-1, True), x.amin((0, 1)), x.mean(), x.sum(),
            torch.linalg.vector_norm(x, dim=1), torch.linalg.vector_norm(x, 1, (1, 2), True),
        )),
        ((3, 5, 7),),
    ),
    "perceptron": (
        lambda: nn.Sequential(nn.Linear(17, 33), nn.GELU(), nn.Linear(33, 5), nn.Softmax(-1)), ((3, 7, 17),),
    ),
    "normalizations": (
        lambda: Calls(
            lambda a, b, c, d, e, x: (
                a(x), b(x), c(x), d(x), e(x), F.layer_norm(x, x.shape[1:]), F.normalize(x, dim=1),
            ),
            nn.GroupNorm(2, 6), nn.LayerNorm(7), nn.LayerNorm((5, 7), elementwise_affine=False), nn.RMSNorm(7),
            nn.InstanceNorm2d(6, affine=True),
        ),
        ((2, 6, 5, 7),),
    ),
    "movements": (
        lambda: Calls(lambda x: (
            x.permute(0, 2, 1) + 1, x[:, 1:, ::2], x.flatten(1), torch.cat([x, x[:, :2]], 1), torch.stack([x, x], 1),
            x.chunk(2, 1)[1], x.unbind(2)[0] * 2, F.pad(x, (1, 2, 0, 1)), F.pad(x, (-1, 0)),
            torch.roll(x, (1, -2), (1, 2)), x.unsqueeze(1).expand(-1, 3, -1, -1) + 1, x.select(1, -1),
            x.transpose(0, 2).contiguous() + 1, x.split([1, 4], 1)[1],
        )),
        ((2, 5, 6),),
    ),
    "formulas": (
        lambda: Calls(lambda x, y: (
            torch.where(x > 0.5, x, y), F.softplus(x), F.elu(x, 0.3), F.mish(x), x / (y.abs() + 1), x.clamp(-0.5, 0.5),
            torch.maximum(x, y), 1 - x, x.pow(2), x.exp().log1p(), F.leaky_relu(x), F.gelu(x, approximate="tanh"),
            torch.rsub(x, y, alpha=2), torch.add(x, y, alpha=0.5), x > 0.0, x + y[:1],
        )),
        ((3, 5), (3, 5)),
    ),
    "resizing": (
        lambda: Calls(lambda x: (
            F.interpolate(x, scale_factor=2), F.interpolate(x, size=(9, 5), mode="bilinear"),
            F.interpolate(x, size=(9, 5), mode="bilinear", align_corners=True),
            F.interpolate(x, scale_factor=1.5, mode="bicubic"),
            F.interpolate(x, scale_factor=(1.7, 2.3), mode="bilinear"),
        )),
        ((2, 3, 5, 7),),
    ),
    "products": (
        lambda: Calls(lambda x, y: (
            x @ y, torch.baddbmm(x @ y, x, y, beta=0.5, alpha=2), F.softmax(x @ y, 1), F.log_softmax(x, -1),
        )),
        ((3, 4, 5), (3, 5, 6)),
    ),
    "attention": (
        lambda: Calls(lambda q, k, v, mask: (
            F.scaled_dot_product_attention(q, k, v, is_causal=True), F.scaled_dot_product_attention(q, k, v, mask),
            F.scaled_dot_product_attention(q, k, v, scale=0.3),
        )),
        ((2, 3, 7, 8), (2, 3, 7, 8), (2, 3, 7, 8), (7, 7)),
    ),
}  # fmt: skip


def test_means_of_images_with_channels_last() -> None:
    """PyTorch counts the axes of one element anew in place, which is no reason to run anything by PyTorch."""
    pooled = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 6))
    x = real(2, 3, 9, 7).contiguous(memory_format=torch.channels_last)
    agrees(pooled, x)
    agrees(nn.Sequential(pooled, nn.RMSNorm(6)), x)  # which writes to its own results


@pytest.mark.parametrize("name", MODELS)
def test_operators(name: str) -> None:
    make, shapes = MODELS[name]
    agrees(make(), *(real(*shape) for shape in shapes))


def test_attention_by_products() -> None:
    """As PyTorch takes it apart for types that its kernels lack, with a query that sees nothing."""

    def attended(q: Any, k: Any, v: Any, mask: Any) -> Any:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v, mask), F.scaled_dot_product_attention(q, k, v)

    mask = torch.ones(7, 7, dtype=torch.bool).tril(-1)
    agrees(Calls(attended), *(real(2, 3, 7, 8) for _ in range(3)), mask)


def test_channels_last_in_and_out() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), norm(8), nn.ReLU()).double().eval()
    x = real(2, 3, 9, 7).contiguous(memory_format=torch.channels_last)
    made = agrees(model, x)
    with torch.no_grad():
        assert made(x)[0].stride() == model(x).stride()


def test_inputs_that_do_not_fill_their_memory() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU())
    agrees(model, real(7, 12)[::2, ::2])
    agrees(model, real(1, 6).expand(3, 6))


def test_operators_without_a_translation_are_torchs() -> None:
    model = Calls(lambda a, b, x: b(F.relu(torch.cumsum(a(x), 1))), nn.Linear(5, 7), nn.Linear(7, 3))
    agrees(model, real(3, 5), others=["aten.cumsum.default"])
    sentence = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 6), nn.LayerNorm(6))
    agrees(sentence, torch.randint(11, (3, 5)), others=["aten.embedding.default"])


def test_results_that_are_inputs_or_constants_are_copies() -> None:
    class Shares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = nn.Parameter(real(3))

        def forward(self, x: Any) -> Any:
            return self.held * 2, x, F.relu(x)

    agrees(Shares(), real(3, 5))


def test_a_graph_of_other_operators_is_refused() -> None:
    with pytest.raises(NotSupported, match=r"0 of 2 operators.*cumsum"):
        program(Calls(lambda x: torch.cumprod(torch.cumsum(x, 0), 0)), [real(3, 5)])
    with pytest.raises(NotSupported, match="arithmetic of integers"):
        program(Calls(lambda x: x + 1), [torch.arange(5)])


def test_autocast_casts_weights_once() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()
    x = torch.randn(2, 3, 9, 7)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        made, run = program(model, [x])
        (got,), (wanted,) = made(x), run(x)
    assert got.dtype == wanted.dtype == torch.bfloat16
    torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)
    assert not made.division.others


def test_each_operation_has_the_arithmetic_that_its_flag_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jitdnn.frameworks.torch.gpu_stretches.allowed_math", lambda: ("tf32", "fp32"))
    model = nn.Sequential(nn.Conv2d(3, 8, 3), norm(8), nn.ReLU(), nn.Flatten(), nn.Linear(280, 5)).eval()
    x = torch.randn(2, 3, 9, 7)
    with torch.no_grad():
        made, _ = program(model, [x])
        asked, _ = program(model, [x], "math=bf16")
    (plan,), (other,) = made.plans, asked.plans
    found = {node.op: node.attributes.get("math") for node in plan.graph.nodes}
    assert (found["conv"], found["matmul"]) == ("tf32", "fp32")
    assert not any("math" in node.attributes for node in other.graph.nodes)


extents = st.integers(1, 7)


@given(
    shape=st.tuples(extents, extents, extents), order=st.permutations(range(3)), axis=st.integers(-3, 2),
    start=st.integers(-8, 8), step=st.integers(1, 3), shift=st.integers(-9, 9),
)  # fmt: skip
@settings(max_examples=examples(12), deadline=None)
def test_movements_of_any_size(shape: Any, order: Any, axis: int, start: int, step: int, shift: int) -> None:
    def moved(x: Any) -> Any:
        y = torch.roll(x.permute(order), shift, axis)
        index = [slice(None)] * 3
        index[axis] = slice(start, None, step)
        return y[tuple(index)] * 2.0, torch.cat([y, x.permute(order)], axis), y.reshape(-1)

    x = real(*shape)
    if moved(x)[0].numel():
        agrees(Calls(moved), x)


@given(
    channels=st.integers(1, 5), size=st.tuples(st.integers(3, 9), st.integers(3, 9)), taps=st.integers(1, 3),
    stride=st.integers(1, 3), padding=st.integers(0, 2), is_last=st.booleans(),
)  # fmt: skip
@settings(max_examples=examples(6), deadline=None)
def test_convolutions_of_any_size(
    channels: int, size: tuple[int, int], taps: int, stride: int, padding: int, is_last: bool
) -> None:
    model = nn.Sequential(nn.Conv2d(channels, 5, taps, stride, padding), norm(5), nn.Hardsigmoid())
    x = real(2, channels, *size)
    agrees(model, x.contiguous(memory_format=torch.channels_last) if is_last else x)
