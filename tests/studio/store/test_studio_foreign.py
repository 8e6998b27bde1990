"""Runs of other programs: what they wrote is what the store has, and damaged files leave nothing behind."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from jitdnn.errors import InvalidArgument
from jitdnn.studio.store import Store, foreign
from jitdnn.studio.store.foreign.found import series_name


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def field(number: int, value: int | bytes | float) -> bytes:
    """A field of a message: a whole number, bytes, or a float of 32 bits."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def tensorboard(path: Path, points: list[tuple[str, int, float]], tensors: bool = False) -> None:
    """An event file as the layout in record_writer.h and event.proto has it; checksums are 0."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        for tag, step, value in points:
            scalar = (
                field(8, field(1, 1) + field(4, struct.pack("<f", value))) if tensors else field(2, value)
            )
            event = field(2, step) + field(5, field(1, field(1, tag.encode()) + scalar))
            file.write(struct.pack("<QI", len(event), 0) + event + bytes(4))


def wandb(path: Path, records: list[bytes]) -> None:
    """A log of LevelDB: records in blocks of 32 KiB."""
    path.parent.mkdir(parents=True, exist_ok=True)
    out = bytearray(b":W&B" + struct.pack("<HB", 0xBEE1, 0))
    for record in records:
        is_first = True
        while True:
            left = 32768 - len(out) % 32768
            if left < 7:
                out += bytes(left)
                continue
            piece, record = record[: left - 7], record[left - 7 :]
            kind = (1 if is_first else 4) if not record else 2 if is_first else 3
            out += struct.pack("<IHB", 0, len(piece), kind) + piece
            is_first = False
            if not record:
                break
    path.write_bytes(bytes(out))


def history(step: int, **values: Any) -> bytes:
    items = b"".join(
        field(1, field(1, k.encode()) + field(16, json.dumps(v).encode())) for k, v in values.items()
    )
    return field(2, items + field(2, field(1, step)))


LOG = """I0214 17:01:02.1 1 solver.cpp:228] Iteration 0, loss = 2.3026
I0214 17:01:02.1 1 solver.cpp:337] Iteration 0, Testing net (#0)
I0214 17:01:02.1 1 solver.cpp:404]     Test net output #0: accuracy = 0.1
I0214 17:01:02.1 1 solver.cpp:404]     Test net output #1: loss = 2.31 (* 1 = 2.31 loss)
I0214 17:01:02.1 1 sgd_solver.cpp:106] Iteration 0, lr = 0.01
I0214 17:01:03.1 1 solver.cpp:228] Iteration 100 (53.2 iter/s, 1.9s/100 iters), loss = 2.5e-1
I0214 17:01:03.1 1 solver.cpp:337] Iteration 100, Testing net (#0)
I0214 17:01:03.1 1 solver.cpp:404]     Test net output #0: accuracy = 0.97
"""


@pytest.mark.parametrize("tensors", [False, True])
def test_event_files(tmp_path: Path, tensors: bool) -> None:
    points = [("Loss/train", at, 1 / (at + 1)) for at in range(500)] + [
        ("accuracy/val", 400, 0.75),
        ("alpha", 3, 7.0),
    ]
    tensorboard(tmp_path / "logs" / "a" / "events.out.tfevents.1.here", points[:300], tensors)
    tensorboard(tmp_path / "logs" / "a" / "events.out.tfevents.2.here", points[300:], tensors)
    tensorboard(tmp_path / "logs" / "b" / "events.out.tfevents.1.here", [("loss", 1, 2.0)], tensors)
    store = Store(tmp_path / "home")
    first, second = foreign.bring(store, tmp_path / "logs")
    assert [store.one("run", each)["name"] for each in (first, second)] == ["a", "b"]  # type: ignore[index]
    assert store.series_names(first) == ["alpha", "loss", "val accuracy"]
    xs, ys = store.series(first, "loss", most=1000)
    assert xs == list(range(500))
    assert ys == pytest.approx([1 / (at + 1) for at in range(500)], rel=1e-4)  # told in seven digits
    row = store.one("run", first)
    assert row is not None
    assert (row["state"], row["iteration"], row["best"], row["best_at"]) == ("done", 499, 0.75, 400)
    assert row["loss"] == pytest.approx(1 / 500)
    assert row["dataset"] is None


def test_a_file_that_is_being_written_is_read_so_far(tmp_path: Path) -> None:
    file = tmp_path / "events.out.tfevents.1"
    tensorboard(file, [("loss", at, 1.0) for at in range(10)])
    file.write_bytes(file.read_bytes()[:-5])
    assert foreign.look(tmp_path)[0]["points"] == 9


def test_runs_of_wandb(tmp_path: Path) -> None:
    """Records longer than a block, settings of the run, values that are no numbers."""
    config = field(1, field(1, b"lr") + field(16, b"0.1")) + field(1, field(1, b"_wandb") + field(16, b"{}"))
    records = [field(17, field(4, config) + field(8, b"my run"))]
    records += [history(at, loss=1 / (at + 1), note="x" * 40_000, _runtime=3) for at in range(5)]
    records += [history(5, val_acc=0.5, bad=float("nan"), flag=True)]
    wandb(tmp_path / "wandb" / "offline-run-1" / "run-1.wandb", records)
    store = Store(tmp_path / "home")
    (number,) = foreign.bring(store, tmp_path / "wandb")
    row = store.one("run", number)
    assert row is not None
    assert row["name"] == "my run"
    assert row["options"]["lr"] == 0.1
    xs, ys = store.series(number, "loss")
    assert xs == [0, 1, 2, 3, 4]
    assert ys == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5], rel=1e-6)
    assert store.series(number, "val accuracy") == [[5], [0.5]]
    assert "flag" not in store.series_names(number)


def test_a_job_of_digits_and_its_texts(tmp_path: Path) -> None:
    job = tmp_path / "jobs" / "20160214-170100-ab12"
    job.mkdir(parents=True)
    (job / "caffe_output.log").write_text(LOG)
    (job / "train_val.prototxt").write_text('name: "LeNet"')
    (job / "status.pickle").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    store = Store(tmp_path / "home")
    (number,) = foreign.bring(store, tmp_path / "jobs")
    assert store.series(number, "loss") == [[0, 100], [2.3026, 0.25]]
    assert store.series(number, "val accuracy") == [[0, 100], [0.1, 0.97]]
    assert store.series(number, "val loss") == [[0], [2.31]]
    assert store.series(number, "lr") == [[0], [0.01]]
    assert sorted(path.name for path in store.folder(number).iterdir()) == ["original.prototxt"]


def test_tables(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("step,train_loss,note\n1,0.5,x\n3,0.25,\n")
    (tmp_path / "a.jsonl").write_text('{"step": 2, "loss": 1}\n\n{"step": 4, "loss": 0.5, "text": "x"}\n')
    store = Store(tmp_path / "home")
    for name, wanted in (("a.csv", [[1, 3], [0.5, 0.25]]), ("a.jsonl", [[2, 4], [1, 0.5]])):
        (number,) = foreign.bring(store, tmp_path / name)
        assert store.series(number, "loss") == wanted


def test_what_is_damaged_leaves_nothing(tmp_path: Path) -> None:
    """All of a folder's runs come, or none."""
    tensorboard(tmp_path / "logs" / "a" / "events.out.tfevents.1", [("loss", 1, 2.0)])
    bad = tmp_path / "logs" / "b" / "events.out.tfevents.1"
    bad.parent.mkdir()
    bad.write_bytes(struct.pack("<QI", 1 << 60, 0) + b"x" * 40)
    store = Store(tmp_path / "home")
    with pytest.raises(InvalidArgument, match="damaged"):
        foreign.bring(store, tmp_path / "logs")
    (tmp_path / "none").mkdir()
    with pytest.raises(InvalidArgument, match="no runs"):
        foreign.bring(store, tmp_path / "none")
    (tmp_path / "a.log").write_text("nothing")
    with pytest.raises(InvalidArgument, match="no log of Caffe"):
        foreign.bring(store, tmp_path / "a.log")
    assert store.rows("SELECT * FROM run") == []
    assert store.rows("SELECT * FROM point") == []
    assert not list((tmp_path / "home").glob("runs/*"))


@pytest.mark.parametrize(
    ("given_name", "wanted"),
    [
        ("Loss/train", "loss"), ("train_loss", "loss"), ("epoch/loss", "loss"), ("loss", "loss"),
        ("val/loss", "val loss"), ("eval.accuracy", "val accuracy"), ("acc", "train accuracy"),
        ("optimizer/learning_rate", "lr"), ("test top5", "val top5"), ("GPU memory", "GPU memory"),
    ],
)  # fmt: skip
def test_names_of_series(given_name: str, wanted: str) -> None:
    assert series_name(given_name) == wanted


@given(
    content=st.binary(max_size=400),
    name=st.sampled_from(["events.out.tfevents.1", "a.wandb", "a.csv", "a.log", "a.jsonl"]),
)
@settings(max_examples=examples(80), deadline=None)
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str
) -> None:
    file = tmp_path_factory.mktemp("any") / name
    for start in (b"", b":W&B\xe1\xbe\x00", struct.pack("<QI", len(content), 0)):
        file.write_bytes(start + content + bytes(4))
        try:
            foreign.look(file)
        except InvalidArgument:
            continue
