"""Winograd in halves beside cuDNN and the dense products, and each of its phases beside what its bytes take: sm_90a.

    python benchmarks/winograd_phases.py 'n64 c256 h56 w56 k256 r3 s3 pad1' 'n8 c320 h64 w64 k320 r3 s3 pad1'

For each layer and direction microseconds of cuDNN in both memory orders (`benchmark=True`, strict fp32), of the dense
products in halves, of minimal filtering and of its transforms, product and end alone, all captured in CUDA graphs that
take turns; errors are against float64. A floor is what the bytes of a phase take at the speed of a copy.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import torch
from warpgroup_tiles import DIRECTIONS, Layer, seconds

from jitdnn.devices import cuda
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.halves import (
    WarpgroupGemmHalves,
    WarpgroupWgradDivided,
    WarpgroupWgradHalves,
)
from jitdnn.kernels.cuda.convolution.winograd.algorithm import (
    Winograd2Halves,
    Winograd4Halves,
    WinogradWgrad2Halves,
    WinogradWgrad4Halves,
)
from jitdnn.kernels.gpu.convolution.winograd.plan import plan_of


def phases(layer: Layer, algorithm: Any, device: Any) -> dict[str, tuple[Any, float]]:
    """Each phase alone, and the bytes that it moves."""
    problem = layer.problem
    if algorithm.refuse(problem, device):
        return {}
    composite, room = algorithm.build(problem, device), algorithm.workspace(problem, device)
    workspace = torch.empty(room, dtype=torch.uint8, device="cuda")
    pointers = [tensor.data_ptr() for tensor in layer.operands]
    plan = plan_of(problem, algorithm.max_m)
    rows, columns, terms = plan.product
    batch = 4.0 * plan.points * plan.groups
    a, b, c = batch * rows * terms, batch * terms * columns, batch * rows * columns
    first, second, result = (tensor.nbytes for tensor in plan.tensors)

    def on(kernel: Any, given: list[int], inner: int = 0) -> Any:
        def run() -> None:  # which keeps the workspace
            kernel(torch.cuda.current_stream().cuda_stream, given, 1.0, 0.0, workspace.data_ptr() + inner)

        return run

    own = [workspace.data_ptr() + one for one in composite.operands]
    return {
        "transforms": (on(composite.transforms, pointers), first + second + a + b),
        "product": (on(composite.product, own, composite.inner), a + b + c),
        "finish": (on(composite.finish, pointers), c + result),
    }


def in_parts(layer: Layer, algorithm: Any, device: Any, parts: int) -> Any:
    """The images in so many parts, one after the other in one workspace."""
    problem = layer.problem
    images = problem.n // parts

    def part(tensor: Any) -> Any:
        return replace(tensor, shape=(images, *tensor.shape[1:]))

    one = replace(problem, x=part(problem.x), y=part(problem.y))
    if algorithm.refuse(one, device):
        return None
    kernel, room = algorithm.build(one, device), algorithm.workspace(one, device)
    workspace = torch.empty(room, dtype=torch.uint8, device="cuda")
    is_wgrad = problem.direction == "bwd_filter"
    steps = [4 * images * tensor.strides[0] for tensor in (problem.x, problem.y)]
    if is_wgrad:
        steps = [*steps, 0]
    else:
        steps = [steps[0], 0, steps[1]] if problem.direction == "fwd" else [steps[1], 0, steps[0]]

    def run() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        for number in range(parts):
            pointers = [t.data_ptr() + number * step for t, step in zip(layer.operands, steps, strict=True)]
            kernel(stream, pointers, 1.0, float(is_wgrad and number > 0), workspace.data_ptr())

    return run


def measure(words: str, device: Any, parts: list[int], names: list[str]) -> None:
    layer, other = Layer(f"{words} f32 nhwc"), Layer(f"{words} f32")
    is_wgrad = layer.problem.direction == "bwd_filter"
    algorithms: list[Any] = [WarpgroupGemmHalves(), Winograd2Halves(), Winograd4Halves()]
    if is_wgrad:
        algorithms = [
            WarpgroupWgradHalves(),
            WarpgroupWgradDivided(),
            WinogradWgrad2Halves(),
            WinogradWgrad4Halves(),
        ]
    algorithms = [one for one in algorithms if not names or one.name in names]
    with torch.backends.cudnn.flags(enabled=True, benchmark=False):
        reference, other_reference = layer.reference(), other.reference()
    runs, expected = {}, {}
    for one in algorithms:
        run = layer.kernel(one, device)
        if run:
            runs[one.name], expected[one.name] = run, one.estimate(layer.problem, device)
    last = algorithms[-1]
    for count in parts:
        run = in_parts(layer, last, device, count) if layer.problem.n % count == 0 else None
        if run:
            runs[f"in {count} parts"] = run
    first = last.name + " nchw"
    run = other.kernel(last, device)
    if run:
        runs[first] = run
    errors = {name: layer.error(run, reference) for name, run in runs.items() if name != first}
    if first in runs:
        errors[first] = other.error(runs[first], other_reference)
    found = layer.peer()()
    of_peer = float((found.double() - reference).norm() / reference.norm())
    del reference, other_reference, found
    alone = phases(layer, last, device)
    times = seconds([layer.peer(), other.peer(), *runs.values(), *(run for run, _ in alone.values())])
    peer = min(times[:2])
    print(f"{words}: cuDNN {times[0] * 1e6:.1f} nhwc, {times[1] * 1e6:.1f} nchw, error {of_peer:.1e}")
    own = dict(zip(runs, times[2:], strict=False))
    for name, time in own.items():
        print(
            f"    {name:28} {time * 1e6:8.1f} us  {peer / time:5.2f}  error {errors[name]:.1e}"
            f"  expected {expected.get(name, 0) * 1e6:.1f}"
        )
    for (name, (_, size)), time in zip(alone.items(), times[2 + len(runs) :], strict=True):
        floor = size / device.bandwidth
        print(f"        {name:24} {time * 1e6:8.1f} us, floor {floor * 1e6:.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("layers", nargs="+", help="a convolution without its direction and type")
    parser.add_argument("--direction", choices=DIRECTIONS, nargs="+", default=DIRECTIONS)
    parser.add_argument(
        "--parts", type=int, nargs="*", default=[], help="also over the images in so many parts"
    )
    parser.add_argument("--algorithm", nargs="+", default=[], help="names; all that there are without")
    chosen = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    device = cuda.device(0)
    for words in chosen.layers:
        for direction in chosen.direction:
            measure(f"conv_{direction} {words}", device, chosen.parts, chosen.algorithm)


if __name__ == "__main__":
    main()
