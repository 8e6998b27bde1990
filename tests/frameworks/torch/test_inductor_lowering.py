"""What Inductor's code calls for our convolutions: functions by name, into its memory; the operator where it is C++."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import jitdnn.torch as jt  # noqa: E402
from jitdnn.frameworks.torch import inductor_lowering, settled, settled_pointwise  # noqa: E402
from jitdnn.frameworks.torch.channel_sums import MOMENTS, SUM, Sums  # noqa: E402
from jitdnn.frameworks.torch.convolution_sums import Summed  # noqa: E402
from torch_kernels import random, watched  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)
TAIL = (
    '[["aten.add.Tensor",["%0","%1"],{}],["aten.add.Tensor",["%3","%2"],{}],["aten.relu.default",["%4"],{}]]'
)
GEOMETRY = ([2, 1], [1, 0], [1, 2], False, [0, 0], 1)


def text(direction: str, x: Any, w: Any, dy: Any = None, has_bias: bool = False) -> str:
    return settled.text_of(direction, x, w, dy, has_bias, GEOMETRY, "measure=never")


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    assert (
        jt.InductorPass().uuid()
    )  # what Inductor asks for before it runs a graph that another process has kept
    yield
    torch._dynamo.reset()


def compiled(function: Any, *inputs: Any, every: bool = False) -> tuple[Any, str]:
    """The first result, or every one, of a function as Inductor compiles it, and its code, which has no C++ where there
    is nothing to fuse."""
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.utils import run_and_get_code

    graph = make_fx(function, tracing_mode="fake")(*inputs)

    def run() -> Any:
        found = compile_fx_inner(graph, list(inputs))(list(inputs))
        return found if every else found[0]

    result, (code, *_) = run_and_get_code(run)
    return result, code


def operands(is_last: bool = False) -> tuple[Any, ...]:
    x, w, dy = random(2, 6, 9, 7), random(4, 6, 3, 3), random(2, 4, 5, 3)
    return (
        tuple(t.contiguous(memory_format=torch.channels_last) for t in (x, w, dy)) if is_last else (x, w, dy)
    )


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("direction", ["forward", "bias", "data", "filter"])
def test_a_function_that_writes_to_memory_of_inductors(direction: str, is_last: bool) -> None:
    x, w, dy = operands(is_last)
    bias = random(4) if direction == "bias" else None
    name = "forward" if bias is not None else direction
    a, b = {"forward": (x, w), "data": (dy, w), "filter": (x, dy)}[name]
    what = text(name, x, w, None if name == "forward" else dy, bias is not None)
    given = (a, b) if bias is None else (a, b, bias)

    def function(a: Any, b: Any, *bias: Any) -> Any:
        return (torch.ops.jitdnn.settled_convolution(a, b, *(bias or (None,)), what),)

    found, code = compiled(function, *given)
    wide = [t.double().requires_grad_() for t in (x, w)]
    y = torch.ops.aten.convolution.default(*wide, None if bias is None else bias.double(), *GEOMETRY)
    grads = torch.autograd.grad(y, wide, dy.double())
    expected = {"forward": y, "data": grads[0], "filter": grads[1]}[name]
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    assert found.stride() == torch.ops.jitdnn.settled_convolution(a, b, bias, what).stride()
    assert f"extern_kernels.jitdnn_convolution{'' if bias is None else '_with_bias'}(" in code
    assert "torch.ops.jitdnn.settled_convolution.default(" not in code


@pytest.mark.parametrize("is_constant", [False, True])
def test_a_convolution_with_what_follows(is_constant: bool) -> None:
    x, w, _ = operands(is_last=True)
    bias, residual = random(4), random(2, 4, 5, 3).contiguous(memory_format=torch.channels_last)
    end = ([2, 1], [1, 0], [1, 2], 1, TAIL, is_constant, "measure=never")

    def function(x: Any, w: Any, bias: Any, residual: Any) -> Any:
        return (torch.ops.jitdnn.convolution_pointwise(x, w, [bias, residual], *end),)

    found, code = compiled(function, x, w, bias, residual)
    y = torch.nn.functional.conv2d(x.double(), w.double(), bias.double(), (2, 1), (1, 0), (1, 2))
    torch.testing.assert_close(found.double(), torch.relu(y + residual), rtol=1e-4, atol=1e-4)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert "extern_kernels.jitdnn_convolution_pointwise(" in code
    assert "torch.ops.jitdnn.convolution_pointwise.default(" not in code


IDENTITY = '[["cast",["%0","torch.float32"],{}]]'
GATED = '[["aten.gt.Scalar",["%0",0],{}],["aten.where.self",["%3","%1","%2"],{}]]'
PRODUCT = GATED[:-1] + ',["aten.mul.Tensor",["%4","%0"],{}]]'


def form(tensor: Any) -> tuple[Any, ...]:
    return tuple(tensor.shape), tuple(tensor.stride()), str(tensor.dtype).removeprefix("torch.")


def summed(direction: str, by_image: bool) -> tuple[str, tuple[Any, ...], Any, Any]:
    """A text of `convolution_sums`, its operands, and in float64 the result and its sums."""
    x, w, dy = operands(is_last=True)
    own = text(direction, x, w, None if direction == "forward" else dy)
    wide = [t.double().requires_grad_() for t in (x, w)]
    y = torch.ops.aten.convolution.default(*wide, None, *GEOMETRY)
    axes = (2, 3) if by_image else (0, 2, 3)
    if direction == "forward":
        sums = Sums((form(dy),), by_image, ((MOMENTS, IDENTITY),), "measure=never")
        made, given, place = (y.detach(), y.detach().square()), (x, w), 0
    else:
        number = random(2 if by_image else 1, 6, 1, 1)
        sums = Sums(
            (form(x), form(x), form(number)), by_image, ((SUM, GATED), (SUM, PRODUCT)), "measure=never"
        )
        y = torch.autograd.grad(y, wide[0], dy.double())[0]
        gated = torch.where(x > 0, y, number.double())
        made, given, place = (gated, gated * x), (dy, w, x, number), 1
    totals = torch.stack([one.sum(axes).view(-1, one.shape[1]) for one in made])
    return str(Summed(own, sums, place)), given, y.detach(), totals


@pytest.mark.parametrize("by_image", [False, True])
@pytest.mark.parametrize("direction", ["forward", "data"])
def test_a_convolution_and_its_sums_in_memory_of_inductors(direction: str, by_image: bool) -> None:
    """Whole, and rows and channels of the sums alone; both are allocated by the graph's code."""
    what, given, y, totals = summed(direction, by_image)

    def function(a: Any, w: Any, *others: Any) -> Any:
        y, sums = torch.ops.jitdnn.convolution_sums(a, w, others, what)
        return y, sums, sums[0], sums[1:, :, 1:3]

    found, code = compiled(function, *given, every=True)
    for one, other in zip(found, (y, totals, totals[0], totals[1:, :, 1:3]), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)
    assert found[0].is_contiguous(memory_format=torch.channels_last)
    assert code.count("extern_kernels.jitdnn_convolution_sums(") == 1
    assert "torch.ops.jitdnn.convolution_sums.default(" not in code
    assert f"empty_strided_cpu({tuple(totals.shape)}, " in code
    assert f"empty_strided_cpu({tuple(y.shape)}, " in code


@pytest.mark.parametrize("read", [0, 1])
@pytest.mark.parametrize("direction", ["forward", "data"])
def test_one_of_both_results_is_read_alone(direction: str, read: int) -> None:
    """Of a layer whose bias alone is trained, the gradient of the next one's data is read for its sums only."""
    what, given, *wanted = summed(direction, False)

    def function(a: Any, w: Any, *others: Any) -> Any:
        return (torch.ops.jitdnn.convolution_sums(a, w, others, what)[read] + 1,)

    found, code = compiled(function, *given)
    torch.testing.assert_close(found.double(), wanted[read] + 1, rtol=1e-4, atol=1e-4)
    assert code.count("extern_kernels.jitdnn_convolution_sums(") == 1


def test_sums_that_nobody_reads_any_more_are_written_over() -> None:
    """Of three in a row, each reads the first sums of the one before: the third has the memory of the first."""
    x, w = random(2, 4, 5, 5), random(4, 4, 1, 1)
    own = settled.text_of("data", x, w, x, False, ([1, 1], [0, 0], [1, 1], False, [0, 0], 1), "measure=never")
    number = torch.ones(1, 4, 1, 1)
    form_of_sums = (1, 4, 1, 1), (4, 1, 1, 1), "float32"
    sums = Sums((form(x), form(x), form_of_sums), False, ((SUM, GATED), (SUM, PRODUCT)), "measure=never")
    what = str(Summed(own, sums, 1))

    def function(x: Any, w: Any, number: Any) -> Any:
        y = x
        for _ in range(4):
            y, sums = torch.ops.jitdnn.convolution_sums(y, w, [x, number], what)
            number = sums[:1].view(1, 4, 1, 1)
        return y, sums

    found, code = compiled(function, x, w, number, every=True)
    y, last = x.double(), number.double()
    for _ in range(4):
        y = torch.nn.functional.conv_transpose2d(y, w.double())
        gated = torch.where(x > 0, y, last)
        totals = torch.stack([one.sum((0, 2, 3)) for one in (gated, gated * x)])
        last = totals[0].view(1, 4, 1, 1)
    torch.testing.assert_close(found[0].double(), y, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[1].double()[:, 0], totals, rtol=1e-4, atol=1e-2)
    assert code.count("extern_kernels.jitdnn_convolution_sums(") == 4
    assert code.count("empty_strided_cpu((2, 1, 4)") < 4


def test_memory_is_used_again() -> None:
    """Three in a row, with a part of the first operand: the third writes where the first did."""
    x, w, geometry = random(3, 4, 5, 5), random(4, 4, 1, 1), ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    what = settled.text_of("forward", x[1:], w, None, False, geometry, "measure=never")

    def function(x: Any, w: Any) -> Any:
        y = x[1:]
        for _ in range(3):
            y = torch.ops.jitdnn.settled_convolution(y, w, None, what)
        return (y,)

    found, code = compiled(function, x, w)
    wide = x[1:].double()
    for _ in range(3):
        wide = torch.nn.functional.conv2d(wide, w.double())
    torch.testing.assert_close(found.double(), wide, rtol=1e-4, atol=1e-4)
    assert code.count("empty_strided_cpu((2, 4, 5, 5)") == 2


def test_who_observes_is_told() -> None:
    x, w, _ = operands()
    what = text("forward", x, w)
    y = torch.empty(settled.form_of_result(what)[0])
    with watched() as seen:
        settled.launch(x, w, what, out=y)
    assert [kind.name for kind in seen] == ["forward"]
    assert torch.equal(y, torch.ops.jitdnn.settled_convolution(x, w, None, what))


@pytest.mark.parametrize("options", ["measure=never", "measure=never;total_workspace=1MiB"])
def test_what_follows_where_somebody_observes_or_no_plan_runs_by_addresses(options: str) -> None:
    x, w, _ = operands()
    bias, residual = random(4), random(2, 4, 5, 3)
    end = ([2, 1], [1, 0], [1, 2], 1, TAIL, False, options)
    what = settled_pointwise.text_of((x, w, bias, residual), end)
    y = torch.full(settled_pointwise.form_of_result(what)[0], torch.nan)
    with watched() as seen:
        settled_pointwise.launch(x, w, bias, residual, what, None, out=y)
    assert [kind.name for kind in seen] == ["forward"]
    again = torch.full_like(y, torch.nan)
    settled_pointwise.launch(x, w, bias, residual, what, None, out=again)
    for one in (y, again):
        torch.testing.assert_close(
            one, torch.ops.jitdnn.convolution_pointwise(x, w, [bias, residual], *end), rtol=1e-5, atol=1e-5
        )


def test_both_results_where_no_python_is_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    what, given, y, totals = summed("data", False)
    monkeypatch.setattr(inductor_lowering, "_generates_python", lambda: False)

    def function(a: Any, w: Any, *others: Any) -> Any:
        return torch.ops.jitdnn.convolution_sums(a, w, others, what)

    found, code = compiled(function, *given, every=True)
    for one, other in zip(found, (y, totals), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)
    assert "torch.ops.jitdnn.convolution_sums.default(" in code
    assert "extern_kernels.jitdnn" not in code


def test_the_operator_stays_where_no_python_is_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, _ = operands()
    what = text("forward", x, w)
    monkeypatch.setattr(inductor_lowering, "_generates_python", lambda: False)

    def function(x: Any, w: Any) -> Any:
        return (torch.ops.jitdnn.settled_convolution(x, w, None, what),)

    found, code = compiled(function, x, w)
    assert torch.equal(found, torch.ops.jitdnn.settled_convolution(x, w, None, what))
    assert "torch.ops.jitdnn.settled_convolution.default(" in code
    assert "extern_kernels.jitdnn" not in code


def test_another_torch_has_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import ir

    x, w, _ = operands()
    what = text("forward", x, w)
    monkeypatch.setattr(inductor_lowering, "_is_known", None)
    monkeypatch.delattr(ir, "ExternKernelOut")
    inductor_lowering.register()
    assert inductor_lowering._is_known is False
    calls: list[Any] = []
    monkeypatch.setattr(settled, "launch", lambda *_, **__: calls.append(_))
    y = inductor_lowering.call(x, w, None, what)()
    assert torch.equal(y, torch.ops.jitdnn.settled_convolution(x, w, None, what))
    assert not calls
