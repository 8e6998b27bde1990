"""Products of float32 matrices in Inductor's graphs, of linear layers and of their gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

from inductor_graphs import as_on_gpus, close, compiled, count, trained  # noqa: E402
from jitdnn.frameworks.torch import choice, inductor_matmul  # noqa: E402
from jitdnn.frameworks.torch.backend import register  # noqa: E402
from torch_kernels import random  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)
on_gpu = as_on_gpus(inductor_matmul)
PRODUCTS = ("aten.mm.", "aten.addmm.")


def network(has_bias: bool) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 12, bias=has_bias), nn.GELU(), nn.Linear(12, 5, bias=has_bias))


def left(graphs: list[list[str]]) -> int:
    return sum(count(graph, name) for graph in graphs for name in PRODUCTS)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("shape", [(6, 7), (2, 3, 7)])
def test_a_training_step(shape: tuple[int, ...], has_bias: bool) -> None:
    """No product is left; results and gradients are PyTorch's, and lie as PyTorch's."""
    own, x = network(has_bias), random(*shape)
    run, graphs, explained = compiled(own)
    found, wanted = trained(own, run, x), trained(twin := copy.deepcopy(own), twin, x)
    for one, other in zip(found, wanted, strict=True):
        close(one, other)
        assert one.stride() == other.stride()
    assert left(graphs) == 0
    assert [count(graph, "settled_convolution") for graph in graphs] == [2, 4]
    told = [row.direction for row in explained.explanation.rows]
    assert sorted(told) == ["data", "data", "filter", "filter", "forward", "forward"]


def test_forms_that_ours_take() -> None:
    def products(a: Any, b: Any, c: Any, d: Any) -> Any:
        return a @ b.t(), a @ c, d.t() @ c, torch.addmm(c[0], a, c), d.t() @ b.t()

    a, b, c, d = random(6, 4), random(5, 4, seed=1), random(4, 5, seed=2), random(4, 6, seed=3)
    run, graphs, _ = compiled(products)
    for one, other in zip(run(a, b, c, d), products(a, b, c, d), strict=True):
        close(one, other)
    assert left(graphs) == 2  # both operands by columns; a bias, and b by rows


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_stay_torchs(dtype: Any) -> None:
    own, x = network(True).to(dtype), random(6, 7).to(dtype)
    run, graphs, _ = compiled(own)
    run(x)
    assert left(graphs) > 0


def test_where_products_may_round_they_are_torchs() -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        run, graphs, _ = compiled(network(True))
        run(random(6, 7))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert left(graphs) > 0


NEWER = pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="an older PyTorch has one name of it"
)


@NEWER
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_the_newer_names_say_whether_they_may_round(precision: str) -> None:
    """PyTorch raises RuntimeError for the older name where the newer ones are not all alike."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = precision
    try:
        run, graphs, _ = compiled(network(True))
        run(random(6, 7))
    finally:
        matmul.fp32_precision = before
    assert (left(graphs) > 0) is (precision == "tf32")


def test_the_faster_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [2.0, 1.0]  # ours, torch's
    monkeypatch.setattr(choice, "_measured", lambda ours, stock, *_: (ours(), stock(), *times)[-2:])
    own, x = network(True), random(6, 7)
    for is_ours in (False, True):
        torch._dynamo.reset()
        run, graphs, _ = compiled(own, measure="first", workspace_limit=1 << (20 + is_ours))
        close(run(x), own(x))
        assert (left(graphs) == 0) is is_ours
        times.reverse()


def test_inductor_calls_ours() -> None:
    register()
    own, x = network(True), random(6, 7)
    run = torch.compile(own, backend="jitdnn_inductor", options={"measure": "never"})
    for _ in range(2):
        for one, other in zip(
            trained(own, run, x), trained(twin := copy.deepcopy(own), twin, x), strict=True
        ):
            close(one, other)
