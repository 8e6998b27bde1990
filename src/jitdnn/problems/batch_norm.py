"""Batch normalization: training, inference, and its gradients; fused with an addition and an activation.

    y = act((x - mean) * rstd * weight + bias + z)

"spatial" takes the statistics of a channel over the batch and space, "per_activation" those of every element
of (C, space) over the batch. Training updates the running statistics, if there are any:

    running_mean = (1 - factor) * running_mean + factor * mean
    running_var  = (1 - factor) * running_var + factor * variance * m / (m - 1)

which are not read where factor is 1, with m elements to a mean; where m is 1, that quotient counts as 1.
Inference takes the running statistics for mean and variance. With an activation, the gradients need y: dy is first
multiplied by act'(y), which is dz. Or what the activation was of is computed once more, from x, weight and bias: then
y need not be kept, and functions whose slope does not follow from y have gradients as well.

Ioffe and Szegedy, "Batch normalization: accelerating deep network training", 2015.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from jitdnn.arguments import check_choice
from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.problems.activation import FUNCTIONS, SAVED
from jitdnn.problems.normalization import EPSILON, LIKE_X, Normalization, finite
from jitdnn.problems.problem import Operand, Reals, as_descriptor
from jitdnn.problems.words import Words, shape_word
from jitdnn.tensor import TensorDescriptor

MODES = ("spatial", "per_activation")
ACTIVATIONS = ("identity", "relu", "sigmoid", "tanh", "clipped_relu", "swish")
FACTOR = 0.1


@dataclass(frozen=True, kw_only=True)
class BatchNorm(Normalization, kinds=("batch_norm_fwd", "batch_norm_inference", "batch_norm_bwd")):
    """Batch normalization of x (N, C, any space): "fwd" (training), "inference" or "bwd".

    Parameters and statistics have the shape (C,) for mode "spatial" and (C, space) for "per_activation".
    `z` is added before the `activation`, "identity" if there is none. `running_mean`, `running_var`: both or
    none in training, where `factor` is the weight of this batch in them; both in inference. Backward, `y` is
    an operand if there is an activation, and `dz` is None if it is not wanted; where `saved` is "x", which excludes an
    addition, `bias` is one in the place of y. Coefficients of activations are the defaults: min(max(x, 0), 6) is
    clipped_relu, and x sigmoid(x) swish.
    """

    mode: str = "spatial"
    activation: str = "identity"  # type: ignore[misc]
    saved: str = "y"  # type: ignore[misc]
    factor: float = FACTOR
    z: TensorDescriptor | None = None
    dz: TensorDescriptor | None = None
    running_mean: TensorDescriptor | None = None
    running_var: TensorDescriptor | None = None

    directions: ClassVar[tuple[str, ...]] = ("fwd", "inference", "bwd")

    @classmethod
    def make(
        cls,
        direction: str,
        shape: TensorDescriptor | Sequence[int],
        mode: str = "spatial",
        activation: str = "identity",
        adds: bool = False,
        absent: Sequence[str] = (),
        epsilon: float = EPSILON,
        factor: float = FACTOR,
        dtype: str = "f32",
        layout: str = "nchw",
        is_narrow: bool = False,
        saved: str = "y",
    ) -> Self:
        """The problem from a shape or x's descriptor, the other tensors packed.

        `adds`: there is a z, or backward a dz. `absent`: names of tensors that there are not. `is_narrow`:
        parameters are of x's dtype.
        """
        x = as_descriptor(shape, dtype, layout)
        absent = absent if adds else (*absent, "z", "dz")
        absent = absent if saved == "x" or direction != "bwd" else (*absent, "bias")
        return cls.describe(
            direction, x, None, absent, is_narrow, layout,
            mode=mode, activation=activation, epsilon=epsilon, factor=factor, saved=saved,
        )  # fmt: skip

    def _check_attributes(self) -> None:
        super()._check_attributes()
        check_choice(self.mode, MODES, "mode")
        check_choice(self.activation, ACTIVATIONS, "activation")
        check_choice(self.saved, SAVED, "saved")
        if len(self.x.shape) < 2:
            raise InvalidShape(f"x has shape {self.x.shape}: batch normalization needs at least N and C")
        object.__setattr__(self, "factor", finite("factor", self.factor))
        if (self.running_mean is None) != (self.running_var is None):
            raise InvalidArgument("running_mean and running_var: give both or none")
        if self.direction == "inference" and self.running_mean is None:
            raise InvalidArgument("inference needs running_mean and running_var")

    def _settle(self) -> None:
        bias = self.bias
        super()._settle()
        unused: dict[str, object] = {}
        if self.direction != "bwd" or self.activation == "identity":
            unused["saved"] = "y"
        elif self.saved == "x":
            self._check_recomputed(bias)
            unused["bias"] = bias
        elif FUNCTIONS[self.activation].derivative_from_y is None:
            raise InvalidArgument(
                f"saved is 'y': the derivative of {self.activation} does not follow from y, save x"
            )
        if self.direction != "fwd" or self.running_mean is None:
            unused["factor"] = FACTOR
        if self.direction == "inference":
            unused |= dict.fromkeys(("mean", "rstd"))
        if self.direction == "bwd":
            unused |= dict.fromkeys(("z", "running_mean", "running_var"))
        for name, value in unused.items():
            object.__setattr__(self, name, value)

    def _check_recomputed(self, bias: TensorDescriptor | None) -> None:
        """Whether what the activation was of follows from the operands."""
        if bias is None or self.weight is None:
            raise InvalidArgument("saved is 'x': a backward problem needs weight and bias to compute y anew")
        if self.dz is not None:
            raise InvalidArgument("saved is 'x': what was added is not known, so that dz needs y")

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        return self.x.shape[1:2] if self.mode == "spatial" else self.x.shape[1:]

    @property
    def statistic_shape(self) -> tuple[int, ...]:
        return self.parameter_shape

    @property
    def grid(self) -> tuple[int, ...]:
        return self.x.shape

    @property
    def rows(self) -> tuple[int, ...]:
        return (0,) if self.mode == "per_activation" else (0, *range(2, len(self.x.shape)))

    @property
    def sums(self) -> tuple[int, ...]:
        return self.rows

    def on_grid(self, name: str) -> TensorDescriptor:
        tensor: TensorDescriptor = getattr(self, name)
        if name in LIKE_X:
            return tensor
        spread = (0, *tensor.strides, *(0 for _ in range(len(self.x.shape) - 1 - len(tensor.strides))))
        return TensorDescriptor(self.grid, spread, tensor.dtype)

    @property
    def _needs_y(self) -> bool:
        return self.activation != "identity" and self.saved == "y"

    def _names(self) -> tuple[str, ...]:
        return (*super()._names(), "z", "dz", "running_mean", "running_var")

    def _is_used(self, name: str, direction: str) -> bool:
        if name in ("z", "running_mean", "running_var"):
            return direction != "bwd"
        if name == "bias":
            return True
        return super()._is_used(name, direction)

    def _operands(self) -> Iterator[Operand]:
        """(x, z, weight, bias, y, mean, rstd, running_mean, running_var) in training, (x, z, weight, bias,
        running_mean, running_var, y) in inference, (dy, x, y, weight, bias, mean, rstd, dx, dweight, dbias, dz)
        backward, y or bias, without those that there are not."""
        if self.direction == "bwd":
            y = ("y",) if self._needs_y else ()
            yield from self._some("in", "dy", "x", *y, "weight", "bias", "mean", "rstd")
            yield from self._some("out", "dx", "dweight", "dbias", "dz")
            return
        running = ("running_mean", "running_var")
        yield from self._some("in", "x", "z", "weight", "bias")
        if self.direction == "inference":
            yield from self._some("in", *running)
        yield from self._some("out", "y")
        if self.direction == "fwd":
            yield from self._some("saved", "mean", "rstd")
            yield from self._some("state", *running)

    @property
    def flops(self) -> int:
        return 3 * self.x.size if self.direction == "inference" else super().flops

    def _forward(self, given: dict[str, Any]) -> dict[str, Any]:
        if self.direction == "inference":
            rstd = 1.0 / np.sqrt(given["running_var"] + self.epsilon)
            y = (given["x"] - given["running_mean"]) * rstd * given["weight"] + given["bias"]
            results = {"y": y}
        else:
            results = super()._forward(given)
            unbiased = results["variance"] * (self.count / max(1, self.count - 1))
            for name, batch in (("running_mean", results["mean"]), ("running_var", unbiased)):
                if name in given:
                    old = (1.0 - self.factor) * given[name] if self.factor != 1 else 0.0
                    results[name] = old + self.factor * batch
        results["y"] = self._activated(results["y"] + given.get("z", 0.0))
        return results

    def _backward(self, given: dict[str, Any]) -> dict[str, Any]:
        if self._needs_y:
            slope = FUNCTIONS[self.activation].derivative_from_y
            assert slope is not None
            given["dy"] = given["dy"] * slope(given["y"])
        elif self.saved == "x":
            xhat = (given["x"] - given["mean"]) * given["rstd"]
            slope = FUNCTIONS[self.activation].derivative
            given["dy"] = given["dy"] * slope(xhat * given["weight"] + given["bias"])
        return {**super()._backward(given), "dz": given["dy"]}

    def _activated(self, y: Reals) -> Reals:
        return y if self.activation == "identity" else FUNCTIONS[self.activation].forward(y)

    def _body(self) -> list[str]:
        words = [self.mode]
        words += [self.activation] * (self.activation != "identity")
        words += ["from_x"] * (self.saved == "x")
        words += ["add"] * (self.z is not None or self.dz is not None)
        words.append(shape_word(self.x.shape))
        if self.direction == "fwd":
            words.append("no_running" if self.running_mean is None else f"factor{self.factor!r}")
        return words + self._tail()

    @classmethod
    def _attributes(cls, words: Words, rank: int) -> dict[str, Any]:
        found: dict[str, Any] = {
            "mode": words.choice(MODES, "spatial"),
            "activation": words.choice(ACTIVATIONS, "identity"),
        }
        if words.kind == "batch_norm_fwd":
            found["factor"] = words.real("factor", FACTOR)
        if words.kind == "batch_norm_bwd" and words.flag("from_x"):
            found["saved"] = "x"
        return found

    @classmethod
    def _absent(cls, words: Words) -> set[str]:
        missing = super()._absent(words)
        if words.kind == "batch_norm_fwd" and words.flag("no_running"):
            missing |= {"running_mean", "running_var"}
        if words.kind == "batch_norm_bwd":
            missing -= {"bias"}  # of whether there is a dbias that word says
        return missing if words.flag("add") else missing | {"z", "dz"}
