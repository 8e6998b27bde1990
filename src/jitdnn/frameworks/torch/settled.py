"""`torch.ops.jitdnn.settled_convolution`: one direction of a convolution, all known when a graph was compiled.

The operators of convolution_operators.py take any operands: their schemas are long, they have gradients and rules of
autocast, and each call looks up what its operands are. In a graph of Inductor's with static shapes all this is done;
what is left of a call are two or three tensors and a text that names the prepared launch. So it costs the host less
than torch's own convolution does; `launch` and `launch_with_bias` are the same without the dispatcher, into memory that
the caller gives: what Inductor's code calls (inductor_lowering.py).
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, get_num_threads

from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.frameworks.torch import convolution
from jitdnn.frameworks.torch.convolution import DIRECTIONS, Geometry, prepared, problem_of
from jitdnn.frameworks.torch.fresh import fresh
from jitdnn.frameworks.torch.inductor_launches import SEEN, Names, shorten
from jitdnn.frameworks.torch.kinds import observers, threads_apart, watching
from jitdnn.frameworks.torch.launch import Direct, GpuLaunch
from jitdnn.frameworks.torch.options import handle_of
from jitdnn.frameworks.torch.registry import define
from jitdnn.retention import Recent

if TYPE_CHECKING:  # of GPUs alone
    from jitdnn.frameworks.torch.native_convolution import Calls

#: shape, strides and type of a tensor
Form = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
_Run = Callable[[Tensor, Tensor, Tensor | None], Tensor]
_Into = Callable[[Tensor, Tensor, Tensor | None, Tensor], None]
_Launch = Callable[..., None]
_known: Recent[tuple[str, int, torch.device], _Run] = Recent(4096)
#: by text, threads and the number of the GPU, -1 for the processor
_into: Recent[tuple[str, int, int], _Into] = Recent(4096)
#: of the functions that Inductor's code calls, what calls them by generated code
_native: dict[_Launch, Calls] = {}
_guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)


def text_of(
    direction: str,
    x: Tensor,
    w: Tensor,
    dy: Tensor | None,
    has_bias: bool,
    geometry: Sequence[Any],
    options: str,
) -> str:
    """What tells the operator all but the operands, of which the forms count alone.

    `direction`: "forward", "data" or "filter"; `geometry`: what `aten::convolution` takes behind its tensors, of no
    transposed one; `dy` the gradient of the result, for the last two, or the result where it is to lie otherwise than
    torch's own would. "transposed": a transposed convolution of dy as the data's gradient that it is, whose result lies
    in memory as x does, which may be some channels of another tensor, and may have a bias.
    """
    y = dy
    if y is None:
        g = Geometry.of(x.dim() - 2, *geometry)
        form = convolution.memory_format(x, w)
        y = torch.empty(g.output_shape(x.shape, w.shape), dtype=x.dtype, device="meta", memory_format=form)
    forms = [(tuple(t.shape), tuple(t.stride()), str(t.dtype).removeprefix("torch.")) for t in (x, w, y)]
    numbers = tuple(tuple(one) if isinstance(one, (list, tuple)) else one for one in geometry)
    return repr((direction, *forms, has_bias, numbers, options))


def parsed(text: str) -> tuple[str, list[Form], bool, Geometry, str]:
    """Direction, forms of x, w and y, whether there is a bias, geometry, options. Raises InvalidArgument."""
    try:
        direction, *forms, has_bias, numbers, options = literal_eval(text)
        found = [(shape, strides, getattr(torch, name)) for shape, strides, name in forms]
        x, *_ = found
        geometry = Geometry.of(len(x[0]) - 2, *numbers)
        if direction not in (*DIRECTIONS[:3], "transposed") or len(found) != 3 or geometry.transposed:
            raise ValueError(direction)
    except (ValueError, TypeError, SyntaxError, AttributeError) as error:
        raise InvalidArgument(f"{text[:200]!r} is no text of jitdnn::settled_convolution: {error}") from None
    return direction, found, has_bias, geometry, options


def _roles(direction: str) -> tuple[int, int, int]:
    """Which of x, w and y are the first operand, the second, and the result."""
    return {"forward": (0, 1, 2), "data": (2, 1, 0), "transposed": (2, 1, 0), "filter": (0, 2, 1)}[direction]


def _like(form: Form) -> Tensor:
    return torch.empty_strided(form[0], form[1], dtype=form[2], device="meta")


def _result(text: str) -> tuple[str, list[Form], bool, Geometry, str, Tensor]:
    """The parsed text, and a result without data, where the direction's own operator would have it in memory."""
    direction, forms, has_bias, geometry, options = parsed(text)
    x, w, y = map(_like, forms)
    if direction == "forward":
        made = y
    elif direction == "transposed":
        made = x
    else:
        made = torch.empty_like(x if direction == "data" else w)
    return direction, forms, has_bias, geometry, options, made


@dataclass(frozen=True)
class _Prepared:
    """What a text says, and what runs it on `device`: `run` is None where no plan runs by addresses alone."""

    direction: str
    a: Form
    b: Form
    bias: Form | None
    out: Tensor
    geometry: Geometry
    options: str
    run: Direct

    def into(self) -> _Into:
        """What runs it on operands of the right forms."""
        direction, geometry, options = self.direction, self.geometry, self.options

        def general(a: Tensor, b: Tensor, c: Tensor | None, y: Tensor) -> None:
            _general(direction, a, b, c, y, geometry, options)

        if self.run is None:
            return general
        at = self.run.at

        def into(a: Tensor, b: Tensor, c: Tensor | None, y: Tensor) -> None:
            if (observers or threads_apart) and watching():  # they are told of kinds of calls
                general(a, b, c, y)
            elif c is None:
                at((a.data_ptr(), b.data_ptr(), y.data_ptr()))
            else:
                at((a.data_ptr(), b.data_ptr(), y.data_ptr(), c.data_ptr()))

        return into


def _prepared(text: str, device: torch.device) -> _Prepared:
    direction, forms, has_bias, geometry, options, out = _result(text)
    first, second, result = _roles(direction)
    metas = [_like(form) for form in forms]
    metas[result] = out
    x, w, y = metas
    problem = problem_of("data" if direction == "transposed" else direction, x, w, y, geometry)
    handle = handle_of(options, device.type)
    operands = [metas[first], metas[second], out]
    bias = ((out.shape[1],), (1,), out.dtype) if has_bias else None
    if bias is not None:
        operands.append(_like(bias))
    run = prepared(handle, problem, operands, device)
    return _Prepared(direction, forms[first], forms[second], bias, out, geometry, options, run)


def _prepare(text: str, device: torch.device) -> _Run:
    """A call of the operator: it checks its operands, and makes the result."""
    ready = _prepared(text, device)
    bias, out = ready.bias, ready.out
    shape, strides, dtype = tuple(out.shape), out.stride(), out.dtype
    (a_shape, a_strides, a_dtype), (b_shape, b_strides, b_dtype) = ready.a, ready.b
    check, has_bias, into = _check, bias is not None, ready.into()
    made = fresh(shape, strides, dtype, device)

    def call(a: Tensor, b: Tensor, c: Tensor | None) -> Tensor:
        try:
            check(a, a_shape, a_strides)
            check(b, b_shape, b_strides)
            if c is not None and bias is not None:
                check(c, *bias[:2])
        except AssertionError:
            a, b = _laid(a, ready.a), _laid(b, ready.b)
            c = c if c is None or bias is None else _laid(c, bias)
        is_right = a.dtype is a_dtype and b.dtype is b_dtype and b.device == device
        if not is_right or (c is not None) is not has_bias or (c is not None and c.dtype is not dtype):
            raise InvalidArgument(
                f"operands of {a.dtype} and {b.dtype} on {a.device} and {b.device}, bias {c is not None}: the graph "
                f"was compiled for {a_dtype} and {b_dtype} on {device}, bias {has_bias}"
            )
        y = made()
        into(a, b, c, y)
        return y

    return call


def launch(a: Tensor, b: Tensor, text: str, names: Names = None, *, out: Tensor) -> None:
    """Run what `text` says on tensors of its forms, into `out`, which has that of the result: nothing is checked.

    `names`: the global names of the code of a graph that calls it, whose other kernels are launched faster then.
    """
    _launch(a, b, None, text, names, out)


def launch_with_bias(
    a: Tensor, b: Tensor, bias: Tensor, text: str, names: Names = None, *, out: Tensor
) -> None:
    """The same with a bias."""
    _launch(a, b, bias, text, names, out)


def _launch(a: Tensor, b: Tensor, bias: Tensor | None, text: str, names: Names, out: Tensor) -> None:
    if names is not None and SEEN not in names:
        shorten(names)
    key = (text, get_num_threads(), out.get_device())
    into = _into.get(key)
    if into is None:
        into = _make_into(key, out.device)
    into(a, b, bias, out)


def shortest(function: _Launch) -> _Launch:
    """One of the two above, by generated code where this process has one GPU (native_convolution.py)."""
    if not torch.cuda.is_available() or torch.cuda.device_count() != 1:
        return function
    calls = _native.get(function)
    if calls is None:
        from jitdnn.frameworks.torch.native_convolution import Calls

        calls = _native.setdefault(function, Calls(function))
    return calls.call


def _make_into(key: tuple[str, int, int], device: torch.device) -> _Into:
    known = _into.older(key)
    if known is not None:
        return known
    ready = _prepared(key[0], device)
    into = ready.into()
    if not _native or not isinstance(ready.run, GpuLaunch):
        return _into.put(key, into)
    run, calls = ready.run, _native[launch if ready.bias is None else launch_with_bias]

    def until_known(a: Tensor, b: Tensor, c: Tensor | None, y: Tensor) -> None:
        into(a, b, c, y)
        frozen = run.frozen()
        if frozen is not None and frozen.is_alone:
            calls.keep(key[0], frozen)
        if run.is_settled:
            _into.put(key, into)

    return _into.put(key, until_known)


def form_of_result(text: str) -> Form:
    """The form of what `text` gives."""
    out = _result(text)[-1]
    return tuple(out.shape), out.stride(), out.dtype


def forms_of_operands(text: str) -> tuple[Form, Form]:
    """The forms of its two operands."""
    direction, forms, *_ = parsed(text)
    first, second, _ = _roles(direction)
    return forms[first], forms[second]


def _general(
    direction: str, a: Tensor, b: Tensor, c: Tensor | None, y: Tensor, g: Geometry, options: str
) -> None:
    """By the operators that take any operands, where no plan runs by addresses alone."""
    forward: Any = convolution.forward
    backward: Any = convolution.backward
    if direction == "forward":
        y.copy_(forward(a, b, c, *g.arguments, options))
    elif direction == "transposed":
        axes = zip(y.shape[2:], a.shape[2:], b.shape[2:], g.stride, g.padding, g.dilation, strict=True)
        more = [n - (m - 1) * s + 2 * p - d * (k - 1) - 1 for n, m, k, s, p, d in axes]
        y.copy_(forward(a, b, c, g.stride, g.padding, g.dilation, True, more, g.groups, options))
    elif direction == "data":
        y.copy_(backward(a, y, b, *g.arguments, (True, False, False), options)[0])
    else:
        y.copy_(backward(b, a, y, *g.arguments, (False, True, False), options)[1])


def _check_in_python(tensor: Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape or tensor.stride() != strides:
        raise AssertionError


_check: Callable[..., Any] = getattr(_guards, "assert_size_stride", _check_in_python)


def _laid(tensor: Tensor, form: Form) -> Tensor:
    """A tensor of the right shape as it should lie in memory."""
    shape, strides, _ = form
    if tuple(tensor.shape) != shape:
        raise InvalidShape(
            f"an operand has the shape {tuple(tensor.shape)}: the graph was compiled for {shape}"
        )
    if tensor.stride() == strides:
        return tensor
    return torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _kernel(a: Tensor, b: Tensor, bias: Tensor | None, text: str) -> Tensor:
    key = (text, torch.get_num_threads(), a.device)
    run = _known.get(key)
    if run is None:
        run = _known.older(key) or _known.put(key, _prepare(text, a.device))
    return run(a, b, bias)


def _fake(a: Tensor, b: Tensor, bias: Tensor | None, text: str) -> Tensor:
    shape, strides, dtype = form_of_result(text)
    return torch.empty_strided(shape, strides, dtype=dtype, device=a.device)


settled_convolution = define(
    "settled_convolution(Tensor a, Tensor b, Tensor? bias, str text) -> Tensor", _kernel, _fake
)
