"""Bodies of llama-server's own API: prompts in all their shapes, samplers, gaps, and what is refused."""

from __future__ import annotations

import json

import pytest

from homeai.errors import InvalidRequest, Unsupported
from homeai.server.api.body import parse_body
from homeai.server.api.llamacpp_bodies import MAX_BIASED_TEXTS, CompletionBody, InfillBody
from homeai.server.infill import SourceFile

GAP = {"input_prefix": "a", "input_suffix": "b"}


def completion(**fields: object) -> CompletionBody:
    return parse_body(json.dumps({"prompt": "x", **fields}).encode(), CompletionBody)


def infill(**fields: object) -> InfillBody:
    return parse_body(json.dumps(GAP | fields).encode(), InfillBody)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("text", [["text"]]),
        ("", [[""]]),
        ([12, 34], [[12, 34]]),
        ([12, "text", 34], [[12, "text", 34]]),
        (["text", 34], [["text", 34]]),
        (["one", "two"], [["one"], ["two"]]),
        (["one", [12, 34]], [["one"], [12, 34]]),
        ([[12, "a"], [34]], [[12, "a"], [34]]),
        ({"prompt_string": "text"}, [["text"]]),
        ({"prompt_string": "text", "multimodal_data": []}, [["text"]]),
    ],
)
def test_prompt_has_all_of_llama_servers_shapes(prompt: object, prompts: object) -> None:
    assert completion(prompt=prompt).prompts() == prompts


@pytest.mark.parametrize("prompt", [{}, 5, True, [[[1]]], [1.5], [-1], [True], ["a", None], {"prompt_string": 5}])
def test_other_prompts_are_refused_by_name(prompt: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        completion(prompt=prompt).prompts()
    assert (caught.value.param or "").startswith("prompt")


@pytest.mark.parametrize(
    ("fields", "max_tokens"),
    [
        ({}, None),
        ({"n_predict": None}, None),
        ({"n_predict": -1}, None),
        ({"n_predict": 0}, 0),
        ({"n_predict": 5, "max_tokens": 9}, 5),
        ({"max_completion_tokens": 7, "max_tokens": 9}, 7),
        ({"max_tokens": 9}, 9),
    ],
)
def test_an_answer_is_as_long_as_the_model_allows_unless_said(fields: dict[str, object], max_tokens: object) -> None:
    assert completion(**fields).ask().max_tokens == max_tokens


def test_samplers_that_are_not_named_are_off() -> None:
    """llama.vim names two: nothing else may change what is drawn."""
    given = {"temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.2, "repeat_penalty": 1.3}
    some = completion(**given, samplers=["top_k", "top_p"]).ask().sampling
    assert (some.top_k, some.top_p, some.min_p, some.temperature, some.repeat_penalty) == (7, 0.9, 0.0, 1.0, 1.0)
    none = completion(**given, samplers=[]).ask().sampling
    assert (none.top_k, none.top_p, none.min_p, none.temperature, none.repeat_penalty) == (0, 1.0, 0.0, 1.0, 1.0)
    usual = completion(**given).ask().sampling
    assert (usual.top_k, usual.temperature, usual.repeat_penalty) == (7, 0.5, 1.3)


def test_a_sampler_that_is_not_done_is_said() -> None:
    body = completion(samplers=["top_k", "infill", "adaptive_p"])
    assert body.notes() == ["not done, of samplers: infill, adaptive_p"]
    assert body.ask().sampling.temperature == 0.0


def test_samplers_may_be_letters() -> None:
    sampling = completion(samplers="kpt", top_k=7, min_p=0.2).ask().sampling
    assert (sampling.top_k, sampling.min_p, sampling.temperature) == (7, 0.0, 0.8)


@pytest.mark.parametrize("samplers", ["kz!", [1], [None], {}, 5])
def test_samplers_are_names_or_letters(samplers: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        completion(samplers=samplers)
    assert (caught.value.param or "").startswith("samplers")


def test_n_cmpl_is_the_number_of_choices() -> None:
    assert completion(n_cmpl=3).ask().n == 3
    assert completion(n=2).ask().n == 2


def test_times_are_seconds_inside() -> None:
    assert completion(t_max_predict_ms=500).ask().max_predict_s == 0.5
    assert completion(t_max_predict_ms=-1, t_max_prompt_ms=500).ask().max_predict_s is None


def test_pictures_in_a_prompt_are_refused() -> None:
    with pytest.raises(Unsupported, match="multimodal_data"):
        completion(prompt={"prompt_string": "a", "multimodal_data": ["AAAA"]})


@pytest.mark.parametrize(
    ("logit_bias", "ids", "texts"),
    [
        ({"5": 1.5}, {5: 1.5}, {}),
        ({"5": False, " a ": -2}, {5: -100}, {" a ": -2}),
        ([[5, 1], [6, False]], {5: 1, 6: -100}, {}),
        ([["Hello", False], ["7", 3.5]], {7: 3.5}, {"Hello": -100}),
        ([], {}, {}),
    ],
)
def test_biases_are_of_tokens_or_texts(logit_bias: object, ids: object, texts: object) -> None:
    body = completion(logit_bias=logit_bias)
    assert (body.logit_bias, body.logit_bias_of_texts) == (ids, texts)


@pytest.mark.parametrize(
    "logit_bias",
    [5, "a", [5], [[5]], [[5, "a"]], [[True, 1]], [[5, 1, 2]], [[None, 1]], {"a": []}, [[5, 101]], {"a": 1e9}],
)
def test_other_biases_are_refused_by_name(logit_bias: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        completion(logit_bias=logit_bias)
    assert (caught.value.param or "").startswith("logit_bias")


def test_adapters_are_refused_unless_there_are_none() -> None:
    assert completion(lora=[]).ask()
    with pytest.raises(Unsupported, match="no adapters"):
        completion(lora=[{"id": 0, "scale": 1.0}])


def test_a_gap_has_a_prefix_a_suffix_and_files() -> None:
    body = infill(prompt="p", input_extra=[{"text": "x", "filename": "a.py", "time": 5}, {"text": "y"}])
    gap = body.gap()
    assert (gap.prefix, gap.suffix, gap.prompt) == ("a", "b", "p")
    assert gap.files == [SourceFile("a.py", "x"), SourceFile("tmp", "y")]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_prefix": None}, "input_prefix"),
        ({"input_suffix": None}, "input_suffix"),
        ({"input_prefix": 5}, "input_prefix"),
        ({"input_suffix": ["a"]}, "input_suffix"),
        ({"prompt": [1]}, "prompt"),
        ({"input_extra": {}}, "input_extra"),
        ({"input_extra": [{"filename": "a"}]}, "input_extra[0].text"),
        ({"input_extra": [{"text": 5}]}, "input_extra[0].text"),
        ({"input_extra": [{"text": "a", "filename": 5}]}, "input_extra[0].filename"),
        ({"n_indent": -1}, "n_indent"),
        ({"n_indent": "4"}, "n_indent"),
        ({"response_fields": "content"}, "response_fields"),
    ],
)
def test_a_gap_that_is_wrong_is_refused_by_name(fields: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        infill(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize("as_pairs", [False, True])
def test_biases_of_very_many_texts_are_refused(as_pairs: bool) -> None:
    """Each text is tokenised."""
    texts = {f"word {index}": 1.0 for index in range(MAX_BIASED_TEXTS)}
    assert len(completion(logit_bias=texts).logit_bias_of_texts) == MAX_BIASED_TEXTS
    more = texts | {"one more": 1.0}
    with pytest.raises(InvalidRequest, match=f"more than {MAX_BIASED_TEXTS} maximum") as caught:
        completion(logit_bias=[*more.items()] if as_pairs else more)
    assert caught.value.param == "logit_bias"
