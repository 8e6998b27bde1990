"""Weights as .safetensors: read by the published format, and the net that they make answers as the trained one."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

import studio_trained
from jitdnn.caffe import load_net
from jitdnn.errors import InvalidType
from jitdnn.studio.export import exports
from jitdnn.studio.export.safetensors import read_tensors, write_tensors
from jitdnn.studio.look.trained import open_trained


def read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """By the format's own description; what its readers refuse is refused."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    assert content[8:9] == b"{"
    header: dict[str, Any] = json.loads(content[8 : 8 + size].decode())
    metadata = header.pop("__metadata__")
    assert all(isinstance(text, str) for pair in metadata.items() for text in pair)
    kinds = {"F32": "<f4", "F64": "<f8", "F16": "<f2", "I64": "<i8", "U8": "u1", "I8": "i1", "BOOL": "?"}
    found: dict[str, np.ndarray] = {}
    at = 0
    for name, entry in sorted(header.items(), key=lambda pair: pair[1]["data_offsets"]):
        start, end = entry["data_offsets"]
        assert start == at  # no gaps, no overlap
        at = end
        piece = content[8 + size + start : 8 + size + end]
        assert len(piece) == end - start
        found[name] = np.frombuffer(piece, kinds[entry["dtype"]]).reshape(entry["shape"])
    assert 8 + size + at == len(content)
    assert (8 + size) % 8 == 0
    return found, metadata


def test_the_export_of_a_run(tmp_path: Path) -> None:
    case = studio_trained.digits()
    made = exports.export(*case, "safetensors")
    assert made["name"].endswith(".safetensors")
    arrays, facts = read(case.folder / "export" / made["file"])
    trained, data = open_trained(*case)
    (tmp_path / "deploy.prototxt").write_text(facts["deploy.prototxt"])
    np.savez(tmp_path / "w.npz", **{name: array for name, array in arrays.items() if name != "mean"})
    net = load_net(tmp_path / "deploy.prototxt", weights=tmp_path / "w.npz")
    images = np.asarray(data.images("test")[:3])
    for whole in images:
        image = whole
        assert list(image.shape) == json.loads(facts["shape"])
        crop = int(facts["crop"])
        if crop:
            top, left = ((extent - crop) // 2 for extent in image.shape[1:])
            image = image[:, top : top + crop, left : left + crop]
            assert arrays.get("mean", np.zeros(1)).shape[-1] in (1, crop)
        given = (image.astype(np.float32) - arrays.get("mean", np.float32(0))) * np.float32(facts["scale"])
        answer = net.forward(**{net.inputs[0]: given[np.newaxis]})[trained.answer]
        np.testing.assert_allclose(answer, trained.predict(whole[np.newaxis]), rtol=1e-4, atol=1e-6)
    assert json.loads(facts["classes"]) == data.classes
    assert made["checks"] == [{"runner": "reading it back", "distance": 0.0, "allowed": 0.0}]


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=9).filter(lambda name: name != "__metadata__"),
        st.sampled_from(["f4", "f8", "f2", "i8", "u1", "i1", "?"]).flatmap(
            lambda kind: arrays_of.arrays(
                kind, arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)
            )
        ),
        max_size=5,
    ),
    st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=3),
)
def test_any_arrays(
    tmp_path_factory: pytest.TempPathFactory, arrays: dict[str, Any], facts: dict[str, str]
) -> None:
    path = tmp_path_factory.mktemp("tensors") / "a.safetensors"
    given = {name: array.T for name, array in arrays.items()}  # not in C order
    write_tensors(path, given, facts)
    for found, metadata in (read(path), read_tensors(path)):
        assert metadata == facts
        assert found.keys() == given.keys()
        for name, array in given.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array)


def test_numbers_that_the_format_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(InvalidType, match="complex64"):
        write_tensors(tmp_path / "a", {"a": np.zeros(3, np.complex64)}, {})
    assert not (tmp_path / "a").exists()
