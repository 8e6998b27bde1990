"""Functions that take no arrays, or make what is called with them, given nonsense."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

import jitdnn as jd
from fuzz.draw import Draw
from fuzz.nonsense import nonsense
from fuzz.problem import Problem, operation

_ARRAY = np.arange(12, dtype=np.float32).reshape(3, 4)
_TEXTS = (
    "conv_fwd n1 c2 h5 w5 k3 r3 s3 f32 nchw", "pool_fwd max n1 c2 h4 w4 window2 f32", "conv_fwd n-1",
    "softmax_fwd shape2x3",
    "x: x + 1", "x, y: x * y; ", "x: (((x)))", "x: x ** 9 ** 9", "f32", "64 MiB", "cpu", "cuda:99", "n1" * 500,
    "(" * 3000, "\0",
)  # fmt: skip


def _settings(**given: Any) -> None:
    with jd.settings(**given):
        jd.relu(_ARRAY)


def _setting_names(draw: Draw) -> dict[str, Any]:
    names = (
        "workspace_limit",
        "threads",
        "math",
        "accuracy",
        "choice",
        "log",
        "division",
        "nothing",
        "cache_limit",
        "target",
    )
    return {draw.pick(names): _some(draw) for _ in range(draw.whole(1, 2))}


def _kernel(make: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **more: Any) -> Any:
        return make(*args, **more)(_ARRAY)

    return run


def _kept(w: Any) -> Any:
    return jd.conv(np.ones((1, 4, 5, 5), np.float32), jd.KeptFilter(w))


_CALLS: dict[str, Callable[..., Any]] = {
    "parse": jd.parse, "plan": jd.plan, "elementwise": _kernel(jd.elementwise), "reduction": _kernel(jd.reduction),
    "scan": _kernel(jd.scan), "trace": jd.trace, "empty": jd.empty, "TensorDescriptor": jd.TensorDescriptor,
    "Handle": jd.Handle, "DropoutState": jd.DropoutState, "KeptFilter": _kept, "settings": _settings,
    "module": jd.module,
    "to_device": jd.to_device, "uniform": jd.uniform, "dropout": jd.dropout, "concat": jd.concat, "split": jd.split,
    "plan_net": jd.plan_net, "relu": jd.relu, "conv": jd.conv, "max_pool": jd.max_pool, "fill": jd.fill,
    "clip": jd.clip, "where": jd.where,
    "exp": jd.exp, "fma": jd.fma, "maximum": jd.maximum,
}  # fmt: skip


def _some(draw: Draw) -> Any:
    kind = draw.weighted((4, "nonsense"), (2, "text"), (1, "array"), (1, "number"))
    if kind == "text":
        return draw.pick(_TEXTS)
    if kind == "array":
        return _ARRAY.copy()
    return nonsense(draw) if kind == "nonsense" else draw.whole(0, 5)


@operation("nonsense", 3, gpu=False, functions=tuple(_CALLS))
def _nonsense(draw: Draw) -> Problem:
    """Every argument is drawn from what makes no sense, or might."""
    name = draw.pick(tuple(_CALLS))
    function = _CALLS[name]
    if name == "settings":
        return _problem(name, [], _setting_names(draw), function)
    source = getattr(jd, name)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for parameter in inspect.signature(source).parameters.values():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) or parameter.name == "self":
            continue
        if parameter.default is parameter.empty:
            if parameter.kind is parameter.KEYWORD_ONLY:
                kwargs[parameter.name] = _some(draw)
            else:
                args.append(_some(draw))
        elif draw.chance(0.2):
            kwargs[parameter.name] = _some(draw)
    if name == "KeptFilter":
        args = args[:1]
        kwargs = {}
    return _problem(name, args, kwargs, function)


def _problem(name: str, args: list[Any], kwargs: dict[str, Any], function: Callable[..., Any]) -> Problem:
    return Problem(
        name,
        args,
        kwargs,
        [],
        scales=False,
        takes_out=False,
        call=function,
        flavours=("normal",),
        nonsense=True,
    )
