"""Public functions with everything that they take beside x, and what PyTorch says they should give.

Each entry of `CASES` is one call: to add an operation is to add one. `tests/helpers/guarded_calls.py` gives every
operand and every output each order in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

import jitdnn as jd

AnyArray = np.ndarray[Any, Any]
Given = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """`run(**operands, out=...)` is the call; `expected(**operands)` are its results, as float64 tensors.

    `shapes`: of the operands that are real numbers. `integers`: operands that are not, as they are. `prepare`: makes
    the operands belong to each other. `wide`: operands (and results, by number) that stay f32 where x is of half
    precision. `states`: operands that the call updates; their new values are the last results. `unlike`: operands that
    a stride of 0 would make nonsense of, since they belong to others.
    """

    name: str
    run: Callable[..., Any]
    expected: Callable[..., Sequence[torch.Tensor]]
    shapes: dict[str, tuple[int, ...]]
    integers: dict[str, AnyArray]
    prepare: Callable[[Given], None] = lambda given: None
    wide: tuple[str | int, ...] = ()
    states: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float32", "float64", "float16")

    def __str__(self) -> str:
        return self.name


def _leaves(given: Given, *names: str) -> list[torch.Tensor]:
    return [given[name].clone().requires_grad_() for name in names]


def _gradients(function: Callable[..., torch.Tensor], leaves: list[torch.Tensor], dy: torch.Tensor) -> Any:
    return torch.autograd.grad(function(*leaves), leaves, dy)


def _channel(v: torch.Tensor, rank: int) -> torch.Tensor:
    return v.reshape(1, -1, *[1] * (rank - 2))


def _statistics(
    x: torch.Tensor, axes: tuple[int, ...], keeps: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    return x.mean(axes, keeps), (x.var(axes, unbiased=False, keepdim=keeps) + 1e-5).rsqrt()


def _saved(axes: tuple[int, ...], keeps: bool = False) -> Callable[[Given], None]:
    def prepare(given: Given) -> None:
        given["mean"], given["rstd"] = _statistics(given["x"], axes, keeps)

    return prepare


def _groups(x: torch.Tensor, groups: int) -> torch.Tensor:
    return x.reshape(x.shape[0], groups, -1)


def _group_norm(groups: int, channels: int, *space: int) -> list[Call]:
    shape, of_groups = (2, channels, *space), (2, groups)

    def saved(given: Given) -> None:
        given["mean"], given["rstd"] = _statistics(_groups(given["x"], groups), (2,))

    def forward(x: Any, weight: Any, bias: Any) -> Any:
        return F.group_norm(x, groups, weight, bias), *_statistics(_groups(x, groups), (2,))

    def backward(dy: Any, x: Any, weight: Any, mean: Any, rstd: Any) -> Any:
        del mean, rstd
        leaves = _leaves({"x": x, "w": weight, "b": torch.zeros_like(weight)}, "x", "w", "b")
        return _gradients(lambda x, w, b: F.group_norm(x, groups, w, b), leaves, dy)

    name = f"group_norm {groups} of {channels} {space}"
    parameters = {"weight": (channels,), "bias": (channels,)}
    return [
        Call(
            name,
            lambda out, x, weight, bias: jd.group_norm(x, groups, weight, bias, save=True, out=out),
            forward,
            {"x": shape, **parameters},
            {},
            wide=(1, 2),
        ),
        Call(
            f"{name} backward",
            lambda out, **o: jd.group_norm_backward(**o, groups=groups, wants_bias=True, out=out),
            backward,
            {"dy": shape, "x": shape, "weight": (channels,), "mean": of_groups, "rstd": of_groups},
            {},
            prepare=saved,
            wide=("mean", "rstd"),
            unlike=("x", "mean", "rstd"),
        ),
    ]


def _backward_of(function: Callable[..., torch.Tensor], *names: str) -> Callable[..., Any]:
    """The gradients of a function by the operands `names`; dy is its own."""

    def expected(**given: Any) -> Any:
        return _gradients(function, _leaves(given, *names), given["dy"])

    return expected


def _batch_norm(x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any) -> Any:
    mean, rstd = _statistics(x, (0, 2, 3))
    y = (x - _channel(mean, 4)) * _channel(rstd * weight, 4) + _channel(bias, 4)
    variance = x.var((0, 2, 3))
    return torch.relu(y), mean, rstd, 0.9 * running_mean + 0.1 * mean, 0.9 * running_var + 0.1 * variance


def _positive(*names: str) -> Callable[[Given], None]:
    def prepare(given: Given) -> None:
        for name in names:
            given[name] = given[name].abs() + 0.5

    return prepare


def _cross_entropy(x: Any, weight: Any, target: Any) -> Any:
    lse = torch.logsumexp(x, 1)
    known = target >= 0
    total = (weight[target.clamp(min=0)] * known).sum().reshape(1)
    return F.cross_entropy(x, target, weight).reshape(1), lse, total


def _cross_entropy_given(given: Given) -> None:
    given["weight"] = given["weight"].abs() + 0.5
    _, given["lse"], given["total"] = _cross_entropy(given["x"], given["weight"], given["target"])


def _rms(x: Any, weight: Any) -> Any:
    return F.rms_norm(x, x.shape[-1:], weight, 1e-5)


CLASSES = np.array([[0, 4, 2, -100], [1, 1, 3, 0], [2, 0, 4, 1]])
PLACES = np.array([[1, 5, 0], [5, 2, 1]])
UNPOOLED = np.array([[[0, 3], [1, 4], [0, 2]], [[1, 2], [4, 0], [3, 1]]])
LABELS = np.array([[1, 2, 2], [3, 1, 4]])
MASK = np.tril(np.ones((5, 7), bool), 2)
LENGTHS = np.array([5, 7], np.int32)

_IMAGE = (2, 13, 3, 5)
_PER_CHANNEL = {"weight": (13,), "bias": (13,)}

CASES = [
    *_group_norm(7, 28, 5),  # masked vectors of groups, channels at a stride
    *_group_norm(3, 3, 4, 2),
    Call(
        "group_norm alone",
        lambda out, x, weight, bias: jd.group_norm(x, 7, weight, bias, out=out),
        lambda x, weight, bias: (F.group_norm(x, 7, weight, bias),),
        {"x": (2, 28, 7), "weight": (28,), "bias": (28,)},
        {},
    ),
    Call(
        "layer_norm",
        lambda out, x, weight, bias: jd.layer_norm(x, weight, bias, save=True, out=out),
        lambda x, weight, bias: (F.layer_norm(x, (19,), weight, bias), *_statistics(x, (2,), True)),
        {"x": (2, 5, 19), "weight": (19,), "bias": (19,)},
        {},
        wide=(1, 2),
    ),
    Call(
        "layer_norm_backward",
        lambda out, **o: jd.layer_norm_backward(**o, wants_bias=True, out=out),
        lambda dy, x, weight, mean, rstd: _gradients(
            lambda x, w, b: F.layer_norm(x, (19,), w, b),
            _leaves({"x": x, "w": weight, "b": torch.zeros_like(weight)}, "x", "w", "b"),
            dy,
        ),
        {"dy": (2, 5, 19), "x": (2, 5, 19), "weight": (19,), "mean": (2, 5, 1), "rstd": (2, 5, 1)},
        {},
        prepare=_saved((2,), True),
        wide=("mean", "rstd"),
        unlike=("x", "mean", "rstd"),
    ),
    Call(
        "rms_norm",
        lambda out, x, weight: jd.rms_norm(x, weight, save=True, out=out),
        lambda x, weight: (_rms(x, weight), ((x * x).mean(2, True) + 1e-5).rsqrt()),
        {"x": (2, 5, 19), "weight": (19,)},
        {},
        wide=(1,),
    ),
    Call(
        "rms_norm_backward",
        lambda out, **o: jd.rms_norm_backward(**o, out=out),
        lambda dy, x, weight, rstd: _backward_of(_rms, "x", "weight")(dy=dy, x=x, weight=weight),
        {"dy": (2, 5, 19), "x": (2, 5, 19), "weight": (19,), "rstd": (2, 5, 1)},
        {},
        prepare=lambda given: given.update(rstd=((given["x"] ** 2).mean(2, True) + 1e-5).rsqrt()),
        wide=("rstd",),
        unlike=("x", "rstd"),
    ),
    Call(
        "batch_norm",
        lambda out, **o: jd.batch_norm(**o, activation="relu", save=True, out=out),
        _batch_norm,
        {"x": _IMAGE, **_PER_CHANNEL, "running_mean": (13,), "running_var": (13,)},
        {},
        prepare=_positive("running_var"),
        wide=(1, 2),
        states=("running_mean", "running_var"),
    ),
    Call(
        "batch_norm_inference",
        lambda out, **o: jd.batch_norm_inference(**o, out=out),
        lambda x, weight, bias, running_mean, running_var, z: (
            F.batch_norm(x, running_mean, running_var, weight, bias) + z,
        ),
        {"x": _IMAGE, **_PER_CHANNEL, "running_mean": (13,), "running_var": (13,), "z": _IMAGE},
        {},
        prepare=_positive("running_var"),
    ),
    Call(
        "batch_norm_backward",
        lambda out, **o: jd.batch_norm_backward(**o, wants_bias=True, out=out),
        lambda dy, x, weight, mean, rstd: _gradients(
            lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
            _leaves({"x": x, "w": weight, "b": torch.zeros_like(weight)}, "x", "w", "b"),
            dy,
        ),
        {"dy": _IMAGE, "x": _IMAGE, "weight": (13,), "mean": (13,), "rstd": (13,)},
        {},
        prepare=_saved((0, 2, 3)),
        wide=("mean", "rstd"),
        unlike=("x", "mean", "rstd"),
    ),
    Call(
        "prelu",
        lambda out, x, weight: jd.prelu(x, weight, out=out),
        lambda x, weight: (F.prelu(x, weight),),
        {"x": _IMAGE, "weight": (13,)},
        {},
    ),
    Call(
        "prelu_backward",
        lambda out, **o: jd.prelu_backward(**o, out=out),
        lambda dy, x, weight: _backward_of(F.prelu, "x", "weight")(dy=dy, x=x, weight=weight),
        {"dy": _IMAGE, "x": _IMAGE, "weight": (13,)},
        {},
    ),
    Call(
        "conv with an epilogue",
        lambda out, x, w, b, r, scale: jd.conv(
            x, w, b, r, scale, padding=1, epilogue=lambda a, b, r, s: jd.relu(a + b) * s + r, out=out
        ),
        lambda x, w, b, r, scale: (torch.relu(F.conv2d(x, w, b, padding=1)) * _channel(scale, 4) + r,),
        {"x": (2, 5, 4, 3), "w": (13, 5, 3, 3), "b": (13,), "r": (2, 13, 4, 3), "scale": (13, 1, 1)},
        {},
    ),
    Call(
        "conv_backward_bias",
        lambda out, dy: jd.conv_backward_bias(dy, out=out),
        lambda dy: (dy.sum((0, 2, 3)),),
        {"dy": _IMAGE},
        {},
    ),
    Call(
        "conv_backward_filter",
        lambda out, x, dy: jd.conv_backward_filter(x, dy, (10, 1, 3, 3), groups=5, padding=1, out=out),
        lambda x, dy: _gradients(
            lambda w: F.conv2d(x, w, padding=1, groups=5),
            [torch.zeros(10, 1, 3, 3).double().requires_grad_()],
            dy,
        ),
        {"x": (2, 5, 4, 3), "dy": (2, 10, 4, 3)},
        {},
    ),
    Call(
        "cross_entropy",
        lambda out, **o: jd.cross_entropy(**o, return_saved=True, out=out),
        _cross_entropy,
        {"x": (3, 5, 4), "weight": (5,)},
        {"target": CLASSES},
        prepare=_positive("weight"),
        wide=(1, 2),
    ),
    Call(
        "cross_entropy_backward",
        lambda out, **o: jd.cross_entropy_backward(**o, out=out),
        lambda dloss, x, weight, lse, total, target: _gradients(
            lambda x: F.cross_entropy(x, target, weight).reshape(1), _leaves({"x": x}, "x"), dloss
        ),
        {"dloss": (1,), "x": (3, 5, 4), "weight": (5,), "lse": (3, 4), "total": (1,)},
        {"target": CLASSES},
        prepare=_cross_entropy_given,
        wide=("lse", "total"),
        unlike=("x", "weight", "lse", "target"),
    ),
    Call(
        "ctc_loss",
        lambda out, x, **o: jd.ctc_loss(x, **o, reduction="none", inputs="logits", out=out),
        lambda x, targets, input_lengths, target_lengths: (
            F.ctc_loss(x.log_softmax(2), targets, input_lengths, target_lengths, reduction="none"),
        ),
        {"x": (9, 2, 6)},
        {"targets": LABELS, "input_lengths": np.array([9, 8]), "target_lengths": np.array([3, 2])},
        unlike=("input_lengths", "target_lengths"),
        dtypes=("float32", "float64"),
    ),
    Call(
        "embedding",
        lambda out, weight, indices: jd.embedding(indices, weight, out=out),
        lambda weight, indices: (weight[indices],),
        {"weight": (6, 5)},
        {"indices": PLACES},
    ),
    Call(
        "embedding_backward",
        lambda out, dy, indices: jd.embedding_backward(dy, indices, 6, out=out),
        lambda dy, indices: (
            torch.zeros(6, 5).double().index_add(0, indices.reshape(-1), dy.reshape(-1, 5)),
        ),
        {"dy": (2, 3, 5)},
        {"indices": PLACES},
    ),
    Call(
        "max_unpool",
        lambda out, x, indices: jd.max_unpool(x, indices, 5, out=out),
        lambda x, indices: (F.max_unpool1d(x, indices, 2, output_size=(5,)),),
        {"x": (2, 3, 2)},
        {"indices": UNPOOLED},
        unlike=("indices",),
    ),
    Call(
        "max_unpool_backward",
        lambda out, dy, indices: jd.max_unpool_backward(dy, indices, out=out),
        lambda dy, indices: (dy.gather(2, indices),),
        {"dy": (2, 3, 5)},
        {"indices": UNPOOLED},
    ),
    Call(
        "affine_grid",
        lambda out, theta: jd.affine_grid(theta, (4, 5), out=out),
        lambda theta: (F.affine_grid(theta, [3, 1, 4, 5], align_corners=False),),
        {"theta": (3, 2, 3)},
        {},
    ),
    Call(
        "grid_sample",
        lambda out, x, grid: jd.grid_sample(x, grid, out=out),
        lambda x, grid: (F.grid_sample(x, grid, align_corners=False),),
        {"x": (2, 3, 5, 6), "grid": (2, 4, 3, 2)},
        {},
        dtypes=("float32", "float64"),
    ),
    Call(
        "attention",
        lambda out, q, k, v, mask, lengths: jd.attention(
            q, k, v, mask=mask, lengths=lengths, return_lse=True, out=out
        ),
        lambda q, k, v, mask, lengths: _attention(q, k, v, mask, lengths),
        {"q": (2, 3, 5, 4), "k": (2, 3, 7, 4), "v": (2, 3, 7, 6)},
        {"mask": MASK, "lengths": LENGTHS},
        wide=(1,),
        unlike=("lengths",),
    ),
    Call(
        "lrn_backward",
        lambda out, dy, x: jd.lrn_backward(dy, x, 5, 0.5, out=out),
        lambda dy, x: _backward_of(lambda x: F.local_response_norm(x, 5, 0.5, 0.75, 2.0), "x")(dy=dy, x=x),
        {"dy": (2, 7, 3, 2), "x": (2, 7, 3, 2)},
        {},
    ),
    Call(
        "op_tensor",
        lambda out, a, b: jd.op_tensor(a, b, "max", 0.5, -2.0, out=out),
        lambda a, b: (torch.maximum(0.5 * a, -2.0 * b),),
        {"a": _IMAGE, "b": (13, 1, 1)},
        {},
    ),
    Call(
        "softmax_backward",
        lambda out, dy, y: jd.softmax_backward(dy, y, out=out),
        lambda dy, y: (y * (dy - (dy * y).sum(1, keepdim=True)),),
        {"dy": (3, 19, 2), "y": (3, 19, 2)},
        {},
        prepare=lambda given: given.update(y=given["y"].softmax(1)),
    ),
    Call(
        "reduce",
        lambda out, x: jd.reduce(x, "norm2", (0, 2), out=out),
        lambda x: (x.norm(dim=(0, 2)),),
        {"x": (3, 19, 7)},
        {},
    ),
    Call(
        "reduction",
        lambda out, a, b: _DOT(a, b, axes=1, out=out),
        lambda a, b: ((a * b).sum(1),),
        {"a": (5, 3), "b": (5, 3)},
        {},
    ),
    Call(
        "elementwise",
        lambda out, a, b, c: _FMA(a, b, c, out=out),
        lambda a, b, c: (a * b + c,),
        {"a": _IMAGE, "b": (13, 1, 1), "c": (3, 5)},
        {},
    ),
]

_DOT = jd.reduction(lambda a, b: a * b, "add")
_FMA = jd.elementwise(lambda a, b, c: a * b + c)


def _attention(q: Any, k: Any, v: Any, mask: Any, lengths: Any) -> Any:
    known = torch.arange(7)[None, None, None] < lengths[:, None, None, None]
    scores = torch.where(mask & known, q @ k.transpose(-1, -2) / 2.0, -torch.inf)
    return scores.softmax(-1) @ v, torch.logsumexp(scores, -1)
