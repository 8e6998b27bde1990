"""What the code of Inductor's graphs calls on a GPU: convolutions with sums, sums and values of channels, by name."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from jitdnn.frameworks.torch import (  # noqa: E402
    channel_sums,
    channel_values,
    convolution_sums,
    inductor_convolution_sums,
    inductor_sums,
    inductor_values,
    settled,
)
from jitdnn.frameworks.torch.backend import register  # noqa: E402
from jitdnn.frameworks.torch.channel_sums import MOMENTS, SUM, Sums  # noqa: E402
from jitdnn.frameworks.torch.channel_values import Values  # noqa: E402
from jitdnn.frameworks.torch.convolution_sums import Summed  # noqa: E402
from torch_kernels import random  # noqa: E402

if not torch.cuda.is_available():
    pytest.skip("PyTorch has no GPU here", allow_module_level=True)

nn = torch.nn
ON, LAST = "cuda", torch.channels_last_3d
IDENTITY = '[["cast",["%0","torch.float32"],{}]]'
GATED = '[["aten.gt.Scalar",["%0",0],{}],["aten.where.self",["%3","%1","%2"],{}]]'
PRODUCT = GATED[:-1] + ',["aten.mul.Tensor",["%4","%0"],{}]]'
GEOMETRY = ([1, 1, 1], [1, 1, 1], [1, 1, 1], False, [0, 0, 0], 1)
SHAPE = (2, 32, 6, 9, 10)


def last(*shape: int, seed: int = 0) -> Any:
    return random(*shape, seed=seed).bfloat16().to(ON).contiguous(memory_format=LAST)


def form(tensor: Any) -> tuple[Any, ...]:
    return tuple(tensor.shape), tuple(tensor.stride()), str(tensor.dtype).removeprefix("torch.")


def streams() -> Iterator[Any]:
    """The stream of each call: the default one until generated code has the call, another one, and that again."""
    yield from [torch.cuda.default_stream()] * 6
    yield torch.cuda.Stream()
    yield torch.cuda.default_stream()


def launched(function: Any, operands: Any, others: Any, text: str, out: Any, stream: Any) -> None:
    """A call that writes everything of its results, on a stream; which is done then."""
    for one in (*others, out):
        one.fill_(torch.nan)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        function(*operands, *others, text, None, out=out)
    torch.cuda.synchronize()


def shifted(tensor: Any) -> Any:
    """The same tensor one element behind a multiple of 16 bytes."""
    memory = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
    return memory[1:].as_strided(tensor.shape, tensor.stride(), 1).copy_(tensor)


@pytest.mark.parametrize("by_image", [False, True])
@pytest.mark.parametrize("direction", ["forward", "data"])
def test_convolutions_with_sums(direction: str, by_image: bool) -> None:
    convolution_sums._known.clear()
    axes = (2, 3, 4) if by_image else (0, 2, 3, 4)
    w = last(32, 32, 3, 3, 3) / 16
    number = random(SHAPE[0] if by_image else 1, 32, 1, 1, 1).to(ON)
    for turn, stream in enumerate(streams()):
        x, dy = last(*SHAPE, seed=turn), last(*SHAPE, seed=20 + turn)
        own = settled.text_of(direction, x, w, dy, False, GEOMETRY, "")
        if direction == "forward":
            sums, place, given = Sums((form(dy),), by_image, ((MOMENTS, IDENTITY),), ""), 0, (x, w)
            wanted = nn.functional.conv3d(x.double(), w.double(), padding=1)
        else:
            forms = (form(x), form(x), form(number))
            sums, place, given = (
                Sums(forms, by_image, ((SUM, GATED), (SUM, PRODUCT)), ""),
                1,
                (dy, w, x, number),
            )
            wanted = nn.functional.conv_transpose3d(dy.double(), w.double(), padding=1)
        summed = Summed(own, sums, place)
        y = torch.empty_strided(*summed.y[:2], dtype=torch.bfloat16, device=ON)
        totals = torch.empty_strided(*summed.form[:2], dtype=torch.float32, device=ON)
        for one in (given, (shifted(given[0]), *given[1:])):
            launched(convolution_sums.launch, one, (totals,), str(summed), y, stream)
            torch.testing.assert_close(y.double(), wanted, rtol=2e-2, atol=2e-2)
            stored = y.double()
            gated = torch.where(x > 0, stored, number.double())
            made = (stored, stored.square()) if direction == "forward" else (gated, gated * x)
            exact = torch.stack([each.sum(axes).view(totals.shape[1:]) for each in made])
            assert float((totals.double() - exact).norm() / exact.norm()) < 1e-4
    if (
        direction == "data"
        and torch.cuda.get_device_capability() == (9, 0)
        and torch.cuda.device_count() == 1
    ):
        # Hopper has one kernel for both
        assert [type(one.run) for one in convolution_sums._known.young.values()] == [type(len)]


@pytest.mark.parametrize("by_image", [False, True])
def test_sums_and_values_of_channels(by_image: bool) -> None:
    axes = (2, 3, 4) if by_image else (0, 2, 3, 4)
    number = random(SHAPE[0] if by_image else 1, 32, 1, 1, 1).to(ON)
    for turn, stream in enumerate(streams()):
        x, z = last(*SHAPE, seed=turn), last(*SHAPE, seed=20 + turn)
        forms = (form(x), form(z), form(number))
        gated = torch.where(x > 0, z.double(), number.double())
        sums = Sums(forms, by_image, ((SUM, GATED), (SUM, PRODUCT)), "")
        out = torch.empty(sums.result, device=ON)
        launched(channel_sums.launch, (x, z, number), (), str(sums), out, stream)
        exact = torch.stack([each.sum(axes).view(out.shape[1:]) for each in (gated, gated * x)])
        assert float((out.double() - exact).norm() / exact.norm()) < 1e-4
        values = torch.empty_like(x)
        launched(
            channel_values.launch,
            (x, z, number),
            (),
            str(Values(forms, form(x), PRODUCT, "")),
            values,
            stream,
        )
        torch.testing.assert_close(values.double(), gated * x, rtol=1e-2, atol=1e-2)


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_steps_of_a_graph(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code calls both by name, and gradients are as near to float64's as those of PyTorch, also as CUDA graphs."""
    from torch._inductor.utils import run_and_get_code

    register()
    torch._dynamo.reset()
    for one in (inductor_sums, inductor_values):
        monkeypatch.setattr(one, "LEAST_BYTES", 0)
    monkeypatch.setattr(inductor_convolution_sums, "_is_free", lambda *_: True)
    layers = (
        nn.Conv3d(8, 32, 3, padding=1, bias=False),
        nn.GroupNorm(4, 32),
        nn.LeakyReLU(0.01),
        nn.Conv3d(32, 8, 3),
    )
    model = nn.Sequential(*layers).to(ON, memory_format=LAST)
    exact = copy.deepcopy(model).double()
    fast = torch.compile(model, backend="jitdnn_inductor", options={"measure": "never", "mode": mode})

    def step(run: Any, x: Any) -> list[Any]:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(ON, torch.bfloat16, enabled=x.dtype is torch.float32):
            y = run(x)
        parameters = list(exact.parameters() if run is exact else model.parameters())
        return [one.double() for one in torch.autograd.grad(y.double().square().mean(), parameters)]

    def apart(found: list[Any], wanted: list[Any]) -> float:
        distance = sum(float((one - other).square().sum()) for one, other in zip(found, wanted, strict=True))
        return (distance / sum(float(one.square().sum()) for one in wanted)) ** 0.5

    for turn in range(6):
        x = random(2, 8, 9, 7, 6, seed=turn).to(ON).contiguous(memory_format=LAST)
        if turn:
            found = step(fast, x)
        else:
            found, codes = run_and_get_code(step, fast, x)
            assert any("extern_kernels.jitdnn_convolution_sums(" in code for code in codes)
            assert not any(re.search(r"torch\.ops\.jitdnn\.\w+\.default\(", code) for code in codes)
        wanted = step(exact, x.double())
        assert apart(found, wanted) <= 1.5 * apart(step(model, x), wanted) + 1e-6
