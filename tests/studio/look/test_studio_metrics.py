"""Figures of merit against their definitions, written out as loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.studio.look import detections, metrics

LABELS = st.integers(1, 5).flatmap(
    lambda k: st.tuples(
        st.just(k),
        st.lists(
            st.tuples(st.integers(-1, k), st.integers(0, k - 1), st.integers(0, 8)), min_size=1, max_size=40
        ),
    )
)


@given(LABELS)
@settings(max_examples=40, deadline=None)
def test_matrix_and_shares_of_classes(case: tuple[int, list[tuple[int, int, int]]]) -> None:
    classes, rows = case
    true, said, _ = (np.array(column) for column in zip(*rows, strict=True))
    counts = metrics.confusion(true, said, classes)
    found = metrics.per_class(counts)
    recalls = []
    for k in range(classes):
        hits = sum(t == k and s == k for t, s, _ in rows)
        there = sum(t == k for t, _, _ in rows)
        called = sum(s == k and 0 <= t < classes for t, s, _ in rows)
        assert counts[k, k] == hits
        assert found.support[k] == there
        assert same(found.recall[k], hits / there if there else math.nan)
        assert same(found.precision[k], hits / called if called else math.nan)
        assert same(found.f1[k], 2 * hits / (there + called) if there + called else math.nan)
        union = there + called - hits
        assert same(metrics.intersection_over_union(counts)[k], hits / union if union else math.nan)
        recalls += [hits / there] if there else []
    assert same(metrics.balanced_accuracy(counts), sum(recalls) / len(recalls) if recalls else math.nan)
    pairs = metrics.worst_pairs(counts, 1000)
    assert [n for *_, n in pairs] == sorted((n for *_, n in pairs), reverse=True)
    assert {(a, b): n for a, b, n in pairs} == {
        (a, b): counts[a, b] for a in range(classes) for b in range(classes) if a != b and counts[a, b]
    }


@given(LABELS)
@settings(max_examples=40, deadline=None)
def test_average_precision_is_the_sum_over_thresholds(case: tuple[int, list[tuple[int, int, int]]]) -> None:
    _, rows = case
    scores = np.array([tie / 8 for *_, tie in rows])  # many are equal
    there = np.array([said % 2 for _, said, _ in rows])
    expected, before = 0.0, 0.0
    for threshold in sorted(set(scores.tolist()), reverse=True):
        chosen = scores >= threshold
        recall = there[chosen].sum() / max(1, there.sum())
        expected += (recall - before) * there[chosen].mean()
        before = recall
    assert same(metrics.average_precision(scores, there), expected if there.any() else math.nan)


def test_calibration_of_bins_with_upper_ends() -> None:
    sure = np.array([0.2, 0.5, 0.50001, 0.9, 1.0, np.nan])
    right = np.array([True, False, True, True, False, True])
    found = metrics.calibration(sure, right, bins=2)
    assert found.counts.tolist() == [2, 3]  # what is not finite is in no bin
    assert found.confidence == pytest.approx([0.35, 2.40001 / 3])
    assert found.accuracy == pytest.approx([0.5, 2 / 3])
    assert found.error == pytest.approx((2 * 0.15 + 3 * (2.40001 / 3 - 2 / 3)) / 5)


def test_labels_that_may_be_there() -> None:
    scores = np.array([[0.9, 0.2], [0.6, 0.7], [0.1, 0.4]])
    there = np.array([[1, 0], [0, 0], [1, 0]])
    found = metrics.per_label(scores, there)
    assert found.average_precision[0] == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert np.isnan(found.average_precision[1])  # nobody has the label
    assert found.precision.tolist() == [0.5, 0.0]
    assert found.recall[0] == 0.5
    assert np.isnan(found.recall[1])
    assert found.support.tolist() == [2, 0]


def test_regression_and_its_histogram() -> None:
    random = np.random.default_rng(1)
    true = random.normal(size=(50, 2)) * [1, 0]
    said = true + random.normal(size=true.shape)
    found = metrics.regression(said, true)
    error = said - true
    assert found.mae == pytest.approx(abs(error).mean(0))
    assert found.rmse == pytest.approx((error**2).mean(0) ** 0.5)
    assert found.r2[0] == pytest.approx(
        1 - (error[:, 0] ** 2).sum() / ((true[:, 0] - true[:, 0].mean()) ** 2).sum()
    )
    assert np.isnan(found.r2[1])  # nothing varies
    assert found.histogram.sum(1).tolist() == [50, 50]
    edge = len(found.edges) // 2
    assert found.histogram[0, :edge].sum() == pytest.approx((error[:, 0] < found.edges[edge]).sum(), abs=0)


def test_boxes_are_given_once_to_the_surest() -> None:
    true = np.array([[0, 0, 0, 10, 10], [0, 20, 20, 30, 30], [-1, 0, 0, 9, 9], [1, 0, 0, 10, 10.0]])
    found = np.array([
        [0, 0.6, 0, 0, 10, 9],    # the first one's, but less sure than the next
        [0, 0.9, 0, 0, 10, 10],
        [0, 0.8, 20, 20, 31, 31],
        [1, 0.7, 50, 50, 60, 60],  # nothing is there
    ])  # fmt: skip
    matched = detections.match(found, true)
    assert matched.sure.tolist() == [0.9, 0.8, 0.7, 0.6]
    assert matched.is_hit.tolist() == [True, True, False, False]
    precisions = detections.average_precisions(
        [matched, detections.match(found[:0], true[:0])], np.array([2, 1, 0])
    )
    assert precisions[:2].tolist() == [1.0, 0.0]
    assert np.isnan(precisions[2])
    assert detections.match(found, true[:0]).is_hit.tolist() == [False] * 4


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidShape, match=r"\(3,\).*\(2,\)"):
        metrics.confusion(np.zeros(3, int), np.zeros(2, int), 2)
    with pytest.raises(InvalidArgument, match="5 to 5: 0 to 1"):
        metrics.confusion(np.zeros(1, int), np.full(1, 5), 2)
    with pytest.raises(InvalidShape, match="N > 0"):
        metrics.regression(np.zeros((0, 2)), np.zeros((0, 2)))


def same(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, abs_tol=1e-12)
