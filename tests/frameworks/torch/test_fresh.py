"""Memory of fresh results: large ones of processors ask for large pages, within themselves."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from jitdnn.frameworks.torch import fresh as module  # noqa: E402
from jitdnn.frameworks.torch.fresh import LARGE, fresh, in_large_pages, without_data  # noqa: E402

PAGE = 4096
CPU = torch.device("cpu")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    calls: list[tuple[int, int]] = []

    def madvise(begin: int, size: int, advice: int) -> int:
        calls.append((begin, size))
        return -1  # refused, which changes nothing

    monkeypatch.setattr(module, "_madvise", madvise)
    monkeypatch.setattr(module, "in_arena", lambda *_: None)  # where that has no place
    return calls


@pytest.mark.parametrize("extra", [0, 1, 1023, 1024])
def test_whole_pages_of_the_tensor_are_asked_for(extra: int, asked: list[tuple[int, int]]) -> None:
    shape = (LARGE // 4 + extra,)
    made = fresh(shape, (1,), torch.float32, CPU)()
    assert made.shape == shape
    ((begin, size),) = asked
    assert begin % PAGE == size % PAGE == 0
    assert made.data_ptr() <= begin < made.data_ptr() + PAGE
    end = made.data_ptr() + made.numel() * 4
    assert end - PAGE < begin + size <= end
    made.fill_(1.0)
    assert bool((made == 1).all())


def test_small_ones_are_not(asked: list[tuple[int, int]]) -> None:
    fresh((LARGE // 4 - 1,), (1,), torch.float32, CPU)()
    in_large_pages(torch.empty(LARGE // 8, dtype=torch.float32))
    assert not asked


def test_where_the_system_has_none_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_madvise", None)
    tensor: Any = torch.empty(LARGE, dtype=torch.uint8)
    assert in_large_pages(tensor) is tensor
    assert fresh((LARGE,), (1,), torch.uint8, CPU)().numel() == LARGE


@pytest.mark.skipif(module._madvise is None, reason="the system gives large pages to all, or to nobody")
def test_the_system_knows() -> None:
    made = fresh((8 * LARGE,), (1,), torch.uint8, CPU)()
    middle, flags = made.data_ptr() + 4 * LARGE, ""
    inside = False
    with open("/proc/self/smaps", encoding="ascii") as lines:
        for line in lines:
            first = line.split()[0]
            if "-" in first and not first.endswith(":"):
                begin, end = (int(part, 16) for part in first.split("-"))
                inside = begin <= middle < end
            elif inside and first == "VmFlags:":
                flags = line
    assert " hg" in flags


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_data_as_torch_makes_it(dtype: Any) -> None:
    x = torch.empty(2, 3, 4, 5, dtype=dtype)
    for form in (
        x, x.contiguous(memory_format=torch.channels_last), x.permute(3, 1, 0, 2), x[:, :2], x[..., ::2], x[:1],
        x[:, :1].expand(2, 3, 4, 5), x[:0], x.new_empty(()), x.flatten(), torch.empty_like(x, device="meta").mT,
    ):  # fmt: skip
        made, wanted = without_data(form), torch.empty_like(form, device="meta")
        assert (made.shape, made.stride(), made.dtype) == (wanted.shape, wanted.stride(), wanted.dtype)
        assert made.is_meta


def test_a_first_step_imports_nothing_of_pytorchs_compiler() -> None:
    """Which takes longer than all else that a step does whose kernels were chosen before."""
    program = """
import sys, torch
before = "sympy" in sys.modules
import jitdnn.torch as jt
nn = torch.nn
layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2))
model = jt.convert(torch.nn.Sequential(*layers), measure="never")
model(torch.randn(2, 3, 5, 5)).sum().backward()
assert before or "sympy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
