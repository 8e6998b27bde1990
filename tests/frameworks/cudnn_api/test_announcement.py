"""The example of cuDNN's announcement, at a size for a small machine, against the float64 reference."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitdnn.problems.convolution import Convolution


def test_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[3] / "examples" / "announcement_2014.py"
    spec = importlib.util.spec_from_file_location("announcement_2014", path)
    assert spec is not None
    assert spec.loader is not None
    example: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    sizes = ["--images", "2", "--channels", "6", "--size", "29", "--filters", "16"]
    found = example.main([*sizes, "--pad", "3"])
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 6, 29, 29), np.float32), rng.standard_normal((16, 6, 7, 7), np.float32)
    expected = Convolution.make("fwd", x.shape, w.shape, 2, 3, mode="convolution").reference(x, w)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
    assert "2x16x15x15, second run" in capsys.readouterr().out
