"""The catalogue of the pages' texts: everything that people read is in it, and nothing else."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Iterator
from dataclasses import fields
from gettext import NullTranslations
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra jitdnn[studio] is not installed")
pytest.importorskip("httpx2")
pytest.importorskip("babel")

from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from fastapi.testclient import TestClient
from jinja2 import nodes

import studio_trained
from jitdnn.errors import InvalidArgument
from jitdnn.studio import texts
from jitdnn.studio.nets import Options, gallery
from jitdnn.studio.store import Store
from jitdnn.studio.web import words
from jitdnn.studio.web.app import make_app
from jitdnn.studio.web.context import make_templates
from jitdnn.studio.work.inspector import Inspector
from studio_pages import store_of

ROOT = Path(__file__).parents[3]
TEMPLATES = sorted((ROOT / "src/jitdnn/studio/web/templates").glob("*.html"))
SCRIPTS = sorted((ROOT / "src/jitdnn/studio/web/static/js").glob("*.js"))
#: attributes that are read, by screen readers too
READ = ("alt", "aria-label", "placeholder", "title")
#: names, units and what is written in code: alike in every language
PLAIN = re.compile(
    r"""(?<!\w)[?&/]\S*|\b(?:jitdnn\ studio|jitdnn|CSV|ONNX|torch\.export|safetensors|Caffe|fp32|SGD|Nesterov|Ada\w+
    |Adam|RMSProp|F1|R²
    |[KMG]iB|B|ms|µs|s|min|h|M|keras\.[^⟦]*|Input|Convolution|ReLU|Pooling|InnerProduct|Dropout|Softmax|prob
    |[\w./]+\.(?:npz|prototxt|jdsnap)|(?:conv|relu|pool|ip|digit)\ ?\d+|drop|digits|model
    |data\ \ Data|MAX\ 2|loss|SoftmaxWithLoss|val\ accuracy|val\ loss
    |Handwritten\ digits|built\ in|small)\b""",
    re.VERBOSE,
)
#: what nets of the gallery are called
TITLES = {net["title"] for net in gallery()}
WORDS = re.compile(r"[^\W\d_]{2,}|(?<![\w.])[^\W\d_](?![\w.])")


class Marked(NullTranslations):
    """A language in which each text is in brackets."""

    def gettext(self, message: str) -> str:
        return f"⟦{message}⟧"

    def ngettext(self, msgid1: str, msgid2: str, n: int) -> str:
        return f"⟦{msgid1 if n == 1 else msgid2}⟧"


class Read(HTMLParser):
    """What people read of a page, with what is in brackets left out."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.depth, self.inside = 0, list[str]()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("style", "script", "textarea", "code", "pre", "kbd"):
            self.inside.append(tag)
        self._keep(*(value or "" for name, value in attrs if name in READ))

    def handle_endtag(self, tag: str) -> None:
        if self.inside and self.inside[-1] == tag:
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        kept = ""
        for sign in data:
            self.depth += (sign == "⟦") - (sign == "⟧")
            if not self.depth and sign != "⟧":
                kept += sign
        if not self.inside:
            self._keep(kept)

    def _keep(self, *read: str) -> None:
        for each in read:
            while each != (shorter := re.sub(r"⟦[^⟦⟧]*⟧", "", each)):
                each = shorter
            if WORDS.search(PLAIN.sub("", each)) and each.strip() not in TITLES:
                self.found.append(each.strip())


@pytest.fixture
def docs() -> Any:
    found = importlib.util.spec_from_file_location("texts_of_the_studio", ROOT / "docs/texts.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_catalogue_has_the_texts_that_are_used_and_no_others(docs: Any) -> None:
    assert docs.CATALOGUE.read_text("utf-8") == docs.written(), "run python docs/texts.py"


def test_text_that_is_computed_is_refused(docs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs, "STUDIO", tmp_path)
    (tmp_path / "page.py").write_text("texts.text(f'Run {name}')")
    with pytest.raises(ValueError, match=r"page\.py:1"):
        docs.written()
    (tmp_path / "page.py").write_text("")
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "page.html").write_text("{{ _(name) }}")
    with pytest.raises(ValueError, match=r"page\.html:1"):
        docs.written()


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_template_has_no_text_outside_of_the_catalogue(path: Path) -> None:
    environment = make_templates().env
    source, page, is_translated = path.read_text("utf-8"), "", False
    for _, kind, value in environment.lex(source):
        if kind == "name" and value in ("trans", "endtrans"):
            is_translated = value == "trans"
        elif kind == "data" and not is_translated:
            page += value
        elif kind.endswith("_begin") and not is_translated:
            page += " "
    assert Read(page).found == []
    for output in environment.parse(source).find_all(nodes.Output):
        for each in output.nodes:
            assert not [
                text
                for text in _printed(each)
                if re.search(r"[A-Z][a-z]|[a-z]{2} [a-z]", text) and "=" not in text
            ]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script_says_nothing_of_its_own(path: Path) -> None:
    """What a script writes into a page stands in the page already, in attributes or in a <template>."""
    code = re.sub(r"^\s*//.*|/\*.*?\*/", "", path.read_text("utf-8"), flags=re.M | re.S)
    written = re.findall(r"(?:textContent|innerText|title|alt|aria-label)\W{1,4}=?\s*[\"`]([^\"`]*)", code)
    assert [text for text in written if WORDS.search(re.sub(r"\$\{[^}]*\}", "", text))] == []


def _printed(node: nodes.Node) -> Iterator[str]:
    """The constants that an expression may print."""
    if isinstance(node, nodes.Const) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, nodes.CondExpr):
        for each in (node.expr1, node.expr2):
            yield from _printed(each) if each is not None else ()
    elif isinstance(node, nodes.Or | nodes.And | nodes.Add | nodes.Concat):
        for each in node.iter_child_nodes():
            yield from _printed(each)
    elif isinstance(node, nodes.Filter) and node.node is not None:
        yield from _printed(node.node)


PAGES = [
    "/", "/?q=zzz", "/?hidden=1", "/data", "/data/new", "/data/1", "/data/1?view=list", "/data/1/about",
    "/data/1/duplicates", "/data/1/changes", "/data/1/images/test/0", "/train", "/train?run=1", "/train/import",
    "/runs/1", "/runs/1/evaluation", "/runs/1/classify", "/runs/1/classify?at=0", "/runs/1/inside",
    "/runs/1/inside/map?kind=smooth", "/runs/1/inside?view=gradients", "/runs/1/inside/layers/conv1", "/runs/1/export",
    "/runs/1/delete", "/runs/import", "/compare?run=1", "/compare?run=1&run=2", "/queue", "/sweeps",
    "/sweeps/new?run=1", "/settings", "/nowhere", "/runs/77", "/data/77",
]  # fmt: skip


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    async def inspect(self, function, *arguments, seconds=None):  # type: ignore[no-untyped-def]
        return function(*arguments)

    home = tmp_path_factory.mktemp("texts") / "home"
    shutil.copytree(studio_trained.digits().home, home)
    store = Store(home)  # without what other tests may have made there, whose names are no texts
    with store.transaction():
        store.db.execute("DELETE FROM run WHERE id != 1")
        store.db.execute("DELETE FROM dataset WHERE id != 1")
        store.db.execute("DELETE FROM place")
    shutil.rmtree(store.folder(1) / "export", ignore_errors=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Inspector, "inspect", inspect)
        with TestClient(make_app(home, serve_queue=False), follow_redirects=False) as made:
            yield made


#: what the page of a new training asks for
FORM = {"dataset": "1", "net": gallery("classification")[0]["text"], "epochs": "1", "batch": "8"}


@pytest.mark.parametrize("part", ["check", "graph", "preview"])
def test_part_has_no_text_outside_of_the_catalogue(
    client: TestClient, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "catalogue", Marked)
    page = client.post(f"/train/{part}", data=FORM | {"weights": ""}).text
    assert "⟦" in page
    assert Read(page).found == []


@pytest.mark.parametrize("path", PAGES)
def test_page_has_no_text_outside_of_the_catalogue(
    client: TestClient, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "catalogue", Marked)
    assert Read(client.get(path).text).found == []


def test_another_language_is_read_from_a_compiled_catalogue(
    client: TestClient, docs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three plural forms as in Polish, values in another order, and a name that would be a script."""
    told = Catalog(locale="pl")
    told.add("%(total)s of %(count)s", "%(count)s / %(total)s")
    told.add(("%(n)s image", "%(n)s images"), ("%(n)s obraz", "%(n)s obrazy", "%(n)s obrazów"))
    told.add("There is no %(thing)s %(number)d.", "Nie ma: %(number)d (%(thing)s).")
    told.add("running", "w toku, it's")
    told.add("Classify with %(name)s", "Pytaj <i>%(name)s</i>")
    with (tmp_path / "pl.mo").open("wb") as file:
        write_mo(file, told)
    monkeypatch.setenv(texts.VARIABLE, str(tmp_path / "pl.mo"))
    texts.catalogue.cache_clear()
    try:
        assert [words.plural(n, "image") for n in (1, 2, 5)] == ["1 obraz", "2 obrazy", "5 obrazów"]
        assert texts.text("There is no %(thing)s %(number)d.", thing="run", number=7) == "Nie ma: 7 (run)."
        assert client.get("/api/runs/77").json() == {"detail": "Nie ma: 77 (run)."}
        assert '<html lang="pl"' in client.get("/data").text
        assert (
            client.get("/", params={"q": "toku, it's"}).status_code == 200
        )  # the database is asked for its words
        store_of(client).update("run", 1, name="<script>1</script>")
        page = client.get("/runs/1/classify").text
        assert "Pytaj <i>&lt;script&gt;1&lt;/script&gt;</i>" in page
        assert "<script>1" not in page
    finally:
        store_of(client).update("run", 1, name="small")
        texts.catalogue.cache_clear()


@pytest.mark.parametrize("content", [None, b"", b"no catalogue at all", b"\xde\x12\x04\x95" + b"\xff" * 40])
def test_damaged_catalogue_is_named(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "words.mo"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv(texts.VARIABLE, str(path))
    texts.catalogue.cache_clear()
    with pytest.raises(InvalidArgument, match=r"JITDNN_STUDIO_TEXTS is .*words\.mo"):
        texts.text("Runs")


def test_options_of_a_training_have_titles() -> None:
    assert set(words.OPTIONS) == {option.name for option in fields(Options)}


def test_noun_that_the_catalogue_does_not_count_is_a_fault() -> None:
    with pytest.raises(KeyError):
        words.plural(2, "hedgehog")
