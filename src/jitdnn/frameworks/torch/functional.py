"""The functions of `torch.nn.functional` that are ours: their arguments, checked and turned into those of operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F  # noqa: N812

from jitdnn.frameworks.torch import (
    adaptive_pool,
    attention,
    batch_norm_activation,
    batch_norm_calls,
    batch_norm_sum,
    cross_entropy,
    grid_sample,
    group_norm,
    instance_norm_activation,
    layer_norm_autocast,
    normalization,
    operator_calls,
    operators,
    pooling,
    resize,
    rnn,
    softmax,
    whole,
)  # fmt: skip
from jitdnn.frameworks.torch.activation import ACTIVATION
from jitdnn.frameworks.torch.eager import EagerOperation
from jitdnn.frameworks.torch.kinds import Operation
from jitdnn.frameworks.torch.operator_calls import OPERATIONS
from jitdnn.frameworks.torch.registry import is_autocast_on, is_dense
from jitdnn.frameworks.torch.stock import KEYS

PerAxis = int | Sequence[int]

NORMALIZED = (torch.float32, torch.float64)
"""Types of what ours normalize."""
BATCH_NORMALIZED = (torch.float16, torch.bfloat16, *NORMALIZED)
"""And of batches: those of half precision in eager calls, with parameters and running statistics of float32."""
_STOCK = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_STOCK_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def convolution(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: PerAxis = 1,
    padding: PerAxis | str = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
    output_padding: PerAxis | None = None,
    options: str = "",
) -> Tensor:
    """The convolution of x (N, C, space) or (C, space) by w, as `torch.nn.functional.conv2d` and its kin give it.

    With `output_padding`, the transposed one. What torch refuses is refused by torch's own function.
    """
    space = w.dim() - 2
    is_transposed = output_padding is not None
    if x.dim() == space + 1 and space in _STOCK:
        y = convolution(x.unsqueeze(0), w, bias, stride, padding, dilation, groups, output_padding, options)
        return y.squeeze(0)
    if x.dim() != space + 2 or space not in _STOCK or x.is_complex() or not _have_one_type(x, w, bias):
        stock: Any = (_STOCK_TRANSPOSED if is_transposed else _STOCK).get(space, F.conv2d)
        last = (output_padding, groups, dilation) if is_transposed else (dilation, groups)
        result: Tensor = stock(x, w, bias, stride, padding, *last)
        return result
    strides, dilations = _each(stride, space), _each(dilation, space)
    if isinstance(padding, str):
        x, padding = _padded(x, w, padding, strides, dilations)
    found: Tensor = operators.convolution(
        x, w, bias, strides, _each(padding, space), dilations, is_transposed, _each(output_padding or 0, space),
        groups, options,
    )  # fmt: skip
    return found


def _have_one_type(x: Tensor, *operands: Tensor | None) -> bool:
    """Whether all have the type of x, or are given it by autocast."""
    return is_autocast_on(x.device.type) or all(one.dtype == x.dtype for one in operands if one is not None)


def _each(value: PerAxis, space: int) -> Sequence[int]:
    """One number for each axis."""
    if type(value) is tuple and len(value) == space:
        return value  # as modules have them
    if isinstance(value, int):
        return [value] * space
    return [*value] * (space if len(value) == 1 else 1)


def _padded(
    x: Tensor, w: Tensor, padding: str, stride: Sequence[int], dilation: Sequence[int]
) -> tuple[Tensor, list[int]]:
    """x and the padding in numbers for "valid" and "same"; where the two sides differ x is padded before."""
    if padding == "valid":
        return x, [0] * len(dilation)
    if padding != "same" or any(step != 1 for step in stride):
        raise RuntimeError(
            f"padding is {padding!r} with stride {tuple(stride)}: it must be 'valid', 'same' with stride 1, or numbers"
        )
    total = [d * (taps - 1) for d, taps in zip(dilation, w.shape[2:], strict=True)]
    if any(one % 2 for one in total):
        sides = [side for one in reversed(total) for side in (0, one % 2)]
        x = F.pad(x, sides)
    return x, [one // 2 for one in total]


def conv(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: PerAxis = 1, padding: PerAxis | str = 0,
    dilation: PerAxis = 1, groups: int = 1, *, options: str = "",
) -> Tensor:  # fmt: skip
    """`torch.nn.functional.conv2d` and its kin, by the dimensions of w."""
    return convolution(input, weight, bias, stride, padding, dilation, groups, options=options)


def conv_transpose(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: PerAxis = 1, padding: PerAxis = 0,
    output_padding: PerAxis = 0, groups: int = 1, dilation: PerAxis = 1, *, options: str = "",
) -> Tensor:  # fmt: skip
    """`torch.nn.functional.conv_transpose2d` and its kin, by the dimensions of w."""
    return convolution(input, weight, bias, stride, padding, dilation, groups, output_padding, options)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, *, options: str = "") -> Tensor:
    """`torch.nn.functional.linear` of rows (..., K) by a weight (N, K)."""
    if (
        input.dim() < 1
        or weight.dim() != 2
        or input.is_complex()
        or not input.shape[-1]
        or (bias is not None and bias.shape != weight.shape[:1])  # torch broadcasts it
    ):
        return F.linear(input, weight, bias)
    rows = input.reshape(-1, input.shape[-1])
    y: Tensor = operators.linear(rows, weight, bias, options)
    return y if input.dim() == 2 else y.view(*input.shape[:-1], weight.shape[0])


def _max_pool(
    space: int, input: Tensor, kernel_size: PerAxis, stride: PerAxis | None = None, padding: PerAxis = 0,
    dilation: PerAxis = 1, ceil_mode: bool = False, return_indices: bool = False,
) -> tuple[Any, ...] | None:  # fmt: skip
    """What the operator takes for `torch.nn.functional.max_pool2d` and its kin, of so many axes of space."""
    if (
        return_indices
        or input.dim() != space + 2
        or not input.is_floating_point()
        or not _has_axes(kernel_size, space)
    ):
        return None
    each = (
        _each(one, space)
        for one in (kernel_size, kernel_size if stride in (None, ()) else stride, padding, dilation)
    )
    return input, *each, ceil_mode


def _avg_pool(
    space: int, input: Tensor, kernel_size: PerAxis, stride: PerAxis | None = None, padding: PerAxis = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> tuple[Any, ...] | None:  # fmt: skip
    """What the operator takes for `torch.nn.functional.avg_pool2d` and its kin, of so many axes of space."""
    if (
        divisor_override is not None
        or input.dim() != space + 2
        or not input.is_floating_point()
        or not _has_axes(kernel_size, space)
    ):
        return None
    each = (
        _each(one, space) for one in (kernel_size, kernel_size if stride in (None, ()) else stride, padding)
    )
    return input, *each, ceil_mode, count_include_pad


def batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5, *,
    options: str = "",
) -> Any:  # fmt: skip
    """`torch.nn.functional.batch_norm` with the batch's own statistics, which update the running ones."""
    if not training or not _is_batch(input, running_mean, running_var, weight, bias):
        return NotImplemented
    batch = batch_norm_calls.prepared(
        input, running_mean, running_var, weight, bias, momentum, eps, batch_norm_calls.IDENTITY, options
    )
    if batch is not None:
        return batch_norm_calls.run(batch, input, running_mean, running_var, weight, bias)
    y, mean, _, var = operators.batch_norm(input, weight, bias, eps, options)
    _update(running_mean, running_var, mean, var, momentum)
    found: Tensor = y
    return found


def batch_norm_activated(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor, bias: Tensor,
    training: bool, activation: str, inplace: bool, momentum: float, eps: float, *, options: str = "",
) -> Any:  # fmt: skip
    """Batch normalization with the batch's own statistics and the activation behind it."""
    if not training or not _is_batch(input, running_mean, running_var, weight, bias):
        return NotImplemented
    batch = batch_norm_calls.prepared(
        input, running_mean, running_var, weight, bias, momentum, eps, activation, options
    )
    if batch is not None:
        return batch_norm_calls.run(batch, input, running_mean, running_var, weight, bias)
    y, mean, _, var = operators.batch_norm_activation(input, weight, bias, eps, activation, options)
    _update(running_mean, running_var, mean, var, momentum)
    found: Tensor = y
    return found


def _is_batch(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None, bias: Tensor | None
) -> bool:  # fmt: skip
    """Whether ours normalize a batch by its own statistics."""
    if input.dim() < 2 or input.numel() <= input.shape[1]:
        return False
    parameters = [one for one in (running_mean, running_var, weight, bias) if one is not None]
    if not all(one.shape == input.shape[1:2] for one in parameters):
        return False
    if input.dtype in NORMALIZED:
        return _is_normalized(input, weight, bias)
    # compilers fuse torch's own with what is around it
    is_known = input.dtype in BATCH_NORMALIZED and not torch.compiler.is_compiling()
    return is_known and all(one.dtype is torch.float32 for one in parameters)


def _update(
    running_mean: Tensor | None, running_var: Tensor | None, mean: Tensor, var: Tensor, momentum: float
) -> None:
    with torch.no_grad():
        for running, new in ((running_mean, mean), (running_var, var)):
            if running is not None:
                running.add_((new.to(running.dtype) - running) * momentum)


def _layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Any, ...] | None:  # fmt: skip
    """What the operator takes for `torch.nn.functional.layer_norm` of the last axes."""
    axes = len(normalized_shape)
    has_shape = tuple(input.shape[input.dim() - axes :]) == tuple(normalized_shape)
    if (
        not axes
        or not has_shape
        or not _is_normalized(input, weight, bias)
        or (is_autocast_on(input.device.type) and not input.is_cuda)  # where it casts to float32
        or (weight is None) != (bias is None)
    ):
        return None
    return input, weight, bias, axes, eps


def _layer_norm_operation(*args: Any, **named: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """What runs calls of `layer_norm` with these arguments, and its operands."""
    found = layer_norm_autocast.described(*args, **named)
    return _described(normalization.LAYER, _layer_norm, *args, **named) if found is None else found


def _layer_norm_route(*args: Any, options: str = "", **named: Any) -> Any:
    """Layer normalization by ours; of half precision under autocast to float32."""
    found = layer_norm_autocast.described(*args, **named)
    if found is None:
        return _by(operators.layer_norm, _layer_norm)(*args, options=options, **named)
    operation, tensors = found
    return operation.eager(options, operation.settings, *tensors)[0]


def _is_normalized(*operands: Tensor | None) -> bool:
    """Whether ours normalize operands of these types: of one type, whose statistics have it too."""
    types = {one.dtype for one in operands if one is not None}
    return len(types) == 1 and types <= set(NORMALIZED)


def _has_axes(value: PerAxis, space: int) -> bool:
    return isinstance(value, int) or len(value) in (1, space)


def _activation(name: str, input: Tensor, inplace: bool = False) -> tuple[Any, ...] | None:
    """What the operator takes for an activation without parameters."""
    return None if inplace or not input.is_floating_point() else (input, name)


def _gelu(input: Tensor, approximate: str = "none") -> tuple[Any, ...] | None:
    if approximate not in ("none", "tanh"):
        return None
    return _activation("gelu" if approximate == "none" else "gelu_tanh", input)


def _elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> tuple[Any, ...] | None:
    return _activation("elu", input, inplace) if alpha == 1.0 else None


def _by_eager(described: Callable[..., tuple[EagerOperation, tuple[Any, ...]] | None]) -> Any:
    """The route by a function that is ours in eager calls alone, as it is described for torch's arguments."""

    def route(*args: Any, options: str = "", **named: Any) -> Any:
        found = described(*args, **named)
        if found is None:
            return NotImplemented
        operation, tensors = found
        return operation.eager(options, operation.settings, *tensors)[0]

    return route


def _by(operator: Any, operands_of: Callable[..., tuple[Any, ...] | None], *first: Any) -> Any:
    """The route by an operator, of what `operands_of` makes of the `first` arguments and torch's."""

    def route(*args: Any, options: str = "", **named: Any) -> Any:
        operands = operands_of(*first, *args, **named)
        if operands is None:
            return NotImplemented
        found = operator(*operands, options)
        return found[0] if isinstance(found, tuple) else found  # statistics are nobody's here

    return route


def routed(
    function: Any, args: tuple[Any, ...], named: dict[str, Any], options: str, module: nn.Module | None = None
) -> Any:
    """Call a function of torch by ours if there is a route that takes the arguments, and torch's own otherwise.

    On GPUs, and on processors but for convolutions and products, ours runs where the call as a whole is faster by it.
    Where derivatives are taken forward (`torch.autograd.forward_ad`, `torch.func.jvp`), torch's own runs: it has the
    rules for them; and so it does on devices that ours do not know, "meta" among them, for tensors that are nested or
    of other layouts, and for what is no tensor, of which it says what is wrong. `module`: the converted one that calls,
    which remembers what torch's function is faster for.
    """
    route = ROUTES.get(function)
    if route is None or (not torch.compiler.is_compiling() and forward_ad._current_level >= 0):
        return function(*args, **named)
    if args and not (isinstance(args[0], Tensor) and args[0].device.type in KEYS and is_dense(args[0])):
        return function(*args, **named)
    is_alone = function in whole.ALONE
    if torch.compiler.is_compiling():
        if is_alone:
            return function(*args, **named)
    elif args and (is_alone or whole.is_chosen(function, args[0])):
        result = whole.run(function, route, args, named, options, module)
        if module is not None:
            operator_calls.learn(module, function, args, named, options)
        return result
    result = route(*args, **named, options=options)
    return function(*args, **named) if result is NotImplemented else result


#: functions of torch that an operator is for -> that operator, its calls, and what gives its operands
_OPERATORS: dict[Any, tuple[Any, Operation, tuple[Any, ...]]] = {
    **{
        function: (operators.max_pool, pooling.MAX, (_max_pool, space))
        for space, functions in enumerate(
            ((F.max_pool1d, torch.max_pool1d), (F.max_pool2d, torch.max_pool2d), (F.max_pool3d, torch.max_pool3d)), 1
        )
        for function in functions
    },
    **{
        function: (operators.avg_pool, pooling.AVERAGE, (_avg_pool, space))
        for space, function in enumerate((F.avg_pool1d, F.avg_pool2d, F.avg_pool3d), 1)
    },
    F.layer_norm: (operators.layer_norm, normalization.LAYER, (_layer_norm,)),
    **{
        function: (operators.activation, ACTIVATION, how)
        for function, how in {
            F.gelu: (_gelu,),
            F.elu: (_elu,),
            F.silu: (_activation, "silu"),
            F.mish: (_activation, "mish"),
            F.hardswish: (_activation, "hardswish"),
            **dict.fromkeys((torch.tanh, Tensor.tanh), (_activation, "tanh")),
            **dict.fromkeys((torch.sigmoid, Tensor.sigmoid), (_activation, "sigmoid")),
        }.items()
    },
}  # fmt: skip
#: and of functions that are ours in eager calls alone, of which modules remember calls -> what describes them
_EAGER: dict[Any, Callable[..., tuple[EagerOperation, tuple[Any, ...]] | None]] = {
    **dict.fromkeys((F.softmax, torch.softmax, Tensor.softmax), partial(softmax.described, "accurate")),
    **dict.fromkeys(
        (F.log_softmax, torch.log_softmax, Tensor.log_softmax), partial(softmax.described, "log")
    ),
    F.group_norm: group_norm.groups,
    F.instance_norm: group_norm.instances,
    instance_norm_activation.stock: instance_norm_activation.described,
    F.rms_norm: group_norm.roots,
    **adaptive_pool.DESCRIBED,
}


def _described(
    operation: Operation, operands_of: Callable[..., tuple[Any, ...] | None], *args: Any, **named: Any
) -> tuple[Operation, tuple[Any, ...]] | None:
    operands = operands_of(*args, **named)
    return None if operands is None else (operation, operands)


for _function, (_, _operation, (_operands_of, *_first)) in _OPERATORS.items():
    OPERATIONS[_function] = partial(_described, _operation, partial(_operands_of, *_first))
OPERATIONS.update(_EAGER)
OPERATIONS[F.layer_norm] = _layer_norm_operation
whole.SHORT.update({function: partial(operator_calls.short, function) for function in OPERATIONS})
#: functions of torch -> ours in eager calls
EAGER: dict[Any, Any] = {
    **{function: _by_eager(described) for function, described in _EAGER.items()},
    F.cross_entropy: cross_entropy.route,
    F.interpolate: resize.route,
    F.grid_sample: grid_sample.route,
    F.scaled_dot_product_attention: attention.route,
    batch_norm_sum.stock: batch_norm_sum.route,
    **rnn.ROUTES,
}
whole.ALONE.update(dict.fromkeys(EAGER))
#: functions of torch -> ours
ROUTES: dict[Any, Any] = {
    **EAGER,
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d, torch.conv1d, torch.conv2d, torch.conv3d), conv),
    **dict.fromkeys(
        (
            F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d,
            torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d,
        ),
        conv_transpose,
    ),
    F.linear: linear,
    F.batch_norm: batch_norm,
    batch_norm_activation.stock: batch_norm_activated,
    **{function: _by(operator, *how) for function, (operator, _, how) in _OPERATORS.items()},
    F.layer_norm: _layer_norm_route,
}  # fmt: skip
whole.ON_PROCESSORS.update(
    (function, None) for function, route in ROUTES.items() if route not in (conv, conv_transpose, linear)
)
