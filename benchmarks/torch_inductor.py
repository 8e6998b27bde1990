"""Training steps of networks under `torch.compile`, Inductor alone and with our pass, or eager, stock and converted, in
turns in one process.

    python benchmarks/torch_inductor.py [MODEL ...] [--batch 128] [--mode default reduce-overhead eager]
        [--seconds 10] [--side 224] [--dtype bf16] [--device cuda] [--memory last] [--inference]
        [--measure first] [--setting NAME=NUMBER ...] [--explain] [--json FILE]

On a GPU a step is forward in training mode under autocast, the cross-entropy and the backward pass, with channels last
(in mode `eager` the same without torch.compile; with `--dtype f32` without autocast, and products are of float32, not
of tf32); milliseconds are those of the GPU's events over some steps without waiting, the least of all turns. Every pair
of a mode starts from the same weights, and the losses of the first steps must agree. MODEL: one of `torch_zoo.py`
(tests/helpers: convnext_tiny, resnext50, ...), one of `torch_zoo_axes.py` (replknet, x3d, unet3d, ...), whose examples
and batches are their own, or `timm:NAME` where timm is installed. `bound`: whether a step of either side waits for the
host, which then takes longer to enqueue it than its kernels run, or for the GPU. `first s` is the time of the first
step, with compiling and measuring; a second run of the script has what was kept of it. `torch_peak.py` tells memory.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch_peers import network, without_dropout

import jitdnn.torch as jt
from jitdnn.frameworks.torch.backend import register
from torch_zoo_axes import MODELS as AXES

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
STEPS = 5  # without waiting for the GPU
WARM = 4  # of them some are recorded as CUDA graphs
WARM_EAGER = 92  # of a converted model, whose own choice between whole steps takes so many
MEMORY = {4: torch.channels_last, 5: torch.channels_last_3d}
GRAPHS = ("reduce-overhead", "max-autotune")  # modes with CUDA graphs
MODELS = ("convnext_tiny", "resnext50", "mobilenet_v2", "resnet50")


def settings(given: Sequence[str]) -> dict[str, int]:
    return {name: int(number) for name, _, number in (one.partition("=") for one in given)}


class Peer:
    """A compiled model and what runs one step of it."""

    def __init__(
        self, model: nn.Module, is_ours: bool, mode: str, arguments: argparse.Namespace, graphs: bool = False
    ) -> None:
        self.model = copy.deepcopy(model)
        self._parameters = list(
            self.model.parameters()
        )  # as optimizers have them: to find them takes a millisecond
        self._arguments = arguments
        if mode == "eager":
            self._run = self.model
            if is_ours:
                jt.convert(self.model, measure=arguments.measure, graphs=graphs)
        elif is_ours:
            options = {"measure": arguments.measure, "mode": mode, **settings(arguments.setting)}
            self._run = torch.compile(self.model, backend="jitdnn_inductor", options=options)
        else:
            self._run = torch.compile(self.model, mode=mode)

    def step(self, x: Tensor, labels: Tensor) -> Tensor:
        """The loss of one step, or in inference a number made of the output."""
        arguments = self._arguments
        if arguments.mode_has_graphs:
            torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(arguments.device, DTYPES[arguments.dtype], enabled=arguments.dtype != "f32"):
            if arguments.inference:
                with torch.no_grad():
                    return self._run(x).float().square().mean()
            loss = nn.functional.cross_entropy(self._run(x), labels)
        for parameter in self._parameters:
            parameter.grad = None
        loss.backward()
        return loss.detach()

    def seconds(self, x: Tensor, labels: Tensor, steps: int = STEPS) -> float:
        """Of one step, among several."""
        if self._arguments.device != "cuda":
            begin = perf_counter()
            self.step(x, labels)
            return perf_counter() - begin
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.step(x, labels)
        first.record()
        for _ in range(steps):
            self.step(x, labels)
        last.record()
        last.synchronize()
        return first.elapsed_time(last) / 1e3 / steps


def host_seconds(run: Callable[[], Any], count: int = 6, clock: Callable[[], float] = perf_counter) -> float:
    """Until a step is enqueued on a GPU that has nothing to do, the least of some."""
    least = math.inf
    for _ in range(count):
        torch.cuda.synchronize()
        begin = clock()
        run()
        least = min(least, clock() - begin)
    return least


def kernel_seconds(run: Callable[[], Any], count: int = 2) -> float:
    """Of all kernels of a step, by PyTorch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(count):
            run()
        torch.cuda.synchronize()
    return sum(each.device_time_total for each in found.key_averages()) / count / 1e6


def bound(cell: dict[str, Any]) -> str:
    """What a step waits for; nothing is known of a processor's."""
    if math.isnan(cell["kernels ms"]):
        return "-"
    return "host" if cell["host ms"] > cell["kernels ms"] else "GPU"


def made(name: str, arguments: argparse.Namespace) -> nn.Module:
    """A network on the processor."""
    torch.manual_seed(0)
    return without_dropout(AXES[name].small() if arguments.small else network(name))


def problem(
    name: str, arguments: argparse.Namespace, model: nn.Module | None = None
) -> tuple[nn.Module, Tensor, Tensor]:
    """A network, which may be made before, and a batch of its examples and labels."""
    model = made(name, arguments) if model is None else model
    shape: tuple[int, ...] = (arguments.batch, 3, arguments.side, arguments.side)
    if name in AXES:
        own = AXES[name].small_shape if arguments.small else AXES[name].shape
        shape = (arguments.batch if arguments.batch_is_given else AXES[name].batch, *own)
    order = (
        MEMORY.get(len(shape), torch.contiguous_format)
        if arguments.memory == "last"
        else torch.contiguous_format
    )
    model = model.to(arguments.device, memory_format=order).train(not arguments.inference)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).to(arguments.device).contiguous(memory_format=order)
    with torch.no_grad():
        _, classes, *places = copy.deepcopy(model)(x[:2]).shape
    labels = torch.randint(0, classes, (shape[0], *places), generator=generator).to(arguments.device)
    return model, x, labels


def row(name: str, mode: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a step of both for one model."""
    torch._dynamo.reset()
    arguments.mode_has_graphs = mode in GRAPHS
    model, x, labels = problem(name, arguments)
    peers = {}
    found: dict[str, Any] = {"model": name, "mode": mode, "batch": len(x), "dtype": arguments.dtype}
    losses = {}
    for peer in ("stock", "ours"):
        begin = perf_counter()  # torch.compile imports its compiler, or the first step does
        one = peers[peer] = Peer(model, peer == "ours", mode, arguments)
        losses[peer] = float(one.step(x, labels))
        found[f"{peer} first s"] = perf_counter() - begin
        for _ in range(WARM_EAGER if mode == "eager" and peer == "ours" else WARM):
            one.step(x, labels)
    most = 2e-2 if arguments.dtype != "f32" else 1e-4
    if not math.isclose(losses["stock"], losses["ours"], rel_tol=most, abs_tol=most):
        raise SystemExit(f"{name}: the losses of the first step differ: {losses}")
    best = dict.fromkeys(peers, math.inf)
    end = perf_counter() + arguments.seconds
    while perf_counter() < end:
        for peer, one in peers.items():
            best[peer] = min(best[peer], one.seconds(x, labels))
    found.update({f"{peer} ms": 1e3 * value for peer, value in best.items()})
    for peer, one in peers.items():
        run = partial(one.step, x, labels)
        is_on_gpu = arguments.device == "cuda"
        cell = {"host ms": 1e3 * host_seconds(run) if is_on_gpu else math.nan}
        cell["kernels ms"] = 1e3 * kernel_seconds(run) if is_on_gpu else math.nan
        found.update(
            {f"{peer} {what}": value for what, value in cell.items()}, **{f"{peer} bound": bound(cell)}
        )
    found["speed"] = best["stock"] / best["ours"]
    return found


def parser(description: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=description.splitlines()[0])
    made.add_argument("models", nargs="*")
    made.add_argument("--batch", type=int, help="[128]")
    made.add_argument("--mode", nargs="+", default=["default", "reduce-overhead"])
    made.add_argument("--seconds", type=float, default=10.0)
    made.add_argument("--side", type=int, default=224)
    made.add_argument("--dtype", choices=DTYPES, default="bf16")
    made.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu"
    )
    made.add_argument("--memory", choices=("first", "last"), default="last", help="order of channels")
    made.add_argument("--inference", action="store_true")
    made.add_argument("--measure", choices=("first", "kernels", "never"), default="first")
    made.add_argument("--threads", type=int)
    made.add_argument("--small", action="store_true", help="small networks, of those of torch_zoo_axes.py")
    made.add_argument(
        "--setting",
        nargs="+",
        default=[],
        metavar="NAME=NUMBER",
        help="options of ours, or of Inductor for ours",
    )
    made.add_argument("--explain", action="store_true", help="what the pass decided, to stderr")
    made.add_argument("--json", type=Path)
    return made


def parsed(given: argparse.ArgumentParser) -> argparse.Namespace:
    arguments = given.parse_args()
    arguments.batch_is_given = arguments.batch is not None
    arguments.batch = arguments.batch or 128
    return arguments


def main() -> None:
    arguments = parsed(parser(__doc__))
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    if arguments.dtype == "f32":
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    register()
    if arguments.explain:
        explained()
    rows = []
    for name in arguments.models or MODELS:
        for mode in arguments.mode:
            rows.append(row(name, mode, arguments))
            sys.stderr.write(json.dumps(rows[-1]) + "\n")
    head = f"{'model':14s}{'mode':18s}{'n':>4s}{'stock ms':>10s}{'ours ms':>10s}{'speed':>7s}{'bound':>7s}{'ours':>6s}"
    lines = [f"{head}{'first s, stock':>16s}{'ours':>8s}"]
    for one in rows:
        lines.append(
            f"{one['model']:14s}{one['mode']:18s}{one['batch']:4d}{one['stock ms']:10.2f}{one['ours ms']:10.2f}"
            f"{one['speed']:7.3f}{one['stock bound']:>7s}{one['ours bound']:>6s}"
            f"{one['stock first s']:16.1f}{one['ours first s']:8.1f}"
        )
    mean = math.exp(sum(math.log(one["speed"]) for one in rows) / len(rows))
    lines.append(f"stock / ours: geometric mean {mean:.3f}, least {min(one['speed'] for one in rows):.3f}")
    sys.stdout.write("\n".join(lines) + "\n")
    if arguments.json is not None:
        with arguments.json.open("a") as kept:
            kept.write("\n".join(map(json.dumps, rows)) + "\n")


def explained() -> None:
    """Let every pass tell what it decided of a graph."""
    real = jt.InductorPass.__call__

    def call(self: jt.InductorPass, graph: Any) -> None:
        before = len(self.explanation.rows)
        real(self, graph)
        sys.stderr.write(f"{jt.Explanation(self.explanation.rows[before:])}\n")

    jt.InductorPass.__call__ = call  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
