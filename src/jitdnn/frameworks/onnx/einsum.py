"""Einsum: transposed views, diagonals that are views, sums, and matrix products of two operands at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.frameworks.onnx.operator import Array, Site, table
from jitdnn.frameworks.onnx.pointwise import is_real, pointwise
from jitdnn.frameworks.onnx.reduction import reduced
from jitdnn.frameworks.onnx.views import bounded
from jitdnn.graph import primitives as jd

_MOST = 64  # terms and letters of an equation


class _Term(NamedTuple):
    """An array whose axes have names; those of an ellipsis are numbers, from the last one on."""

    array: Array
    names: tuple[Any, ...]


def einsum(first: Array, /, *others: Array, equation: str, site: Site) -> Any:
    """The terms are multiplied from the left to the right. Sums of integers are NumPy's."""
    arrays = (first, *others)
    terms, result = _read(equation, arrays, site)
    if not is_real(first):
        return np.asarray(np.einsum(equation, *arrays))
    extents: dict[Any, int] = {}
    for term in terms:
        for name, extent in zip(term.names, term.array.shape, strict=True):
            known = extents.setdefault(name, extent)
            if known == 1:
                extents[name] = extent
            elif extent not in {1, known}:
                raise InvalidShape(f"{site.operator}: {name!r} of {equation!r} is {known} and {extent}")
    bounded(tuple(extents[name] for name in result), first)
    terms = [_distinct(term) for term in terms]
    left = terms[0]
    for position, right in enumerate(terms[1:], 1):
        later = {name for term in terms[position + 1 :] for name in term.names} | set(result)
        left = _contracted(
            _summed(left, later | set(right.names), site),
            _summed(right, later | set(left.names), site),
            later,
        )
    left = _summed(left, set(result), site)
    return left.array.transpose([left.names.index(name) for name in result])


def is_equation(text: str) -> bool:
    """False for text that no equation is made of; onnx's own inference never ends over some of it."""
    plain = text.replace(" ", "").replace("...", "").replace("->", "").replace(",", "")
    return all(c.isascii() and c.isalpha() for c in plain)


def _read(equation: str, arrays: Sequence[Array], site: Site) -> tuple[list[_Term], tuple[Any, ...]]:
    text = equation.replace(" ", "")
    given, arrow, wanted = text.partition("->")
    words = given.split(",")
    if len(words) != len(arrays) or not is_equation(equation) or len(words) > _MOST:
        raise InvalidArgument(f"{site.operator}: {equation[:80]!r} does not fit {len(arrays)} operands")
    terms = []
    for word, array in zip(words, arrays, strict=True):
        terms.append(_Term(array, _names(word, array.ndim, site)))
    inner = sorted({name for term in terms for name in term.names if isinstance(name, int)})
    if arrow:
        result = tuple(_names(wanted, len(wanted.replace("...", "")) + len(inner) * ("..." in wanted), site))
        if len(set(result)) != len(result) or not set(result) <= {
            name for term in terms for name in term.names
        }:
            raise InvalidArgument(
                f"{site.operator}: {wanted!r} has a letter twice, or one that no operand has"
            )
        return terms, result
    counts = Counter(c for word in words for c in word.replace("...", ""))
    return terms, (*inner, *sorted(c for c, count in counts.items() if count == 1))


def _names(word: str, rank: int, site: Site) -> tuple[Any, ...]:
    before, dots, after = word.partition("...")
    missing = rank - len(before) - len(after)
    if missing < 0 or (missing and not dots) or "." in before + after:
        raise InvalidArgument(f"{site.operator}: {word!r} does not name {rank} axes")
    return (*before, *range(-missing, 0), *after)


def _distinct(term: _Term) -> _Term:
    """A name that stands twice is a diagonal."""
    array, names = term
    for name in set(names):
        while names.count(name) > 1:
            one = names.index(name)
            two = names.index(name, one + 1)
            array = np.moveaxis(np.diagonal(array, axis1=one, axis2=two), -1, one)
            names = (*names[:two], *names[two + 1 :])
    return _Term(array, names)


def _summed(term: _Term, kept: set[Any], site: Site) -> _Term:
    over = tuple(axis for axis, name in enumerate(term.names) if name not in kept)
    if not over:
        return term
    names = tuple(name for name in term.names if name in kept)
    return _Term(reduced(term.array, "add", over, False, site), names)


def _contracted(left: _Term, right: _Term, later: set[Any]) -> _Term:
    """Names of both are axes of the batch where they are needed later, else summed over by a matrix product."""
    both = [name for name in left.names if name in right.names]
    batch = [name for name in both if name in later]
    shared = [name for name in both if name not in later]
    rows = [name for name in left.names if name not in both]
    columns = [name for name in right.names if name not in both]
    names = (*batch, *rows, *columns)
    if not shared:
        a = _ordered(left, (*batch, *rows)).reshape(*_extents(left, (*batch, *rows)), *(1,) * len(columns))
        b = _ordered(right, (*batch, *columns)).reshape(
            *_extents(right, batch), *(1,) * len(rows), *_extents(right, columns)
        )
        return _Term(pointwise(lambda x, y: x * y, a, b), names)
    # an extent of 1 stands for each of the other's
    extents = [
        max(pair) if min(pair) == 1 else pair[0]
        for pair in zip(_extents(left, shared), _extents(right, shared), strict=True)
    ]
    depth = math.prod(extents)
    a = np.broadcast_to(
        _ordered(left, (*batch, *rows, *shared)), (*_extents(left, (*batch, *rows)), *extents)
    ).reshape(*_extents(left, batch), math.prod(_extents(left, rows)), depth)
    b = np.broadcast_to(
        _ordered(right, (*batch, *shared, *columns)),
        (*_extents(right, batch), *extents, *_extents(right, columns)),
    ).reshape(*_extents(right, batch), depth, math.prod(_extents(right, columns)))
    y = jd.matmul(a, b)
    return _Term(y.reshape((*y.shape[: len(batch)], *_extents(left, rows), *_extents(right, columns))), names)


def _ordered(term: _Term, names: Sequence[Any]) -> Array:
    return term.array.transpose([term.names.index(name) for name in names])


def _extents(term: _Term, names: Sequence[Any]) -> tuple[int, ...]:
    return tuple(term.array.shape[term.names.index(name)] for name in names)


OPERATORS = table(Einsum=einsum)
