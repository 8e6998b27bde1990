"""Recurrent layers on CUDA: the kernels against the definition, on a device that shows misuse; compiling; refusals.

The emulator runs thread blocks one after the other, so there a layer's units are one slice; on a GPU there are many,
which wait for each other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import jitdnn as jd
from cases import make_case
from examples import examples
from harness import check, run_algorithm
from jitdnn.devices import cuda
from jitdnn.errors import DeviceError, InvalidArgument
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cuda.rnn import plan as plans
from jitdnn.kernels.cuda.rnn.algorithm import PersistentSteps, PersistentStepsTensorCores, PersistentStepsTf32
from jitdnn.kernels.cuda.rnn.layers import passes_of, step_source
from jitdnn.kernels.cuda.rnn.plan import step_plan
from jitdnn.kernels.cuda.table import ALGORITHMS
from jitdnn.problems import Recurrent, parse
from jitdnn.rtcg.expression import trace
from strategies import recurrents

DIRECTIONS = ("fwd", "bwd_data", "bwd_weights")
TENSOR_CORES, TF32, EXACT = ALGORITHMS[Recurrent, "fwd"]
assert isinstance(TENSOR_CORES, PersistentStepsTensorCores)
assert isinstance(TF32, PersistentStepsTf32)
assert isinstance(EXACT, PersistentSteps)

CASES = [
    "lstm t3 n5 inputs4 hidden7 training f32",
    "gru t3 n5 inputs9 hidden17 layers2 bidirectional lengths32 training f32",
    "lstm t4 n19 inputs4 hidden20 layers2 bidirectional proj5 packed64 rows40 training dropout0.3 f16",
    "tanh t4 n3 inputs4 hidden20 batch_major recurrent_bias training bf16",
    "gru t3 n5 inputs16 hidden32 lengths32 training bf16",
    "lstm t2 n40 inputs3 hidden33 clip_low-0.25 clip_high0.5 no_bias lengths64 training f64",
]


def problem_of(words: str, direction: str) -> Recurrent:
    problem = parse(f"rnn_fwd {words}")
    assert isinstance(problem, Recurrent)
    return problem.directed(direction)


def names_of(problem: Recurrent) -> set[str]:
    """The algorithms that take a problem."""
    more = {"f64": (), "f32": ("persistent_tensor_cores", "persistent_tf32")}
    return {"persistent", *more.get(problem.element, ("persistent_tensor_cores",))}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("words", CASES)
def test_against_the_definition(cuda_device: Any, words: str, direction: str) -> None:
    problem = problem_of(words, direction)
    assert check(problem, cuda_device, scales=[(1.0, 0.0), (0.5, 2.0)]) == names_of(problem)


@settings(
    deadline=None, max_examples=examples(6), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(problem=recurrents())
def test_any_problem(cuda_device: Any, problem: Recurrent) -> None:
    """Any strides too: weights and tensors lie as they please."""
    case = make_case(problem)
    for algorithm in ALGORITHMS[Recurrent, problem.direction]:
        if algorithm.refuse(problem, cuda_device) is None:
            run_algorithm(algorithm, case, cuda_device, [(1.0, 0.0)])


def use(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Plans of one kind alone."""
    real = plans.step_plans

    def chosen(*given: Any) -> list[Any]:
        return [
            one for one in real(*given)
            if kind == ("warpgroups" if one.warpgroups else "clusters" if one.cluster else "warps")
        ]  # fmt: skip

    monkeypatch.setattr(plans, "step_plans", chosen)


@pytest.mark.parametrize("kind", ["warps", "warpgroups", "clusters"])
@pytest.mark.parametrize(
    "words",
    [
        "lstm t3 n9 inputs9 hidden20 layers2 bidirectional lengths32 training f16",
        "gru t3 n5 inputs8 hidden17 training f32",
        "tanh t3 n70 inputs4 hidden32 training bf16",
    ],
)
def test_every_kind_of_plan(hopper: Any, words: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, kind)
    for direction in ("fwd", "bwd_data"):
        problem = problem_of(words, direction)
        # algorithms keep their plans: these are others
        algorithm = (PersistentStepsTf32 if problem.element == "f32" else PersistentStepsTensorCores)(
            TF32.products
        )
        if kind == "clusters" and problem.cell == "tanh":
            assert "do not fit" in str(algorithm.refuse(problem, hopper))
        else:
            run_algorithm(algorithm, make_case(problem), hopper, [(1.0, 0.0)])


@pytest.mark.parametrize(
    ("direction", "size", "alpha"),
    [("bwd_data", 3e-7, 2.0**14), ("bwd_weights", 1e-7, 2.0**16), ("bwd_weights", 1e5, 2.0**-20)],
)
def test_gradients_of_f16_may_be_small_or_large(
    cuda_device: Any, direction: str, size: float, alpha: float
) -> None:
    """What f16 does not hold, or holds in few bits, is multiplied times a power of two."""
    problem = problem_of("lstm t3 n9 inputs8 hidden16 training zero_states f16", direction)
    scaled = ("dy", "dhn", "dcn", "dgates")
    inputs = [
        np.clip(buffer.values, 0.1, 0.9)  # as gates are
        if operand.name == "saved" and direction == "bwd_data"
        else buffer.values * (size if operand.name in scaled else 1)
        for buffer, operand in zip(make_case(problem).inputs, problem.sources, strict=True)
    ]
    run_algorithm(TENSOR_CORES, make_case(problem, None, 0, inputs), cuda_device, [(alpha, 0.0)])


@pytest.mark.parametrize("words", ["relu t3 n70 inputs5 hidden40 f32", "gru t3 n40 inputs5 hidden90 f32"])
@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
def test_several_groups_and_weights_that_do_not_fit(
    cuda_device: Any, words: str, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the weights some slabs stay in shared memory, the others are read at each step."""
    if cuda_device.cooperates:
        pytest.skip("WIDE has such problems for many thread blocks")
    problem = problem_of(words, direction)
    use(monkeypatch, "warps")
    plan = step_plan(problem, cuda_device, True, 3)
    assert plan is not None
    small = replace(cuda_device, facts=replace(cuda_device.facts, shared_bytes=plan.shared - 3000))
    cut = step_plan(problem, small, True, 3)
    assert cut is not None
    assert cut.first.resident < cut.first.slabs
    run_algorithm(TENSOR_CORES, make_case(problem), small, [(1.0, 0.0)])


def test_sums_that_do_not_fit(cuda_device: Any) -> None:
    small = replace(cuda_device, facts=replace(cuda_device.facts, shared_bytes=9000))
    reason = TENSOR_CORES.refuse(problem_of("tanh t3 n5 inputs4 hidden7 f32", "fwd"), small)
    assert "do not fit its 9000 bytes" in str(reason)


def test_refusals(cuda_device: Any) -> None:
    problem = problem_of("lstm t3 n5 inputs4 hidden7 f64", "fwd")
    assert "make no f64" in str(TENSOR_CORES.refuse(problem, cuda_device))
    assert "no epilogue" in str(EXACT.refuse(problem, cuda_device, Epilogue(trace(lambda a: a))))


def test_a_block_that_waits_for_ever_ends_with_an_error(cuda_device: Any) -> None:
    """Two barriers' arrivals are wanted, and one comes."""
    from jitdnn.devices.gpu import Launch, Source

    if cuda_device.cooperates:
        pytest.skip("an error of a kernel ends this process's use of the GPU")
    arguments = "u32 *arrived, u8 *workspace, f64 alpha, f64 beta"
    text = f"KERNEL(32) void wait({arguments}) {{ arrive_among_blocks(arrived); wait_among_blocks(arrived, 2); }}"
    kernel = cuda_device.kernel(
        Source("wait", text, dialect="cuda"), [Launch("wait", 1, 32, is_cooperative=True)], 1
    )
    arrived = np.zeros(1, np.uint32)
    with pytest.raises(DeviceError, match="1 arrived of 2"):
        kernel(None, [arrived.ctypes.data], 1.0, 0.0, 0)


@pytest.mark.parametrize(
    ("words", "precision"),
    [
        ("lstm n64 f32", "parts"),
        ("lstm n256 f32", "rounded"),
        ("gru n1 f16 lengths64", "numbers"),
        ("gru n256 f16", "parts"),
    ],
)
def test_compiles_for_every_architecture(architecture: Any, words: str, precision: str) -> None:
    for direction, name in (("fwd", "forward"), ("bwd_data", "backward")):
        problem = problem_of(f"{words} t9 inputs512 hidden1024 training", direction)
        plan = step_plan(problem, architecture, precision != "numbers", passes_of(problem, precision))
        assert plan is not None
        assert architecture.compile(step_source(problem, name, precision, plan))


# ---- on a device


@pytest.fixture
def gpu() -> Any:
    if not cuda.device_count():
        pytest.skip("no NVIDIA GPU")
    return cuda.device()


WIDE = [
    "lstm t6 n33 inputs70 hidden1024 training f32",
    "gru t5 n100 inputs64 hidden500 layers2 bidirectional lengths64 training f32",
    "lstm t5 n20 inputs64 hidden300 bidirectional proj70 training f16",
    "lstm t3 n17 inputs64 hidden2048 training f32",  # weights that shared memory does not hold
    "gru t4 n20 inputs5 hidden260 training f64",
    "lstm t4 n256 inputs64 hidden512 training f32",
    "lstm t4 n250 inputs64 hidden1024 lengths64 training f16",
    "gru t4 n256 inputs64 hidden1000 bidirectional training bf16",
]


def _of_a_network(problem: Recurrent, other: Recurrent | None = None) -> dict[str, Any]:
    """Random inputs, with small weights; those that `other` has too are its own."""
    scale = 1.0 / np.sqrt(problem.hidden)
    found = {}
    for buffer, operand in zip(make_case(problem).inputs, problem.sources, strict=True):
        found[operand.name] = buffer.values * (scale if operand.name.startswith("weight") else 1)
    return found | (
        {k: v for k, v in _of_a_network(other).items() if k in found and k != "saved"} if other else {}
    )


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("words", WIDE)
def test_many_thread_blocks(gpu: Any, words: str, direction: str) -> None:
    """A network whose states do not grow: one with large weights is chaotic in any arithmetic."""
    problem = problem_of(words, direction)
    inputs = list(_of_a_network(problem).values())
    if direction == "bwd_data":
        # gates between 0 and 1, as a forward pass saves them: gradients grow through others (to 1e9 in five steps of a
        # gru, half of it in one sequence), and bounds are for steps whose errors decay
        forward = problem.directed("fwd")
        *_, saved = forward.reference(*_of_a_network(forward, problem).values())
        inputs[[operand.name for operand in problem.sources].index("saved")] = saved
    only = names_of(problem) - {"persistent"} or {"persistent"}
    assert check(problem, gpu, inputs=inputs, scales=[(1.0, 0.0)], only=list(only)) == only


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_public_functions(gpu: Any, cell: str) -> None:
    """Results and gradients of arrays on the device are those of arrays on the host, lengths and dropout included."""
    rng = np.random.default_rng(0)
    gates, states = {"lstm": (4, 2), "gru": (3, 1)}[cell]
    weights = []
    for depth in (6, 6, 20, 20):
        shapes = (gates * 10, depth), (gates * 10, 10), (gates * 10,), (gates * 10,)
        weights += [0.3 * rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    x = rng.standard_normal((5, 3, 6)).astype(np.float32)
    first = [rng.standard_normal((4, 3, 10)).astype(np.float32) for _ in range(states)]
    dy = rng.standard_normal((5, 3, 20)).astype(np.float32)
    found = []
    for place in (lambda a: a, lambda a: jd.to_device(a, "cuda")):
        how: dict[str, Any] = {"bidirectional": True, "lengths": [5, 2, 0], "dropout": 0.25}
        forward, backward = (jd.lstm, jd.lstm_backward) if cell == "lstm" else (jd.gru, jd.gru_backward)
        given, own = list(map(place, weights)), list(map(place, first))
        *results, saved = forward(place(x), given, *own, training=True, state=jd.DropoutState(7), **how)
        *slopes, dweights = backward(place(dy), place(x), given, saved, *own, state=jd.DropoutState(7), **how)
        found.append([*results, *slopes, *dweights])
    for ours, host in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(ours.numpy(), host, rtol=1e-4, atol=1e-5)


def test_batch_sizes_on_the_device(gpu: Any) -> None:
    x = jd.to_device(np.zeros((3, 4), np.float32), "cuda")
    weights = [jd.to_device(np.zeros(shape, np.float32), "cuda") for shape in ((5, 4), (5, 5))]
    with pytest.raises(InvalidArgument, match="must be on the host"):
        jd.rnn(x, weights, batch_sizes=jd.to_device(np.array([2, 1]), "cuda"))
