"""PyTorch's own samples of its operators: results and gradients agree, or the sample is refused by name; the
record of both, which the documentation shows, is current."""

from __future__ import annotations

import importlib
import json
from types import ModuleType
from typing import Any

import pytest

from paths import ROOT

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("expecttest", reason="the samples that ship with PyTorch import it")

RECORD = ROOT / "docs" / "torch_samples.json"
KNOWN: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
# another version has other samples
SAME = torch.__version__.split("+")[0] == KNOWN["torch"]


@pytest.fixture(scope="module")
def samples() -> ModuleType:
    """PyTorch's table of operators takes seconds to import: not while tests are collected."""
    return importlib.import_module("torch_samples")


@pytest.mark.parametrize("name", KNOWN["operators"])
@pytest.mark.filterwarnings("ignore")
def test_samples(samples: ModuleType, name: str) -> None:
    if name not in samples.OPERATORS:
        assert not SAME, f"{name} is recorded, and no operator with a translation"
        pytest.skip("not in this version of PyTorch")
    for dtype in samples.DTYPES:
        outcome = samples.run(samples.OPERATORS[name], dtype)
        assert not outcome.failed, f"{len(outcome.failed)} differ, the first: {outcome.failed[0]}"
        if SAME:
            kept = KNOWN["operators"][name][str(dtype).removeprefix("torch.")]
            assert samples.recorded(outcome) == kept, "run `python tests/helpers/torch_samples.py --write`"


@pytest.mark.filterwarnings("ignore")
def test_every_operator_is_recorded(samples: ModuleType) -> None:
    if SAME:
        assert list(samples.OPERATORS) == list(KNOWN["operators"])


@pytest.mark.filterwarnings("ignore")
def test_a_wrong_result_or_gradient_is_found(samples: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    info = samples.OPERATORS["exp"]
    exact = samples.ADAPTERS["exp"]

    def wrong_slope(x: Any) -> Any:
        y, _ = exact(x)
        return y, lambda dy: [dy * y * (1 + 1e-6)]

    def wrong_value(x: Any) -> Any:
        y, gradients = exact(x)
        return y * (1 + 1e-6), gradients

    for wrong, what in ((wrong_slope, "gradient 0"), (wrong_value, "result")):
        monkeypatch.setitem(samples.ADAPTERS, "exp", wrong)
        failed = samples.run(info, torch.float64).failed
        assert failed
        assert all(what in text for text in failed)
