"""A solver from the options of a training and the size of a data set (the rules are DIGITS')."""

from __future__ import annotations

import math

from jitdnn.caffe.schema import SolverParameter
from jitdnn.studio.nets.binding import test_batch
from jitdnn.studio.nets.facts import DataFacts
from jitdnn.studio.nets.options import Options
from jitdnn.studio.nets.schedules import set_policy

# points of the loss that are displayed in an epoch's log
_DISPLAYS = 8
# solvers whose formula has no momentum
_WITHOUT_MOMENTUM = ("AdaGrad", "RMSProp")


def solver_of(options: Options, facts: DataFacts) -> SolverParameter:
    """The solver, whose net is `net.prototxt` beside it."""
    epochs, batch = options.sizes
    each = max(1, math.ceil(facts.counts["train"] / (batch * options.accumulate)))
    most = each * epochs
    tested = facts.counts[facts.tested]
    solver = SolverParameter(
        net="net.prototxt",
        test_iter=[math.ceil(tested / test_batch(tested, batch))],
        test_interval=max(1, each // options.tests),
        type=options.solver,
        base_lr=options.rate,
        weight_decay=options.decay,
        max_iter=most,
        display=max(1, each // _DISPLAYS),
        snapshot=min(most, max(1, round(each / options.snapshots))) if options.snapshots else 0,
        random_seed=options.seed,
        solver_mode="CPU",
    )
    if options.solver not in _WITHOUT_MOMENTUM:
        solver.momentum = options.momentum
    if options.accumulate > 1:
        solver.iter_size = options.accumulate
    if options.clip:
        solver.clip_gradients = options.clip
    if options.weight_average:
        solver.ema_decay = options.weight_average
    set_policy(solver, options.policy, options)
    if options.warmup:
        solver.warmup_iter = int(options.warmup * most / 100)
    return solver
