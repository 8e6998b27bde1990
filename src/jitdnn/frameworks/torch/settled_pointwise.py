"""`jitdnn::convolution_pointwise` where all is known when a graph is compiled: a launch, into memory that is given.

As settled.py: Inductor's code calls `launch` with the tensors and a text that says all else (inductor_lowering.py).
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, get_num_threads

from jitdnn.errors import NotSupported
from jitdnn.frameworks.torch import convolution_pointwise
from jitdnn.frameworks.torch.inductor_launches import SEEN, shorten
from jitdnn.frameworks.torch.kinds import observers, threads_apart, watching
from jitdnn.frameworks.torch.launch import descriptor, direct
from jitdnn.frameworks.torch.options import handle_of
from jitdnn.frameworks.torch.settled import Form
from jitdnn.retention import Recent

_Into = Callable[[Tensor, Tensor, Sequence[Tensor], Tensor], None]
#: by text, threads and the number of the GPU, -1 for the processor
_into: Recent[tuple[str, int, int], _Into] = Recent(4096)


def text_of(tensors: Sequence[Tensor], arguments: Sequence[Any]) -> str:
    """What tells `launch` all but the operands. `tensors`: x, w and what the tail reads, which may be without data;
    `arguments` of the operator behind them: stride, padding, dilation, groups, tail, is_constant, options."""
    forms = [(tuple(t.shape), tuple(t.stride()), str(t.dtype).removeprefix("torch.")) for t in tensors]
    *geometry, groups, tail, is_constant, options = arguments
    return repr((forms, [tuple(one) for one in geometry], groups, tail, bool(is_constant), options))


def form_of_result(text: str) -> Form:
    """The form of what `text` gives."""
    (x, w, *_), arguments = _parsed(text)
    y = convolution_pointwise.result(x, w, *arguments[:4])
    return tuple(y.shape), y.stride(), y.dtype


def launch(x: Tensor, w: Tensor, *rest: Any, out: Tensor) -> None:
    """Run what `text` says on tensors of its forms, into `out`: nothing is checked. The last of `rest` are `text` and
    the `names` of settled.py."""
    *operands, text, names = rest
    if names is not None and SEEN not in names:
        shorten(names)
    key = (text, get_num_threads(), out.get_device())
    run = _into.get(key) or _into.older(key) or _into.put(key, _prepared(text, out.device))
    run(x, w, operands, out)


def _parsed(text: str) -> tuple[list[Tensor], tuple[Any, ...]]:
    """Tensors without data, and the other arguments of the operator."""
    forms, geometry, *others = literal_eval(text)
    tensors = [
        torch.empty_strided(shape, strides, dtype=getattr(torch, name), device="meta")
        for shape, strides, name in forms
    ]
    return tensors, (*geometry, *others)


def _prepared(text: str, device: torch.device) -> _Into:
    (x, w, *given), arguments = _parsed(text)
    *geometry, tail, is_constant, options = arguments
    y = convolution_pointwise.result(x, w, *geometry)
    handle = handle_of(options, device.type)
    general = convolution_pointwise.convolution_pointwise.kernel
    if device.type == "cpu":
        run = convolution_pointwise.by_address(handle, x, w, given, y, geometry, tail, is_constant)
    else:
        try:
            found = convolution_pointwise.planned((x, w, *geometry), tail, given)
        except NotSupported:
            found = None
        run = None
        if found is not None:
            ends = [descriptor(one) for one in given]
            on_gpu = direct(handle, found[0], (x, w, y, *given), device, found[1], ends)
            run = None if on_gpu is None else lambda _, addresses: on_gpu.at(addresses)

    def into(x: Tensor, w: Tensor, operands: Sequence[Tensor], out: Tensor) -> None:
        if run is None or ((observers or threads_apart) and watching()):  # they are told of kinds of calls
            out.copy_(general(x, w, operands, *arguments))
        else:
            run(w, [one.data_ptr() for one in (x, w, out, *operands)])

    return into
