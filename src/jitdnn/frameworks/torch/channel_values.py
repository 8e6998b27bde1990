"""`torch.ops.jitdnn.channel_values`: what a formula makes of tensors, with numbers that each channel has.

The second pass of a normalization, of its gradient above all: pixels by pixels, where each thread keeps the numbers of
its channels. As channel_sums.py, which it follows: a text says the forms of the operands and of the result, and the
steps of the formula (tail.py).
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jitdnn.errors import InvalidArgument
from jitdnn.frameworks.torch.channel_sums import Form, checked_forms, descriptor_of, laid, launcher, shape_of
from jitdnn.frameworks.torch.registry import define
from jitdnn.frameworks.torch.tail import computed, expression_of
from jitdnn.kernels.formulas.row_algorithms import Step
from jitdnn.kernels.formulas.row_programs import Pass, Program


@dataclass(frozen=True)
class Values:
    """What a text says: the forms of the operands, broadcast to (N, C, space), and that of the result; the formula's
    steps; the options. Raises InvalidArgument for others."""

    forms: tuple[Form, ...]
    result: Form
    steps: str
    options: str

    def __str__(self) -> str:
        return repr((self.forms, self.result, self.steps, self.options))

    @staticmethod
    def of(text: str) -> Values:
        try:
            forms, result, steps, options = literal_eval(text)
            (made,) = checked_forms([result])
            found = Values(checked_forms(forms), made, str(steps), str(options))
            if shape_of((*found.forms, made)) != made[0]:
                raise ValueError(f"a result of {made[0]}")
        except (ValueError, TypeError, SyntaxError, AttributeError, RuntimeError) as error:
            raise InvalidArgument(f"{text[:200]!r} is no text of jitdnn::channel_values: {error}") from None
        return found

    def step(self) -> Step:
        """The program over rows that computes it: one pass over the pixels of each channel."""
        expression = expression_of(self.steps, len(self.forms) - 1)
        is_by_image = any(shape[0] > 1 and shape != self.result[0] for shape, _, _ in self.forms)
        axes = tuple(
            axis for axis in range(len(self.result[0])) if axis > 1 or (axis == 0 and not is_by_image)
        )
        tensors = tuple(map(descriptor_of, (*self.forms, self.result)))
        return Step(Program((Pass(writes=((0, expression),)),)), tensors, axes, (0,), compute="f32")


def form_of_result(text: str) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    """The form of what `text` gives."""
    shape, strides, name = Values.of(text).result
    return shape, strides, getattr(torch, name)


def _compute(text: str, operands: Sequence[Tensor], out: Tensor) -> None:
    """The same by PyTorch's operators."""
    out.copy_(computed(Values.of(text).steps, [one.float() for one in operands]))


launch = launcher(
    lambda text: Values.of(text).step(), lambda text: [0], lambda text: Values.of(text).options, _compute
)


def _kernel(operands: Sequence[Tensor], text: str) -> Tensor:
    out = _fake(operands, text)
    launch(*laid(operands, Values.of(text).forms), text, None, out=out)
    return out


def _fake(operands: Sequence[Tensor], text: str) -> Tensor:
    shape, strides, dtype = form_of_result(text)
    return torch.empty_strided(shape, strides, dtype=dtype, device=operands[0].device)


channel_values = define(
    "channel_values(Tensor[] operands, str text) -> Tensor", _kernel, _fake, has_batching=True
)
