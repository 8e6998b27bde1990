"""`install` and `uninstall`: torch's own convolutions are ours for a while, models and results stay."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not hasattr(torch.library, "get_kernel"):
    pytest.skip("this PyTorch does not hand out its kernels", allow_module_level=True)

import jitdnn.torch as jt  # noqa: E402
from jitdnn.errors import InvalidArgument  # noqa: E402
from jitdnn.frameworks.torch.stock import originals  # noqa: E402
from torch_kernels import all_ours, random, watched  # noqa: E402

nn = torch.nn


def gradients(model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The result, and the gradients of the input and all parameters."""
    x = x.clone().requires_grad_()
    y = model(x)
    return [y, *torch.autograd.grad(y.square().sum(), [x, *model.parameters()])]


def test_there_and_back() -> None:
    model, x = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ConvTranspose2d(3, 2, 3)), random(1, 2, 6, 6)
    expected = gradients(model, x)  # runs before, during and after
    for _ in range(2):
        assert not jt.is_installed()
        jt.install(measure="never")
        assert jt.is_installed()
        with all_ours("forward", "data", "filter", "bias"):
            found = gradients(model, x)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        jt.uninstall()
        with watched() as seen:
            found = gradients(model, x)
        assert not seen
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    jt.uninstall()
    assert not originals


def test_twice_has_the_new_options() -> None:
    x, w = random(1, 2, 5, 5), random(3, 2, 3, 3)
    jt.install(measure="never")
    jt.install(measure="never", math="fp64")
    with all_ours("forward") as seen:
        nn.functional.conv2d(x, w)
    assert seen[0].handle is not None
    assert seen[0].handle.settings.math == "fp64"
    with pytest.raises(InvalidArgument):
        jt.install(speed=1)
    assert jt.is_installed()


OVERRIDING = """Warning only once for all operators,  other operators may also be overridden.
  Overriding a previously registered kernel for the same operator and the same dispatch key
  operator: aten::convolution(Tensor input, ...) -> Tensor
    registered at /pytorch/build/aten/src/ATen/RegisterSchema.cpp:6
  dispatch key: CPU"""


def test_that_kernels_are_replaced_is_no_news_and_other_warnings_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyTorch 2.11 says it at the first kernel that is replaced."""
    said = [OVERRIDING]
    real = torch.library.Library.impl

    def impl(*arguments: Any, **named: Any) -> None:
        for message in said:
            warnings.warn(message, UserWarning, stacklevel=2)
        real(*arguments, **named)

    monkeypatch.setattr(torch.library.Library, "impl", impl)
    before = list(warnings.filters)
    jt.install(measure="never")
    assert list(warnings.filters) == before
    with pytest.warns(UserWarning, match="Warning only once"):
        warnings.warn(OVERRIDING, UserWarning, stacklevel=1)
    said[:] = [OVERRIDING, "something else is wrong"]
    with pytest.raises(UserWarning, match="something else"):
        jt.install(measure="never")


def test_where_ours_loses_or_refuses_torchs_own_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not ours once more, without end."""
    from jitdnn.frameworks.torch import choice

    x, w = random(1, 2, 7, 5), random(3, 2, 3, 3)
    expected = nn.functional.conv2d(x, w)
    jt.install()
    monkeypatch.setattr(choice, "_measured", lambda *_: (2.0, 1.0))
    with watched() as seen:
        assert torch.equal(nn.functional.conv2d(x, w), expected)
        whole = nn.functional.conv2d(x.long(), w.long())
        empty = nn.functional.conv2d(x[:0], w)
    assert [kind.decision.is_ours for kind in seen] == [False] * len(seen)
    assert whole.dtype == torch.int64
    assert empty.shape == (0, 3, 5, 3)


def test_with_what_is_converted_and_used() -> None:
    model, x = nn.Conv2d(2, 3, 3), random(1, 2, 6, 6)
    expected = gradients(model, x)
    jt.convert(model, measure="never")
    jt.install(measure="never")
    with jt.use(measure="never"), all_ours("forward", "data", "filter", "bias") as seen:
        found = gradients(model, x)
    assert len(seen) == 4  # once each
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_second_derivatives_autocast_and_vmap() -> None:
    x, w = (random(*shape, dtype=torch.float64).requires_grad_() for shape in ((1, 2, 4, 4), (2, 2, 2, 2)))
    jt.install(measure="never")
    assert torch.autograd.gradgradcheck(nn.functional.conv2d, (x, w))
    with torch.autocast("cpu", dtype=torch.bfloat16), all_ours("forward"):
        assert nn.functional.conv2d(x.float(), w.float()).dtype == torch.bfloat16
    with watched() as seen:
        torch.vmap(nn.functional.conv2d, (0, None))(x[None].detach(), w.detach())
    assert seen


def test_a_model_compiled_before_and_one_after() -> None:
    x = random(1, 2, 6, 6)
    model = nn.Conv2d(2, 3, 3)
    expected = model(x)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), expected)
    jt.install(measure="never")
    with all_ours("forward"):
        torch.testing.assert_close(compiled(x), expected, rtol=1e-5, atol=1e-5)
    torch._dynamo.reset()
    after = torch.compile(nn.Conv2d(2, 3, 3), backend="aot_eager", fullgraph=True)
    with all_ours("forward"):
        found = after(x)
    jt.uninstall()
    with watched() as seen:
        torch.testing.assert_close(after(x), found, rtol=1e-5, atol=1e-5)
    assert not seen
