"""Compiled, exported and checkpointed models are what they were, by ours."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.utils.checkpoint import checkpoint  # noqa: E402

import jitdnn.torch as jt  # noqa: E402
from torch_kernels import all_ours, random, watched  # noqa: E402

nn = torch.nn
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.usefixtures("no_graphs"),
]


def small() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.SiLU(), nn.MaxPool2d(2), nn.ConvTranspose2d(4, 4, 2, 2),
        nn.AvgPool2d(2), nn.Flatten(), nn.LayerNorm(36), nn.Linear(36, 5), nn.Tanh(),
    )  # fmt: skip


def trained(model: Any, run: Any, x: Any) -> list[Any]:
    """The result, the gradients of the input and the parameters, and the buffers after it."""
    x = x.clone().requires_grad_()
    y = run(x)
    found = torch.autograd.grad(y.square().sum(), [x, *model.parameters()])
    return [y, *found, *(one.clone() for one in model.buffers())]


def close(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_without_breaks_and_with_any_batch() -> None:
    model = jt.convert(small(), measure="never")
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for batch in (2, 3, 5):
        x = random(batch, 3, 6, 6)
        with all_ours("forward", "data", "filter", "bias", "gradients"):
            found = trained(model, compiled, x)
        close(found, trained(twin, twin, x))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before == 1


def test_inductor() -> None:
    model = jt.convert(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)), measure="never")
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, fullgraph=True)
    x = random(2, 3, 6, 6).contiguous(memory_format=torch.channels_last)
    try:
        with all_ours("forward", "data", "filter"):
            found = trained(model, compiled, x)
    except torch._inductor.exc.InductorError as error:
        if "compiler" in str(error).lower():
            pytest.skip("no C++ compiler for torch's own kernels")
        raise
    close(found, trained(twin, twin, x))


def test_use_in_a_compiled_function() -> None:
    model = small().eval()

    def run(x: Any) -> Any:
        with jt.use(measure="never"):
            return model(x)

    x = random(2, 3, 6, 6)
    with all_ours("forward"):
        found = torch.compile(run, backend="aot_eager")(x)
    close(found, model(x))


def test_export() -> None:
    model = jt.convert(small().eval(), measure="never")
    x = random(2, 3, 6, 6)
    program = torch.export.export(
        model, (x,), dynamic_shapes={"input": {0: torch.export.Dim("batch", min=1, max=64)}}
    )
    targets = {str(node.target) for node in program.graph.nodes}
    assert {"jitdnn.convolution.default", "jitdnn.linear.default", "jitdnn.max_pool.default"} <= targets
    x = random(5, 3, 6, 6)
    with all_ours("forward"):
        found = program.module()(x)
    close(found, model(x))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint(use_reentrant: bool) -> None:
    model = jt.convert(small(), measure="never")
    twin = copy.deepcopy(model)
    x = random(2, 3, 6, 6)
    with watched() as seen:  # the reentrant one has gradients by .backward() only
        checkpoint(model[2:], model[:2](x), use_reentrant=use_reentrant).square().sum().backward()
    twin(x).square().sum().backward()
    close([one.grad for one in model.parameters()], [one.grad for one in twin.parameters()])
    # the part behind the first two layers ran forward twice
    assert sum(kind.name == "forward" for kind in seen) == 2 + 2 * 7
    assert all(kind.decision.is_ours for kind in seen)
