"""The rates that cost models take of a GPU: those that an H100 was measured at, and in proportion for others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jitdnn.devices.gpu_facts import on_paper
from jitdnn.kernels.cuda import cost

H100 = on_paper(90)


def test_an_h100_has_the_rates_that_the_models_were_fitted_to() -> None:
    assert cost.gemm_clock(H100) == pytest.approx(1.6e9)
    assert cost.clock(H100) == pytest.approx(1.755e9)
    assert cost.depthwise_clock(H100) == pytest.approx(1.75e9)
    assert cost.l2_bytes_per_cycle(H100) == 40.0
    assert cost.shared_bytes_per_cycle(H100) == 145.0
    assert cost.l2_bandwidth(H100) == pytest.approx(4.5e12, rel=1e-3)
    assert H100.mma_cycles == 1.6


def test_rates_are_in_proportion_to_the_facts() -> None:
    slower = replace(H100, clock=0.5 * H100.clock, l2_bytes_per_cycle=32, multiprocessors=66)
    for rate in (cost.gemm_clock, cost.clock, cost.depthwise_clock, cost.l2_bytes_per_cycle):
        assert rate(slower) == pytest.approx(0.5 * rate(H100))
    assert cost.l2_bandwidth(slower) == pytest.approx(0.125 * cost.l2_bandwidth(H100))


def test_registers_of_a_thread() -> None:
    assert cost.most_registers(H100, 128) == cost.MAX_REGISTERS
    assert cost.most_registers(H100, 512) == 128
    assert cost.most_registers(replace(H100, registers=32768), 512) == 64
