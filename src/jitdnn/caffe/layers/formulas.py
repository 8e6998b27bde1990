"""AbsVal, BNLL, Clip, Exp, Log, Power, Swish and Threshold: one formula for each element, and one for the gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.layers.base import Layer, Reads, copy
from jitdnn.ops.elementwise import elementwise
from jitdnn.ops.tensor_ops import add, fill


class FormulaLayer(Layer):
    """Bottom and top of one shape; `formula` of x, and `gradient` of dy and x, take the `constants` behind those.

    In place x is kept, as the gradient needs it.
    """

    may_be_in_place = True
    formula = ""
    gradient = ""
    is_for_gpu = True

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.constants: tuple[float, ...] = self.numbers()
        self.function, self.derivative = elementwise(self.formula), elementwise(self.gradient)
        self.shifted = elementwise("x, shift: x + shift")

    def numbers(self) -> tuple[float, ...]:
        """The constants of the formulas, checked."""
        return ()

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if top[0] is bottom[0]:
            self.x = self.save("x", bottom[0].shape)
        else:
            self.x = bottom[0]
            top[0].reshape(bottom[0].shape)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if top[0] is bottom[0]:
            copy(bottom[0].values, self.x.values)
        self.function(self.x.values.reshape(-1), *self.constants, out=top[0].values.reshape(-1))

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate[0]:
            dy, x = top[0].gradient.reshape(-1), self.x.values.reshape(-1)
            self.derivative(dy, x, *self.constants, out=bottom[0].gradient.reshape(-1))

    def backward_reads(self) -> Reads:
        return Reads(bottom="x" not in self.saved, top=False)


class AbsValLayer(FormulaLayer):
    """y = |x|; the gradient at 0 is 0. As in Caffe not in place."""

    type = "AbsVal"
    may_be_in_place = False
    formula = "x: abs(x)"
    gradient = "dy, x: dy * sign(x)"


class BNLLLayer(FormulaLayer):
    """y = log(1 + e^x)."""

    type = "BNLL"
    formula = "x: maximum(x, 0) + log1p(exp(-abs(x)))"
    gradient = "dy, x: dy / (1 + exp(-x))"


class ClipLayer(FormulaLayer):
    """y = x within min and max, which both must be given, and min or max beyond; there the gradient is 0."""

    type = "Clip"
    formula = "x, low, high: minimum(maximum(x, low), high)"
    gradient = "dy, x, low, high: where((x >= low) & (x <= high), dy, 0)"

    def numbers(self) -> tuple[float, ...]:
        parameter = self.parameter.clip_param
        if not (parameter.has("min") and parameter.has("max")):
            raise self.invalid("clip_param needs both min and max", "clip_param")
        if parameter.min > parameter.max:
            raise self.invalid(f"min {parameter.min:g} is above max {parameter.max:g}", "clip_param")
        return parameter.min, parameter.max


class ExpLayer(FormulaLayer):
    """y = base^(shift + scale · x); base -1 (default) is e; scale 1, shift 0."""

    type = "Exp"
    formula = "x, slope, start: exp(slope * x + start)"
    gradient = "dy, x, slope, start: dy * slope * exp(slope * x + start)"

    def numbers(self) -> tuple[float, ...]:
        parameter = self.parameter.exp_param
        if parameter.base != -1 and not 0 < parameter.base < math.inf:
            raise self.invalid(f"base is {parameter.base:g}: it must be positive, or -1 for e", "exp_param")
        power = 1.0 if parameter.base == -1 else math.log(parameter.base)
        return power * parameter.scale, power * parameter.shift


class LogLayer(FormulaLayer):
    """y = log of shift + scale · x to the base; base -1 (default) is e; scale 1, shift 0."""

    type = "Log"
    formula = "x, scale, shift, factor: factor * log(scale * x + shift)"
    gradient = "dy, x, scale, shift, factor: dy * factor * scale / (scale * x + shift)"

    def numbers(self) -> tuple[float, ...]:
        parameter = self.parameter.log_param
        if parameter.base != -1 and (not 0 < parameter.base < math.inf or parameter.base == 1):
            raise self.invalid(
                f"base is {parameter.base:g}: it must be positive and not 1, or -1 for e", "log_param"
            )
        factor = 1.0 if parameter.base == -1 else 1.0 / math.log(parameter.base)
        return parameter.scale, parameter.shift, factor


class PowerLayer(FormulaLayer):
    """y = (shift + scale · x)^power; power 1, scale 1, shift 0. With power 0 it is 1 everywhere.

    A base below 0 with a power that is not whole gives NaN.
    """

    type = "Power"
    formula = "x, power, scale, shift: (scale * x + shift) ** power"
    gradient = "dy, x, power, scale, shift: dy * power * scale * (scale * x + shift) ** (power - 1)"

    def numbers(self) -> tuple[float, ...]:
        parameter = self.parameter.power_param
        # with a factor of 0 x does not matter, not even where its power is infinite
        self.is_constant = parameter.power * parameter.scale == 0
        self.is_linear = parameter.power == 1
        if self.is_constant:
            base, power = parameter.shift, parameter.power
            is_none = (base < 0 and not power.is_integer()) or (base == 0 and power < 0)
            if power != 0 and is_none:
                raise self.invalid(
                    f"scale 0: shift {base:g} to the power {power:g} is no number", "power_param"
                )
            self.constant = 1.0 if power == 0 else math.pow(base, power)
        return parameter.power, parameter.scale, parameter.shift

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if self.is_linear or self.is_constant:
            if top[0] is not bottom[0]:
                top[0].reshape(bottom[0].shape)
        else:
            super().reshape(bottom, top)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if self.is_constant:
            fill(top[0].values, self.constant)
        elif self.is_linear:
            _, scale, shift = self.constants
            y = top[0].values.reshape(-1)
            add(bottom[0].values.reshape(-1), out=y, alpha=scale)
            if shift:
                self.shifted(y, shift, out=y)
        else:
            super().forward(bottom, top)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate[0]:
            return
        if self.is_constant:
            fill(bottom[0].gradient, 0.0)
        elif self.is_linear:
            add(top[0].gradient.reshape(-1), out=bottom[0].gradient.reshape(-1), alpha=self.constants[1])
        else:
            super().backward(top, propagate, bottom)

    def backward_reads(self) -> Reads:
        return (
            Reads(bottom=False, top=False) if self.is_linear or self.is_constant else super().backward_reads()
        )


class SwishLayer(FormulaLayer):
    """y = x / (1 + e^(−beta · x)); beta 1."""

    type = "Swish"
    formula = "x, beta: x / (1 + exp(-beta * x))"
    gradient = "dy, x, beta: s = 1 / (1 + exp(-beta * x)); dy * (s + beta * x * s * (1 - s))"

    def numbers(self) -> tuple[float, ...]:
        return (self.parameter.swish_param.beta,)


class ThresholdLayer(FormulaLayer):
    """y = 1 where x > threshold (0), else 0. There is no gradient."""

    type = "Threshold"
    formula = "x, threshold: where(x > threshold, 1, 0)"
    gradient = "dy, x, threshold: 0 * dy"
    forced_bottoms = 0

    def numbers(self) -> tuple[float, ...]:
        return (self.parameter.threshold_param.threshold,)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate[0]:
            raise self.invalid("a threshold has no gradient: nothing before it can be trained through it")

    def backward_reads(self) -> Reads:
        return Reads(bottom=False, top=False)
