"""Every function of cuDNN's legacy headers is there, with its arguments in their order, or is refused by name."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path

import pytest

import jitdnn as jd
import jitdnn.cudnn as c
from cudnn_prototypes import read
from jitdnn.frameworks.cudnn_api.registry import FUNCTIONS

PROTOTYPES = read()


def test_every_function_is_listed() -> None:
    assert set(FUNCTIONS) == set(PROTOTYPES)
    for name in PROTOTYPES:
        assert getattr(c, name) is FUNCTIONS[name].function
        assert name in c.__all__


@pytest.mark.parametrize("name", [name for name, entry in FUNCTIONS.items() if entry.reason is None])
def test_arguments_are_those_of_the_header(name: str) -> None:
    wanted = [argument.name for argument in PROTOTYPES[name] if not argument.kind.startswith(">")]
    mine = list(inspect.signature(FUNCTIONS[name].function).parameters)
    assert mine == (["device"] if name == "cudnnCreate" else wanted)
    assert FUNCTIONS[name].about


def test_what_is_refused_says_why() -> None:
    refused = {name: entry for name, entry in FUNCTIONS.items() if entry.reason is not None}
    assert 0 < len(refused) < 30
    for name, entry in refused.items():
        with pytest.raises(c.CudnnNotSupported) as caught:
            getattr(c, name)(1, 2, 3)
        assert caught.value.status == c.CUDNN_STATUS_NOT_SUPPORTED
        assert entry.reason in str(caught.value)
        assert str(caught.value).startswith(name)


def test_every_function_is_in_the_documentation() -> None:
    text = (Path(__file__).parents[3] / "docs" / "cudnn_api.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in text for name in PROTOTYPES)


def test_statuses_are_errors_of_the_library_too() -> None:
    with pytest.raises(jd.InvalidArgument) as caught:
        c.cudnnGetTensor4dDescriptor(3)
    error = caught.value
    assert isinstance(error, c.CudnnBadParam)
    assert (error.status, error.category, error.function) == (2000, 2000, "cudnnGetTensor4dDescriptor")
    assert c.cudnnGetLastErrorString() == str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))
    assert c.cudnnGetErrorString(error.status) == "CUDNN_STATUS_BAD_PARAM"


def test_versions() -> None:
    version = c.cudnnGetVersion()
    assert version == sum(c.cudnnGetProperty(number) * unit for number, unit in enumerate((10000, 100, 1)))
    with pytest.raises(c.CudnnBadParam):
        c.cudnnGetProperty(3)
    for name in ("Graph", "Ops", "Cnn", "Adv"):
        assert getattr(c, f"cudnn{name}VersionCheck")() is None
    assert (c.cudnnGetMaxDeviceVersion(), c.cudnnGetCudartVersion()) == (900, 0)


def test_names_that_there_are_not() -> None:
    with pytest.raises(AttributeError, match="cudnn_api"):
        _ = c.cudnnGetOutputTensor4dDim
