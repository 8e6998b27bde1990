"""Plans that outlive the process: what was chosen, and how its kernel is launched, on processors and by CUDA.

The first call of a kind asks every algorithm about its problem, which takes milliseconds and the code of all of them.
Whoever planned the same before, in whatever process, has left the answer beside the compiled code: the candidates, and
of the chosen kernel the name of its code, its phases and its integers; of a problem that is divided those of every
part. With that a plan is one file to read.

A kept plan is found under everything that it depends on: the problem, the request, the epilogue, the device, the
sources of algorithms and planner, and the stored times of the problem: where these are measured, plans are made anew.
A model's first step measures while it plans, and the times of one layer leave the plans of the others. A problem that
is divided depends on times of its parts as well, and is planned anew whenever any are stored. Kernels with Python of
their own are not kept (`kernel_records.py`, `gpu_kernel_records.py`), and planned again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from jitdnn import log
from jitdnn.errors import JitdnnError
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel, keeping_filter
from jitdnn.planner.divided import Divided
from jitdnn.planner.plan import DEFERRED, Candidate, Part, Plan, Request
from jitdnn.planner.store import Store
from jitdnn.planner.survey import completed, stored_key
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.cache import CodeCache
from jitdnn.rtcg.recording import records
from jitdnn.rtcg.use import note_look_up
from jitdnn.settings import current
from jitdnn.tensor import TensorDescriptor

if TYPE_CHECKING:
    from jitdnn.devices.cpu import CpuDevice
    from jitdnn.devices.cuda import CudaDevice

_SCHEMA = 5
_GPU_FOLDERS = "devices", "kernels", "planner", "problems", "rtcg", "targets", "tensor"
_SOURCES = ".py", ".pyc", ".cu", ".cuh", ".c", ".h"


def recall(
    problem: Problem, device: Device, request: Request, epilogue: Epilogue | None, key: str | None = None
) -> Plan | None:
    """The plan that was kept for a problem; None if there is none, or its code is there no more. `key`: `key_of` these,
    where it is known."""
    key = key or key_of(problem, device, request, epilogue)
    if key is None:
        return None
    content = CodeCache.default().get(key)
    if content is None:
        return None
    try:
        kept = json.loads(content)
        # the others are read when somebody asks for them
        candidates = [Candidate(**each) for each in kept["candidates"] if each["chosen"]]
        algorithms = [_KeptAlgorithm(name, version, device, request) for name, version in kept["algorithms"]]
        kernel = _restored(kept["kernel"], problem, device, epilogue, algorithms[0])
        if kernel is None or kept["state"] not in (None, list(Store.default().state())):
            return None
        parts = _parts(kept["parts"], problem, epilogue, algorithms, kernel)
        device_id = getattr(device, "device_id", None)

        def complete(_: Sequence[Candidate]) -> list[Candidate]:
            known = [Candidate(**each) for each in kept["candidates"]]
            return completed(problem, device, request, epilogue, known, kept["has_all"])

        plan = Plan(problem, epilogue, parts, kernel, candidates, request, device, device_id, complete)
    except (
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        JitdnnError,
    ):  # of another version of the format: it is planned again
        return None
    note_look_up(str(problem), stored_key(epilogue, request), device.name)
    log.chose(problem, plan)
    return plan


def is_kept(problem: Problem, device: Device, request: Request, epilogue: Epilogue | None) -> bool:
    """Whether there is a plan on disk, which is not read."""
    key = key_of(problem, device, request, epilogue)
    return key is not None and CodeCache.default().has(key)


def keep(plan: Plan, key: str | None = None) -> None:
    """Keep a plan for processes to come, if its kernel is made of launches. `key`: `key_of` it, where it is known."""
    key = key or key_of(plan.problem, plan.device, plan.request, plan.epilogue)
    record = None if key is None else _record(plan)
    if key is None or record is None:
        return
    candidates = plan.candidates_so_far
    # where some were not asked, those that are refused will be again when these are
    has_all = all(candidate.source != DEFERRED for candidate in candidates)
    algorithms = list(dict.fromkeys((part.algorithm.name, part.algorithm.version) for part in plan.parts))
    kept = {
        "algorithms": algorithms,
        "state": list(Store.default().state()) if isinstance(plan.run, Divided) else None,
        "parts": _part_records(plan, algorithms),
        "candidates": [vars(one) for one in candidates if has_all or one.refused is None],
        "has_all": has_all,
        "kernel": record,
    }
    CodeCache.default().put(key, json.dumps(kept).encode())


def _record(plan: Plan) -> dict[str, Any] | None:
    if plan.device.target == "cpu":
        from jitdnn.planner.kernel_records import record_of  # brings the compiler of processors' code along

        return record_of(plan.run)
    from jitdnn.planner import gpu_kernel_records

    return gpu_kernel_records.record_of(plan.run, cast("CudaDevice", plan.device))


def _restored(
    record: Mapping[str, Any],
    problem: Problem,
    device: Device,
    epilogue: Epilogue | None,
    algorithm: Algorithm,
) -> Kernel | None:
    if device.target == "cpu":
        from jitdnn.planner.kernel_records import restored  # brings the compiler of processors' code along

        return restored(record, cast("CpuDevice", device).isa)
    from jitdnn.planner import gpu_kernel_records

    def build() -> Kernel:
        return algorithm.build(problem, device, epilogue)

    return gpu_kernel_records.restored(record, cast("CudaDevice", device), build)


def _part_records(plan: Plan, algorithms: list[tuple[str, int]]) -> list[dict[str, Any]] | None:
    """The parts of a plan that is divided, None for one that is not: of each the number of its algorithm, its problem,
    and the operands of its share of the epilogue."""
    if not isinstance(plan.run, Divided):
        return None
    return [
        {
            "algorithm": algorithms.index((part.algorithm.name, part.algorithm.version)),
            "problem": asdict(cast(Convolution, part.problem)),  # no other problem is divided
            "operands": None if part.epilogue is None else [asdict(one) for one in part.epilogue.operands],
        }
        for part in plan.parts
    ]


def _parts(
    records: Sequence[Mapping[str, Any]] | None, problem: Problem, epilogue: Epilogue | None,
    algorithms: Sequence[Algorithm], kernel: Kernel,
) -> list[Part]:  # fmt: skip
    """The parts of a kept plan with this kernel."""
    if records is None:
        return [Part(problem, algorithms[0], kernel, epilogue)]
    if not isinstance(kernel, Divided):
        raise ValueError("parts of a kernel that is not divided")
    parts = []
    for record, (own, _, _) in zip(records, kernel.parts, strict=True):
        operands = record["operands"]
        fused = (
            None
            if epilogue is None or operands is None
            else replace(epilogue, operands=tuple(_descriptor(one) for one in operands))
        )
        parts.append(Part(_convolution(record["problem"]), algorithms[record["algorithm"]], own, fused))
    return parts


def _convolution(record: Mapping[str, Any]) -> Convolution:
    """The problem of a part; JSON has lists for tuples."""
    tensors = {name: _descriptor(record[name]) for name in ("x", "w", "y")}
    padding = tuple((before, after) for before, after in record["padding"])
    axes = {name: tuple(record[name]) for name in ("stride", "dilation")}
    return Convolution(**{**record, **tensors, **axes, "padding": padding})


def _descriptor(record: Mapping[str, Any]) -> TensorDescriptor:
    return TensorDescriptor(
        tuple(record["shape"]), tuple(record["strides"]), record["dtype"], record["offset"]
    )


def key_of(problem: Problem, device: Device, request: Request, epilogue: Epilogue | None) -> str | None:
    """What a plan is kept under; None where plans are not kept."""
    values = current()
    if not (values.keep_plans and values.cache and isinstance(device, Hashable)) or records() is not None:
        return None
    of_device = _of_device(device)
    if of_device is None:
        return None
    fused = () if epilogue is None else (epilogue.expression.key, *map(repr, epilogue.operands))
    parts = (
        of_device, str(problem), repr(request), fused,
        Store.default().state_of(str(problem), stored_key(epilogue, request), device.name),
    )  # fmt: skip
    return hashlib.sha256(repr(("plan", *parts)).encode()).hexdigest()


@functools.lru_cache(64)
def _of_device(device: Device) -> str | None:
    """What plans depend on beside problem and request, in a text; None of a device whose plans are not kept."""
    if device.target == "cpu":
        from jitdnn.devices.cpu import CpuDevice
        from jitdnn.rtcg.compile import generator_fingerprint  # brings the compiler of processors' code along

        if type(device) is not CpuDevice:
            return None
        sources = (_SCHEMA, generator_fingerprint(), _planner_fingerprint())
        return repr((*sources, device.name, device.isa, device.threads, device.efficiency))
    if device.target != "cuda":
        return None
    from jitdnn.devices.cuda import CudaDevice
    from jitdnn.devices.cuda_compile import compiler_version

    if type(device) is not CudaDevice:
        return None
    return repr((_SCHEMA, _sources_fingerprint(), compiler_version(), replace(device, index=0)))


@functools.cache
def _sources_fingerprint() -> str:
    """A hash of all that plans and the text of GPU code are made by."""
    digest = hashlib.sha256()
    package = str(Path(__file__).resolve().parent.parent)
    for folder in _GPU_FOLDERS:
        # without Path, which takes as long for some hundred files as a small model's first step
        for place, folders, names in os.walk(os.path.join(package, folder)):
            folders[:] = sorted({*folders} - {"cpu", "__pycache__"})
            for name in sorted(names):
                if name.endswith(_SOURCES):
                    path = os.path.join(place, name)
                    with open(path, "rb") as file:
                        digest.update(f"{os.path.relpath(path, package)}\n".encode() + file.read())
    return digest.hexdigest()


@functools.cache
def _planner_fingerprint() -> str:
    """A hash of the planner's sources: those of the algorithms are in that of the generators."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).resolve().parent.glob("*.py*")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


class _KeptAlgorithm(Algorithm):
    """An algorithm by its name: the one of the table is looked up when it is asked for more."""

    problem = Problem

    def __init__(self, name: str, version: int, device: Device, request: Request) -> None:
        self.name, self.version = name, version  # type: ignore[misc]
        self._device, self._request = device, request

    def _of(self, problem: Problem, epilogue: Epilogue | None = None) -> Algorithm:
        from jitdnn.kernels.tables import algorithms

        table = algorithms(problem, self._device.target, self._request.vendor)
        (found,) = (algorithm for algorithm in table if algorithm.name == self.name)
        return keeping_filter(found, problem, self._device, epilogue) if self._request.keeps_filter else found

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        return self._of(problem, epilogue).refuse(problem, device, epilogue)

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        return self._of(problem, epilogue).workspace(problem, device, epilogue)

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        return self._of(problem, epilogue).estimate(problem, device, epilogue)

    def error_bound(self, problem: Problem) -> float:
        return self._of(problem).error_bound(problem)

    def spreads(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        return self._of(problem, epilogue).spreads(problem, device, epilogue)

    def arithmetic(self, problem: Problem) -> str:
        return self._of(problem).arithmetic(problem)

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        return self._of(problem, epilogue).build(problem, device, epilogue)
