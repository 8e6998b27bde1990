"""Write the catalogue of the studio's texts, `src/jitdnn/studio/texts.pot`, from its templates and its code.

    python docs/texts.py            # with --check it only tells whether the file is current

A language is a `.po` file made from it by `pybabel init`, or by an editor of catalogues, and compiled by `pybabel
compile`.
"""

from __future__ import annotations

import ast
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from babel.messages.catalog import Catalog
from babel.messages.pofile import write_po

from jitdnn.studio.nets import gallery
from jitdnn.studio.web.context import make_templates

STUDIO: Final = Path(__file__).parents[1] / "src" / "jitdnn" / "studio"
CATALOGUE: Final = STUDIO / "texts.pot"
#: calls whose arguments are texts, and how many of them: of `jitdnn.studio.texts`, and of tables that pages look up by
#: `said`, there the first and the last
CALLS: Final = {"texts.text": 1, "texts.mark": 1, "texts.mark_counted": 2}
TABLES: Final = {"tasks.py": ("Task", 0), "nets/options.py": ("_option", -1)}
HEADER: Final = """# Texts of the pages of jitdnn's studio, and the files that use them. Written by docs/texts.py.
msgid ""
msgstr ""
"Content-Type: text/plain; charset=utf-8\\n"
"Content-Transfer-Encoding: 8bit\\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\\n"

"""


def catalogue() -> Catalog:
    """The texts, each with the files that use it, in the order of these. Raises ValueError for one that is computed."""
    found = Catalog(charset="utf-8")
    for file in sorted(STUDIO.rglob("*.py")):
        name = file.relative_to(STUDIO).as_posix()
        nodes = ast.walk(ast.parse(file.read_text("utf-8")))
        for call in (node for node in nodes if isinstance(node, ast.Call)):
            for message in _texts(ast.unparse(call.func), call.args, name):
                found.add(message, None, [(name, None)])
    for net in gallery():
        found.add(net["about"], None, [(f"nets/gallery/{net['key']}.prototxt", None)])
    environment = make_templates().env
    for file in sorted(STUDIO.rglob("templates/*.html")):
        name = file.relative_to(STUDIO).as_posix()
        given = environment.extract_translations(file.read_text("utf-8"))  # type: ignore[attr-defined]
        for line, called, arguments in given:
            plain = (arguments,) if isinstance(arguments, str | None) else arguments
            message = plain[: 2 if called == "ngettext" else 1]
            if None in message:
                raise ValueError(f"{name}:{line}: a text that is computed is in no catalogue")
            found.add(message if len(message) > 1 else message[0], None, [(name, None)])
    return found


def _texts(called: str, arguments: Sequence[ast.expr], file: str) -> Iterator[str | tuple[str, ...]]:
    """The text of a call, if it has one: a pair where it is counted."""
    if called in CALLS:
        given = list(arguments[: CALLS[called]])
    elif file in TABLES and called == TABLES[file][0]:
        given = [arguments[TABLES[file][1]]]
    else:
        return
    if not all(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in given):
        raise ValueError(f"{file}:{given[0].lineno}: a text that is computed is in no catalogue")
    plain = tuple(str(ast.literal_eval(each)) for each in given)
    yield plain if len(plain) > 1 else plain[0]


def written() -> str:
    """The catalogue as the file has it."""
    text = io.BytesIO()
    write_po(text, catalogue(), width=0, sort_by_file=True, omit_header=True)
    return HEADER + text.getvalue().decode()


if __name__ == "__main__":
    if "--check" not in sys.argv:
        CATALOGUE.write_text(written(), "utf-8")
    elif CATALOGUE.read_text("utf-8") != written():
        sys.exit(f"{CATALOGUE.name} is not current: run python docs/texts.py")
