"""Scaled dot-product attention, forward and backward, head by head.

For each sequence n, head h and query t, over the keys s that the query may see:

    score = scale * (q . k_s) + mask_s       p = exp(score - lse),  lse = log(sum(exp(score)))       y = sum(p_s v_s)

A query sees the keys lo <= s < hi, where

    lo = max(0, past + t - left, lo_t)        hi = min(S, length_n, past + t + right + 1, hi_t)

of what is given; a mask of truth values takes away more of them, an additive one changes their scores. A query
that sees no key has y = 0 and lse = -infinity, and gives no gradient. With several query heads to a key head,
head h reads key head h // (H / G).

The gradients, with p from lse and delta = sum(dy * y):

    dv = sum over t of p dy      ds = p (dy . v - delta) scale      dq = sum over s of ds k      dk = sum over t of ds q
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from jitdnn.arguments import check_choice, integer_number, real_number
from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.problems.directed import DirectedProblem
from jitdnn.problems.problem import Operand, Reals
from jitdnn.problems.words import Words, order_word
from jitdnn.tensor import TensorDescriptor, compute_dtype

DIRECTIONS = ("fwd", "bwd")
INDEX_DTYPES = ("i32", "i64")
FARTHEST = 1 << 40  # places that a window or a past may span, so that sums of such fit into 64 bits

_Forms = dict[str, TensorDescriptor]


@dataclass(frozen=True)
class Attention(DirectedProblem, kinds=("attention_fwd", "attention_bwd")):
    """Attention of q (N, H, T, D) to k (N, G, S, D) and v (N, G, S, E), giving y (N, H, T, E); or its gradients.

    `lse` (N, H, T) is what the forward pass saves for the backward one, in f32, or f64 where q is f64; None
    forward if nothing is saved. `mask` (N, H, T, S; a broadcast axis has stride 0) is of type bool (False hides
    a key) or of q's type (added to the scores). `lengths` (N,) are the keys that each sequence has, `lo` and
    `hi` (T,) the windows of the queries, all i32 or i64; numbers outside of 0 to S count as the nearest end.
    `left` and `right`: keys before and after its own place that a query sees, None for all; its own place is
    `past` + t. Causal attention has `right` = 0.

    For "bwd" `dy`, `dq`, `dk`, `dv` describe the gradients (None: like y, q, k, v).

    Raises InvalidShape for shapes that do not fit, InvalidArgument for negative `left` or `right`, a scale that
    is no finite number or head counts that do not divide, InvalidType for dtypes.
    """

    direction: str
    q: TensorDescriptor
    k: TensorDescriptor
    v: TensorDescriptor
    y: TensorDescriptor
    lse: TensorDescriptor | None
    scale: float
    mask: TensorDescriptor | None = None
    lengths: TensorDescriptor | None = None
    lo: TensorDescriptor | None = None
    hi: TensorDescriptor | None = None
    left: int | None = None
    right: int | None = None
    past: int = 0
    dy: TensorDescriptor | None = None
    dq: TensorDescriptor | None = None
    dk: TensorDescriptor | None = None
    dv: TensorDescriptor | None = None

    def __post_init__(self) -> None:
        check_choice(self.direction, DIRECTIONS, "direction")
        self._check_shapes()
        if not math.isfinite(self.scale):
            raise InvalidArgument(f"scale is {self.scale}: it must be a finite number")
        for name, places in (("left", self.left), ("right", self.right), ("past", self.past)):
            if places is None and name != "past":
                continue
            reach = integer_number(places, name, most=FARTHEST)
            if reach < 0 and name != "past":
                raise InvalidArgument(f"{name} is {reach}: it must not be negative, or None for no bound")
        is_backward = self.direction == "bwd"
        if is_backward and self.lse is None:
            raise InvalidArgument("lse is missing: the gradient needs what the forward pass saved")
        for name in ("dy", "dq", "dk", "dv"):
            own, like = getattr(self, name), getattr(self, name[1:])
            if own is not None and not is_backward:
                raise InvalidArgument(f"{name} is given, but a forward problem has no gradients")
            if is_backward:
                if own is not None and own.shape != like.shape:
                    raise InvalidShape(
                        f"{name} has shape {own.shape}: it must be that of {name[1:]}, {like.shape}"
                    )
                object.__setattr__(self, name, own or like)
        self._check_operands()

    def _check_shapes(self) -> None:
        for name, tensor in (("q", self.q), ("k", self.k), ("v", self.v)):
            if len(tensor.shape) != 4:
                raise InvalidShape(
                    f"{name} has shape {tensor.shape}: it must be (batch, heads, length, size)"
                )
        n, h, t, d = self.q.shape
        _, g, s, _ = self.k.shape
        e = self.v.shape[3]
        wanted = {
            "k": (n, g, s, d),
            "v": (n, g, s, e),
            "y": (n, h, t, e),
            "lse": (n, h, t),
            "mask": (n, h, t, s),
        }
        wanted |= {"lengths": (n,), "lo": (t,), "hi": (t,)}
        for name, shape in wanted.items():
            tensor = getattr(self, name)
            if tensor is not None and tensor.shape != shape:
                raise InvalidShape(
                    f"{name} has shape {tensor.shape}: with q {self.q.shape}, k {self.k.shape} and "
                    f"v {self.v.shape} it must be {shape}"
                )
        if d < 1 or e < 1:
            raise InvalidShape(f"heads have sizes {d} and {e}: they must be at least 1")
        if h < 1 or g < 1 or h % g:
            raise InvalidArgument(
                f"{h} query heads and {g} key heads: there must be some, and the first a multiple of the second"
            )

    @classmethod
    def make(
        cls,
        direction: str,
        q: TensorDescriptor | Sequence[int],
        k: TensorDescriptor | Sequence[int],
        v: TensorDescriptor | Sequence[int],
        dtype: str = "f32",
        scale: float | None = None,
        y: TensorDescriptor | None = None,
        lse: TensorDescriptor | bool | None = None,
        **rest: Any,
    ) -> Self:
        """The problem from shapes or descriptors; packed by rows where none is given.

        `scale` is 1 / sqrt(D) by default; `lse=True` saves it. The rest are the fields of the problem.
        """
        q, k, v = (
            t if isinstance(t, TensorDescriptor) else TensorDescriptor.packed(tuple(t), dtype)
            for t in (q, k, v)
        )
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            if len(tensor.shape) != 4:
                raise InvalidShape(
                    f"{name} has shape {tensor.shape}: it must be (batch, heads, length, size)"
                )
        y = y or TensorDescriptor.packed((*q.shape[:3], v.shape[3]), q.dtype)
        if lse is True or (lse is None and direction == "bwd"):
            lse = TensorDescriptor.packed(q.shape[:3], compute_dtype(q.dtype))
        if scale is None:
            scale = 1.0 / math.sqrt(max(1, q.shape[3]))
        return cls(direction, q, k, v, y, lse or None, real_number(scale, "scale"), **rest)

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(q, k, v, [mask, lengths, lo, hi,] y, [lse]) forward; backward (dy, q, k, v, y, lse, [mask, lengths,
        lo, hi,] dq, dk, dv)."""
        real = (compute_dtype(self.q.dtype),)
        keys = self.k.shape[2]
        extras = []
        if self.mask is not None:
            extras.append(Operand("mask", self.mask, dtypes=("bool", self.q.dtype), values=(0, 1)))
        for name, tensor in (("lengths", self.lengths), ("lo", self.lo), ("hi", self.hi)):
            if tensor is not None:
                low, high = (0, keys // 2) if name == "lo" else (keys // 2 + 1, keys + 1)
                extras.append(Operand(name, tensor, dtypes=INDEX_DTYPES, values=(low, high)))
        read = [Operand("q", self.q), Operand("k", self.k), Operand("v", self.v)]
        if self.direction == "fwd":
            saved = [] if self.lse is None else [Operand("lse", self.lse, "saved", real)]
            return (*read, *extras, Operand("y", self.y, "out"), *saved)
        assert self.dy is not None
        assert self.dq is not None
        assert self.dk is not None
        assert self.dv is not None
        assert self.lse is not None
        forward = [Operand("y", self.y), Operand("lse", self.lse, dtypes=real)]
        gradients = [
            Operand("dq", self.dq, "out"),
            Operand("dk", self.dk, "out"),
            Operand("dv", self.dv, "out"),
        ]
        return (Operand("dy", self.dy), *read, *forward, *extras, *gradients)

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that may see each other, by `left`, `right` and `past` alone."""
        n, h, t, _ = self.q.shape
        s = self.k.shape[2]
        own = np.arange(t) + self.past
        low = np.maximum(own - self.left, 0) if self.left is not None else np.zeros(t, int)
        high = np.minimum(own + self.right + 1, s) if self.right is not None else np.full(t, s)
        return n * h * int(np.maximum(high - low, 0).sum())

    @property
    def flops(self) -> int:
        """Two products of matrices forward, five backward: a multiply and an add for each pair and element."""
        d, e = self.q.shape[3], self.v.shape[3]
        return 2 * self.pairs * (d + e if self.direction == "fwd" else 3 * d + 2 * e)

    def _define(self, *inputs: Reals) -> Any:
        given = dict(zip((operand.name for operand in self.inputs), inputs, strict=True))
        q, k, v = given["q"], given["k"], given["v"]
        group = q.shape[1] // max(1, k.shape[1])
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = self._scores(q, k, given)
        if self.direction == "fwd":
            top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
            p = np.where(np.isneginf(scores), 0.0, np.exp(scores - np.where(np.isneginf(top), 0.0, top)))
            total = p.sum(axis=-1, keepdims=True)
            y = np.where(total == 0, 0.0, p @ v / total)
            lse = (np.log(total) + top)[..., 0]
            return y if self.lse is None else (y, lse)
        dy = given["dy"]
        p = np.where(np.isneginf(scores), 0.0, np.exp(scores - given["lse"][..., None]))
        delta = (dy * given["y"]).sum(axis=-1, keepdims=True)
        ds = p * (dy @ v.swapaxes(2, 3) - delta) * self.scale
        dk, dv = ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ dy

        def joined(gradient: Reals) -> Reals:
            n, h, s, size = gradient.shape
            return np.asarray(gradient.reshape(n, h // group, group, s, size).sum(axis=2))

        return ds @ k, joined(dk), joined(dv)

    def _scores(self, q: Reals, k: Reals, given: dict[str, Reals]) -> Reals:
        """Scores, -infinity where the query does not see the key."""
        n, h, t, s = *q.shape[:3], k.shape[2]
        scores = q @ k.swapaxes(2, 3) * self.scale
        visible = np.ones((n, h, t, s), bool)
        own, key = np.arange(t)[:, None] + self.past, np.arange(s)
        if self.left is not None:
            visible &= key >= own - self.left
        if self.right is not None:
            visible &= key <= own + self.right
        if "lengths" in given:
            visible &= key < given["lengths"][:, None, None, None]
        if "lo" in given:
            visible &= key >= given["lo"][:, None]
        if "hi" in given:
            visible &= key < given["hi"][:, None]
        if self.mask is not None and self.mask.dtype == "bool":
            visible &= given["mask"] != 0
        elif self.mask is not None:
            scores = scores + given["mask"]
        return np.where(visible, scores, -np.inf)

    def _body(self) -> list[str]:
        (n, h, t, d), (_, g, s, _), e = self.q.shape, self.k.shape, self.v.shape[3]
        words = [f"n{n}", f"h{h}", f"t{t}", f"s{s}", f"d{d}"]
        words += [f"kvh{g}"] if g != h else []
        words += [f"e{e}"] if e != d else []
        words += [f"scale{self.scale!r}"] if self.scale != 1.0 / math.sqrt(d) else []
        for name in ("left", "right"):
            if (reach := getattr(self, name)) is not None:
                words.append(f"{name}{reach}")
        words += [f"past{self.past}"] if self.past else []
        if self.mask is not None:
            words.append("boolmask" if self.mask.dtype == "bool" else "addmask")
        for name in ("lengths", "lo", "hi"):
            if (tensor := getattr(self, name)) is not None:
                words.append(f"{name}{tensor.dtype[1:]}")
        if self.direction == "fwd" and self.lse is not None:
            words.append("save")
        words.append(self.q.dtype)
        for operand in self.operands:
            tensor = operand.descriptor
            words += order_word(
                operand.name, tensor, _orders(operand.name, tensor.shape, tensor.dtype), "nhtd"
            )
        return words

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        direction = words.kind.removeprefix("attention_")
        n, h, t, s, d = (words.number(name) for name in ("n", "h", "t", "s", "d"))
        g, e = words.number("kvh", h), words.number("e", d)
        scale = words.real("scale", 1.0 / math.sqrt(max(1, d)))
        reaches = {name: words.number(name) if words.has(name) else None for name in ("left", "right")}
        past = words.number("past", 0)
        kind_of_mask = words.choice(("boolmask", "addmask", ""), "")
        indices = {name: words.number(name) if words.has(name) else 0 for name in ("lengths", "lo", "hi")}
        is_saved = words.flag("save") if direction == "fwd" else True
        dtype = words.dtype()

        def tensor(name: str, shape: tuple[int, ...], kind: str = dtype) -> TensorDescriptor:
            return words.descriptor(name, shape, kind, _orders(name, shape, kind), "nhtd")

        shapes = {"q": (n, h, t, d), "k": (n, g, s, d), "v": (n, g, s, e), "y": (n, h, t, e)}
        given: dict[str, Any] = dict(reaches)
        given |= {name: tensor(name, shape) for name, shape in shapes.items()}
        if direction == "bwd":
            given |= {f"d{name}": tensor(f"d{name}", shape) for name, shape in shapes.items()}
        given["lse"] = tensor("lse", (n, h, t), compute_dtype(dtype)) if is_saved else None
        if kind_of_mask:
            given["mask"] = tensor("mask", (n, h, t, s), "bool" if kind_of_mask == "boolmask" else dtype)
        for name, bits in indices.items():
            if bits:
                given[name] = tensor(name, (n,) if name == "lengths" else (t,), f"i{bits}")
        return cls(direction, scale=scale, past=past, **given)


def _orders(name: str, shape: Sequence[int], dtype: str) -> _Forms:
    """The usual orders in memory: by heads ("nhtd") and with the heads inside ("nthd")."""
    forms = {"nhtd": TensorDescriptor.packed(tuple(shape), dtype)}
    if len(shape) == 4:
        n, h, t, d = shape
        forms["nthd"] = TensorDescriptor.packed((n, t, h, d), dtype).transpose((0, 2, 1, 3))
    if name == "mask":
        forms["ts"] = TensorDescriptor(tuple(shape), (0, 0, shape[3], 1), dtype)
        forms["ns"] = TensorDescriptor(tuple(shape), (shape[3], 0, 0, 1), dtype)
    return forms
