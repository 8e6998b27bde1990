"""`torch.ops.jitdnn.convolution_sums`: a convolution, and the sums by channel of its results and of their squares.

What a normalization behind a convolution reads first. Where the convolution's kernel adds them up as its results leave,
nothing reads these for it. In a graph of Inductor's it takes the place of `jitdnn::settled_convolution` and of
`jitdnn::channel_sums` (inductor_convolution_sums.py), and as these it is told all but its operands by a text.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from jitdnn.errors import InvalidArgument, JitdnnError
from jitdnn.frameworks.torch import convolution, settled
from jitdnn.frameworks.torch.channel_sums import laid
from jitdnn.frameworks.torch.convolution import problem_of
from jitdnn.frameworks.torch.fresh import fresh
from jitdnn.frameworks.torch.launch import direct
from jitdnn.frameworks.torch.options import handle_of
from jitdnn.frameworks.torch.registry import define
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.convolution_fused import FusedConvolution
from jitdnn.retention import Recent

_Run = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
_known: Recent[tuple[str, torch.device], _Run] = Recent(4096)


def text_of(own: str, by_image: bool) -> str:
    """What tells the operator all but the operands: the text of a `settled_convolution`, forward and without a bias,
    and whether each image has sums of its own."""
    return repr((own, by_image))


def parsed(text: str) -> tuple[str, bool]:
    """The text of the convolution, and whether each image has sums of its own. Raises InvalidArgument."""
    try:
        own, by_image = literal_eval(text)
        direction, _, has_bias, _, _ = settled.parsed(str(own))
        if direction != "forward" or has_bias:
            raise ValueError(f"{direction}, with a bias: {has_bias}")
    except (ValueError, TypeError, SyntaxError) as error:
        raise InvalidArgument(f"{text[:200]!r} is no text of jitdnn::convolution_sums: {error}") from None
    return str(own), bool(by_image)


def problem_of_text(text: str) -> FusedConvolution | None:
    """What a text says as a problem; None where ours has none, of other types or without elements."""
    own, by_image = parsed(text)
    _, forms, _, geometry, _ = settled.parsed(own)
    x, w, y = (torch.empty_strided(*form[:2], dtype=form[2], device="meta") for form in forms)
    found = problem_of("forward", x, w, y, geometry)
    if not isinstance(found, Convolution):
        return None
    try:
        return FusedConvolution.of(found, None, sums=True, by_image=by_image)
    except JitdnnError:
        return None


def forms_of_results(text: str) -> tuple[settled.Form, settled.Form]:
    """The forms of the result, and of the sums: (2, N or 1, K), the squares' behind those of the results."""
    own, by_image = parsed(text)
    y = settled.form_of_result(own)
    batch, channels = y[0][0] if by_image else 1, y[0][1]
    return y, ((2, batch, channels), (batch * channels, channels, 1), torch.float32)


def _prepare(text: str, device: torch.device) -> _Run:
    own, by_image = parsed(text)
    _, forms, _, geometry, options = settled.parsed(own)
    y_form, sums_form = forms_of_results(text)
    made = [fresh(*form, device) for form in (y_form, sums_form)]
    problem = problem_of_text(text)
    metas = [torch.empty_strided(*form[:2], dtype=form[2], device="meta") for form in (*forms[:2], y_form)]
    row = torch.empty(sums_form[0][1:] if by_image else sums_form[0][2:], device="meta")
    run = problem and direct(handle_of(options, device.type), problem, [*metas, row, row], device)
    behind = 4 * prod(sums_form[0][1:])
    given = [(shape, strides, str(dtype).removeprefix("torch.")) for shape, strides, dtype in forms[:2]]

    def call(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        x, w = laid((x, w), given)
        y, sums = (one() for one in made)
        if run is not None:
            first = sums.data_ptr()
            run.at((x.data_ptr(), w.data_ptr(), y.data_ptr(), first, first + behind))
            return y, sums
        y.copy_(convolution.forward(x, w, None, *geometry.arguments, options))
        wide = y.float()
        axes = [axis for axis in range(y.dim()) if axis > 1 or (axis == 0 and not by_image)]
        for place, each in enumerate((wide, wide * wide)):
            sums[place].copy_(each.sum(axes).view(sums[place].shape))
        return y, sums

    return call


def _kernel(x: Tensor, w: Tensor, text: str) -> tuple[Tensor, Tensor]:
    key = (text, x.device)
    run = _known.get(key) or _known.older(key) or _known.put(key, _prepare(text, x.device))
    return run(x, w)


def _fake(x: Tensor, w: Tensor, text: str) -> tuple[Tensor, Tensor]:
    y, sums = (
        torch.empty_strided(shape, strides, dtype=dtype, device=x.device)
        for shape, strides, dtype in forms_of_results(text)
    )
    return y, sums


convolution_sums = define(
    "convolution_sums(Tensor x, Tensor w, str text) -> (Tensor, Tensor)", _kernel, _fake
)


def call(x: Tensor, w: Tensor, text: str) -> Callable[[], Any]:
    """A call as the code of a graph makes it, to measure."""
    return lambda: convolution_sums.default(x, w, text)
