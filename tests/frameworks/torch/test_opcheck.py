"""`torch.library.opcheck` of gradients as operators of their own: schema, shapes, derivatives, tracing."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from jitdnn.frameworks.torch import operators, registry  # noqa: E402
from torch_kernels import random  # noqa: E402

NEVER = "measure=never"


def wanting(*shape: int, seed: int = 0) -> Any:
    return random(*shape, seed=seed).requires_grad_()


def cases() -> dict[str, tuple[Any, ...]]:
    """The arguments of every gradient that is an operator."""
    x, w, dy = wanting(2, 4, 7, 6), wanting(6, 2, 3, 3, seed=1), wanting(2, 6, 7, 6, seed=2)
    geometry = ([1, 1], [1, 1], [1, 1], False, [0, 0], 2)
    y = torch.nn.functional.max_pool2d(x.detach(), 3, 2, 1)
    mean, rstd = random(4, seed=3), random(4, seed=4).abs() + 0.5
    row_mean, row_rstd = random(2, 4, 7, 1, seed=5), random(2, 4, 7, 1, seed=6).abs() + 0.5
    return {
        "convolution_backward": (dy, x, w, *geometry, [True, True, True], NEVER),
        "linear_backward": (
            wanting(5, 3), wanting(5, 4, seed=1), wanting(3, 4, seed=2), [True, True, True], NEVER,
        ),
        "batch_norm_backward": (wanting(2, 4, 7, 6, seed=7), x, wanting(4), mean, rstd, 1e-5, NEVER),
        "batch_norm_activation_backward": (
            wanting(2, 4, 7, 6, seed=7), x, wanting(4), wanting(4, seed=1), mean, rstd, 1e-5, "swish", NEVER,
        ),
        "layer_norm_backward": (
            wanting(2, 4, 7, 6, seed=7), x, wanting(6), row_mean, row_rstd, 1, 1e-5, NEVER,
        ),
        "max_pool_backward": (
            wanting(*y.shape, seed=8), x, y, [3, 3], [2, 2], [1, 1], [1, 1], False, NEVER,
        ),
        "avg_pool_backward": (
            wanting(*y.shape, seed=8), [2, 4, 7, 6], [3, 3], [2, 2], [1, 1], False, True, NEVER,
        ),
        "activation_backward": (wanting(2, 3), wanting(2, 3, seed=1), "silu", NEVER),
    }  # fmt: skip


@pytest.mark.parametrize("name", cases())
def test_a_gradient_is_an_operator_by_the_rules(name: str) -> None:
    torch.library.opcheck(getattr(operators, name).default, cases()[name])


def test_every_gradient_is_here() -> None:
    assert registry.library.ns == "jitdnn"
    names = {one.partition("::")[2].partition(".")[0] for one in torch._C._dispatch_get_all_op_names()
             if one.startswith("jitdnn::")}  # fmt: skip
    assert {one for one in names if one.endswith("_backward")} == set(cases())
