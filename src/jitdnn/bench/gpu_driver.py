"""Measuring on GPUs that PyTorch works on, beside cuDNN as PyTorch calls it.

Each candidate's calls are captured in a CUDA graph, over sets of tensors that together are larger than the cache, and
the graphs take turns; the median counts. cuDNN searches for its fastest algorithm (`benchmark=True`) in both memory
orders, and the faster one counts. A result that is further from a reference of higher precision than declared has no
time.

PyTorch holds the memory, captures the graphs and is the reference (without cuDNN); our kernels get pointers.
"""

from __future__ import annotations

import importlib
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any

from jitdnn import targets
from jitdnn.bench import provenance
from jitdnn.bench.driver import Options, PeerResult, Row, labels_of
from jitdnn.bench.gpu_timing import interleaved
from jitdnn.bench.suites import Layer
from jitdnn.devices.gpu import GpuDevice
from jitdnn.errors import InvalidArgument, JitdnnError
from jitdnn.handle import Handle
from jitdnn.planner.choose import get
from jitdnn.planner.plan import Plan, Request
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Operand
from jitdnn.settings import current, settings

PEERS = ("cudnn",)
#: Sets of tensors: together at least so many times the cache, but no more than this many.
CACHES, MOST_SETS = 3, 12
_TORCH_TYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}
_PEER_BOUND = {"f64": 1e-10, "f32": 2e-3, "f16": 1e-2, "bf16": 5e-2}
_ORDERS = ("nhwc", "nchw")


@dataclass(frozen=True, slots=True)
class _Candidate:
    name: str
    run: Callable[[int], Any]  # of the number of a set; launches on the current stream
    read: Callable[[], Any]  # the result of set 0, after a run


def run(
    layers: Sequence[Layer],
    options: Options,
    progress: Callable[[int, str], None] = lambda done, label: None,
    target: str = "cuda",
) -> Iterator[Row]:
    """Measure `layers`, which are convolutions, one after the other, on the first GPU of a target.

    Raises InvalidArgument for another peer than those of `PEERS`, or without PyTorch; DeviceError without a GPU.
    """
    unknown = [name for name in options.peers if name not in PEERS]
    if unknown:
        raise InvalidArgument(f"peer {unknown[0]!r} on {target}: there are {', '.join(PEERS)} and none")
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        raise InvalidArgument(
            f"measuring on {target}: PyTorch holds the memory; pip install 'jitdnn[bench]'"
        ) from None
    device = targets.get(target).device()
    given = options.given("workspace_limit", "choice")
    with settings(**given) as values, Handle(device) as handle:
        math_mode = values.math
        blank = Row(
            "", "", "", 0, device=device.name, threads=1, system=provenance.system(),
            versions=provenance.versions(("numpy", "torch", "cuda-bindings")), commit=provenance.commit(),
        )  # fmt: skip
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = math_mode == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = math_mode == "tf32"
        _compile_ahead(layers, device, options)
        for number, layer in enumerate(layers):
            progress(number, layer.label)
            row = replace(blank, **labels_of(layer))
            try:
                yield _measure(row, layer, torch, device, handle, options)
            except JitdnnError as error:
                yield replace(row, failure=str(error))
            except torch.cuda.OutOfMemoryError as error:
                yield replace(row, failure=f"out of memory: {str(error).splitlines()[0]}")
            torch.cuda.empty_cache()


def _compile_ahead(layers: Sequence[Layer], device: GpuDevice, options: Options) -> None:
    """Fill the code cache, on as many processors as there are. What fails will fail again, where it is reported."""
    request = Request.of(current(), options.algorithm)
    context = copy_context()  # the settings in force, which threads do not inherit

    def compiled(layer: Layer) -> None:
        with suppress(JitdnnError):
            context.copy().run(get, layer.problem, device, request)

    with ThreadPoolExecutor() as pool:
        list(pool.map(compiled, layers))


def _measure(row: Row, layer: Layer, torch: Any, device: GpuDevice, handle: Handle, options: Options) -> Row:
    problem = layer.problem
    if not isinstance(problem, Convolution) or problem.is_integer or problem.has_float8:
        raise InvalidArgument(
            f"{problem.kind} is not measured on {device.target}: only convolutions of reals of 16 bits and more are"
        )
    plan = handle.plan(problem, Request.of(current(), options.algorithm))
    bound = next(c.error_bound for c in plan.candidates if c.chosen)
    assert bound is not None
    size = sum(operand.descriptor.nbytes for operand in problem.operands)
    count = max(1, min(MOST_SETS, math.ceil(CACHES * device.cache_bytes / max(size, 1))))
    sets = [[_random(torch, operand) for operand in problem.inputs] for _ in range(count)]
    own = _own(torch, plan, problem, sets)
    expected = _reference(torch, problem, sets[0])
    own.run(0)
    error = _error(torch, own.read(), expected)
    row = replace(row, algorithm=plan.algorithm, workspace=plan.workspace, error=error, error_bound=bound)
    if not error <= bound:
        return replace(row, failure=f"wrong result: relative error {error:.3g}, declared bound {bound:.3g}")
    candidates, errors, refused = [own], {}, {}
    if "cudnn" in options.peers:
        for order in _ORDERS:
            peer = _peer(torch, problem, sets, order)
            try:
                peer.run(0)
            except RuntimeError as failure:
                refused[peer.name] = str(failure).splitlines()[0]
                continue
            errors[peer.name] = _error(torch, peer.read(), expected)
            if errors[peer.name] <= _PEER_BOUND[problem.dtype]:
                candidates.append(peer)
            else:
                refused[peer.name] = f"another result: relative error {errors[peer.name]:.3g}"
    del expected
    times = interleaved(torch, [one.run for one in candidates], count, options.method.rounds)
    seconds = statistics.median(times[0])
    results = {
        one.name: PeerResult(statistics.median(taken), errors[one.name], statistics.median(taken) / seconds)
        for one, taken in zip(candidates[1:], times[1:], strict=True)
    }
    fastest = min(results, key=lambda name: results[name].seconds, default=None)
    peak = max(device.peak_flops(problem.dtype), device.tensor_flops(problem.dtype))
    return replace(
        row, seconds=seconds, gflops=problem.flops / seconds / 1e9, peak_gflops=peak / 1e9,
        fraction=max(problem.flops / peak, problem.bytes / device.bandwidth) / seconds,
        peer=fastest,
        peer_seconds=results[fastest].seconds if fastest else None,
        ratio=results[fastest].ratio if fastest else None,
        peers=results, refused_peers=refused, rounds=len(times[0]),
    )  # fmt: skip


def _random(torch: Any, operand: Operand) -> Any:
    tensor = _empty(torch, operand)
    return tensor.normal_()


def _empty(torch: Any, operand: Operand) -> Any:
    d = operand.descriptor
    return torch.empty_strided(d.shape, d.strides, dtype=getattr(torch, _TORCH_TYPES[d.dtype]), device="cuda")


def _own(torch: Any, plan: Plan, problem: Convolution, sets: Sequence[Sequence[Any]]) -> _Candidate:
    plan.wait()  # what is measured is the choice, not what runs while it is compiled
    outputs = [_empty(torch, problem.outputs[0]).fill_(math.nan) for _ in sets]
    workspace = torch.empty(max(plan.workspace, 1), dtype=torch.uint8, device="cuda")
    pointers = [
        [*(tensor.data_ptr() for tensor in tensors), output.data_ptr()]
        for tensors, output in zip(sets, outputs, strict=True)
    ]

    def run(number: int) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        plan.run(stream, pointers[number], 1.0, 0.0, workspace.data_ptr())

    return _Candidate("jitdnn", run, lambda: outputs[0])


def _call(torch: Any, problem: Convolution, inputs: Sequence[Any], like: Any) -> Any:
    """The problem by PyTorch; `like` has the shape and memory order of what is differentiated."""
    first, second = inputs
    lift = 1 if len(problem.spatial) == 1 else 0  # channels-last exists from two axes on
    stride, dilation = [1] * lift + [*problem.stride], [1] * lift + [*problem.dilation]
    padding = [0] * lift + [before for before, _ in problem.padding]
    zeros = [0] * len(stride)
    if problem.direction == "fwd":
        forward = torch.nn.functional.conv3d if len(stride) == 3 else torch.nn.functional.conv2d
        return forward(first, second, None, stride, padding, dilation, problem.groups)
    backward = torch.ops.aten.convolution_backward
    is_data = problem.direction == "bwd_data"
    dy, x, w = (first, like, second) if is_data else (second, first, like)
    wanted = (is_data, not is_data, False)
    results = backward(dy, x, w, None, stride, padding, dilation, False, zeros, problem.groups, wanted)
    return results[0 if is_data else 1]


def _lifted(problem: Convolution, tensor: Any) -> Any:
    return tensor.unsqueeze(2) if len(problem.spatial) == 1 else tensor


def _peer(torch: Any, problem: Convolution, sets: Sequence[Sequence[Any]], order: str) -> _Candidate:
    """cuDNN in one memory order. Its inputs are brought into it here, outside of what is timed."""
    if any(before != after for before, after in problem.padding):
        raise InvalidArgument("PyTorch pads both sides alike: such problems have no peer")
    rank = max(2, len(problem.spatial))
    form = torch.contiguous_format
    if order == "nhwc":
        form = torch.channels_last_3d if rank == 3 else torch.channels_last

    def ordered(tensor: Any) -> Any:
        return _lifted(problem, tensor).contiguous(memory_format=form)

    tensors = [[ordered(tensor) for tensor in given] for given in sets]
    like = ordered(_empty(torch, problem.outputs[0]))
    last: list[Any] = [None]

    def run(number: int) -> None:
        with torch.no_grad():
            last[0] = _call(torch, problem, tensors[number], like)

    return _Candidate(
        f"cudnn_{order}", run, lambda: last[0].squeeze(2) if len(problem.spatial) == 1 else last[0]
    )


def _reference(torch: Any, problem: Convolution, tensors: Sequence[Any]) -> Any:
    """The result without cuDNN, in f64 for f32 and f64, else in f32, far more exact than halves."""
    wide = torch.float64 if problem.dtype in ("f32", "f64") else torch.float32
    given = [_lifted(problem, tensor).to(wide).contiguous() for tensor in tensors]
    like = _lifted(problem, _empty(torch, problem.outputs[0])).to(wide).contiguous()
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=False):
        result = _call(torch, problem, given, like)
    return result.squeeze(2) if len(problem.spatial) == 1 else result


def _error(torch: Any, result: Any, expected: Any) -> float:
    """Relative, in the norm; infinite where anything is not finite, as what was never written is."""
    difference = (result.to(expected.dtype) - expected).norm().double()
    error = float(difference / expected.norm().double().clamp_min(1e-30))
    return error if math.isfinite(error) else math.inf
