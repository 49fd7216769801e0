"""Where an answer stops: strings across token boundaries, at its end, and those that the model needs. Cases D1 to D10.

The prompts are patterns that the default model copies: greedy, its tokens are known.
"""

from __future__ import annotations

import pytest

from tests.blackbox.asking import BOTH_WAYS, GREEDY, ask, error_of, post
from tests.daemon import Daemon

ALPHABET = "A B C D E F G H I J K"  # the model goes on, a letter per token
PACKED = "ABCDEFGHIJ ABCDEFGHIJ ABCDEFGHIJ ABCDEFGHIJ ABC"
ITALIAN = "UNO DUE TRE QUATTRO UNO DUE TRE QUATTRO UNO DUE TRE QUATTRO UNO DUE"
RUSSIAN = "щёчки щёчки щёчки щёчки щёчки щёчки щёчки"
EMOJI = "🫨🫨🫨🫨🫨🫨🫨🫨🫨🫨🫨🫨🫨🫨"  # four tokens each
LINES = "one\ntwo\nthree\none\ntwo\nthree\none\ntwo\nthree\none\n"

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]

both_ways = pytest.mark.parametrize("stream", BOTH_WAYS, ids=["whole", "stream"])


@both_ways
@pytest.mark.parametrize(
    ("prompt", "stop", "text"),
    [
        (ALPHABET, "O P Q", " L M N "),
        (ALPHABET, "L", " "),
        (ALPHABET, " L", ""),
        (ALPHABET, ["R S", "P Q", "Q"], " L M N O "),
        (ALPHABET, ["N O P Q R S T U V", "S"], " L M N O P Q R "),  # the first that is complete
        (ALPHABET, [" N X", " N O X", "O P"], " L M N "),
        pytest.param(PACKED, "DEFGHIJ", "", id="D2"),
        (PACKED, "J A", "DEFGHI"),
        (ITALIAN, "TRE", " "),
        (ITALIAN, "TTRO UNO", " TRE QUA"),
        (RUSSIAN, "ёч", " щ"),
        (RUSSIAN, "и щ", " щёчк"),
        (EMOJI, "🫨", ""),
        (EMOJI, "🫨🫨", ""),
        (LINES, "two\nthree", ""),
        (LINES, "\n", "two"),
        (LINES, "\nthree\n", "two"),
    ],
)
def test_answer_is_what_comes_before_the_first_stop_string(
    daemon: Daemon, prompt: str, stop: object, text: str, stream: bool
) -> None:
    answer = ask(daemon, stream=stream, prompt=prompt, stop=stop, max_tokens=24, **GREEDY)
    assert (answer.text, answer.finish_reason) == (text, "stop")
    assert answer.num_tokens < 24


@both_ways
@pytest.mark.parametrize("prompt", [PACKED, ITALIAN, RUSSIAN, EMOJI])
def test_every_part_of_the_text_works_as_a_stop_string(daemon: Daemon, prompt: str, stream: bool) -> None:
    whole = ask(daemon, prompt=prompt, max_tokens=8, **GREEDY).text
    for start in range(0, len(whole), len(whole) // 4 + 1):
        stop = whole[start : start + 4]
        answer = ask(daemon, stream=stream, prompt=prompt, max_tokens=8, stop=[stop], **GREEDY)
        assert (answer.text, answer.finish_reason) == (whole[: whole.index(stop)], "stop")


@both_ways
@pytest.mark.parametrize("prompt", [ALPHABET, ITALIAN, RUSSIAN, EMOJI])
@pytest.mark.parametrize("rest", ["\nAAAAAAAA", "🫨" * 9, "x" * 100_000], ids=["line", "emoji", "long"])
def test_text_held_back_for_a_stop_string_comes_out_at_the_end_d4(
    daemon: Daemon, prompt: str, rest: str, stream: bool
) -> None:
    whole = ask(daemon, prompt=prompt, max_tokens=8, **GREEDY).text
    stops = [whole[-1:] + rest, whole[-3:] + rest, whole + rest]
    answer = ask(daemon, stream=stream, prompt=prompt, max_tokens=8, stop=stops, **GREEDY)
    assert (answer.text, answer.finish_reason) == (whole, "length")


@both_ways
@pytest.mark.parametrize(
    "stop", [None, [], "", ["\nObservation"], ["Human:", "\n\n\n"]], ids=["none", "empty", "blank", "one", "two"]
)
def test_stop_strings_of_a_client_come_on_top_of_those_that_the_model_needs_d6_d7(
    daemon: Daemon, stop: object, stream: bool
) -> None:
    answer = ask(daemon, stream=stream, messages=FRANCE, stop=stop, max_tokens=60, **GREEDY)
    assert (answer.text, answer.finish_reason) == ("The capital of France is Paris.", "stop")


@both_ways
def test_stop_string_of_a_client_works_in_a_chat(daemon: Daemon, stream: bool) -> None:
    answer = ask(daemon, stream=stream, messages=FRANCE, stop=["of France"], max_tokens=60, **GREEDY)
    assert (answer.text, answer.finish_reason) == ("The capital ", "stop")


@pytest.mark.parametrize("count", [4, 12, 16, 64])
def test_many_stop_strings_all_count(daemon: Daemon, count: int) -> None:
    """D9"""
    stops = [f"#{i}" for i in range(count - 1)] + ["O P Q"]
    assert ask(daemon, prompt=ALPHABET, stop=stops, max_tokens=24, **GREEDY).text == " L M N "


def test_too_many_stop_strings_are_refused_with_both_numbers(daemon: Daemon) -> None:
    error = error_of(post(daemon, {"prompt": "a", "stop": ["x"] * 65}))
    assert error["param"] == "stop"
    assert "64" in error["message"]
    assert "65" in error["message"]


@pytest.mark.parametrize("stop", ["", [""], ["", "O P Q"]])
def test_empty_stop_string_is_no_stop_string(daemon: Daemon, stop: str | list[str]) -> None:
    answer = ask(daemon, prompt=ALPHABET, stop=stop, max_tokens=10, **GREEDY)
    assert answer.text == (" L M N " if "O P Q" in stop else " L M N O P Q R S T U")


def test_repeated_characters_do_not_hide_a_stop_string(daemon: Daemon) -> None:
    """A stop string that begins inside of an attempt that failed: "aab" in "aaab"."""
    answer = ask(daemon, prompt="xaaab xaaab xaaab xaaab xaaab xaaab", stop=["aab"], max_tokens=12, **GREEDY)
    assert (answer.text, answer.finish_reason) == (" xa", "stop")
