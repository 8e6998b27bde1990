"""`torch.ops.jitdnn.convolution_sums`: a convolution, or its data's gradient, and sums by channel of its results.

What a normalization behind a convolution reads first, and in front of its gradient what the normalization's own
gradient reads first. Where the convolution's kernel adds it up as its results leave, nothing reads these for it. In a
graph of Inductor's it takes the place of `jitdnn::settled_convolution` and of `jitdnn::channel_sums`
(inductor_convolution_sums.py), and as these it is told all but its operands by a text: that of the convolution, that of
the sums, and which of their operands is the result. Of moments it gives the sums of results and of their squares.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from jitdnn.errors import InvalidArgument, JitdnnError
from jitdnn.frameworks.torch import settled
from jitdnn.frameworks.torch.channel_sums import MOMENTS, SUM, Sums, descriptor_of, laid
from jitdnn.frameworks.torch.convolution import problem_of
from jitdnn.frameworks.torch.fresh import fresh
from jitdnn.frameworks.torch.kinds import at
from jitdnn.frameworks.torch.launch import direct
from jitdnn.frameworks.torch.options import handle_of
from jitdnn.frameworks.torch.registry import define
from jitdnn.frameworks.torch.tail import computed, expression_of
from jitdnn.handle import Handle
from jitdnn.kernels.algorithm import Kernel
from jitdnn.kernels.tables import summed_convolution_kernel
from jitdnn.ops.gpu_call import stream_of_library
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.convolution_fused import FusedConvolution
from jitdnn.retention import Recent

_ALIGNMENT = 16  # of what the copy engine reads, and of what is read and stored by as much
_Run = Callable[[Tensor, Tensor, Sequence[Tensor]], tuple[Tensor, Tensor]]
_known: Recent[tuple[str, torch.device], _Run] = Recent(4096)


@dataclass(frozen=True)
class Summed:
    """What a text says: that of a `settled_convolution` forward or to the data without a bias, that of `channel_sums`
    of its result, and the place of the result among their operands. Two sums, or moments. Raises InvalidArgument."""

    own: str
    sums: Sums
    place: int

    def __str__(self) -> str:
        return repr((self.own, str(self.sums), self.place))

    @staticmethod
    @lru_cache(512)
    def of(text: str) -> Summed:
        try:
            own, sums, place = literal_eval(text)
            found = Summed(str(own), Sums.of(str(sums)), int(place))
            direction, _, has_bias, _, _ = settled.parsed(found.own)
            if direction not in ("forward", "data") or has_bias:
                raise ValueError(f"{direction}, with a bias: {has_bias}")
            kinds = [kind for kind, _ in found.sums.results]
            if kinds not in ([MOMENTS], [SUM, SUM]) or not 0 <= found.place < len(found.sums.forms):
                raise ValueError(f"{kinds} of operand {found.place}")
            shape, strides, dtype = found.y
            if found.sums.forms[found.place] != (shape, strides, str(dtype).removeprefix("torch.")):
                raise ValueError(f"the sums are of {found.sums.forms[found.place]}")
        except (ValueError, TypeError, SyntaxError) as error:
            raise InvalidArgument(f"{text[:200]!r} is no text of jitdnn::convolution_sums: {error}") from None
        return found

    @property
    def is_moments(self) -> bool:
        """Whether the sums are those of results and of their squares."""
        return self.sums.results[0][0] == MOMENTS

    @property
    def y(self) -> settled.Form:
        """The form of the convolution's result."""
        return settled.form_of_result(self.own)

    @property
    def form(self) -> settled.Form:
        """The form of the sums, (2, N or 1, channels)."""
        _, batch, channels = self.sums.result
        return (2, batch, channels), (batch * channels, channels, 1), torch.float32

    @property
    def count(self) -> int:
        """Of numbers that are summed for each."""
        return prod(self.sums.shape[axis] for axis in self.sums.axes)

    def convolution(self) -> Convolution | None:
        """The convolution as a problem; None where ours has none, of other types or without elements."""
        direction, forms, _, geometry, _ = settled.parsed(self.own)
        x, w, y = (torch.empty_strided(*form[:2], dtype=form[2], device="meta") for form in forms)
        made = torch.empty_strided(*self.y[:2], dtype=self.y[2], device="meta")
        found = problem_of(direction, *((made, w, y) if direction == "data" else (x, w, made)), geometry)
        return found if isinstance(found, Convolution) else None

    def problem(self) -> FusedConvolution | None:
        """Moments as a problem of the planner's."""
        found = self.convolution()
        try:
            own = (
                None
                if found is None
                else FusedConvolution.of(found, None, sums=True, by_image=self.sums.is_by_image)
            )
        except JitdnnError:
            return None
        return own

    def kernel(self, handle: Handle) -> tuple[Kernel, int] | str:
        """The kernel of two formulas, and its bytes of workspace; or why there is none."""
        found = self.convolution()
        if found is None or self.is_moments:
            return "there is no such problem"
        formulas = [expression_of(steps, len(self.sums.forms) - 1) for _, steps in self.sums.results]
        operands = [descriptor_of(form) for form in self.sums.forms]
        return summed_convolution_kernel(
            found, formulas, operands, self.place, self.sums.is_by_image, handle.device
        )

    @property
    def others(self) -> list[int]:
        """Places of the operands beside the result, in the order of the kernel: those of every element first."""
        left = [place for place in range(len(self.sums.forms)) if place != self.place]
        return sorted(left, key=lambda place: self.sums.forms[place][0] != self.sums.shape)


def _launcher(summed: Summed, device: torch.device) -> Callable[[list[int]], None] | None:
    """What runs it as one plan on the addresses of both operands, the result, the sums of both kinds, and others."""
    options = settled.parsed(summed.own)[-1]
    if summed.is_moments:
        problem = summed.problem()
        if problem is None:
            return None
        given = settled.forms_of_operands(summed.own)
        metas = [torch.empty_strided(*form[:2], dtype=form[2], device="meta") for form in (*given, summed.y)]
        shape = summed.form[0][1:] if summed.sums.is_by_image else summed.form[0][2:]
        row = torch.empty(shape, device="meta")
        run = direct(handle_of(options, device.type), problem, [*metas, row, row], device)
        return None if run is None else run.at
    if device.type == "cpu":
        return None
    runner = at(device, handle_of(options, device.type))
    found = summed.kernel(runner)
    in_force = stream_of_library(("torch",), device.index or 0)
    if isinstance(found, str) or in_force is None:
        return None
    kernel, bytes = found
    return lambda addresses: runner.launch(in_force(), kernel, addresses, 1.0, 0.0, bytes)


def _prepare(text: str, device: torch.device) -> _Run:
    summed = Summed.of(text)
    made = [fresh(*form, device) for form in (summed.y, summed.form)]
    run = _launcher(summed, device)
    behind = 4 * prod(summed.form[0][1:])
    given = [_named(form) for form in settled.forms_of_operands(summed.own)]
    places = summed.others
    forms = [summed.sums.forms[place] for place in places]
    count = sum(shape == summed.sums.shape for shape, _, _ in forms)

    def call(a: Tensor, w: Tensor, operands: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        a, w, *others = [
            *laid((a, w), given),
            *laid([operands[place - (place > summed.place)] for place in places], forms),
        ]
        if len(operands) != len(places):
            raise InvalidArgument(f"{len(operands)} operands beside the result: the text has {len(places)}")
        y, sums = (one() for one in made)
        if run is not None:
            first = sums.data_ptr()
            wide = [one.data_ptr() for one in (a, w, y, *others[:count])]
            if summed.is_moments or not any(address % _ALIGNMENT for address in wide):
                rest = [one.data_ptr() for one in others[count:]]
                run([*wide[:3], first, first + behind, *wide[3:], *rest])
                return y, sums
        y.copy_(settled.settled_convolution.default(a, w, None, summed.own))
        _add(summed, y, dict(zip(places, others, strict=True)), sums)
        return y, sums

    return call


def _add(summed: Summed, y: Tensor, others: dict[int, Tensor], sums: Tensor) -> None:
    """The sums by PyTorch's operators."""
    values = [
        (y if place == summed.place else others[place]).float() for place in range(len(summed.sums.forms))
    ]
    wide = [computed(steps, list(values)).expand(summed.sums.shape) for _, steps in summed.sums.results]
    for place, one in enumerate((wide[0], wide[0].square()) if summed.is_moments else wide):
        sums[place].copy_(one.sum(summed.sums.axes).view(sums[place].shape))


def _named(form: settled.Form) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    shape, strides, dtype = form
    return shape, strides, str(dtype).removeprefix("torch.")


def _kernel(a: Tensor, w: Tensor, operands: Sequence[Tensor], text: str) -> tuple[Tensor, Tensor]:
    key = (text, a.device)
    run = _known.get(key) or _known.older(key) or _known.put(key, _prepare(text, a.device))
    return run(a, w, operands)


def _fake(a: Tensor, w: Tensor, operands: Sequence[Tensor], text: str) -> tuple[Tensor, Tensor]:
    summed = Summed.of(text)
    y, sums = (
        torch.empty_strided(shape, strides, dtype=dtype, device=a.device)
        for shape, strides, dtype in (summed.y, summed.form)
    )
    return y, sums


convolution_sums = define(
    "convolution_sums(Tensor a, Tensor w, Tensor[] operands, str text) -> (Tensor, Tensor)",
    _kernel,
    _fake,
    has_batching=True,
)


def call(a: Tensor, w: Tensor, operands: Sequence[Tensor], text: str) -> Callable[[], Any]:
    """A call as the code of a graph makes it, to measure."""
    return lambda: convolution_sums.default(a, w, operands, text)
