"""Which nets a solver file asks for: one for training, any number for testing, the state and the memory of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jitdnn.caffe import paths
from jitdnn.caffe.data_parallel import DataParallel
from jitdnn.caffe.load import parse_file
from jitdnn.caffe.memory_layout import lay_out
from jitdnn.caffe.net import Net
from jitdnn.caffe.schema import NetParameter, NetState, SolverParameter
from jitdnn.caffe.weights import load_weights, share_weights
from jitdnn.errors import InvalidArgument

TRAIN_FIELDS = ("net", "net_param", "train_net", "train_net_param")


class Definition(NamedTuple):
    """A net to build: its parameter, its state, and the folder that its relative paths may start from."""

    net: NetParameter
    state: NetState
    folder: Path | None


def training_net(solver: SolverParameter, base: Path | None) -> Definition:
    """Return the net to train. Raises InvalidArgument unless exactly one of the four fields names it.

    Its state is phase TRAIN, then what the net's own `state` says, then `train_state`.
    """
    given = [name for name in TRAIN_FIELDS if solver.has(name)]
    if len(given) != 1:
        raise InvalidArgument(
            f"a solver names its net in one of {', '.join(TRAIN_FIELDS)}; "
            f"this one has {' and '.join(given) or 'none'}"
        )
    folder = base
    if given[0] in ("net", "train_net"):
        net, folder = _from_file(getattr(solver, given[0]), base)
    else:
        net = getattr(solver, given[0])
    return Definition(net, _state("TRAIN", net, solver.train_state), folder)


def testing_nets(solver: SolverParameter, base: Path | None) -> list[Definition]:
    """Return the nets to test, one for each `test_iter`: first test_net_param, then test_net, then net or
    net_param.

    Their states are phase TEST, then the net's own, then the `test_state` of the same place.
    """
    found: list[tuple[NetParameter, Path | None]] = []
    found += [(net, base) for net in solver.test_net_param]
    found += [_from_file(name, base) for name in solver.test_net]
    is_general = solver.has("net") or solver.has("net_param")
    count = len(solver.test_iter)
    if count < len(found) or (count > len(found) and not is_general):
        raise InvalidArgument(
            f"{count} test_iter for {len(found)} test nets{solver.where('test_iter')}: give one for each"
        ).at(solver.place("test_iter"))
    for _ in range(count - len(found)):
        found.append(_from_file(solver.net, base) if solver.has("net") else (solver.net_param, base))
    if solver.test_state and len(solver.test_state) != count:
        raise InvalidArgument(
            f"{len(solver.test_state)} test_state for {count} test nets{solver.where('test_state')}: "
            "give one for each, or none"
        ).at(solver.place("test_state"))
    if count and solver.test_interval <= 0:
        raise InvalidArgument(
            f"test_iter is given, and test_interval is {solver.test_interval}: it must be positive"
        )
    if any(batches <= 0 for batches in solver.test_iter):
        raise InvalidArgument(
            f"test_iter is {solver.test_iter}{solver.where('test_iter')}: it must be positive"
        ).at(solver.place("test_iter"))
    states = solver.test_state or [NetState()] * count
    return [
        Definition(net, _state("TEST", net, state), folder)
        for (net, folder), state in zip(found, states, strict=True)
    ]


def _from_file(name: str, base: Path | None) -> tuple[NetParameter, Path]:
    path = paths.find(name, base)
    return parse_file(path, NetParameter), path.parent


def _state(phase: str, net: NetParameter, last: NetState) -> NetState:
    state = NetState(phase=phase)
    state.merge(net.state)
    state.merge(last)
    return state


def made_nets(
    solver: SolverParameter,
    base: Path | None,
    seeds: np.random.SeedSequence,
    parallel: DataParallel | None,
    options: Mapping[str, Any],
) -> tuple[Net, list[Net]]:
    """Build the net to train and those to test, which share its weights, with the weights that the solver names.

    Each draws from a seed of its own. `options` are those of Net.
    """
    definition, state, folder = training_net(solver, base)
    tests = testing_nets(solver, base)
    seed, *test_seeds = seeds.spawn(1 + len(tests))
    part = None if parallel is None else parallel.part
    net = Net(definition, state, base=folder, seed=seed, part=part, **options)
    if parallel is not None:
        parallel.take(net)
    turns = None if parallel is None else parallel.turns
    test_nets = [
        Net(definition, state, base=folder, seed=test_seed, turns=turns and turns(), **options)
        for (definition, state, folder), test_seed in zip(tests, test_seeds, strict=True)
    ]
    for each in test_nets:
        share_weights(each, net)
    for names in solver.weights:
        for name in names.split(","):
            load_weights(net, paths.find(name.strip(), base))
    return net, test_nets


def limit_together(net: Net, test_nets: Sequence[Net], limit: int | str, history: int) -> None:
    """Keep a net that is trained, and those that test it and share its weights, within one limit.

    They do not run at the same time: each may use what the inputs, outputs and weights of all of them leave. `history`
    are the bytes that the solver keeps beside the weights. Raises InvalidArgument if the limit is too small.
    """
    every = [net, *test_nets]
    always = [lay_out(each, is_trained=each is net).constant for each in every]
    with_history = sum(always) + history
    try:
        for each, own in zip(every, always, strict=True):
            beside = None if each is net else net
            each.limit_memory(limit, extra=with_history - own, is_trained=each is net, beside=beside)
    except BaseException:
        for each in every:
            each.limit_memory(None)
        raise
