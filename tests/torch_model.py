"""The default model as a folder of safetensors: dequantised by ggml itself, with the tokenizer of its vocabulary.

Gemma 3's names and shapes only. Written without torch or transformers, in seconds; done once for a folder.
"""

from __future__ import annotations

import ctypes
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp as C
import numpy as np
import numpy.typing as npt
from llama_cpp._ggml import libggml

from homeai.backends.llamacpp.binding import Model
from tests.fim import NAMES as NAMES_OF_GAPS

CONTROL, USER_DEFINED, BYTE = C.LLAMA_TOKEN_ATTR_CONTROL, C.LLAMA_TOKEN_ATTR_USER_DEFINED, C.LLAMA_TOKEN_ATTR_BYTE
BLANK = "▁"
BLOCKS_AT_A_TIME = 512
NUM_WINDOW_LAYERS = 6  # every sixth layer looks at all of the text
BFloat16 = npt.NDArray[np.uint16]  # as bits, one dimension
NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def torch_model(gguf: Path, directory: Path, chat_template: str | None = None) -> Path:
    """The folder in `directory` that says the same as `gguf`, in bfloat16."""
    folder = directory / gguf.stem
    if not (folder / "tokenizer.json").exists():
        folder.mkdir(parents=True)
        model = Model(gguf, vocab_only=True)
        config = _config(model)
        _write_json(folder / "config.json", config)
        _write_json(folder / "generation_config.json", {"bos_token_id": 2, "eos_token_id": [1, 106, 212]})
        _write_json(folder / "tokenizer_config.json", _tokenizer_config(chat_template))
        _write_safetensors(folder / "model.safetensors", _tensors(gguf), config)
        _write_json(folder / "tokenizer.json", _tokenizer(model))
        model.close()
    return folder


def in_float32(folder: Path, directory: Path) -> Path:
    """The folder with settings of its own: the same numbers, computed with in float32."""
    copy = directory / folder.name
    copy.mkdir()
    for path in folder.iterdir():
        if path.name == "config.json":
            _write_json(copy / path.name, json.loads(path.read_text()) | {"dtype": "float32"})
        else:
            (copy / path.name).symlink_to(path)
    return copy


def fim_torch_model(folder: Path, directory: Path) -> Path:
    """A copy of the folder whose model fills gaps: `fim_model`'s names."""
    copy = directory / "fills-gaps"
    copy.mkdir()
    for path in folder.iterdir():
        if path.name == "tokenizer.json":
            tokenizer = path.read_bytes()
            for old, new in NAMES_OF_GAPS.items():
                tokenizer = tokenizer.replace(json.dumps(old.decode()).encode(), json.dumps(new.decode()).encode())
            (copy / path.name).write_bytes(tokenizer)
        else:
            (copy / path.name).symlink_to(path)
    return copy


def _write_json(path: Path, tree: dict[str, Any]) -> None:
    path.write_text(json.dumps(tree, ensure_ascii=False), encoding="utf-8")


# ---- settings -----------------------------------------------------------------------------------------


def _config(model: Model) -> dict[str, Any]:
    def number(key: str) -> int:
        return int(model.meta(f"gemma3.{key}") or 0)

    num_layers = number("block_count")
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "dtype": "bfloat16",
        "hidden_size": number("embedding_length"),
        "intermediate_size": number("feed_forward_length"),
        "num_hidden_layers": num_layers,
        "num_attention_heads": number("attention.head_count"),
        "num_key_value_heads": number("attention.head_count_kv"),
        "head_dim": number("attention.key_length"),
        "query_pre_attn_scalar": number("attention.key_length"),
        "max_position_embeddings": number("context_length"),
        "sliding_window": number("attention.sliding_window"),
        "layer_types": [
            "sliding_attention" if (layer + 1) % NUM_WINDOW_LAYERS else "full_attention" for layer in range(num_layers)
        ],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": float(model.meta("gemma3.rope.freq_base") or 0)},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
        "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "tie_word_embeddings": True,
        "vocab_size": model.vocab.n_tokens,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }


def _tokenizer_config(chat_template: str | None) -> dict[str, Any]:
    named = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}
    template = {} if chat_template is None else {"chat_template": chat_template}
    return {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": True, **named, **template}


# ---- weights ------------------------------------------------------------------------------------------


class _Traits(ctypes.Structure):
    """ggml_type_traits, as far as it is needed."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    )


class _Params(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


def _tensors(gguf: Path) -> Iterator[tuple[str, BFloat16]]:
    """Under the names that transformers gives them. A GGUF's norms are stored with 1 added."""
    declare = {
        "gguf_init_from_file": (ctypes.c_void_p, [ctypes.c_char_p, _Params]),
        "gguf_free": (None, [ctypes.c_void_p]),
        "gguf_get_n_tensors": (ctypes.c_int64, [ctypes.c_void_p]),
        "gguf_get_data_offset": (ctypes.c_size_t, [ctypes.c_void_p]),
        "gguf_get_tensor_name": (ctypes.c_char_p, [ctypes.c_void_p, ctypes.c_int64]),
        "gguf_get_tensor_type": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int64]),
        "gguf_get_tensor_offset": (ctypes.c_size_t, [ctypes.c_void_p, ctypes.c_int64]),
        "gguf_get_tensor_size": (ctypes.c_size_t, [ctypes.c_void_p, ctypes.c_int64]),
        "ggml_get_type_traits": (ctypes.POINTER(_Traits), [ctypes.c_int]),
    }
    call = {}
    for name, (result, arguments) in declare.items():
        call[name] = ctypes.CFUNCTYPE(result, *arguments)((name, libggml))
    file = np.memmap(gguf, np.uint8, "r")
    handle = call["gguf_init_from_file"](str(gguf).encode(), _Params(True, None))
    start = call["gguf_get_data_offset"](handle)
    for index in range(call["gguf_get_n_tensors"](handle)):
        name = call["gguf_get_tensor_name"](handle, index).decode()
        traits = call["ggml_get_type_traits"](call["gguf_get_tensor_type"](handle, index)).contents
        offset = start + call["gguf_get_tensor_offset"](handle, index)
        data = file[offset : offset + call["gguf_get_tensor_size"](handle, index)]
        yield _name(name), _rounded(data, traits, -1.0 if "norm" in name else 0.0)
    call["gguf_free"](handle)


def _rounded(data: npt.NDArray[np.uint8], traits: _Traits, added: float) -> BFloat16:
    """To the nearest; some 100,000 values at a time, which stay in the processor's cache."""
    step = BLOCKS_AT_A_TIME * traits.type_size
    values = np.empty(BLOCKS_AT_A_TIME * traits.blck_size, np.float32)
    rounded = np.empty(data.size // traits.type_size * traits.blck_size, "<u2")
    for start in range(0, data.size, step):
        part = np.ascontiguousarray(data[start : start + step])
        out = values[: part.size // traits.type_size * traits.blck_size]
        if traits.is_quantized:
            traits.to_float(part.ctypes.data, out.ctypes.data, out.size)
        else:
            out[:] = part.view(np.float32)
        out += added
        bits = out.view(np.uint32)
        bits += 0x7FFF + ((bits >> 16) & 1)
        first = start // traits.type_size * traits.blck_size
        rounded[first : first + out.size] = bits >> 16
    return rounded


def _name(name: str) -> str:
    if name in NAMES:
        return NAMES[name]
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{NAMES[part]}.weight"


def _write_safetensors(path: Path, tensors: Iterator[tuple[str, BFloat16]], config: dict[str, Any]) -> None:
    widths = {
        "mlp.down_proj": config["intermediate_size"],
        "self_attn.o_proj": config["num_attention_heads"] * config["head_dim"],
    }
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position, data = 0, []
    for name, values in tensors:
        width = next((w for part, w in widths.items() if part in name), config["hidden_size"])
        header[name] = {
            "dtype": "BF16",
            "shape": [values.size] if "norm" in name else [values.size // width, width],
            "data_offsets": [position, position + values.nbytes],
        }
        position += values.nbytes
        data.append(values)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for part in data:
            part.tofile(file)


# ---- vocabulary ---------------------------------------------------------------------------------------


def _tokenizer(model: Model) -> dict[str, Any]:
    """A sentencepiece vocabulary as merges: any two pieces that make a third one, the best third one first."""
    vocab = C.llama_model_get_vocab(model.handle)
    ids = range(model.vocab.n_tokens)
    texts = [C.llama_vocab_get_text(vocab, i).decode() for i in ids]
    kinds = [C.llama_vocab_get_attr(vocab, i) for i in ids]
    scores = [C.llama_vocab_get_score(vocab, i) for i in ids]
    plain = {texts[i]: i for i in ids if kinds[i] == C.LLAMA_TOKEN_ATTR_NORMAL}
    merges = sorted(
        (-scores[i], plain[text[:n]], plain[text[n:]], text[:n], text[n:])
        for text, i in plain.items()
        for n in range(1, len(text))
        if text[:n] in plain and text[n:] in plain
    )
    added = [
        {
            "id": i,
            "content": texts[i],
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
            "special": not kinds[i] & USER_DEFINED,
        }
        for i in ids
        if kinds[i] & ~(C.LLAMA_TOKEN_ATTR_NORMAL | BYTE)
    ]
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": BLANK},
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": BLANK}, "content": " "},
                *({"type": "ByteFallback"}, {"type": "Fuse"}),
            ],
        },
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {text: i for i, text in enumerate(texts)},
            "merges": [[left, right] for *_, left, right in merges],
        },
    }
