"""Thinned products keep what they are thinned for."""

from __future__ import annotations

import itertools

import pytest

from pairs import pairwise


@pytest.mark.parametrize("sizes", [(2, 3), (3, 3, 5), (5, 3, 2), (1, 4, 2), (2, 2, 2, 6), (6, 3, 2)])
def test_every_two_values_meet(sizes: tuple[int, ...]) -> None:
    chosen = pairwise(*map(range, sizes))
    assert len(set(chosen)) == len(chosen)
    for one, other in itertools.combinations(range(len(sizes)), 2):
        met = {(places[one], places[other]) for places in chosen}
        assert met == set(itertools.product(range(sizes[one]), range(sizes[other])))


def test_it_is_fewer() -> None:
    assert len(pairwise(range(3), range(3), range(5))) == 15
    assert len(pairwise(range(5), range(3), range(2))) == 15
    assert len(pairwise(range(6), range(3), range(2))) == 18
