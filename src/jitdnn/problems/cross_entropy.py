"""Softmax and cross-entropy in one: the loss of scores against classes or probabilities, and its gradient.

For each row of scores x_c, c = 0 .. C - 1, with lse = log(sum(exp(x_c))), class weights w_c (1 if there are none) and
label smoothing e:

    loss = (1 - e) w_t (lse - x_t) + (e / C) sum over c of w_c (lse - x_c)      class t as target
    loss = sum over c of w_c q_c (lse - x_c),  q_c = (1 - e) p_c + e / C        probabilities p_c as target

    dx_c = g (a exp(x_c - lse) - b_c)
        b_c = (1 - e) w_t [c = t] + (e / C) w_c, or w_c q_c;  a = sum over c of b_c

A row whose class is `ignore_index` has loss and gradient 0. The losses are kept ("none"), added up ("sum"), or
averaged ("mean"): divided by the sum of w_t over the rows that are not ignored, or by the number of rows where the
targets are probabilities. g is the gradient of a row's loss: dloss, divided by the same number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from jitdnn.arguments import MOST_INDEX, check_choice, integer_number, real_number
from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.problems.directed import DirectedProblem
from jitdnn.problems.problem import Operand, Reals, as_descriptor
from jitdnn.problems.words import Words, layout_forms, order_word, shape_word
from jitdnn.tensor import REAL_DTYPES, TensorDescriptor, compute_dtype

DIRECTIONS = ("fwd", "bwd")
REDUCTIONS = ("mean", "sum", "none")
INDEX_DTYPES = ("i64", "i32", "u8")


@dataclass(frozen=True)
class CrossEntropy(DirectedProblem, kinds=("cross_entropy_fwd", "cross_entropy_bwd")):
    """The loss of scores x (N, C, space) against target; or its gradient dx, given that of the loss.

    `target` has shape (N, space) and classes (i64, i32 or u8), or x's shape and type: probabilities. `weight` (C,) is
    of x's type. `loss` has shape (N, space) for "none", else (1,). `lse` (N, space) is what the gradient needs of the
    forward pass, and for the mean over classes also `total` (1,), the sum of weights: in f32, or f64 if x is f64;
    None forward if it is not saved. For "bwd" `loss` describes the gradient of the loss.

    A class that is neither 0 to C - 1 nor `ignore_index` makes loss and gradient of its row NaN.

    Raises InvalidShape for shapes that do not fit, InvalidArgument for smoothing outside of 0 to 1, InvalidType.
    """

    direction: str
    reduction: str
    x: TensorDescriptor
    target: TensorDescriptor
    loss: TensorDescriptor
    weight: TensorDescriptor | None = None
    lse: TensorDescriptor | None = None
    total: TensorDescriptor | None = None
    ignore_index: int = -100
    smoothing: float = 0.0
    dx: TensorDescriptor | None = None

    def __post_init__(self) -> None:
        check_choice(self.direction, DIRECTIONS, "direction")
        check_choice(self.reduction, REDUCTIONS, "reduction")
        integer_number(self.ignore_index, "ignore_index", most=MOST_INDEX)
        real_number(self.smoothing, "label_smoothing", 0.0, 1.0)
        is_backward = self.direction == "bwd"
        if is_backward and (self.lse is None or (self._has_total and self.total is None)):
            raise InvalidArgument("lse, and for the mean total, are needed: the forward pass saves them")
        if not self._has_total and self.total is not None:
            raise InvalidArgument("total is given: only the mean over classes has a sum of weights")
        if not is_backward and self.dx is not None:
            raise InvalidArgument("dx is given, but a forward problem has no gradients")
        if is_backward:
            object.__setattr__(self, "dx", self.dx or self.x)
        self._check_shapes()
        self._check_operands()

    def _check_shapes(self) -> None:
        if len(self.x.shape) < 2 or self.x.shape[1] < 1:
            raise InvalidShape(
                f"x has shape {self.x.shape}: it must be (N, C) or (N, C, space), with C at least 1"
            )
        rows = rows_shape(self.x.shape)
        wanted = {
            "target": rows if self.has_classes else self.x.shape,
            "weight": (self.x.shape[1],),
            "loss": rows if self.reduction == "none" else (1,),
            "lse": rows,
            "total": (1,),
            "dx": self.x.shape,
        }
        for name, shape in wanted.items():
            tensor = getattr(self, name)
            if tensor is not None and tensor.shape != shape:
                kind = "classes" if self.has_classes else "probabilities"
                extra = f", as {kind} (by its type, {tensor.dtype})," if name == "target" else ""
                raise InvalidShape(
                    f"{name} has shape {tensor.shape}: with x {self.x.shape} it{extra} must be {shape}"
                )

    @property
    def has_classes(self) -> bool:
        """True if targets are classes, False if they are probabilities."""
        return self.target.dtype not in REAL_DTYPES

    @property
    def _has_total(self) -> bool:
        return self.has_classes and self.reduction == "mean"

    @property
    def classes(self) -> int:
        return self.x.shape[1]

    @classmethod
    def make(
        cls,
        direction: str,
        x: TensorDescriptor | Sequence[int],
        target: TensorDescriptor | str = "i64",
        reduction: str = "mean",
        weight: TensorDescriptor | bool | None = None,
        ignore_index: int = -100,
        smoothing: float = 0.0,
        dtype: str = "f32",
        layout: str = "nchw",
        loss: TensorDescriptor | None = None,
        lse: TensorDescriptor | bool | None = None,
        total: TensorDescriptor | None = None,
        dx: TensorDescriptor | None = None,
    ) -> Self:
        """The problem from shapes or descriptors. `target` may be a type: of classes, or x's own for
        probabilities; `lse=True` saves what the gradient needs; `weight=True` has packed weights."""
        x = as_descriptor(x, dtype, layout)
        rows = rows_shape(x.shape)
        if isinstance(target, str):
            shape = x.shape if target in REAL_DTYPES else rows
            target = TensorDescriptor.packed(shape, target, layout if target in REAL_DTYPES else "nchw")
        if weight is True:
            weight = TensorDescriptor.packed(x.shape[1:2], x.dtype)
        loss = loss or TensorDescriptor.packed(rows if reduction == "none" else (1,), x.dtype)
        real = compute_dtype(x.dtype)
        if lse is True or (lse is None and direction == "bwd"):
            lse = TensorDescriptor.packed(rows, real)
        is_mean = target.dtype not in REAL_DTYPES and reduction == "mean"
        if total is None and lse and is_mean:
            total = TensorDescriptor.packed((1,), real)
        return cls(
            direction, reduction, x, target, loss, weight or None, lse or None, total,
            integer_number(ignore_index, "ignore_index", most=MOST_INDEX),
            real_number(smoothing, "label_smoothing"), dx,
        )  # fmt: skip

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(x, target, [weight,] loss, [lse, total]); backward (dloss, x, target, [weight,] lse, [total,] dx)."""
        real = (compute_dtype(self.x.dtype),)
        kinds = INDEX_DTYPES if self.has_classes else None
        read = [
            Operand("x", self.x),
            Operand("target", self.target, "in", kinds, (0, self.classes - 1) if self.has_classes else None),
        ]
        if self.weight is not None:
            read.append(Operand("weight", self.weight))
        saved = [(name, t) for name, t in (("lse", self.lse), ("total", self.total)) if t is not None]
        if self.direction == "fwd":
            return *read, Operand("loss", self.loss, "out"), *(Operand(n, t, "saved", real) for n, t in saved)
        assert self.dx is not None
        kept = (Operand(name, tensor, "in", real) for name, tensor in saved)
        return Operand("dloss", self.loss), *read, *kept, Operand("dx", self.dx, "out")

    @property
    def flops(self) -> int:
        """Four operations an element, as for a softmax."""
        return 4 * self.x.size

    def _define(self, *inputs: Reals) -> Any:
        given = dict(zip((operand.name for operand in self.inputs), inputs, strict=True))
        x, target = given["x"], given["target"]
        spread = (1, -1, *(1,) * (x.ndim - 2))
        weight = given.get("weight", np.ones(self.classes)).reshape(spread)
        known: Any = True
        ignored: Any = False
        reads: Any = True  # which scores enter a row's sum: with classes and no smoothing the target's alone
        smooth = self.smoothing / self.classes
        if self.has_classes:
            hot = target[:, None] == np.arange(self.classes).reshape(spread)
            ignored = target == self.ignore_index
            known = (target >= 0) & (target < self.classes)
            reads = hot | (smooth > 0.0)
            share = np.where(ignored, 0.0, np.where(hot, weight, 0.0).sum(axis=1))
            b = np.where(reads, weight * ((1.0 - self.smoothing) * hot + smooth), 0.0)
        else:
            share = np.full(rows_shape(x.shape), 1.0)
            b = weight * ((1.0 - self.smoothing) * target + smooth)
        divisor = share.sum() if self.reduction == "mean" else 1.0
        if self.direction == "fwd":
            top = x.max(axis=1, keepdims=True)
            lse = np.log(np.exp(x - top).sum(axis=1)) + top[:, 0]
            rows = np.where(reads, b * (lse[:, None] - x), 0.0).sum(axis=1)
            if self.has_classes:
                rows = np.where(ignored, 0.0, np.where(known, rows, np.nan))
            loss = rows if self.reduction == "none" else np.reshape(rows.sum() / divisor, (1,))
            saved = [lse] if self.lse is not None else []
            saved += [np.reshape(divisor, (1,))] if self.total is not None else []
            return (loss, *saved) if saved else loss
        divisor = given["total"][0] if "total" in given else divisor
        slope = np.broadcast_to(given["dloss"] / divisor, rows_shape(x.shape))[:, None]
        dx = slope * (b.sum(axis=1, keepdims=True) * np.exp(x - given["lse"][:, None]) - b)
        if self.has_classes:
            dx = np.where(ignored[:, None], 0.0, np.where(known[:, None], dx, np.nan))
        return dx

    def _body(self) -> list[str]:
        words = [self.reduction, shape_word(self.x.shape)]
        if self.has_classes:
            words.append({"i64": "classes64", "i32": "classes32", "u8": "classes8"}[self.target.dtype])
            words += [f"ignore{self.ignore_index}"] if self.ignore_index != -100 else []
        words += [f"smoothing{self.smoothing!r}"] if self.smoothing else []
        words += ["weighted"] if self.weight is not None else []
        words += ["save"] if self.direction == "fwd" and self.lse is not None else []
        words.append(self.dtype)
        layout = (
            "nhwc" if self.x == layout_forms(self.x.shape, self.dtype)["nhwc"] != self._packed else "nchw"
        )
        words.append(layout)
        for operand in self.operands:
            tensor = operand.descriptor
            form = layout if len(tensor.shape) == len(self.x.shape) else "nchw"
            words += order_word(operand.name, tensor, layout_forms(tensor.shape, tensor.dtype), form)
        return words

    @property
    def _packed(self) -> TensorDescriptor:
        return TensorDescriptor.packed(self.x.shape, self.x.dtype)

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        direction = words.kind.removeprefix("cross_entropy_")
        reduction, shape = words.choice(REDUCTIONS, "mean"), words.shape("shape")
        bits = words.number("classes", 0)
        ignore_index, smoothing = words.number("ignore", -100), words.real("smoothing", 0.0)
        is_weighted = words.flag("weighted")
        is_saved = words.flag("save") if direction == "fwd" else True
        dtype = words.dtype()
        layout = words.layout(max(2, len(shape)))
        rows = rows_shape(shape)

        def tensor(name: str, shape: Sequence[int], kind: str) -> TensorDescriptor:
            form = layout if len(shape) == rank else "nchw"
            return words.descriptor(name, shape, kind, layout_forms(shape, kind), form)

        rank = len(shape)
        x = tensor("x", shape, dtype)
        kinds = {64: "i64", 32: "i32", 8: "u8"}
        target = tensor("target", rows, kinds.get(bits, "i64")) if bits else tensor("target", shape, dtype)
        is_mean = bool(bits) and reduction == "mean"
        loss = tensor("loss" if direction == "fwd" else "dloss", rows if reduction == "none" else (1,), dtype)
        real = compute_dtype(dtype)
        return cls(
            direction, reduction, x, target, loss,
            tensor("weight", shape[1:2], dtype) if is_weighted else None,
            tensor("lse", rows, real) if is_saved else None,
            tensor("total", (1,), real) if is_saved and is_mean else None,
            ignore_index, smoothing, tensor("dx", shape, dtype) if direction == "bwd" else None,
        )  # fmt: skip


def rows_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape without the classes. Raises InvalidShape for less than two dims."""
    if len(shape) < 2:
        raise InvalidShape(f"x has shape {tuple(shape)}: it must be (N, C) or (N, C, space)")
    return (shape[0], *shape[2:])
