"""Inference on an NVIDIA GPU: `jt.fuse` beside PyTorch eager, captured as a CUDA graph, and compiled.

    python benchmarks/torch_fused_gpu.py [MODEL ...] [--batch 1 32] [--kind fp16 bf16 autocast fp32 tf32]
        [--peer eager graph compile reduce-overhead max-autotune-no-cudagraphs backend onnx] [--side 224]
        [--seconds 1] [--measure first|never] [--profile] [--json FILE]

A model is one of `onnx_gpu_nets.py` (resnet50, mobilenet_v2, efficientnet_b0, convnext_tiny, vit_small), or of timm by
`timm:NAME`, with random weights. Model and images have their channels last for all sides. Peers: `eager` the module
itself, `graph` the same captured by torch.cuda.graph and replayed, `compile` torch.compile, `reduce-overhead` and
`max-autotune-no-cudagraphs` that with a mode, `backend` torch.compile(backend="jitdnn"), `onnx` the same net as a model
of ONNX by jitdnn.onnx (nets alone). All sides take tensors on the GPU and leave results there, each in memory of its
own but for `graph` and `reduce-overhead`, and take turns in one process; before that each side is held against the
module in float64.

"ms" is the least over the turns of the mean time of a call within a turn, by events of CUDA; "speed" the peer's by that
of `jt.fuse`; "host us" what the host takes to enqueue a call of `jt.fuse`, "first s" its first call, with the code
cache as it is; "decided" who runs, by the measurement of the first call.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from onnx_gpu import error, kernels, say, turn
from onnx_gpu_nets import NETS, as_onnx, as_torch

BOUNDS = {"fp32": 5e-5, "tf32": 5e-3, "fp16": 2e-2, "bf16": 8e-2, "autocast": 8e-2}
PEERS = ("eager", "graph", "compile", "reduce-overhead", "max-autotune-no-cudagraphs", "backend", "onnx")
_TURNS = 7
_HOST_CALLS = 50


def module_of(name: str, batch: int, side: int) -> tuple[Any, tuple[int, ...], Any]:
    """A model in evaluation mode, the shape of its input, and its net if it is one."""
    import torch

    if name.startswith("timm:"):
        import timm

        torch.manual_seed(0)
        return timm.create_model(name.removeprefix("timm:")).eval(), (batch, 3, side, side), None
    net = NETS[name](batch)
    return as_torch(net).eval(), net.shape, net


def sides_of(
    name: str, batch: int, kind: str, options: argparse.Namespace
) -> tuple[dict[str, Any], Any, Any, Any]:
    """The calls by their names, the fused module, what there is to say of it, and the exact result."""
    import torch

    import jitdnn.torch as jt
    from jitdnn.frameworks.torch.backend import register

    model, shape, net = module_of(name, batch, options.side)
    x = torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    model = model.cuda()
    exact = copy.deepcopy(model).double()(x.double())
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(kind, torch.float32)
    model = model.to(dtype).to(memory_format=torch.channels_last)
    given = x.to(dtype)
    given = given.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else given

    def cast() -> Any:
        return torch.autocast("cuda", torch.bfloat16) if kind == "autocast" else nullcontext()

    def within(run: Callable[..., Any]) -> Callable[[], Any]:
        def call() -> Any:
            with cast():
                return run(given)

        return call

    begun = time.perf_counter()
    fused = jt.fuse(model, measure=options.measure)
    sides: dict[str, Any] = {"fused": within(fused)}
    sides["fused"]()
    torch.cuda.synchronize()
    first = time.perf_counter() - begun
    for peer in options.peer:
        if peer == "eager":
            sides[peer] = within(model)
        elif peer == "graph":
            sides[peer] = captured(within(model))
        elif peer == "onnx":
            if net is not None and kind in ("fp16", "fp32", "tf32"):
                sides[peer] = by_onnx(net, kind, x)
        else:
            torch.compiler.reset()
            how: dict[str, Any] = {} if peer == "compile" else {"mode": peer}
            if peer == "backend":
                register()
                how = {"backend": "jitdnn", "options": {"measure": options.measure}}
            sides[peer] = within(torch.compile(model, dynamic=False, **how))
    return sides, fused, first, exact


def captured(run: Callable[[], Any]) -> Callable[[], Any]:
    """What replays a call as a CUDA graph."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()

    def replay() -> Any:
        graph.replay()
        return result

    return replay


def by_onnx(net: Any, kind: str, x: Any) -> Callable[[], Any]:
    """The net by the front for ONNX, which takes and gives float32."""
    import jitdnn.onnx

    how = {"fp32": {}, "tf32": {"math": "tf32"}, "fp16": {"dtype": "float16"}}[kind]
    loaded = jitdnn.onnx.prepare(as_onnx(net), device="cuda:0", **how)
    return lambda: loaded.run({"x": x})[0]


def host_seconds(run: Callable[[], Any]) -> float:
    """Seconds that the host takes to enqueue a call, the least of some."""
    import torch

    least = float("inf")
    for _ in range(_HOST_CALLS):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        run()
        least = min(least, time.perf_counter() - begun)
    return least


def row(name: str, batch: int, kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of every side for one model."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = kind == "tf32"
    found: dict[str, Any] = {"name": name, "batch": batch, "kind": kind}
    with torch.no_grad():
        sides, fused, first, exact = sides_of(name, batch, kind, options)
        found["first s"] = round(first, 2)
        for side, each in list(sides.items()):
            try:
                for _ in range(3):
                    result = each()
                found[f"{side} error"] = error(result, exact)
            except Exception as problem:  # whatever a compiler raises: the others are measured
                say(f"  {side} failed: {type(problem).__name__}: {str(problem)[:300]}")
                del sides[side]
                continue
            if not found[f"{side} error"] <= BOUNDS[kind]:
                say(f"  {side} is wrong: {found[f'{side} error']:.2g} of {BOUNDS[kind]}")
                del sides[side]
        if "fused" not in sides:
            return found
        (function, _), *_ = fused._functions.values()
        program = list(function._programs.young.values())[-1].program
        found["decided"] = getattr(program, "reason", "fused").replace(" ", "_")
        times: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(_TURNS):
            for side, each in sides.items():
                times[side].append(turn(each, options.seconds / _TURNS))
        found["host us"] = round(1e6 * host_seconds(sides["fused"]), 1)
        if options.profile:
            for side, each in sides.items():
                kernels(side, each)
    for side, each_time in times.items():
        found[f"{side} ms"] = 1e3 * min(each_time)
        if side != "fused":
            found[f"{side} speed"] = min(each_time) / min(times["fused"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("models", nargs="*", help=f"of {', '.join(NETS)}, or timm:NAME; all nets by default")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--kind", nargs="+", choices=list(BOUNDS), default=["fp16"])
    parser.add_argument(
        "--peer", nargs="+", choices=PEERS, default=["eager", "graph", "reduce-overhead", "onnx"]
    )
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each side of a row")
    parser.add_argument("--measure", choices=("first", "never"), default="first")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path, help="file that rows are added to")
    options = parser.parse_args()
    import torch

    say(torch.cuda.get_device_name(), "PyTorch", torch.__version__)
    for name in options.models or list(NETS):
        for batch in options.batch:
            for kind in options.kind:
                torch.compiler.reset()
                found = row(name, batch, kind, options)
                say(
                    *(
                        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
                        for key, value in found.items()
                    )
                )
                if options.json is not None:
                    with options.json.open("a") as file:
                        file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
