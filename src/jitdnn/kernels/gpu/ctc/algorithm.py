"""CTC loss on GPUs: thread blocks iterate over the time steps of a sequence, forward and backward at the same time."""

from __future__ import annotations

from math import e, log2, sqrt
from typing import NamedTuple

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Epilogue, Kernel, PlannedAlgorithm
from jitdnn.kernels.gpu.prelude.cost import LAUNCH_SECONDS
from jitdnn.kernels.gpu.prelude.types import refuse_doubles
from jitdnn.problems.ctc_loss import CtcLoss
from jitdnn.tensor import DTYPES, TensorDescriptor, compute_dtype

_LABELS_THREADS = 256
_ONE_EACH = 256  # threads up to which each has one label: more wait longer for each other than they save
_MOST_EACH = 8  # labels of a thread in registers, while fewer than _MOST_THREADS do
_MOST_THREADS = 1024
_AHEAD = {1: 4, 2: 4, 4: 2, 8: 2}  # times whose logarithms are read ahead, by the labels of a thread
_JOINT = 2048  # numbers of a row in shared memory
_STEP_SECONDS = 1.7e-7  # of a time, for each thread's first label
_EXTRA_SECONDS = 3e-8  # for each further one


class Plan(NamedTuple):
    """How labels are given to threads, and where in the workspace what lies."""

    problem: CtcLoss
    each: int  # labels of a thread
    threads: int  # of a sequence
    step: int  # threads that have labels, rounded up
    row_threads: int
    places: dict[str, int]
    workspace: int


class CtcRecursion(PlannedAlgorithm[CtcLoss, Plan, GpuDevice]):
    """A thread block for each sequence and direction; rows of the gradient all at once behind that."""

    name = "recursion"
    problem = CtcLoss
    deterministic = True
    takes_no_epilogue = "{kind} takes no epilogue"

    def refusal(self, problem: CtcLoss, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        t, n, symbols = problem.x.shape
        if t * n >= 2**31 or 2 * n >= 2**31:
            return f"{t} times of {n} sequences: a launch has fewer than 2^31 thread blocks"
        if symbols >= 2**31 or problem.longest >= 2**31 - _MOST_THREADS:
            return f"{symbols} symbols and {problem.longest} labels: their numbers must fit 31 bits"
        return refuse_doubles([problem.dtype], device)

    def plan(self, problem: CtcLoss, device: GpuDevice, epilogue: Epilogue | None) -> Plan:
        t, n, symbols = problem.x.shape
        states = problem.longest + 1  # labels, and the blank behind the last
        most = min(_MOST_THREADS, device.max_threads)
        each = 1
        while states > (_ONE_EACH if each < _MOST_EACH else most) * each:
            each *= 2
        step = -(-states // each)
        threads = 32
        while threads < step:
            threads *= 2
        row_threads = 32
        while row_threads < min(256, most) and row_threads * 2 < max(symbols, states):
            row_threads *= 2
        number, is_backward = DTYPES[compute_dtype(problem.dtype)], problem.direction == "bwd"
        row = step * each
        sizes = {
            "meta": n * 3 * 8,
            "losses": n * 8,
            "symbols": n * row * 4,
            "next": n * row * 4 if is_backward else 0,
            "first": n * symbols * 4 if is_backward else 0,
            "norms": t * n * number if problem.inputs_are == "logits" else 0,
            "blank_logs": t * n * number,
            "logs": t * n * row * number,
            "alphas": t * n * row * 2 * number if is_backward else 0,
            "betas": t * n * row * 2 * number if is_backward else 0,
        }
        places, end = {}, 0
        for name, size in sizes.items():
            places[name] = end
            end += -(-size // 64) * 64
        return Plan(problem, each, threads, step, row_threads, places, end)

    def workspace_of(self, plan: Plan, device: GpuDevice) -> int:
        return plan.workspace

    def seconds_of(self, plan: Plan, device: GpuDevice) -> float:
        problem = plan.problem
        t, n, _ = problem.x.shape
        blocks = n * (1 if problem.direction == "fwd" else 2)
        at_once = device.multiprocessors * max(1, 1024 // plan.threads)
        rounds = max(1.0, blocks / at_once)
        recursion = t * rounds * (_STEP_SECONDS + (plan.each - 1) * _EXTRA_SECONDS)
        return 4 * LAUNCH_SECONDS + recursion + (2 * problem.bytes + 2 * plan.workspace) / device.bandwidth

    def error_of(self, problem: CtcLoss) -> float:
        own, computing = UNIT_ROUNDOFF[problem.dtype], UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
        times = problem.x.shape[0]
        # in f64 the reference has the larger errors: its logarithms grow with time
        return 2.0 * own + computing * (40.0 + 8.0 * (times if problem.dtype == "f64" else sqrt(times)))

    def kernel_of(self, plan: Plan, device: GpuDevice) -> Kernel:
        problem = plan.problem
        t, n, symbols = problem.x.shape
        is_forward, is_reduced = problem.direction == "fwd", problem.reduction != "none"
        tensors = {operand.name: operand.descriptor for operand in problem.operands}
        outputs = {operand.name for operand in problem.outputs}
        names = {"loss": "loss_"}  # the name of a variable, too
        pointers = ", ".join(
            f"GLOBAL {'' if name in outputs else 'const '}{tensor.dtype} *{names.get(name, name)}"
            for name, tensor in tensors.items()
        )
        numbers = {
            "times_most": t, "batch": n, "symbols_": symbols, "longest": problem.longest, "blank": problem.blank,
            "labels": problem.targets.size, "step": plan.step,
            **{f"at_{name}": place for name, place in plan.places.items()},
            **{f"{name}_{axis}": s for name, tensor in tensors.items() for axis, s in enumerate(tensor.strides)},
        }  # fmt: skip
        signature = f"{pointers}, GLOBAL u8 *workspace, SCALE alpha, SCALE beta, " + ", ".join(
            f"i64 {name}" for name in numbers
        )
        joint = 1
        while joint < plan.step * plan.each:
            joint *= 2
        defines = (
            ("SIGNATURE", signature),
            ("X", problem.dtype),
            ("NUMBER", compute_dtype(problem.dtype)),
            ("LOGITS", int(problem.inputs_are == "logits")),
            ("PROBS", int(problem.inputs_are == "probs")),
            ("CONCATENATED", int(not problem.is_padded)),
            ("ZERO_INFINITY", int(problem.zero_infinity)),
            ("REDUCED", ("none", "sum", "mean").index(problem.reduction)),
            ("FORWARD", int(is_forward)),
            ("BLOCK", plan.threads),
            ("PER", plan.each),
            ("AHEAD", _AHEAD.get(plan.each, 1)),
            ("ROW_THREADS", plan.row_threads),
            ("JOINT", joint if joint <= _JOINT else 0),
            ("LOG2_OF_E", f"{log2(e)!r}{'' if compute_dtype(problem.dtype) == 'f64' else 'f'}"),
            *(
                (f"{name.upper()}_STEP", _step(name, tensors[name]))
                for name in ("x", "dx")
                if name in tensors
            ),
        )
        rows = max(1, t * n)
        launches = [
            Launch("ctc_labels", max(1, n), _LABELS_THREADS),
            Launch("ctc_rows", rows, plan.row_threads),
            Launch("ctc_recursion", max(1, n if is_forward else 2 * n), plan.threads),
        ]
        if not is_forward:
            launches.append(Launch("ctc_gradient", rows, plan.row_threads))
        elif is_reduced:
            launches.append(Launch("ctc_losses", 1, _LABELS_THREADS))
        text = read_text("gpu/prelude", "reduce.h") + "\n" + read_text("gpu/ctc", "ctc.c")
        source = Source("ctc_loss", text, defines, spills=True)
        return device.kernel(source, launches, len(tensors), list(numbers.values()))


def _step(name: str, tensor: TensorDescriptor) -> str:
    """Between neighbouring symbols: a number where it is 1."""
    return "1" if tensor.strides[2] == 1 else f"{name}_2"
