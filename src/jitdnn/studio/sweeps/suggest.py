"""Optuna, asked without a memory of its own: what the store knows about the trials is told anew each time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from jitdnn.errors import needed
from jitdnn.studio.sweeps.plan import Plan
from jitdnn.studio.sweeps.space import Choice, Range, Value

_HALVING = 3
#: Hyperband with a budget of nine tests: of each 17 trials 9 are judged from the first test on, 5 from the third and 3
#: from the ninth, mixed so that each kind has some among the first
_BRACKETS = (0, 1, 0, 2, 0, 1, 0, 1, 0, 2, 0, 1, 0, 1, 0, 2, 0)


class Trial(NamedTuple):
    """What is known of a trial: its values, its tests in order, and its state (running, done, pruned, failed)."""

    values: dict[str, Value]
    tests: tuple[float, ...]
    state: str

    def best(self, is_greater_better: bool) -> float | None:
        """The best of its tests, None without one."""
        return (max if is_greater_better else min)(self.tests, default=None)


def suggest(plan: Plan, trials: Sequence[Trial]) -> dict[str, Value]:
    """The values of the next trial. Raises NotSupported without Optuna, which a grid does not need."""
    if plan.sampler == "grid":
        return next(itertools.islice(plan.space.grid(), len(trials), None))
    study = _study(plan, trials)
    distributions = _distributions(plan)
    found = study.ask(distributions).params
    return {name: found[name] for name in distributions}


def should_stop(plan: Plan, trials: Sequence[Trial], index: int) -> bool:
    """Whether the trial of this index is so much worse than the others at the same test that it should end."""
    if plan.pruner == "none" or not trials[index].tests:
        return False
    if plan.pruner == "halving":
        return _is_halved(plan, trials, index)
    if plan.pruner == "hyperband":
        bracket = _BRACKETS[index % len(_BRACKETS)]
        beside = [at for at in range(len(trials)) if _BRACKETS[at % len(_BRACKETS)] == bracket]
        return _is_halved(plan, [trials[at] for at in beside], beside.index(index), _HALVING**bracket)
    study = _study(plan, trials)
    return bool(study.pruner.prune(study, study.get_trials(deepcopy=False)[index]))


def _is_halved(plan: Plan, trials: Sequence[Trial], index: int, first: int = 1) -> bool:
    """Asynchronous successive halving (Li et al. 2018): after 1, 3, 9 ... tests only the best third goes on; from the
    `first` of these. Hyperband (Li et al. 2017) is that in brackets, of which the later ones spare slow starters.

    Optuna's keeps its notes at the trials of a study, and no study outlives a step here.
    """
    tests, rung = len(trials[index].tests), first
    while rung <= tests:
        values = sorted(
            (_best(trial.tests[:rung], plan) for trial in trials if len(trial.tests) >= rung),
            reverse=plan.is_greater_better,
        )
        own = _best(trials[index].tests[:rung], plan)
        if len(values) >= _HALVING and own not in values[: len(values) // _HALVING]:
            return True
        rung *= _HALVING
    return False


def _best(tests: Sequence[float], plan: Plan) -> float:
    return max(tests) if plan.is_greater_better else min(tests)


def importances(plan: Plan, trials: Sequence[Trial]) -> dict[str, float]:
    """How much of the difference between good trials and the rest each option explains, of 1 in all; {} while too few
    are done (PED-ANOVA, Watanabe et al. 2023)."""
    optuna = _optuna()
    done = [trial for trial in trials if trial.state == "done" and trial.tests]
    if len(done) < 4 or len({trial.best(plan.is_greater_better) for trial in done}) < 2:
        return {}
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    found = optuna.importance.get_param_importances(_study(plan, done), evaluator=evaluator)
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}


def _optuna() -> Any:
    with needed('this sweep needs Optuna: pip install "jitdnn[sweeps]"'):
        import optuna
    return optuna


def _study(plan: Plan, trials: Sequence[Trial]) -> Any:
    optuna = _optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed = plan.seed + len(trials)  # another one for each trial, the same one whoever asks
    samplers = optuna.samplers
    sampler = (
        samplers.TPESampler(seed=seed, constant_liar=True)
        if plan.sampler == "tpe"
        else samplers.RandomSampler(seed)
    )
    pruner = optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=1)
    direction = "maximize" if plan.is_greater_better else "minimize"
    study = optuna.create_study(direction=direction, sampler=sampler, pruner=pruner)
    distributions = _distributions(plan)
    states = optuna.trial.TrialState
    for trial in trials:
        best = trial.best(plan.is_greater_better)
        state = {
            "done": states.COMPLETE if best is not None else states.FAIL,
            "pruned": states.PRUNED,
            "running": states.RUNNING,
            "failed": states.PRUNED,  # without a test: as bad as can be, where a failed trial would teach nothing
        }[trial.state]
        study.add_trial(
            optuna.trial.create_trial(
                state=state,
                value=best if state == states.COMPLETE else None,
                params=trial.values,
                distributions=distributions,
                intermediate_values=dict(enumerate(trial.tests)),
            )
        )
    return study


def _distributions(plan: Plan) -> dict[str, Any]:
    kinds = _optuna().distributions
    found: dict[str, Any] = {}
    for name, each in plan.space.dimensions.items():
        if isinstance(each, Choice):
            found[name] = kinds.CategoricalDistribution(each.values)
        elif each.is_whole:
            found[name] = kinds.IntDistribution(each.low, _reached(each), log=each.log, step=each.step or 1)
        else:
            high = _reached(each) if each.step is not None else each.high
            found[name] = kinds.FloatDistribution(each.low, high, log=each.log, step=each.step)
    return found


def _reached(each: Range) -> Value:
    """The last value that the steps reach; Optuna warns of a range that ends between two."""
    return each.high if each.step is None else each.grid()[-1]
