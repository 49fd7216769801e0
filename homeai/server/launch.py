"""The first steps of `homeai serve`, with few imports: check, listen, start the engine child.

The model then loads while the web framework is imported.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path

import msgspec

from homeai.backends.choice import checked
from homeai.clock import process_age_s
from homeai.config import Config, ListenAddress, ServerConfig
from homeai.errors import ConfigError
from homeai.hardware import num_physical_cores
from homeai.messages import EngineConfig
from homeai.models import chosen
from homeai.policy import ClassPolicy, SourcePolicy
from homeai.server import activation
from homeai.server.child import EngineChild, engine_environment
from homeai.server.residency import Aim, at_start
from homeai.server.supervisor import State, Supervisor
from homeai.server.warmup import WarmUp

HEARTBEAT_INTERVAL_S = 5.0
SEND_BUFFER_BYTES = 64 * 1024  # what waits in the kernel for one client: it would grow to megabytes by itself


def serve(config: Config, model_path: Path) -> int:
    """Serve until a signal; returns the exit code. Raises `ConfigError` before anything was started."""
    _check_files(config)
    checked(config, model_path)
    _check_exposure(config)
    tls = tls_context(config.server)
    doors = listeners(config.server.addresses, tls)
    engine, server = engine_config(config, model_path), config.server
    environment = engine_environment(os.environ, engine.device)  # as it is now: below we hide the GPU from ourselves

    def start_child() -> EngineChild:
        same = msgspec.structs.replace(
            engine,
            device=supervisor.device or engine.device,
            model_path=supervisor.model_path or engine.model_path,
        )
        return EngineChild(same, environment, log_level=server.log_level, log_format=server.log_format)

    supervisor = Supervisor(start_child, config.residency, warm_up=WarmUp(has_pins=bool(config.pins)))
    verdict = at_start(config.residency, datetime.now().astimezone())
    if verdict.aim is Aim.RESIDENT:
        supervisor.spawn(process_age_s())
    else:
        supervisor.start_away(State.SLEEPING, verdict.reason)
    logging.getLogger("llama.cpp").setLevel(logging.ERROR)  # the child says the rest, about the same file
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # only the child may open a GPU; we read a vocabulary
    from homeai.server.daemon import Daemon

    return Daemon(config, model_path, supervisor, doors).run()


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that listens; with `tls`, what comes through it is https. `outlives_us`: systemd keeps it open."""

    sock: socket.socket
    tls: ssl.SSLContext | None
    outlives_us: bool = False

    @property
    def url(self) -> str:
        host, port = self.sock.getsockname()[:2]
        return f"{'https' if self.tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def listeners(addresses: Sequence[ListenAddress], tls: ssl.SSLContext | None) -> list[Listener]:
    """For each address, in order: what systemd listens on for us, or else sockets of our own. Raises `ConfigError`."""
    handed = activation.handed_over(os.environ)
    for sock in handed:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    sockets = activation.matched(addresses, handed) if handed else map(listen, addresses)
    return [
        Listener(sock, tls if address.tls else None, outlives_us=bool(handed))
        for address, sock in zip(addresses, sockets, strict=True)
    ]


def listen(address: ListenAddress) -> socket.socket:
    """A listening socket: whoever connects from now on waits until we answer."""
    host, port = address.host, address.port
    try:
        family, kind, protocol, _, resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as on_error:
            sock = on_error.enter_context(socket.socket(family, kind, protocol))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # every connection has it from here
            sock.bind(resolved)
            sock.listen(512)
            on_error.pop_all()
    except (OSError, UnicodeError) as error:  # the latter: a name that cannot be one
        reason = getattr(error, "strerror", None) or "not a host name"
        port_key = "server.port" if address.key == "server.host" else "port"
        raise ConfigError(f"{address.key} {host!r}, {port_key} {port}: {reason}; choose another one") from None
    return sock


def tls_context(server: ServerConfig) -> ssl.SSLContext | None:
    """None without a certificate. Raises `ConfigError` for files that cannot be used."""
    if server.tls_cert is None or server.tls_key is None:
        return None
    for key, path in (("server.tls_cert", server.tls_cert), ("server.tls_key", server.tls_key)):
        try:
            path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{key}: {str(path)!r} cannot be read: {error.strerror}") from None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(server.tls_cert, server.tls_key, password="")  # never ask on the terminal
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        raise ConfigError(
            f"server.tls_cert {str(server.tls_cert)!r} and server.tls_key {str(server.tls_key)!r} cannot be used: "
            f"{reason}; a certificate and its own key, without a passphrase, both PEM, are needed"
        ) from None
    return context


def _check_files(config: Config) -> None:
    chosen(config)  # or it raises
    files = {"model.chat_template": config.model.chat_template, "embeddings.model": config.embeddings.model}
    for key, path in files.items():
        if path is not None and not path.exists():
            raise ConfigError(f"{key}: {str(path)!r} does not exist: an existing file is needed")


def _check_exposure(config: Config) -> None:
    exposed = [address.host for address in config.server.addresses if not _is_local(address.host)]
    if config.server.auth == "none" or not exposed:
        return
    from homeai.keys import KeyStore, given_keys

    if given_keys(os.environ, config.classes):
        return
    with contextlib.closing(KeyStore(config.ledger_path)) as store:
        try:
            may_have_keys = bool(store.list())
        except ConfigError:  # the daemon says so, and lets nobody in who needs one
            may_have_keys = True
    if not may_have_keys and not config.server.keyless:
        raise ConfigError(
            f"server.host or server.listen {exposed[0]!r} is reachable from the network, but there is no API key: "
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
        backend=model.backend,
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
        fit=model.fit,
        memory_margin=model.memory_margin,
        gpu_memory_utilization=model.gpu_memory_utilization,
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
        classes={
            name: ClassPolicy(**c.model_dump(exclude={"max_waiting", "thinks", "when_yielded"}))
            for name, c in config.classes.items()
        },
        sources={
            s.name: SourcePolicy(max_running=s.max_running, kv_cap=s.kv_cap, private=s.private) for s in config.sources
        },
        heartbeat_interval_s=min(HEARTBEAT_INTERVAL_S, config.residency.heartbeat_timeout_s / 3),
    )
