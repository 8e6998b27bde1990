"""Stores of models to begin from: folders of this machine with one folder for each model.

A store has `master.json`, {"msg": "what it is", "children": ["lenet", ...]}, as those of DIGITS do; without, each of
its folders is looked at. A model is a folder with a net as prototxt (`original`, `train_val`, `net` or `deploy`),
weights (.caffemodel, .h5 or .npz), and what it says of itself in `info.json` (DIGITS' snapshots unpacked) or
`bundle.json` (the studio's exports unpacked). Links are not followed, and names lead nowhere else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from jitdnn import limits
from jitdnn.errors import InvalidArgument
from jitdnn.studio.nets.binding import read
from jitdnn.studio.nets.weights import SUFFIXES, keep_weights
from jitdnn.studio.store import Store, plain_files

#: the setting that lists the folders, and the one in a home where it lists none
SETTING, FOLDER = "model_stores", "models"
_NETS: Final = ("original.prototxt", "train_val.prototxt", "net.prototxt", "deploy.prototxt")
_FACTS: Final = ("info.json", "bundle.json")
_MOST_MODELS, _MOST_JSON = 1_000, 1 << 20


def stores(store: Store) -> list[Path]:
    """The folders that models are looked for in."""
    return [Path(folder) for folder in store.setting(SETTING) or [store.home / FOLDER]]


def models(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """The models of all stores: `key` for `take`, `name`, `about`, `store` (what it calls itself, or its path), `net`
    and `weights` (names of files), `bytes` of the weights, and `missing`, what keeps it from being taken ("")."""
    found: list[dict[str, Any]] = []
    for number, folder in enumerate(folders):
        title, names = _listed(folder)
        found += [_described(f"{number}/{name}", folder / name, title) for name in names]
    return found[:_MOST_MODELS]


def take(folders: Sequence[Path], key: str, home: Path) -> dict[str, Any]:
    """A model's net (`text`) and `name`, with its weights kept in the home as others that were uploaded: `weights` is
    the value of that option of a training. Raises InvalidArgument for what is not there, or cannot be read."""
    number, _, name = key.partition("/")
    known = folders[int(number)] if number.isdecimal() and int(number) < len(folders) else None
    if known is None or name not in _listed(known)[1]:
        raise InvalidArgument(f"{key[:80]!r} is no model of a store: look at the list again")
    folder = known / name
    described = _described(key, folder, "")
    if described["missing"]:
        raise InvalidArgument(f"{name} cannot be taken: {described['missing']}")
    text = limits.read_bounded(folder / described["net"], limits.PROTOTXT_BYTES, "a net").decode(
        "utf-8", "replace"
    )
    read(text)  # a ParseError says the line
    with open(folder / described["weights"], "rb") as file:
        kept = keep_weights(home, f"{name}{Path(described['weights']).suffix}", file)
    return {"name": described["name"], "text": text, "weights": f"file:{kept}"}


def _listed(folder: Path) -> tuple[str, list[str]]:
    """What a store calls itself, and the names of its models' folders."""
    if not folder.is_dir():
        return str(folder), []
    there = sorted(f.name for f in folder.iterdir() if f.is_dir() and not f.is_symlink() and f.name[0] != ".")
    master = _json(folder / "master.json")
    if "children" not in master:
        return str(folder), [
            name for name in there if any((folder / name / each).is_file() for each in _FACTS)
        ]
    children = master["children"]
    wanted = [str(each) for each in children] if isinstance(children, list) else []
    known = set(there)
    return str(master.get("msg") or folder)[:200], [name for name in dict.fromkeys(wanted) if name in known]


def _described(key: str, folder: Path, title: str) -> dict[str, Any]:
    files = {file.name: file for file in plain_files(folder)}
    facts = next((_json(files[name]) for name in _FACTS if name in files), {})
    net = next((name for name in _NETS if name in files), "")
    weights = next((name for suffix in SUFFIXES for name in sorted(files) if name.endswith(suffix)), "")
    if facts.get("snapshot file") in files:
        weights = str(facts["snapshot file"])
    framework = str(facts.get("framework") or "caffe").lower()
    missing = ""
    if framework != "caffe":
        missing = f"it is of {framework[:40]}, and nets of Caffe are read"
    elif not net:
        missing = f"it has no {', '.join(_NETS)}"
    elif not weights.endswith(SUFFIXES):
        missing = f"it has no weights: {', '.join(SUFFIXES)}"
    about = next((facts[name] for name in ("note", "notes", "description", "about") if facts.get(name)), "")
    return {
        "key": key,
        "name": str(facts.get("name") or facts.get("title") or folder.name)[:120],
        "about": str(about)[:300],
        "store": title,
        "net": net,
        "weights": weights,
        "bytes": os.path.getsize(folder / weights) if weights else 0,
        "missing": missing,
    }


def _json(path: Path) -> dict[str, Any]:
    """What a file of JSON holds, nothing where it is none."""
    try:
        found = json.loads(limits.read_bounded(path, _MOST_JSON, "a description")) if path.is_file() else {}
    except (OSError, ValueError, InvalidArgument, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
