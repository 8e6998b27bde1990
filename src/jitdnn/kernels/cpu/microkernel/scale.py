"""alpha and beta: dst = alpha * value + beta * dst, for vectors and single elements."""

from __future__ import annotations

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.rtcg.builder import Builder, Pointer, Value
from jitdnn.rtcg.storage import widen
from jitdnn.tensor import REAL_DTYPES


def blend_integers(
    k: Builder, factors: tuple[Value, Value], target: Pointer, stride: int | Value, value: Value, dtype: str,
    mask: Value | None = None, divisor: Value | None = None,
) -> None:  # fmt: skip
    """Blend ``value`` (over ``divisor``) into a tensor of integers by the rule of ``problems.problem.Operand``.

    ``factors`` are alpha and beta in f64, ``dtype`` is the type of the value. Where they are 1 and 0 the value is
    stored from its own type; else it is widened, and neither the products nor their sum are rounded to less than f64
    (nor fused: what is exactly between two integers is so on every target).
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
    """``blend_integers`` for a value of type f64 and any alpha and beta."""
    alpha, beta = factors
    dst = target.as_real("f64")
    result = k.register(k.rounded_product(value, k.splat(alpha, value.lanes)))
    with k.when(beta != 0.0):
        old = dst.load_strided(0, stride, value.lanes, mask)
        result.set(result.get() + k.rounded_product(old, k.splat(beta, value.lanes)))
    dst.store_strided(result.get(), 0, stride, mask)


class Scale:
    """alpha and beta of a call: dst = alpha * value + beta * dst, where dst is not read if beta is 0."""

    def __init__(self, k: Builder, arguments: Arguments, dtype: str) -> None:
        self.k, self.dtype = k, dtype
        real = dtype if dtype in REAL_DTYPES else "f64"
        self.alpha, self.beta = arguments.alpha(real), arguments.beta(real)
        self._wide = arguments.alpha("f64"), arguments.beta("f64")

    def overwrites(self, target: Pointer) -> Value:
        """Whether ``value * alpha`` may be stored as it is: ``target`` is not read, and integers are not scaled."""
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
            blend_integers(k, self._wide, target, stride, value, self.dtype, mask, divisor)
            return
        if divisor is not None:
            value = value / divisor
        result = k.register(value * k.splat(self.alpha, value.lanes))
        with k.when(self.beta != 0.0):
            old = target.load_strided(0, stride, value.lanes, mask)
            result.set(k.fma(k.splat(self.beta, value.lanes), old, result.get()))
        target.store_strided(result.get(), 0, stride, mask)

    def start(self, target: Pointer, stride: int | Value, lanes: int, mask: Value | None = None) -> None:
        """Set ``target`` to beta * target, for terms that are added to it one by one afterwards."""
        k = self.k
        result = k.register(k.constant(0.0, target.dtype, lanes))
        with k.when(self.beta != 0.0):
            result.set(k.splat(self.beta, lanes) * target.load_strided(0, stride, lanes, mask))
        target.store_strided(result.get(), 0, stride, mask)
