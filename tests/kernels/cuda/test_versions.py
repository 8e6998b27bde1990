"""Versions of algorithms that run others: times measured with other kernels inside are not used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jitdnn.kernels.algorithm import Algorithm, version_over
from jitdnn.kernels.cuda.convolution.channels_last import ChannelsLast, FewChannelsLast
from jitdnn.kernels.cuda.convolution.merged_groups import MergedGroups, MergedGroupsTf32
from jitdnn.kernels.cuda.convolution.patch import Patch, PatchF32, PatchTf32
from jitdnn.kernels.cuda.convolution.patch_copied import PatchCopied
from jitdnn.kernels.cuda.convolution.winograd.multiply_adds import Winograd4Fma
from jitdnn.kernels.cuda.rnn.algorithm import PersistentSteps
from jitdnn.kernels.formulas.fused_convolution import SeparateKernels
from jitdnn.kernels.gpu.elementwise.generator import ElementwiseLoops
from jitdnn.kernels.gpu.matmul import TiledGemm
from jitdnn.kernels.gpu.reduction.generator import RowLoops

LOOPS, ROWS = ElementwiseLoops(), RowLoops()
OVER: dict[str, Callable[..., Algorithm]] = {
    "patch": Patch,
    "patch of f32": PatchF32,
    "patch of tf32": PatchTf32,
    "patch copied": lambda *others: PatchCopied(LOOPS, *others),
    "groups merged": lambda *others: MergedGroups(LOOPS, *others),
    "groups merged, tf32": lambda *others: MergedGroupsTf32(LOOPS, *others),
    "separate kernels": lambda *others: SeparateKernels(
        {"fwd": others[:1], "bwd_filter": others[1:]}, LOOPS, ROWS
    ),
    "persistent": lambda *others: PersistentSteps(others),
    "channels last": lambda _, other: ChannelsLast(LOOPS, other),
    "few channels last": lambda _, other: FewChannelsLast(LOOPS, other),
    "winograd": lambda _, other: Winograd4Fma(other),
}


def of_version(number: int) -> Any:
    class Other(TiledGemm):
        version = number

    return Other()


@pytest.mark.parametrize("name", OVER)
def test_another_version_inside_is_another_version(name: str) -> None:
    version = OVER[name](of_version(1), of_version(3)).version
    assert version == OVER[name](of_version(1), of_version(3)).version
    assert version != OVER[name](of_version(1), of_version(4)).version


def test_changes_do_not_make_up_for_each_other() -> None:
    found = {
        version_over(own, (of_version(first), of_version(second)))
        for own in range(3)
        for first in range(3)
        for second in range(3)
    }
    assert len(found) == 27
    assert version_over(1, [of_version(1)]) not in {version_over(1, []), version_over(1, [of_version(1)] * 2)}
