"""Which backend a model is for, by what its path holds. Nothing of a backend is imported before it is known.

llamacpp    a GGUF file
torch       a folder with config.json and *.safetensors, as Hugging Face's hub has them
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from homeai.errors import ConfigError, ModelLoadError

if TYPE_CHECKING:
    from homeai.config import Config
    from homeai.memory_plan import Plan
    from homeai.messages import EngineConfig
    from homeai.vocabulary import Vocabulary

Backend = Literal["llamacpp", "torch"]

TORCH_NEEDS: Final = ("torch", "transformers", "safetensors", "tokenizers")
INSTALL_TORCH: Final = "pip install 'homeai[torch]'"
UNUSED: Final[Mapping[Backend, Mapping[str, str]]] = {  # and what the backend does instead
    "llamacpp": {"model.gpu_memory_utilization": "leaves model.memory_margin of each memory free"},
    "torch": {
        "model.n_gpu_layers": "has all layers on one device",
        "model.flash_attention": "takes the fastest attention that is there",
        "model.kv_type": "keeps keys and values in the type of the weights",
        "scheduler.kv_layout": "has one pool of blocks for all",
    },
}
WHAT_FITS: Final = "a GGUF file is for llamacpp, a folder with config.json and *.safetensors for torch"


def backend_of(path: Path, wanted: str = "auto") -> Backend:
    """Raises `ModelLoadError` for a path that no backend, or not the wanted one, can load.

    What is in a file is not looked at: llama.cpp says itself what it does not like.
    """
    if path.is_dir():
        held: Backend | None = "torch" if _is_torch_folder(path) else None
        what = "a folder with config.json and *.safetensors" if held else _lacking(path)
    elif path.suffix.lower() == ".safetensors":
        held, what = None, "one of a model's files; name the folder that it is in"
    else:
        held, what = "llamacpp", "a file"
    if held is None or wanted not in ("auto", held):
        setting = "" if wanted == "auto" else f" (model.backend is {wanted})"
        raise ModelLoadError(f"cannot load {path.name}{setting}: {path} is {what}; {WHAT_FITS}")
    return held


def checked(config: Config, path: Path | None) -> Backend:
    """Of the model at `path`, None where it is the default one; before anything is started.

    Raises `ConfigError`, also for a backend that is not installed.
    """
    wanted = config.model.backend
    try:
        backend = backend_of(path, wanted) if path is not None else _of_default(wanted)
    except ModelLoadError as error:
        raise ConfigError(f"model.path: {error}") from None
    check_installed(backend)
    return backend


def unused(config: Config, backend: Backend) -> list[str]:
    """Settings that say something, but not to this backend: a sentence each."""
    default = type(config)()
    return [
        f"{key} {_value(config, key)} has no effect: the {backend} backend {instead}"
        for key, instead in UNUSED[backend].items()
        if _value(config, key) != _value(default, key)
    ]


def check_installed(backend: str) -> None:
    """Raises `ConfigError` with what to type. Imports nothing."""
    if backend == "torch" and (missing := [name for name in TORCH_NEEDS if find_spec(name) is None]):
        raise ConfigError(f"the torch backend needs {', '.join(missing)}, not installed here: {INSTALL_TORCH}")


def load_vocabulary(path: Path, wanted: str = "auto") -> Vocabulary:
    """The tokenizer alone. Raises `ModelLoadError`."""
    if backend_of(path, wanted) == "torch":
        try:
            check_installed("torch")
        except ConfigError as error:
            raise ModelLoadError(f"cannot load {path.name}: {error}") from None
        from homeai.backends.torch.vocab import load_vocabulary as of_folder

        return of_folder(path)
    from homeai.backends.llamacpp.vocab import load_vocabulary as of_file

    return of_file(path)


def preview(config: EngineConfig) -> Plan:
    """What loading it would take now. Raises what a load would."""
    if backend_of(Path(config.model_path), config.backend) == "torch":
        from homeai.backends.torch.fitting import preview as of_folder

        return of_folder(config)
    from homeai.backends.llamacpp.runner import preview as of_file

    return of_file(config)


def model_name(path: Path) -> str:
    """What people call the model at `path`: the file's name without its ending, or the folder's."""
    return path.name if path.is_dir() else path.stem


def _is_torch_folder(path: Path) -> bool:
    return (path / "config.json").is_file() and any(path.glob("*.safetensors"))


def _lacking(path: Path) -> str:
    if any(path.glob("*.gguf")):
        return "a folder; name the GGUF file in it"
    missing = [name for name in ("config.json", "*.safetensors") if not any(path.glob(name))]
    return f"a folder without {' and '.join(missing)}"


def _of_default(wanted: str) -> Backend:
    if wanted == "torch":
        raise ModelLoadError(
            f"it is not set, and the default model is a GGUF file (model.backend is torch); {WHAT_FITS}"
        )
    return "llamacpp"


def _value(config: Config, key: str) -> object:
    return reduce(getattr, key.split("."), config)
