"""The resident model as Ollama's clients look at models: /api/tags, /api/ps, /api/show."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Final

from homeai.messages import EngineReady
from homeai.server.api.ollama_answers import timestamp
from homeai.server.api.respond import Value
from homeai.server.text import Text

NEVER: Final = "2318-01-01T00:00:00+00:00"  # what Ollama says of a model that stays
SCALES: Final = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))


def tags(text: Text | None) -> Value:
    """Empty until the file is read."""
    return {"models": [_model(text)] if text else []}


def running(text: Text | None, ready: EngineReady | None, expires_in_s: float | None = None) -> Value:
    """Empty unless the model is resident. `expires_in_s`: when it leaves if nobody asks; None: it stays."""
    if text is None or ready is None:
        return {"models": []}
    num_bytes = ready.model_bytes + ready.kv_bytes
    model = _model(text)
    del model["modified_at"]
    sizes: Value = {
        "size": num_bytes,
        "size_vram": num_bytes if ready.device == "cuda" else 0,
        "expires_at": NEVER if expires_in_s is None else timestamp(_after(expires_in_s)),
        "context_length": text.max_model_len,
    }
    return {"models": [model | sizes]}


def _after(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def show(text: Text) -> Value:
    card = text.card
    return {
        "modelfile": f"# served by homeai\nFROM {text.name}\nPARAMETER num_ctx {text.max_model_len}\n",
        "parameters": _parameters(text),
        "template": _template(text),
        "details": _details(text),
        "model_info": dict(card.metadata) | {"general.parameter_count": card.num_params},
        "capabilities": capabilities(text),
        "modified_at": timestamp(card.modified_at),
    }


def capabilities(text: Text) -> list[str]:
    optional = {"insert": text.fills_gaps, "thinking": text.can_think}
    return ["completion", "tools", *(name for name, is_there in optional.items() if is_there)]


def _model(text: Text) -> Value:
    card = text.card
    return {
        "name": text.name,
        "model": text.name,
        "modified_at": timestamp(card.modified_at),
        "size": card.size_bytes,
        "digest": card.digest,
        "details": _details(text),
    }


def _details(text: Text) -> Value:
    card = text.card
    return {
        "parent_model": "",
        "format": card.file_format,
        "family": card.architecture,
        "families": [card.architecture],
        "parameter_size": parameter_size(card.num_params),
        "quantization_level": card.quantization,
    }


def parameter_size(num_params: int) -> str:
    """As Ollama writes it: "268.10M", "7.6B"."""
    for scale, unit in SCALES:
        if num_params >= scale:
            return f"{num_params / scale:.{2 if unit == 'M' else 1}f}{unit}"
    return str(num_params)


def _parameters(text: Text) -> str:
    """A line for each, name and value, which clients read."""
    stops = [f"stop{' ' * 27}{json.dumps(stop)}" for stop in text.default_stop]
    return "\n".join([f"num_ctx{' ' * 24}{text.max_model_len}", *stops])


def _template(text: Text) -> str:
    """A sketch in Ollama's language: what clients look for is which of its variables are there."""
    gap = "{{ if .Suffix }}{{ .Prompt }}{{ .Suffix }}{{ else }}" if text.fills_gaps else ""
    turns = "{{ if .System }}{{ .System }}\n{{ end }}{{ if .Tools }}{{ .Tools }}\n{{ end }}{{ .Prompt }}"
    return f"{gap}{turns}{{{{ end }}}}" if gap else turns
