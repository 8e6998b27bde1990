"""One small call of every public op beside what PyTorch says it should give, for tests of the call layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

import jitdnn as jd

AnyArray = np.ndarray[Any, Any]
Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Case:
    """`run(*arrays, **options)` is the op; `expected` takes float64 tensors and is PyTorch's word for it.

    `shapes`: of the inputs. `safe_in_place`: inputs that `out` may be. `space`: whether the first input is
    (N, C, space), so that it has a channels-last order. `prepare` makes inputs that belong to each other.
    """

    name: str
    run: Callable[..., Any]
    expected: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]
    safe_in_place: tuple[int, ...] = ()
    space: bool = False
    prepare: Callable[..., Tensors] = lambda *tensors: tensors

    def __str__(self) -> str:
        return self.name

    def arrays(self, dtype: str = "float32", seed: int = 0) -> list[AnyArray]:
        """Inputs, normally distributed."""
        generator = np.random.default_rng(seed)
        raw = [torch.from_numpy(generator.standard_normal(shape)) for shape in self.shapes]
        return [tensor.numpy().astype(dtype) for tensor in self.prepare(*raw)]

    def truth(self, arrays: list[AnyArray]) -> AnyArray:
        """The result in float64."""
        result = self.expected(*(torch.from_numpy(np.array(array, np.float64)) for array in arrays))
        return result.detach().numpy()


def gradient(function: Callable[..., torch.Tensor], position: int, inputs: Tensors, dy: torch.Tensor) -> Any:
    """The gradient of `function` by one of its inputs."""
    leaves = [tensor.clone().requires_grad_(i == position) for i, tensor in enumerate(inputs)]
    (slope,) = torch.autograd.grad(function(*leaves), leaves[position], dy)
    return slope


def _conv2d(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, w, stride=2, padding=1, groups=2)


def _with_maximum(dy: torch.Tensor, x: torch.Tensor) -> Tensors:
    return dy, x, F.max_pool2d(x, 3, 2, 1)


CASES = [
    Case(
        "conv_1d",
        lambda x, w, **o: jd.conv(x, w, padding=2, dilation=2, **o),
        lambda x, w: F.conv1d(x, w, padding=2, dilation=2),
        ((2, 3, 11), (5, 3, 3)),
        space=True,
    ),
    Case(
        "conv_2d",
        lambda x, w, **o: jd.conv(x, w, stride=2, padding=1, groups=2, **o),
        _conv2d,
        ((2, 4, 7, 6), (6, 2, 3, 3)),
        space=True,
    ),
    Case(
        "conv_3d",
        lambda x, w, **o: jd.conv(x, w, stride=(1, 2, 1), padding=((0, 1), (1, 0), (1, 1)), **o),
        lambda x, w: F.conv3d(F.pad(x, (1, 1, 1, 0, 0, 1)), w, stride=(1, 2, 1)),
        ((1, 3, 4, 5, 6), (4, 3, 2, 2, 3)),
        space=True,
    ),
    Case(
        "conv_bias_residual",
        lambda x, w, b, r, **o: jd.conv(x, w, b, r, epilogue=lambda a, b, r: jd.relu(a + b) * r, **o),
        lambda x, w, b, r: torch.relu(F.conv2d(x, w, b)) * r,
        ((2, 3, 6, 6), (4, 3, 3, 3), (4,), (2, 4, 4, 4)),
        safe_in_place=(3,),
        space=True,
    ),
    Case(
        "conv_backward_data",
        lambda dy, w, **o: jd.conv_backward_data(dy, w, (2, 4, 7, 6), stride=2, padding=1, groups=2, **o),
        lambda dy, w: gradient(_conv2d, 0, (torch.zeros(2, 4, 7, 6, dtype=dy.dtype), w), dy),
        ((2, 6, 4, 3), (6, 2, 3, 3)),
        space=True,
    ),
    Case(
        "conv_backward_filter",
        lambda x, dy, **o: jd.conv_backward_filter(x, dy, (6, 2, 3, 3), stride=2, padding=1, groups=2, **o),
        lambda x, dy: gradient(_conv2d, 1, (x, torch.zeros(6, 2, 3, 3, dtype=dy.dtype)), dy),
        ((2, 4, 7, 6), (2, 6, 4, 3)),
        space=True,
    ),
    Case(
        "conv_backward_bias",
        lambda dy, **o: jd.conv_backward_bias(dy, **o),
        lambda dy: dy.sum((0, 2, 3)),
        ((2, 6, 4, 3),),
    ),
    Case(
        "conv_transpose",
        lambda x, w, **o: jd.conv_transpose(x, w, stride=2, padding=1, output_padding=1, groups=2, **o),
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1, groups=2),
        ((2, 4, 5, 4), (4, 3, 3, 3)),
        space=True,
    ),
    Case(
        "max_pool",
        lambda x, **o: jd.max_pool(x, 3, stride=2, padding=1, rounding="ceil", **o),
        lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
        ((2, 3, 8, 7),),
        space=True,
    ),
    Case(
        "avg_pool",
        lambda x, **o: jd.avg_pool(x, (2, 3), padding=(0, 1), count_include_pad=False, **o),
        lambda x: F.avg_pool2d(x, (2, 3), padding=(0, 1), count_include_pad=False),
        ((2, 3, 8, 7),),
        space=True,
    ),
    Case(
        "max_pool_backward",
        lambda dy, x, y, **o: jd.max_pool_backward(dy, x, y, 3, stride=2, padding=1, **o),
        lambda dy, x, y: gradient(lambda x: F.max_pool2d(x, 3, 2, 1), 0, (x,), dy),
        ((2, 3, 4, 3), (2, 3, 8, 6)),
        space=True,
        prepare=_with_maximum,
    ),
    Case(
        "avg_pool_backward",
        lambda dy, **o: jd.avg_pool_backward(dy, (2, 3, 8, 6), 3, stride=2, padding=1, **o),
        lambda dy: gradient(
            lambda x: F.avg_pool2d(x, 3, 2, 1), 0, (torch.zeros(2, 3, 8, 6, dtype=dy.dtype),), dy
        ),
        ((2, 3, 4, 3),),
        space=True,
    ),
    Case(
        "global_max_pool",
        lambda x, **o: jd.global_max_pool(x, **o),
        lambda x: x.amax((2, 3), keepdim=True),
        ((2, 3, 5, 4),),
        space=True,
    ),
    Case(
        "global_avg_pool",
        lambda x, **o: jd.global_avg_pool(x, **o),
        lambda x: x.mean((2, 3), keepdim=True),
        ((2, 3, 5, 4),),
        space=True,
    ),
    Case("softmax", jd.softmax, lambda x: x.softmax(1), ((3, 5, 2, 2),), (0,), True),
    Case(
        "softmax_backward",
        jd.softmax_backward,
        lambda dy, y: y * (dy - (dy * y).sum(1, keepdim=True)),
        ((3, 5, 2, 2), (3, 5, 2, 2)),
        (0,),
        True,
        prepare=lambda dy, y: (dy, y.softmax(1)),
    ),
    Case("relu", jd.relu, torch.relu, ((3, 5, 2, 2),), (0,), True),
    Case("sigmoid", jd.sigmoid, torch.sigmoid, ((3, 5, 2, 2),), (0,), True),
    Case("tanh", jd.tanh, torch.tanh, ((3, 5, 2, 2),), (0,), True),
    Case(
        "relu_backward",
        jd.relu_backward,
        lambda dy, x: dy * (x > 0),
        ((3, 5, 2, 2),) * 2,
        (0, 1),
        True,
    ),
    Case(
        "sigmoid_backward",
        lambda dy, y, **o: jd.sigmoid_backward(dy, y=y, **o),
        lambda dy, y: dy * y * (1 - y),
        ((3, 5, 2, 2),) * 2,
        (0, 1),
        True,
    ),
    Case(
        "tanh_backward",
        jd.tanh_backward,
        lambda dy, x: dy * (1 - torch.tanh(x) ** 2),
        ((3, 5, 2, 2),) * 2,
        (0, 1),
        True,
    ),
    Case("matmul", jd.matmul, torch.matmul, ((2, 1, 4, 5), (3, 5, 6))),
    Case("add", jd.add, torch.add, ((3, 5, 2, 2), (3, 5, 2, 2)), (0, 1), True),
    Case("add_broadcast", jd.add, torch.add, ((3, 5, 2, 2), (5, 1, 1)), (0,), True),
]
