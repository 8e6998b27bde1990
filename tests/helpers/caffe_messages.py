"""Messages with anything in them, for hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from jitdnn.caffe.message import Field, Message


def _values(field: Field[Any]) -> st.SearchStrategy[Any]:
    if field.message is not None:
        return messages(field.message)
    by_kind: dict[str, st.SearchStrategy[Any]] = {
        "integer": st.integers(0, 2**31 - 1),
        "real": st.floats(allow_nan=False),
        "boolean": st.booleans(),
        "string": st.text(),
        "enum": st.sampled_from(sorted(field.values)) if field.values else st.nothing(),
    }
    return by_kind[field.kind]


@st.composite
def messages(draw: st.DrawFn, kind: type[Message]) -> Message:
    """A message of the class with some of its fields set to anything."""
    names = draw(st.lists(st.sampled_from(sorted(kind.fields)), max_size=4, unique=True))
    result = kind()
    for name in names:
        field = kind.fields[name]
        one = _values(field)
        setattr(result, name, draw(st.lists(one, min_size=1, max_size=3) if field.is_repeated else one))
    return result
