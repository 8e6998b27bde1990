"""The forms that the text of generated code is written in, each as a function that does nothing else."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from jitdnn.frameworks.torch.native_text import expanded  # noqa: E402
from jitdnn.rtcg.compile import load  # noqa: E402
from jitdnn.rtcg.isa import isa  # noqa: E402
from jitdnn.rtcg.recording import compiling  # noqa: E402

RECORDS = {"list": ("count", "numbers", "answer")}
TEXT = """
; half of the sum of a list's numbers up to the first one that is not below {most}, written to `answer`; and -1 where
; one of these is odd
define i64 @halves(ptr %record) {
  %count = field i64 %record, list.count
  %numbers = field ptr %record, list.numbers
  for %n in %count, i64 %sum from 0 by %sum_next
    %number = item i64 %numbers, %n
    %is_small = icmp slt i64 %number, {most}
    require %is_small else done
    %bit = and i64 %number, 1
    %is_odd = icmp eq i64 %bit, 1
    if %is_odd
      ret i64 -1
dead:
    end
    %half = lshr i64 %number, 1
    %sum_next = add i64 %sum, %half
  end
  br label %done
done:
  put i64 %sum, %record, 2
  ret i64 %sum
}

; 10 for 1, 20 for 0, 30 for -1
define internal i32 @same(i32 %answer) {
  ret i32 %answer
}
define i64 @answers(i32 %given) {
  %answer = call i32 @same(i32 %given) else no, failed
  ret i64 10
no:
  ret i64 20
failed:
  ret i64 30
}

; 1 for an address, 0 for none
define internal ptr @own(ptr %address) {
  ret ptr %address
}
define i64 @is_there(ptr %address) {
  %found = call ptr @own(ptr %address) else failed
  ret i64 1
failed:
  ret i64 0
}
"""


def function(name: str, takes: Any) -> tuple[Any, object]:
    text = expanded(TEXT, RECORDS, {"most": 100})
    with compiling():
        library = load("forms of text", text, isa("host"), lambda module: module.write(text))
    return ctypes.CFUNCTYPE(ctypes.c_int64, takes)(library.address(name)), library


@pytest.mark.parametrize(
    ("numbers", "wanted"),
    [((), 0), ((2,), 1), ((2, 4, 6), 6), ((2, 100, 8), 1), ((2, 3), -1), ((200, 3), 0)],
)
def test_rounds_and_what_leaves_them(numbers: tuple[int, ...], wanted: int) -> None:
    call, _library = function("halves", ctypes.c_void_p)
    array = (ctypes.c_int64 * max(1, len(numbers)))(*numbers)
    record = (ctypes.c_int64 * 3)(len(numbers), ctypes.addressof(array), -7)
    assert call(ctypes.addressof(record)) == wanted
    assert record[2] == (-7 if wanted < 0 else wanted)


def test_answers_of_calls() -> None:
    call, _library = function("answers", ctypes.c_int32)
    assert [call(n) for n in (1, 0, -1)] == [10, 20, 30]
    call, _library = function("is_there", ctypes.c_void_p)
    assert [call(n) for n in (4711, None)] == [1, 0]


def test_slots_that_there_are_not() -> None:
    with pytest.raises(KeyError, match=r"list\.other"):
        expanded("%x = field i64 %record, list.other", RECORDS, {})
