"""Training steps of networks under `torch.compile`: Inductor alone, and with our pass, in turns in one process.

    python benchmarks/torch_inductor.py [MODEL ...] [--batch 128] [--mode default reduce-overhead] [--seconds 10]
        [--side 224] [--dtype bf16] [--device cuda] [--inference] [--measure first] [--explain] [--json FILE]

On a GPU a step is forward in training mode under autocast, the cross-entropy and the backward pass, images with
channels last; milliseconds are those of the GPU's events over some steps without waiting, the least of all turns. Every
pair of a mode starts from the same weights, and the losses of the first steps must agree. MODEL: convnext, resnext50,
mobilenetv2, resnet50 (plain definitions, of the sizes of the papers), or `timm:NAME` where timm is installed. `first s`
is the time of the first step, with compiling and measuring; a second run of the script has what was kept of it.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

import jitdnn.torch as jt
from jitdnn.frameworks.torch.backend import register

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
STEPS = 5  # without waiting for the GPU
WARM = 4  # of them some are recorded as CUDA graphs


class ChannelNorm(nn.LayerNorm):
    """Layer normalization of the channels of images."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNextBlock(nn.Module):
    """Depthwise 7x7, normalization, two products with GELU between, scaled residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.gamma * self.narrow(nn.functional.gelu(self.wide(y)))
        return x + y.permute(0, 3, 1, 2)


def convnext(
    depths: tuple[int, ...] = (3, 3, 9, 3), widths: tuple[int, ...] = (96, 192, 384, 768)
) -> nn.Module:
    """ConvNeXt-T."""
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4), ChannelNorm(widths[0], eps=1e-6)]
    for number, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        if number:
            before = widths[number - 1]
            layers += [ChannelNorm(before, eps=1e-6), nn.Conv2d(before, width, 2, 2)]
        layers += [ConvNextBlock(width) for _ in range(depth)]
    head = [
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.LayerNorm(widths[-1], eps=1e-6),
        nn.Linear(widths[-1], 1000),
    ]
    return nn.Sequential(*layers, *head)


class Bottleneck(nn.Module):
    """1x1, 3x3 (grouped in ResNeXt), 1x1 with normalization, and a residual."""

    def __init__(self, inputs: int, width: int, stride: int, groups: int, grown: int) -> None:
        super().__init__()
        outputs = 4 * grown
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, groups=groups, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        is_same = inputs == outputs and stride == 1
        self.short = (
            nn.Identity()
            if is_same
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.short(x))


def resnet50(groups: int = 1, base: int = 64) -> nn.Module:
    """ResNet-50; ResNeXt-50 32x4d with 32 groups of a base width of 4."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = 64
    for number, depth in enumerate((3, 4, 6, 3)):
        grown = 64 << number
        width = grown * base // 64 * groups
        for place in range(depth):
            stride = 2 if number and not place else 1
            layers.append(Bottleneck(inputs, width, stride, groups, grown))
            inputs = 4 * grown
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


class Inverted(nn.Module):
    """A wide 1x1, a depthwise 3x3, a narrow 1x1, with normalization and a residual where the shapes agree."""

    def __init__(self, inputs: int, outputs: int, stride: int, factor: int) -> None:
        super().__init__()
        wide = inputs * factor
        first = (
            [nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()] if factor > 1 else []
        )
        self.body = nn.Sequential(
            *first,
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.has_residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.has_residual else self.body(x)


def mobilenetv2() -> nn.Module:
    """MobileNetV2 1.0."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()]
    inputs = 32
    rows = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    for factor, outputs, depth, stride in rows:
        for place in range(depth):
            layers.append(Inverted(inputs, outputs, stride if not place else 1, factor))
            inputs = outputs
    layers += [nn.Conv2d(inputs, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "convnext": convnext,
    "resnext50": lambda: resnet50(32, 4),
    "mobilenetv2": mobilenetv2,
    "resnet50": resnet50,
}


def model_of(name: str) -> nn.Module:
    """A model by its name, the same weights at each call."""
    torch.manual_seed(0)
    if name.startswith("timm:"):
        import timm

        made: nn.Module = timm.create_model(name.removeprefix("timm:"))
        return made
    return MODELS[name]()


class Peer:
    """A compiled model and what runs one step of it."""

    def __init__(self, model: nn.Module, is_ours: bool, mode: str, arguments: argparse.Namespace) -> None:
        self.model = copy.deepcopy(model)
        self._arguments = arguments
        if is_ours:
            options = {"measure": arguments.measure, "mode": mode}
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
        for parameter in self.model.parameters():
            parameter.grad = None
        loss.backward()
        return loss.detach()

    def seconds(self, x: Tensor, labels: Tensor) -> float:
        """Of one step, among several."""
        if self._arguments.device != "cuda":
            begin = perf_counter()
            self.step(x, labels)
            return perf_counter() - begin
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.step(x, labels)
        first.record()
        for _ in range(STEPS):
            self.step(x, labels)
        last.record()
        last.synchronize()
        return first.elapsed_time(last) / 1e3 / STEPS


def row(name: str, mode: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a step of both for one model."""
    torch._dynamo.reset()
    arguments.mode_has_graphs = mode in ("reduce-overhead", "max-autotune")
    model = model_of(name).to(arguments.device, memory_format=torch.channels_last)
    model.train(not arguments.inference)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(arguments.batch, 3, arguments.side, arguments.side, generator=generator)
    x = x.to(arguments.device).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (arguments.batch,), generator=generator).to(arguments.device)
    peers = {"stock": Peer(model, False, mode, arguments), "ours": Peer(model, True, mode, arguments)}
    found: dict[str, Any] = {"model": name, "mode": mode, "batch": arguments.batch, "dtype": arguments.dtype}
    losses = {}
    for peer, one in peers.items():
        begin = perf_counter()
        losses[peer] = float(one.step(x, labels))
        found[f"{peer} first s"] = perf_counter() - begin
        for _ in range(WARM):
            one.step(x, labels)
    bound = 2e-2 if arguments.dtype != "f32" else 1e-4
    if not math.isclose(losses["stock"], losses["ours"], rel_tol=bound, abs_tol=bound):
        raise SystemExit(f"{name}: the losses of the first step differ: {losses}")
    best = dict.fromkeys(peers, math.inf)
    end = perf_counter() + arguments.seconds
    while perf_counter() < end:
        for peer, one in peers.items():
            best[peer] = min(best[peer], one.seconds(x, labels))
    found.update({f"{peer} ms": 1e3 * value for peer, value in best.items()})
    found["speed"] = best["stock"] / best["ours"]
    if arguments.device == "cuda":
        found["peak GiB, both"] = torch.cuda.max_memory_allocated() / 2**30
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--mode", nargs="+", default=["default", "reduce-overhead"])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument("--inference", action="store_true")
    parser.add_argument("--measure", choices=("first", "never"), default="first")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--explain", action="store_true", help="what the pass decided, to stderr")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    register()
    if arguments.explain:
        explained()
    rows = []
    for name in arguments.models or MODELS:
        for mode in arguments.mode:
            rows.append(row(name, mode, arguments))
            sys.stderr.write(json.dumps(rows[-1]) + "\n")
    head = f"{'model':14s}{'mode':18s}{'n':>4s}{'stock ms':>10s}{'ours ms':>10s}{'speed':>7s}"
    lines = [f"{head}{'first s, stock':>16s}{'ours':>8s}"]
    for one in rows:
        lines.append(
            f"{one['model']:14s}{one['mode']:18s}{one['batch']:4d}{one['stock ms']:10.2f}{one['ours ms']:10.2f}"
            f"{one['speed']:7.3f}{one['stock first s']:16.1f}{one['ours first s']:8.1f}"
        )
    mean = math.exp(sum(math.log(one["speed"]) for one in rows) / len(rows))
    lines.append(f"stock / ours: geometric mean {mean:.3f}, least {min(one['speed'] for one in rows):.3f}")
    sys.stdout.write("\n".join(lines) + "\n")
    if arguments.json is not None:
        arguments.json.write_text("\n".join(map(json.dumps, rows)) + "\n")


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
