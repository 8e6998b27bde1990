"""`torch.ops.jitdnn.activation` against PyTorch's in double precision."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from jitdnn.frameworks.torch import functional, operators  # noqa: E402
from jitdnn.frameworks.torch.activation import FUNCTIONS  # noqa: E402
from torch_kernels import all_ours, compare, form_holds, random, watched  # noqa: E402

NEVER = "measure=never"
BOTH = ("forward", "data")


def run(x: Any, name: str) -> Any:
    return operators.activation(x, name, NEVER)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_agrees(name: str, dtype: Any) -> None:
    x = 3 * random(2, 3, 5, 7, dtype=dtype)
    x.view(-1)[:6] = torch.tensor([0.0, 30.0, -30.0, 3.5, -3.5, 1e-4])
    compare(lambda x: run(x, name), FUNCTIONS[name].stock, (x,), BOTH)


@pytest.mark.parametrize(
    ("x", "is_expanded"),
    [
        (random(63, dtype=torch.bfloat16), False),
        (random(65, dtype=torch.float16), False),
        (random(2, 3, 5, 7).contiguous(memory_format=torch.channels_last), False),
        (random(5, 3).t(), True),
    ],
)
def test_layouts_and_types(x: Any, is_expanded: bool) -> None:
    for name in ("gelu", "tanh"):
        compare(lambda x, name=name: run(x, name), FUNCTIONS[name].stock, (x,), BOTH, is_expanded=is_expanded)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_first_and_second_derivatives(name: str) -> None:
    x = random(2, 5, dtype=torch.float64).requires_grad_()
    with all_ours(*BOTH):
        assert torch.autograd.gradcheck(lambda x: run(x, name), (x,))
    assert torch.autograd.gradgradcheck(lambda x: run(x, name), (x,))


@pytest.mark.parametrize("name", ["mish", "sigmoid"])
def test_opcheck_and_form(name: str) -> None:
    x = random(2, 3, 4)
    torch.library.opcheck(operators.activation.default, (x.clone().requires_grad_(), name, NEVER))
    for one in (x, x.transpose(0, 1), x[:, ::2], x.expand(2, 2, 3, 4)):
        form_holds(operators.activation, one, name, NEVER)
        form_holds(operators.activation_backward, torch.empty_like(one), one, name, NEVER)


def test_vmap_and_func_grad() -> None:
    x = random(3, 5)
    stock = FUNCTIONS["silu"].stock
    torch.testing.assert_close(torch.vmap(lambda x: run(x, "silu"))(x), stock(x), rtol=1e-5, atol=1e-6)
    found = torch.vmap(torch.func.grad(lambda x: run(x, "silu").sum()))(x)
    torch.testing.assert_close(
        found, torch.vmap(torch.func.grad(lambda x: stock(x).sum()))(x), rtol=1e-5, atol=1e-6
    )


def test_what_goes_to_torch() -> None:
    with watched() as seen:
        for x in (torch.tensor(0.5), torch.empty(0, 3), random(4, 6)[:, ::2], random(3).expand(2, 3)):
            torch.testing.assert_close(run(x, "gelu"), FUNCTIONS["gelu"].stock(x))
    assert [kind.decision.is_ours for kind in seen] == [False] * 4
    for x in (torch.arange(3), torch.complex(random(3), random(3))):
        assert functional.ROUTES[torch.tanh](x) is NotImplemented
