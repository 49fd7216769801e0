"""The first steps: what is refused before anything starts, and what the engine child is told."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from homeai import config
from homeai.config import Config, ListenAddress
from homeai.errors import ConfigError
from homeai.keys import KeyStore
from homeai.server import launch
from homeai.server.child import engine_environment
from homeai.server.launch import SEND_BUFFER_BYTES, engine_config, listen, tls_context
from tests.certificates import Certificate, make_certificate
from tests.daemon import Daemon

MODEL = Path("model.gguf")


def at(host: str, port: int = 0, key: str = "server.host") -> ListenAddress:
    return ListenAddress(key, host, port, tls=False)


def make_config(*settings: str) -> Config:
    return config.load(None, env={}, overrides=[tuple(setting.split("=", 1)) for setting in settings])


@pytest.fixture
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


# ---- listening -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_whoever_connects_from_now_on_waits_for_an_answer(host: str) -> None:
    if host == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with listen(at(host)) as sock:
        socket.create_connection(sock.getsockname()[:2]).close()


def test_port_that_is_taken_is_one_line() -> None:
    with listen(at("127.0.0.1")) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(ConfigError, match=f"server.port {port}: Address already in use; choose another one"):
            listen(at("127.0.0.1", port))


@pytest.mark.parametrize("host", ["203.0.113.1", "..", "a" * 70])
def test_address_that_is_not_here_is_one_line(host: str) -> None:
    with pytest.raises(ConfigError) as caught:
        listen(at(host))
    message = str(caught.value)
    assert message.startswith(f"server.host {host!r}, server.port 0: ")
    assert message.isprintable()


def test_name_that_nobody_knows_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: object, **kwargs: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ConfigError, match=r"server\.host 'brain', server\.port 0: Name or service not known; choose"):
        listen(at("brain"))


def test_other_address_that_is_taken_is_named() -> None:
    with listen(at("127.0.0.1")) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"server\.listen\[1\] '127\.0\.0\.1', port {port}: Address already in use"
        ):
            listen(at("127.0.0.1", port, "server.listen[1]"))


def test_little_waits_in_the_kernel_for_a_client_that_does_not_read() -> None:
    with (
        listen(at("127.0.0.1")) as sock,
        socket.create_connection(sock.getsockname()),
        closing(sock.accept()[0]) as end,
    ):
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 2 * SEND_BUFFER_BYTES


# ---- TLS -----------------------------------------------------------------------------------------------


def test_certificate_and_its_key_are_used(certificate: Certificate) -> None:
    server = make_config(*certificate.settings).server
    assert tls_context(server) is not None
    assert tls_context(make_config().server) is None


@pytest.mark.parametrize(
    ("cert", "key", "words"),
    [
        ("missing", "own", "server.tls_cert: '{cert}' cannot be read: No such file"),
        ("own", "missing", "server.tls_key: '{key}' cannot be read: No such file"),
        ("own", "other", "key values mismatch"),
        ("empty", "own", "cannot be used: "),
        ("own", "empty", "cannot be used: "),
        ("own", "locked", "without a passphrase"),
    ],
)
def test_files_that_are_no_certificate_and_key_are_one_line(
    certificate: Certificate, tmp_path: Path, cert: str, key: str, words: str
) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    files = {
        "own": {"cert": certificate.cert, "key": certificate.key},
        "other": {"key": make_certificate(tmp_path).key},
        "locked": {"key": certificate.locked_key},
    }
    paths = {
        kind: files.get(name, {}).get(kind, empty if name == "empty" else tmp_path / "missing.pem")
        for kind, name in (("cert", cert), ("key", key))
    }
    with pytest.raises(ConfigError) as caught:
        tls_context(make_config(*(f"server.tls_{kind}={path}" for kind, path in paths.items())).server)
    message = str(caught.value)
    assert words.format(**paths) in message
    assert message.isprintable()


# ---- before anything starts ----------------------------------------------------------------------------


class Started(Exception):
    """`serve` got as far as listening."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The hosts that would have been served."""
    hosts: list[str] = []

    def listen_in_vain(address: ListenAddress) -> None:
        hosts.append(address.host)
        raise Started

    monkeypatch.setattr(launch, "listen", listen_in_vain)
    return hosts


def serve(*settings: str, tmp_path: Path) -> None:
    with suppress(Started):
        launch.serve(make_config(f"data_dir={tmp_path}", *settings), MODEL)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "brain.lan"])
def test_network_is_not_served_without_a_key(host: str, started: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"homeai keys add NAME.*server\.auth: none") as caught:
        serve(f"server.host='{host}'", tmp_path=tmp_path)
    assert host in str(caught.value)
    assert started == []


def test_network_is_served_with_a_key(started: list[str], tmp_path: Path) -> None:
    with closing(KeyStore(tmp_path / "ledger.db")) as store:
        store.add("tablet")
    serve("server.host=0.0.0.0", tmp_path=tmp_path)
    assert started == ["0.0.0.0"]


def test_network_is_served_without_a_key_when_told_so(started: list[str], tmp_path: Path) -> None:
    serve("server.host=0.0.0.0", "server.auth=none", tmp_path=tmp_path)
    assert started == ["0.0.0.0"]


def test_network_is_served_though_the_keys_cannot_be_read(started: list[str], tmp_path: Path) -> None:
    """Nobody from there gets in, and this machine is served."""
    (tmp_path / "ledger.db").write_bytes(b"not a database")
    serve("server.host=0.0.0.0", tmp_path=tmp_path)
    assert started == ["0.0.0.0"]


def test_no_address_is_served_to_the_network_without_a_key(started: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'0\.0\.0\.0' is reachable from the network, but there is no API key"):
        serve("server.listen=['127.0.0.1:0', '0.0.0.0:0']", tmp_path=tmp_path)
    assert started == []


def test_network_is_served_without_a_key_to_those_who_need_none(started: list[str], tmp_path: Path) -> None:
    serve("server.host=0.0.0.0", "server.keyless=[192.168.1.0/24]", tmp_path=tmp_path)
    assert started == ["0.0.0.0"]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_this_machine_needs_no_key(host: str, started: list[str], tmp_path: Path) -> None:
    serve(f"server.host='{host}'", tmp_path=tmp_path)
    assert started == [host]


@pytest.mark.parametrize("key", ["path", "chat_template"])
def test_file_that_is_missing_is_named(key: str, started: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"model\.{key}: '/nowhere/file' does not exist"):
        serve(f"model.{key}=/nowhere/file", tmp_path=tmp_path)
    assert started == []


# ---- what the child is told ----------------------------------------------------------------------------


def test_child_is_told_the_settings() -> None:
    told = engine_config(make_config("scheduler.max_num_seqs=3", "model.num_threads=2", "model.device=cpu"), MODEL)
    assert (told.model_path, told.max_num_seqs, told.num_threads, told.device) == ("model.gguf", 3, 2, "cpu")
    assert told.max_model_len == 0  # the model's own
    weights = {name: policy.weight for name, policy in told.classes.items()}
    assert weights == {"voice": 8.0, "interactive": 4.0, "coding": 2.0, "background": 1.0}
    assert told.classes["voice"].queue_timeout_s == 20.0


@pytest.mark.parametrize("timeout_s", [0.3, 2.0, 60.0, 600.0])
def test_heart_beats_several_times_before_it_counts_as_stopped(timeout_s: float) -> None:
    told = engine_config(make_config(f"residency.heartbeat_timeout_s={timeout_s}"), MODEL)
    assert told.heartbeat_interval_s <= timeout_s / 3


# ---- the log of both processes -------------------------------------------------------------------------


def test_both_processes_write_the_format_and_level_that_were_asked_for(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon("server.log_format=json", "server.log_level=debug")
    daemon.close()
    events = [json.loads(line) for line in daemon.log]
    levels = {(event["logger"], event["level"]) for event in events}
    assert ("homeai", "info") in levels
    assert ("llama.cpp", "debug") in levels  # the child's: its library's log goes the same way


def test_library_is_quiet_unless_it_matters(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon("server.log_format=json")
    daemon.close()
    events = [json.loads(line) for line in daemon.log]
    assert {event["level"] for event in events if event["logger"] == "llama.cpp"} <= {"warning", "error"}
    assert len(events) < 40


def test_every_incarnation_of_the_engine_sees_the_gpu_that_the_front_end_hides_from_itself() -> None:
    ours = {"CUDA_VISIBLE_DEVICES": "1", "GOMP_SPINCOUNT": "7"}
    environment = engine_environment(ours, "auto")
    ours["CUDA_VISIBLE_DEVICES"] = ""
    assert environment["CUDA_VISIBLE_DEVICES"] == "1"
    assert environment["GOMP_SPINCOUNT"] == "7", "the owner's word counts"
    assert engine_environment(ours, "cpu")["CUDA_VISIBLE_DEVICES"] == ""
