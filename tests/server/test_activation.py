"""The sockets that systemd hands over are the settings' addresses, one for one."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from homeai.config import ListenAddress
from homeai.errors import ConfigError
from homeai.server.activation import handed_over, matched, stream

Listen = Callable[..., socket.socket]


def at(host: str, port: int = 0, key: str = "server.host") -> ListenAddress:
    return ListenAddress(key, host, port, tls=False)


def port_of(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


@pytest.fixture
def listen() -> Iterator[Listen]:
    with ExitStack() as stack:

        def listening(host: str = "127.0.0.1", family: socket.AddressFamily = socket.AF_INET) -> socket.socket:
            sock = stack.enter_context(socket.socket(family))
            sock.bind((host, 0))
            sock.listen()
            return sock

        yield listening


def test_each_address_gets_its_own_in_the_order_of_the_settings(listen: Listen) -> None:
    first, second = listen(), listen()
    addresses = [at("127.0.0.1", port_of(second)), at("localhost", port_of(first), "server.listen[0]")]
    assert matched(addresses, [first, second]) == [second, first]


def test_any_port_takes_what_no_other_address_names(listen: Listen) -> None:
    first, second = listen(), listen()
    addresses = [at("127.0.0.1", 0), at("127.0.0.1", port_of(first), "server.listen[0]")]
    assert matched(addresses, [first, second]) == [second, first]


def test_ipv6_is_told_from_ipv4(listen: Listen) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    sock = listen("::", socket.AF_INET6)
    assert matched([at("::", port_of(sock))], [sock]) == [sock]
    with pytest.raises(ConfigError):
        matched([at("0.0.0.0", port_of(sock))], [sock])


def test_other_addresses_are_one_line_with_both_sides(listen: Listen) -> None:
    sock = listen()
    with pytest.raises(ConfigError) as caught:
        matched([at("127.0.0.2", 8700), at("::1", 8701, "server.listen[0]")], [sock])
    message = str(caught.value)
    assert f"listens on 127.0.0.1:{port_of(sock)}, but" in message
    assert "say 127.0.0.2:8700, [::1]:8701: run scripts/install-service again" in message
    assert message.isprintable()


def test_one_socket_too_many_or_too_few_is_refused(listen: Listen) -> None:
    first, second = listen(), listen()
    with pytest.raises(ConfigError):
        matched([at("127.0.0.1", port_of(first))], [first, second])
    with pytest.raises(ConfigError):
        matched([at("127.0.0.1", port_of(first)), at("127.0.0.1", port_of(second), "server.listen[0]")], [first])


@pytest.mark.parametrize(
    ("host", "written"), [("localhost", "127.0.0.1:1"), ("0.0.0.0", "0.0.0.0:1"), ("::", "[::]:1")]
)
def test_socket_units_know_no_names(host: str, written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if host == "localhost":
        local = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 1))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: local)
    assert stream(at(host, 1)) == written


def test_what_is_handed_to_another_process_is_not_ours_and_no_child_is_told() -> None:
    environ = {"LISTEN_PID": str(os.getpid() + 1), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "x", "HOME": "/"}
    assert handed_over(environ) == []
    assert environ == {"HOME": "/"}
    assert handed_over({}) == []
