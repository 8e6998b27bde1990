"""The division into parts: by class in equal shares, groups in one piece, always alike for one seed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from jitdnn.studio.data.dataset import PARTS, Array
from jitdnn.studio.data.entries import Entry
from jitdnn.studio.data.options import Options


def assign(entries: Sequence[Entry], options: Options, stratified: bool) -> list[str]:
    """The part of each entry. What its owner has put into a part stays there; where there is a train part but no other,
    val and test are taken from it by the percentages, and where a part is given, none of it is taken for that one.
    """
    given = {entry.part for entry in entries if entry.part}
    shares = {"val": 0.0 if "val" in given else options.val, "test": 0.0 if "test" in given else options.test}
    parts = [entry.part or "train" for entry in entries]
    free = [k for k, part in enumerate(parts) if part == "train"]
    strata: dict[object, list[int]] = defaultdict(list)
    for k in free:
        label = entries[k].label
        strata[label if stratified and isinstance(label, int) else 0].append(k)
    generator = np.random.default_rng(options.seed)
    if any(entries[k].group for k in free):
        chosen = _by_groups(entries, free, shares, generator)
    else:
        chosen = {}
        for label in sorted(strata, key=str):
            chosen |= _by_shares(strata[label], shares, generator)
    for k, part in chosen.items():
        parts[k] = part
    return parts


def _by_shares(
    members: list[int], shares: dict[str, float], generator: np.random.Generator
) -> dict[int, str]:
    """Random members for val and test: as many as their share, one at least of four or more, and train keeps some."""
    order = generator.permutation(members).tolist()
    chosen: dict[int, str] = {}
    taken = 0
    for part, share in shares.items():
        wanted = round(len(members) * share / 100)
        if share and not wanted and len(members) >= 4:
            wanted = 1
        wanted = min(wanted, len(members) - taken - 1)
        chosen |= dict.fromkeys(order[taken : taken + max(wanted, 0)], part)
        taken += max(wanted, 0)
    return chosen


def _by_groups(
    entries: Sequence[Entry], free: list[int], shares: dict[str, float], generator: np.random.Generator
) -> dict[int, str]:
    """Whole groups for val and test: each goes, from the largest on, to the part that lacks most of its classes."""
    groups: dict[object, list[int]] = defaultdict(list)
    for k in free:
        groups[entries[k].group or ("alone", k)].append(k)
    labels = {k: entries[k].label if isinstance(entries[k].label, int) else 0 for k in free}
    classes = {label: number for number, label in enumerate(sorted(set(labels.values())))}
    total = np.zeros(len(classes))
    counts: dict[object, Array] = {}
    for group, members in groups.items():
        counts[group] = np.bincount([classes[labels[k]] for k in members], minlength=len(classes))
        total += counts[group]
    fractions = {part: shares.get(part, 0.0) / 100 for part in PARTS}
    fractions["train"] = 1 - sum(fractions.values())
    missing = {part: total * fraction for part, fraction in fractions.items() if fraction > 0}
    names = list(groups)
    order = [names[int(k)] for k in generator.permutation(len(names))]
    order.sort(key=lambda group: -len(groups[group]))
    chosen: dict[int, str] = {}
    for group in order:
        held = counts[group]
        # the share of the group that a part still has room for, then the part that lacks most of what it should have
        part = max(
            missing,
            key=lambda name: (
                float(np.minimum(np.maximum(missing[name], 0), held).sum() / held.sum()),
                float(missing[name].sum() / max(fractions[name], 1e-9)),
            ),
        )
        missing[part] = missing[part] - held
        chosen |= dict.fromkeys(groups[group], part)
    return chosen
