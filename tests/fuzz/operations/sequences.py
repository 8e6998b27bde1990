"""Attention and recurrent layers, against PyTorch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

import jitdnn as jd
from fuzz.draw import Draw
from fuzz.operations.pointwise import operand
from fuzz.operations.rows import statistics_dtype
from fuzz.problem import Array, Expected, Named, Operand, Problem, Result, operation, roundoff

F = torch.nn.functional


class _Attention:
    """Shapes of an attention, and who sees what."""

    def __init__(self, draw: Draw) -> None:
        self.dtype = draw.dtype()
        self.batch, self.keys = draw.pick((1, 2, 3)), draw.pick((1, 2, 3))
        self.heads = self.keys * draw.pick((1, 1, 2, 3))
        self.t, self.s = draw.extent(33), draw.extent(47)
        self.d, self.e = draw.pick((1, 2, 4, 8, 16, 17, 32)), draw.pick((1, 3, 8, 16, 33))
        self.kwargs: dict[str, Any] = {}
        if draw.chance(0.3):
            self.kwargs["scale"] = draw.pick((1.0, 0.25, -0.5))
        if draw.chance(0.3):
            self.kwargs["causal"] = True
        if draw.chance(0.2):
            self.kwargs["past"] = draw.whole(0, 5)
        if draw.chance(0.2):
            self.kwargs["window"] = (draw.pick((None, 0, 2, 7)), draw.pick((None, 0, 3)))
        if draw.chance(0.3):
            shape = tuple(1 if draw.chance(0.4) else n for n in (self.batch, self.heads, self.t, self.s))
            self.kwargs["mask"] = operand(draw, "mask", shape, draw.pick(("bool", self.dtype)))
        if draw.chance(0.2):
            self.kwargs["lengths"] = self._places(draw, "lengths", self.batch, self.s)
        if draw.chance(0.2):
            self.kwargs["lo"] = self._places(draw, "lo", self.t, self.s // 2)
            self.kwargs["hi"] = self._places(draw, "hi", self.t, self.s)
        self.inputs = [
            operand(draw, "q", (self.batch, self.heads, self.t, self.d), self.dtype),
            operand(draw, "k", (self.batch, self.keys, self.s, self.d), self.dtype),
            operand(draw, "v", (self.batch, self.keys, self.s, self.e), self.dtype),
        ]
        self.y_shape = (self.batch, self.heads, self.t, self.e)

    def _places(self, draw: Draw, name: str, count: int, most: int) -> Operand:
        kind = draw.pick(("i64", "i32"))
        return operand(draw, name, (count,), kind, values=lambda g, s, f: g.integers(0, most + 1, s))

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: Named
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """y and the logarithm of the sum of the exponentials."""
        k, v = (one.repeat_interleave(self.heads // self.keys, 1) for one in (k, v))
        scale = self.kwargs.get("scale", 1 / math.sqrt(self.d))
        scores = scale * q @ k.transpose(2, 3)
        seen = torch.ones((self.batch, self.heads, self.t, self.s), dtype=torch.bool)
        own = torch.arange(self.t)[:, None] + self.kwargs.get("past", 0)
        at = torch.arange(self.s)[None, :]
        left, right = self.kwargs.get("window", (None, None))
        if self.kwargs.get("causal"):
            right = 0
        if left is not None:
            seen &= at >= own - left
        if right is not None:
            seen &= at <= own + right
        if "lengths" in a:
            seen &= at[None, None] < torch.from_numpy(a["lengths"].astype(np.int64))[:, None, None, None]
        if "lo" in a:
            seen &= at >= torch.from_numpy(a["lo"].astype(np.int64))[:, None]
            seen &= at < torch.from_numpy(a["hi"].astype(np.int64))[:, None]
        if "mask" in a:
            mask = torch.from_numpy(np.ascontiguousarray(a["mask"]))
            if mask.dtype == torch.bool:
                seen &= mask
            else:
                scores = scores + mask
        scores = scores.masked_fill(~seen, -math.inf)
        weights = torch.where(seen.any(-1, keepdim=True), F.softmax(scores, -1), torch.zeros(()).double())
        return torch.where(seen, weights, torch.zeros(()).double()) @ v, torch.logsumexp(scores, -1)

    def tensors(self, a: Named) -> list[torch.Tensor]:
        return [torch.from_numpy(np.ascontiguousarray(a[name])) for name in "qkv"]

    @property
    def half(self) -> float:
        """The rounding of a number to the type of the arrays, where that is of 16 bits."""
        return {"f16": 2.0**-11, "bf16": 2.0**-8}.get(self.dtype, 0.0)

    def error(self, a: Named) -> float:
        """Of the scores, by which weights are wrong relative to themselves."""
        q, k = (np.abs(a[n]).max(initial=0.0) for n in "qk")
        scale = abs(self.kwargs.get("scale", 1 / math.sqrt(self.d)))
        return (32 + self.s) * roundoff(self.dtype) * (1 + scale * q * k * self.d)


@operation("attention", 5)
def _attention(draw: Draw) -> Problem:
    c = _Attention(draw)
    results = [Result("y", c.y_shape, c.dtype)]
    kwargs = dict(c.kwargs)
    if draw.chance(0.4):
        kwargs["return_lse"] = True
        results.append(Result("lse", c.y_shape[:3], statistics_dtype(c.dtype), saved=True))

    def oracle(a: Named) -> list[Expected]:
        y, lse = c.attend(*c.tensors(a), a)
        most = np.abs(a["v"]).max(initial=0.0)
        made = [
            Expected(y.numpy(), np.full(y.shape, c.error(a) * most), on_tensor_cores=c.half * most),
            Expected(lse.numpy(), np.full(lse.shape, c.error(a))),
        ]
        return made[: len(results)]

    return Problem("attention", list(c.inputs), kwargs, results, oracle, flavours=("normal", "whole"))


@operation("attention_backward", 4)
def _attention_backward(draw: Draw) -> Problem:
    c = _Attention(draw)
    kept = statistics_dtype(c.dtype)
    dy = operand(draw, "dy", c.y_shape, c.dtype)
    # what the forward call gave, of arrays that come before them
    y = Operand(
        "y",
        c.y_shape,
        c.dtype,
        draw.strides(c.y_shape, True),
        derive=lambda a: c.attend(*c.tensors(a), a)[0].numpy(),
    )
    lse = Operand(
        "lse",
        c.y_shape[:3],
        kept,
        draw.strides(c.y_shape[:3], True),
        derive=lambda a: c.attend(*c.tensors(a), a)[1].numpy(),
    )

    def oracle(a: Named) -> list[Expected]:
        given = [t.requires_grad_(True) for t in c.tensors(a)]
        gradients = torch.autograd.grad(c.attend(*given, a)[0], given, torch.from_numpy(a["dy"].copy()))
        q, k, v, g = (np.abs(a[n]).max(initial=0.0) for n in ("q", "k", "v", "dy"))
        scale = abs(c.kwargs.get("scale", 1 / math.sqrt(c.d)))
        shares = c.heads // c.keys * c.t

        def sizes(error: float) -> tuple[float, float, float]:
            score = g * v * c.e * (error + c.half)  # y itself was rounded
            return scale * k * score * c.s, scale * q * score * shares, error * g * shares

        plain, rounded = sizes(c.error(a)), sizes(c.error(a) + c.half)
        return [
            Expected(one.numpy(), np.full(one.shape, 4 * size), on_tensor_cores=4 * (more - size))
            for one, size, more in zip(gradients, plain, rounded, strict=True)
        ]

    def call(dy: Any, q: Any, k: Any, v: Any, y: Any, lse: Any, **more: Any) -> Any:
        return jd.attention_backward(dy, q, k, v, y, lse, **more)

    # masks and lengths are placed before y and lse, which are made of them
    named = {name: value for name, value in c.kwargs.items() if isinstance(value, Operand)}
    args = [dy, *c.inputs, *named.values(), y, lse]

    def ordered(*given: Any, **more: Any) -> Any:
        dy_, q, k, v, *rest = given
        extra = dict(zip(named, rest[: len(named)], strict=True))
        return call(dy_, q, k, v, *rest[len(named) :], **extra, **more)

    kwargs = {name: value for name, value in c.kwargs.items() if name not in named}
    results = [Result(f"d{one.name}", one.shape, c.dtype) for one in c.inputs]
    return Problem(
        "attention_backward", args, kwargs, results, oracle, call=ordered, flavours=("normal", "whole")
    )


@operation("multi_head_attention", 3, functions=("multi_head_attention", "multi_head_attention_backward"))
def _multi_head(draw: Draw) -> Problem:
    dtype = draw.pick(("f32", "f64", "f16", "bf16"))
    heads, size, batch = draw.pick((1, 2, 3)), draw.pick((1, 2, 4, 8)), draw.pick((1, 2, 3))
    t, s, features = draw.extent(13), draw.extent(17), heads * size
    backward = draw.chance(0.4)
    inputs = [operand(draw, n, (batch, m, features), dtype) for n, m in (("q", t), ("k", s), ("v", s))]
    kwargs: dict[str, Any] = {}
    for letter in "qkvo":
        if draw.chance(0.6):
            kwargs[f"w{letter}"] = operand(draw, f"w{letter}", (features, features), dtype)
            if draw.chance(0.5):
                kwargs[f"b{letter}"] = operand(draw, f"b{letter}", (features,), dtype)
    if draw.chance(0.3):
        kwargs["causal"] = True

    def attend(given: dict[str, torch.Tensor]) -> torch.Tensor:
        def projected(x: torch.Tensor, letter: str) -> torch.Tensor:
            w = given.get(f"w{letter}")
            return x if w is None else F.linear(x, w, given.get(f"b{letter}"))

        q, k, v = (
            projected(given[n], n).reshape(batch, -1, heads, size).transpose(1, 2) for n in ("q", "k", "v")
        )
        scores = q @ k.transpose(2, 3) / math.sqrt(size)
        if kwargs.get("causal"):
            scores = scores.masked_fill(torch.arange(s)[None, :] > torch.arange(t)[:, None], -math.inf)
        y = (F.softmax(scores, -1) @ v).transpose(1, 2).reshape(batch, t, features)
        return projected(y, "o")

    def error(a: Named) -> float:
        # what is between the steps is rounded to the type of the arrays
        unit = {"f16": 2.0**-11, "bf16": 2.0**-8}.get(dtype, roundoff(dtype))
        most = max(1.0, *(float(np.abs(one).max(initial=0.0)) for one in a.values()))
        return 64 * unit * most**4 * features**2

    def oracle(a: Named) -> list[Expected]:
        given = {n: torch.from_numpy(np.ascontiguousarray(v)) for n, v in a.items()}
        y = attend(given)
        return [Expected(y.numpy(), np.full(y.shape, error(a)))]

    if not backward:
        return Problem(
            "multi_head_attention", [*inputs, heads], kwargs, [Result("y", (batch, t, features), dtype)], oracle,
            scales=False, takes_out=False, flavours=("normal", "whole"),
        )  # fmt: skip
    dy = operand(draw, "dy", (batch, t, features), dtype)
    wrt = ["q", "k", "v", *[n for n in kwargs if n != "causal"]]

    def gradient(a: Named) -> list[Expected]:
        given = {n: torch.from_numpy(np.ascontiguousarray(v)) for n, v in a.items()}
        leaves = [given[n].requires_grad_(True) for n in wrt]
        made = torch.autograd.grad(attend(given), leaves, given["dy"])
        return [Expected(one.numpy(), np.full(one.shape, error(a) * 64 * t * batch)) for one in made]

    def call(dy_: Any, q: Any, k: Any, v: Any, **more: Any) -> Any:
        _, saved = jd.multi_head_attention(q, k, v, heads, **more, return_saved=True)
        found = jd.multi_head_attention_backward(dy_, q, k, v, saved, heads, **more)
        fields = {name.lstrip("d"): value for name, value in found._asdict().items()}
        return tuple(fields[n] for n in wrt)

    shapes = {
        one.name: one.shape for one in [*inputs, *(v for v in kwargs.values() if isinstance(v, Operand))]
    }
    results = [Result(f"d{n}", shapes[n], dtype) for n in wrt]
    return Problem(
        "multi_head_attention_backward", [dy, *inputs], kwargs, results, gradient, scales=False, takes_out=False,
        call=call,
        flavours=("normal", "whole"),
    )  # fmt: skip


_MODULES = {"rnn": torch.nn.RNN, "lstm": torch.nn.LSTM, "gru": torch.nn.GRU}
_GATES = {"rnn": 1, "lstm": 4, "gru": 3}


@operation("recurrent", 4, gpu=False, functions=tuple(f"{n}{e}" for n in _MODULES for e in ("", "_backward")))
def _recurrent(draw: Draw) -> Problem:
    cell, dtype, backward = (
        draw.pick(tuple(_MODULES)),
        draw.pick(("f32", "f64", "f16", "bf16")),
        draw.chance(0.45),
    )
    layers, both = draw.pick((1, 2)), draw.chance(0.3)
    t, n, i, h = draw.extent(9), draw.extent(5), draw.extent(17), draw.pick((1, 2, 3, 4, 8, 13, 16, 17))
    projected = draw.pick((0, 0, max(1, h // 2))) if cell == "lstm" and h > 1 else 0
    first, biased = draw.chance(0.3), draw.chance(0.7)
    options: dict[str, Any] = {"bidirectional": both, "batch_first": first}
    more = {"proj_size": projected} if projected else {}
    if cell == "rnn":
        options["nonlinearity"] = more["nonlinearity"] = draw.pick(("tanh", "relu"))
    module = _MODULES[cell](
        i, h, layers, bias=biased, batch_first=first, bidirectional=both, dtype=torch.float64, **more
    )
    weights = [
        operand(draw, f"w{k}", tuple(w.shape), dtype, values=_halved)
        for k, w in enumerate(module._flat_weights)
    ]
    directions, r = 1 + both, projected or h
    x = operand(draw, "x", (n, t, i) if first else (t, n, i), dtype)
    args: list[Any] = [x, weights]
    states = []
    if draw.chance(0.5):
        states = [operand(draw, "hx", (layers * directions, n, r), dtype)]
        if cell == "lstm":
            states.append(operand(draw, "cx", (layers * directions, n, h), dtype))
    lengths = None
    if draw.chance(0.3):
        lengths = operand(
            draw, "lengths", (n,), draw.pick(("i64", "i32")), values=lambda g, s, f: g.integers(1, t + 1, s)
        )
        options["lengths"] = lengths
    y_shape = (n, t, directions * r) if first else (t, n, directions * r)
    final = [Result("hn", (layers * directions, n, r), dtype, saved=True)]
    if cell == "lstm":
        final.append(Result("cn", (layers * directions, n, h), dtype, saved=True))

    def forward(given: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        flat = [given[w.name] for w in weights]
        names = [name for group in module._all_weights for name in group]
        begin: Any = None
        if states:
            begin = tuple(given[s.name] for s in states)
            begin = begin if cell == "lstm" else begin[0]
        source = given["x"]
        packed = None
        if lengths is not None:
            packed = torch.nn.utils.rnn.pack_padded_sequence(source, given["lengths"].long(), first, False)
        parameters = dict(zip(names, flat, strict=True))
        found, end = torch.func.functional_call(
            module, parameters, (source if packed is None else packed, begin)
        )
        if packed is not None:
            found, _ = torch.nn.utils.rnn.pad_packed_sequence(found, first, total_length=t)
        return [found, *(end if cell == "lstm" else (end,))]

    def tensors(a: Named) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in a.items()}

    def unit(a: Named) -> float:
        steps = t * layers * (i + h + r)
        half = {"f16": 2.0**-11, "bf16": 2.0**-8}.get(dtype, 0.0)  # layers hand on rounded numbers
        most = max(1.0, *(float(np.abs(v).max(initial=0.0)) for k, v in a.items() if k in ("x", "hx", "cx")))
        growth = (
            most
            if cell != "rnn" or options["nonlinearity"] == "tanh"
            else most * (1 + 0.5 * (i + h)) ** min(t * layers, 4)
        )
        return (16 * steps * roundoff(dtype) + 16 * half * layers * t) * growth

    loose = cell == "rnn" and options["nonlinearity"] == "relu"  # grows by a factor at every step

    def oracle(a: Named) -> list[Expected]:
        found = forward(tensors(a))
        size = [max(1.0, float(one.detach().abs().max())) if one.numel() else 1.0 for one in found]
        return [
            Expected(one.detach().numpy(), np.full(one.shape, unit(a) * s))
            for one, s in zip(found, size, strict=True)
        ]

    if not backward or loose:
        return Problem(
            cell, [*args, *states], options,
            [Result("y", y_shape, dtype), *final], oracle, flavours=("normal", "whole"),
        )  # fmt: skip
    dy = operand(draw, "dy", y_shape, dtype)
    wrt = ["x", *(s.name for s in states), *(w.name for w in weights)]

    def gradient(a: Named) -> list[Expected]:
        given = tensors(a)
        leaves = [given[name].requires_grad_(True) for name in wrt]
        found = forward(given)
        made = torch.autograd.grad(found[0], leaves, given["dy"], allow_unused=True)
        most = float(np.abs(a["dy"]).max(initial=0.0)) * t * n * (h + r)
        return [
            Expected(
                np.zeros(leaf.shape) if one is None else one.numpy(),
                np.full(leaf.shape, 16 * unit(a) * (most + 1)),
            )
            for one, leaf in zip(made, leaves, strict=True)
        ]

    def call(x_: Any, weights_: Any, *rest: Any, **more: Any) -> Any:
        given, dy_ = rest[:-1], rest[-1]
        saved = getattr(jd, cell)(x_, weights_, *given, **more, training=True)[-1]
        found = getattr(jd, f"{cell}_backward")(dy_, x_, weights_, saved, *given, **more)
        gradients = [found[0], *found[1 : 1 + len(given)]]
        return (*gradients, *found[-1])

    shapes = {one.name: one.shape for one in (x, *states, *weights)}
    results = [Result(f"d{name}", shapes[name], dtype) for name in wrt]
    return Problem(
        f"{cell}_backward", [*args, *states, dy], options, results, gradient, scales=False, takes_out=False, call=call,
        flavours=("normal", "whole"),
    )  # fmt: skip


def _halved(g: np.random.Generator, shape: tuple[int, ...], flavour: str) -> Array:
    return g.standard_normal(shape) / math.sqrt(max(1, shape[-1]) + 1)
