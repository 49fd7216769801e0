"""Listening sockets that systemd hands over (sd_listen_fds(3)).

systemd keeps its own copy of each: who connects while the daemon restarts waits in them, instead of being refused.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address

from homeai.config import ListenAddress
from homeai.errors import ConfigError

FIRST_FD = 3
REPAIR = "run scripts/install-service again, which takes the addresses from the settings"

Host = IPv4Address | IPv6Address


def handed_over(environ: MutableMapping[str, str]) -> list[socket.socket]:
    """What systemd listens on for us; none, when it does not. What says so is taken out of `environ`, and no child
    inherits the sockets. Raises `ConfigError` for anything but TCP sockets that listen."""
    pid, num_fds, names = (environ.pop(f"LISTEN_{key}", "") for key in ("PID", "FDS", "FDNAMES"))
    if pid != str(os.getpid()) or not num_fds.isdecimal():
        return []
    return [
        _listening(FIRST_FD + index, (names.split(":") + [""] * int(num_fds))[index]) for index in range(int(num_fds))
    ]


def _listening(fd: int, name: str) -> socket.socket:
    os.set_inheritable(fd, False)
    try:
        sock = socket.socket(fileno=fd)
        is_tcp = sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM
        is_right = is_tcp and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
    except OSError:
        is_right = False
    if not is_right:
        raise ConfigError(f"{name or 'systemd'}: file descriptor {fd} is no TCP socket that listens (ListenStream=)")
    return sock


def matched(addresses: Sequence[ListenAddress], sockets: Sequence[socket.socket]) -> list[socket.socket]:
    """The socket of each address, in their order. Raises `ConfigError` unless they are the same, one for one."""
    left = list(sockets)
    found: dict[str, socket.socket] = {}
    for address in sorted(addresses, key=lambda address: address.port == 0):  # what takes any port takes what is left
        sock = next((sock for sock in left if _is_at(sock, *resolved(address))), None)
        if sock is not None:
            left.remove(sock)
            found[address.key] = sock
    if left or len(found) < len(addresses):
        ours = ", ".join(stream(address) for address in addresses)
        theirs = ", ".join(_shown(*_place(sock)) for sock in sockets)
        raise ConfigError(
            f"systemd (homeai.socket) listens on {theirs}, but the settings (server.host, server.port, server.listen) "
            f"say {ours}: {REPAIR}"
        )
    return [found[address.key] for address in addresses]


def stream(address: ListenAddress) -> str:
    """The address as a socket unit's `ListenStream=` wants it: host names are not allowed there."""
    return _shown(*resolved(address))


def resolved(address: ListenAddress) -> tuple[Host, int]:
    """Raises `ConfigError` for a host name that is none."""
    try:
        host = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][4][0]
    except (OSError, UnicodeError):
        raise ConfigError(f"{address.key} {address.host!r}: not a host name") from None
    return ip_address(host), address.port


def _place(sock: socket.socket) -> tuple[Host, int]:
    host, port = sock.getsockname()[:2]
    return ip_address(host), port


def _is_at(sock: socket.socket, host: Host, port: int) -> bool:
    its_host, its_port = _place(sock)
    return its_host == host and port in (0, its_port)


def _shown(host: Host, port: int) -> str:
    return f"[{host}]:{port}" if host.version == 6 else f"{host}:{port}"
