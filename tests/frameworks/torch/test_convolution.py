"""`torch.ops.jitdnn.convolution`: values, gradients and forms against PyTorch's in double precision."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from jitdnn.errors import JitdnnError  # noqa: E402
from jitdnn.frameworks.torch import functional, operators  # noqa: E402
from torch_kernels import all_ours, compare, form_holds, random, watched  # noqa: E402

F = torch.nn.functional
ALL = ("forward", "data", "filter", "bias")
NEVER = "measure=never"
STOCK = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def plain(x: Any) -> Any:
    return x


def last(x: Any) -> Any:
    return x.contiguous(memory_format=torch.channels_last)


def last_3d(x: Any) -> Any:
    return x.contiguous(memory_format=torch.channels_last_3d)


def gaps(x: Any) -> Any:
    """Every other element of a wider tensor."""
    wide = x.new_empty((*x.shape[:-1], 2 * x.shape[-1]))
    view = wide[..., ::2]
    return view.copy_(x)


def turned(x: Any) -> Any:
    """The axes of space stored the other way round."""
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


CASES = [
    pytest.param((2, 3, 13), (5, 3, 4), {"stride": 3, "padding": 2}, plain, torch.float32, id="1d"),
    pytest.param((1, 4, 9), (4, 2, 3), {"groups": 2, "dilation": 2}, gaps, torch.float64, id="1d-groups-gaps"),
    pytest.param((2, 3, 7, 11), (5, 3, 3, 2), {"stride": (2, 3), "padding": (1, 0)}, plain, torch.float32, id="2d"),
    pytest.param((2, 6, 8, 7), (6, 1, 3, 3), {"padding": 1, "groups": 6}, last, torch.float32, id="2d-depthwise"),
    pytest.param((1, 5, 9, 9), (3, 5, 3, 3), {"dilation": (2, 3), "padding": 3}, turned, torch.float64, id="2d-turned"),
    pytest.param((2, 4, 5, 6), (7, 4, 1, 1), {}, last, torch.bfloat16, id="2d-bf16"),
    pytest.param((2, 4, 5, 6), (3, 4, 3, 3), {"padding": 1}, plain, torch.float16, id="2d-f16"),
    pytest.param((1, 2, 4, 5, 6), (3, 2, 2, 3, 1), {"stride": (1, 2, 1), "padding": (1, 0, 0)}, last_3d,
                 torch.float32, id="3d-last"),
    pytest.param((1, 1, 2, 2), (1, 1, 5, 5), {"padding": 2}, plain, torch.float64, id="filter-larger-than-image"),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "filter_shape", "named", "layout", "dtype"), CASES)
def test_agrees(shape: Any, filter_shape: Any, named: Any, layout: Any, dtype: Any) -> None:
    x, w = layout(random(*shape, dtype=dtype)), random(*filter_shape, dtype=dtype)
    bias = random(filter_shape[0], dtype=dtype)
    compare(
        lambda *operands: functional.conv(*operands, **named, options=NEVER),
        lambda *operands: STOCK[len(shape) - 2](*operands, **named),
        (x, w, bias),
        ALL,
    )


def test_an_expanded_gradient_and_no_bias() -> None:
    compare(
        lambda x, w: functional.conv(x, w, padding=1, options=NEVER),
        lambda x, w: F.conv2d(x, w, padding=1),
        (random(2, 3, 5, 7), random(4, 3, 3, 3)),
        ("forward", "data", "filter"),
        is_expanded=True,
    )


def test_an_expanded_input_and_a_filter_with_gaps() -> None:
    x = random(1, 3, 5, 7).expand(2, 3, 5, 7)
    compare(
        lambda x, w: functional.conv(x, w, options=NEVER),
        F.conv2d,
        (x, gaps(random(4, 3, 3, 3))),
        ("forward", "data", "filter"),
    )


@pytest.mark.parametrize(
    ("shape", "filter_shape", "named", "layout", "dtype"),
    [
        ((2, 3, 7), (3, 4, 4), {"stride": 3, "padding": 1, "output_padding": 2}, plain, torch.float64),
        ((2, 4, 5, 6), (4, 3, 3, 2), {"stride": 2, "padding": 1, "groups": 2}, last, torch.float32),
        ((1, 4, 5, 4), (4, 2, 3, 3), {"dilation": 2}, gaps, torch.bfloat16),
        ((1, 2, 3, 4, 3), (2, 3, 2, 2, 3), {"stride": (1, 2, 1)}, plain, torch.float32),
    ],
)
def test_transposed_agrees(shape: Any, filter_shape: Any, named: Any, layout: Any, dtype: Any) -> None:
    x, w = layout(random(*shape, dtype=dtype)), random(*filter_shape, dtype=dtype)
    bias = random(filter_shape[1] * named.get("groups", 1), dtype=dtype)
    compare(
        lambda *operands: functional.conv_transpose(*operands, **named, options=NEVER),
        lambda *operands: TRANSPOSED[len(shape) - 2](*operands, **named),
        (x, w, bias),
        ALL,
    )


def arguments(*, transposed: bool = False, groups: int = 1) -> tuple[Any, ...]:
    return [2, 1], [1, 0], [1, 2], transposed, [0, 0], groups, NEVER


@pytest.mark.parametrize("transposed", [False, True])
def test_first_and_second_derivatives(transposed: bool) -> None:
    x, w, bias = (
        random(*shape, dtype=torch.float64).requires_grad_() for shape in ((1, 2, 4, 5), (2, 1, 2, 2), (2,))
    )

    def run(*operands: Any) -> Any:
        return operators.convolution(*operands, *arguments(transposed=transposed, groups=2))

    with all_ours(*ALL):
        assert torch.autograd.gradcheck(run, (x, w, bias))
    assert torch.autograd.gradgradcheck(run, (x, w, bias))


def test_what_a_wrong_gradient_looks_like(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison of these tests finds one that is off by a part in a thousand."""
    from jitdnn.frameworks.torch import convolution as kernels

    right = kernels._data_gradient
    monkeypatch.setattr(
        kernels, "_data_gradient", lambda *operands: lambda *given: right(*operands)(*given) * 1.001
    )
    with pytest.raises(AssertionError, match="gradient 0"):
        compare(
            lambda x, w: functional.conv(x, w, options=NEVER),
            F.conv2d,
            (random(1, 2, 5, 5), random(3, 2, 3, 3)),
            ("data",),
        )


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("layout", [plain, last, turned, gaps])
def test_the_form_is_the_fakes(layout: Any, transposed: bool) -> None:
    x, w = layout(random(2, 4, 5, 6)), random(4, 4, 3, 2)
    form_holds(operators.convolution, x, w, None, *arguments(transposed=transposed))
    y = operators.convolution(x, w, None, *arguments(transposed=transposed))
    *rest, options = arguments(transposed=transposed)
    for mask in ([True] * 3, [False, True, False]):
        form_holds(operators.convolution_backward, torch.randn_like(y), x, w, *rest, mask, options)


@pytest.mark.parametrize("transposed", [False, True])
def test_opcheck(transposed: bool) -> None:
    x, w, bias = (random(*shape).requires_grad_() for shape in ((2, 3, 5, 5), (3, 3, 3, 2), (3,)))
    torch.library.opcheck(operators.convolution.default, (x, w, bias, *arguments(transposed=transposed)))


def test_vmap() -> None:
    x, w, bias = random(3, 2, 4, 5, 6), random(3, 6, 2, 3, 3), random(3, 6)

    def run(x: Any, w: Any, bias: Any) -> Any:
        return functional.conv(x, w, bias, padding=1, groups=2, options=NEVER)

    for axes in ((0, 0, 0), (0, None, None), (None, 0, None), (1, 0, 0)):
        given = [one if axis is not None else one[0] for one, axis in zip((x, w, bias), axes, strict=True)]
        if axes[0] == 1:
            given[0] = given[0].transpose(0, 1)
        with all_ours("forward"):
            found = torch.vmap(run, axes)(*given)
        for number in range(3):
            one = [whole[number] if axis is not None else whole[0]
                   for whole, axis in zip((x, w, bias), axes, strict=True)]  # fmt: skip
            torch.testing.assert_close(
                found[number], F.conv2d(*one, padding=1, groups=2), rtol=1e-5, atol=1e-5
            )


def test_gradients_of_each_example() -> None:
    """torch.func: vmap of grad, which is DP-SGD's clipping of gradients."""
    images, w, bias = random(3, 2, 5, 5), random(4, 2, 3, 3), random(4)

    def loss(run: Any, w: Any, bias: Any, image: Any) -> Any:
        return run(image[None], w, bias).square().sum()

    def mine(x: Any, w: Any, bias: Any) -> Any:
        return functional.conv(x, w, bias, options=NEVER)

    with watched() as seen:
        found = torch.vmap(torch.func.grad(lambda *a: loss(mine, *a), (0, 1)), (None, None, 0))(
            w, bias, images
        )
    assert {"forward", "filter", "bias"} <= {kind.name for kind in seen if kind.decision.is_ours}
    for number, image in enumerate(images):
        expected = torch.func.grad(lambda *a: loss(F.conv2d, *a), (0, 1))(w, bias, image)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one[number], other, rtol=1e-4, atol=1e-4)


def test_autocast() -> None:
    x, w = random(2, 3, 6, 6), random(4, 3, 3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16), all_ours("forward"):
        y = functional.conv(x, w, options=NEVER)
        kept = functional.conv(x.double(), w.double(), options=NEVER)
    assert (y.dtype, kept.dtype) == (torch.bfloat16, torch.float64)
    torch.testing.assert_close(
        y.float(), F.conv2d(x.bfloat16().float(), w.bfloat16().float()), rtol=2**-7, atol=2**-6
    )


def test_an_empty_batch() -> None:
    x = torch.empty((0, 3, 6, 6), requires_grad=True)
    w = random(4, 3, 3, 3).requires_grad_()
    y = functional.conv(x, w, options=NEVER)
    y.sum().backward()
    assert y.shape == (0, 4, 4, 4)
    assert x.grad is not None
    assert x.grad.shape == x.shape
    assert w.grad is not None
    assert not w.grad.any()


@pytest.mark.parametrize(
    ("x", "w", "bias", "named"),
    [
        ((2, 3, 6, 6), (4, 2, 3, 3), None, {}),
        ((2, 3, 6, 6), (4, 3, 3, 3), (5,), {}),
        ((2, 3, 2, 2), (4, 3, 3, 3), None, {}),
        ((2, 3, 6, 6), (4, 3, 3, 3), None, {"stride": 0}),
        ((2, 3, 6, 6), (4, 3, 3, 3), None, {"padding": -1}),
        ((2, 3, 6, 6), (4, 3, 3, 3), None, {"groups": 2}),
        ((3, 6), (4, 3, 3, 3), None, {}),
        ((2, 3, 6, 6), (4, 3, 3, 3), None, {"padding": "same", "stride": 2}),
        ((2, 3, 6, 6), (4, 3, 3, 3), None, {"stride": (1, 2, 3)}),
    ],
)
def test_wrong_shapes_raise_torchs_errors(x: Any, w: Any, bias: Any, named: Any) -> None:
    operands = [None if shape is None else random(*shape) for shape in (x, w, bias)]
    with pytest.raises(Exception) as theirs:  # noqa: PT011  whichever it is, ours is the same
        F.conv2d(*operands, **named)
    with pytest.raises(type(theirs.value)) as mine:
        functional.conv(*operands, **named, options=NEVER)
    assert not isinstance(mine.value, JitdnnError)


def test_wrong_types_raise_torchs_errors() -> None:
    x, w = random(2, 3, 6, 6), random(4, 3, 3, 3)
    for operands in ((x, w.double()), (x.long(), w), (x, w, random(4, dtype=torch.float64))):
        with pytest.raises(RuntimeError):
            F.conv2d(*operands)
        with pytest.raises(RuntimeError):
            functional.conv(*operands, options=NEVER)


def test_complex_and_integers_go_to_torch() -> None:
    x, w = (torch.complex(random(*shape), random(*shape, seed=1)) for shape in ((1, 2, 5, 5), (3, 2, 3, 3)))
    with watched() as seen:
        torch.testing.assert_close(functional.conv(x, w, options=NEVER), F.conv2d(x, w))
        whole = [random(*shape).mul(9).long() for shape in ((1, 2, 5, 5), (3, 2, 3, 3))]
        assert torch.equal(functional.conv(*whole, options=NEVER), F.conv2d(*whole))
    assert not any(kind.decision.is_ours for kind in seen)
