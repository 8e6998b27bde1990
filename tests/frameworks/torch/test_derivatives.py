"""Third derivatives, and second ones by torch.func: those of torch, for every operator."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from jitdnn.frameworks.torch import functional  # noqa: E402
from torch_kernels import random, watched  # noqa: E402

F = torch.nn.functional
NEVER = "measure=never"
CASES = {
    "convolution": (lambda x, w: functional.conv(x, w, options=NEVER), F.conv2d, ((1, 2, 3, 4), (2, 2, 2, 2))),
    "linear": (lambda x, w: functional.linear(x, w, options=NEVER), F.linear, ((3, 4), (2, 4))),
    "max": (
        lambda x: functional.ROUTES[F.max_pool2d](x, 2, options=NEVER),
        lambda x: F.max_pool2d(x, 2),
        ((1, 2, 4, 4),),
    ),
    "avg": (
        lambda x: functional.ROUTES[F.avg_pool2d](x, 2, options=NEVER),
        lambda x: F.avg_pool2d(x, 2),
        ((1, 2, 4, 4),),
    ),
    "batch_norm": (
        lambda x, *rest: functional.batch_norm(x, None, None, *rest, True, options=NEVER),
        lambda x, *rest: F.batch_norm(x, None, None, *rest, True),
        ((4, 3), (3,), (3,)),
    ),
    "batch_norm with an activation": (
        lambda x, *rest: functional.batch_norm_activated(
            x, None, None, *rest, True, "swish", False, 0.1, 1e-5, options=NEVER
        ),
        lambda x, *rest: F.silu(F.batch_norm(x, None, None, *rest, True)),
        ((4, 3), (3,), (3,)),
    ),
    "layer_norm": (
        lambda x, *rest: functional.ROUTES[F.layer_norm](x, (3,), *rest, options=NEVER),
        lambda x, *rest: F.layer_norm(x, (3,), *rest),
        ((4, 3), (3,), (3,)),
    ),
    "gelu": (lambda x: functional.ROUTES[F.gelu](x, options=NEVER), F.gelu, ((3, 4),)),
    "tanh": (lambda x: functional.ROUTES[torch.tanh](x, options=NEVER), torch.tanh, ((3, 4),)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_third_derivatives(name: str) -> None:
    ours, stock, shapes = CASES[name]

    def third(run: Any) -> list[Any]:
        given = [random(*shape, dtype=torch.float64).requires_grad_() for shape in shapes]
        found = [run(*given).pow(4).sum()]
        for _ in range(3):
            slopes = torch.autograd.grad(found[-1], given, create_graph=True)
            found.append(sum(one.pow(2).sum() for one in slopes))
        return [*found, *slopes]

    with watched() as seen:
        mine = third(ours)
    assert any(kind.decision.is_ours for kind in seen)
    # each derivative of a square multiplies what was rounded before
    torch.testing.assert_close(mine, third(stock), rtol=1e-9, atol=1e-9)


def hessian(run: Any, given: list[Any]) -> Any:
    return torch.func.jacrev(torch.func.grad(lambda x: run(x, *given[1:]).pow(3).sum()))(given[0])


@pytest.mark.parametrize("name", CASES)
def test_hessians(name: str) -> None:
    """Those of torch, or an error where second derivatives are computed by autograd itself: never something else."""
    ours, stock, shapes = CASES[name]
    given = [random(*shape, dtype=torch.float64) for shape in shapes]
    if name in ("convolution", "linear", "max", "avg"):
        torch.testing.assert_close(hessian(ours, given), hessian(stock, given), rtol=1e-9, atol=1e-9)
    else:
        with pytest.raises(RuntimeError):
            hessian(ours, given)
