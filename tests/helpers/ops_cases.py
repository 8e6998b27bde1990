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
    `takes_integers`: whether integers are moved, too.
    """

    name: str
    run: Callable[..., Any]
    expected: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]
    safe_in_place: tuple[int, ...] = ()
    space: bool = False
    prepare: Callable[..., Tensors] = lambda *tensors: tensors
    takes_integers: bool = False

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


def _lrn(x: torch.Tensor) -> torch.Tensor:
    return F.local_response_norm(x, 5, 0.5, 0.75, 2.0)


def _divisive(x: torch.Tensor) -> torch.Tensor:
    """Divided by the deviation from 0 within windows of 3x3 in the channel."""
    return x * (2.0 + 0.5 * F.avg_pool2d(x * x, 3, 1, 1)) ** -0.75


def _resize(x: torch.Tensor) -> torch.Tensor:
    return F.interpolate(x, (9, 4), mode="bilinear", align_corners=False)


def _affine(theta: torch.Tensor) -> torch.Tensor:
    return F.affine_grid(theta, [3, 1, 4, 5], align_corners=False)


def _batch_norm(
    x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, mean: torch.Tensor, var: torch.Tensor
) -> Any:
    return F.batch_norm(x, mean, var, w, b, eps=1e-3)


def _with_maximum(dy: torch.Tensor, x: torch.Tensor) -> Tensors:
    return dy, x, F.max_pool2d(x, 3, 2, 1)


# what takes whole numbers beside the arrays
PLACES = np.array([[1, 5, 0], [5, 2, 1]])
UNPOOLED = np.array([[[0, 3], [1, 4], [0, 2]], [[1, 2], [4, 0], [3, 1]]])
CLASSES = np.array([[0, 4, 2, -100], [1, 1, 3, 0], [2, 0, 4, 1]])

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
    Case("elu", lambda x, **o: jd.elu(x, 0.5, **o), lambda x: F.elu(x, 0.5), ((3, 5, 2, 2),), (0,), True),
    Case("gelu", jd.gelu, F.gelu, ((3, 5, 2, 2),), (0,), True),
    Case(
        "swish_backward",
        jd.swish_backward,
        lambda dy, x: gradient(F.silu, 0, (x,), dy),
        ((3, 5, 2, 2),) * 2,
        (0, 1),
        True,
    ),
    Case("prelu", jd.prelu, F.prelu, ((3, 5, 2, 2), (5,)), (0,), True),
    Case("multiply", jd.multiply, torch.mul, ((3, 5, 2, 2), (3, 5, 2, 2)), (0, 1), True),
    Case(
        "op_tensor",
        lambda a, b, **o: jd.op_tensor(a, b, "max", 0.5, -2.0, **o),
        lambda a, b: torch.maximum(0.5 * a, -2.0 * b),
        ((3, 5, 2, 2), (5, 1, 1)),
        (0,),
        True,
    ),
    Case(
        "batch_norm_inference",
        lambda x, w, b, mean, var, **o: jd.batch_norm_inference(x, w, b, mean, var, epsilon=1e-3, **o),
        _batch_norm,
        ((3, 5, 2, 2), (5,), (5,), (5,), (5,)),
        (0,),
        True,
        lambda x, w, b, mean, var: (x, w, b, mean, var * var + 0.5),
    ),
    Case(
        "layer_norm",
        jd.layer_norm,
        lambda x, w, b: F.layer_norm(x, (7,), w, b),
        ((3, 5, 7), (7,), (7,)),
        (0,),
    ),
    Case("rms_norm", jd.rms_norm, lambda x, w: F.rms_norm(x, (7,), w, 1e-5), ((3, 5, 7), (7,)), (0,)),
    Case(
        "group_norm",
        lambda x, w, b, **o: jd.group_norm(x, 2, w, b, **o),
        lambda x, w, b: F.group_norm(x, 2, w, b),
        ((3, 6, 3, 2), (6,), (6,)),
        (0,),
        True,
    ),
    Case("lrn", lambda x, **o: jd.lrn(x, 5, 0.5, **o), _lrn, ((2, 7, 3, 2),), space=True),
    Case(
        "lrn_backward",
        lambda dy, x, **o: jd.lrn_backward(dy, x, 5, 0.5, **o),
        lambda dy, x: gradient(_lrn, 0, (x,), dy),
        ((2, 7, 3, 2),) * 2,
        space=True,
    ),
    Case(
        "divisive_norm",
        lambda x, **o: jd.divisive_norm(x, None, 3, 0.5, **o),
        _divisive,
        ((2, 3, 5, 4),),
        space=True,
    ),
    Case(
        "reduce",
        lambda x, **o: jd.reduce(x, "norm2", (0, 2), **o),
        lambda x: x.norm(dim=(0, 2)),
        ((3, 5, 7),),
    ),
    Case(
        "adaptive_avg_pool",
        lambda x, **o: jd.adaptive_avg_pool(x, (3, 2), **o),
        lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
        ((2, 3, 7, 5),),
        space=True,
    ),
    Case("resize", lambda x, **o: jd.resize(x, (9, 4), **o), _resize, ((2, 3, 5, 6),), space=True),
    Case(
        "resize_backward",
        lambda dy, **o: jd.resize_backward(dy, (2, 3, 5, 6), **o),
        lambda dy: gradient(_resize, 0, (torch.zeros(2, 3, 5, 6, dtype=dy.dtype),), dy),
        ((2, 3, 9, 4),),
        space=True,
    ),
    Case("affine_grid", lambda t, **o: jd.affine_grid(t, (4, 5), **o), _affine, ((3, 2, 3),)),
    Case(
        "grid_sample",
        jd.grid_sample,
        lambda x, grid: F.grid_sample(x, grid, align_corners=False),
        ((2, 3, 5, 6), (2, 4, 3, 2)),
        space=True,
    ),
    Case(
        "attention",
        lambda q, k, v, **o: jd.attention(q, k, v, causal=True, past=2, **o),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.ones(5, 7, dtype=torch.bool).tril(2)),
        ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)),
    ),
    Case(
        "embedding",
        lambda table, **o: jd.embedding(PLACES, table, **o),
        lambda table: table[torch.from_numpy(PLACES)],
        ((6, 5),),
    ),
    Case(
        "max_unpool",
        lambda x, **o: jd.max_unpool(x, UNPOOLED, 5, **o),
        lambda x: F.max_unpool1d(x, torch.from_numpy(UNPOOLED), 2, output_size=(5,)),
        ((2, 3, 2),),
        space=True,
    ),
    Case(
        "cross_entropy",
        lambda x, **o: jd.cross_entropy(x, CLASSES, label_smoothing=0.25, **o),
        lambda x: F.cross_entropy(x, torch.from_numpy(CLASSES), label_smoothing=0.25).reshape(1),
        ((3, 5, 4),),
    ),
    Case(
        "transform",
        lambda x, **o: jd.transform(x, pad=(0, 0, (1, 2), 1), **o),
        lambda x: F.pad(x, (1, 1, 1, 2)),
        ((2, 3, 4, 3),),
        space=True,
        takes_integers=True,
    ),
    Case(
        "concat",
        lambda a, b, **o: jd.concat([a, b], **o),
        lambda a, b: torch.cat([a, b], 1),
        ((2, 3, 4), (2, 5, 4)),
        space=True,
        takes_integers=True,
    ),
]
