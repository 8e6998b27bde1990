"""`torch.ops.jitdnn.max_pool` and `avg_pool` against PyTorch's in double precision."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from jitdnn.frameworks.torch import functional, operators  # noqa: E402
from torch_kernels import all_ours, compare, form_holds, random  # noqa: E402

F = torch.nn.functional
NEVER = "measure=never"
BOTH = ("forward", "data")
MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVG = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def plain(x: Any) -> Any:
    return x


def last(x: Any) -> Any:
    return x.contiguous(memory_format=torch.channels_last)


def last_3d(x: Any) -> Any:
    return x.contiguous(memory_format=torch.channels_last_3d)


def gaps(x: Any) -> Any:
    return torch.stack([x, x], -1)[..., 0]


def route(kind: str, space: int) -> Any:
    return functional.ROUTES[getattr(F, f"{kind}_pool{space}d")]


def ours(kind: str, x: Any, named: dict[str, Any]) -> Any:
    y = route(kind, x.dim() - 2)(x, **named, options=NEVER)
    assert y is not NotImplemented
    return y


CASES = [
    ("max", (2, 3, 13), {"kernel_size": 3, "stride": 2, "padding": 1}, plain, torch.float32),
    ("max", (2, 3, 9, 7), {"kernel_size": (3, 2), "dilation": (2, 1), "ceil_mode": True}, gaps, torch.float64),
    ("max", (2, 17, 8, 7), {"kernel_size": 3, "stride": (2, 1), "padding": 1}, last, torch.float32),
    ("max", (1, 2, 4, 5, 6), {"kernel_size": 2, "stride": 1}, last_3d, torch.float32),
    ("max", (1, 3, 6, 6), {"kernel_size": 2}, plain, torch.bfloat16),
    ("max", (1, 3, 6, 6), {"kernel_size": 2}, last, torch.float16),
    ("avg", (2, 3, 13), {"kernel_size": 4, "stride": 3, "padding": 2, "count_include_pad": False}, plain,
     torch.float64),
    ("avg", (2, 3, 8, 7), {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}, plain, torch.float32),
    ("avg", (2, 17, 8, 7), {"kernel_size": (2, 3)}, last, torch.float32),
    ("avg", (1, 2, 4, 5, 6), {"kernel_size": 2, "stride": (1, 2, 2)}, gaps, torch.float32),
    ("avg", (1, 3, 6, 6), {"kernel_size": 2}, plain, torch.bfloat16),
    ("avg", (1, 3, 6, 6), {"kernel_size": 3, "stride": 1}, plain, torch.float16),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "shape", "named", "layout", "dtype"), CASES)
def test_agrees(kind: str, shape: Any, named: Any, layout: Any, dtype: Any) -> None:
    stock = (MAX if kind == "max" else AVG)[len(shape) - 2]
    compare(
        lambda x: ours(kind, x, named),
        lambda x: stock(x, **named),
        (layout(random(*shape, dtype=dtype)),),
        BOTH,
    )


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_an_expanded_gradient_and_ties(kind: str) -> None:
    x = random(2, 3, 7, 7).round()  # many equal maxima
    stock = F.max_pool2d if kind == "max" else F.avg_pool2d
    compare(
        lambda x: ours(kind, x, {"kernel_size": 3, "stride": 2}),
        lambda x: stock(x, 3, 2),
        (x,),
        BOTH,
        is_expanded=True,
    )


def test_nan_and_infinity() -> None:
    x = random(1, 2, 6, 6)
    x[0, 0, 1, 2], x[0, 1, 3, 3], x[0, 1, 0, 0] = float("nan"), float("-inf"), float("inf")
    with all_ours("forward"):
        torch.testing.assert_close(ours("max", x, {"kernel_size": 2}), F.max_pool2d(x, 2), equal_nan=True)
        torch.testing.assert_close(ours("avg", x, {"kernel_size": 2}), F.avg_pool2d(x, 2), equal_nan=True)


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_second_derivatives_of_an_empty_batch(kind: str) -> None:
    x = torch.randn(0, 3, 6, 6, requires_grad=True)
    y = ours(kind, x, {"kernel_size": 2})
    dy = torch.ones_like(y, requires_grad=True)
    (slope,) = torch.autograd.grad(y, x, dy, create_graph=True)
    (found,) = torch.autograd.grad(slope, dy, torch.ones_like(slope))
    assert found.shape == y.shape


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize("space", [1, 2])
def test_first_and_second_derivatives(kind: str, space: int) -> None:
    x = torch.randperm(2 * 5**space).double().view(1, 2, *[5] * space).requires_grad_()  # no ties
    named = {"kernel_size": 2, "padding": 1, "ceil_mode": True}
    with all_ours(*BOTH):
        assert torch.autograd.gradcheck(lambda x: ours(kind, x, named), (x,))
    assert torch.autograd.gradgradcheck(lambda x: ours(kind, x, named), (x,))


@pytest.mark.parametrize("layout", [plain, last, gaps])
def test_opcheck_and_form(layout: Any) -> None:
    x = layout(random(2, 3, 7, 6))
    arguments = ([3, 3], [2, 2], [1, 1], [1, 1], True, NEVER)
    average = ([3, 3], [2, 2], [1, 1], True, False, NEVER)
    torch.library.opcheck(operators.max_pool.default, (x.clone().requires_grad_(), *arguments))
    torch.library.opcheck(operators.avg_pool.default, (x.clone().requires_grad_(), *average))
    form_holds(operators.max_pool, x, *arguments)
    form_holds(operators.avg_pool, x, *average)
    y = operators.max_pool(x, *arguments)
    form_holds(operators.max_pool_backward, torch.ones_like(y), x, y, *arguments)
    form_holds(operators.avg_pool_backward, torch.ones_like(y), list(x.shape), *average)


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_vmap_and_func_grad(kind: str) -> None:
    x = random(3, 2, 2, 5, 5)
    stock = F.max_pool2d if kind == "max" else F.avg_pool2d
    for run in (lambda run: run, lambda run: torch.func.grad(lambda x: run(x).square().sum())):
        found = torch.vmap(run(lambda x: ours(kind, x, {"kernel_size": 2})))(x)
        torch.testing.assert_close(found, torch.vmap(run(lambda x: stock(x, 2)))(x))


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_empty_batches_wrong_windows_and_what_goes_to_torch(kind: str) -> None:
    stock = F.max_pool2d if kind == "max" else F.avg_pool2d
    assert ours(kind, torch.empty(0, 3, 6, 6), {"kernel_size": 2}).shape == (0, 3, 3, 3)
    for named in (
        {"kernel_size": 2, "padding": 2},
        {"kernel_size": 9},
        {"kernel_size": 0},
        {"kernel_size": 2, "stride": 0},
    ):
        with pytest.raises(RuntimeError):
            stock(random(1, 2, 5, 5), **named)
        with pytest.raises(RuntimeError):
            ours(kind, random(1, 2, 5, 5), named)
    for x in (
        random(2, 5, 5),
        random(1, 2, 5, 5).long(),
        torch.complex(random(1, 2, 5, 5), random(1, 2, 5, 5)),
    ):
        assert route(kind, 2)(x, 2) is NotImplemented
    assert route("max", 2)(random(1, 2, 5, 5), 2, return_indices=True) is NotImplemented
    assert route("avg", 2)(random(1, 2, 5, 5), 2, divisor_override=3) is NotImplemented
