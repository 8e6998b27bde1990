"""The texts of the pages, looked up in one catalogue.

Texts stand in English where they are used, in templates as `_("Runs")` or `{% trans %}`, in Python as `text("Runs")`.
`texts.pot` beside this file lists all of them, each once with the files that use it; `docs/texts.py` writes it. A
compiled catalogue of GNU gettext that `JITDNN_STUDIO_TEXTS` names says them in other words or in another language, for
a server and all that it starts.

What refuses bad input stays as it is: messages of `jitdnn.errors` are the same in Python, on the command line and here.
"""

from __future__ import annotations

import os
import struct
from functools import cache
from gettext import GNUTranslations, NullTranslations
from typing import Any, Final

from jitdnn.errors import InvalidArgument

VARIABLE: Final = "JITDNN_STUDIO_TEXTS"


def mark(message: str) -> str:
    """A text for the catalogue that is looked up later, by `said`."""
    return message


def mark_counted(one: str, many: str) -> tuple[str, str]:
    """A text for one and one for several, for the catalogue, looked up later by `counted`."""
    return one, many


def text(message: str, /, **values: Any) -> str:
    """A text with its values: `text("Data set %(name)s", name="digits")`. It is plain: templates escape it."""
    return catalogue().gettext(message) % values


def said(marked: str) -> str:
    """A text that was given to `mark`; what the catalogue does not have stays as it is."""
    return catalogue().gettext(marked) if marked else ""


def counted(one: str, many: str, count: float, /, **values: Any) -> str:
    """One of two texts that were given to `mark_counted`, or of as many as a language has, by a count."""
    return catalogue().ngettext(one, many, round(count)) % values


@cache
def catalogue() -> NullTranslations:
    """The catalogue that `JITDNN_STUDIO_TEXTS` names, else English. Raises InvalidArgument if it cannot be read."""
    path = os.environ.get(VARIABLE)
    if not path:
        return NullTranslations()
    try:
        with open(path, "rb") as file:
            return GNUTranslations(file)
    except (OSError, ValueError, LookupError, struct.error) as error:
        raise InvalidArgument(
            f"{VARIABLE} is {path!r}, which is no compiled catalogue of gettext: {error}"
        ) from None


def language() -> str:
    """The language of the texts, as HTML's `lang` has it: `en`, `pt-BR`."""
    return catalogue().info().get("language", "").replace("_", "-") or "en"
