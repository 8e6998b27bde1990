"""Layers of nets with what a graph has behind them, beside PyTorch's kernels, on an H100 or H200.

    python benchmarks/epilogue_tiles.py [NET ...] [--batch 1 32] [--dtype f16] [--tiles 5] [--no-mma] [--inductor]
        [--compile]

For each different convolution and product of a net: the floor (bytes at 4.3 TB/s or operations at 800 TFLOP/s,
whichever takes longer), what is chosen without measuring, with its epilogue and without, the best of the tiles that the
model expects to be fastest and of `mma.sync`, PyTorch's product or convolution with nothing behind it, and with: all
captured in CUDA graphs that take turns, microseconds, and the relative error against float64. The last line of a net
counts each layer as often as the net has it. With `--inductor` "peer" is what torch.compile makes of the layer and what
stands behind it, and the last line of all has its times over those of what is chosen: geometric mean, and the least.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from warpgroup_tiles import LARGEST_ERROR, TYPES, Run, seconds

from jitdnn.devices import cuda
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cuda.convolution.implicit_gemm.algorithm import ImplicitGemm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemm
from jitdnn.kernels.cuda.warpgroup.tile import TILES
from jitdnn.problems.convolution import Convolution
from jitdnn.rtcg.expression import trace
from jitdnn.rtcg.functions import erf, maximum
from jitdnn.tensor import TensorDescriptor

BANDWIDTH, PEAK = 4.3e12, 8e14


def _gelu(x: Any) -> Any:
    return x * (erf(x / 2.0**0.5) + 1.0) * 0.5


# by name: the formula, what it reads (b: of a channel, r: as the result), the same by PyTorch
EPILOGUES: dict[str, tuple[Callable[..., Any], str, Callable[..., torch.Tensor]]] = {
    "bias": (lambda acc, b: acc + b, "b", lambda y, b: y + b),
    "relu": (lambda acc, b: maximum(acc + b, 0.0), "b", lambda y, b: functional.relu(y + b)),
    "gelu": (lambda acc, b: _gelu(acc + b), "b", lambda y, b: functional.gelu(y + b)),
    "add": (lambda acc, b, r: acc + b + r, "br", lambda y, b, r: y + b + r),
    "add_relu": (
        lambda acc, b, r: maximum(acc + b + r, 0.0),
        "br",
        lambda y, b, r: functional.relu(y + b + r),
    ),
    "scale_add": (lambda acc, b, s, r: (acc + b) * s + r, "bbr", lambda y, b, s, r: (y + b) * s + r),
}


@dataclass(frozen=True)
class Layer:
    c: int
    h: int
    k: int
    r: int
    stride: int
    epilogue: str
    count: int
    is_product: bool = False  # h rows of c numbers

    def __str__(self) -> str:
        size = f"{self.h} rows" if self.is_product else f"{self.h}x{self.h} {self.r}x{self.r}/{self.stride}"
        return f"{self.c} -> {self.k} {size} {self.epilogue} x{self.count}"

    def problem(self, batch: int, dtype: str) -> Convolution:
        if self.is_product:
            words = f"n1 c{self.c} h1 w{self.h * batch} k{self.k} r1 s1"
        else:
            words = f"n{batch} c{self.c} h{self.h} w{self.h} k{self.k} r{self.r} s{self.r}"
            words += f" stride{self.stride}" if self.stride > 1 else ""
            words += f" pad{self.r // 2}" if self.r > 2 else ""
        found = Convolution.parse(f"conv_fwd {words} {dtype} nhwc")
        assert isinstance(found, Convolution)
        return found


def resnet50() -> Iterator[Layer]:
    before, size = 64, 56
    for width, count, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        after = size // first
        yield Layer(before, size, width, 1, 1, "relu", 1)
        yield Layer(width, size, width, 3, first, "relu", 1)
        yield Layer(width, after, 4 * width, 1, 1, "bias", 1)
        yield Layer(before, size, 4 * width, 1, first, "add_relu", 1)
        yield Layer(4 * width, after, width, 1, 1, "relu", count - 1)
        yield Layer(width, after, width, 3, 1, "relu", count - 1)
        yield Layer(width, after, 4 * width, 1, 1, "add_relu", count - 1)
        before, size = 4 * width, after


def convnext_tiny() -> Iterator[Layer]:
    for width, size, count in ((96, 56, 3), (192, 28, 3), (384, 14, 9), (768, 7, 3)):
        if width > 96:
            yield Layer(width // 2, 2 * size, width, 2, 2, "bias", 1)
        yield Layer(width, size * size, 4 * width, 1, 1, "gelu", count, True)
        yield Layer(4 * width, size * size, width, 1, 1, "bias", count, True)
        yield Layer(4 * width, size * size, width, 1, 1, "scale_add", 0, True)


def vit_small() -> Iterator[Layer]:
    yield Layer(384, 196, 1152, 1, 1, "bias", 12, True)
    yield Layer(384, 196, 384, 1, 1, "add", 12, True)
    yield Layer(384, 196, 1536, 1, 1, "gelu", 12, True)
    yield Layer(1536, 196, 384, 1, 1, "add", 12, True)


NETS = {"resnet50": resnet50, "convnext_tiny": convnext_tiny, "vit_small": vit_small}


class Case:
    """A layer with its tensors."""

    def __init__(self, layer: Layer, batch: int, dtype: str) -> None:
        self.layer, self.problem = layer, layer.problem(batch, dtype)
        self.kind = TYPES[dtype]
        formula, reads, self.by_torch = EPILOGUES[layer.epilogue]
        n, k, p, q = self.problem.y.shape
        self.x = self._random(*self.problem.x.shape)
        self.w = self._random(*self.problem.w.shape)
        self.w = self.w * (self.w[0].numel() ** -0.5)
        self.w = self.w.contiguous(memory_format=torch.channels_last)
        self.y = torch.empty(n, p, q, k, dtype=self.kind, device="cuda").permute(0, 3, 1, 2)
        self.operands, descriptors = [], []
        for one in reads:
            if one == "b":
                self.operands.append(self._random(1, k, 1, 1))
                strides = (0, 1, 0, 0)
            else:
                self.operands.append(self._random(n, k, p, q))
                strides = self.problem.y.strides
            descriptors.append(TensorDescriptor((n, k, p, q), strides, dtype))
        self.epilogue = Epilogue(trace(formula), tuple(descriptors))
        read = sum(t.numel() for t in (self.x, self.w, self.y, *self.operands)) * self.y.element_size()
        self.flops = 2 * self.y.numel() * self.w[0].numel()
        self.floor = max(read / BANDWIDTH, self.flops / PEAK)

    def _random(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        made = torch.randn(shape, device="cuda") * scale
        return made.to(self.kind).contiguous(memory_format=torch.channels_last)

    def build(self, algorithm: Any, device: Any, has_epilogue: bool) -> Run | None:
        epilogue = self.epilogue if has_epilogue else None
        if algorithm.refuse(self.problem, device, epilogue):
            return None
        kernel = algorithm.build(self.problem, device, epilogue)
        room = algorithm.workspace(self.problem, device, epilogue)
        workspace = torch.empty(max(1, room), dtype=torch.uint8, device="cuda")
        tensors = (self.x, self.w, self.y, *(self.operands if has_epilogue else ()))
        pointers = [one.data_ptr() for one in tensors]

        def run() -> None:
            stream = torch.cuda.current_stream().cuda_stream
            kernel(stream, pointers, 1.0, 0.0, workspace.data_ptr() if room else 0)

        return run

    def plain(self) -> torch.Tensor:
        return self._product(self.x, self.w)

    def _product(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if self.layer.r == 1 and self.layer.stride == 1:
            rows = x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])
            found = rows @ w.reshape(w.shape[0], -1).t()
            n, k, p, q = self.y.shape
            return found.reshape(n, p, q, k).permute(0, 3, 1, 2)
        pad = self.problem.padding[0][0]
        return functional.conv2d(x, w, None, self.layer.stride, pad)

    def _with_epilogue(self, x: torch.Tensor, w: torch.Tensor, *operands: torch.Tensor) -> torch.Tensor:
        if self.layer.is_product and self.layer.epilogue in ("bias", "gelu"):
            rows = x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])
            found = functional.linear(rows, w.reshape(w.shape[0], -1), operands[0].reshape(-1))
            return functional.gelu(found) if self.layer.epilogue == "gelu" else found
        return self.by_torch(self._product(x, w), *operands)

    def peer(self, is_compiled: bool) -> Callable[[], torch.Tensor]:
        """PyTorch's operators one by one, or what torch.compile makes of them."""
        run = torch.compile(self._with_epilogue, dynamic=False) if is_compiled else self._with_epilogue
        return lambda: run(self.x, self.w, *self.operands)

    def expected(self, has_epilogue: bool) -> torch.Tensor:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False):
            found = self._product(self.x.double(), self.w.double())
        return self.by_torch(found, *(one.double() for one in self.operands)) if has_epilogue else found

    def error(self, run: Run, expected: torch.Tensor) -> float:
        self.y.fill_(float("nan"))
        run()
        return float((self.y.double() - expected).norm() / expected.norm())


def _expected(tile: Any, case: Case, device: Any) -> float:
    plan = WarpgroupGemm((tile,)).sizes(case.problem, device)
    return float("inf") if isinstance(plan, str) else plan.seconds


class Rows:
    """The layers of a net as lines, and their sum."""

    NAMES = ("floor", "ours", "best", "bare", "plain", "peer")

    def __init__(self, net: str, batch: int, dtype: str) -> None:
        self.head, self._largest = f"{net} b{batch} {dtype}", LARGEST_ERROR[dtype]
        self._totals = [0.0] * len(self.NAMES)
        self.ratios: list[float] = []

    def measure(self, case: Case, runs: dict[str, Run], device: Any, is_compiled: bool) -> None:
        expected = {has: case.expected(has) for has in (True, False)}
        errors = {name: case.error(run, expected[name != "bare"]) for name, run in runs.items()}
        del expected
        for name in [name for name, error in errors.items() if not error < self._largest]:
            print(f"  {name} is not right: {errors[name]:.1e}")
            del runs[name]
        plain, peer, *times = seconds([case.plain, case.peer(is_compiled), *runs.values()])
        found = dict(zip(runs, times, strict=True))
        best, name = min((time, name) for name, time in found.items() if name != "bare")
        never = float("nan")
        row = (case.floor, found.get("chosen", never), best, found.get("bare", never), plain, peer)
        layer, plan = case.layer, WarpgroupGemm().sizes(case.problem, device)
        chosen = plan if isinstance(plan, str) else f"{plan.blocking.tile}, {plan.blocking.splits} splits"
        self._say(f"{layer}", row)
        if "chosen" in found:
            self.ratios.append(peer / found["chosen"])
        print(
            f"    chosen {chosen}; best {name}; mma.sync {found.get('mma.sync', never) * 1e6:.1f}; "
            f"error {errors.get('chosen', never):.1e}",
            flush=True,
        )
        for number, value in enumerate(row):
            self._totals[number] += layer.count * value

    def total(self) -> None:
        self._say("all", self._totals)

    def _say(self, what: str, row: Sequence[float]) -> None:
        times = " ".join(f"{name} {value * 1e6:6.1f}" for name, value in zip(self.NAMES, row, strict=True))
        print(f"{self.head} {what:40} {times}", flush=True)


def main() -> None:
    """Print two lines for each layer."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("nets", nargs="*", default=list(NETS))
    parser.add_argument("--batch", type=int, nargs="+", default=[32])
    parser.add_argument("--dtype", choices=["bf16", "f16"], default="f16")
    parser.add_argument("--tiles", type=int, default=5)
    parser.add_argument("--no-mma", action="store_true")
    parser.add_argument(
        "--inductor", action="store_true", help="the peer is what torch.compile makes of a layer"
    )
    parser.add_argument("--compile", action="store_true", help="only fill the cache of compiled kernels")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    device = cuda.device(0)
    torch._dynamo.config.cache_size_limit = 1 << 10
    pool, ratios = ThreadPoolExecutor(16), []
    for net in options.nets:
        for batch in options.batch:
            made = []
            for layer in NETS[net]():
                case = Case(layer, batch, options.dtype)
                ways = {"chosen": (WarpgroupGemm(), True), "bare": (WarpgroupGemm(), False)}
                ways |= {} if options.no_mma else {"mma.sync": (ImplicitGemm(), True)}
                tiles = sorted(TILES, key=lambda tile, case=case: _expected(tile, case, device))
                ways |= {str(tile): (WarpgroupGemm((tile,)), True) for tile in tiles[: options.tiles]}
                made.append((case, {
                    name: pool.submit(case.build, way, device, has) for name, (way, has) in ways.items()
                }))  # fmt: skip
            rows = Rows(net, batch, options.dtype)
            for case, futures in made:
                runs = {name: run for name, one in futures.items() if (run := one.result())}
                if not options.compile:
                    rows.measure(case, runs, device, options.inductor)
            if not options.compile:
                rows.total()
            ratios += rows.ratios
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(
            f"{len(ratios)} layers: the peer's time over that of what is chosen: {mean:.2f}, {min(ratios):.2f}"
        )


if __name__ == "__main__":
    main()
