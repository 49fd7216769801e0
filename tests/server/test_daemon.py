"""What a run of the server is put together from."""

from __future__ import annotations

from ipaddress import ip_network

from uvicorn.middleware.proxy_headers import _TrustedHosts

from homeai.server.daemon import LOCAL_PROXIES, with_mapped


def test_proxy_is_believed_as_either_kind_of_socket_sees_it() -> None:
    networks = [ip_network("192.168.1.0/24"), ip_network("10.0.0.7"), ip_network("fd00::/64")]
    believed = _TrustedHosts([*LOCAL_PROXIES, *with_mapped(networks)])
    for address in ("127.0.0.1", "127.9.9.9", "::1", "192.168.1.7", "10.0.0.7", "fd00::7"):
        assert address in believed
    for address in ("::ffff:127.0.0.1", "::ffff:192.168.1.7", "::ffff:10.0.0.7"):
        assert address in believed
    for address in ("192.168.2.7", "10.0.0.8", "::ffff:10.0.0.8", "fd00:0:0:1::7", "::ffff:8.8.8.8", ""):
        assert address not in believed
