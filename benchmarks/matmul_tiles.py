"""Every tile of matrix products beside cuBLAS, on an H100 or H200: how the cost model of small products was fitted.

    python benchmarks/matmul_tiles.py 197x1152x384 6304x384x1536 [--dtype f16] [--transposed]

For each M x N x K: microseconds of `torch.matmul`, of each tile of the products by warpgroups and of `mma.sync`, and of
what is chosen without measuring, captured in CUDA graphs that take turns; then the relative error against float64. B is
(K, N) with its rows in one piece, or, with --transposed, with its columns. What is not right is not printed.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
from typing import Any

import torch
from warpgroup_tiles import LARGEST_ERROR, TYPES, Run, seconds

from jitdnn import Handle
from jitdnn.devices import cuda
from jitdnn.kernels.cuda.matmul import TensorCoreMatmul
from jitdnn.kernels.cuda.warpgroup.tile import CLUSTERS, TILES
from jitdnn.kernels.cuda.warpgroup_matmul import WarpgroupMatmul
from jitdnn.problems.matmul import MatMul


class Product:
    """A and B of random numbers, and C."""

    def __init__(self, m: int, n: int, k: int, dtype: str, is_transposed: bool) -> None:
        generator = torch.Generator(device="cuda").manual_seed(1)
        a = torch.randn(m, k, generator=generator, device="cuda").to(TYPES[dtype])
        b = torch.randn(k, n, generator=generator, device="cuda").to(TYPES[dtype])
        self.a, self.b = a, b.t().contiguous().t() if is_transposed else b
        self.c = torch.empty(m, n, dtype=TYPES[dtype], device="cuda")
        self.problem = MatMul.make((m, k), (k, n), dtype, b_strides=self.b.stride())

    def kernel(self, kernel: Any, room: int) -> Run:
        workspace = torch.empty(max(1, room), dtype=torch.uint8, device="cuda")
        pointers = [one.data_ptr() for one in (self.a, self.b, self.c)]

        def run() -> None:
            stream = torch.cuda.current_stream().cuda_stream
            kernel(stream, pointers, 1.0, 0.0, workspace.data_ptr() if room else 0)

        return run

    def error(self, run: Run) -> float:
        self.c.fill_(float("nan"))
        run()
        expected = self.a.double() @ self.b.double()
        return float((self.c.double() - expected).norm() / expected.norm())


def measure(words: str, dtype: str, is_transposed: bool, device: Any) -> None:
    m, n, k = map(int, words.split("x"))
    product = Product(m, n, k, dtype, is_transposed)
    problem = product.problem
    runs: dict[str, Run] = {}
    algorithms: dict[str, Any] = {str(tile): WarpgroupMatmul((tile,)) for tile in (*TILES, *CLUSTERS)}
    algorithms["mma.sync"] = TensorCoreMatmul()
    expected: dict[str, str] = {}
    for name, algorithm in algorithms.items():
        if reason := algorithm.refuse(problem, device):
            print(f"{words}: {name} is refused: {reason}")
            continue
        kernel, room = algorithm.build(problem, device), algorithm.workspace(problem, device)
        runs[name] = product.kernel(kernel, room)
        if name != "mma.sync":
            _, plan = algorithm.sizes(problem, device)
            expected[name] = f"expected {plan.seconds * 1e6:.1f}, {plan.blocking.splits} splits"
    chosen = Handle("cuda:0").plan(problem)
    runs["chosen"] = product.kernel(chosen.launch[0], chosen.workspace)
    errors = {name: product.error(run) for name, run in runs.items()}
    good = {name: run for name, run in runs.items() if errors[name] < LARGEST_ERROR[dtype]}
    for name in errors.keys() - good.keys():
        print(f"{words}: {name} is not right, by {errors[name]:.1e}")
    peer, *times = seconds([lambda: torch.matmul(product.a, product.b, out=product.c), *good.values()])
    print(
        f"{words} {dtype}{' transposed' if is_transposed else ''}: cuBLAS {peer * 1e6:.1f} us; {chosen.algorithm}"
    )
    for name, time in sorted(zip(good, times, strict=True), key=lambda item: item[1])[:8]:
        print(
            f"    {name:28} {time * 1e6:8.1f} us  {peer / time:5.2f}  error {errors[name]:.1e}  "
            f"{expected.get(name, '')}",
            flush=True,
        )


def main() -> None:
    """Print a block for each product."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("products", nargs="+", metavar="MxNxK")
    parser.add_argument("--dtype", choices=["bf16", "f16"], default="f16")
    parser.add_argument("--transposed", action="store_true")
    options = parser.parse_args()
    device = cuda.device(0)
    for words in options.products:
        measure(words, options.dtype, options.transposed, device)


if __name__ == "__main__":
    main()
