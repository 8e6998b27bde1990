"""Runs ONNX's own node tests on the backend, and keeps a record of what passes and what is refused, and why.

python tests/onnx_nodes.py          tell what differs from the record
python tests/onnx_nodes.py --write  write the record (docs/onnx.json), which the documentation shows
"""

from __future__ import annotations

import functools
import json
import sys
import warnings
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from jitdnn.errors import NotSupported
from jitdnn.frameworks.onnx import OPERATORS, Backend, control, views

# onnx itself compares bfloat16 within two units in the last place; so are results in float16 here, whose unit is more
# than the relative 1e-3 of all tests: expected values that were rounded after every step are off by as much
HALF_RTOL = 2.0**-9

# Their expected values are those of NumPy's random numbers; any other draw is as right. Shapes and types are compared.
RANDOM = frozenset(f"test_training_dropout{name}" for name in ("", "_mask", "_default", "_default_mask"))

# operators that compute nothing: views, shapes, constants, conversions of types, the choice of a branch
PLAIN = frozenset({*views.OPERATORS, *control.OPERATORS})

RECORD = Path(__file__).resolve().parent.parent / "docs" / "onnx.json"


class Outcome(NamedTuple):
    """What became of a test: `verdict` is "passed", "refused" or "failed"; `reason` of the last two."""

    name: str
    operators: tuple[str, ...]
    verdict: str
    reason: str = ""


@functools.cache
def cases() -> tuple[Any, ...]:
    """The node tests of the installed onnx; it computes them when they are loaded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(load_model_tests(kind="node"))


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def run(case: Any) -> Outcome:
    """One test, judged by onnx's own comparison with its own tolerances."""
    operators = tuple(sorted({node.op_type for node in case.model.graph.node}))
    try:
        prepared = Backend.prepare(case.model)
        for inputs, expected in case.data_sets:
            given = [_array(value) for value in inputs]
            outputs = prepared.run(given)
            wanted = [_array(value) for value in expected]
            if case.name in RANDOM:
                assert [(y.shape, y.dtype) for y in outputs] == [(y.shape, y.dtype) for y in wanted]
                return Outcome(case.name, operators, "refused", "expected values are random numbers of NumPy")
            is_half = [getattr(y, "dtype", None) == np.float16 for y in wanted]
            rtol = max(case.rtol, HALF_RTOL) if any(is_half) else case.rtol
            Runner.assert_similar_outputs(wanted, outputs, rtol, case.atol)
    except NotSupported as error:
        return Outcome(case.name, operators, "refused", " ".join(error.message.split()))
    except Exception as error:
        return Outcome(case.name, operators, "failed", f"{type(error).__name__}: {error}")
    return Outcome(case.name, operators, "passed")


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The record: counts by operator of the tests that passed, names of those refused by reason."""
    passed: dict[str, int] = defaultdict(int)
    refused: dict[str, list[str]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.verdict == "passed":
            passed[outcome.operators[0] if len(outcome.operators) == 1 else "(several)"] += 1
        elif outcome.verdict == "refused":
            refused[outcome.reason].append(outcome.name)
    return {
        "onnx": onnx.__version__,
        "operators": sorted(name for _, name in OPERATORS),
        "plain": sum(o.verdict == "passed" and PLAIN.issuperset(o.operators) for o in outcomes),
        "tests": len(outcomes),
        "passed": dict(sorted(passed.items())),
        "refused": {reason: sorted(names) for reason, names in sorted(refused.items())},
    }


def main() -> int:
    """Run all; tell what failed, and write or compare the record."""
    outcomes = [run(case) for case in cases()]
    failed = [outcome for outcome in outcomes if outcome.verdict == "failed"]
    for outcome in failed:
        sys.stdout.write(f"{outcome.name} {outcome.operators}: {outcome.reason}\n")
    made = summary(outcomes)
    refused = sum(map(len, made["refused"].values()))
    sys.stdout.write(f"{len(outcomes)} tests, {refused} refused, {len(failed)} failed\n")
    if "--write" in sys.argv:
        RECORD.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        return 0
    known = json.loads(RECORD.read_text(encoding="utf-8"))
    for name in ("onnx", "operators", "plain", "tests", "passed", "refused"):
        if made[name] != known.get(name):
            sys.stdout.write(f"{name} differs from {RECORD}\n")
    return int(bool(failed) or made != known)


if __name__ == "__main__":
    np.seterr(all="ignore")
    sys.exit(main())
