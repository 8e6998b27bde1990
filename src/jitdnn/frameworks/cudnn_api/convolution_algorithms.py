"""cuDNN's algorithms of convolutions: what each stands for here, and Get, Find, FindEx and the workspace of each.

The families follow what cuDNN says of its own: the first algorithm of each direction takes no workspace, the one
after it
takes what it needs to be fast, and the rest are named for how they compute. Each is the fastest of its family here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple

from jitdnn.errors import NotSupported
from jitdnn.frameworks.cudnn_api.convolution import form_of, math_of, problem_of
from jitdnn.frameworks.cudnn_api.enums import (
    cudnnConvolutionBwdDataAlgo_t,
    cudnnConvolutionBwdFilterAlgo_t,
    cudnnConvolutionFwdAlgo_t,
    cudnnDeterminism_t,
    cudnnMathType_t,
    cudnnStatus_t,
)
from jitdnn.frameworks.cudnn_api.handles import cudnnHandle
from jitdnn.frameworks.cudnn_api.launch import plan_of
from jitdnn.frameworks.cudnn_api.memory import with_room
from jitdnn.handle import Handle
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.planner.find import find
from jitdnn.planner.plan import Candidate, Plan, Request
from jitdnn.planner.store import Store
from jitdnn.planner.survey import survey
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import DeviceId, TensorDescriptor

_FWD = cudnnConvolutionFwdAlgo_t
_DATA = cudnnConvolutionBwdDataAlgo_t
_FILTER = cudnnConvolutionBwdFilterAlgo_t
_REFERENCE = "reference"
_MOST_REQUESTS = 64


class AlgoPerf(NamedTuple):
    """What a query says of an algorithm: `time` in milliseconds, `memory` in bytes of workspace."""

    algo: IntEnum
    status: cudnnStatus_t
    time: float
    memory: int
    determinism: cudnnDeterminism_t
    mathType: cudnnMathType_t


@dataclass(frozen=True)
class Family:
    """Which algorithms one of cuDNN's stands for: by the beginnings of their names, without workspace or with."""

    names: tuple[str, ...]
    takes_workspace: bool = True

    def has(self, candidate: Candidate) -> bool:
        if candidate.refused is not None or (candidate.workspace and not self.takes_workspace):
            return False
        return candidate.name.startswith(self.names)


_PRODUCTS = (
    "implicit_gemm", "vnni", "grouped", "groups_merged", "depthwise", "stem", "patch", "direct", "cudnn_",
)  # fmt: skip
_NONE = Family(())

#: families by algorithm, for each direction
FAMILIES: dict[str, dict[IntEnum, Family]] = {
    "fwd": {
        _FWD.CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM: Family(_PRODUCTS, False),
        _FWD.CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM: Family(_PRODUCTS),
        _FWD.CUDNN_CONVOLUTION_FWD_ALGO_GEMM: Family(("im2col",)),
        _FWD.CUDNN_CONVOLUTION_FWD_ALGO_DIRECT: Family(("direct", "depthwise", "grouped", "stem")),
        _FWD.CUDNN_CONVOLUTION_FWD_ALGO_FFT: Family(("fft",)),
        _FWD.CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING: _NONE,
        _FWD.CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD: Family(("winograd_2",)),
        _FWD.CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED: Family(("winograd_4",)),
    },
    "bwd_data": {
        _DATA.CUDNN_CONVOLUTION_BWD_DATA_ALGO_0: Family(_PRODUCTS, False),
        _DATA.CUDNN_CONVOLUTION_BWD_DATA_ALGO_1: Family((*_PRODUCTS, "im2col")),
        _DATA.CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT: Family(("fft",)),
        _DATA.CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING: _NONE,
        _DATA.CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD: Family(("winograd_2",)),
        _DATA.CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED: Family(("winograd_4",)),
    },
    "bwd_filter": {
        _FILTER.CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0: Family(_PRODUCTS, False),
        _FILTER.CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1: Family((*_PRODUCTS, "im2col")),
        _FILTER.CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT: Family(("fft",)),
        _FILTER.CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3: Family(("direct", "depthwise", "grouped", "stem")),
        _FILTER.CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD: _NONE,
        _FILTER.CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED: Family(("winograd",)),
        _FILTER.CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING: _NONE,
    },
}


class Asked:
    """A convolution as a caller described it: its problem, and the handle with the arithmetic that it is to run with.

    It is made once for each kind of call, and remembers what each algorithm of cuDNN's stands for.
    """

    __slots__ = ("_requests", "handle", "math", "problem")

    def __init__(self, handle: Handle, problem: Convolution, math: cudnnMathType_t) -> None:
        self.handle, self.problem, self.math = handle, problem, math
        self._requests: dict[tuple[Any, ...], Request] = {}

    @classmethod
    def of(
        cls,
        owner: cudnnHandle,
        direction: str,
        x: TensorDescriptor,
        w: TensorDescriptor,
        convDesc: Any,
        y: TensorDescriptor,
    ) -> Asked:
        key = (direction, x, w, y, *form_of(convDesc))
        found: Asked | None = owner.asked.recall(key)
        if found is None:
            math = math_of(convDesc)
            made = cls(owner.handle(math), problem_of(direction, x, w, convDesc, y), math)
            found = owner.asked.put(key, made)
        return found

    @property
    def device_id(self) -> DeviceId | None:
        """Where a query without arrays is meant for: the GPU of the settings, or else the processor."""
        device = self.handle.device
        found: DeviceId | None = getattr(device, "device_id", None)
        return found

    def request(self, name: str | None = None) -> Request:
        """One without a limit on workspace, which the caller gives."""
        return replace(Request.of(self.handle.settings, name), workspace_limit=None)

    def candidates(self, device_id: DeviceId | None) -> list[Candidate]:
        """What there is, with estimated times or such as were measured before."""
        device = self.handle.at(device_id).device
        found = survey(self.problem, device, self.request(), None, Store.default())
        return [one.summary for one in found if one.summary.name != _REFERENCE]

    def measured(self, device_id: DeviceId | None) -> list[Candidate]:
        """The same with measured times."""
        device = self.handle.at(device_id).device
        found = find(self.problem, device, self.request())
        return [one for one in found.candidates if one.name != _REFERENCE]

    def name_of(self, algo: IntEnum, device_id: DeviceId | None) -> str:
        """The algorithm that one of cuDNN's stands for. Raises NotSupported with the reasons."""
        family = FAMILIES[self.problem.direction][algo]
        candidates = self.candidates(device_id)
        found = _best(family, candidates)
        if found is not None:
            return found.name
        if not family.names:
            raise NotSupported(f"{algo.name} is not there: no algorithm computes so")
        reasons = {
            one.name: one.refused or f"it takes {one.workspace} bytes of workspace, and this one takes none"
            for one in candidates
            if one.name.startswith(family.names)
        }
        raise NotSupported(f"{algo.name} does not take {self.problem}", reasons)

    def plan(self, algo: IntEnum, device_id: DeviceId | None, epilogue: Epilogue | None = None) -> Plan:
        """The plan of an algorithm of cuDNN's."""
        key = (algo, device_id, self.handle.settings.serial)
        request = self._requests.get(key)
        if request is None:
            if len(self._requests) >= _MOST_REQUESTS:  # of settings that are no longer in force
                self._requests.clear()
            request = self._requests[key] = self.request(self.name_of(algo, device_id))
        return plan_of(self.handle, device_id, self.problem, request, epilogue)

    def plan_within(
        self, algo: IntEnum, device_id: DeviceId | None, epilogue: Epilogue | None, size: int
    ) -> Plan:
        """The same with an epilogue, in the workspace that the query of its size names, which knows of none: where that
        is too little for both, by another algorithm."""
        plan = self.plan(algo, device_id, epilogue)
        if with_room(plan.workspace) <= size or with_room(self.plan(algo, device_id).workspace) > size:
            return plan
        limit = max(0, size - with_room(1) + 1)
        return plan_of(
            self.handle, device_id, self.problem, replace(self.request(), workspace_limit=limit), epilogue
        )

    def results(self, candidates: list[Candidate], count: int) -> list[AlgoPerf]:
        """The answer of a query, the fastest first, what is not there last."""
        found = []
        for algo, family in FAMILIES[self.problem.direction].items():
            best = _best(family, candidates)
            if best is None:
                found.append(
                    AlgoPerf(
                        algo, cudnnStatus_t.CUDNN_STATUS_NOT_SUPPORTED, -1.0, 0,
                        cudnnDeterminism_t.CUDNN_NON_DETERMINISTIC, self.math,
                    )
                )  # fmt: skip
                continue
            assert best.seconds is not None
            assert best.workspace is not None
            found.append(
                AlgoPerf(
                    algo, cudnnStatus_t.CUDNN_STATUS_SUCCESS, 1e3 * best.seconds, with_room(best.workspace),
                    cudnnDeterminism_t(int(best.deterministic)), self.math,
                )
            )  # fmt: skip
        key: Callable[[AlgoPerf], tuple[bool, float, int]] = lambda one: (  # noqa: E731
            one.status is not cudnnStatus_t.CUDNN_STATUS_SUCCESS,
            one.time,
            one.memory,
        )
        return sorted(found, key=key)[:count]


def _best(family: Family, candidates: list[Candidate]) -> Candidate | None:
    open_to = [one for one in candidates if family.has(one) and one.seconds is not None]
    return min(open_to, key=lambda one: one.seconds or 0.0, default=None)
