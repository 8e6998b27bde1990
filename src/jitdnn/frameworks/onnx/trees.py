"""TreeEnsemble: decision trees, all rows of a tree one level at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jitdnn.errors import InvalidArgument
from jitdnn.frameworks.onnx.operator import Array, Site, table
from jitdnn.frameworks.onnx.views import bounded

_LEQ, _LT, _GTE, _GT, _EQ, _NEQ, _MEMBER = range(7)
_SUM, _AVERAGE, _MIN, _MAX = 1, 0, 2, 3


def tree_ensemble(
    x: Array,
    /,
    *,
    aggregate_function: int = _SUM,
    leaf_targetids: Sequence[int],
    leaf_weights: Array,
    membership_values: Array | None = None,
    n_targets: int,
    nodes_falseleafs: Sequence[int],
    nodes_falsenodeids: Sequence[int],
    nodes_featureids: Sequence[int],
    nodes_hitrates: Array | None = None,
    nodes_missing_value_tracks_true: Sequence[int] | None = None,
    nodes_modes: Array,
    nodes_splits: Array,
    nodes_trueleafs: Sequence[int],
    nodes_truenodeids: Sequence[int],
    post_transform: int = 0,
    tree_roots: Sequence[int],
    site: Site,
) -> Array:
    """Rows of x (N, features) give (N, n_targets): the leaves that they reach, summed, averaged, or the extremes."""
    if post_transform:
        raise site.refuse(f"post_transform {post_transform} is not covered: 0, none, is")
    if aggregate_function not in {_SUM, _AVERAGE, _MIN, _MAX}:
        raise site.refuse(f"aggregate_function {aggregate_function} is not covered")
    nodes, leaves = len(nodes_featureids), len(leaf_targetids)
    features, modes = np.asarray(nodes_featureids), nodes_modes.astype(np.int64)
    tracks = np.asarray(nodes_missing_value_tracks_true or [0] * nodes, bool)
    targets = np.asarray(leaf_targetids)
    ends = [np.asarray(values) for values in (nodes_falsenodeids, nodes_truenodeids)]
    are_leaves = [np.asarray(values, bool) for values in (nodes_falseleafs, nodes_trueleafs)]
    lengths = {len(part) for part in (features, modes, tracks, nodes_splits, *ends, *are_leaves)}
    if lengths != {nodes} or len(leaf_weights) != leaves:
        raise InvalidArgument(f"{site.operator}: attributes of nodes have {sorted(lengths)} elements")
    for end, is_leaf in zip(ends, are_leaves, strict=True):
        _check(end[is_leaf], leaves, "leaves", site)
        _check(end[~is_leaf], nodes, "nodes", site)
    _check(features, x.shape[1], "features", site)
    _check(targets, n_targets, "targets", site)
    _check(np.asarray(tree_roots), nodes, "nodes", site)
    members = _members(modes, membership_values, site)
    result = np.zeros(bounded((len(x), n_targets), x), x.dtype)
    if aggregate_function in {_MIN, _MAX}:
        result[:] = np.inf if aggregate_function == _MIN else -np.inf
    rows = np.arange(len(x))
    for root in tree_roots:
        at, waiting = np.full(len(x), root), rows
        found = np.zeros(len(x), np.int64)
        for _ in range(nodes + 1):
            here = at[waiting]
            holds = _holds(
                x[waiting, features[here]], modes[here], nodes_splits[here], tracks[here], here, members
            )
            goes_to = np.where(holds, ends[1][here], ends[0][here])
            ended = np.where(holds, are_leaves[1][here], are_leaves[0][here])
            found[waiting[ended]] = goes_to[ended]
            at[waiting] = goes_to
            waiting = waiting[~ended]
            if not waiting.size:
                break
        else:
            raise InvalidArgument(f"{site.operator}: the nodes below {root} come back to themselves")
        place, weight = (rows, targets[found]), leaf_weights[found]
        if aggregate_function == _MIN:
            result[place] = np.minimum(result[place], weight)
        elif aggregate_function == _MAX:
            result[place] = np.maximum(result[place], weight)
        else:
            result[place] += weight
    if aggregate_function in {_MIN, _MAX}:
        result[np.isinf(result)] = 0
    return result / len(tree_roots) if aggregate_function == _AVERAGE else result


def _check(values: Array, count: int, what: str, site: Site) -> None:
    if values.size and not (values.min() >= 0 and values.max() < count):
        raise InvalidArgument(
            f"{site.operator}: {values.min()} to {values.max()} are not all among {count} {what}"
        )


def _members(modes: Array, values: Array | None, site: Site) -> dict[int, Array]:
    """The set of each node that asks for membership; NaN ends a set in the list."""
    asking = np.flatnonzero(modes == _MEMBER)
    if not asking.size:
        return {}
    if values is None:
        raise InvalidArgument(f"{site.operator}: membership_values are missing")
    sets = np.split(values, np.flatnonzero(np.isnan(values)))
    if len(sets) <= len(asking) - 1:
        raise InvalidArgument(f"{site.operator}: membership_values have too few sets for {len(asking)} nodes")
    return {int(node): found[~np.isnan(found)] for node, found in zip(asking, sets, strict=False)}


def _holds(
    values: Array, modes: Array, splits: Array, tracks: Array, nodes: Array, members: dict[int, Array]
) -> Array:
    choices = [
        values <= splits,
        values < splits,
        values >= splits,
        values > splits,
        values == splits,
        values != splits,
    ]
    holds = np.choose(np.minimum(modes, _NEQ), choices)
    for node, found in members.items():
        here = nodes == node
        holds[here] = np.isin(values[here], found)
    return np.asarray(holds | (np.isnan(values) & tracks), bool)


OPERATORS = table(TreeEnsemble=tree_ensemble)
