"""Runs beside each other: what differs, parallel coordinates, colours, and all of it as CSV."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra jitdnn[studio] is not installed")
pytest.importorskip("httpx2")

from fastapi.testclient import TestClient

from jitdnn.studio.store import Store
from jitdnn.studio.web.app import make_app
from jitdnn.studio.web.context import STATIC
from jitdnn.studio.web.pages.compare import differences, parallel
from studio_pages import store_of

EVIL = "<script>alert(1)</script>\"'"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(make_app(tmp_path, serve_queue=False), follow_redirects=False) as made:
        yield made


@pytest.fixture
def store(client: TestClient) -> Store:
    return store_of(client)


def add_run(store: Store, name: str, **values: Any) -> int:
    values = {"state": "done", "options": {"epochs": 3, "batch": 64}, "max_iter": 100} | values
    return store.insert("run", name=name, **values)


def test_comparison_shows_what_differs_and_nothing_else(client: TestClient, store: Store) -> None:
    one = add_run(store, EVIL, best=0.9, options={"epochs": 3, "rate": 0.1, "policy": "poly", "seed": 1})
    two = add_run(store, "two", best=0.8, options={"epochs": 3, "rate": 0.01, "policy": "fixed", "seed": 1})
    for run, width in ((one, 5), (two, 6)):
        store.folder(run).mkdir(parents=True)
        (store.folder(run) / "original.prototxt").write_text(f'name: "{EVIL}"\nwidth: {width}\n')
    found = client.get("/api/compare", params={"run": [one, two, one]}).json()
    assert found["differ"] == ["rate", "policy"]
    assert [run["id"] for run in found["runs"]] == [one, two]
    page = client.get("/compare", params={"run": [one, two]}).text
    assert 'class="removed">-width: 5' in page
    assert 'class="added">+width: 6' in page
    assert "<script>alert" not in page
    assert "Choose two runs" in client.get("/compare").text
    assert client.get("/compare", params={"run": [77]}).status_code == 404


def test_parallel_coordinates_place_numbers_by_value_and_words_by_order() -> None:
    runs = [
        {"options": {"rate": 0.1, "policy": "a"}, "best": 0.5},
        {"options": {"rate": 0.2, "policy": "c"}, "best": 1.0},
        {"options": {"rate": 0.15, "policy": "b"}, "best": None},
    ]
    axes = {axis["name"]: axis for axis in parallel(runs, differences(runs))}
    assert axes["rate"]["heights"] == [220.0, 0.0, 110.0]
    assert axes["policy"]["heights"] == [220.0, 0.0, 110.0]
    assert axes["best accuracy"]["heights"] == [220.0, 0.0, None]
    assert (axes["policy"]["low"], axes["policy"]["high"]) == ("a", "c")
    assert parallel([], []) == []
    assert parallel([{"options": {"x": float("nan")}, "best": 1}], ["x"])[-1]["heights"] == [220.0]


def test_parallel_coordinates_of_values_without_end_and_of_losses() -> None:
    given = [float("inf"), float("-inf"), float("nan"), 1e308, -1e308, 0.0, None]
    runs = [{"options": {"clip": value}, "best": 0.25, "best_of": "val loss"} for value in given]
    runs[-1] |= {"best": 0.75, "best_of": "val accuracy"}
    axes = {axis["name"]: axis for axis in parallel(runs, ["clip"])}
    assert axes["clip"]["heights"] == [0.0, 220.0, None, 0.0, 220.0, 110.0, None]
    assert (axes["clip"]["low"], axes["clip"]["high"]) == ("-inf", "inf")
    assert axes["best loss"]["heights"] == [220.0] * 6 + [None]
    assert axes["best accuracy"]["heights"] == [None] * 6 + [220.0]
    assert list(axes) == ["clip", "best accuracy", "best loss"]


def test_runs_are_compared_by_what_they_are_judged_by(client: TestClient, store: Store) -> None:
    loss, other = (
        add_run(store, f"loss {at}", best=0.125, best_of="val loss", options={"rate": at}) for at in range(2)
    )
    right = add_run(store, "right", best=0.5, best_of="val accuracy", options={"rate": 2})
    page = client.get("/compare", params={"run": [loss, other]}).text
    assert ">Best loss</th>" in page
    assert "accuracy" not in page.split('class="parallel"')[1].split("</svg>")[0]
    again = add_run(store, "again", best=0.5, best_of="val accuracy")
    assert ">Best accuracy</th>" in client.get("/compare", params={"run": [right, again]}).text
    page = client.get("/compare", params={"run": [loss, right]}).text
    assert ">Best</th>" in page
    assert "<b>0.125</b><small> loss</small>" in page


def test_runs_beyond_those_that_can_be_compared_are_counted(client: TestClient, store: Store) -> None:
    runs = [add_run(store, f"run {at}", best=0.5, options={"rate": at}) for at in range(27)]
    page = client.get("/compare", params={"run": runs}).text
    assert "27 runs were chosen, and the first 24 are compared" in page
    assert client.get("/api/compare", params={"run": runs}).json()["more"] == 3
    looks = re.findall(r'<polyline class="([^"]+)"', page)
    assert len(set(looks)) == len(looks) == 24
    assert "were chosen" not in client.get("/compare", params={"run": runs[:24]}).text


def test_a_comparison_as_csv(client: TestClient, store: Store) -> None:
    one = add_run(store, "=evil", best=0.5, best_of="val accuracy", options={"rate": 0.1, "steps": [1, 2]})
    two = add_run(store, "two", options={"rate": 0.2, "crop": 4})
    query = {"run": [one, two]}
    rows = list(csv.DictReader(io.StringIO(client.get("/api/compare.csv", params=query).text)))
    assert [row["name"] for row in rows] == ["'=evil", "two"]
    assert [(row["rate"], row["steps"], row["crop"]) for row in rows] == [
        ("0.1", "1 2", ""),
        ("0.2", "", "4"),
    ]
    store.add_points(one, [("loss", 1, 0.5), ("loss", 2, 0.25)])
    store.add_points(two, [("loss", 2, 0.125), ("loss", 40_000, 1.0)])
    answer = client.get("/api/compare/series.csv", params=query | {"name": ["loss"]})
    assert list(csv.reader(io.StringIO(answer.text))) == [
        ["iteration", f"loss of =evil ({one})", f"loss of two ({two})"],
        *(["1", "0.5", ""], ["2", "0.25", "0.125"], ["40000", "", "1.0"]),
    ]
    page = client.get("/compare", params=query).text
    assert f"/api/compare.csv?run={one}&amp;run={two}" in page
    assert f"/api/compare/series.csv?run={one}&amp;run={two}&amp;name=loss" in page


def _colours(*names: str) -> dict[str, tuple[str, str]]:
    """Light and dark of each class of a line, from style sheets."""
    text = "".join((STATIC / "css" / f"{name}.css").read_text() for name in names)
    tokens = dict(re.findall(r"--([\w-]+): light-dark\(([^)]*)\)", text))
    found = {}
    for at in range(8):
        said = re.search(rf"\.s{at}\b[^{{]*\{{ color: (?:light-dark\(([^)]*)\)|var\(--(\w+)\))", text)
        assert said
        light, dark = (said[1] or tokens[said[2]]).split(", ")
        found[f"s{at}"] = light, dark
    return found | {"card": tuple(tokens["card"].split(", "))}  # type: ignore[dict-item]


def test_colours_of_compared_runs_are_told_apart_on_their_card() -> None:
    colour = pytest.importorskip("skimage.color")
    found = _colours("tokens", "run", "compare")
    for theme in (0, 1):
        card, *lines = (
            np.array([int(pair[theme][at : at + 2], 16) / 255 for at in (1, 3, 5)])
            for pair in (found["card"], *(found[f"s{at}"] for at in range(8)))
        )
        labs = [colour.rgb2lab(line) for line in lines]
        nearest = min(float(colour.deltaE_ciede2000(a, b)) for a, b in itertools.combinations(labs, 2))
        assert nearest > 10  # two swatches side by side: 2 can be seen
        assert min(_contrast(line, card) for line in lines) >= 4.5


def _contrast(one: np.ndarray, other: np.ndarray) -> float:
    """As WCAG 2 defines it."""
    light, dark = sorted(
        (
            float(np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722])
            for c in (one, other)
        ),
        reverse=True,
    )
    return (light + 0.05) / (dark + 0.05)
