"""Weights and snapshots that are loaded leave a net and a solver as they were, or change all of them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from jitdnn import limits
from jitdnn.caffe import load_net, load_solver, snapshot
from jitdnn.errors import (
    InvalidArgument,
    InvalidShape,
    InvalidType,
    SnapshotError,
)

NET = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" inner_product_param { num_output: 4 } }
layer { name: "b" type: "InnerProduct" bottom: "a" top: "b" inner_product_param { num_output: 2 } }
"""


def _values(net: Any) -> list[Any]:
    return [parameter.blob.data.copy() for parameter in net.parameters]


@pytest.mark.parametrize(
    ("name", "wrong", "error"),
    [
        ("b/0", np.zeros((3, 3), np.float32), InvalidShape),
        ("b/0", np.zeros((2, 4), np.complex64), InvalidType),
        ("b/2", np.zeros(1, np.float32), InvalidArgument),
    ],
)
def test_weights_are_loaded_whole_or_not_at_all(
    tmp_path: Path, name: str, wrong: Any, error: type[Exception]
) -> None:
    net = load_net(NET, seed=1)
    arrays: dict[str, Any] = {parameter.name: parameter.blob.data + 1 for parameter in net.parameters}
    before = _values(net)
    np.savez(tmp_path / "w.npz", **(arrays | {name: wrong}))
    with pytest.raises(error):
        net.load_weights(tmp_path / "w.npz")
    assert all((old == new).all() for old, new in zip(before, _values(net), strict=True))


SOLVER = """
net_param {{
  layer {{ name: "d" type: "Data" top: "x" top: "label" data_param {{ source: "{source}" batch_size: 4 }} }}
  layer {{ name: "drop" type: "Dropout" bottom: "x" top: "x" }}
  layer {{ name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param {{ num_output: 3 }} }}
  layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "label" top: "loss" }}
}}
base_lr: 0.1 lr_policy: "fixed" max_iter: 4 momentum: 0.9 snapshot_after_train: false
"""


@pytest.fixture
def trained(tmp_path: Path) -> Any:
    random = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", data=random.integers(0, 9, (10, 2, 3, 3), np.uint8), label=np.arange(10) % 3)
    solver = load_solver(SOLVER.format(source=tmp_path / "d.npz"), seed=3)
    solver.step(2)
    return solver


def _everything(solver: Any) -> str:
    states = [layer.state() for net in (solver.net, *solver.test_nets) for layer in net.layers]
    arrays = [array.tolist() for array in (*_values(solver.net), *solver.method.history.values())]
    return json.dumps([solver.iteration, solver.rate.current_step, list(solver._losses), states, arrays])


def _sealed(header: bytes, rest: bytes) -> bytes:
    """A snapshot with a checksum that fits: what somebody made on purpose."""
    body = b"JDSNAP1\n" + len(header).to_bytes(8, "little") + header + rest
    return body + hashlib.sha256(body).digest()


def _parts(content: bytes) -> tuple[dict[str, Any], bytes]:
    end = 16 + int.from_bytes(content[8:16], "little")
    return json.loads(content[16:end]), content[end:-32]


def _set(header: dict[str, Any], place: tuple[Any, ...], value: object) -> None:
    inner: Any = header
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value


_HEADERS: list[tuple[tuple[Any, ...], object]] = [
    *(((key,), value) for key in ("meta", "arrays") for value in (None, [], {}, 3, "x", [None], [[]])),
    *(
        (("meta", key), value)
        for key in ("iteration", "current_step", "losses", "method", "layers", "schema")
        for value in (None, -1, "1", [1], [[1]], {}, 1.5, [[{"name": "d", "state": {}}]])
    ),
    *(
        (("arrays", 0, key), value)
        for key in ("name", "dtype", "shape", "bytes")
        for value in (None, -1, "|O", [], [-1, 2], [10**30], [0, 10**400], 10**30, [[1]], True, 1.5)
    ),
    *(
        (("meta", "layers", 0, 1, "state", *key), value)
        for key in (
            ("random",),
            ("random", "state"),
            ("random", "state", "state"),
            ("random", "bit_generator"),
        )
        for value in (None, -1, "MT19937", 10**60, [], {})
    ),
    *(
        (("meta", "layers", 0, 0, "state", key), value)
        for key in ("position", "size")
        for value in (None, -1, 11, "0")
    ),
]


@pytest.mark.parametrize("number", range(0, len(_HEADERS), 20))
def test_a_solver_is_as_before_after_a_snapshot_that_it_refuses(
    trained: Any, tmp_path: Path, number: int
) -> None:
    """Made on purpose: the checksum fits, and one thing in the header does not."""
    path = trained.snapshot(tmp_path / "good.jdsnap")
    good = path.read_bytes()
    trained.step(1)
    before = _everything(trained)
    bad = tmp_path / "bad.jdsnap"
    for place, value in _HEADERS[number : number + 20]:
        header, rest = _parts(good)
        _set(header, place, value)
        bad.write_bytes(_sealed(json.dumps(header).encode(), rest))
        with pytest.raises(SnapshotError):
            trained.restore(bad)
        assert _everything(trained) == before, place
    trained.restore(path)
    assert trained.iteration == 2


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"\xff\xfe",
        b"",
        b"{}",
        b"null",
        b'{"meta": {}, "arrays": [' + b"9" * 5000 + b"]}",
    ],
    ids=lambda header: repr(header[:12]),
)
def test_headers_of_snapshots_that_are_none(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "a.jdsnap"
    path.write_bytes(_sealed(header, b""))
    with pytest.raises(SnapshotError):
        snapshot.read(path)


def test_snapshots_have_limits(trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = trained.snapshot(tmp_path / "good.jdsnap")
    with jd.settings(load_limit="1 KiB"), pytest.raises(SnapshotError, match="load_limit"):
        snapshot.read(path)
    monkeypatch.setattr(limits, "ARCHIVE_MEMBERS", 1)
    with pytest.raises(SnapshotError, match="at most 1 are read"):
        snapshot.read(path)
    monkeypatch.setattr(limits, "SNAPSHOT_HEADER", 100)
    with pytest.raises(SnapshotError, match="at most 100 are read"):
        snapshot.read(path)
