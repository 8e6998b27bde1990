"""A trained net as a program of torch.export: the graph that is written for ONNX, by PyTorch's own operators.

`torch.export.load("net.pt2").module()` then answers wherever PyTorch is, without jitdnn; the program takes any number
of images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jitdnn.errors import InvalidArgument, NotSupported, needed

Array = NDArray[Any]
_NO_TORCH: Final = "programs of torch.export are written with PyTorch: pip install 'jitdnn[torch]'"


def to_program(model: Any, images: Array) -> Any:
    """The `ExportedProgram` of a model as `onnx_export.to_onnx` writes it, for images (N, C, H, W) of any number (its
    own number if it takes no other). Raises NotSupported without PyTorch."""
    with needed(_NO_TORCH):
        import torch
    module = _module(model)
    given = torch.from_numpy(np.ascontiguousarray(images, np.float32))
    dims = model.graph.input[0].type.tensor_type.shape.dim
    shapes = ({0: torch.export.Dim("images", min=1)},) if dims[0].dim_param else None
    with torch.no_grad():
        return torch.export.export(module.eval(), (given,), dynamic_shapes=shapes)


def write_program(path: Path, model: Any, images: Array, expected: Array, facts: Mapping[str, str]) -> float:
    """Write the program to a file, read it back, run it on images, and return how far its answers are from `expected`;
    `facts` are in the archive's `extra/facts.json`."""
    import json

    import torch

    program = to_program(model, images[:2] if len(images) > 1 else images)
    with open(path, "wb") as file:
        torch.export.save(
            program, file, extra_files={"facts.json": json.dumps(dict(facts), ensure_ascii=False)}
        )
    with open(path, "rb") as file, torch.no_grad():
        found = torch.export.load(file).module()(torch.from_numpy(images.astype(np.float32)))
    got = found.numpy()
    if got.shape != expected.shape:
        return math.inf
    return float(np.abs(got.astype(np.float64) - expected).max(initial=0.0))


def _module(model: Any) -> Any:
    """The model as a module of PyTorch, with its constants as buffers."""
    import onnx
    import torch

    graph = model.graph
    held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    numbers = {name: f"constant_{k}" for k, name in enumerate(held)}
    steps = [
        (node.op_type, list(node.input), list(node.output), _attributes(onnx, node)) for node in graph.node
    ]
    scales = {inputs[2] for operator, inputs, *_ in steps if operator == "Resize"}
    fixed = {  # shapes, axes and scales are part of the program
        name: array.reshape(-1).tolist()
        for name, array in held.items()
        if array.dtype == np.int64 or name in scales
    }
    forms = _forms(torch)
    for operator, *_ in steps:
        if operator not in forms:
            raise NotSupported(f"{operator} of ONNX has no form in programs of torch.export here")
    outputs = [each.name for each in graph.output]

    class Exported(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for name, values in held.items():
                if name not in fixed:
                    self.register_buffer(numbers[name], torch.from_numpy(np.array(values)))

        def forward(self, images: Any) -> Any:
            values: dict[str, Any] = {graph.input[0].name: images, "": None}
            values |= {name: fixed[name] if name in fixed else getattr(self, numbers[name]) for name in held}
            for operator, inputs, results, attributes in steps:
                found = forms[operator]([values[name] for name in inputs], attributes)
                values.update(zip(results, found if isinstance(found, tuple) else (found,), strict=True))
            told = [values[name] for name in outputs]
            return told[0] if len(told) == 1 else tuple(told)

    return Exported()


def _attributes(onnx: Any, node: Any) -> dict[str, Any]:
    found = {}
    for each in node.attribute:
        value = onnx.helper.get_attribute_value(each)
        found[each.name] = value.decode() if isinstance(value, bytes) else value
    return found


def _forms(torch: Any) -> dict[str, Callable[[list[Any], dict[str, Any]], Any]]:
    """What each operator that `onnx_layers` writes is in PyTorch: of its inputs and attributes."""
    functional = torch.nn.functional

    def padded(x: Any, pads: Sequence[int], value: float) -> Any:
        top, left, bottom, right = pads
        return functional.pad(x, (left, right, top, bottom), value=value) if any(pads) else x

    def conv(v: list[Any], a: dict[str, Any]) -> Any:
        bias = v[2] if len(v) > 2 else None
        return functional.conv2d(v[0], v[1], bias, a["strides"], a["pads"][:2], a["dilations"], a["group"])

    def transposed(v: list[Any], a: dict[str, Any]) -> Any:
        bias = v[2] if len(v) > 2 else None
        return functional.conv_transpose2d(
            v[0], v[1], bias, a["strides"], a["pads"][:2], 0, a["group"], a["dilations"]
        )

    def gemm(v: list[Any], a: dict[str, Any]) -> Any:
        return functional.linear(v[0], v[1] if a.get("transB") else v[1].T, v[2] if len(v) > 2 else None)

    def reshape(v: list[Any], a: dict[str, Any]) -> Any:
        return v[0].reshape([v[0].shape[axis] if extent == 0 else extent for axis, extent in enumerate(v[1])])

    def max_pool(v: list[Any], a: dict[str, Any]) -> Any:
        kernel, strides, pads = a["kernel_shape"], a["strides"], a["pads"]
        axes = list(zip(v[0].shape[2:], kernel, strides, pads[:2], pads[2:], strict=True))
        if all(
            2 * p <= k and _rounded_up(i, k, s, p) == (i + p + end - k) // s + 1 for i, k, s, p, end in axes
        ):
            return functional.max_pool2d(v[0], kernel, strides, pads[:2], ceil_mode=True)
        return functional.max_pool2d(padded(v[0], pads, -math.inf), kernel, strides)

    def mean_pool(v: list[Any], a: dict[str, Any]) -> Any:
        x = padded(v[0], a.get("pads", (0, 0, 0, 0)), 0.0)
        return functional.avg_pool2d(x, a["kernel_shape"], a.get("strides", (1, 1)))

    def reduced(how: Callable[[Any, list[int], bool], Any]) -> Callable[[list[Any], dict[str, Any]], Any]:
        return lambda v, a: how(v[0], v[1], bool(a.get("keepdims", 1)))

    def concat(v: list[Any], a: dict[str, Any]) -> Any:
        if isinstance(v[0], list):  # of a shape
            return [each for part in v for each in part]
        return torch.cat(v, a["axis"])

    def cut(v: list[Any], a: dict[str, Any]) -> Any:
        found = v[0]
        for start, stop, axis in zip(v[1], v[2], v[3], strict=True):
            found = found.narrow(axis, start, stop - start)
        return found

    def resize(v: list[Any], a: dict[str, Any]) -> Any:
        if a["mode"] == "nearest":
            return v[0].repeat_interleave(int(v[2][2]), 2).repeat_interleave(int(v[2][3]), 3)
        return functional.interpolate(v[0], size=v[3][2:], mode="bilinear", align_corners=True)

    def unsqueeze(v: list[Any], a: dict[str, Any]) -> Any:
        found = v[0]
        for axis in sorted(v[1]):
            found = found.unsqueeze(axis)
        return found

    def norm(v: list[Any], a: dict[str, Any]) -> Any:
        return functional.batch_norm(v[0], v[3], v[4], v[1], v[2], False, 0.0, a.get("epsilon", 1e-5))

    def most(v: list[Any], a: dict[str, Any]) -> Any:
        found = v[0]
        for each in v[1:]:
            found = torch.maximum(found, each)
        return found

    def lrn(v: list[Any], a: dict[str, Any]) -> Any:
        return functional.local_response_norm(v[0], a["size"], a["alpha"], a["beta"], a["bias"])

    def prelu(v: list[Any], a: dict[str, Any]) -> Any:
        return torch.where(v[0] < 0, v[0] * v[1], v[0])

    return {
        "Conv": conv, "ConvTranspose": transposed, "Gemm": gemm, "MatMul": lambda v, a: v[0] @ v[1],
        "Flatten": lambda v, a: v[0].flatten(1), "Reshape": reshape, "Identity": lambda v, a: v[0],
        "Add": lambda v, a: v[0] + v[1], "Sub": lambda v, a: v[0] - v[1], "Mul": lambda v, a: v[0] * v[1],
        "Div": lambda v, a: v[0] / v[1], "Pow": lambda v, a: v[0] ** v[1], "Sum": lambda v, a: sum(v[1:], v[0]),
        "Max": most, "BatchNormalization": norm, "LRN": lrn, "PRelu": prelu,
        "Relu": lambda v, a: v[0].relu(), "Sigmoid": lambda v, a: v[0].sigmoid(), "Tanh": lambda v, a: v[0].tanh(),
        "LeakyRelu": lambda v, a: functional.leaky_relu(v[0], a["alpha"]),
        "Elu": lambda v, a: functional.elu(v[0], a["alpha"]), "Abs": lambda v, a: v[0].abs(),
        "Softplus": lambda v, a: functional.softplus(v[0]), "Exp": lambda v, a: v[0].exp(),
        "Log": lambda v, a: v[0].log(), "Sqrt": lambda v, a: v[0].sqrt(),
        "Clip": lambda v, a: torch.minimum(torch.maximum(v[0], v[1]), v[2]),
        "Greater": lambda v, a: v[0] > v[1], "Cast": lambda v, a: v[0].float(),
        "MaxPool": max_pool, "AveragePool": mean_pool,
        "GlobalAveragePool": lambda v, a: v[0].mean((2, 3), keepdim=True),
        "ReduceMean": reduced(lambda x, axes, keep: x.mean(axes, keepdim=keep)),
        "ReduceSum": reduced(lambda x, axes, keep: x.sum(axes, keepdim=keep)),
        "ReduceL1": reduced(lambda x, axes, keep: x.abs().sum(axes, keepdim=keep)),
        "ReduceSumSquare": reduced(lambda x, axes, keep: x.square().sum(axes, keepdim=keep)),
        "Softmax": lambda v, a: v[0].softmax(a.get("axis", -1)), "Concat": concat, "Slice": cut,
        "Split": lambda v, a: tuple(v[0].split(v[1], a["axis"])), "Tile": lambda v, a: v[0].repeat(v[1]),
        "Transpose": lambda v, a: v[0].permute(a["perm"]), "Unsqueeze": unsqueeze, "Resize": resize,
        "Shape": lambda v, a: list(v[0].shape[a.get("start", 0) : a.get("end")]),
    }  # fmt: skip


def _rounded_up(extent: int, kernel: int, stride: int, pad: int) -> int:
    """Places of a window along an axis with ceil_mode: none begins in the padding at the end."""
    count = -(-(extent + 2 * pad - kernel) // stride) + 1
    return count - 1 if (count - 1) * stride >= extent + pad else count


def check_distance(distance: float, allowed: float) -> None:
    """Raises InvalidArgument for answers that are too far off."""
    if not distance <= allowed:
        raise InvalidArgument(
            f"the program of torch.export gives answers that differ by {distance:.3g} from the net's, {allowed:.3g} is "
            "allowed: it is not written"
        )
