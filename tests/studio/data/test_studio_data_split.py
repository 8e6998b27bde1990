"""The division into parts, copies and leaks, and labels that are mended."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitdnn.errors import InvalidArgument
from jitdnn.studio.data import Options, creation, duplicates, index, mending, open_dataset
from jitdnn.studio.data.entries import Entry
from jitdnn.studio.data.hashes import alike_hash, exact_hash
from jitdnn.studio.data.split import assign
from jitdnn.studio.store import Store
from studio_pictures import classes, png, write_files


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=6),
    st.integers(0, 40),
    st.integers(0, 40),
    st.integers(0, 1000),
)
def test_each_class_is_divided_by_the_shares(sizes: list[int], val: int, test: int, seed: int) -> None:
    entries = [Entry(f"{label}/{k}", 0, label) for label, size in enumerate(sizes) for k in range(size)]
    options = Options(val=val, test=test, seed=seed)
    parts = assign(entries, options, True)
    assert parts == assign(entries, options, True)
    counts = Counter((entry.label, part) for entry, part in zip(entries, parts, strict=True))
    for label, size in enumerate(sizes):
        assert counts[label, "train"] >= 1
        for part, share in (("val", val), ("test", test)):
            assert abs(counts[label, part] - size * share / 100) <= 1
            if size >= 4 and share:
                assert counts[label, part] >= 1
            if not share:
                assert counts[label, part] == 0


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 2)), min_size=8, max_size=40), st.integers(0, 99)
)
def test_groups_stay_together(groups: list[tuple[int, int]], seed: int) -> None:
    entries = [
        Entry(f"{g}/{k}", 0, label, None, f"g{g}")
        for g, (size, label) in enumerate(groups)
        for k in range(size)
    ]
    parts = assign(entries, Options(val=20, test=20, seed=seed), True)
    where: dict[str, set[str]] = {}
    for entry, part in zip(entries, parts, strict=True):
        where.setdefault(entry.group, set()).add(part)
    assert all(len(found) == 1 for found in where.values())
    most = max(size for size, _ in groups)
    assert abs(parts.count("train") - 0.6 * len(entries)) <= 2 * most + 2
    assert "train" in parts


def test_owners_parts_are_kept_and_completed() -> None:
    entries = [Entry(str(k), 0, k % 2, "test" if k < 10 else None) for k in range(50)]
    parts = assign(entries, Options(val=10, test=50), True)
    assert parts[:10] == ["test"] * 10
    assert Counter(parts[10:]) == {"train": 36, "val": 4}


# ---- copies


def test_looks_survive_what_a_net_does_not_see() -> None:
    generator = np.random.default_rng(0)
    small = generator.integers(0, 256, (3, 6, 6)).astype(float)
    image = np.kron(small, np.ones((1, 10, 10)))
    noisy = np.clip(image * 0.9 + 10 + generator.normal(0, 2, image.shape), 0, 255).astype(np.uint8)
    image = image.astype(np.uint8)
    assert exact_hash(image) == exact_hash(image.copy()) != exact_hash(noisy)
    looks = [np.int64(alike_hash(other)) for other in (image, noisy, image[:, ::-1])]
    bits = [int(np.bitwise_count((looks[0] ^ look).view(np.uint64))) for look in looks[1:]]
    assert bits[0] <= 4
    assert bits[1] > 12
    assert alike_hash(np.zeros((1, 1, 40), np.float32)) == 0
    assert exact_hash(np.zeros((1, 2, 3))) != exact_hash(np.zeros((1, 3, 2)))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, (1 << 64) - 1), min_size=2, max_size=40), st.data())
def test_numbers_that_differ_in_few_bits_are_found(numbers: list[int], data: st.DataObject) -> None:
    for _ in range(5):
        bits = data.draw(st.sets(st.integers(0, 63), max_size=4))
        numbers.append(numbers[data.draw(st.integers(0, len(numbers) - 1))] ^ sum(1 << bit for bit in bits))
    wanted = {
        (a, b)
        for a in range(len(numbers))
        for b in range(a + 1, len(numbers))
        if numbers[a] and numbers[b] and (numbers[a] ^ numbers[b]).bit_count() <= 4
    }
    assert set(duplicates.near(np.array(numbers, np.uint64))) == wanted


@given(st.lists(st.integers(0, 6), max_size=30))
def test_copies_have_their_first(values: list[int]) -> None:
    found = duplicates.same_values(np.array(values, np.int64))
    assert len(found) == len(values) - len(set(values))
    assert all(values.index(values[b]) == a and values[a] == values[b] for a, b in found)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


def test_leaks_between_parts_are_found_and_left_out(store: Store, tmp_path: Path) -> None:
    files = classes({"train/a": 20, "train/b": 20}) | classes({"val/a": 5, "val/b": 5}, start=100)
    files |= {"val/a/leak.png": files["train/a/3.png"], "train/b/copy.png": files["train/b/7.png"]}
    files["val/b/larger.png"] = png(22, (48, 36))  # the look of train/b/2.png in another size
    source = write_files(tmp_path / "p", files)
    number = creation.create(store, "x", str(source), Options(24, 24, test=0))
    row = store.one("dataset", number)
    assert row is not None
    dataset = open_dataset(store.home, row)
    found = duplicates.twins(dataset.folder)
    names = {frozenset((pair["name_a"], pair["name_b"])): pair["distance"] for pair in found["pairs"]}
    exact = {
        frozenset(pair)
        for pair in [("train/a/3.png", "val/a/leak.png"), ("train/b/7.png", "train/b/copy.png")]
    }
    assert {pair for pair, distance in names.items() if distance == 0} == exact
    assert frozenset(("train/b/2.png", "val/b/larger.png")) in names
    assert (found["total"], found["exact"], found["leaks"]) == (3, 2, 2)
    assert len(duplicates.twins(dataset.folder, leaks_only=True)["pairs"]) == 2
    assert mending.leave_out_copies(dataset) == 3
    assert mending.leave_out_copies(dataset) == 3  # the same ones, marked already
    better = open_dataset(store.home, {"id": mending.new_version(store, number), "classes": row["classes"]})
    assert (better.count("train"), better.count("val")) == (38, 12)  # what is tested stays
    assert duplicates.twins(better.folder)["total"] == 0
    assert duplicates.find_twins(better) == 0


# ---- labels


def test_changes_of_one_image_are_undone_in_order(store: Store, tmp_path: Path) -> None:
    source = write_files(tmp_path / "p", classes({"a": 6, "b": 6, "c": 6}))
    number = creation.create(store, "x", str(source), Options(8, 8, val=0, test=0))
    row = store.one("dataset", number)
    assert row is not None
    dataset = open_dataset(store.home, row)
    before = int(dataset.labels("train")[2])

    def label() -> int:
        with index.opened(dataset.folder) as db:
            return int(db.execute("SELECT label FROM item WHERE place = 2").fetchone()[0])

    others = [k for k in range(3) if k != before]
    for other in others:
        mending.edit(dataset, "train", 2, other)
    mending.edit(dataset, "train", 2, others[1])  # no change
    assert label() == others[1]
    assert mending.edits(dataset)["total"] == 1
    assert mending.undo(dataset)
    assert label() == others[0]
    mending.edit(dataset, "train", 2, mending.LEFT_OUT)
    first = mending.edits(dataset)["changes"][-1]
    assert mending.undo(dataset, first["id"])  # and all behind it
    assert label() == before
    assert not mending.undo(dataset)
    for part, place, wanted in [("val", 0, 1), ("train", 99, 1), ("train", 0, 3), ("train", 0, -3)]:
        with pytest.raises(InvalidArgument):
            mending.edit(dataset, part, place, wanted)
    for place in range(18):
        mending.edit(dataset, "train", place, mending.LEFT_OUT)
    with pytest.raises(InvalidArgument, match="no image to train with is left"):
        mending.new_version(store, number)
    assert len(store.rows("SELECT * FROM dataset")) == 1
    assert {entry.name for entry in (store.home / "data").iterdir()} == {str(number)}
