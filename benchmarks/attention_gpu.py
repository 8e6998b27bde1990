"""Attention on an NVIDIA GPU beside torch's F.scaled_dot_product_attention: its flash kernels, and cuDNN's.

    python benchmarks/attention_gpu.py [NAME ...] [--direction fwd bwd] [--kind f16 bf16 f32 tf32] [--tiles] [--check]

All sides read the same tensors, are captured as CUDA graphs of several calls, and take turns in one process; a time is
the median of the turns. Before that each result is held against float64 (the first sequence, where all are large).
"floor" is the longer of the operations at the peak of the tensor cores and of the bytes at that of memory; `--tiles`
times all tiles that there are, not only that which the plan chooses.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from jitdnn.devices import cuda
from jitdnn.kernels.cuda.attention.algorithm import Flash, FlashInThree
from jitdnn.kernels.cuda.attention.code import kernel_of
from jitdnn.kernels.cuda.attention.plan import Tile, plan_of
from jitdnn.problems import parse

# batch, query heads, key heads, queries, keys, size, causal
SHAPES = {
    "vit_b": (32, 12, 12, 197, 197, 64, False),
    "vit_small": (32, 6, 6, 196, 196, 64, False),
    "gpt_64": (8, 16, 16, 2048, 2048, 64, True),
    "gpt_128": (8, 16, 16, 2048, 2048, 128, True),
    "long_128": (2, 16, 16, 4096, 4096, 128, False),
    "gqa_128": (4, 32, 8, 2048, 2048, 128, True),
    "wide_256": (4, 8, 8, 1024, 1024, 256, True),
    "odd": (5, 7, 7, 333, 517, 40, False),
    "odd_narrow": (3, 5, 5, 1000, 1001, 20, False),
    "decode": (8, 32, 8, 1, 8192, 128, False),
    "decode_one": (1, 32, 32, 1, 16384, 64, False),
    "decode_many": (64, 16, 16, 1, 1024, 128, False),
}
_TORCH = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "tf32": torch.float32}
_TURNS, _CALLS = 9, 10
# per GPU, as its data sheet has them without sparsity: operations a second by kind, and bytes
_PEAKS = {"f16": 989e12, "bf16": 989e12, "tf32": 495e12, "f32": 67e12}


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def tensors(shape: Sequence[Any], kind: str) -> list[Any]:
    n, h, g, t, s, d, _ = shape
    generator = torch.Generator("cuda").manual_seed(0)
    sizes = ((n, h, t, d), (n, g, s, d), (n, g, s, d), (n, h, t, d))
    return [torch.randn(size, device="cuda", generator=generator).to(_TORCH[kind]) for size in sizes]


def attended(q: Any, k: Any, v: Any, causal: bool) -> Any:
    return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


def exact(arrays: list[Any], causal: bool) -> tuple[Any, ...]:
    """Of the first sequence, in float64: y, dq, dk, dv."""
    q, k, v, dy = (x[:1].double().requires_grad_() for x in arrays)
    with sdpa_kernel(SDPBackend.MATH):
        y = attended(q, k, v, causal)
    return (y.detach(), *torch.autograd.grad(y, (q, k, v), dy.detach()))


def error(found: Any, wanted: Any) -> float:
    difference = (found[:1].double() - wanted).norm() / wanted.norm()
    return float(difference)


class Ours:
    """Kernels of one plan over tensors."""

    def __init__(self, name: str, shape: Sequence[Any], kind: str, direction: str, tile: Tile | None) -> None:
        n, h, g, t, s, d, causal = shape
        dtype = "f32" if kind == "tf32" else kind
        words = f"n{n} h{h} t{t} s{s} d{d}" + (f" kvh{g}" if g != h else "") + (" right0" if causal else "")
        saved = " save" if direction == "fwd" else ""
        self.problem: Any = parse(f"attention_{direction} {words}{saved} {dtype}")
        self.name, self.direction = name, direction
        algorithm = FlashInThree() if kind == "f32" else Flash()
        self.bound = algorithm.error_bound(self.problem)
        self.plan = plan_of(self.problem, cuda.device(), algorithm.has_three_products, tile)

    def build(self) -> None:
        self.kernel = kernel_of(self.plan, cuda.device())

    def on(self, arrays: list[Any], y: Any, lse: Any, results: list[Any]) -> Callable[[], None]:
        q, k, v, dy = arrays
        given = [q, k, v, y, lse] if self.direction == "fwd" else [dy, q, k, v, y, lse, *results]
        room = torch.empty(max(1, self.plan.workspace), dtype=torch.uint8, device="cuda")
        pointers = [x.data_ptr() for x in given]

        def run(_kept: Any = (given, room)) -> None:
            self.kernel(torch.cuda.current_stream().cuda_stream, pointers, 1.0, 0.0, room.data_ptr())

        return run


def captured(run: Callable[[], Any]) -> Any:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_CALLS):
            run()
    return graph


def turn(graph: Any) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return 1e-3 * start.elapsed_time(end) / _CALLS


def peers(arrays: list[Any], causal: bool, direction: str) -> dict[str, Callable[[], Any]]:
    found: dict[str, Callable[[], Any]] = {}
    q, k, v, dy = arrays
    for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION),
                          ("efficient", SDPBackend.EFFICIENT_ATTENTION)):  # fmt: skip
        if name == "efficient" and found:
            continue
        try:
            with sdpa_kernel(backend):
                if direction == "fwd":
                    attended(q, k, v, causal)

                    def run(backend: Any = backend) -> Any:
                        with sdpa_kernel(backend), torch.no_grad():
                            return attended(q, k, v, causal)
                else:
                    own = [x.detach().requires_grad_() for x in (q, k, v)]
                    y = attended(*own, causal)

                    def run(own: Any = own, y: Any = y) -> Any:
                        return torch.autograd.grad(y, own, dy, retain_graph=True)

                run()
                torch.cuda.synchronize()
        except RuntimeError:
            continue
        found[name] = run
    return found


def tiles_of(kind: str, size: int, direction: str) -> list[Tile]:
    if kind in {"f32", "tf32"}:
        return [Tile(4, 1, 32), Tile(4, 1, 16), Tile(8, 1, 32)]
    if direction == "bwd":
        if size <= 64:
            return [Tile(4, 1, 64), Tile(8, 1, 64), Tile(4, 2, 32), Tile(4, 2, 64), Tile(8, 1, 32)]
        return [Tile(8, 1, 64), Tile(4, 1, 64), Tile(8, 1, 32), Tile(4, 2, 32)]
    if size <= 64:
        return [
            Tile(4, 2, 64),
            Tile(4, 1, 64),
            Tile(8, 1, 64),
            Tile(4, 2, 32),
            Tile(8, 2, 64),
            Tile(4, 1, 128),
        ]
    if size <= 128:
        return [Tile(8, 1, 64), Tile(4, 1, 64), Tile(4, 2, 32), Tile(4, 2, 64), Tile(8, 2, 32)]
    return [Tile(4, 1, 32), Tile(8, 1, 32), Tile(8, 1, 64)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SHAPES)}; all by default")
    parser.add_argument("--direction", nargs="+", default=["fwd", "bwd"])
    parser.add_argument("--kind", nargs="+", default=["f16"], choices=list(_TORCH))
    parser.add_argument("--tiles", action="store_true", help="all tiles, not only the plan's")
    parser.add_argument("--check", action="store_true", help="results only, no times")
    options = parser.parse_args()
    memory = cuda.device().bandwidth
    say(torch.cuda.get_device_name(), "PyTorch", torch.__version__, f"memory {memory / 1e12:.2f} TB/s")
    rows = []
    for name in options.names or list(SHAPES):
        for kind in options.kind:
            for direction in options.direction:
                shape = SHAPES[name]
                if direction == "bwd" and name.startswith("decode"):
                    continue
                if kind in {"f32", "tf32"} and shape[5] > 128:
                    continue
                sides = [Ours("plan", shape, kind, direction, None)]
                if options.tiles and shape[3] > 1:
                    for tile in tiles_of(kind, shape[5], direction):
                        if tile != sides[0].plan.tile:
                            sides.append(
                                Ours(
                                    f"{tile.warps},{tile.tiles},{tile.passing}", shape, kind, direction, tile
                                )
                            )
                sides = [side for side in sides if side.plan.shared <= cuda.device().shared_bytes]
                rows.append((name, kind, direction, sides))
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda side: side.build(), [side for row in rows for side in row[3]]))
    say("compiled")
    for name, kind, direction, sides in rows:
        timed(name, kind, direction, sides, memory, options.check)


def timed(name: str, kind: str, direction: str, sides: list[Ours], memory: float, only_check: bool) -> None:
    shape = SHAPES[name]
    causal = shape[6]
    arrays = tensors(shape, kind)
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    wanted = exact(arrays, causal)
    n, h, _, t, _, d, _ = shape
    y = torch.full((n, h, t, d), float("nan"), device="cuda", dtype=_TORCH[kind])
    lse = torch.full((n, h, t), float("nan"), device="cuda")
    saving = next((side for side in sides if side.direction == "fwd"), None)
    if saving is None:
        saving = Ours("plan", shape, kind, "fwd", None)
        saving.build()
    runs: dict[str, Callable[[], Any]] = {}
    saving.on(arrays, y, lse, [])()
    for side in sides:
        results = [torch.full_like(x, float("nan")) for x in arrays[:3]]
        if side.direction == "fwd":
            y.fill_(float("nan"))
        run = side.on(arrays, y, lse, results)
        run()
        torch.cuda.synchronize()
        found = [y] if side.direction == "fwd" else results
        errors = [
            error(a, b) for a, b in zip(found, wanted[:1] if direction == "fwd" else wanted[1:], strict=True)
        ]
        if not max(errors) <= side.bound or any(bool(x.isnan().any()) for x in found):
            say("WRONG", name, kind, direction, side.name, side.plan.tile, errors, side.bound)
            continue
        if side.name == "plan":
            say(f"{name} {kind} {direction} {side.plan.tile} splits {side.plan.splits} pack {side.plan.pack}",
                f"estimated {1e6 * side.plan.seconds:.1f} us, errors", " ".join(f"{e:.1e}" for e in errors),
                f"of {side.bound:.1e}")  # fmt: skip
        runs[side.name] = run
    if only_check:
        return
    runs |= peers(arrays, causal, direction)
    graphs = {}
    for side_name, run in runs.items():
        try:
            graphs[side_name] = captured(run)
            torch.cuda.synchronize()
        except RuntimeError as fault:
            say("no graph of", side_name, str(fault)[:200])
    times: dict[str, list[float]] = {side_name: [] for side_name in graphs}
    for _ in range(_TURNS):
        for side_name, graph in graphs.items():
            times[side_name].append(turn(graph))
    problem = sides[0].problem
    floor = max(problem.flops / _PEAKS[kind], problem.bytes / memory)
    medians = {side_name: statistics.median(each) for side_name, each in times.items()}
    rate = problem.flops / medians.get("plan", float("inf"))
    say(f"  floor {1e6 * floor:.1f} us; plan at {rate / 1e12:.0f} TF/s;",
        "; ".join(f"{side_name} {1e6 * each:.1f}" for side_name, each in medians.items()))  # fmt: skip


if __name__ == "__main__":
    main()
