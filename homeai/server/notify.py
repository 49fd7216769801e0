"""What systemd wants to hear from a `Type=notify` service (sd_notify(3)); silent anywhere else."""

from __future__ import annotations

import contextlib
import os
import socket

TIMEOUT_S = 1.0  # for a note, when the manager's queue is full


class Notifier:
    """Without an `address` it takes that of the environment, which no child inherits then: we alone are listened to."""

    def __init__(self, address: str | None = None) -> None:
        address = os.environ.pop("NOTIFY_SOCKET", None) if address is None else address
        self._address = "\0" + address[1:] if address and address.startswith("@") else address
        self.watchdog_s = int(os.environ.get("WATCHDOG_USEC", "0")) / 1e6

    @property
    def is_active(self) -> bool:
        return bool(self._address)

    def send(self, **fields: str | int) -> None:
        """e.g. `send(READY=1, STATUS="resident")`. Best effort: a lost note is not a reason to fail."""
        if not self._address:
            return
        text = "\n".join(f"{key}={' '.join(str(value).split())}" for key, value in fields.items())
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.settimeout(TIMEOUT_S)
            with contextlib.suppress(OSError):
                sock.sendto(text.encode("utf-8", "replace"), self._address)
