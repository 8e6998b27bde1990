"""The steps of LSTMs whose weights are bytes and whose states are quantized at each step, for models that say so."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import CpuKernel
from jitdnn.errors import InvalidShape, InvalidType
from jitdnn.handle import Handle, settled_handle
from jitdnn.kernels.cpu.rnn.quantized_steps import (
    GATES,
    MOST_UNITS,
    POINTERS,
    QuantizedSteps,
    pack,
    rows_of,
    trace,
)
from jitdnn.recorders import recorder_here
from jitdnn.rtcg.compile import load
from jitdnn.tensor import TensorDescriptor, allocator, borrow

__all__ = ["MOST_UNITS", "QuantizedSteps", "pack", "quantized_lstm"]


def quantized_lstm(
    gates: Any,
    weights: Any,
    sums: Any,
    scales: Any,
    bias: Any,
    peepholes: Any,
    hx: Any,
    cx: Any,
    lengths: Any,
    *,
    plan: QuantizedSteps,
    steps: int,
    handle: Handle | None = None,
) -> tuple[Any, Any, Any]:
    """Return (y, hn, cn): (`steps`, D, N, H), and twice (D, N, H), float32, on the processor.

    `gates`: (T, N, D * 4 * H), what the inputs give, without biases; T is at least the longest of `lengths` (N,) int32.
    `weights`, `sums`: of `pack`. `scales` and `bias`: (D, 4, padded), `peepholes`: (D, 3, padded), of input, output
    and forget gate. `hx`, `cx`: (D, N, H). y is 0 beyond the end of a sequence, and so are the last states of an empty
    one. Raises InvalidShape and InvalidType for what does not fit.
    """
    handle = settled_handle(handle)
    given = {
        "gates": gates, "weights": weights, "sums": sums, "scales": scales, "bias": bias, "peepholes": peepholes,
        "hx": hx, "cx": cx, "lengths": lengths,
    }  # fmt: skip
    arrays = {name: borrow(array, False, name) for name, array in given.items()}
    directions, hidden, padded = len(plan.backward), plan.hidden, plan.padded
    batch = arrays["lengths"].descriptor.size
    shapes = {
        "gates": (arrays["gates"].descriptor.shape[0], batch, directions * GATES * hidden),
        "sums": (directions, GATES, padded), "scales": (directions, GATES, padded),
        "bias": (directions, GATES, padded), "peepholes": (directions, 3, padded), "hx": (directions, batch, hidden),
        "cx": (directions, batch, hidden), "lengths": (batch,),
    }  # fmt: skip
    kinds = {"weights": "i8", "sums": "i32", "lengths": "i32"}
    for name, array in arrays.items():
        tensor = array.descriptor
        if tensor.dtype != kinds.get(name, "f32"):
            raise InvalidType(f"{name} is {tensor.dtype}: it must be {kinds.get(name, 'f32')}")
        if name in shapes and tensor.shape != shapes[name]:
            raise InvalidShape(f"{name} has shape {tensor.shape}: it must be {shapes[name]}")
        is_free = name in ("gates", "hx", "cx")
        if not is_free and tensor.strides != TensorDescriptor.packed(tensor.shape, tensor.dtype).strides:
            raise InvalidShape(f"{name} has strides {tensor.strides}: it must be packed, row after row")
    x, h, c = (arrays[name].descriptor for name in ("gates", "hx", "cx"))
    if x.strides[-1] != 1:
        raise InvalidShape(f"gates have strides {x.strides}: those of a row must lie side by side")
    outputs = [
        allocator("numpy", TensorDescriptor.packed(shape, "f32"))()
        for shape in ((steps, directions, batch, hidden), *((directions, batch, hidden),) * 2)
    ]
    if batch and hidden:
        rows = rows_of(batch)
        device = handle.device
        assert isinstance(device, CpuDevice)
        library = load(
            "quantized_steps", f"{plan.key} {rows}", device.isa, lambda module: trace(module, plan, rows)
        )
        integers = (steps, batch, *x.strides[:2], *h.strides, *c.strides)
        kernel = CpuKernel(library, [("steps", directions)], POINTERS, device.threads, integers, None, 0)
        pointers = [array.pointer for array in (*arrays.values(), *(array for _, array in outputs))]
        recorder = recorder_here()
        if recorder is not None and recorder.takes(pointers):
            recorder.keep(kernel)
            kernel(None, pointers, 1.0, 0.0, 0)
        elif handle.launches:
            kernel(None, pointers, 1.0, 0.0, 0)
    y, hn, cn = (np.asarray(owner) for owner, _ in outputs)
    return y, hn, cn
