"""What is not finite reaches no result that stays finite by the definition: operations other than convolution.

One element of one input is NaN or infinite, and the results of every algorithm are compared with the float64
definition.
"""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import strategies
from cases import Buffer, Workspace, make_case
from conformance import accepting
from examples import examples
from jitdnn.devices.cpu import host
from jitdnn.problems import CrossEntropy, CtcLoss, Problem, Softmax
from nonfinite import VALUES

# how many elements of its inputs are tried
TRIALS = 6

KINDS: dict[str, Callable[[], st.SearchStrategy[Problem]]] = {
    name: getattr(strategies, name)
    for name in (
        "bias_gradients",
        "poolings",
        "unpoolings",
        "lrns",
        "divisive_norms",
        "softmaxes",
        "reductions",
        "activations",
        "matmuls",
        "additions",
        "normalizations",
        "attentions",
        "cross_entropies",
        "ctc_losses",
        "recurrents",
    )
}
# products with weights of zero are part of these definitions (keys that are not seen, labels that cannot be), and left
# out of some kernels: no more results are reached, but fewer may be
LEAVING_OUT = ("attentions", "ctc_losses")


def check(problem: Problem, all_of_them: bool) -> None:
    with np.errstate(invalid="ignore"):  # random variances may be negative, and their roots NaN in both
        case, device = make_case(problem), host(1)
    rng = np.random.default_rng(0)
    for algorithm in accepting(problem, device):
        kernel, workspace = algorithm.build(problem, device), Workspace(algorithm.workspace(problem, device))
        for trial in range(TRIALS):
            reals = [b for b in case.inputs if b.values.dtype.kind not in "iub"]
            if not reals:
                return
            buffer = reals[trial % len(reals)]
            place = np.unravel_index(rng.integers(buffer.values.size), buffer.values.shape)
            kept, value = buffer.values[place], VALUES[trial % len(VALUES)]
            buffer.values[place] = value
            outputs = [Buffer(operand.descriptor) for operand in problem.outputs]
            states = []
            for output, operand, previous in zip(outputs, problem.outputs, case.previous, strict=True):
                if operand.role == "state":
                    output.values[...] = previous
                    states.append(previous.astype(np.float64))
            wide = [b.values.astype(np.float64) for b in case.inputs]
            with np.errstate(all="ignore"):
                expected = problem.reference(*wide, *states)
            kernel(None, [b.pointer for b in (*case.inputs, *outputs)], 1.0, 0.0, workspace.pointer)
            where = [b is buffer for b in case.inputs].index(True)
            buffer.values[place] = kept
            results = [expected] if len(outputs) == 1 else list(expected)
            for output, operand, result in zip(outputs, problem.outputs, results, strict=True):
                # what a recurrent layer keeps for its gradient has room between its parts
                if output.values.dtype.kind in "iub" or operand.name in ("saved", "dgates"):
                    continue
                found = ~np.isfinite(output.values.astype(np.float64))
                reached = ~np.isfinite(np.asarray(result, np.float64))
                if isinstance(problem, CtcLoss) and problem.direction == "fwd" and buffer is case.inputs[0]:
                    # the loss of its sequence, even where the labels cannot be said
                    is_own = (
                        np.arange(problem.x.shape[1]) == place[1] if problem.reduction == "none" else True
                    )
                    reached = reached | is_own
                if isinstance(problem, CtcLoss) and problem.direction == "bwd":
                    # all of a sequence's gradient hangs on its loss
                    reached = np.broadcast_to(reached.any(axis=(0, 2), keepdims=True), reached.shape)
                said = (
                    f"{value} in {problem.inputs[where].name}, {operand.name} of {algorithm.name}, {problem}"
                )
                assert not (found & ~reached).any(), f"spreads: {said}"
                assert not all_of_them or not (reached & ~found).any(), f"is lost: {said}"


@pytest.mark.parametrize("kind", KINDS)
def test_it_reaches_what_reads_it(kind: str) -> None:
    @given(KINDS[kind]())
    @settings(max_examples=examples(8))
    def run(problem: Problem) -> None:
        operands = [operand.descriptor for operand in problem.operands]
        if any(d.is_overlapping() or d.size == 0 for d in operands):
            return
        # an infinity divides what stands beside it by infinity, which makes zero of it
        is_fast = isinstance(problem, Softmax) and problem.algorithm == "fast"
        check(problem, kind not in LEAVING_OUT and not is_fast)

    run()


def test_a_loss_reads_the_target_alone() -> None:
    """Scores of minus infinity exclude classes, and weights of classes that are nowhere do not count."""
    problem = CrossEntropy.make("fwd", (2, 3), reduction="mean", weight=True)
    x = np.array([[1.0, -np.inf, 2.0], [0.5, 0.25, -np.inf]])
    weight = np.array([2.0, np.nan, 3.0])
    loss = problem.reference(x, np.array([2, 0]), weight)
    rows = [np.log1p(np.exp(-1.0)), np.log(np.exp(0.5) + np.exp(0.25)) - 0.5]
    np.testing.assert_allclose(loss, [(3.0 * rows[0] + 2.0 * rows[1]) / 5.0], rtol=1e-12)
