"""The first steps of `homeai serve`, with few imports: check, listen, start the engine child.

The model then loads while the web framework is imported.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from ipaddress import ip_address
from pathlib import Path

import msgspec

from homeai.config import Config
from homeai.errors import ConfigError
from homeai.hardware import num_physical_cores
from homeai.messages import EngineConfig
from homeai.policy import ClassPolicy, SourcePolicy
from homeai.server.child import EngineChild, engine_environment
from homeai.server.supervisor import Supervisor
from homeai.server.warmup import WarmUp

HEARTBEAT_INTERVAL_S = 5.0


def serve(config: Config, model_path: Path) -> int:
    """Serve until a signal; returns the exit code. Raises `ConfigError` before anything was started."""
    _check_files(config)
    _check_exposure(config)
    sock = listen(config.server.host, config.server.port)
    engine, server = engine_config(config, model_path), config.server
    environment = engine_environment(os.environ, engine.device)  # as it is now: below we hide the GPU from ourselves

    def start_child() -> EngineChild:
        same = msgspec.structs.replace(engine, device=supervisor.device or engine.device)
        return EngineChild(same, environment, log_level=server.log_level, log_format=server.log_format)

    supervisor = Supervisor(start_child, config.residency, warm_up=WarmUp(has_pins=bool(config.pins)))
    supervisor.spawn()
    logging.getLogger("llama.cpp").setLevel(logging.ERROR)  # the child says the rest, about the same file
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # only the child may open a GPU; we read a vocabulary
    from homeai.server.daemon import Daemon

    return Daemon(config, model_path, supervisor, sock).run()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket: whoever connects from now on waits until we answer."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as on_error:
            sock = on_error.enter_context(socket.socket(family, kind, protocol))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(512)
            on_error.pop_all()
    except (OSError, UnicodeError) as error:  # the latter: a name that cannot be one
        reason = getattr(error, "strerror", None) or "not a host name"
        raise ConfigError(f"server.host {host!r}, server.port {port}: {reason}; choose another one") from None
    return sock


def _check_files(config: Config) -> None:
    for key in ("path", "chat_template"):
        path: Path | None = getattr(config.model, key)
        if path is not None and not path.exists():
            raise ConfigError(f"model.{key}: {str(path)!r} does not exist: an existing file is needed")


def _check_exposure(config: Config) -> None:
    host = config.server.host
    if config.server.auth == "none" or _is_local(host):
        return
    from homeai.keys import KeyStore

    with contextlib.closing(KeyStore(config.ledger_path)) as store:
        try:
            may_have_keys = bool(store.list())
        except ConfigError:  # the daemon says so, and lets nobody in who needs one
            may_have_keys = True
    if not may_have_keys:
        raise ConfigError(
            f"server.host {host!r} is reachable from the network, but there is no API key: "
            "add one with `homeai keys add NAME`, or set server.auth: none"
        )


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def engine_config(config: Config, model_path: Path) -> EngineConfig:
    """What the engine child needs of the settings."""
    model, scheduler = config.model, config.scheduler
    return EngineConfig(
        model_path=str(model_path),
        device=model.device,
        n_gpu_layers=model.n_gpu_layers,
        num_threads=model.num_threads or num_physical_cores(),
        num_kv_cells=scheduler.kv_cells,
        max_model_len=scheduler.max_model_len or 0,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_chunk_tokens=scheduler.max_chunk_tokens,
        chunked_prefill=scheduler.chunked_prefill,
        flash_attention=model.flash_attention,
        swa_full=model.swa_full,
        kv_type=model.kv_type,
        kv_layout=scheduler.kv_layout,
        num_cached_seqs=scheduler.max_cached_seqs,
        prefix_cache_tokens=scheduler.prefix_cache_tokens,
        host_cache_bytes=scheduler.host_cache_mb * 1024**2,
        max_drafts=scheduler.max_drafts,
        mode=scheduler.mode,
        window_s=scheduler.window_ms / 1000,
        adaptive_budget=scheduler.adaptive_budget,
        prompt_token_weight=scheduler.prompt_token_weight,
        output_token_weight=scheduler.output_token_weight,
        classes={name: ClassPolicy(**c.model_dump(exclude={"max_waiting"})) for name, c in config.classes.items()},
        sources={
            s.name: SourcePolicy(max_running=s.max_running, kv_cap=s.kv_cap, private=s.private) for s in config.sources
        },
        heartbeat_interval_s=min(HEARTBEAT_INTERVAL_S, config.residency.heartbeat_timeout_s / 3),
    )
