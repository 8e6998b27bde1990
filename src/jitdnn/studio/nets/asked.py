"""What is asked of a net: the options of a training for a data set, as callers give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jitdnn.studio.nets.facts import DataFacts
from jitdnn.studio.nets.options import Options


def asked_of(options: Mapping[str, Any], dataset: Mapping[str, Any]) -> tuple[Options, DataFacts]:
    """Read options and a row of the table dataset; options have their values for data of this size.

    Raises InvalidArgument, naming what is wrong.
    """
    facts = DataFacts.of(dataset)
    return Options.of(options).settled(facts.counts["train"]), facts


def settled(options: Mapping[str, Any], dataset: Mapping[str, Any]) -> dict[str, Any]:
    """The options with `epochs`, `batch` and `warmup` as numbers, to be kept with a run. Raises InvalidArgument."""
    chosen, _ = asked_of(options, dataset)
    return {**options, "epochs": chosen.epochs, "batch": chosen.batch, "warmup": chosen.warmup}
