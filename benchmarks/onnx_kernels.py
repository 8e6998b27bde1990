"""One node of ONNX at a time, in the sizes of real models: ours against onnxruntime, in turns.

    python benchmarks/onnx_kernels.py [--threads 1] [--rounds 40] [WORD ...]

Each row: the best of the rounds in microseconds of our public function with `out`, of its launches alone, made again
one by one from Python (a recorded plan takes less for each: `onnx_models.py` measures what), of
onnxruntime with bound inputs and outputs and the weights as initializers, theirs over ours,
the floor (multiply-adds at the peak or bytes of the tensors at the memory's rate, whichever is longer), and how many
threads our process keeps busy. Words choose the cases whose names contain one of them. The results are compared first.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import jitdnn as jd
from jitdnn.devices import threads as native

PEAK = 240e9  # of one thread, floating-point operations a second
RATE = 40e9  # bytes a second
Float = np.ndarray[Any, np.dtype[np.float32]]
rng = np.random.default_rng(0)


@dataclass
class Case:
    """`ours(*inputs)` returns the call to time and its result; the model has `constants` as initializers."""

    name: str
    op: str
    inputs: Sequence[Float]
    constants: Sequence[Any]
    attributes: dict[str, Any]
    ours: Callable[[], tuple[Callable[[], Any], Any]]
    flops: float = 0.0
    result: tuple[int, ...] = ()
    order: Sequence[str] = field(default_factory=list)  # names of the node's inputs, "" for none


def _some(*shape: int) -> Float:
    return rng.standard_normal(shape).astype(np.float32)


def _out(function: Callable[..., Any], *arrays: Any, **arguments: Any) -> Callable[[], tuple[Any, Any]]:
    def make() -> tuple[Callable[[], Any], Any]:
        out = function(*arrays, **arguments)
        return lambda: function(*arrays, **arguments, out=out), out

    return make


def matmuls() -> Iterator[Case]:
    for m, k, n in [
        (37, 3072, 1024), (37, 1024, 3072), (37, 512, 512), (1, 512, 1280), (1, 128, 512), (1, 2048, 1000),
            (1, 4096, 4096), (4, 256, 1024),
        (40, 120, 6625), (16, 512, 1280), (3, 512, 1280), (64, 768, 768), (300, 256, 1), (1000, 64, 4),
    ]:  # fmt: skip
        a, b = _some(m, k), _some(k, n)
        yield Case(
            f"matmul {m}x{k}x{n}", "MatMul", [a], [b], {}, _out(jd.matmul, a, b), 2 * m * k * n, (m, n)
        )
        kept = _out(jd.matmul, a, jd.KeptFilter(b))
        yield Case(f"matmul {m}x{k}x{n}, kept", "MatMul", [a], [b], {}, kept, 2 * m * k * n, (m, n))
    for m, k, n in [(1, 512, 1280), (1, 2048, 1000), (1, 128, 512), (37, 3072, 1024), (8, 512, 1000)]:
        a, b = _some(m, k), _some(n, k)
        yield Case(
            f"matmul {m}x{k}x{n} transposed weight", "Gemm", [a], [b], {"transB": 1}, _out(jd.matmul, a, b.T),
            2 * m * k * n, (m, n),
        )  # fmt: skip
    for g, m, k, n in [(8, 37, 64, 37), (8, 37, 37, 64), (8, 40, 15, 40), (8, 1, 64, 40), (12, 128, 64, 128)]:
        a, b = _some(g, m, k), _some(g, k, n)
        yield Case(
            f"matmul {g} of {m}x{k}x{n}", "MatMul", [a, b], [], {}, _out(jd.matmul, a, b), 2 * g * m * k * n,
                (g, m, n)
        )  # fmt: skip


def convolutions() -> Iterator[Case]:
    for n, c, h, w, k, r, stride, groups in [
        (1, 512, 1, 1, 1280, 1, 1, 1), (1, 960, 1, 1, 240, 1, 1, 1), (1, 240, 1, 1, 960, 1, 1, 1), (1, 24, 1,
            1, 96, 1, 1, 1), (8, 512, 1, 1, 1280, 1, 1, 1),
        (1, 48, 48, 320, 96, 1, 1, 1), (1, 96, 24, 320, 96, 1, 1, 1), (1, 192, 12, 320, 192, 1, 1, 1), (1,
            480, 3, 80, 480, 1, 1, 1), (1, 16, 120, 160, 64, 1, 1, 1),
        (1, 192, 12, 320, 192, 5, 1, 192), (1, 96, 24, 320, 96, 5, 2, 96), (1, 384, 6, 80, 384, 5, 1, 384),
            (1, 48, 48, 160, 48, 3, 1, 48), (1, 576, 14, 14, 576, 5, 1, 576),
        (1, 3, 48, 320, 16, 3, 2, 1), (1, 3, 224, 224, 32, 3, 2, 1), (1, 3, 480, 640, 16, 3, 2, 1),
        (1, 512, 28, 28, 512, 3, 1, 1), (1, 512, 14, 14, 512, 3, 1, 1), (1, 256, 28, 28, 256, 3, 1, 1), (1,
            512, 7, 7, 512, 3, 1, 1),
    ]:  # fmt: skip
        x, weight, p = _some(n, c, h, w), _some(k, c // groups, r, r) / 8, (r - 1) // 2
        shape = (n, k, (h + 2 * p - r) // stride + 1, (w + 2 * p - r) // stride + 1)
        flops = 2 * float(np.prod(shape)) * c // groups * r * r
        attributes = {"pads": [p] * 4, "strides": [stride] * 2, "group": groups}
        arguments = {"padding": p, "stride": stride, "groups": groups}
        name = f"conv {r}x{r} {n}x{c}x{h}x{w} to {k}" + (f" stride {stride}" if stride > 1 else "")
        name += " depthwise" if groups > 1 else ""
        yield Case(
            name, "Conv", [x], [weight], attributes, _out(jd.conv, x, weight, **arguments), flops, shape
        )

        def kept(
            x: Float = x, weight: Float = weight, arguments: dict[str, int] = arguments
        ) -> tuple[Any, Any]:
            keeper = jd.KeptFilter(weight)
            out = jd.conv(x, keeper, **arguments)
            return lambda: jd.conv(x, keeper, **arguments, out=out), out

        yield Case(f"{name}, kept", "Conv", [x], [weight], attributes, kept, flops, shape)
        last, filters = (np.ascontiguousarray(v.transpose(0, 2, 3, 1)) for v in (x, weight))

        def channels_last(
            x: Float = last, weight: Float = filters, arguments: dict[str, int] = arguments
        ) -> tuple[Any, Any]:
            keeper = jd.KeptFilter(weight)
            out = jd.conv(x, keeper, layout="NHWC", **arguments)
            return lambda: jd.conv(x, keeper, layout="NHWC", **arguments, out=out), out.transpose(0, 3, 1, 2)

        yield Case(f"{name}, kept nhwc", "Conv", [x], [weight], attributes, channels_last, flops, shape)
    for c, length, r, groups in [
        (64, 500, 9, 64),
        (128, 1000, 31, 128),
        (512, 200, 31, 512),
        (64, 500, 9, 1),
    ]:
        x, weight = _some(1, c, length), _some(c, c // groups, r) / 8
        p = r // 2
        flops = 2.0 * c * length * r * c // groups
        attributes = {"pads": [p, p], "group": groups}
        name = f"conv1d {c}x{length} of {r} taps" + (" depthwise" if groups > 1 else "")
        ours = _out(jd.conv, x, weight, padding=p, groups=groups)
        yield Case(name, "Conv", [x], [weight], attributes, ours, flops, (1, c, length))
    for c, k, h, w in [(24, 24, 120, 120), (64, 32, 56, 56), (96, 24, 160, 160)]:
        x, weight = _some(1, c, h, w), _some(c, k, 2, 2) / 8
        shape = (1, k, 2 * h, 2 * w)
        ours = _out(jd.conv_transpose, x, weight, stride=2)
        yield Case(
            f"conv transposed 2x2 stride 2 {c}x{h}x{w} to {k}", "ConvTranspose", [x], [weight], {"strides": [2, 2]},
            ours, 8.0 * c * k * h * w, shape,
        )  # fmt: skip


def pools() -> Iterator[Case]:
    for c, h, w, r, stride in [
        (256, 13, 13, 5, 1), (256, 13, 13, 9, 1), (256, 13, 13, 13, 1), (384, 20, 20, 5, 1), (512, 13, 13, 2,
            2), (64, 112, 112, 3, 2), (256, 13, 13, 3, 1),
        (32, 46, 46, 3, 2), (64, 10, 10, 3, 2), (192, 28, 28, 3, 1),
    ]:  # fmt: skip
        x, p = _some(1, c, h, w), (r - 1) // 2
        shape = (1, c, (h + 2 * p - r) // stride + 1, (w + 2 * p - r) // stride + 1)
        attributes = {"kernel_shape": [r, r], "strides": [stride] * 2, "pads": [p] * 4}
        name = f"{r}x{r} stride {stride} {c}x{h}x{w}"
        for op, function in (("MaxPool", jd.max_pool), ("AveragePool", jd.avg_pool)):
            more = {} if op == "MaxPool" else {"count_include_pad": False}
            yield Case(
                f"{op} {name}", op, [x], [], attributes, _out(function, x, r, stride, p, **more), 0.0, shape
            )
    for c, h, w in [(512, 7, 7), (192, 12, 320)]:
        x = _some(1, c, h, w)
        ours = _out(jd.global_avg_pool, x)
        yield Case(
            f"GlobalAveragePool {c}x{h}x{w}", "GlobalAveragePool", [x], [], {}, ours, 0.0, (1, c, 1, 1)
        )


def movement() -> Iterator[Case]:
    for shape, axes in [
        ((1, 96, 80, 80), (0, 2, 3, 1)), ((1, 80, 80, 96), (0, 3, 1, 2)), ((37, 8, 64), (1, 0, 2)), ((1, 40,
            8, 3, 15), (3, 0, 2, 1, 4)), ((1, 40, 64, 8), (0, 2, 3, 1)),
        ((1, 512, 1024), (0, 2, 1)), ((1, 85, 3549), (0, 2, 1)),
    ]:  # fmt: skip
        x = _some(*shape)
        view = x.transpose(axes)
        out = np.empty(view.shape, np.float32)
        yield Case(
            f"Transpose {shape} to {axes}", "Transpose", [x], [], {"perm": list(axes)},
            lambda view=view, out=out: (lambda: jd.transform(view, out=out), out), 0.0, view.shape,
        )  # fmt: skip
    parts = [_some(1, 64, 52, 52) for _ in range(2)]
    yield Case("Concat 2 of 64x52x52", "Concat", parts, [], {"axis": 1}, _out(lambda *a,
        out=None: jd.concat(a, 1, out=out), *parts), 0.0, (1, 128, 52, 52))  # fmt: skip
    parts = [_some(1, 4, 3549) for _ in range(3)]
    yield Case("Concat 3 of 4x3549", "Concat", parts, [], {"axis": 1}, _out(lambda *a, out=None: jd.concat(a,
        1, out=out), *parts), 0.0, (1, 12, 3549))  # fmt: skip
    for n in (416, 640):
        x = _some(1, 3, n, n)
        view = x[:, :, ::2, ::2]
        out = np.empty(view.shape, np.float32)
        yield Case(
            f"Slice stride 2 3x{n}x{n}", "Slice", [x],
            [np.array([0, 0]), np.array([n, n]), np.array([2, 3]), np.array([2, 2])], {},
            lambda view=view, out=out: (lambda: jd.transform(view, out=out), out), 0.0, view.shape,
        )  # fmt: skip


def resizes() -> Iterator[Case]:
    for c, h, w in [(96, 40, 40), (24, 60, 60), (128, 26, 26), (96, 120, 120), (256, 13, 13)]:
        x = _some(1, c, h, w)
        for mode in ("nearest", "linear"):
            attributes = {
                "mode": mode,
                "coordinate_transformation_mode": "asymmetric",
                "nearest_mode": "floor",
            }
            if mode == "linear":
                attributes["coordinate_transformation_mode"] = "half_pixel"
            ours = _out(
                jd.resize, x, mode=mode, scale=2.0, coordinates=attributes["coordinate_transformation_mode"],
                rounding="floor",
            )  # fmt: skip
            yield Case(
                f"Resize {mode} {c}x{h}x{w}", "Resize", [x], [np.array([1, 1, 2, 2], np.float32)], attributes, ours,
                0.0, (1, c, 2 * h, 2 * w), ["x0", "", "c0"],
            )  # fmt: skip


def pointwise() -> Iterator[Case]:
    for shape in [(1, 512), (1, 96, 40, 40), (1, 64, 112, 112)]:
        x = _some(*shape)
        size = "x".join(map(str, shape))
        limits = [np.array(v, np.float32) for v in (0, 6)]
        clip = jd.elementwise(lambda v: jd.minimum(jd.maximum(v, 0.0), 6.0))
        yield Case(f"Clip {size}", "Clip", [x], limits, {}, _out(clip, x), 0.0, shape)
        for op, function in (("Relu", jd.relu), ("Sigmoid", jd.sigmoid), ("Tanh", jd.tanh), ("HardSigmoid",
            None), ("HardSwish", None), ("Gelu", jd.gelu), ("Elu", jd.elu)):  # fmt: skip
            if function is None:
                formula = {
                    "HardSigmoid": lambda v: jd.maximum(0.0, jd.minimum(1.0, 0.2 * v + 0.5)),
                    "HardSwish": lambda v: v * jd.maximum(0.0, jd.minimum(1.0, v / 6.0 + 0.5)),
                }[op]
                function = jd.elementwise(formula)
            yield Case(f"{op} {size}", op, [x], [], {}, _out(function, x), 0.0, shape)
        y = _some(shape[0], shape[1], *([1] * (len(shape) - 2)))
        z = np.broadcast_to(y, shape)
        multiply = jd.elementwise(lambda u, v: u * v)
        yield Case(f"Mul {size} by channel", "Mul", [x], [y], {}, _out(multiply, x, z), 0.0, shape)


def rows() -> Iterator[Case]:
    for shape in [(37, 512), (8, 37, 37), (1, 40, 120), (40, 6625), (1, 1000), (96, 37, 37), (8000, 4)]:
        x = _some(*shape)
        size = "x".join(map(str, shape))
        yield Case(
            f"Softmax {size}", "Softmax", [x], [], {"axis": -1}, _out(jd.softmax, x, axis=-1), 0.0, shape
        )
    for shape in [(37, 512), (1, 40, 120), (256, 64), (1, 768)]:
        x, g, b = _some(*shape), _some(shape[-1]), _some(shape[-1])
        size = "x".join(map(str, shape))
        ours = _out(lambda x, g, b, out=None: jd.layer_norm(x, g, b, out=out), x, g, b)
        yield Case(
            f"LayerNormalization {size}", "LayerNormalization", [x], [g, b], {"axis": -1}, ours, 0.0, shape
        )
    for shape, axes, op, kind in [
        ((1, 64, 129), [2], "ReduceMean", "avg"), ((1, 40, 120), [2], "ReduceMean", "avg"), ((1, 512, 7, 7),
            [2, 3], "ReduceMean", "avg"), ((37, 512), [1], "ReduceMean", "avg"), ((37, 512), [0],
            "ReduceSum", "add"),
        ((1, 129, 64), [1], "ReduceMax", "max"),
    ]:  # fmt: skip
        x = _some(*shape)
        size = "x".join(map(str, shape))
        kept = tuple(1 if i in axes else e for i, e in enumerate(shape))
        yield Case(
            f"{op} {size} over {axes}", op, [x], [np.array(axes)], {"keepdims": 1},
            _out(jd.reduce, x, kind, axes=tuple(axes), keepdims=True), 0.0, kept,
        )  # fmt: skip


def recurrent() -> Iterator[Case]:
    for cell, t, n, i, h, d in [
        ("lstm", 1, 1, 128, 128, 1), ("lstm", 50, 1, 128, 128, 1), ("lstm", 50, 1, 64, 64, 2), ("lstm", 24,
            1, 192, 256, 2), ("gru", 1, 1, 128, 128, 1), ("gru", 50, 1, 128, 128, 2),
    ]:  # fmt: skip
        gates = {"lstm": 4, "gru": 3}[cell]
        x = _some(t, n, i)
        weights = []
        for _ in range(d):
            weights += [
                _some(gates * h, i) / 16,
                _some(gates * h, h) / 16,
                _some(gates * h),
                _some(gates * h),
            ]
        swap = {"lstm": [0, 3, 1, 2], "gru": [1, 0, 2]}[cell]  # onnx: iofc, zrh

        def ordered(v: Float, gates: int = gates, swap: list[int] = swap) -> Float:
            return np.concatenate([np.split(v, gates)[g] for g in swap])

        W, R = (np.stack([ordered(weights[4 * j + q]) for j in range(d)]) for q in (0, 1))
        B = np.stack(
            [np.concatenate([ordered(weights[4 * j + 2]), ordered(weights[4 * j + 3])]) for j in range(d)]
        )

        def ours(x: Float = x, weights: Any = weights, cell: str = cell, d: int = d) -> tuple[Any, Any]:
            function = getattr(jd, cell)
            out = function(x, weights, bidirectional=d == 2)
            y = out[0]
            shown = y.reshape(y.shape[0], y.shape[1], d, -1).transpose(0, 2, 1, 3)
            return lambda: function(x, weights, bidirectional=d == 2, out=out), shown

        attributes = {"hidden_size": h, "direction": "bidirectional" if d == 2 else "forward"}
        if cell == "gru":
            attributes["linear_before_reset"] = 1
        yield Case(
            f"{cell} {t} steps batch {n} {i} to {h}" + (" both ways" if d == 2 else ""), cell.upper(), [x],
                [W, R, B], attributes,
            ours, 2.0 * t * n * gates * h * (i + h) * d, (t, d, n, h),
        )  # fmt: skip


CASES = (matmuls, convolutions, pools, movement, resizes, pointwise, rows, recurrent)


def session(case: Case, threads: int) -> Callable[[], list[Float]]:
    names = [f"x{i}" for i in range(len(case.inputs))] + [f"c{i}" for i in range(len(case.constants))]
    node = helper.make_node(case.op, list(case.order) or names, ["y"], **case.attributes)
    graph = helper.make_graph(
        [node], "one", [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, x.shape) for i,
            x in enumerate(case.inputs)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(c), f"c{i}") for i, c in enumerate(case.constants)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    model = onnx.shape_inference.infer_shapes(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if threads > 1 else "0")
    run = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    out = np.empty(case.result, np.float32)
    binding = run.io_binding()
    for i, x in enumerate(case.inputs):
        binding.bind_cpu_input(f"x{i}", x)
    binding.bind_output("y", "cpu", 0, np.float32, case.result, out.ctypes.data)

    def call() -> list[Float]:
        run.run_with_iobinding(binding)
        return [out]

    return call


def launches_of(call: Callable[[], Any]) -> Callable[[], None] | None:
    """The launches that a call makes, to be made again without the call."""
    seen: list[tuple[Any, int, bytes, int]] = []
    launch = native.launch

    def note(phases: Any, count: int, args: bytes, threads: int) -> None:
        seen.append((phases, count, args, threads))
        launch(phases, count, args, threads)

    native.launch = note
    try:
        call()
    finally:
        native.launch = launch
    if not seen:
        return None
    run = native.pool().launch

    def again() -> None:
        for phases, count, args, threads in seen:
            run(phases, count, args, threads)

    return again


def best(call: Callable[[], Any], seconds: float) -> float:
    """The least time of a call in a turn."""
    call()
    found, end = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        call()
        now = time.perf_counter()
        found = min(found, now - start)
        if now > end:
            return found


def measure(case: Case, threads: int, rounds: int, seconds: float, runs: list[tuple[str, float]]) -> None:
    call, result = case.ours()
    theirs = session(case, threads)
    call()
    reference = theirs()[0]
    scale = float(np.abs(reference).max()) or 1.0
    error = float(np.abs(reference - result.reshape(reference.shape)).max()) / scale
    if not error < 1e-4:
        say(f"{case.name:58s} DISAGREES by {error:.1e} of the largest element")
        return
    alone = launches_of(call)
    times = [float("inf")] * 3
    for _ in range(rounds):
        for i, each in enumerate((call, alone, theirs)):
            if each is not None:
                times[i] = min(times[i], best(each, seconds))
                if threads > 1:
                    time.sleep(0.02)
    busy, wall = time.process_time(), time.perf_counter()
    for _ in range(max(3, int(0.02 / times[0]))):
        call()
    busy, wall = time.process_time() - busy, time.perf_counter() - wall
    moved = sum(x.nbytes for x in (*case.inputs, *case.constants)) + reference.nbytes
    floor = max(case.flops / PEAK / threads, moved / RATE)
    ours = times[1] if alone is not None else times[0]
    runs.append((case.name, times[2] / ours))
    say(
        f"{case.name:58s} {times[0] * 1e6:9.1f} {times[1] * 1e6:9.1f} {times[2] * 1e6:9.1f} {times[2] / ours:6.2f}"
        f" {floor * 1e6:8.1f} {busy / wall:5.1f}"
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.01, help="of each side's turn")
    given = parser.parse_args()
    with jd.settings(threads=given.threads):
        report(given)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def report(given: argparse.Namespace) -> None:
    runs: list[tuple[str, float]] = []
    say(f"{'':58s} {'function':>9s} {'launches':>9s} {'theirs':>9s} {'ratio':>6s} {'floor':>8s} threads")
    for cases in CASES:
        for case in cases():
            if not given.words or any(word in case.name for word in given.words):
                measure(case, given.threads, given.rounds, given.seconds, runs)
    if runs:
        mean, slower = (
            float(np.exp(np.mean([np.log(ratio) for _, ratio in runs]))),
            sum(r < 1 for _, r in runs),
        )
        say(f"geometric mean of theirs over our launches {mean:.2f}, slower: {slower} of {len(runs)}")


if __name__ == "__main__":
    main()
