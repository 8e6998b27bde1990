"""Single quantized convolutions against onnxruntime's QLinearConv on the CPU: layers of ResNet-50 and of MobileNet v2.

    python benchmarks/int8_layers.py --threads 1

uint8 images by int8 filters with a scale and a bias for each channel, results uint8, all with channels last: for
onnxruntime by com.microsoft's QLinearConv with `channels_last`. A layer stands eight times in each model, with filters
of its own each time, so that what a run costs besides its kernels is divided by eight: our launches are recorded ahead
and replayed, onnxruntime's inputs and results are bound ahead. Results must agree within one step first; then both
sides run in turns in one process, and the least time of each counts. `peak` is the share of what vpdpbusd can do that
the products take.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import jitdnn as jd
from jitdnn.devices.cpu import host
from jitdnn.devices.launch_list import Recorder

Array = np.ndarray[Any, Any]

_COPIES = 8
_PEAKS = 8  # measurements of what vpdpbusd can do, of which the best counts


class Layer(NamedTuple):
    """A convolution of an image [extent, extent, channels] with padding that keeps the extent at stride 1."""

    channels: int
    results: int
    taps: int
    extent: int
    stride: int = 1
    groups: int = 1

    @property
    def flops(self) -> int:
        out = -(-self.extent // self.stride)
        return 2 * out * out * self.results * self.channels // self.groups * self.taps**2

    def __str__(self) -> str:
        kind = f"depthwise {self.channels}" if self.groups > 1 else f"{self.channels} to {self.results}"
        stride = f", stride {self.stride}" if self.stride > 1 else ""
        return f"{self.taps}x{self.taps} {kind} on {self.extent}x{self.extent}{stride}"


LAYERS = (
    Layer(256, 64, 1, 28),
    Layer(64, 64, 3, 28),
    Layer(64, 256, 1, 28),
    Layer(32, 192, 1, 28),
    Layer(192, 192, 3, 28, groups=192),
    Layer(192, 32, 1, 28),
    Layer(256, 256, 3, 14),
    Layer(512, 512, 3, 7),
    Layer(1024, 256, 1, 14),
    Layer(3, 64, 7, 224, stride=2),
    Layer(96, 96, 3, 112, stride=2, groups=96),
    Layer(960, 960, 3, 7, groups=960),
)


class _Case:
    """Operands of the copies of a layer: filters as (K, C/groups, taps), scales of the sums, biases as integers."""

    def __init__(self, layer: Layer) -> None:
        rng, depth = np.random.default_rng(0), layer.channels // layer.groups
        self.layer = layer
        self.x = rng.integers(0, 256, (1, layer.extent, layer.extent, layer.channels), np.uint8)
        shape = _COPIES, layer.results, depth, layer.taps, layer.taps
        self.w = rng.integers(-127, 128, shape).astype(np.int8)
        spread = 9000 * np.sqrt(depth * layer.taps**2)
        self.scale = (rng.uniform(0.5, 2, (_COPIES, layer.results)) * 60 / spread).astype(np.float32)
        self.bias = rng.integers(-int(spread), int(spread), (_COPIES, layer.results), np.int32)

    def ours(self) -> tuple[Callable[[], None], list[Array]]:
        """A run of all copies, and the results that it writes."""
        layer, extent = self.layer, -(-self.layer.extent // self.layer.stride)
        recorder = Recorder()
        found = [np.zeros((1, extent, extent, layer.results), np.uint8) for _ in range(_COPIES)]
        for array in (self.x, *found):
            recorder.memory(array.ctypes.data, array.nbytes)
        addresses = [array.ctypes.data for array in (self.x, *found)]
        keep: list[Any] = []
        with recorder:
            for w, scale, bias, y in zip(self.w, self.scale, self.bias, found, strict=True):
                last = np.ascontiguousarray(np.moveaxis(w, 1, -1))
                shift = (bias * scale.astype(np.float64) + 128).astype(np.float32)
                for array in (last, scale, shift):
                    recorder.constant(array.ctypes.data, array.nbytes, array)
                kept = jd.KeptFilter(last)
                keep.append((kept, shift))
                jd.conv(
                    self.x, kept, scale, shift, epilogue=_requantized, stride=layer.stride, groups=layer.groups,
                    padding=layer.taps // 2, layout="NHWC", out=y,
                )  # fmt: skip
        launches = recorder.finish()
        return lambda: launches.run(addresses), found

    def theirs(self, threads: int) -> tuple[Callable[[], None], Callable[[], list[Array]]]:
        """The same by onnxruntime; its results are fetched by a call."""
        layer, extent = self.layer, -(-self.layer.extent // self.layer.stride)
        weights, nodes, outputs = [], [], []
        pad = layer.taps // 2

        def constant(name: str, array: Array) -> str:
            weights.append(numpy_helper.from_array(array, name))
            return name

        one = constant("one", np.array(1, np.float32)), constant("zero", np.array(0, np.uint8))
        to = constant("to", np.array(128, np.uint8))
        after = (extent - 1) * layer.stride + layer.taps - layer.extent - pad
        for i in range(_COPIES):
            filters = constant(f"w{i}", self.w[i]), constant(f"s{i}", self.scale[i])
            zeros = constant(f"z{i}", np.zeros(layer.results, np.int8))
            bias = constant(f"b{i}", self.bias[i])
            node = helper.make_node(
                "QLinearConv", ["x", *one, *filters, zeros, "one", to, bias], [f"y{i}"], domain="com.microsoft",
                channels_last=1, group=layer.groups, kernel_shape=[layer.taps] * 2, strides=[layer.stride] * 2,
                pads=[pad, pad, after, after],
            )  # fmt: skip
            nodes.append(node)
            shape = 1, extent, extent, layer.results
            outputs.append(helper.make_tensor_value_info(f"y{i}", TensorProto.UINT8, shape))
        x = helper.make_tensor_value_info("x", TensorProto.UINT8, self.x.shape)
        graph = helper.make_graph(nodes, "layer", [x], outputs, weights)
        sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=sets, ir_version=8)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(self.x))
        for output in outputs:
            binding.bind_output(output.name)
        return lambda: session.run_with_iobinding(binding), binding.copy_outputs_to_cpu


def _requantized(total: Any, scale: Any, shift: Any) -> Any:
    return total * scale + shift


def main() -> None:
    """A line for each layer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of layers")
    chosen = parser.parse_args()
    with jd.settings(threads=chosen.threads):
        peak = max(host(chosen.threads).measure_peak("i8") for _ in range(_PEAKS))
        for number, layer in enumerate(LAYERS):
            if chosen.only and number not in chosen.only:
                continue
            case = _Case(layer)
            (ours, found), (theirs, fetch) = case.ours(), case.theirs(chosen.threads)
            ours(), theirs()
            for y, expected in zip(found, fetch(), strict=True):
                apart = int(np.abs(y.astype(int) - expected).max())
                if apart > 1:
                    raise SystemExit(f"{layer}: results are {apart} steps apart")
            best = [float("inf")] * 2
            for _ in range(chosen.turns):
                for side, run in enumerate((ours, theirs)):
                    begin = time.perf_counter()
                    run()
                    best[side] = min(best[side], (time.perf_counter() - begin) / _COPIES)
            sys.stdout.write(
                f"{layer!s:42} {best[0] * 1e6:8.1f} us, {layer.flops / best[0] / peak:4.0%} of peak; onnxruntime "
                f"{best[1] * 1e6:8.1f} us: {best[1] / best[0]:.2f} of its speed\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
