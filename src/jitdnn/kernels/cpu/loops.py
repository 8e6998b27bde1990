"""What the memory-bound kernels share: tasks, counting through index spaces, blended stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jitdnn.devices.cpu import Arguments
from jitdnn.kernels.algorithm import Device
from jitdnn.rtcg.builder import Builder, Pointer, Value
from jitdnn.rtcg.storage import widen
from jitdnn.tensor import REAL_DTYPES

# A task shorter than this is not worth handing to another thread; a thread asleep takes as long to wake.
TASK_SECONDS = 15e-6
_TASKS_PER_THREAD = 4  # so that a thread that was held up can be helped out


def task_count(device: Device, seconds: float) -> int:
    """Into how many tasks to cut work that takes one thread ``seconds``; 1 if it is too little to share."""
    if device.threads == 1 or seconds < 3 * TASK_SECONDS:
        return 1
    return max(1, min(_TASKS_PER_THREAD * device.threads, int(seconds / TASK_SECONDS)))


def share(units: int, device: Device, seconds: float) -> tuple[int, int]:
    """Units of equal work as (tasks, units of a task); no task where there is no unit."""
    per_task = max(1, -(-units // task_count(device, seconds)))
    return -(-units // per_task), per_task


class Slots:
    """Integers that the code takes at run time, by name, as the extras of a ``CpuKernel``."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def pack(self, values: Mapping[str, int]) -> list[int]:
        """The extras, in order; every name must have a value."""
        return [values[name] for name in self.names]

    def load(self, arguments: Arguments) -> dict[str, Value]:
        """The same integers in traced code."""
        return {name: arguments.extra(i) for i, name in enumerate(self.names)}


class Counter:
    """The digits of a unit's number, outermost first, and where each tensor stands; counts up by one.

    Dividing costs tens of cycles: it happens once a task, then the digits carry.
    """

    def __init__(
        self,
        k: Builder,
        number: Value,
        extents: Sequence[Value],
        strides: Sequence[Sequence[Value]],
        bases: Sequence[Value] | None = None,
    ) -> None:
        self.k, self.extents, self.strides = k, extents, strides
        rest, digits = number, []
        for extent in reversed(extents):
            digits.append(rest % extent)
            rest = rest // extent
        digits.reverse()
        self.digits = [k.register(digit) for digit in digits]
        self.offsets = []
        for base, steps in zip(bases or [k.integer(0)] * len(strides), strides, strict=True):
            offset = base
            for digit, step in zip(digits, steps, strict=True):
                offset = offset + digit * step
            self.offsets.append(k.register(offset))

    def advance(self, axis: int | None = None) -> None:
        """Add one to the digit of ``axis`` (the last one), and carry."""
        axis = len(self.digits) - 1 if axis is None else axis
        digit = self.digits[axis]
        digit += 1
        for offset, steps in zip(self.offsets, self.strides, strict=True):
            offset += steps[axis]
        if axis == 0:
            return
        with self.k.when(digit.get() == self.extents[axis]):
            digit.set(self.k.integer(0))
            for offset, steps in zip(self.offsets, self.strides, strict=True):
                offset.set(offset.get() - self.extents[axis] * steps[axis])
            self.advance(axis - 1)


def blend_whole(
    k: Builder, factors: tuple[Value, Value], target: Pointer, stride: int | Value, value: Value, dtype: str,
    mask: Value | None = None, divisor: Value | None = None,
) -> None:  # fmt: skip
    """Blend ``value`` (over ``divisor``) into a tensor of integers by the rule of ``problems.problem.Operand``.

    ``factors`` are alpha and beta in f64, ``dtype`` is what the value is in. Where they are 1 and 0 the value is stored
    from its own type; else it is widened, and neither the products nor their sum are rounded to less than f64 (nor
    fused: what is exactly between two whole numbers is so for every target).
    """
    alpha, beta = factors
    is_plain = (alpha == 1.0) & (beta == 0.0)
    with k.when(is_plain):
        target.store_strided(value if divisor is None else value / divisor, 0, stride, mask)
    with k.when(~is_plain):
        wide = widen(k, value, dtype, "f64")
        if divisor is not None:
            wide = wide / k.convert(divisor, "f64")
        store_scaled(k, factors, target, stride, wide, mask)


def store_scaled(
    k: Builder, factors: tuple[Value, Value], target: Pointer, stride: int | Value, value: Value,
    mask: Value | None,
) -> None:  # fmt: skip
    """``blend_whole`` for a value of type f64 and any alpha and beta."""
    alpha, beta = factors
    place = target.as_real("f64")
    result = k.register(k.rounded_product(value, k.splat(alpha, value.lanes)))
    with k.when(beta != 0.0):
        old = place.load_strided(0, stride, value.lanes, mask)
        result.set(result.get() + k.rounded_product(old, k.splat(beta, value.lanes)))
    place.store_strided(result.get(), 0, stride, mask)


class Scale:
    """The factors of every call: dst = alpha * value + beta * dst, and beta == 0 does not read dst."""

    def __init__(self, k: Builder, arguments: Arguments, dtype: str) -> None:
        self.k, self.dtype = k, dtype
        real = dtype if dtype in REAL_DTYPES else "f64"
        self.alpha, self.beta = arguments.alpha(real), arguments.beta(real)
        self._wide = arguments.alpha("f64"), arguments.beta("f64")

    def is_new(self, target: Pointer) -> Value:
        """Whether ``value * alpha`` may be stored as it is: nothing is read, and integers are not scaled."""
        alpha, beta = self._wide
        is_overwritten: Value = beta == 0.0
        return is_overwritten if target.dtype in REAL_DTYPES else is_overwritten & (alpha == 1.0)

    def store(
        self, target: Pointer, stride: int | Value, value: Value, mask: Value | None = None,
        divisor: Value | None = None,
    ) -> None:  # fmt: skip
        """Blend ``value``, divided by ``divisor``, into the elements of ``target`` that are ``stride`` apart."""
        k = self.k
        if target.dtype not in REAL_DTYPES:
            blend_whole(k, self._wide, target, stride, value, self.dtype, mask, divisor)
            return
        if divisor is not None:
            value = value / divisor
        result = k.register(value * k.splat(self.alpha, value.lanes))
        with k.when(self.beta != 0.0):
            old = target.load_strided(0, stride, value.lanes, mask)
            result.set(k.fma(k.splat(self.beta, value.lanes), old, result.get()))
        target.store_strided(result.get(), 0, stride, mask)

    def start(self, target: Pointer, stride: int | Value, lanes: int, mask: Value | None = None) -> None:
        """Make ``target`` beta * target, for terms that are added to it one by one afterwards."""
        k = self.k
        result = k.register(k.constant(0.0, target.dtype, lanes))
        with k.when(self.beta != 0.0):
            result.set(k.splat(self.beta, lanes) * target.load_strided(0, stride, lanes, mask))
        target.store_strided(result.get(), 0, stride, mask)
