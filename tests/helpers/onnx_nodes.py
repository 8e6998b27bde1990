"""Runs ONNX's own node tests on the backend, and keeps a record of what passes and what is refused, and why.

python tests/helpers/onnx_nodes.py          tell what differs from the record
python tests/helpers/onnx_nodes.py --write  write the record (docs/onnx.json), which the documentation shows
"""

from __future__ import annotations

import functools
import json
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from jitdnn.errors import NotSupported
from jitdnn.frameworks.onnx import OPERATORS, Backend, control, sequences, views
from paths import ROOT

# Expected values that were rounded to float16 after every step, in another order than ours: they differ by two units in
# the last place, which is what onnx allows in bfloat16, but more than the relative 1e-3 that it allows in float16.
ROUNDED_OFTEN = frozenset({"test_attention_4d_fp16_expanded", "test_attention_4d_causal_fp16_expanded"})
HALF_RTOL = 2.0**-9

# Their expected zeros are the rounding errors of NumPy's transform in complex64, 2e-7 beside numbers of up to 95: ours
# is nearer to 0, and this is a last place of float32 of those.
ZEROS_WITH_ERRORS = frozenset({"test_dft_inverse", "test_dft_inverse_opset19"})
ERROR_OF_ZEROS = 95 * 2.0**-24

# Their expected values are those of NumPy's random numbers; any other draw is as right. Shapes and types are compared.
RANDOM = frozenset(
    f"test_{name}"
    for name in (
        *(f"training_dropout{kind}" for kind in ("", "_mask", "_default", "_default_mask")),
        *(f"bernoulli{kind}{form}" for kind in ("", "_double", "_seed") for form in ("", "_expanded")),
    )
)

# operators that compute nothing: views, shapes, constants, conversions of types, sequences, the choice of a branch
PLAIN = frozenset({*views.OPERATORS, *control.OPERATORS, *sequences.OPERATORS})

RECORD = ROOT / "docs" / "onnx.json"


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


@functools.cache
def model_cases() -> tuple[Any, ...]:
    """The models in files of the installed onnx: small ones, and what PyTorch once exported."""
    kinds = ("simple", "pytorch-converted", "pytorch-operator")
    found = [case for kind in kinds for case in load_model_tests(kind=kind)]
    return tuple(sorted(found, key=lambda case: case.name))


def _data(case: Any) -> Iterator[tuple[list[Any], list[Any]]]:
    """Inputs and expected outputs."""
    if case.data_sets is not None:
        yield from case.data_sets
        return
    for folder in sorted(Path(case.model_dir).glob("test_data_set_*")):
        inputs, outputs = (
            [onnx.load_tensor(path) for path in sorted(folder.glob(f"{name}_*.pb"))]
            for name in ("input", "output")
        )
        yield inputs, outputs


def _model(case: Any) -> onnx.ModelProto:
    return case.model if case.model is not None else onnx.load(Path(case.model_dir) / "model.onnx")


def operators_of(case: Any) -> tuple[str, ...]:
    """The operators of a test's graph."""
    return tuple(sorted({node.op_type for node in _model(case).graph.node}))


def run(case: Any) -> Outcome:
    """One test, judged by onnx's own comparison with its own tolerances."""
    model, operators = _model(case), operators_of(case)
    try:
        prepared = Backend.prepare(model)
        for inputs, expected in _data(case):
            given = [_array(value) for value in inputs]
            outputs = prepared.run(given)
            wanted = [_array(value) for value in expected]
            if case.name in RANDOM:
                assert [(y.shape, y.dtype) for y in outputs] == [(y.shape, y.dtype) for y in wanted]
                return Outcome(case.name, operators, "refused", "expected values are random numbers of NumPy")
            rtol = HALF_RTOL if case.name in ROUNDED_OFTEN else case.rtol
            atol = ERROR_OF_ZEROS if case.name in ZEROS_WITH_ERRORS else case.atol
            assert [isinstance(y, list) for y in outputs] == [isinstance(y, list) for y in wanted]
            # onnx compares the elements of a sequence as if each were one, which those without axes are not
            for one, other in zip(wanted, outputs, strict=True):
                pair = (one, other) if isinstance(one, list) else ([one], [other])
                Runner.assert_similar_outputs(*pair, rtol, atol)
    except NotSupported as error:
        return Outcome(case.name, operators, "refused", " ".join(error.message.split()))
    except Exception as error:
        return Outcome(case.name, operators, "failed", f"{type(error).__name__}: {error}")
    return Outcome(case.name, operators, "passed")


def summary(outcomes: Sequence[Outcome], models: Sequence[Outcome]) -> dict[str, Any]:
    """The record: counts by operator of the node tests that passed, names of those refused by reason, and the same
    for the models in files."""
    passed: dict[str, int] = defaultdict(int)
    for outcome in outcomes:
        if outcome.verdict == "passed":
            passed[outcome.operators[0] if len(outcome.operators) == 1 else "(several)"] += 1
    return {
        "onnx": onnx.__version__,
        "operators": sorted({name for domain, name in OPERATORS if domain != "com.microsoft"}),
        "plain": sum(o.verdict == "passed" and PLAIN.issuperset(o.operators) for o in outcomes),
        "tests": len(outcomes),
        "passed": dict(sorted(passed.items())),
        "refused": _refused(outcomes),
        "models": {"passed": sum(o.verdict == "passed" for o in models), "refused": _refused(models)},
    }


def _refused(outcomes: Sequence[Outcome]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.verdict == "refused":
            found[outcome.reason].append(outcome.name)
    return {reason: sorted(names) for reason, names in sorted(found.items())}


def main() -> int:
    """Run all; tell what failed, and write or compare the record."""
    outcomes, models = [run(case) for case in cases()], [run(case) for case in model_cases()]
    failed = [outcome for outcome in (*outcomes, *models) if outcome.verdict == "failed"]
    for outcome in failed:
        sys.stdout.write(f"{outcome.name} {outcome.operators}: {outcome.reason}\n")
    made = summary(outcomes, models)
    refused = sum(map(len, made["refused"].values()))
    sys.stdout.write(f"{len(outcomes)} tests, {refused} refused, {len(failed)} failed\n")
    if "--write" in sys.argv:
        RECORD.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        return 0
    known = json.loads(RECORD.read_text(encoding="utf-8"))
    for name in ("onnx", "operators", "plain", "tests", "passed", "refused", "models"):
        if made[name] != known.get(name):
            sys.stdout.write(f"{name} differs from {RECORD}\n")
    return int(bool(failed) or made != known)


if __name__ == "__main__":
    np.seterr(all="ignore")
    sys.exit(main())
