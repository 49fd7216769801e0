"""Rules of turning tokens into text, against a plain reference that looks at the whole answer."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from homeai.server.outputs import Delta, OutputText


def make_output(pieces: Sequence[bytes], stop: Sequence[str] = ()) -> OutputText:
    """Token i of the vocabulary is `pieces[i]`."""
    return OutputText(lambda token_id: pieces[token_id], stop)


def stream(pieces: Sequence[bytes], stop: Sequence[str] = ()) -> tuple[OutputText, list[Delta]]:
    """All pieces pushed in order, then the end."""
    output = make_output(pieces, stop)
    deltas = [output.push(token_id, False) for token_id in range(len(pieces))]
    return output, [*deltas, output.finish()]


def texts(pieces: Sequence[bytes], stop: Sequence[str] = ()) -> list[str]:
    return [delta.text for delta in stream(pieces, stop)[1]]


def reference(pieces: Sequence[bytes], stop: Sequence[str]) -> tuple[str, str | None, int]:
    """Text, stop string and used tokens, seen naively: character by character over the whole answer."""

    def decoded(num_tokens: int) -> str:
        return codecs.utf_8_decode(b"".join(pieces[:num_tokens]), "replace", False)[0]

    whole = decoded(len(pieces))
    for end in range(1, len(whole) + 1):
        for text in sorted(filter(None, stop), key=len, reverse=True):
            if whole[:end].endswith(text):
                num_tokens = next(n for n in range(len(pieces) + 1) if len(decoded(n)) >= end)
                return whole[: end - len(text)], text, num_tokens
    return whole, None, len(pieces)


# ---- whole characters ------------------------------------------------------------------------------


def test_text_comes_out_token_by_token() -> None:
    assert texts([b"Hel", b"lo", b" you"]) == ["Hel", "lo", " you", ""]


def test_character_waits_for_its_last_byte() -> None:
    assert texts([b"\xf0\x9f", b"\x99", b"\x82 ok"]) == ["", "", "🙂 ok", ""]


def test_half_a_character_at_the_end_is_dropped() -> None:
    assert texts([b"ok \xf0\x9f\x99"]) == ["ok ", ""]


def test_bytes_that_are_no_text_become_replacement_characters() -> None:
    assert texts([b"a\xff", b"b\xe3", b"c"]) == ["a\ufffd", "b", "\ufffdc", ""]


# ---- stop strings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pieces", "stop"),
    [
        ([b"A B C ", b"D", b"E", b"FG", b"HI", b"J K"], "DEFGHIJ"),
        ([b"A B C ", b"DEFGHIJ K"], "DEFGHIJ"),
        ([b"A B C D", b"EFGHIJ"], "DEFGHIJ"),
        ([b"A B C ", *(bytes([c]) for c in b"DEFGHIJ")], "DEFGHIJ"),
    ],
)
def test_nothing_of_a_stop_string_leaks(pieces: list[bytes], stop: str) -> None:
    output, deltas = stream(pieces, [stop])
    assert "".join(delta.text for delta in deltas) == "A B C "
    assert output.stopped == stop


def test_what_only_looked_like_a_stop_string_comes_out_in_order() -> None:
    assert texts([b"TRE", b"\nAA", b"B"], ["TRE\nAAAA"]) == ["", "", "TRE\nAAB", ""]


def test_held_text_comes_out_at_the_end() -> None:
    assert texts([b"UNO DUE ", b"TRE"], ["TRE\nAAAAAAAA"]) == ["UNO DUE ", "", "TRE"]


def test_shorter_suspicion_is_held_when_the_longer_fails() -> None:
    assert texts([b"aab", b"aaa", b"c"], ["aabaac"]) == ["", "aaba", "aac", ""]
    assert texts([b"aab", b"aaa", b"baac"], ["aabaac"]) == ["", "aaba", "", ""]


def test_first_stop_string_to_be_complete_wins() -> None:
    for pieces in ([b"abcd"], [b"a", b"b", b"c", b"d"], [b"ab", b"cd"]):
        output, deltas = stream(pieces, ["bcd", "c"])
        assert ("".join(delta.text for delta in deltas), output.stopped) == ("ab", "c")


def test_longer_of_two_stop_strings_that_end_together_wins() -> None:
    output, deltas = stream([b"x\n\n"], ["\n", "x\n"])
    assert (deltas[0].text, output.stopped) == ("", "x\n")


def test_stop_string_inside_one_character_of_bytes_is_seen() -> None:
    output, deltas = stream([b"a \xd1", b"\x89", b"\xd1\x91 b"], ["щё"])
    assert "".join(delta.text for delta in deltas) == "a "
    assert output.stopped == "щё"


def test_empty_stop_string_stops_nothing() -> None:
    output, deltas = stream([b"a", b"b"], ["", ""])
    assert [delta.text for delta in deltas] == ["a", "b", ""]
    assert output.stopped is None


def test_many_stop_strings_all_apply() -> None:
    stops = [f"<{number}>" for number in range(40)]
    for stop in stops:
        assert stream([b"text", stop.encode()], stops)[0].stopped == stop


def test_tokens_after_the_stop_are_ignored() -> None:
    output = make_output([b"a", b"."], ["."])
    before = [output.push(0, False), output.push(1, False)]
    after = [output.push(0, False), output.push(0, True), output.finish()]
    assert [delta.text for delta in before + after] == ["a", "", "", "", ""]
    assert output.num_tokens == 2


# ---- counts ----------------------------------------------------------------------------------------


def test_end_token_is_used_but_has_no_text() -> None:
    output = make_output([b"hi", b"</s>"])
    deltas = [output.push(0, False), output.push(1, True), output.finish()]
    assert deltas == [Delta("hi", 1), Delta("", 1), Delta("", 1)]
    assert output.num_tokens == 2


def test_usage_is_cut_at_the_token_that_completed_the_stop_string() -> None:
    output, _ = stream([b"one ", b"ST", b"OP", b" two"], ["STOP"])
    assert output.num_tokens == 3


def test_delta_counts_the_tokens_whose_text_is_out() -> None:
    _, deltas = stream([b"a", b"S", b"T", b"x", b"\xf0\x9f", b"\x99\x82", b"S"], ["STOP"])
    assert deltas == [
        Delta("a", 1),
        Delta("", 1),
        Delta("", 1),
        Delta("STx", 4),
        Delta("", 4),
        Delta("🙂", 6),
        Delta("", 6),
        Delta("S", 7),
    ]


def test_tokens_of_a_stop_string_are_not_counted_as_out() -> None:
    _, deltas = stream([b"a", b"b S", b"TOP"], ["STOP"])
    assert deltas == [Delta("a", 1), Delta("b ", 2), Delta("", 2), Delta("", 2)]


def test_finishing_twice_adds_nothing() -> None:
    output, deltas = stream([b"TR"], ["TRE"])
    assert deltas[-1] == Delta("TR", 1)
    assert output.finish() == Delta("", 1)


# ---- any chunking ----------------------------------------------------------------------------------

CHARACTERS = st.sampled_from(["a", "b", "c", "\n", "é", "щ", "日", "🙂"])
TEXT = st.text(CHARACTERS, max_size=6)
RAW = st.one_of(TEXT.map(str.encode), st.binary(max_size=3))


@st.composite
def chunked(draw: st.DrawFn) -> list[bytes]:
    """Text and stray bytes, cut into tokens anywhere, characters too."""
    data = b"".join(draw(st.lists(RAW, max_size=8)))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@given(pieces=chunked(), stop=st.lists(TEXT, max_size=5))
@example(pieces=[b"ab", b"ab", b"c"], stop=["abc"])
@example(pieces=[b"\xf0\x9f", b"a"], stop=["\ufffda"])
@settings(deadline=None)
def test_deltas_joined_are_the_text_however_it_is_cut(pieces: list[bytes], stop: list[str]) -> None:
    output, deltas = stream(pieces, stop)
    text, stopped, num_tokens = reference(pieces, stop)
    assert "".join(delta.text for delta in deltas) == text
    assert output.stopped == stopped
    assert output.num_tokens == num_tokens


@given(pieces=chunked(), stop=st.lists(TEXT, max_size=5))
@settings(deadline=None)
def test_no_delta_says_more_than_the_stop_strings_allow(pieces: list[bytes], stop: list[str]) -> None:
    """What is out after any token is a beginning of the final text, and counts only grow."""
    output = make_output(pieces, stop)
    final = reference(pieces, stop)[0]
    said, counts = "", [0]
    for token_id in range(len(pieces)):
        delta = output.push(token_id, False)
        said += delta.text
        counts.append(delta.num_tokens)
        assert final.startswith(said)
    assert counts == sorted(counts)
    assert counts[-1] <= output.num_tokens


@given(pieces=chunked(), stop=st.lists(TEXT.filter(bool), min_size=1, max_size=5))
@settings(deadline=None)
def test_no_more_is_held_than_a_stop_string_may_need(pieces: list[bytes], stop: list[str]) -> None:
    """Unless stopped, what is held back is the beginning of a stop string."""
    output = make_output(pieces, stop)
    said = "".join(output.push(token_id, False).text for token_id in range(len(pieces)))
    held = output.finish().text
    assert output.stopped or not held or any(text.startswith(held) and text != held for text in stop)
    assert output.stopped or said + held == reference(pieces, stop)[0]


def test_piece_is_asked_once_per_token() -> None:
    asked: list[int] = []

    def piece(token_id: int) -> bytes:
        asked.append(token_id)
        return b"x"

    output = OutputText(piece, ["xy"])
    for token_id in (7, 8, 9):
        output.push(token_id, False)
    assert asked == [7, 8, 9]


def test_white_space_before_the_first_word_can_be_left_out() -> None:
    pieces = [b" ", b" \n", b" Paris", b" is"]
    output = OutputText(pieces.__getitem__, ["  is"], skip_space=True)
    assert [output.push(i, False).text for i in range(4)] == ["", "", "Paris", " is"]
    assert output.num_tokens == 4


# ---- indentation -----------------------------------------------------------------------------------


CODE = "x = 1\n    y = 2\n\n        z = 3\n  if q:\n"


def indented(pieces: Sequence[bytes], min_indent: int, stop: Sequence[str] = ()) -> tuple[str, str | None]:
    output = OutputText(pieces.__getitem__, stop, min_indent=min_indent)
    said = "".join(output.push(token_id, False).text for token_id in range(len(pieces)))
    return said + output.finish().text, output.stopped


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_an_answer_ends_before_a_line_that_is_indented_less(size: int) -> None:
    data = CODE.encode()
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    assert indented(pieces, 0) == (CODE, None)
    assert indented(pieces, 2) == (CODE, None)
    assert indented(pieces, 3) == ("x = 1\n    y = 2\n\n        z = 3", "")
    assert indented(pieces, 5) == ("x = 1", "")


def test_what_may_be_too_little_indentation_is_held_back() -> None:
    output = OutputText([b"a", b"\n", b"  ", b"  b"].__getitem__, min_indent=4)
    assert [output.push(i, False).text for i in range(4)] == ["a", "", "", "\n    b"]


def test_a_stop_string_in_a_line_that_is_indented_enough_counts() -> None:
    assert indented([b"a\n    b STOP\nc"], 4, ["STOP"]) == ("a\n    b ", "STOP")
    assert indented([b"a\n  STOP"], 4, ["STOP"]) == ("a\n  ", "STOP")
