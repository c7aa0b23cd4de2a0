"""From the bytes of a log to lines that people read."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributed_training.agent.host.lines import LINE_LIMIT, LineBuffer, clean


def lines(*chunks: bytes, pause: float = 0.0) -> list[str]:
    buffer = LineBuffer()
    found = [line for n, chunk in enumerate(chunks) for line in buffer.feed(chunk, 10 + n * pause)]
    return found + buffer.close()


@given(st.text(alphabet="aé€😀\n", max_size=200), st.lists(st.integers(0, 600), max_size=20))
def test_cuts_between_reads_change_nothing(text: str, cuts: list[int]) -> None:
    """B01."""
    data = text.encode()
    edges = [0, *sorted(cuts), len(data)]
    chunks = [data[a:b] for a, b in pairwise(edges)]
    assert lines(*chunks) == text.removesuffix("\n").split("\n") if text else not lines(*chunks)


@given(st.binary(max_size=2000))
def test_any_bytes_become_printable_lines(data: bytes) -> None:
    text = "".join(lines(data))
    assert not re.search(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]", text)
    assert "\x1b" not in re.sub(r"\x1b\[[0-9;:]*m", "", text)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("\x1b[2K\x1b[1Aup", "up"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]never closed", "never closed"),
        ("\x1b(Bascii", "ascii"),
        ("a\x00b\x08c\td", "abc\td"),
        ("10%\r20%\r", "20%"),
        ("windows\r", "windows"),
        ("\x9b31mred\x85", "31mred"),
    ],
)
def test_colours_stay_and_other_control_characters_go(raw: str, shown: str) -> None:
    assert clean(raw) == shown


@pytest.mark.parametrize("shift", range(4))
def test_a_long_line_is_cut_between_characters(shift: int) -> None:
    """B01, B05."""
    text = "x" * shift + "é" * 40_000
    pieces = lines(text.encode() + b"\nEND\n")
    assert "".join(pieces[:-1]) == text
    assert max(map(len, pieces)) <= LINE_LIMIT
    assert pieces[-1] == "END"


def test_a_long_line_is_not_cut_inside_a_colour() -> None:
    text = "x" * (LINE_LIMIT - 2) + "\x1b[31m" + "y" * LINE_LIMIT
    assert "".join(lines(text.encode())) == text


def test_a_progress_bar_shows_a_state_now_and_then_and_its_last() -> None:
    states = [f"\r{n}%".encode() for n in range(101)]
    shown = lines(*states, b"\n", b"done\n", pause=0.1)
    assert shown[-2:] == ["100%", "done"]
    assert 4 <= len(shown) - 2 <= 7


def test_a_progress_bar_that_ends_each_state_shows_its_last() -> None:
    assert lines(b"10%\r", b"20%\r", b"30%\r", pause=0.1)[-1] == "30%"


def test_a_line_that_waits_for_its_end_is_shown_after_a_while() -> None:
    """B07."""
    buffer = LineBuffer()
    assert buffer.feed(b"start", 10.0) == []
    assert buffer.idle(10.5) == []
    assert buffer.idle(11.5) == ["start"]
    assert buffer.idle(13.0) == []
    assert buffer.feed(b" of it\n", 14.0) == [" of it"]


def test_the_end_of_a_line_that_was_shown_is_no_line() -> None:
    buffer = LineBuffer()
    assert buffer.feed(b"asking... ", 10.0) + buffer.idle(12.0) == ["asking... "]
    assert buffer.feed(b"\nanswer\n\n", 13.0) == ["answer", ""]


def test_empty_lines_are_kept() -> None:
    assert lines(b"a\n\n\nb\n") == ["a", "", "", "b"]


def test_half_a_character_at_the_end_is_marked() -> None:
    assert lines("é".encode()[:1]) == ["\N{REPLACEMENT CHARACTER}"]
