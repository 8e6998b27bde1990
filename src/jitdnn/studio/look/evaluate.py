"""What is told of a net's answers for a part of a data set: a summary for the store, and details for a page.

Numbers come out as JSON has them: shares that nothing stands behind are None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jitdnn.caffe.arrays import read_npz
from jitdnn.errors import InvalidArgument
from jitdnn.studio.csv_text import csv_text
from jitdnn.studio.look import metrics
from jitdnn.studio.look.detections import Matched, average_precisions
from jitdnn.studio.look.predictions import predictions_file
from jitdnn.studio.store import run_folder

Array = NDArray[Any]
Arrays = Mapping[str, Array]
Found = dict[str, Any]
#: classes of which a matrix is shown as a table; beyond it pairs are listed
MOST_IN_TABLE: Final = 40
_ERRORS = 60
_PAIRS = 500


def summarize(home: Path, run: Mapping[str, Any], dataset: Mapping[str, Any], part: str, key: str) -> Found:
    """What the store keeps of an evaluation: `summary`, `per_class`, `matrix` ([] where it is too large for a table).

    Raises InvalidArgument where there are no predictions of these weights.
    """
    arrays = read_predictions(home, run, part, key)
    task, classes = dataset.get("task") or "classification", list(dataset["classes"])
    return _SUMMARIES[task](arrays, classes)


def read_predictions(home: Path, run: Mapping[str, Any], part: str, key: str) -> dict[str, Array]:
    """The arrays of a part's predictions (predictions.py says which)."""
    file = predictions_file(run_folder(home, run["id"]), key, part)
    if not file.is_file():
        raise InvalidArgument(f"there are no predictions for part {part!r} by {key}: evaluate it first")
    return read_npz(file)


def _classification(arrays: Arrays, classes: Sequence[str]) -> Found:
    true, best, sure = arrays["true"], arrays["best"], arrays["sure"]
    known = true >= 0  # the others have no label yet
    said = best[:, 0].astype(np.int64)
    counts = _confusion(arrays, classes)
    each, right = metrics.per_class(counts), (said == true)[known]
    finite = sure[
        np.isfinite(sure[:, 0]), 0
    ]  # scores that are no shares (of a hinge loss) tell no confidence
    is_share = bool(finite.size) and finite.min() >= 0 and finite.max() <= 1 + 1e-5
    found = metrics.calibration(sure[known, 0] if is_share else sure[:0, 0], right if is_share else right[:0])
    wrong = np.flatnonzero(known & (said != true))
    order = np.argsort(-np.nan_to_num(sure[wrong, 0]), kind="stable")
    surest = wrong[order]
    names = ("precision", "recall", "f1")
    summary = {
        "task": "classification",
        "images": int(known.sum()),
        "unlabelled": int((~known).sum()),
        "accuracy": plain(right.mean()) if right.size else None,
        "balanced": plain(metrics.balanced_accuracy(counts)),
        "top5": plain((best == true[:, None]).any(1)[known].mean()) if right.size else None,
        "f1": plain(metrics.finite_mean(each.f1)),
        "outputs": len(counts),
        "calibration": plain(found.error),
        "bins": [
            {"count": int(n), "confidence": plain(c), "accuracy": plain(a)}
            for n, c, a in zip(found.counts, found.confidence, found.accuracy, strict=True)
        ],
        "errors": [
            {"at": int(i), "true": int(true[i]), "said": int(said[i]), "sure": plain(sure[i, 0])}
            for i in surest[:_ERRORS]
        ],
        "wrong": len(wrong),
        "pairs": [{"true": a, "said": b, "count": n} for a, b, n in metrics.worst_pairs(counts, _PAIRS)],
        "not_finite": int((~np.isfinite(sure[:, 0])).sum()),
    }
    per_class = _by_class(each, names)
    matrix = counts.tolist() if len(counts) <= MOST_IN_TABLE else []
    return {"summary": summary, "per_class": per_class, "matrix": matrix}


def _multi_label(arrays: Arrays, classes: Sequence[str]) -> Found:
    scores, true = arrays["scores"], arrays["true"]
    each = metrics.per_label(scores, true)
    said = scores >= 0.5
    names = ("average_precision", "precision", "recall", "f1")
    distance = np.abs(scores - true)
    worst = np.argsort(-np.nan_to_num(distance.max(1)), kind="stable")[:_ERRORS]
    summary = {
        "task": "multi-label",
        "images": len(true),
        "mean_average_precision": plain(metrics.finite_mean(each.average_precision)),
        "f1": plain(metrics.finite_mean(each.f1)),
        "exact": plain((said == (true > 0)).all(1).mean()) if len(true) else None,
        "hamming": plain((said == (true > 0)).mean()) if len(true) else None,
        "errors": [
            {"at": int(i), "true": np.flatnonzero(true[i] > 0).tolist(), "said": np.flatnonzero(said[i]).tolist(),
             "sure": plain(distance[i].max())}
            for i in worst
            if distance[i].max() >= 0.5
        ],
        "not_finite": int((~np.isfinite(scores)).any(1).sum()),
    }  # fmt: skip
    per_class = _by_class(each, names)
    return {"summary": summary, "per_class": per_class, "matrix": []}


def _regression(arrays: Arrays, classes: Sequence[str]) -> Found:
    said, true = arrays["scores"], arrays["true"]
    each = metrics.regression(said, true)
    distance = np.abs(said.astype(np.float64) - true)
    spread = np.where(true.std(0) > 0, true.std(0), 1.0)
    relative = (distance / spread).max(1)
    worst = np.argsort(-np.nan_to_num(relative, nan=np.inf), kind="stable")[:_ERRORS]
    names = ("mae", "rmse", "r2")
    summary = {
        "task": "regression",
        "images": len(true),
        **{name: plain(metrics.finite_mean(getattr(each, name))) for name in names},
        "edges": [plain(value) for value in each.edges],
        "errors": [
            {"at": int(i), "true": [plain(v) for v in true[i]], "said": [plain(v) for v in said[i]],
             "sure": plain(relative[i])}
            for i in worst
        ],
        "not_finite": int((~np.isfinite(said)).any(1).sum()),
    }  # fmt: skip
    per_class = [
        {"histogram": each.histogram[i].tolist(), **{name: plain(getattr(each, name)[i]) for name in names}}
        for i in range(true.shape[1])
    ]
    return {"summary": summary, "per_class": per_class, "matrix": []}


def _segmentation(arrays: Arrays, classes: Sequence[str]) -> Found:
    counts = arrays["matrix"]
    each, iou = metrics.per_class(counts), metrics.intersection_over_union(counts)
    image_iou = arrays["iou"]
    worst = np.argsort(np.nan_to_num(image_iou, nan=np.inf), kind="stable")[:_ERRORS]
    total = counts.sum()
    summary = {
        "task": "segmentation",
        "images": len(image_iou),
        "pixels": int(total),
        "accuracy": plain(counts.diagonal().sum() / total) if total else None,
        "balanced": plain(metrics.balanced_accuracy(counts)),
        "mean_iou": plain(metrics.finite_mean(iou)),
        "errors": [{"at": int(i), "sure": plain(image_iou[i])} for i in worst],
        "pairs": [{"true": a, "said": b, "count": n} for a, b, n in metrics.worst_pairs(counts, _PAIRS)],
        "not_finite": 0,
    }
    rows = _by_class(each, ("precision", "recall", "f1"))
    per_class = [
        {"support": row["support"], "iou": plain(v), **row} for row, v in zip(rows, iou, strict=True)
    ]
    return {
        "summary": summary,
        "per_class": per_class,
        "matrix": counts.tolist() if len(counts) <= MOST_IN_TABLE else [],
    }


def _detection(arrays: Arrays, classes: Sequence[str]) -> Found:
    support, there, hits = arrays["support"], arrays["there"], arrays["hits"]
    boxes = Matched(arrays["box_class"], arrays["box_sure"], arrays["box_hit"])
    each = average_precisions([boxes], support)
    missed = there - hits
    worst = np.argsort(-missed, kind="stable")[:_ERRORS]
    summary = {
        "task": "detection",
        "images": len(there),
        "boxes": int(there.sum()),
        "found": len(arrays["box_sure"]),
        "recall": plain(hits.sum() / there.sum()) if there.sum() else None,
        "mean_average_precision": plain(metrics.finite_mean(each)),
        "errors": [{"at": int(i), "missed": int(missed[i])} for i in worst if missed[i]],
        "not_finite": 0,
    }
    per_class = [
        {"support": int(n), "average_precision": plain(p)} for n, p in zip(support, each, strict=True)
    ]
    return {"summary": summary, "per_class": per_class, "matrix": []}


def _by_class(each: Any, names: Sequence[str]) -> list[Found]:
    """A row for each class: its support, and the named shares of `metrics`."""
    return [
        {"support": int(n), **{name: plain(getattr(each, name)[i]) for name in names}}
        for i, n in enumerate(each.support)
    ]


_SUMMARIES = {
    "detection": _detection,
    "classification": _classification,
    "multi-label": _multi_label,
    "regression": _regression,
    "segmentation": _segmentation,
}


def _confusion(arrays: Arrays, classes: Sequence[str]) -> Array:
    """True classes by those that were said; a net may know more classes than the data set has."""
    said = arrays["best"][:, 0].astype(np.int64)
    return metrics.confusion(arrays["true"], said, max(len(classes), len(arrays["surest"])))


def matrix_csv(counts: Sequence[Sequence[int]], classes: Sequence[str]) -> str:
    """A confusion matrix as CSV, rows the true classes."""
    rows: list[list[object]] = [["true \\ said", *classes]]
    rows += [[name, *row] for name, row in zip(classes, counts, strict=False)]
    return csv_text(rows)


def predictions_csv(arrays: Arrays, classes: Sequence[str]) -> str:
    """Predictions as CSV, a line an image: what is true, and what the net said with its probabilities or numbers."""
    if "best" in arrays:
        best, sure = arrays["best"], arrays["sure"]
        head = [
            "image",
            "true",
            *(f"{what} {n + 1}" for n in range(best.shape[1]) for what in ("class", "probability")),
        ]
        rows: list[list[object]] = [list(head)]
        for i, true in enumerate(arrays["true"].tolist()):
            pairs = zip(best[i].tolist(), sure[i].tolist(), strict=True)
            cells = [cell for c, p in pairs for cell in (name_of(classes, c), f"{p:.6g}")]
            rows.append([i, name_of(classes, true), *cells])
        return csv_text(rows)
    if "scores" in arrays:
        rows = [["image", *(f"{kind} {name}" for name in classes for kind in ("true", "said"))]]
        for i, (true_row, said) in enumerate(
            zip(arrays["true"].tolist(), arrays["scores"].tolist(), strict=True)
        ):
            rows.append([i, *(f"{v:.6g}" for pair in zip(true_row, said, strict=True) for v in pair)])
        return csv_text(rows)
    if "box_class" in arrays:
        rows = [["image", "class", "confidence", "is a true one"]]
        boxes = (arrays[name].tolist() for name in ("box_image", "box_class", "box_sure", "box_hit"))
        rows += [[i, name_of(classes, k), f"{p:.6g}", int(hit)] for i, k, p, hit in zip(*boxes, strict=True)]
        return csv_text(rows)
    rows = [["image", "pixels", "right", "mean iou"]]
    columns = (arrays[name].tolist() for name in ("pixels", "right", "iou"))
    rows += [[i, *cells] for i, cells in enumerate(zip(*columns, strict=True))]
    return csv_text(rows)


def find_pairs(
    home: Path,
    run: Mapping[str, Any],
    dataset: Mapping[str, Any],
    part: str,
    key: str,
    words: str,
    most: int = _PAIRS,
) -> list[Found]:
    """The pairs of classes that were confused most often, those whose names have every word, from all that there
    are."""
    arrays, classes = read_predictions(home, run, part, key), list(dataset["classes"])
    if "best" not in arrays:
        raise InvalidArgument("pairs of classes are of classification")
    counts = _confusion(arrays, classes)
    wanted, found = words.casefold().split(), list[Found]()
    for true, said, count in metrics.worst_pairs(counts, counts.size):
        names = name_of(classes, true), name_of(classes, said)
        about = " ".join(names).casefold()
        if all(word in about for word in wanted):
            found.append({"true": true, "said": said, "count": count})
            if len(found) == most:
                break
    return found


def find_images(
    home: Path, run: Mapping[str, Any], part: str, key: str, true: int, said: int, most: int = 200
) -> list[Found]:
    """The images of class `true` that were said to be `said`; with `true` -1 those that are surest of being `said`."""
    arrays = read_predictions(home, run, part, key)
    if "best" not in arrays:
        raise InvalidArgument("images are found by classes in classification alone")
    return surest_of(arrays, said, most) if true < 0 else images_of_cell(arrays, true, said, most)


def table_csv(
    home: Path, run: Mapping[str, Any], dataset: Mapping[str, Any], part: str, key: str, table: str
) -> str:
    """A table of an evaluation as CSV: matrix, classes or predictions. Raises InvalidArgument for another one."""
    arrays, classes = read_predictions(home, run, part, key), list(dataset["classes"])
    if table == "predictions":
        return predictions_csv(arrays, classes)
    if table == "classes":
        rows = summarize(home, run, dataset, part, key)["per_class"]
        columns = [name for name in rows[0] if name != "histogram"] if rows else []
        body = [[name_of(classes, k), *(row[name] for name in columns)] for k, row in enumerate(rows)]
        return csv_text([["class", *columns], *body])
    if table == "matrix" and ("best" in arrays or "matrix" in arrays):
        counts = _confusion(arrays, classes) if "best" in arrays else arrays["matrix"]
        return matrix_csv(counts.tolist(), [name_of(classes, k) for k in range(len(counts))])
    raise InvalidArgument(
        f"there is no table {table!r} of this evaluation: matrix (of classes), classes, predictions"
    )


def surest_of(arrays: Arrays, number: int, most: int) -> list[Found]:
    """The images that are surest of one class, the surest first: where, how sure, and what is true."""
    if "surest" not in arrays:
        raise InvalidArgument("the surest images of a class are of classification")
    if not 0 <= number < len(arrays["surest"]):
        raise InvalidArgument(f"class {number} is none of the {len(arrays['surest'])} that the net has")
    pairs = zip(arrays["surest"][number].tolist(), arrays["surest_sure"][number].tolist(), strict=True)
    return [
        {"at": at, "sure": plain(sure), "true": int(arrays["true"][at])} for at, sure in list(pairs)[:most]
    ]


def images_of_cell(arrays: Arrays, true: int, said: int, most: int) -> list[Found]:
    """The images of one class that were said to be another (or the same), the surest first."""
    places = np.flatnonzero((arrays["true"] == true) & (arrays["best"][:, 0] == said))
    sure = np.nan_to_num(arrays["sure"][places, 0])
    places = places[np.argsort(-sure, kind="stable")][:most]
    return [{"at": int(i), "sure": plain(arrays["sure"][i, 0]), "true": true, "said": said} for i in places]


def name_of(classes: Sequence[str], number: int) -> str:
    """The name of a class, or its number where it has none."""
    return classes[number] if 0 <= number < len(classes) else "" if number < 0 else str(number)


def plain(value: Any) -> float | None:
    """A number as JSON has it: None for what is not finite."""
    number = float(value)
    return number if math.isfinite(number) else None
