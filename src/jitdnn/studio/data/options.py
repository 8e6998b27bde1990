"""How a data set is made: what pictures become, and how they are divided."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from jitdnn.errors import InvalidArgument

#: how a picture becomes one of another shape: DIGITS' four
MODES: Final = ("squash", "crop", "fill", "half")
LARGEST_SIDE: Final = 1024


@dataclass(frozen=True)
class Options:
    """`height`, `width` in pixels; `grey`; `mode` of MODES; percentages; `seed` of the split and of the order.

    `group` keeps together what belongs together (crops of one photograph, pictures of one patient): a column of a
    table, or a regular expression whose first group, or whole match, in the name of a file is the group's name.
    `task` and the columns are found out by looking where they are empty.
    """

    height: int = 28
    width: int = 28
    grey: bool = False
    mode: str = "squash"
    val: float = 10
    test: float = 10
    seed: int = 1
    group: str = ""
    task: str = ""
    labels: str = ""
    classes: str = ""

    def __post_init__(self) -> None:
        """Raises InvalidArgument for what cannot be."""
        for name in ("height", "width"):
            if not 1 <= getattr(self, name) <= LARGEST_SIDE:
                raise InvalidArgument(f"{name} is {getattr(self, name)}: 1 to {LARGEST_SIDE} pixels will do")
        if self.mode not in MODES:
            raise InvalidArgument(f"mode is {self.mode!r}: it is one of {', '.join(MODES)}")
        if not (self.val >= 0 and self.test >= 0 and self.val + self.test <= 90):
            raise InvalidArgument(
                f"{self.val:g} % to validate with and {self.test:g} % to test with: neither may be negative, and 10 % "
                "at least must be left to train with"
            )
        if not 0 <= self.seed < 1 << 63:
            raise InvalidArgument(f"the seed is {str(self.seed)[:40]}: 0 to {(1 << 63) - 1} will do")
        if len(self.group) > 200:
            raise InvalidArgument("the pattern of groups has more than 200 characters")

    def pattern(self) -> re.Pattern[str] | None:
        """The pattern of groups. Raises InvalidArgument for one that is none."""
        try:
            return re.compile(self.group) if self.group else None
        except re.error as error:
            raise InvalidArgument(f"{self.group!r} is no regular expression: {error}") from None

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def options_of(values: dict[str, Any]) -> Options:
    """The options in a row's settings; what is unknown is left out."""
    known = {field.name for field in fields(Options)}
    return Options(**{name: value for name, value in values.items() if name in known})
