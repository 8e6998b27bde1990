"""What the text of generated code for CPython is written in: LLVM's language, with some forms more.

Each stands on a line of its own for several instructions, or blocks, of LLVM's:

    %x = field ptr %record, run.slow        what a record of `run` has in its slot `slow`
    %x = item i64 %array, %n                an element of an array
    put i64 %x, %array, %n                  the same written
    %x = call ptr @F(...) else failed       a call that gives null where it raised an error; goes to `failed` then
    %x = call i32 @F(...) else long, failed
                                            a call that gives 1, or 0, which goes to `long`, or -1, to `failed`
    require %yes else long                  goes to `long` where a bit is not set
    drop %x                                 one reference to an object less; null is none
    for %n in %count                        the lines up to `end`, for each number below `%count`
    for %n in %count, i64 %sum from 0 by %sum_next
                                            and with a value that each round hands to the next one
    if %yes                                 the lines up to `end`, where a bit is set

What is behind a line that may go elsewhere is a block without a name. Lines of LLVM's own stand as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import TypeAlias

SLOT = 8
"""Bytes of a slot of a record."""


def expanded(text: str, records: Mapping[str, Sequence[str]], numbers: Mapping[str, int]) -> str:
    """The text in LLVM's language alone. `records`: the names of the slots of each kind of record; `numbers`: what
    `{name}` stands for."""
    lines = _Lines(records)
    for line in re.sub(r"\{(\w+)\}", lambda found: str(numbers[found[1]]), text).splitlines():
        lines.add(line)
    return "\n".join(lines.made)


class _Lines:
    """The lines of a text so far, and the ends of what is open."""

    def __init__(self, records: Mapping[str, Sequence[str]]) -> None:
        self.made: list[str] = []
        self._slots = {
            f"{kind}.{name}": at for kind, names in records.items() for at, name in enumerate(names)
        }
        self._ends: list[list[str]] = []
        self._numbers = count()

    def add(self, line: str) -> None:
        """One line more."""
        words = line.split(maxsplit=3) or [""]
        word = words[2] if words[0].startswith("%") else words[0]
        for form, write in _FORMS.get(word, ()):
            found = form.fullmatch(line.strip())
            if found:
                self.made += write(self, *found.groups())
                return
        self.made.append(line)

    def _new(self) -> int:
        return next(self._numbers)

    def _field(self, name: str, kind: str, record: str, slot: str) -> Iterator[str]:
        yield f"{name}.at = getelementptr i64, ptr {record}, i64 {self._slots[slot]}"
        yield f"{name} = load {kind}, ptr {name}.at"

    def _item(self, name: str, kind: str, array: str, number: str) -> Iterator[str]:
        yield f"{name}.at = getelementptr {kind}, ptr {array}, i64 {number}"
        yield f"{name} = load {kind}, ptr {name}.at"

    def _put(self, kind: str, value: str, array: str, number: str) -> Iterator[str]:
        at = f"%put.{self._new()}"
        yield f"{at} = getelementptr {kind}, ptr {array}, i64 {number}"
        yield f"store {kind} {value}, ptr {at}"

    def _object(self, name: str, call: str, failed: str) -> Iterator[str]:
        yield f"{name} = call ptr {call}"
        yield f"{name}.is = icmp ne ptr {name}, null"
        yield from self._require(f"{name}.is", failed)

    def _answer(self, name: str, call: str, other: str, failed: str) -> Iterator[str]:
        go = f"go.{self._new()}"
        yield f"{name} = call i32 {call}"
        yield f"switch i32 {name}, label %{failed} [i32 0, label %{other} i32 1, label %{go}]"
        yield f"{go}:"

    def _require(self, bit: str, other: str) -> Iterator[str]:
        go = f"go.{self._new()}"
        yield f"br i1 {bit}, label %{go}, label %{other}"
        yield f"{go}:"

    def _drop(self, name: str) -> Iterator[str]:
        yield f"call void @Py_DecRef(ptr {name})"

    def _for(self, number: str, most: str, kind: str, carried: str, first: str, then: str) -> Iterator[str]:
        n = self._new()
        yield f"br label %from.{n}"
        yield f"from.{n}:"
        yield f"br label %each.{n}"
        yield f"each.{n}:"
        yield f"{number} = phi i64 [0, %from.{n}], [{number}.next, %again.{n}]"
        if kind:
            yield f"{carried} = phi {kind} [{first}, %from.{n}], [{then}, %again.{n}]"
        yield f"{number}.more = icmp slt i64 {number}, {most}"
        yield f"br i1 {number}.more, label %one.{n}, label %done.{n}"
        yield f"one.{n}:"
        self._ends.append([
            f"br label %again.{n}", f"again.{n}:", f"{number}.next = add i64 {number}, 1", f"br label %each.{n}",
            f"done.{n}:",
        ])  # fmt: skip

    def _if(self, bit: str) -> Iterator[str]:
        n = self._new()
        yield f"br i1 {bit}, label %then.{n}, label %end.{n}"
        yield f"then.{n}:"
        self._ends.append([f"br label %end.{n}", f"end.{n}:"])

    def _end(self) -> list[str]:
        return self._ends.pop()


_Write: TypeAlias = Callable[..., Iterable[str]]
_PATTERNS: dict[str, list[tuple[str, _Write]]] = {
    "field": [(r"(%\w+) = field (\w+) (%\w+), ([\w.]+)", _Lines._field)],
    "item": [(r"(%\w+) = item (\w+) (%\w+), ([%\w]+)", _Lines._item)],
    "put": [(r"put (\w+) (\S+), (%\w+), ([%\w]+)", _Lines._put)],
    "call": [
        (r"(%\w+) = call ptr (.*\)) else (\w+)", _Lines._object),
        (r"(%\w+) = call i32 (.*\)) else (\w+), (\w+)", _Lines._answer),
    ],
    "require": [(r"require (%[\w.]+) else (\w+)", _Lines._require)],
    "drop": [(r"drop (%\w+)", _Lines._drop)],
    "for": [(r"for (%\w+) in (%\w+)(?:, (\w+) (%\w+) from (\S+) by (%\w+))?", _Lines._for)],
    "if": [(r"if (%\w+)", _Lines._if)],
    "end": [(r"end", _Lines._end)],
}
_FORMS = {word: [(re.compile(form), write) for form, write in forms] for word, forms in _PATTERNS.items()}
"""By the word that tells them."""
