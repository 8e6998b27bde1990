"""The text side of problem strings: words in, numbers and descriptors out, and the other way round.

A problem string is a kind and words in any order: a name with numbers (`n128`, `stride2x1`, `pad1:2x0`), a
bare word (`f32`, `nhwc`, `max`), or the order in memory of one tensor (`x=s1,2,3,4` for strides in elements,
`w=nchw`).
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from jitdnn import limits
from jitdnn.arguments import shown
from jitdnn.errors import InvalidArgument, InvalidType, ParseError
from jitdnn.tensor import DTYPES, TensorDescriptor, canonical_layout

_Entry = TypeVar("_Entry")

_LONGEST_WORD = 100
_WORD = re.compile(r"\S+")
_NAMED = re.compile(r"([a-z_]+?)(-?\d.*)")
_INTEGER = re.compile(r"-?[0-9]+")

_LAYOUTS = ("nchw", "nhwc", "nc", "ncw", "nwc", "ncdhw", "ndhwc")


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    column: int  # from 1
    name: str  # what it is asked for by: "n" of "n128", "x=" of "x=s1,2", the whole of a bare word
    value: str


class Words:
    """The words of one problem string. Asking for a word takes it; `finish` refuses what nobody asked for."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise InvalidType(f"a problem string is text, not {shown(text)}")
        if len(text) > limits.PROBLEM_CHARACTERS:
            raise ParseError(
                f"a problem string of {len(text):,} characters: at most {limits.PROBLEM_CHARACTERS:,} are read",
                text,
            )
        self.text = text
        self._tokens: dict[str, _Token] = {}
        self._asked: set[str] = set()
        matches = list(_WORD.finditer(text))
        if not matches:
            raise self.error("the problem string is empty: start with a kind such as conv_fwd", 0)
        self.kind = matches[0].group()
        for match in matches[1:]:
            token = _token(match.group(), match.start() + 1)
            if token.name in self._tokens:
                earlier = self._tokens[token.name]
                raise self.error(
                    f"{token.text!r} repeats {earlier.text!r} at column {earlier.column}", match.start()
                )
            self._tokens[token.name] = token

    def error(self, message: str, offset: int, candidates: Iterable[str] = ()) -> ParseError:
        """A ParseError at `offset` (from 0); the nearest of `candidates`, or all of them, are the hint."""
        candidates = sorted(set(candidates))
        end = self.text.find(" ", offset)
        word = self.text[offset : end if end >= 0 else None]
        near = difflib.get_close_matches(word[:_LONGEST_WORD].rstrip("0123456789:x,-"), candidates, n=1)
        if near:
            message += f"; did you mean {near[0]!r}?"
        elif candidates:
            message += f"; known: {', '.join(candidates)}"
        return ParseError(message, text=self.text, line=1, column=offset + 1)

    def has(self, name: str) -> bool:
        """Whether a word of that name is there (and has not been taken)."""
        self._asked.add(name)
        return name in self._tokens

    def number(self, name: str, default: int | None = None) -> int:
        """The number of `name`, for instance 128 of `n128`."""
        return self.numbers(name, 1, default)[0]

    def real(self, name: str, default: float | None = None) -> float:
        """The finite number of `name`, whole or not, for instance 1e-05 of `epsilon1e-05`."""
        token = self._take(name)
        if token is None:
            if default is None:
                raise self._missing(name)
            return default
        try:
            value = float(token.value)
        except ValueError:
            raise self._at(token, f"{token.value!r} in {token.text!r} is not a number") from None
        if not math.isfinite(value):
            raise self._at(token, f"{token.text!r} is too large: it must be a finite number")
        return value

    def numbers(self, name: str, rank: int, default: int | None = None) -> tuple[int, ...]:
        """`rank` numbers written `2x1`; a single one stands for all."""
        token = self._take(name)
        if token is None:
            if default is None:
                raise self._missing(name)
            return (default,) * rank
        return self._spread([self._integer(part, token) for part in token.value.split("x")], rank, token)

    def shape(self, name: str) -> tuple[int, ...]:
        """As many numbers as are written, `4x1x7`."""
        token = self._take(name)
        if token is None:
            raise self._missing(name)
        return tuple(self._integer(part, token) for part in token.value.split("x"))

    def pairs(self, name: str, rank: int, default: int = 0) -> tuple[tuple[int, int], ...]:
        """`rank` (before, after) pairs written `1:2x0:1`; `1` is `1:1`, a single entry stands for all."""
        token = self._take(name)
        if token is None:
            return ((default, default),) * rank
        pairs = []
        for part in token.value.split("x"):
            ends = part.split(":")
            if len(ends) > 2:
                raise self._at(token, f"{part!r} is not a padding: write 1, or before:after such as 1:2")
            pairs.append((self._integer(ends[0], token), self._integer(ends[-1], token)))
        return self._spread(pairs, rank, token)

    def flag(self, word: str) -> bool:
        """Whether the bare word is there."""
        return self._take_bare(word) is not None

    def choice(self, words: Sequence[str], default: str | None = None) -> str:
        """The one of `words` that is there."""
        found = [token for word in words if (token := self._take_bare(word)) is not None]
        if len(found) > 1:
            raise self._at(found[1], f"{found[1].text!r} contradicts {found[0].text!r}: give one of them")
        if found:
            return found[0].text
        if default is None:
            raise ParseError(
                f"one of {', '.join(words)} is missing", text=self.text, line=1, column=len(self.text) + 1
            )
        return default

    def value(self, name: str, known: Sequence[str]) -> str:
        """The one of the `known` words behind `name=`."""
        token = self._take(f"{name}=")
        if token is None:
            raise self._missing(f"{name}=")
        if token.value not in known:
            raise self._at(token, f"{token.value!r} in {token.text!r} must be one of {', '.join(known)}")
        return token.value

    def dtype(self) -> str:
        """The element type; f32 if none is written."""
        return self.choice(tuple(DTYPES), default="f32")

    def layout(self, rank: int) -> str:
        """The layout word in its generic form, nchw or nhwc, for tensors of `rank` dims; nchw by default."""
        column = next((self._tokens[word].column for word in _LAYOUTS if word in self._tokens), 1)
        word = self.choice(_LAYOUTS, default="nchw")
        try:
            return canonical_layout(word, rank)
        except InvalidArgument as error:
            raise ParseError(str(error), text=self.text, line=1, column=column) from None

    def descriptor(
        self, name: str, shape: Sequence[int], dtype: str, forms: Mapping[str, TensorDescriptor], default: str
    ) -> TensorDescriptor:
        """The tensor `name` as `name=` says, by strides (`s1,2,3`) or a word of `forms`; else the default."""
        token = self._take(f"{name}=")
        if token is None:
            return forms[default]
        if token.value in forms:
            return forms[token.value]
        if not token.value.startswith("s"):
            words = ", ".join(forms)
            raise self._at(
                token, f"{token.value!r} is no memory order: write {words} or strides such as s6,3,1"
            )
        parts = token.value[1:].split(",") if token.value != "s" else []
        strides = tuple(self._integer(part, token) for part in parts)
        if len(strides) != len(shape):
            raise self._at(
                token, f"{name} has {len(shape)} dims and {len(strides)} strides: give {len(shape)}"
            )
        return TensorDescriptor(tuple(shape), strides, dtype)

    def descriptors(
        self, shapes: Mapping[str, Sequence[int]], dtype: str, layout: str
    ) -> dict[str, TensorDescriptor]:
        """The tensors of these names and shapes, packed in `layout` where no `name=` says otherwise."""
        return {
            name: self.descriptor(name, shape, dtype, layout_forms(shape, dtype), layout)
            for name, shape in shapes.items()
        }

    def finish(self) -> None:
        """Raises ParseError for the first word that was not taken."""
        for token in self._tokens.values():
            raise self.error(
                f"{token.text!r} does not belong in {self.kind}", token.column - 1, candidates=self._asked
            )

    def _take(self, name: str) -> _Token | None:
        self._asked.add(name)
        return self._tokens.pop(name, None)

    def _take_bare(self, word: str) -> _Token | None:
        token = self._take(word)
        if token is not None and token.text != word:
            raise self._at(token, f"{token.text!r} is no word of a problem: {word!r} stands alone")
        return token

    def _missing(self, name: str) -> ParseError:
        message = f"{self.kind} needs the word {name}<number>, for instance {name}8"
        return ParseError(message, text=self.text, line=1, column=len(self.text) + 1)

    def _at(self, token: _Token, message: str) -> ParseError:
        return ParseError(message, text=self.text, line=1, column=token.column)

    def _integer(self, part: str, token: _Token) -> int:
        if not _INTEGER.fullmatch(part):
            raise self._at(token, f"{part!r} in {token.text!r} is not an integer")
        if len(part) > limits.PROBLEM_DIGITS:
            raise self._at(token, f"a number of {len(part)} digits: at most {limits.PROBLEM_DIGITS} are read")
        return int(part)

    def _spread(self, entries: list[_Entry], rank: int, token: _Token) -> tuple[_Entry, ...]:
        if len(entries) == 1:
            return (entries[0],) * rank
        if len(entries) != rank:
            raise self._at(
                token, f"{token.text!r} has {len(entries)} entries for {rank} axes: give one, or {rank}"
            )
        return tuple(entries)


def _token(text: str, column: int) -> _Token:
    name, equals, value = text.partition("=")
    if equals:
        return _Token(text, column, name + "=", value)
    match = _NAMED.fullmatch(text)
    if match and text.removeprefix("to_").removeprefix("by_") not in DTYPES:
        return _Token(text, column, match.group(1), match.group(2))
    return _Token(text, column, text, "")


def layout_forms(shape: Sequence[int], dtype: str) -> Mapping[str, TensorDescriptor]:
    """The packed orders of a tensor by their words; below three dims the two words mean the same."""
    return _layout_forms(tuple(shape), dtype)


@lru_cache(1024)  # a layer's directions have the same tensors
def _layout_forms(shape: tuple[int, ...], dtype: str) -> Mapping[str, TensorDescriptor]:
    return {word: TensorDescriptor.packed(shape, dtype, word) for word in ("nchw", "nhwc")}


def layout_words(named: Sequence[tuple[str, TensorDescriptor]]) -> list[str]:
    """The layout word of most tensors (nchw if undecided), then `name=` for each tensor that differs."""
    orders = [(name, tensor, layout_forms(tensor.shape, tensor.dtype)) for name, tensor in named]
    counts = {word: sum(forms[word] == tensor for _, tensor, forms in orders) for word in ("nchw", "nhwc")}
    layout = "nhwc" if counts["nhwc"] > counts["nchw"] else "nchw"
    words = [layout]
    for name, tensor, forms in orders:
        words += order_word(name, tensor, forms, layout)
    return words


def order_word(
    name: str, tensor: TensorDescriptor, forms: Mapping[str, TensorDescriptor], default: str
) -> list[str]:
    """No word if `tensor` is the default form, else `name=form` or `name=s<strides>`."""
    if tensor == forms[default]:
        return []
    for word, form in forms.items():
        if tensor == form:
            return [f"{name}={word}"]
    return [f"{name}=s{','.join(map(str, tensor.strides))}"]


def axes_word(name: str, numbers: Sequence[int]) -> str:
    """`stride2` if all axes agree, else `stride2x1`."""
    parts = [str(number) for number in numbers]
    return name + (parts[0] if len(set(parts)) == 1 else "x".join(parts))


def pairs_word(name: str, pairs: Sequence[tuple[int, int]]) -> str:
    """`pad1`, `pad1x0`, `pad1:2`, `pad1:2x0:1`."""
    parts = [f"{before}" if before == after else f"{before}:{after}" for before, after in pairs]
    return name + (parts[0] if len(set(parts)) == 1 else "x".join(parts))


def shape_word(shape: Sequence[int]) -> str:
    """`shape4x1x7`."""
    return "shape" + "x".join(map(str, shape))
