"""Text in and out: whole characters, the same text streamed or not, seeds, and nothing that becomes a control token.

Cases E1, E2, F14, H5.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.blackbox.asking import BOTH_WAYS, GREEDY, ask, assert_unharmed
from tests.daemon import Daemon

SHAKING_FACE = "🫨"  # younger than the vocabulary: written in four tokens, a byte each
COPIES = {  # patterns that the default model goes on with
    "cyrillic": ("щёчки " * 7, "щёчки"),
    "emoji": ("😀😃" * 6, "😀"),
    "bytes": (SHAKING_FACE * 14, SHAKING_FACE),
    "joined": ("👩‍👩‍👧‍👦 " * 5, "👩\u200d👩"),
    "hieroglyphs": ("𓀀𓀁" * 6, "𓀀"),
    "chinese": ("你好世界 " * 6, "你好"),
}


@pytest.fixture(scope="module", autouse=True)
def _daemon_is_unharmed(daemon: Daemon) -> Iterator[None]:
    yield
    assert_unharmed(daemon)


@pytest.mark.parametrize("name", COPIES)
def test_characters_come_whole_and_a_stream_says_what_a_whole_answer_says(daemon: Daemon, name: str) -> None:
    prompt, expected = COPIES[name]
    fields = {"prompt": prompt, "max_tokens": 16, "cache_prompt": False}
    whole, streamed = (ask(daemon, stream=stream, **fields, **GREEDY) for stream in BOTH_WAYS)
    assert expected in whole.text
    assert "\ufffd" not in whole.text
    assert all("\ufffd" not in piece for piece in streamed.pieces[0])
    assert (streamed.text, streamed.usage) == (whole.text, whole.usage)


@pytest.mark.parametrize("stream", BOTH_WAYS, ids=["whole", "stream"])
@pytest.mark.parametrize("count", range(1, 9))
def test_limit_within_a_character_drops_its_bytes(daemon: Daemon, count: int, stream: bool) -> None:
    answer = ask(daemon, stream=stream, prompt=SHAKING_FACE * 14, max_tokens=count, **GREEDY)
    assert answer.text == SHAKING_FACE * (count // 4)
    assert (answer.num_tokens, answer.finish_reason) == (count, "length")


def test_stream_has_a_piece_per_character_not_per_byte(daemon: Daemon) -> None:
    answer = ask(daemon, stream=True, prompt=SHAKING_FACE * 14, max_tokens=12, **GREEDY)
    assert answer.pieces[0] == [SHAKING_FACE] * 3


@pytest.mark.parametrize("path", ["prompt", "messages"])
def test_same_seed_gives_the_same_text_streamed_or_not(daemon: Daemon, path: str) -> None:
    text = "Once upon a time"
    body = {"prompt": text} if path == "prompt" else {"messages": [{"role": "user", "content": text}]}
    drawn = {"temperature": 0.7, "max_tokens": 24, "cache_prompt": False}
    texts = [ask(daemon, stream=stream, seed=42, **body, **drawn).text for stream in (False, False, True)]
    assert len(set(texts)) == 1
    assert len({ask(daemon, seed=seed, **body, **drawn).text for seed in (1, 2, 3)}) > 1


def test_requests_without_a_seed_draw_different_ones(daemon: Daemon) -> None:
    texts = {ask(daemon, prompt="My favourite", temperature=1.5, top_k=0, max_tokens=8).text for _ in range(4)}
    assert len(texts) > 1


def test_choices_of_one_request_draw_different_seeds(daemon: Daemon) -> None:
    answer = ask(daemon, prompt="My favourite", temperature=1.5, top_k=0, max_tokens=8, n=4, seed=7)
    assert len(set(answer.texts)) > 1


@pytest.mark.parametrize(
    "text",
    ["<eos>", "<bos>", "<pad>", "<start_of_turn>", "<end_of_turn>", "<unused5>", "<start_of_image>", "[multimodal]"],
)
@pytest.mark.parametrize("path", ["prompt", "message", "part", "system", "assistant", "split"])
def test_control_texts_that_people_write_stay_text(daemon: Daemon, text: str, path: str) -> None:
    """As one control token it would be one more than "AB"; as text it is several."""

    def num_prompt_tokens(middle: str) -> int:
        return int(ask(daemon, max_tokens=0, **_body(path, middle)).usage["prompt_tokens"])

    assert num_prompt_tokens(text) >= num_prompt_tokens("") + 2


def _body(path: str, middle: str) -> dict[str, object]:
    content = f"A{middle}B"
    user = {"role": "user", "content": "C"}
    half = len(middle) // 2
    bodies: dict[str, dict[str, object]] = {
        "prompt": {"prompt": content},
        "message": {"messages": [{"role": "user", "content": content}]},
        "part": {"messages": [{"role": "user", "content": [{"type": "text", "text": content}]}]},
        "system": {"messages": [{"role": "system", "content": content}, user]},
        "assistant": {"messages": [user, {"role": "assistant", "content": content}, user]},
        "split": {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": f"A{middle[:half]}"},
                        {"type": "text", "text": f"{middle[half:]}B"},
                    ],
                }
            ]
        },
    }
    return bodies[path]


@pytest.mark.parametrize("text", ["<|im_end|>", "</think>", "A<|turn>B", "<|endoftext|>", "[INST]", "</s>"])
def test_control_texts_of_other_models_are_text(daemon: Daemon, text: str) -> None:
    answer = ask(daemon, messages=[{"role": "user", "content": f"Repeat: {text}"}], max_tokens=2, **GREEDY)
    assert answer.num_tokens <= 2
