"""Settings: defaults < YAML file < `HOMEAI_SECTION__KEY` environment < `--set section.key=value`.

Every check of a setting lives here, so nothing behind `load` meets an impossible value; what needs more
than the settings (do keys exist? how long a context was the model trained for?) is checked where it is known.
A mistake is one `ConfigError` of one line: the key, the value, what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Literal

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

from homeai.config_errors import KeyPath, any_of, explain, refused
from homeai.config_reading import Tree, merged, nested, parse_value, read_file, without_nulls
from homeai.patterns import compiled

# ---- kinds of value: the words of an error are drawn from these ------------------------------------

INT32_MAX = 2**31 - 1  # what llama.cpp can count to
_CLOCK = r"([01]?[0-9]|2[0-3]):[0-5][0-9]"
HOURS = re.compile(rf"{_CLOCK}\s*-\s*{_CLOCK}")


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


def _address(text: str) -> str:
    if parse_address(text) is None:
        raise ValueError("neither host:port nor [address]:port")
    return text


def _pattern(text: str) -> str:
    compiled(text)
    return text


def _hours(text: str) -> str:
    if HOURS.fullmatch(text) is None:
        raise ValueError("not a part of a day")
    return text


Count = Annotated[int, Field(ge=1, le=INT32_MAX)]
CountOrZero = Annotated[int, Field(ge=0, le=INT32_MAX)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(gt=0, le=1, description="a number above 0, at most 1")]
Name = Annotated[str, Field(min_length=1, description="a name, in quotes if it looks like a number")]
Names = Annotated[tuple[Name, ...], Field(strict=False)]
Text = Annotated[str, Field(min_length=1, description="a text")]
PatternText = Annotated[
    str,
    AfterValidator(_pattern),
    Field(description="a regular expression (RE2: no look-around, no back-references) that takes something to match"),
]
FilePath = Annotated[Path, Field(strict=False), AfterValidator(_expanded)]
Network = Annotated[
    IPv4Network | IPv6Network,
    BeforeValidator(_network),
    Field(description="an address such as 192.168.1.20, or a subnet such as 192.168.1.0/24"),
]
Networks = Annotated[tuple[Network, ...], Field(strict=False)]
Patterns = Annotated[tuple[PatternText, ...], Field(strict=False)]
Hours = Annotated[
    str,
    AfterValidator(_hours),
    Field(description="a part of the day such as '07:00-23:00', in quotes; it may go over midnight"),
]
Address = Annotated[
    str,
    AfterValidator(_address),
    Field(description="host:port, such as 0.0.0.0:11434 or [::]:11434, with http:// or https:// before it if need be"),
]


# ---- addresses to listen on --------------------------------------------------------------------------

ADDRESS = re.compile(r"(?:(https?)://)?(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:/\[\]]+)):([0-9]{1,5})/?")


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """`key` is the setting that says so. `port` 0 takes any that is free."""

    key: str
    host: str
    port: int
    tls: bool


def parse_address(text: str) -> tuple[str | None, str, int] | None:
    """(scheme if any, host, port) of `[http[s]://]host:port`, or None."""
    match = ADDRESS.fullmatch(text)
    if match is None or int(match[4]) > 65535:
        return None
    return match[1], match[2] or match[3], int(match[4])


# How the prompts of side requests begin: titles, tags and follow-up questions of Open WebUI, titles and
# topics for Claude Code's and other agents' lists of conversations. Not what their users wait for.
SIDE_REQUESTS = (
    r"(?i)^\s*### task:\s*(generate|suggest|create)\b[^\n]{0,80}\b(title|tags|follow-?up)",
    r"(?i)^\s*(please )?(write|generate|provide) an? [^\n.]{0,60}\btitle\b[^\n.]{0,90}\b(conversation|chat|session)",
    r"(?i)^\s*analyze if this message indicates a new conversation topic",
    r"(?i)^\s*summarize this coding conversation in under",
    r"(?i)^\s*you are a title generator",
)
SIDE_TASKS = r"^(title|tags|follow_up|emoji|autocomplete)_generation"

# ---- sections ----------------------------------------------------------------------------------------


class Section(BaseModel):
    """YAML already has types, so nothing is converted: `port: yes` is a mistake, not port 1."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)


class ServerConfig(Section):
    host: Name = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8700
    listen: Annotated[tuple[Address, ...], Field(strict=False)] = ()
    tls_cert: FilePath | None = None
    tls_key: FilePath | None = None
    auth: Literal["auto", "keys", "none"] = "auto"
    keyless: Networks = ()
    trusted_proxies: Networks = ()
    allowed_hosts: Names = ()
    cors_origins: Names = ()
    max_body_bytes: Annotated[int, Field(ge=1)] = 8 * 1024 * 1024
    max_header_bytes: Annotated[int, Field(ge=1024)] = 32 * 1024
    header_timeout_s: Positive = 15.0
    body_timeout_s: Positive = 60.0
    slow_reader_s: Positive = 30.0
    ping_interval_s: Annotated[
        float, AfterValidator(_positive_or_off), Field(description="a number above 0, or -1 for off")
    ] = 30.0
    drain_timeout_s: Annotated[float, Field(ge=0)] = 30.0
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "text", "journal", "json"] = "auto"

    @property
    def addresses(self) -> list[ListenAddress]:
        """All that is to be listened on: host and port first. With TLS files https, unless told http."""
        has_tls = self.tls_cert is not None
        result = [ListenAddress("server.host", self.host, self.port, has_tls)]
        for index, text in enumerate(self.listen):
            scheme, host, port = parse_address(text) or (None, "", 0)
            tls = has_tls if scheme is None else scheme == "https"
            result.append(ListenAddress(f"server.listen[{index}]", host, port, tls))
        return result


class ModelConfig(Section):
    path: FilePath | None = None
    backend: Literal["auto", "llamacpp", "torch"] = "auto"
    name: Name | None = None
    aliases: Names = ("default",)
    device: Literal["auto", "cuda", "cpu"] = "auto"
    n_gpu_layers: Annotated[int, Field(ge=-1, le=INT32_MAX)] = -1
    num_threads: Count | None = None
    flash_attention: Literal["auto", "on", "off"] = "auto"
    swa_full: bool = True
    kv_type: Literal["f16", "q8_0", "q4_0"] = "f16"
    fit: Literal["auto", "strict"] = "auto"
    memory_margin: Annotated[float, Field(ge=0, lt=1, description="a number from 0 on, below 1")] = 0.05
    gpu_memory_utilization: Fraction = 0.9
    chat_template: FilePath | None = None


class SchedulerConfig(Section):
    mode: Literal["auto", "continuous", "single", "static", "window"] = "auto"
    window_ms: CountOrZero = 500
    max_num_seqs: Annotated[int, Field(ge=1, le=256)] = 8
    max_num_batched_tokens: Count = 512
    chunked_prefill: bool = True
    # The default follows a smaller budget, so that the budget can be lowered alone.
    max_chunk_tokens: Count = Field(default_factory=lambda given: min(256, given.get("max_num_batched_tokens", 256)))
    adaptive_budget: bool = True
    kv_cells: Count = 16384
    kv_layout: Literal["unified", "partitioned"] = "unified"
    max_model_len: Count | None = None
    prompt_token_weight: Positive = 1.0
    output_token_weight: Positive = 2.0
    max_cached_seqs: Annotated[int, Field(ge=0, le=255)] = 24
    prefix_cache_tokens: CountOrZero | None = None
    host_cache_mb: CountOrZero = 512
    max_drafts: Annotated[int, Field(ge=0, le=64)] = 15
    default_class: Name = "interactive"

    @property
    def cells_per_request(self) -> int:
        return self.kv_cells // (self.max_num_seqs if self.kv_layout == "partitioned" else 1)


class ClassConfig(Section):
    weight: Positive
    max_waiting: CountOrZero
    queue_timeout_s: Positive
    ttft_target_s: Positive | None = None
    itl_target_s: Positive | None = None
    max_running: Count | None = None
    share_cap: Fraction = 1.0
    kv_cap: Fraction = 1.0
    thinks: bool | None = None
    when_yielded: Literal["wait", "refuse"] = "refuse"


class MatchConfig(Section):
    key: Names = ()
    header: Names = ()
    openwebui: Names = ()
    address: Networks = ()
    user: Names = ()
    user_agent: Patterns = ()


class VolatileConfig(Section):
    pattern: PatternText
    action: Literal["drop", "move"]


class SourceConfig(Section):
    name: Name
    fairness_class: Name = Field(alias="class")
    max_running: Count | None = None
    kv_cap: Fraction = 1.0
    private: bool = False
    thinks: bool | None = None
    show_text: bool = False
    volatile: Annotated[tuple[VolatileConfig, ...], Field(strict=False)] = ()
    match: MatchConfig = MatchConfig()


class SideRequestsConfig(Section):
    """What programs ask beside their user's own requests: titles, tags, follow-ups."""

    lower_to: Name | None = "background"
    headers: Mapping[Name, PatternText] = {"X-OpenWebUI-Task": SIDE_TASKS}
    patterns: Patterns = SIDE_REQUESTS


class PinConfig(Section):
    """Exactly one of `system`, `file` and `prompt`."""

    name: Name
    source: Name | None = None
    system: Text | None = None
    file: FilePath | None = None
    prompt: Text | None = None


class ResidencyConfig(Section):
    policy: Literal["pinned", "idle", "schedule"] = "pinned"
    idle_timeout_s: Positive = 900.0
    hours: Hours = "07:00-23:00"
    outside_hours: Literal["load", "refuse"] = "load"
    drain_timeout_s: NotNegative = 30.0
    share_gpu: Literal["auto", "on", "off"] = "auto"
    max_other_gpu_gb: Positive | None = 4.0
    min_free_gpu_gb: Positive | None = None
    max_other_gpu_load: Fraction | None = None
    gpu_notice_s: NotNegative = 3.0
    gpu_quiet_s: Positive = 60.0
    finish_classes: Names = ("voice",)
    finish_timeout_s: NotNegative = 10.0
    load_timeout_s: Positive = 600.0
    heartbeat_timeout_s: Positive = 60.0
    max_restarts: CountOrZero = 5
    restart_window_s: Positive = 600.0
    keep_awake: bool = True


class EmbeddingsConfig(Section):
    model: FilePath | None = None
    name: Name | None = None
    pooling: Literal["auto", "mean", "cls", "last"] = "auto"
    max_tokens: Count = 4096
    num_threads: Count = 1
    max_waiting: Count = 64
    idle_timeout_s: Positive = 300.0


class BatchesConfig(Section):
    max_running: Count = 2
    retention_days: CountOrZero = 30
    max_file_bytes: Count = 100 * 1024 * 1024
    max_stored_bytes: Annotated[int, Field(ge=1)] = 1024**3


class LedgerConfig(Section):
    enabled: bool = True
    path: FilePath | None = None
    retention_days: CountOrZero = 90


DEFAULT_CLASSES: Mapping[str, ClassConfig] = {
    "voice": ClassConfig(
        weight=8.0, max_waiting=16, queue_timeout_s=20.0, ttft_target_s=0.5, itl_target_s=0.2, thinks=False
    ),
    "interactive": ClassConfig(weight=4.0, max_waiting=64, queue_timeout_s=120.0, ttft_target_s=2.0, itl_target_s=0.2),
    "coding": ClassConfig(weight=2.0, max_waiting=64, queue_timeout_s=300.0, ttft_target_s=4.0, itl_target_s=0.5),
    "background": ClassConfig(weight=1.0, max_waiting=256, queue_timeout_s=3600.0, when_yielded="wait"),
}


class Config(Section):
    """All settings, checked, one attribute per section."""

    data_dir: FilePath = Path("~/.local/share/homeai")
    server: ServerConfig = ServerConfig()
    model: ModelConfig = ModelConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    classes: Mapping[Name, ClassConfig] = DEFAULT_CLASSES
    sources: Annotated[tuple[SourceConfig, ...], Field(strict=False)] = ()
    side_requests: SideRequestsConfig = SideRequestsConfig()
    pins: Annotated[tuple[PinConfig, ...], Field(strict=False)] = ()
    residency: ResidencyConfig = ResidencyConfig()
    embeddings: EmbeddingsConfig = EmbeddingsConfig()
    batches: BatchesConfig = BatchesConfig()
    ledger: LedgerConfig = LedgerConfig()

    @property
    def ledger_path(self) -> Path:
        return self.ledger.path or self.data_dir / "ledger.db"

    @field_validator("classes", mode="before")
    @classmethod
    def _over_the_defaults(cls, classes: object) -> object:
        """A class that is named keeps the defaults of what it leaves out; the others stay."""
        defaults: dict[str, object] = {name: default.model_dump() for name, default in DEFAULT_CLASSES.items()}
        return merged(defaults, without_nulls(classes)) if isinstance(classes, dict) else classes

    @model_validator(mode="after")
    def _fit_together(self) -> Config:
        _check_server(self.server)
        _check_scheduler(self.scheduler)
        _check_model(self.model)
        _check_classes(self)
        _check_pins(self)
        return self


# ---- what must fit together --------------------------------------------------------------------------


def _check_server(server: ServerConfig) -> None:
    if (server.tls_cert is None) != (server.tls_key is None):
        missing, given = ("tls_key", "tls_cert") if server.tls_key is None else ("tls_cert", "tls_key")
        raise refused(f"server.{missing}", None, f"a file, since server.{given} is given")
    for index, address in enumerate(server.addresses[1:]):
        if address.tls and server.tls_cert is None:
            allowed = "https only with server.tls_cert and server.tls_key"
            raise refused(f"server.listen[{index}]", server.listen[index], allowed)


def _check_scheduler(scheduler: SchedulerConfig) -> None:
    _at_most(scheduler, "max_num_seqs", "max_num_batched_tokens")  # a decode of each must fit into one step
    _at_most(scheduler, "max_chunk_tokens", "max_num_batched_tokens")
    _at_most(scheduler, "max_model_len", "kv_cells")
    share = scheduler.cells_per_request
    if (scheduler.max_model_len or 0) > share:
        allowed = f"at most {share}, the part of each of {scheduler.max_num_seqs} sequences (kv_layout partitioned)"
        raise refused("scheduler.max_model_len", scheduler.max_model_len, allowed)


def _at_most(scheduler: SchedulerConfig, key: str, ceiling: str) -> None:
    value, limit = getattr(scheduler, key), getattr(scheduler, ceiling)
    if value is not None and value > limit:
        raise refused(f"scheduler.{key}", value, f"at most {limit}, the value of scheduler.{ceiling}")


def _check_model(model: ModelConfig) -> None:
    if model.kv_type != "f16" and model.flash_attention == "off":
        raise refused("model.flash_attention", "off", f"auto or on, which model.kv_type {model.kv_type} needs")


def _check_classes(config: Config) -> None:
    allowed = any_of(config.classes)
    if config.scheduler.default_class not in config.classes:
        raise refused("scheduler.default_class", config.scheduler.default_class, allowed)
    names: set[str] = set()
    for index, source in enumerate(config.sources):
        if source.fairness_class not in config.classes:
            raise refused(f"sources[{index}].class", source.fairness_class, allowed)
        if source.name in names:
            raise refused(f"sources[{index}].name", source.name, "a name that no other source has")
        names.add(source.name)
    lower_to = config.side_requests.lower_to
    if lower_to is not None and lower_to not in config.classes:
        raise refused("side_requests.lower_to", lower_to, f"{allowed}, or null")


def _check_pins(config: Config) -> None:
    sources = [source.name for source in config.sources]
    names: set[str] = set()
    for index, pin in enumerate(config.pins):
        given = [key for key in ("system", "file", "prompt") if getattr(pin, key) is not None]
        if len(given) != 1:
            raise refused(f"pins[{index}]", " and ".join(given) or None, "one of system, file and prompt")
        if pin.source is not None and pin.source not in sources:
            raise refused(f"pins[{index}].source", pin.source, any_of(sources) if sources else "null, without sources")
        if pin.name in names:
            raise refused(f"pins[{index}].name", pin.name, "a name that no other pin has")
        names.add(pin.name)


# ---- reading -----------------------------------------------------------------------------------------

ENV_PREFIX = "HOMEAI_"
ENV_CONFIG = "HOMEAI_CONFIG"  # names the file itself
NOT_SETTINGS = frozenset({ENV_CONFIG, "HOMEAI_URL", "HOMEAI_API_KEY", "HOMEAI_STEP_LOG"})  # read where they are used


def load(path: Path | None, *, env: Mapping[str, str], overrides: Sequence[tuple[str, str]] = ()) -> Config:
    """The settings in force. Without `path`, the file that $HOMEAI_CONFIG names, if any.

    `overrides` are (dotted key, YAML text) pairs, the strongest last. Raises `ConfigError`.
    """
    path = path or (Path(env[ENV_CONFIG]) if env.get(ENV_CONFIG) else None)
    settings = merged(_defaults(env), _sections(read_file(path)) if path else {})
    origins: dict[KeyPath, str] = {}
    for key, text, origin in (*_from_environment(env), *((key, text, "--set") for key, text in overrides)):
        keys = key.split(".")
        origins[tuple(keys)] = origin
        settings = merged(settings, nested(keys, parse_value(text)))
    try:
        return Config.model_validate(settings)
    except ValidationError as error:
        # A misspelt key is told first: it explains the missing one.
        first = min(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
        raise explain(first, Config.model_json_schema(), origins, str(path)) from None


def _sections(document: Tree) -> Tree:
    """A section whose every key is commented out reads as null: it says nothing."""
    return {key: value for key, value in document.items() if value is not None or key not in Config.model_fields}


def _defaults(env: Mapping[str, str]) -> Tree:
    data_home = env.get("XDG_DATA_HOME", "")
    return {"data_dir": f"{data_home}/homeai"} if data_home.startswith("/") else {}


def _from_environment(env: Mapping[str, str]) -> Iterable[tuple[str, str, str]]:
    for variable in sorted(env):
        if variable.startswith(ENV_PREFIX) and variable not in NOT_SETTINGS:
            key = variable.removeprefix(ENV_PREFIX).lower().replace("__", ".")
            yield key, env[variable], variable
