"""A model's folder, as Hugging Face's hub has it: what its small files say. Imports neither torch nor transformers."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec

from homeai.errors import ModelLoadError
from homeai.model_card import ModelCard, Value
from homeai.model_digest import model_digest
from homeai.safetensors_files import Tensor, tensors

Tree = Mapping[str, object]

LARGEST_FILE_BYTES: Final = 64 * 1024 * 1024  # of JSON: what is larger is none of these files
GGUF_NAMES: Final = {  # what a GGUF calls it
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "sliding_window": "attention.sliding_window",
    "vocab_size": "vocab_size",
}
POOLINGS: Final = {  # as sentence-transformers says it; its name, and the number that a GGUF has for it
    "pooling_mode_mean_tokens": ("mean", 1),
    "pooling_mode_cls_token": ("cls", 2),
    "pooling_mode_lasttoken": ("last", 3),
}


class ModelFolder:
    """Files are read when they are asked for, once. Raises `ModelLoadError` for what cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def config(self) -> Tree:
        config = self._json("config.json")
        if config is None:
            raise ModelLoadError(f"cannot load {self.path.name}: {self.path / 'config.json'} does not exist")
        return config

    @cached_property
    def text_config(self) -> Tree:
        """The language model's part of `config.json`: all of it, where the model does nothing else."""
        part = self.config.get("text_config")
        return {**self.config, **part} if isinstance(part, dict) else self.config

    @cached_property
    def generation_config(self) -> Tree:
        return self._json("generation_config.json") or {}

    @cached_property
    def tokenizer_config(self) -> Tree:
        return {**(self._json("special_tokens_map.json") or {}), **(self._json("tokenizer_config.json") or {})}

    @cached_property
    def chat_template(self) -> str | None:
        """A file of its own, else what the tokenizer's or the processor's settings have; of several the default."""
        path = self.path / "chat_template.jinja"
        if path.is_file():
            return _read(path).decode("utf-8", "replace")
        template = self.tokenizer_config.get("chat_template")
        if template is None:
            template = (self._json("chat_template.json") or {}).get("chat_template")
        if isinstance(template, list):
            named = {str(one.get("name")): one.get("template") for one in template if isinstance(one, dict)}
            template = named.get("default", next(iter(named.values()), None))
        return template if isinstance(template, str) else None

    @cached_property
    def poolings(self) -> list[str]:
        """What of a text's tokens its vector is made of, in the words of sentence-transformers; mostly unsaid."""
        said = self._json("1_Pooling/config.json") or {}
        return [key for key, value in said.items() if key.startswith("pooling_mode_") and value is True]

    @property
    def has_dense_layers(self) -> bool:
        """Behind the pooling, in folders of their own."""
        return any(self.path.glob("*_Dense"))

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        return tensors(self.path)

    @property
    def n_ctx_train(self) -> int:
        """0 if unsaid."""
        return _integer(self.text_config.get("max_position_embeddings"))

    @property
    def n_vocab(self) -> int:
        """As many as a row of logits has; 0 if unsaid."""
        return _integer(self.text_config.get("vocab_size"))

    def named_text(self, key: str) -> str | None:
        """Of a special token, such as `bos_token`."""
        value = self.tokenizer_config.get(key)
        value = value.get("content") if isinstance(value, dict) else value
        return value if isinstance(value, str) else None

    def named_ids(self, key: str) -> Iterator[int]:
        """Such as `eos_token_id`, wherever it is said: one id, or a list."""
        for said in (self.generation_config, self.config, self.text_config):
            value = said.get(key)
            yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, int))

    def card(self) -> ModelCard:
        weights = sorted(self.path.glob("*.safetensors"))
        stats = [path.stat() for path in weights]
        architecture = str(self.config.get("model_type", "unknown"))
        return ModelCard(
            file_format="safetensors",
            architecture=architecture,
            quantization=self._quantization(),
            num_params=sum(tensor.num_values for tensor in self.tensors.values()),
            size_bytes=sum(stat.st_size for stat in stats),
            modified_at=datetime.datetime.fromtimestamp(max(stat.st_mtime for stat in stats), datetime.UTC),
            digest=self._digest(weights),
            metadata=self._metadata(architecture),
        )

    def _quantization(self) -> str:
        method = self.config.get("quantization_config")
        if isinstance(method, dict) and isinstance(name := method.get("quant_method"), str):
            return name.upper()
        sizes: dict[str, int] = {}
        for tensor in self.tensors.values():
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.num_bytes
        return max(sizes, key=lambda dtype: sizes[dtype], default="unknown")

    def _digest(self, weights: list[Path]) -> str:
        digest = hashlib.sha256(_read(self.path / "config.json"))
        for path in weights:
            digest.update(f"{path.name} {model_digest(path, path.stat().st_size)}".encode())
        return digest.hexdigest()

    def _metadata(self, architecture: str) -> dict[str, Value]:
        said = {
            f"{architecture}.{name}": value
            for key, name in GGUF_NAMES.items()
            if isinstance(value := self.text_config.get(key), int | float)
        }
        if len(self.poolings) == 1 and self.poolings[0] in POOLINGS:
            said[f"{architecture}.pooling_type"] = POOLINGS[self.poolings[0]][1]
        return {"general.architecture": architecture, "general.name": self.path.name, **said}

    def _json(self, name: str) -> Tree | None:
        """None where there is no such file."""
        path = self.path / name
        if not path.is_file():
            return None
        try:
            tree = msgspec.json.decode(_read(path))
        except msgspec.DecodeError as error:
            raise ModelLoadError(f"cannot load {self.path.name}: {path} is not JSON: {error}") from None
        if not isinstance(tree, dict):
            raise ModelLoadError(f"cannot load {self.path.name}: {path} is not a JSON object")
        return tree


def _read(path: Path) -> bytes:
    try:
        if (size := path.stat().st_size) > LARGEST_FILE_BYTES:
            raise ModelLoadError(f"{path} has {size} bytes; at most {LARGEST_FILE_BYTES} are read")
        return path.read_bytes()
    except OSError as error:
        raise ModelLoadError(f"cannot read {path}: {error.strerror}") from None


def _integer(value: object) -> int:
    return value if isinstance(value, int) else 0
