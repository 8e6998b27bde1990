"""Phases of results that the same taps meet: each tap that reads data is one of the result's phase, the only one."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from jitdnn.kernels.cuda.convolution.warpgroup_gemm.edges import may_save, phases_inside
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.pieces import Axis
from jitdnn.problems.convolution import Convolution


@st.composite
def layers(draw: st.DrawFn) -> tuple[tuple[Axis, ...], list[int]]:
    axes, extents = [], []
    for _ in range(3):
        extents.append(draw(st.integers(1, 9)))
        axes.append(
            Axis(
                draw(st.integers(1, 9)), draw(st.integers(-9, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 5)),
                draw(st.integers(1, 4)), draw(st.integers(0, 4)), draw(st.sampled_from([1, -1])),
                draw(st.integers(0, 1)), draw(st.integers(1, 2)),
            )
        )  # fmt: skip
    return tuple(axes), extents


def pairs(axis: Axis, extent: int) -> set[tuple[int, int, int]]:
    """Each result with each tap, and the position that it reads of those that there are."""
    return {
        (axis.first_result + result * axis.result_stride, axis.first_tap + tap * axis.tap_step, at)
        for result, tap in itertools.product(range(axis.results), range(axis.taps))
        if 0 <= (at := axis.base + result * axis.input_stride + tap * axis.dilation) < extent
    }


def results(axis: Axis) -> list[int]:
    return [axis.first_result + result * axis.result_stride for result in range(axis.results)]


@given(layer=layers(), most=st.sampled_from([2, 4, 8]), along=st.sampled_from([1, 2]))
def test_every_tap_that_reads_data_is_of_one_phase(
    layer: tuple[tuple[Axis, ...], list[int]], most: int, along: int
) -> None:
    axes, extents = layer
    phases = phases_inside(axes, extents, most, along)
    if phases is None:
        return
    assert len(phases) <= most
    of_all = list(itertools.product(*(results(axis) for axis in axes)))
    assert sorted(one for phase in phases for one in itertools.product(*map(results, phase))) == sorted(
        of_all
    )
    for n in range(3):
        read = set().union(*(pairs(phase[n], extents[n]) for phase in phases))
        if all(results(phase[m]) for phase in phases for m in range(3)):
            assert read == pairs(axes[n], extents[n])


def test_a_run_leaves_out_what_reads_padding_alone() -> None:
    """Along two axes with as many phases as there may be: a sixth of the products of one, another of those left."""
    one = Axis(4, -1, 1, 3, 1, 0, 1, 0, 1)
    few = Axis(9, 0, 1, 1, 1, 0, 1, 0, 1)
    found = phases_inside((one, one, few), (4, 4, 9), 8, 1)
    assert found is not None
    assert [phase[0].taps for phase in found] == [3, 2, 2]
    both = phases_inside((one, one, few), (4, 4, 9), 8, 2)
    assert both is not None
    assert len(both) == 6  # three runs of one axis by two of the other
    count = sum(a.results * a.taps * b.results * b.taps for a, b, _ in both)
    assert count < 12 * 10


def test_which_layers_have_padding_enough() -> None:
    assert may_save(Convolution.parse("conv_fwd n1 c8 h33 w33 k8 r3 s3 pad12 dil12"))
    assert may_save(Convolution.parse("conv_fwd n1 c8 d16 h56 w56 k8 t3 r3 s3 pad1"))
    assert not may_save(Convolution.parse("conv_fwd n1 c8 h14 w14 k8 r3 s3 pad1"))
    assert not may_save(Convolution.parse("conv_fwd n1 c8 h16 w16 k8 r7 s7"))
    assert may_save(Convolution.parse("conv_bwd_data n1 c8 h16 w16 k8 r7 s7"))  # which reads beyond dy


def test_filters_of_many_taps() -> None:
    """Their runs are joined several at a time first, and still hold each tap that reads data."""
    one, axis = Axis(1, 0, 1, 1, 1, 0, 1, 0, 1), Axis(300, -250, 1, 500, 1, 0, 1, 0, 1)
    phases = phases_inside((one, one, axis), [1, 1, 300], 8)
    assert phases
    assert 1 < len(phases) <= 8
    assert sorted(at for phase in phases for at in results(phase[2])) == results(axis)
    assert set().union(*(pairs(phase[2], 300) for phase in phases)) == pairs(axis, 300)
    products = sum(phase[2].results * phase[2].taps for phase in phases)
    assert len(pairs(axis, 300)) <= products < axis.results * axis.taps
