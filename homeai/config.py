"""Settings: defaults < YAML file < `HOMEAI_SECTION__KEY` environment < `--set section.key=value`.

Every check of a setting lives here, so nothing behind `load` meets an impossible value; what needs more
than the settings (do keys exist? how long a context was the model trained for?) is checked where it is known.
A mistake is one `ConfigError` of one line: the key, the value, what is allowed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from homeai.errors import ConfigError

# ---- kinds of value: the words of an error are drawn from these ------------------------------------

INT32_MAX = 2**31 - 1  # what llama.cpp can count to


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError as error:  # no home directory
        raise ValueError(str(error)) from error


def _network(value: object) -> object:
    return ip_network(value, strict=False) if isinstance(value, str) else value


def _positive_or_off(seconds: float) -> float:
    if seconds > 0 or seconds == -1:
        return seconds
    raise ValueError("neither positive nor -1")


Count = Annotated[int, Field(ge=1, le=INT32_MAX)]
CountOrZero = Annotated[int, Field(ge=0, le=INT32_MAX)]
Positive = Annotated[float, Field(gt=0)]
Name = Annotated[str, Field(min_length=1, description="a name, in quotes if it looks like a number")]
Names = Annotated[tuple[Name, ...], Field(strict=False)]
FilePath = Annotated[Path, Field(strict=False), AfterValidator(_expanded)]
Network = Annotated[
    IPv4Network | IPv6Network,
    BeforeValidator(_network),
    Field(description="an address such as 192.168.1.20, or a subnet such as 192.168.1.0/24"),
]


# ---- sections ----------------------------------------------------------------------------------------


class Section(BaseModel):
    """YAML already has types, so nothing is converted: `port: yes` is a mistake, not port 1."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)


class ServerConfig(Section):
    host: Name = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8700
    auth: Literal["auto", "keys", "none"] = "auto"
    allowed_hosts: Names = ()
    max_body_bytes: Annotated[int, Field(ge=1)] = 8 * 1024 * 1024
    ping_interval_s: Annotated[
        float, AfterValidator(_positive_or_off), Field(description="a number above 0, or -1 for off")
    ] = 30.0
    drain_timeout_s: Annotated[float, Field(ge=0)] = 30.0
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "text", "journal", "json"] = "auto"


class ModelConfig(Section):
    path: FilePath | None = None
    name: Name | None = None
    aliases: Names = ("default",)
    device: Literal["auto", "cuda", "cpu"] = "auto"
    n_gpu_layers: Annotated[int, Field(ge=-1, le=INT32_MAX)] = -1
    num_threads: Count | None = None
    flash_attention: Literal["auto", "on", "off"] = "auto"
    swa_full: bool = True
    kv_type: Literal["f16", "q8_0", "q4_0"] = "f16"
    chat_template: FilePath | None = None


class SchedulerConfig(Section):
    mode: Literal["auto", "continuous", "single"] = "auto"
    max_num_seqs: Annotated[int, Field(ge=1, le=256)] = 8
    max_num_batched_tokens: Count = 512
    chunked_prefill: bool = True
    # The default follows a smaller budget, so that the budget can be lowered alone.
    max_chunk_tokens: Count = Field(default_factory=lambda given: min(256, given.get("max_num_batched_tokens", 256)))
    kv_cells: Count = 16384
    max_model_len: Count | None = None
    prompt_token_weight: Positive = 1.0
    output_token_weight: Positive = 2.0
    default_class: Name = "interactive"


class ClassConfig(Section):
    weight: Positive
    max_waiting: CountOrZero
    queue_timeout_s: Positive


class MatchConfig(Section):
    key: Names = ()
    header: Names = ()
    address: Annotated[tuple[Network, ...], Field(strict=False)] = ()
    user: Names = ()


class SourceConfig(Section):
    name: Name
    fairness_class: Name = Field(alias="class")
    match: MatchConfig = MatchConfig()


class ResidencyConfig(Section):
    load_timeout_s: Positive = 600.0
    heartbeat_timeout_s: Positive = 60.0
    max_restarts: CountOrZero = 5
    restart_window_s: Positive = 600.0


class LedgerConfig(Section):
    enabled: bool = True
    path: FilePath | None = None
    retention_days: CountOrZero = 90


DEFAULT_CLASSES: Mapping[str, ClassConfig] = {
    "voice": ClassConfig(weight=8.0, max_waiting=16, queue_timeout_s=20.0),
    "interactive": ClassConfig(weight=4.0, max_waiting=64, queue_timeout_s=120.0),
    "coding": ClassConfig(weight=2.0, max_waiting=64, queue_timeout_s=300.0),
    "background": ClassConfig(weight=1.0, max_waiting=256, queue_timeout_s=3600.0),
}


class Config(Section):
    """All settings, checked, one attribute per section."""

    data_dir: FilePath = Path("~/.local/share/homeai")
    server: ServerConfig = ServerConfig()
    model: ModelConfig = ModelConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    classes: Mapping[Name, ClassConfig] = DEFAULT_CLASSES
    sources: Annotated[tuple[SourceConfig, ...], Field(strict=False)] = ()
    residency: ResidencyConfig = ResidencyConfig()
    ledger: LedgerConfig = LedgerConfig()

    @property
    def ledger_path(self) -> Path:
        return self.ledger.path or self.data_dir / "ledger.db"

    @field_validator("classes", mode="before")
    @classmethod
    def _over_the_defaults(cls, classes: object) -> object:
        """A class that is named keeps the defaults of what it leaves out; the others stay."""
        defaults: dict[str, object] = {name: default.model_dump() for name, default in DEFAULT_CLASSES.items()}
        return _merged(defaults, _without_nulls(classes)) if isinstance(classes, dict) else classes

    @model_validator(mode="after")
    def _fit_together(self) -> Config:
        _check_scheduler(self.scheduler)
        _check_model(self.model)
        _check_classes(self)
        return self


# ---- what must fit together --------------------------------------------------------------------------


def _check_scheduler(scheduler: SchedulerConfig) -> None:
    _at_most(scheduler, "max_num_seqs", "max_num_batched_tokens")  # a decode of each must fit into one step
    _at_most(scheduler, "max_chunk_tokens", "max_num_batched_tokens")
    _at_most(scheduler, "max_model_len", "kv_cells")


def _at_most(scheduler: SchedulerConfig, key: str, ceiling: str) -> None:
    value, limit = getattr(scheduler, key), getattr(scheduler, ceiling)
    if value is not None and value > limit:
        raise _refused(f"scheduler.{key}", value, f"at most {limit}, the value of scheduler.{ceiling}")


def _check_model(model: ModelConfig) -> None:
    if model.kv_type != "f16" and model.flash_attention == "off":
        raise _refused("model.flash_attention", "off", f"auto or on, which model.kv_type {model.kv_type} needs")


def _check_classes(config: Config) -> None:
    allowed = _any_of(config.classes)
    if config.scheduler.default_class not in config.classes:
        raise _refused("scheduler.default_class", config.scheduler.default_class, allowed)
    names: set[str] = set()
    for index, source in enumerate(config.sources):
        if source.fairness_class not in config.classes:
            raise _refused(f"sources[{index}].class", source.fairness_class, allowed)
        if source.name in names:
            raise _refused(f"sources[{index}].name", source.name, "a name that no other source has")
        names.add(source.name)


# ---- reading -----------------------------------------------------------------------------------------

ENV_PREFIX = "HOMEAI_"
ENV_CONFIG = "HOMEAI_CONFIG"  # names the file itself
NOT_SETTINGS = frozenset({ENV_CONFIG, "HOMEAI_URL", "HOMEAI_API_KEY"})  # the last two are for the commands that ask

Tree = dict[str, object]
KeyPath = tuple[str | int, ...]


def load(path: Path | None, *, env: Mapping[str, str], overrides: Sequence[tuple[str, str]] = ()) -> Config:
    """The settings in force. Without `path`, the file that $HOMEAI_CONFIG names, if any.

    `overrides` are (dotted key, YAML text) pairs, the strongest last. Raises `ConfigError`.
    """
    path = path or (Path(env[ENV_CONFIG]) if env.get(ENV_CONFIG) else None)
    settings = _merged(_defaults(env), _read_file(path) if path else {})
    origins: dict[KeyPath, str] = {}
    for key, text, origin in (*_from_environment(env), *((key, text, "--set") for key, text in overrides)):
        keys = key.split(".")
        origins[tuple(keys)] = origin
        settings = _merged(settings, _nested(keys, _parse_value(text)))
    try:
        return Config.model_validate(settings)
    except ValidationError as error:
        first = min(
            error.errors(), key=lambda problem: problem["type"] != "extra_forbidden"
        )  # it explains a missing key
        raise _explain(first["type"], first["loc"], first["input"], origins, str(path)) from None


def _defaults(env: Mapping[str, str]) -> Tree:
    data_home = env.get("XDG_DATA_HOME", "")
    return {"data_dir": f"{data_home}/homeai"} if data_home.startswith("/") else {}


def _from_environment(env: Mapping[str, str]) -> Iterable[tuple[str, str, str]]:
    for variable in sorted(env):
        if variable.startswith(ENV_PREFIX) and variable not in NOT_SETTINGS:
            key = variable.removeprefix(ENV_PREFIX).lower().replace("__", ".")
            yield key, env[variable], variable


def _merged(base: Tree, layer: Tree) -> Tree:
    """`layer` over `base`: mappings key by key, everything else replaced."""
    merged = dict(base)
    for key, value in layer.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _nested(keys: Sequence[str], value: object) -> Tree:
    first, *rest = keys
    return {first: _nested(rest, value) if rest else value}


def _without_nulls(tree: Tree) -> Tree:
    """A section whose every key is commented out reads as null: it says nothing."""
    return {key: value for key, value in tree.items() if value is not None}


# ---- YAML --------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """YAML 1.2's core types and nothing else (in 1.1, `flash_attention: off` is false and `1:30` is 90)."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 (declared by the base class)
    yaml_constructors = {  # noqa: RUF012
        tag: constructor
        for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.endswith((":null", ":bool", ":int", ":float", ":str", ":seq", ":map"))
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
            seen.add(str(key.value))
        mapping: dict[object, object] = super().construct_mapping(node, deep)
        return mapping


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", list("-+.")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)

_YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, RecursionError)


def _read_file(path: Path) -> Tree:
    try:
        document: object = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except _YAML_ERRORS as error:
        raise ConfigError(f"{path}: {_yaml_problem(error)}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: line 1: not a mapping of sections")
    known = Config.model_fields
    return {str(key): value for key, value in document.items() if value is not None or key not in known}


def _yaml_problem(error: Exception) -> str:
    problem = " ".join(str(getattr(error, "problem", None) or error).split())
    mark = getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}: {problem}" if isinstance(mark, yaml.Mark) else f"not YAML: {problem}"


def _parse_value(text: str) -> object:
    """What is not YAML is taken as written; a setting that is not text then refuses it."""
    try:
        value: object = yaml.load(text, _Loader)
    except _YAML_ERRORS:
        return text
    return value


# ---- saying what is wrong ----------------------------------------------------------------------------


class _Schema(msgspec.Struct, rename="camel"):
    """The part of pydantic's JSON schema that says what a setting may be."""

    type: str = ""
    format: str = ""
    description: str = ""
    enum: list[str] = []
    minimum: int | float | None = None
    maximum: int | float | None = None
    exclusive_minimum: int | float | None = None
    any_of: list[_Schema] = []
    properties: dict[str, _Schema] = {}
    additional_properties: _Schema | bool = False
    items: _Schema | None = None
    ref: str = msgspec.field(default="", name="$ref")
    defs: dict[str, _Schema] = msgspec.field(default_factory=dict, name="$defs")

    def child(self, key: str | int) -> _Schema | None:
        if isinstance(key, int):
            return self.items
        if isinstance(self.additional_properties, _Schema):
            return self.additional_properties
        return self.properties.get(key)

    def allowed(self) -> str:
        """In words, such as "an integer from 0 to 65535"."""
        if self.type == "object":
            return "a mapping"
        if self.description or self.enum:
            return self.description or _any_of(self.enum)
        if self.any_of:
            return " or ".join(option.allowed() for option in self.any_of)
        return _KINDS[self.format or self.type] + self._range()

    def _range(self) -> str:
        if self.exclusive_minimum is not None:
            return f" above {self.exclusive_minimum}"
        if self.maximum is not None:
            return f" from {self.minimum} to {self.maximum}"
        return "" if self.minimum is None else f" from {self.minimum}"


_KINDS = {
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "path": "a path",
    "array": "a list",
    "null": "null",
}


def _explain(kind: str, loc: KeyPath, value: object, origins: Mapping[KeyPath, str], file: str) -> ConfigError:
    """One line for one of pydantic's errors, with where the setting came from."""
    loc = tuple(key for key in loc if key != "[key]")
    root = msgspec.convert(Config.model_json_schema(), _Schema)
    origin = next((origin for path, origin in origins.items() if _overlap(path, loc)), file)
    if kind in ("extra_forbidden", "invalid_key"):
        return ConfigError(f"{_dotted(loc)} is not a setting{_suggestion(root, loc)} ({origin})")
    allowed = _schema_at(root, loc).allowed()
    if kind == "missing":
        return ConfigError(f"{_dotted(loc)} is missing: {allowed} ({origin})")
    return _refused(_dotted(loc), value, f"{allowed} ({origin})")


def _overlap(one: KeyPath, other: KeyPath) -> bool:
    """Whether one of them is the other or lies below it."""
    return all(a == b for a, b in zip(one, other, strict=False))


def _refused(key: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(f"{key}: {_shown(value)} is not allowed: {allowed}")


def _schema_at(root: _Schema, loc: KeyPath) -> _Schema:
    node = root
    for key in loc:
        node = node.child(key) or _Schema()
        node = root.defs[node.ref.removeprefix("#/$defs/")] if node.ref else node
    return node


def _suggestion(root: _Schema, loc: KeyPath) -> str:
    """The most similar setting, by its whole name or by its last word (right key, wrong section)."""
    siblings = [(*loc[:-1], key) for key in _schema_at(root, loc[:-1]).properties]
    settings = [(section, key) for section in root.properties for key in _schema_at(root, (section,)).properties]

    def likeness(other: KeyPath) -> float:
        return max(_ratio(_dotted(loc), _dotted(other)), _ratio(str(loc[-1]), str(other[-1])))

    best = max((*siblings, *settings), key=likeness)
    return f"; did you mean {_dotted(best)}?" if likeness(best) > 0.6 else ""


def _ratio(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()


def _dotted(loc: KeyPath) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{_plain(key)}" for key in loc).removeprefix(".")


def _plain(key: str) -> str:
    return key if key and key.isprintable() else repr(key)


def _any_of(words: Iterable[str]) -> str:
    *others, last = [*words] or [""]
    return f"{', '.join(others)} or {last}" if others else last


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and not math.isfinite(value):
        return f".{value}"  # as YAML spells it
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
