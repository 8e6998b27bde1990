"""Memory of fresh results: large ones of processors ask for large pages, within themselves."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from jitdnn.frameworks.torch import fresh as module  # noqa: E402
from jitdnn.frameworks.torch.fresh import LARGE, fresh, in_large_pages  # noqa: E402

PAGE = 4096
CPU = torch.device("cpu")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    calls: list[tuple[int, int]] = []

    def madvise(begin: int, size: int, advice: int) -> int:
        calls.append((begin, size))
        return -1  # refused, which changes nothing

    monkeypatch.setattr(module, "_madvise", madvise)
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
