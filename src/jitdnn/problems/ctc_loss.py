"""Connectionist temporal classification (Graves and others, 2006): the loss of a sequence of scores against labels.

At each time a symbol is said: one of A, among them the blank. A way of saying l_1 .. l_S is a sequence of T symbols
that gives the labels when repetitions are joined and blanks left out. The loss is the negative logarithm of the
probability of all ways together, found by the recursion over the states blank_0, l_1, blank_1, ..., l_S, blank_S:

    label_i(t) = lp(t, l_i) + log(exp label_i(t-1) + exp blank_{i-1}(t-1) + [l_i != l_{i-1}] exp label_{i-1}(t-1))
    blank_i(t) = lp(t, blank) + log(exp blank_i(t-1) + exp label_i(t-1))

with lp the logarithms of the probabilities. The gradient is the one with respect to activations a whose softmax the
probabilities are, whether x is these (`inputs` "logits"), their probabilities ("probs") or the logarithms of them
("log_probs"), as in PyTorch and cuDNN:

    dx(t, k) = g (exp lp(t, k) - the probability that k is said at t, given the labels)

and 0 from the length of the input on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from jitdnn.arguments import check_choice, integer_numbers
from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.problems.directed import DirectedProblem
from jitdnn.problems.problem import Operand, Reals, as_descriptor
from jitdnn.problems.words import Words, order_word
from jitdnn.tensor import TensorDescriptor

DIRECTIONS = ("fwd", "bwd")
REDUCTIONS = ("mean", "sum", "none")
INPUTS = ("log_probs", "logits", "probs")
INDEX_DTYPES = ("i64", "i32")


@dataclass(frozen=True)
class CtcLoss(DirectedProblem, kinds=("ctc_loss_fwd", "ctc_loss_bwd")):
    """The loss of x (T, N, A) against `targets`; or its gradient dx, given that of the loss.

    `targets`: (N, S) with the labels of each sequence in front, or (sum,) with those of all sequences one after the
    other; `input_lengths`, `target_lengths`: (N,); all i32 or i64. `longest`: labels of the longest sequence, S where
    there is one. `loss` is (N,) for "none" and (1,) otherwise; the mean is over the losses divided by the numbers of
    labels (1 for none). With `zero_infinity` what cannot be said at all, as too long, has loss and gradient 0;
    otherwise infinity, and NaN. For "bwd" `loss` describes the gradient of the loss.

    Lengths outside of 0 to T, or to `longest`, count as the nearest end; a sequence with a label outside of 0 to A - 1,
    or labels that are not all there, has loss and gradient NaN.

    Raises InvalidShape, InvalidType, and InvalidArgument for a blank that is no symbol.
    """

    direction: str
    reduction: str
    inputs_are: str
    x: TensorDescriptor
    targets: TensorDescriptor
    input_lengths: TensorDescriptor
    target_lengths: TensorDescriptor
    loss: TensorDescriptor
    longest: int
    blank: int = 0
    zero_infinity: bool = False
    dx: TensorDescriptor | None = None

    def __post_init__(self) -> None:
        check_choice(self.direction, DIRECTIONS, "direction")
        check_choice(self.reduction, REDUCTIONS, "reduction")
        check_choice(self.inputs_are, INPUTS, "inputs")
        if len(self.x.shape) != 3 or self.x.shape[2] < 1:
            raise InvalidShape(f"x has shape {self.x.shape}: it must be (T, N, A), with at least one symbol")
        _, n, symbols = self.x.shape
        if not 0 <= self.blank < symbols:
            raise InvalidArgument(f"blank is {self.blank}: it must be a symbol, 0 to {symbols - 1}")
        if len(self.targets.shape) == 2 and self.targets.shape != (n, self.longest):
            raise InvalidShape(
                f"targets has shape {self.targets.shape}: it must be ({n}, {self.longest}), or all labels in one dim"
            )
        if len(self.targets.shape) > 2:
            raise InvalidShape(
                f"targets has shape {self.targets.shape}: it must be ({n}, S), or all labels in one dim"
            )
        if self.longest < 0:
            raise InvalidArgument(f"longest is {self.longest}: it must not be negative")
        wanted = {"input_lengths": (n,), "target_lengths": (n,), "dx": self.x.shape}
        wanted["loss"] = (n,) if self.reduction == "none" else (1,)
        if self.direction == "bwd":
            object.__setattr__(self, "dx", self.dx or self.x)
        elif self.dx is not None:
            raise InvalidArgument("dx is given, but a forward problem has no gradients")
        for name, shape in wanted.items():
            tensor = getattr(self, name)
            if tensor is not None and tensor.shape != shape:
                raise InvalidShape(
                    f"{name} has shape {tensor.shape}: with x {self.x.shape} it must be {shape}"
                )
        self._check_operands()

    @classmethod
    def make(
        cls,
        direction: str,
        x: TensorDescriptor | Sequence[int],
        targets: TensorDescriptor | int,
        reduction: str = "mean",
        inputs: str = "log_probs",
        blank: int = 0,
        zero_infinity: bool = False,
        dtype: str = "f32",
        input_lengths: TensorDescriptor | None = None,
        target_lengths: TensorDescriptor | None = None,
        loss: TensorDescriptor | None = None,
        longest: int | None = None,
        dx: TensorDescriptor | None = None,
    ) -> Self:
        """The problem from shapes or descriptors; `targets` may be S, for packed (N, S) in i64."""
        x = as_descriptor(x, dtype, "nchw")
        if len(x.shape) != 3:
            raise InvalidShape(f"x has shape {x.shape}: it must be (T, N, A)")
        n = x.shape[1]
        if isinstance(targets, int):
            targets = TensorDescriptor.packed((n, targets), "i64")
        lengths = TensorDescriptor.packed((n,), "i64")
        loss = loss or TensorDescriptor.packed((n,) if reduction == "none" else (1,), x.dtype)
        longest = targets.shape[-1] if longest is None else longest
        return cls(
            direction, reduction, inputs, x, targets, input_lengths or lengths, target_lengths or lengths, loss,
            longest, integer_numbers((blank,), "blank")[0], bool(zero_infinity), dx,
        )  # fmt: skip

    @property
    def is_padded(self) -> bool:
        """True for targets (N, S), False for labels one after the other."""
        return len(self.targets.shape) == 2

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(x, targets, input_lengths, target_lengths, loss), or (dloss, x, ..., target_lengths, dx)."""
        t, _, symbols = self.x.shape
        read = [
            Operand("x", self.x),
            Operand("targets", self.targets, "in", INDEX_DTYPES, (0, symbols - 1)),
            Operand("input_lengths", self.input_lengths, "in", INDEX_DTYPES, (0, t)),
            Operand("target_lengths", self.target_lengths, "in", INDEX_DTYPES, (0, self.longest)),
        ]
        if self.direction == "fwd":
            return *read, Operand("loss", self.loss, "out")
        assert self.dx is not None
        return Operand("dloss", self.loss), *read, Operand("dx", self.dx, "out")

    @property
    def flops(self) -> int:
        """Of a state at a time: three exponentials, a logarithm and a few sums, and as many twice more backward."""
        t, n, symbols = self.x.shape
        states = t * n * (2 * self.longest + 1) * 10
        return (states if self.direction == "fwd" else 3 * states) + 4 * t * n * symbols

    @property
    def bytes(self) -> int:
        """Of probabilities that need no normalizing the forward pass reads those of the labels only."""
        if self.direction == "bwd" or self.inputs_are == "logits":
            return super().bytes
        t, n, symbols = self.x.shape
        return t * n * min(symbols, self.longest + 1) * self.x.nbytes // max(1, self.x.size)

    def labels(self, targets: Reals, lengths: Reals) -> list[Reals | None]:
        """The labels of each sequence; None where there is one that is no symbol, or they are not all there."""
        found: list[Reals | None] = []
        start = 0
        for number, length in enumerate(np.clip(lengths, 0, self.longest).astype(int)):
            own = targets[number, :length] if self.is_padded else targets[start : start + length]
            start += int(length)
            is_good = len(own) == length and bool(((own >= 0) & (own < self.x.shape[2])).all())
            found.append(own.astype(int) if is_good else None)
        return found

    def _define(self, *inputs: Reals) -> Any:
        given = dict(zip((operand.name for operand in self.inputs), inputs, strict=True))
        x = given["x"]
        t, n, _ = x.shape
        if self.inputs_are == "logits":
            top = x.max(axis=2, keepdims=True)
            x = x - top - np.log(np.exp(x - top).sum(axis=2, keepdims=True))
        elif self.inputs_are == "probs":
            x = np.log(x)
        times = np.clip(given["input_lengths"], 0, t).astype(int)
        counts = np.clip(given["target_lengths"], 0, self.longest)
        losses, dx = np.zeros(n), np.zeros(x.shape)
        for number, labels in enumerate(self.labels(given["targets"], given["target_lengths"])):
            own = x[: times[number], number]
            if labels is None:
                losses[number], dx[: times[number], number] = np.nan, np.nan
            else:
                losses[number], said = _ways(own, labels, self.blank)
                dx[: times[number], number] = np.exp(own) - said
        for lost in np.flatnonzero(np.isposinf(losses)):
            dx[: times[lost], lost] = 0.0 if self.zero_infinity else np.nan
            losses[lost] = 0.0 if self.zero_infinity else np.inf
        share = 1.0 / (np.maximum(counts, 1) * max(1, n)) if self.reduction == "mean" else np.ones(n)
        if self.direction == "fwd":
            return losses if self.reduction == "none" else np.reshape((losses * share).sum(), (1,))
        return dx * (given["dloss"] * share)[:, None]

    def _body(self) -> list[str]:
        t, n, symbols = self.x.shape
        words = [self.reduction, self.inputs_are, f"t{t}", f"n{n}", f"a{symbols}", f"s{self.longest}"]
        words += [] if self.is_padded else [f"concatenated{self.targets.shape[0]}"]
        for name, tensor in (
            ("labels", self.targets),
            ("inlen", self.input_lengths),
            ("outlen", self.target_lengths),
        ):
            words += [] if tensor.dtype == "i64" else [f"{name}{tensor.dtype[1:]}"]
        words += [f"blank{self.blank}"] if self.blank else []
        words += ["zero_infinity"] if self.zero_infinity else []
        words.append(self.dtype)
        for operand in self.operands:
            tensor = operand.descriptor
            words += order_word(operand.name, tensor, _orders(tensor.shape, tensor.dtype), "tna")
        return words

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        direction = words.kind.removeprefix("ctc_loss_")
        reduction, inputs = words.choice(REDUCTIONS, "mean"), words.choice(INPUTS, "log_probs")
        t, n, symbols, s = (words.number(name) for name in "tnas")
        count = words.number("concatenated", -1)
        kinds = [f"i{words.number(name, 64)}" for name in ("labels", "inlen", "outlen")]
        blank, zero_infinity, dtype = words.number("blank", 0), words.flag("zero_infinity"), words.dtype()

        def tensor(name: str, shape: tuple[int, ...], kind: str = dtype) -> TensorDescriptor:
            return words.descriptor(name, shape, kind, _orders(shape, kind), "tna")

        return cls(
            direction, reduction, inputs, tensor("x", (t, n, symbols)),
            tensor("targets", (n, s) if count < 0 else (count,), kinds[0]), tensor("input_lengths", (n,), kinds[1]),
            tensor("target_lengths", (n,), kinds[2]),
            tensor("loss" if direction == "fwd" else "dloss", (n,) if reduction == "none" else (1,)), s, blank,
            zero_infinity, tensor("dx", (t, n, symbols)) if direction == "bwd" else None,
        )  # fmt: skip


def _ways(lp: Reals, labels: Reals, blank: int) -> tuple[float, Reals]:
    """The loss of one sequence, and the probability of each symbol at each time given its labels."""
    times, symbols = lp.shape
    states = np.full(2 * len(labels) + 1, blank)
    states[1::2] = labels
    if times == 0:
        return (np.inf if len(labels) else 0.0), np.zeros((0, symbols))
    may_skip = np.zeros(len(states), bool)
    may_skip[3::2] = labels[1:] != labels[:-1]
    alpha, beta = np.full((2, times, len(states)), -np.inf)
    alpha[0, :2] = lp[0, states[:2]]
    beta[-1, -2:] = 0.0
    for t in range(1, times):
        alpha[t] = _reached(alpha[t - 1], may_skip) + lp[t, states]
    for t in range(times - 2, -1, -1):
        # the same steps seen from the end: a skip belongs to the state that it leads to
        back = np.append(may_skip[2:], [False, False])[: len(states)][::-1]
        beta[t] = _reached((beta[t + 1] + lp[t + 1, states])[::-1], back)[::-1]
    total = np.logaddexp.reduce(alpha[-1, -2:])
    said = np.zeros((times, symbols))
    with np.errstate(invalid="ignore"):
        for state, symbol in enumerate(states):
            said[:, symbol] += np.exp(alpha[:, state] + beta[:, state] - total)
    return float(-total), said


def _reached(before: Reals, may_skip: np.ndarray[Any, Any]) -> Reals:
    """The logarithm of the sum over the states from which each one is reached in a step."""
    result = before.copy()
    result[1:] = np.logaddexp(result[1:], before[:-1])
    skipped = np.where(may_skip[2:], before[:-2], -np.inf)
    result[2:] = np.logaddexp(result[2:], skipped)
    return result


def _orders(shape: Sequence[int], dtype: str) -> dict[str, TensorDescriptor]:
    """Packed by time ("tna"), or with the batch outside ("nta")."""
    forms = {"tna": TensorDescriptor.packed(tuple(shape), dtype)}
    if len(shape) == 3:
        t, n, symbols = shape
        forms["nta"] = TensorDescriptor.packed((n, t, symbols), dtype).transpose((1, 0, 2))
    return forms
