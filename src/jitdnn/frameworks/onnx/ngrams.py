"""TfIdfVectorizer: how often each of some sequences of items (n-grams) appears in a row, weighted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitdnn.errors import InvalidArgument
from jitdnn.frameworks.onnx.operator import Array, Site, table
from jitdnn.frameworks.onnx.text import is_text
from jitdnn.frameworks.onnx.views import bounded

_Gram = tuple[Any, ...]


def tf_idf_vectorizer(
    x: Array,
    /,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] = (),
    pool_strings: Sequence[str] = (),
    weights: Sequence[float] = (),
    site: Site,
) -> Array:
    """x: (C,) or (N, C). An n-gram's items lie 1 to `max_skip_count` + 1 apart; single ones count once."""
    if mode not in {"TF", "IDF", "TFIDF"}:
        raise site.refuse(f"mode {mode!r} is not covered")
    if x.ndim > 2:
        raise InvalidArgument(f"{site.operator}: x has {x.ndim} axes: [C] and [N, C] are taken")
    pool = tuple(pool_strings) if is_text(x) else tuple(pool_int64s)
    places = _places(pool, ngram_counts, ngram_indexes, min_gram_length, max_gram_length, site)
    width = max(ngram_indexes, default=-1) + 1
    rows = x.reshape(1, -1) if x.ndim < 2 else x
    counts = np.zeros(bounded((len(rows), width), np.empty(0, np.float32)), np.float32)
    sizes = sorted({len(gram) for gram in places})
    for count, row in zip(counts, rows, strict=True):
        _count(count, tuple(row.tolist()), places, sizes, max_skip_count)
    found = (counts > 0).astype(np.float32) if mode == "IDF" else counts
    if weights and mode != "TF":
        if len(weights) != len(ngram_indexes):
            raise InvalidArgument(
                f"{site.operator}: {len(weights)} weights do not fit {len(ngram_indexes)} ngram_indexes"
            )
        by_column = np.zeros(width, np.float32)
        by_column[np.asarray(ngram_indexes)] = weights
        found = found * by_column
    return found.reshape(width) if x.ndim < 2 else found


def _places(
    pool: Sequence[Any], counts: Sequence[int], indexes: Sequence[int], least: int, most: int, site: Site
) -> dict[_Gram, int]:
    """The column of each n-gram. The pool has all of one item, then all of two, ...; `counts` says where each
    begins."""
    ends = [*counts[1:], len(pool)]
    if list(counts) != sorted(counts) or (counts and not 0 <= counts[0] <= counts[-1] <= len(pool)):
        raise InvalidArgument(
            f"{site.operator}: ngram_counts {list(counts)} do not rise within a pool of {len(pool)}"
        )
    if min(indexes, default=0) < 0:
        raise InvalidArgument(f"{site.operator}: ngram_indexes are negative")
    found: dict[_Gram, int] = {}
    number = 0
    for size, (begin, end) in enumerate(zip(counts, ends, strict=True), 1):
        for first in range(begin, end - size + 1, size):
            if number >= len(indexes):
                raise InvalidArgument(
                    f"{site.operator}: {len(indexes)} ngram_indexes are too few for the pool"
                )
            if least <= size <= most:
                found.setdefault(tuple(pool[first : first + size]), indexes[number])
            number += 1
    return found


def _count(count: Array, row: _Gram, places: dict[_Gram, int], sizes: Sequence[int], skips: int) -> None:
    for size in sizes:
        for step in range(1, 2 if size == 1 else skips + 2):
            reach = step * (size - 1)
            if reach >= len(row):
                break
            for first in range(len(row) - reach):
                place = places.get(row[first : first + reach + 1 : step])
                if place is not None:
                    count[place] += 1


OPERATORS = table(TfIdfVectorizer=tf_idf_vectorizer)
