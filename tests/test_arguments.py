"""Every public function is given every kind of nonsense for every parameter: what it raises is of this package."""

from __future__ import annotations

import gc
import inspect
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

import jitdnn as jd
from argument_cases import NONSENSE, Case, cases

_ROOM = 2 << 30
_SECONDS = 60
CASES = cases()
PUBLIC = [
    name
    for name in jd.__all__
    if callable(getattr(jd, name))
    and not (isinstance(getattr(jd, name), type) and issubclass(getattr(jd, name), BaseException))
]
#: what callers get and never make, and tuples that do not look at what is in them
_RESULTS = {"DeviceArray", "MultiHeadGradients", "MultiHeadSaved", "settings"}


#: functions of the caller's that are called: what they raise themselves is handed on
_CALLED = {("autotune", "build"), ("plan_net", "progress"), ("plan_net", "stop")}


def _shares() -> dict[str, list[str]]:
    """The functions that have a parameter, by its name."""
    found: dict[str, list[str]] = {}
    for name, case in CASES.items():
        for parameter in parameters(case):
            found.setdefault(parameter.name, []).append(name)
    return found


def kinds(name: str, parameter: str) -> list[str]:
    """What a function is given for a parameter: everything, but where many have it (x, out, alpha) they share the work,
    so that each kind still meets at least three of them."""
    owners = SHARES[parameter]
    step = max(1, min(6, len(owners) // 3))
    return list(NONSENSE)[owners.index(name) % step :: step]


class _TooLong(BaseException):
    pass


@contextmanager
def guarded() -> Iterator[None]:
    """No more memory than that, and no more time."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _ROOM, hard))

    def ring(number: int, frame: FrameType | None) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def parameters(case: Case) -> list[inspect.Parameter]:
    return list(inspect.signature(case.function).parameters.values())


SHARES = _shares()


def with_nonsense(case: Case, parameter: inspect.Parameter, value: Any) -> Case:
    """The right call with something else for a parameter."""
    bound = inspect.signature(case.function).bind(*case.arguments, **case.options)
    bound.apply_defaults()
    if parameter.kind is parameter.VAR_POSITIONAL:
        bound.arguments[parameter.name] = (*bound.arguments.get(parameter.name, ())[1:], value)
    elif parameter.kind is parameter.VAR_KEYWORD:
        bound.arguments[parameter.name] = {"workspace_limit": value}
    else:
        bound.arguments[parameter.name] = value
    return Case(case.function, bound.args, bound.kwargs)


def test_there_is_a_case_of_every_public_function() -> None:
    assert set(PUBLIC) - _RESULTS - set(CASES) == set()


@pytest.mark.parametrize("name", CASES)
def test_nonsense_is_refused_by_errors_of_this_package(name: str) -> None:
    case, wrong = CASES[name], []
    for parameter in parameters(case):
        for kind in kinds(name, parameter.name):
            make = NONSENSE[kind]
            if (name, parameter.name) in _CALLED and callable(make()):
                continue
            changed = with_nonsense(case, parameter, make())
            try:
                with guarded():
                    changed.function(*changed.arguments, **changed.options)
            except jd.JitdnnError as error:
                message = str(error)
                if len(message) > 5000:
                    wrong.append(f"{parameter.name}={kind}: a message of {len(message)} characters")
            except BaseException as error:
                if isinstance(error, (KeyboardInterrupt, SystemExit)):
                    raise
                wrong.append(f"{parameter.name}={kind}: {type(error).__name__}: {str(error)[:150]}")
    gc.collect(1)  # what these calls left; of all generations it takes a second, late in the suite
    assert not wrong, f"{len(wrong)} of {name}:\n" + "\n".join(wrong)


def test_every_kind_of_nonsense_is_tried_for_every_parameter() -> None:
    for parameter, owners in SHARES.items():
        for kind in NONSENSE:
            tried = sum(kind in kinds(name, parameter) for name in owners)
            assert tried >= min(3, len(owners)), (parameter, kind)
