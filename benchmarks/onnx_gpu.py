"""Models of ONNX on an NVIDIA GPU by jitdnn beside the same nets in PyTorch, compiled and replayed as CUDA graphs.

    python benchmarks/onnx_gpu.py [NAME ...] [--batch 1 32] [--kind fp32 tf32 fp16] [--peer compile graph ort]
        [--seconds 1] [--explain] [--profile] [--json FILE]

Nets are written down once (`onnx_gpu_nets.py`) and made twice: a model of ONNX, which jitdnn loads with
device="cuda:0", and a module of PyTorch in evaluation mode, channels last, with the same random weights. Peers:
`compile` is torch.compile (mode "reduce-overhead": Inductor's kernels in a CUDA graph), `graph` the module's own
kernels (cuDNN, cuBLAS) captured by torch.cuda.graph, `ort` onnxruntime on CUDA where that build of it is importable.
All sides take tensors on the GPU and leave results there, and take turns in one process.

Before anything is timed each side is held against the module in float64: the error is the largest difference by the
largest element, and a side beyond the bound of its kind (fp32 2e-5, tf32 5e-3, fp16 2e-2) has no time. fp32 allows
neither side tf32; tf32 is `math="tf32"` here and `allow_tf32` there; fp16 is `dtype="float16"` here, with the model in
float32, and `.half()` there.

"ms" is the least over the turns of the mean time of a run within a turn, by events of CUDA; "speed" the peer's by
ours; "median" the median over the turns of that ratio. "host us": what a run takes of the host beside its kernels
(`Model.host_time`), copies of inputs and outputs in host memory included. "first s": from loading the model to the
first result, with the code cache as it is. --profile lists the kernels of a run of each side and their times, by
PyTorch's profiler.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from onnx_gpu_nets import NETS, Net, as_onnx, as_torch

BOUNDS = {"fp32": 2e-5, "tf32": 5e-3, "fp16": 2e-2}
_TURNS = 7


def ours(model: Any, kind: str, x: Any) -> tuple[Callable[[], Any], Any, float]:
    import jitdnn.onnx

    options = {"fp32": {}, "tf32": {"math": "tf32"}, "fp16": {"dtype": "float16"}}[kind]
    begun = time.perf_counter()
    loaded = jitdnn.onnx.prepare(model, device="cuda:0", **options)
    run = lambda: loaded.run({"x": x})[0]  # noqa: E731
    run()
    _synchronize()
    first = time.perf_counter() - begun
    return run, loaded, first


def by_torch(net: Net, kind: str, x: Any, way: str) -> Callable[[], Any]:
    import torch

    module = as_torch(net).cuda().eval().to(memory_format=torch.channels_last)
    given = x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x
    if kind == "fp16":
        module, given = module.half(), given.half()
    if way == "compile":
        compiled = torch.compile(module, mode="reduce-overhead", dynamic=False)
        for _ in range(3):
            compiled(given)
        return lambda: compiled(given)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            module(given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = module(given)

    def run(_kept: Any = (module, given)) -> Any:  # the graph reads their memory
        graph.replay()
        return result

    return run


def by_onnxruntime(model: Any, kind: str, x: Any) -> Callable[[], Any]:
    import onnxruntime as ort
    import torch

    providers = [("CUDAExecutionProvider", {"use_tf32": int(kind == "tf32"), "enable_cuda_graph": 1})]
    session = ort.InferenceSession(model.SerializeToString(), providers=providers)
    binding = session.io_binding()
    shape = tuple(dim.dim_value for dim in model.graph.output[0].type.tensor_type.shape.dim)
    y = torch.empty(shape, device="cuda")
    binding.bind_input("x", "cuda", 0, np.float32, tuple(x.shape), x.data_ptr())
    binding.bind_output("y", "cuda", 0, np.float32, shape, y.data_ptr())

    def run() -> Any:
        session.run_with_iobinding(binding)
        return y

    for _ in range(3):
        run()
    return run


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def _synchronize() -> None:
    import torch

    torch.cuda.synchronize()


def error(found: Any, exact: Any) -> float:
    difference = (found.double() - exact).abs().max().item()
    return float(difference / exact.abs().max().item())


def turn(run: Callable[[], Any], seconds: float) -> float:
    """Mean seconds of a run, of as many as take so long."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    count, spent = 3, 0.0
    while True:
        torch.cuda.synchronize()
        start.record()
        for _ in range(count):
            run()
        end.record()
        torch.cuda.synchronize()
        spent = 1e-3 * start.elapsed_time(end)
        if spent >= seconds or count >= 10_000:
            return spent / count
        count = min(10_000, max(count + 1, int(1.2 * count * seconds / max(spent, 1e-6))))


def kernels(side: str, run: Callable[[], Any], count: int = 10, most: int = 25) -> None:
    """Say the kernels of a run, those that take longest first: microseconds and launches of a run."""
    from torch.profiler import ProfilerActivity, profile

    run()
    _synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(count):
            run()
        _synchronize()
    listed = sorted(found.key_averages(), key=lambda each: -each.device_time_total)
    say(f"  {side}: {sum(each.device_time_total for each in listed) / count:.1f} us in kernels")
    for each in listed[:most]:
        say(f"    {each.device_time_total / count:8.1f} us  {each.count / count:5.1f} x  {each.key[:110]}")


def row(name: str, batch: int, kind: str, peers: list[str], options: argparse.Namespace) -> dict[str, Any]:
    import torch

    net = NETS[name](batch)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = kind == "tf32"
    x = torch.randn(net.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    model = as_onnx(net)
    found: dict[str, Any] = {"name": name, "batch": batch, "kind": kind}
    with torch.no_grad():
        exact = as_torch(net).cuda().double().eval()(x.double())
        sides: dict[str, Callable[[], Any]] = {}
        run, loaded, first = ours(model, kind, x)
        sides["jitdnn"] = run
        found["first s"] = round(first, 2)
        for peer in peers:
            sides[peer] = by_onnxruntime(model, kind, x) if peer == "ort" else by_torch(net, kind, x, peer)
        for side, each in list(sides.items()):
            for _ in range(3):
                result = each()
            found[f"{side} error"] = error(result, exact)
            if not found[f"{side} error"] <= BOUNDS[kind]:
                say(f"  {side} is wrong: {found[f'{side} error']:.2g} of {BOUNDS[kind]}")
                del sides[side]
        if options.explain:
            say(loaded.explain({"x": x}))
        if "jitdnn" not in sides:
            return found
        times: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(_TURNS):
            for side, each in sides.items():
                times[side].append(turn(each, options.seconds / _TURNS))
        if options.profile:
            for side, each in sides.items():
                kernels(side, each)
    host = loaded.host_time({"x": x.cpu().numpy()})
    found["host us"] = round(1e6 * host, 1)
    for side, each_time in times.items():
        found[f"{side} ms"] = 1e3 * min(each_time)
        if side != "jitdnn":
            found[f"{side} speed"] = min(each_time) / min(times["jitdnn"])
            found[f"{side} median"] = statistics.median(
                a / b for a, b in zip(each_time, times["jitdnn"], strict=True)
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NETS)}; all by default")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--kind", nargs="+", choices=list(BOUNDS), default=["fp32", "fp16"])
    parser.add_argument(
        "--peer", nargs="+", choices=["compile", "graph", "ort"], default=["compile", "graph"]
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="of each side of a row")
    parser.add_argument("--explain", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path, help="file that rows are added to")
    options = parser.parse_args()
    peers = [p for p in options.peer if p != "ort" or _has_onnxruntime_gpu()]
    import torch

    say(torch.cuda.get_device_name(), "PyTorch", torch.__version__)
    for name in options.names or list(NETS):
        for batch in options.batch:
            for kind in options.kind:
                torch.compiler.reset()
                found = row(name, batch, kind, peers, options)
                text = " ".join(
                    f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
                    for key, value in found.items()
                )
                say(text)
                if options.json is not None:
                    with options.json.open("a") as file:
                        file.write(json.dumps(found) + "\n")


def _has_onnxruntime_gpu() -> bool:
    if importlib.util.find_spec("onnxruntime") is None:
        return False
    import onnxruntime as ort

    return "CUDAExecutionProvider" in ort.get_available_providers()


if __name__ == "__main__":
    main()
