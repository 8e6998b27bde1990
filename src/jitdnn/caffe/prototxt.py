"""The text format of protocol buffers (proto2), read into typed messages and printed back.

Every error is a ParseError with the line and column of the first character that is wrong. Read are: `#`
comments, a colon or none before `{`, `<` `>` for braces, `,` or `;` between fields, `[a, b]` lists for
repeated fields, adjacent strings joined, the escapes of C, decimal, octal and hexadecimal integers, floats
with an `f` behind them, enum values by name or by number. A field that may stand once and stands twice is an
error, as in Caffe. How long a text may be, and how deep, is in limits.py.
"""

from __future__ import annotations

import difflib
import re
from typing import Any, NamedTuple, TypeVar

from jitdnn import limits
from jitdnn.caffe.message import Field, Message, Position
from jitdnn.errors import InvalidArgument, InvalidType, ParseError
from jitdnn.limits import shortened

M = TypeVar("M", bound=Message)

# possessive (++): what was matched is never tried again, so that no text takes more than time in proportion
_TOKEN = re.compile(
    r"""(?P<space>(?:[\ \t\r\n\f\v]++|\#[^\n]*+)++)
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<number>0[xX][0-9a-fA-F]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?)
      | (?P<string>"(?:[^"\\\n]++|\\[^\n])*+"|'(?:[^'\\\n]++|\\[^\n])*+')
      | (?P<symbol>[{}<>:\[\],;-])""",
    re.VERBOSE,
)
_WORD_CHARACTER = re.compile(r"[A-Za-z0-9_.]")
_ESCAPE = re.compile(r"\\([0-7]{1,3}|[xX][0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_SIMPLE_ESCAPES = {
    "a": 7,
    "b": 8,
    "f": 12,
    "n": 10,
    "r": 13,
    "t": 9,
    "v": 11,
    "\\": 92,
    "'": 39,
    '"': 34,
    "?": 63,
}
_TRUE = {"true", "True", "t", "1"}
_FALSE = {"false", "False", "f", "0"}
_CLOSING = {"{": "}", "<": ">"}
_PROBLEMS = 20  # that a message names


class Token(NamedTuple):
    """A piece of the text: its kind (word, number, string, symbol, end), its characters, its start."""

    kind: str
    text: str
    start: int


def parse(text: str, message: type[M], file: str = "") -> M:
    """Parse `text` as one message of the class `message`; errors about it later will name `file`.

    Raises ParseError at the first thing that is wrong. Fields that do not exist and values that a field cannot have are
    all in its message.
    """
    return Parser(text, file).parse(message)


def to_text(message: Message) -> str:
    """Print the message so that `parse` gives it back equal: a field a line, two blanks an indentation."""
    lines: list[str] = []
    _print(message, "", lines)
    return "".join(line + "\n" for line in lines)


class Parser:
    """Reads one text. lenient.py has one that repairs."""

    def __init__(self, text: str, file: str = "") -> None:
        self.text, self.file = text, file
        self.problems: list[ParseError] = []  # after which reading went on
        self.offset = 1 if text.startswith("\ufeff") else 0
        self.known = (0, 1, 0)  # an offset, its line, and where that line starts
        self.values = self.depth = 0
        if len(text) > limits.PROTOTXT_BYTES:
            message = f"the text has {len(text):,} characters: at most {limits.PROTOTXT_BYTES:,} are read"
            raise ParseError(message, text)
        self.token = self.scan()

    def parse(self, message: type[M]) -> M:
        result = message()
        try:
            self.fields(result, closing="", path="")
        except ParseError as error:
            self.problems.append(error)
        if self.problems:
            raise self.all_problems()
        return result

    def all_problems(self) -> ParseError:
        """The first problem, with the others in its message."""
        first, *others = self.problems
        lines = [first.message, *map(str, others[: _PROBLEMS - 1])]
        if len(others) >= _PROBLEMS:
            lines.append(f"and {len(others) - _PROBLEMS + 1} more")
        return ParseError("\n".join(lines), self.text, first.line, first.column).of(self.problems)

    # ---- tokens

    def position(self, offset: int) -> Position:
        known, line, start = self.known
        if offset < known:
            known, line, start = 0, 1, 0
        if newlines := self.text.count("\n", known, offset):
            line, start = line + newlines, self.text.rindex("\n", known, offset) + 1
        self.known = offset, line, start
        return Position(line, offset - start + 1, self.file)

    def error(self, message: str, offset: int | None = None) -> ParseError:
        place = self.position(self.token.start if offset is None else offset)
        return ParseError(message, self.text, place.line, place.column).at(place)

    def scan(self) -> Token:
        while True:
            start = self.offset
            if start >= len(self.text):
                return Token("end", "", len(self.text))
            match = _TOKEN.match(self.text, start)
            if match is None:
                raise self.unreadable(start)
            self.offset = match.end()
            kind = match.lastgroup or ""
            if kind == "number" and _WORD_CHARACTER.match(self.text, self.offset):
                raise self.error(
                    f"{shortened(match[0])} runs into what follows: is a space missing?", self.offset
                )
            if kind != "space":
                if match.end() - start > limits.PROTOTXT_STRING:
                    raise self.error(
                        f"a {kind} of {match.end() - start:,} characters: at most {limits.PROTOTXT_STRING:,} are read",
                        start,
                    )
                return Token(kind, match[0], start)

    def unreadable(self, offset: int) -> ParseError:
        character = self.text[offset]
        if character in "“”„‟″‘’":
            return self.error(
                f"typographic quotation mark {character}: strings stand in straight quotes", offset
            )
        if character in "\"'":
            return self.error(
                f"this string is not closed before the end of its line: {character} is missing", offset
            )
        return self.error(f"unexpected character {character!r}", offset)

    def take(self) -> Token:
        token = self.token
        self.token = self.scan()
        return token

    def accept(self, symbol: str) -> bool:
        if self.token.kind == "symbol" and self.token.text == symbol:
            self.take()
            return True
        return False

    def found(self) -> str:
        return "the end of the text" if self.token.kind == "end" else shortened(self.token.text)

    # ---- messages

    def fields(self, message: Message, closing: str, path: str) -> None:
        opened = self.token.start
        while True:
            if self.is_left_out(message, closing, path):
                return
            if self.token.kind == "end":
                if closing:
                    where = message.position or Position(1, 1)
                    raise self.error(
                        f"the text ends inside {path} (opened in line {where.line}): {closing!r} is missing"
                    )
                return
            if closing and self.accept(closing):
                return
            if self.token.kind != "word":
                raise self.error(self.no_field_name(path, opened))
            self.field(message, path)
            if not self.accept(","):
                self.accept(";")

    def is_left_out(self, message: Message, closing: str, path: str) -> bool:
        """Whether the message ends here without its closing brace."""
        return False

    def no_field_name(self, path: str, opened: int) -> str:
        if self.token.text in ("}", ">") and not path:
            return f"{self.token.text!r} closes nothing: there is one too many, or one opening brace too few"
        if self.token.text == "[":
            return (
                "extensions and Any messages ([name]) do not exist in Caffe's files: a field name is needed"
            )
        return f"a field name is needed{' in ' + path if path else ''}, not {self.found()}"

    def field(self, message: Message, path: str) -> None:
        name = self.take()
        self.count(name.start)
        field = message.fields.get(name.text)
        if field is None:
            self.problems.append(self.error(_unknown_field(name.text, type(message), path), name.start))
            self.skip_value()
            return
        here = self.position(name.start)
        if not field.is_repeated and message.has(name.text):
            first = message.positions[name.text]
            raise self.error(
                f"{name.text} may stand only once, and stands in line {first.line} already", name.start
            )
        message.positions.setdefault(name.text, here)
        inner_path = f"{path}.{name.text}" if path else name.text

        is_message = field.message is not None
        if not self.accept(":") and not is_message:
            raise self.error(f"':' is needed between {name.text} and its value, not {self.found()}")
        if self.token.text == "[" and self.token.kind == "symbol":
            if not field.is_repeated:
                raise self.error(f"{name.text} holds one value, not a list")
            self.take()
            if not self.accept("]"):
                self.value(message, field, inner_path)
                while self.accept(","):
                    self.count(self.token.start)
                    self.value(message, field, inner_path)
                if not self.accept("]"):
                    raise self.error(f"',' or ']' is needed in the list of {name.text}, not {self.found()}")
        else:
            self.value(message, field, inner_path)

    def count(self, start: int) -> None:
        """One more field, entry of a list or piece of a string."""
        self.values += 1
        if self.values > limits.PROTOTXT_VALUES:
            raise self.error(f"more than {limits.PROTOTXT_VALUES:,} fields and entries of lists", start)

    def value(self, message: Message, field: Field[Any], path: str) -> None:
        start = self.token.start
        value: object
        if field.message is not None:
            value = self.sub_message(field.message, path)
        else:
            try:
                value = field.checked(self.scalar(field))
            except (InvalidArgument, InvalidType) as error:
                if isinstance(error, ParseError):
                    raise
                self.problems.append(self.error(str(error), start))
                return
        if field.is_repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)

    def sub_message(self, kind: type[Message], path: str) -> Message:
        closing = _CLOSING.get(self.token.text) if self.token.kind == "symbol" else None
        if closing is None:
            raise self.error(f"'{{' is needed after {path}, which is a message, not {self.found()}")
        if self.depth == limits.PROTOTXT_DEPTH:
            raise self.error(f"more than {limits.PROTOTXT_DEPTH} messages inside of each other")
        result = kind()
        result.position = self.position(self.token.start)
        self.take()
        self.depth += 1
        self.fields(result, closing, path)
        self.depth -= 1
        return result

    def skip_value(self) -> None:
        """Read over what a field has that does not exist: a value, a list, or a message with all that is inside."""
        self.accept(":")
        opened = 0
        while self.token.kind != "end":
            token = self.take()
            if token.kind == "symbol" and token.text in "{<[":
                opened += 1
            elif token.kind == "symbol" and token.text in "}>]":
                opened -= 1
            if opened < 0:
                raise self.error(f"a value is needed, not {token.text!r}", token.start)
            if not opened and not (token.kind == "symbol" and token.text == "-"):
                break
        while self.token.kind == "string":  # strings beside each other are one
            self.take()

    # ---- scalars

    def scalar(self, field: Field[Any]) -> object:
        if field.kind == "string":
            return self.string(field.name)
        if field.kind == "enum":
            return self.enum(field)
        if field.kind == "boolean":
            if self.token.kind in ("word", "number") and self.token.text in _TRUE | _FALSE:
                return self.take().text in _TRUE
            raise self.error(f"{field.name} needs true or false, not {self.found()}")
        is_negative = self.accept("-")
        magnitude = self.integer(field.name) if field.kind == "integer" else self.real(field.name)
        return -magnitude if is_negative else magnitude

    def integer(self, name: str) -> int:
        text = self.token.text
        if self.token.kind != "number" or not re.fullmatch(r"0[xX][0-9a-fA-F]+|[0-9]+", text):
            raise self.error(f"{name} needs an integer, not {self.found()}")
        if len(text) > 100:
            raise self.error(f"{name}: an integer of {len(text)} characters is out of every range")
        try:
            value = int(
                text, 16 if text[:2] in ("0x", "0X") else 8 if len(text) > 1 and text[0] == "0" else 10
            )
        except ValueError:
            raise self.error(
                f"{shortened(text)} starts with 0, so it is octal, and has a digit above 7"
            ) from None
        self.take()
        return value

    def real(self, name: str) -> float:
        text = self.token.text
        if self.token.kind == "word" and text.lower() in ("inf", "infinity", "nan"):
            return float(self.take().text)
        if self.token.kind != "number" or text[:2] in ("0x", "0X"):
            raise self.error(f"{name} needs a number, not {self.found()}")
        self.take()
        return float(text.rstrip("fF"))

    def enum(self, field: Field[Any]) -> str:
        names = ", ".join(field.values)
        if self.token.kind == "word":
            if self.token.text not in field.values:
                near = _near(self.token.text, list(field.values))
                shown = self.token.text if near else shortened(self.token.text).strip("'")
                self.problems.append(self.error(f"{field.name} is one of {names}, not {shown}{near}"))
                self.take()
                return str(field.default)
            return self.take().text
        if self.token.kind == "number":
            start = self.token.start
            number = self.integer(field.name)
            for name, value in field.values.items():
                if value == number:
                    return name
            raise self.error(
                f"{field.name} is one of {names}, and none of them has the number {number}", start
            )
        if self.token.kind == "string":
            raise self.error(f"{field.name} is one of {names}, written without quotation marks")
        raise self.error(f"{field.name} is one of {names}, not {self.found()}")

    def string(self, name: str) -> str:
        if self.token.kind != "string":
            raise self.error(f'{name} needs a string in quotation marks ("..."), not {self.found()}')
        start = self.token.start
        parts = bytearray()
        while self.token.kind == "string":
            token = self.take()
            self.count(token.start)
            parts += self.unescaped(token)
            if len(parts) > 4 * limits.PROTOTXT_STRING:  # of UTF-8, and joined
                raise self.error(f"{name}: at most {limits.PROTOTXT_STRING:,} characters are read", start)
        try:
            return parts.decode()
        except UnicodeDecodeError:
            raise self.error(f"{name}: the escapes in this string do not make valid UTF-8", start) from None

    def unescaped(self, token: Token) -> bytes:
        body = token.text[1:-1]
        result = bytearray()
        last = 0
        for match in _ESCAPE.finditer(body):
            result += self.encoded(body[last : match.start()], token)
            code = match[1]
            if code[0] in "uU" and len(code) > 1:
                number = int(code[1:], 16)
                if number > 0x10FFFF:
                    raise self.error(
                        f"\\{code} is beyond the last character of Unicode", token.start + 1 + match.start()
                    )
                result += self.encoded(chr(number), token)
            elif code[0] in "xX" and len(code) > 1:
                result.append(int(code[1:], 16))
            elif code[0] in "01234567":
                result.append(int(code, 8) & 0xFF)
            elif code in _SIMPLE_ESCAPES:
                result.append(_SIMPLE_ESCAPES[code])
            else:
                raise self.error(f"unknown escape \\{code}", token.start + 1 + match.start())
            last = match.end()
        return bytes(result + self.encoded(body[last:], token))

    def encoded(self, text: str, token: Token) -> bytes:
        try:
            return text.encode()
        except UnicodeEncodeError:
            raise self.error("half a surrogate pair is no character", token.start) from None


def _unknown_field(name: str, message: type[Message], path: str) -> str:
    owner = f"{path} ({message.__name__})" if path else message.__name__
    inside = [
        field.name
        for field in message.fields.values()
        if field.message is not None and name in field.message.fields and field.name != name
    ]
    hint = _near(name, list(message.fields))
    if not hint and inside:
        hint = f": it belongs inside {' or '.join(inside[:3])} {{ }}"
    return f"unknown field {shortened(name)} in {owner}{hint}"


def _near(name: str, known: list[str]) -> str:
    longest = max(map(len, known), default=0)
    # the search takes time in proportion to the length, and what is twice as long cannot be near
    matches = difflib.get_close_matches(name[: 2 * longest + 1], known, n=1, cutoff=0.7)
    return f": did you mean {matches[0]!r}?" if matches else ""


def _print(message: Message, indent: str, lines: list[str]) -> None:
    for field, value in message.present():
        for item in value if field.is_repeated else [value]:
            if isinstance(item, Message):
                lines.append(f"{indent}{field.name} {{")
                _print(item, indent + "  ", lines)
                lines.append(f"{indent}}}")
            else:
                lines.append(f"{indent}{field.name}: {_scalar_text(field, item)}")


def _scalar_text(field: Field[Any], value: Any) -> str:
    if field.kind == "boolean":
        return "true" if value else "false"
    if field.kind == "real":
        return repr(value).removesuffix(".0")
    if field.kind == "string":
        return '"' + "".join(_escaped(character) for character in value) + '"'
    return str(value)


def _escaped(character: str) -> str:
    if character in '\\"':
        return "\\" + character
    if character == "\n":
        return "\\n"
    if character.isprintable():
        return character
    return "".join(f"\\{byte:03o}" for byte in character.encode())
