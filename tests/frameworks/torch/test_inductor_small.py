"""Small results of Inductor's graphs, written by kernels that write several."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import jitdnn.torch as jt  # noqa: E402
from inductor_graphs import close, compiled, count, trained  # noqa: E402
from jitdnn.frameworks.torch import (  # noqa: E402
    channel_sums,
    inductor_small,
    inductor_sums,
    inductor_values,
)
from torch_kernels import random  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)
aten = torch.ops.aten


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small graphs of this processor taken for large ones of a GPU."""
    for one in (inductor_small, inductor_sums, inductor_values):
        monkeypatch.setattr(one, "is_on_gpu", lambda _: True)
    for one in (inductor_sums, inductor_values):
        monkeypatch.setattr(one, "LEAST_BYTES", 0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def layers(norm: Any) -> Any:
    torch.manual_seed(0)
    own = nn.Sequential(
        nn.Conv2d(3, 6, 3),
        norm(6),
        nn.LeakyReLU(0.1),
        nn.Conv2d(6, 6, 3),
        norm(6),
        nn.SiLU(),
        nn.Conv2d(6, 2, 1),
    )
    with torch.no_grad():
        for one in own.parameters():
            one.add_(0.2 * torch.rand_like(one))
    return own.to(memory_format=torch.channels_last)


def instance_norm(c: int) -> Any:
    return nn.InstanceNorm2d(c, affine=True)


@pytest.mark.parametrize("norm", [instance_norm, nn.BatchNorm2d])
def test_a_training_step(norm: Any) -> None:
    """Weights for each image, what is saved of the variances, running statistics, and gradients of weights."""
    own = layers(norm)
    x = random(3, 3, 13, 12).contiguous(memory_format=torch.channels_last)
    run, graphs, _ = compiled(own)
    stock = copy.deepcopy(own)
    for one, other in zip(trained(own, run, x), trained(stock, stock, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    for one, other in zip(own.buffers(), stock.buffers(), strict=True):
        close(one, other)
    assert count(graphs[0], "cast_each") >= 1


@pytest.mark.parametrize("norm", [instance_norm, nn.BatchNorm2d])
def test_inductors_code(norm: Any) -> None:
    from torch._inductor import config
    from torch._inductor.utils import run_and_get_code

    own = layers(norm)
    x = random(3, 3, 13, 12).contiguous(memory_format=torch.channels_last)
    stock = copy.deepcopy(own)
    run = torch.compile(own, options={"post_grad_custom_pre_pass": jt.InductorPass(measure="never")})
    with config.patch(fx_graph_cache=False):
        found, _ = run_and_get_code(lambda: trained(own, run, x))
    for one, other in zip(found, trained(stock, stock, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    for one, other in zip(own.buffers(), stock.buffers(), strict=True):
        close(one, other)


def lists_of(function: Any, *inputs: Any) -> list[int]:
    """How many results each list of a rewritten graph has; the graph's results are the same."""
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    wanted = graph(*(one.clone() for one in inputs))
    inductor_small.store_together(graph.graph)
    graph.graph.lint()
    graph.recompile()
    for one, other in zip(graph(*(one.clone() for one in inputs)), wanted, strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()
    return [len(node.args[0]) for node in graph.graph.nodes if "cast_each" in str(node.target)]


def test_which_results() -> None:
    """Of what lies in memory, small, of one type, and nothing that a reduction gives or a call reads."""
    a, b, wide = random(6), random(6, seed=1), random(200, 100)
    for lists, function in [
        ([2], lambda a, b, wide: [a.repeat(2), b.repeat(3)]),
        ([3], lambda a, b, wide: [a * 2, b + 1, a * b]),
        ([], lambda a, b, wide: [a * 2]),
        ([], lambda a, b, wide: [wide * 2, wide + 1]),
        ([2], lambda a, b, wide: [a * 2, (b + 1).bfloat16(), b * 3]),
        ([], lambda a, b, wide: [wide.sum(0), wide.sum(1)]),
        ([], lambda a, b, wide: [wide.sum(0) * 2, wide.sum(1) * 2]),
        ([2], lambda a, b, wide: [a.view(2, 3).sum(0), b.view(2, 3).mean(0)]),
        ([], lambda a, b, wide: [a.view(2, 3), b.view(3, 2)]),
        ([], lambda a, b, wide: [a.view(2, 3).t() * 2, b.view(2, 3).t() * 2]),
    ]:
        assert lists_of(function, a, b, wide) == lists


def test_what_a_call_reads_is_written_before() -> None:
    """Numbers that are made of sums, and that other sums read, wait for no list behind these."""
    x = random(2, 6, 9, 8).contiguous(memory_format=torch.channels_last)

    def function(x: Any) -> Any:
        first = aten.sum.dim_IntList(x, [0, 2, 3])
        half, double = first * 0.5, first * 2.0
        second = aten.sum.dim_IntList(x * aten.reshape.default(half, [6, 1, 1]), [0, 2, 3])
        return [half, double, second * 3.0]

    graph = make_fx(function, tracing_mode="fake")(x)
    assert inductor_sums.sum_channels(graph.graph, "measure=never") == 2
    assert inductor_small.store_together(graph.graph) == 2
    graph.recompile()
    for one, other in zip(graph(x), function(x), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-4)
    assert sum(node.target is channel_sums.channel_sums.default for node in graph.graph.nodes) == 2
