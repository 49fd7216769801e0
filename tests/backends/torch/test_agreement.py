"""The default model, dequantised: torch and llama.cpp say the same with the same weights.

With quantised weights llama.cpp quantises activations too, to 8 bits, which alone turns one likeliest token in twenty
into its close second (docs/torch-backend.md): there it has the weights of the folder, in bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import llama_cpp
import pytest

from homeai.backends.llamacpp.runner import load as load_gguf
from homeai.backends.torch.load import load as load_folder
from homeai.backends.torch.vocab import load_vocabulary
from homeai.engine.runner import LoadedRunner
from homeai.request import Request, SamplingParams
from homeai.scheduling.plan import Chunk, StepPlan
from tests.engine.factories import create_engine_config

AGREEMENT = 0.95
NUM_TOKENS = 48  # of each text
TEXTS = [
    "The lighthouse stood at the end of a narrow road, where the land gave way to the sea. Every evening the keeper "
    "climbed its two hundred steps, lit the lamp and wrote down the weather in a small green book. In winter the "
    "storms came from the north, and for days at a time nobody could cross the bridge to the village. He did not mind. "
    "He had enough flour, a good stove and a radio that spoke to him in several languages.",
    "Photosynthesis is the process by which plants, algae and some bacteria turn light into chemical energy. In the "
    "leaves, a green pigment called chlorophyll absorbs red and blue light. Water is taken up by the roots, carbon "
    "dioxide enters through small openings, and oxygen is given off. The sugar that is made in this way feeds the "
    "plant itself, and in the end nearly every animal on Earth.",
    "To make the bread, mix five hundred grams of flour with a teaspoon of salt and a little yeast. Add three hundred "
    "millilitres of warm water and stir until there is no dry flour left. Cover the bowl with a cloth and let it stand "
    "overnight. The next morning, fold the dough a few times, shape it into a ball and let it rest for another hour "
    "while the oven gets as hot as it can.",
    "Im Jahr 1903 gelang den Brüdern Wright der erste gesteuerte Flug mit einem motorgetriebenen Flugzeug. Der Flug "
    "dauerte nur zwölf Sekunden und führte über eine Strecke von etwa siebenunddreißig Metern. Viele Zeitungen "
    "berichteten zunächst nicht darüber, weil sie die Nachricht nicht glaubten. Erst einige Jahre später wurde klar, "
    "wie sehr diese Erfindung die Welt verändern würde.",
]


def likeliest(runner: LoadedRunner, texts: list[list[int]]) -> list[list[int]]:
    """After each token of each text, with the text forced; all texts at once."""
    for number, text in enumerate(texts):
        runner.add(Request(str(number), text, SamplingParams(temperature=0.0, max_tokens=len(text), ignore_eos=True)))
    found: list[list[int]] = [[] for _ in texts]
    for position in range(len(texts[0])):
        chunks = [Chunk(str(number), number, position, 1, 1) for number in range(len(texts))]
        result = runner.execute(StepPlan(kv_ops=[], chunks=chunks))
        for number, tokens in enumerate(result.sampled):
            found[number].append(tokens[0].token_id)
    return found


@pytest.fixture(scope="module")
def forced(torch_path: Path) -> list[list[int]]:
    vocabulary = load_vocabulary(torch_path)
    return [vocabulary.encode_prompt(text)[:NUM_TOKENS] for text in TEXTS]


@pytest.fixture(scope="module")
def bf16_path(gguf_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The default model's file with all weights in bfloat16."""
    path = tmp_path_factory.mktemp("bf16") / "bf16.gguf"
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = llama_cpp.LLAMA_FTYPE_MOSTLY_BF16, True, 2
    assert llama_cpp.llama_model_quantize(str(gguf_path).encode(), str(path).encode(), params) == 0
    yield path
    path.unlink()  # half a gigabyte


def test_likeliest_tokens_are_those_of_llama_cpp(bf16_path: Path, torch_path: Path, forced: list[list[int]]) -> None:
    assert {len(text) for text in forced} == {NUM_TOKENS}
    wanted = {"num_kv_cells": 1024, "max_num_seqs": len(TEXTS), "num_threads": 1}
    answers = []
    for path, load in (
        (bf16_path, load_gguf),
        (torch_path, lambda config, on_progress: load_folder(torch_path, config, on_progress)),
    ):
        runner = load(create_engine_config(path, **wanted), lambda fraction: None)
        answers.append(likeliest(runner, forced))
        runner.close()
    pairs = [pair for texts in zip(*answers, strict=True) for pair in zip(*texts, strict=True)]
    agreement = sum(one == other for one, other in pairs) / len(pairs)
    assert agreement >= AGREEMENT, f"{agreement:.1%} of {len(pairs)} positions"
