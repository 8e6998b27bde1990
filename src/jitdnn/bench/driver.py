"""The one driver of all measurements: problems in, rows out.

For each problem: plan it, check the result of every candidate against the float64 reference (a candidate that
fails reports no time), then let the candidates take turns. Inputs are rotated among several sets, outputs
allocated anew by every call on all sides, filters transformed and packed within the call. Rates count the
operations of the direct algorithm, so a fast algorithm may exceed the peak, which is measured around each
problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from jitdnn.bench import provenance
from jitdnn.bench.gate import Gate
from jitdnn.bench.peers import PEER_BOUND, Peer, torch_peers
from jitdnn.bench.suites import Layer
from jitdnn.bench.timing import Method, Neighbours, interleaved, median, ratio
from jitdnn.errors import InvalidArgument, JitdnnError, NotSupported
from jitdnn.handle import Handle
from jitdnn.planner.plan import Plan, Request
from jitdnn.problems.problem import BYTE_INTEGERS, Problem
from jitdnn.settings import current, settings
from jitdnn.tensor import TensorDescriptor, allocator, borrow, numpy_dtype

if TYPE_CHECKING:
    from jitdnn.devices.cpu import CpuDevice

FloatArray = npt.NDArray[np.floating[Any]]

#: Families of peers that can be asked for.
PEERS = ("torch", "im2col")
#: Several sets of inputs, but no more than this many bytes of them.
MOST_SETS = 4
SET_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure. `peers`: names out of `PEERS`; `algorithm`: one by name in place of the planner's
    choice; `threads`, `workspace_limit` and `choice` as in the settings, None for those in force."""

    peers: tuple[str, ...] = ()
    algorithm: str | None = None
    threads: int | None = None
    workspace_limit: int | str | None = None
    choice: str | None = None
    method: Method = field(default_factory=Method)

    def given(self, *names: str) -> dict[str, Any]:
        """Those of the settings of these names that are not left as they are."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True)
class PeerResult:
    """One peer beside ours: seconds a call, its error, and how many times as long as ours it takes."""

    seconds: float
    error: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Row:
    """One measured problem. `failure` says why there are no times; `peer`, `peer_seconds` and `ratio` are
    those of the fastest peer. Times in seconds, rates in GFLOP/s, sizes in bytes; errors are relative, in the
    norm."""

    problem: str
    network: str
    name: str
    count: int
    failure: str | None = None
    algorithm: str | None = None
    seconds: float | None = None
    gflops: float | None = None
    peak_gflops: float | None = None
    fraction: float | None = None
    error: float | None = None
    error_bound: float | None = None
    workspace: int | None = None
    peer: str | None = None
    peer_seconds: float | None = None
    ratio: float | None = None
    peers: dict[str, PeerResult] = field(default_factory=dict)
    refused_peers: dict[str, str] = field(default_factory=dict)
    rounds: int = 0
    neighbours: float | None = None
    device: str = ""
    threads: int = 0
    system: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    date: str = ""
    commit: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The row as JSON's types."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Candidate:
    name: str
    family: str
    run: Callable[[int], Any]
    to_numpy: Callable[[Any], FloatArray]
    bound: float


def run(
    layers: Sequence[Layer],
    options: Options,
    progress: Callable[[int, str], None] = lambda done, label: None,
) -> Iterator[Row]:
    """Measure `layers` one after the other. `progress` is called before each with its number and label.

    Raises InvalidArgument at the start for a peer that is unknown or not installed.
    """
    from jitdnn.devices import cpu  # and with it the compiler of the CPU's kernels: GPUs do without

    families = _families(options.peers)
    given = options.given("threads", "workspace_limit", "choice")
    with settings(**given) as values, ExitStack() as stack:
        if options.threads is not None and options.peers:
            for context in _thread_limits(options.peers, families, values.threads):
                stack.enter_context(context)
        device = cpu.host(values.threads, values.cpu)
        handle = stack.enter_context(Handle(device))
        blank = Row(
            "", "", "", 0, device=device.name, threads=values.threads, system=provenance.system(),
            versions=provenance.versions(), commit=provenance.commit(),
        )  # fmt: skip
        for number, layer in enumerate(layers):
            progress(number, layer.label)
            row = replace(blank, **labels_of(layer))
            try:
                yield _measure(row, layer.problem, handle, device, families, options)
            except NotSupported as error:
                yield replace(row, failure=error.message)


def labels_of(layer: Layer) -> dict[str, Any]:
    """The fields of a row that say what is measured, and when."""
    return {
        "problem": str(layer.problem), "network": layer.network, "name": layer.name, "count": layer.count,
        "date": provenance.now(),
    }  # fmt: skip


def _measure(
    row: Row,
    problem: Problem,
    handle: Handle,
    device: CpuDevice,
    families: Sequence[Peer],
    options: Options,
) -> Row:
    sets = input_sets(problem)
    plan = handle.plan(problem, Request.of(current(), options.algorithm))
    own = own_candidate(problem, plan, handle, sets, "jitdnn", "jitdnn")
    gate = Gate(problem, sets[0])
    error = gate.error(poisoned_result(problem, plan, handle, sets[0]))
    row = replace(row, algorithm=plan.algorithm, workspace=plan.workspace, error=error, error_bound=own.bound)
    if not error <= own.bound:
        return replace(
            row, failure=f"wrong result: relative error {error:.3g}, declared bound {own.bound:.3g}"
        )
    peers, refused = _peer_candidates(problem, handle, families, options.peers, sets)
    errors = {peer.name: gate.error(peer.to_numpy(peer.run(0))) for peer in peers}
    for peer in peers:
        if not errors[peer.name] <= peer.bound:
            refused[peer.name] = f"another result: relative error {errors[peer.name]:.3g}"
    peers = [peer for peer in peers if peer.name not in refused]

    kind = "i8" if problem.inputs[0].descriptor.dtype in BYTE_INTEGERS else problem.dtype
    peak_before = device.measure_peak(kind)
    neighbours = Neighbours()
    times = interleaved([own.run, *(peer.run for peer in peers)], options.method)
    peak = max(peak_before, device.measure_peak(kind))
    seconds = median(times[0])
    results = {
        peer.name: PeerResult(median(taken), errors[peer.name], ratio(taken, times[0]))
        for peer, taken in zip(peers, times[1:], strict=True)
    }
    fastest = min(results, key=lambda name: results[name].seconds, default=None)
    rate = problem.flops / seconds
    return replace(
        row, seconds=seconds, gflops=rate / 1e9, peak_gflops=peak / 1e9, fraction=rate / peak,
        peer=fastest,
        peer_seconds=results[fastest].seconds if fastest else None,
        ratio=results[fastest].ratio if fastest else None,
        peers=results, refused_peers=refused, rounds=len(times[0]), neighbours=neighbours.processors(),
    )  # fmt: skip


def _families(names: Sequence[str]) -> list[Peer]:
    peers: list[Peer] = []
    for name in names:
        if name not in PEERS:
            raise InvalidArgument(f"peer {name!r}: there are {', '.join(PEERS)} and none")
        if name == "torch":
            peers += torch_peers()
    return peers


def _thread_limits(
    names: Sequence[str], families: Sequence[Peer], threads: int
) -> Iterator[AbstractContextManager[Any]]:
    for peer in families:
        yield peer.threads(threads)
    if "im2col" in names:
        try:
            from threadpoolctl import threadpool_limits
        except ImportError:
            raise InvalidArgument(
                "peer im2col with a number of threads: threadpoolctl limits NumPy's BLAS; "
                "pip install 'jitdnn[bench]' brings it"
            ) from None
        yield threadpool_limits(threads, user_api="blas")


def own_candidate(
    problem: Problem, plan: Plan, handle: Handle, sets: Sequence[Sequence[FloatArray]], name: str, family: str
) -> Candidate:
    """The plan as a caller of the public functions runs it: output allocated, workspace from the handle."""
    pointers = [tuple(borrow(array).pointer for array in arrays) for arrays in sets]
    allocate = allocator("numpy", _dense(problem.output))

    def run(number: int) -> FloatArray:
        owner, array = allocate()
        handle.run(plan, (*pointers[number % len(pointers)], array.pointer))
        result: FloatArray = owner
        return result

    bound = next(c.error_bound for c in plan.candidates if c.chosen)
    assert bound is not None
    return Candidate(name, family, run, lambda output: output, bound)


def poisoned_result(problem: Problem, plan: Plan, handle: Handle, inputs: Sequence[FloatArray]) -> FloatArray:
    """The plan's result in memory that was full of NaN: what is not written stays NaN; integers, of the largest."""
    owner, array = allocator("numpy", _dense(problem.output))()
    owner[...] = np.iinfo(owner.dtype).max if owner.dtype.kind in "iu" else np.nan
    handle.run(plan, (*(borrow(a).pointer for a in inputs), array.pointer))
    result: FloatArray = owner
    return result


def _peer_candidates(
    problem: Problem,
    handle: Handle,
    families: Sequence[Peer],
    names: Sequence[str],
    sets: Sequence[Sequence[FloatArray]],
) -> tuple[list[Candidate], dict[str, str]]:
    candidates, refused = [], {}
    bound = PEER_BOUND.get(problem.dtype, 0.0)
    for peer in families:
        reason = peer.refuse(problem)
        if reason is None:
            candidates.append(
                Candidate(peer.name, peer.family, peer.prepare(problem, sets), peer.to_numpy, bound)
            )
        else:
            refused[peer.name] = reason
    if "im2col" in names:
        try:
            request = Request.of(current(), "im2col")
            plan = handle.plan(problem, replace(request, workspace_limit=None))
        except JitdnnError as error:
            refused["im2col"] = str(error).splitlines()[0]
        else:
            candidates.append(
                replace(own_candidate(problem, plan, handle, sets, "im2col", "im2col"), bound=bound)
            )
    return candidates, refused


def _dense(descriptor: TensorDescriptor) -> TensorDescriptor:
    if any(stride < 0 for stride in descriptor.strides):
        raise InvalidArgument(f"an output of strides {descriptor.strides}: negative strides are not measured")
    return descriptor


def input_sets(problem: Problem) -> list[list[FloatArray]]:
    """Standard normal numbers, or any integers, in the memory order of each input, in as many sets as fit the
    budget."""
    rng = np.random.default_rng(0)
    first = [_filled(operand.descriptor, rng) for operand in problem.inputs]
    size = sum(array.size * array.itemsize for array in first)
    sets = [first]
    while len(sets) < MOST_SETS and (len(sets) + 1) * size <= SET_BYTES:
        sets.append([_filled(operand.descriptor, rng) for operand in problem.inputs])
    return sets


def _filled(descriptor: TensorDescriptor, rng: np.random.Generator) -> FloatArray:
    dtype = numpy_dtype(descriptor.dtype)
    lowest, highest = descriptor.span() if descriptor.size else (0, -1)
    count = highest - lowest + 1
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        memory = rng.integers(info.min, info.max, count, dtype, endpoint=True)
    else:
        memory = rng.standard_normal(count, np.float32).astype(dtype, copy=False)
    strides = tuple(stride * dtype.itemsize for stride in descriptor.strides)
    array: FloatArray = np.ndarray(descriptor.shape, dtype, memory, -lowest * dtype.itemsize, strides)
    return array
