"""API keys: who may ask from beyond this machine. Kept hashed in the ledger's file, used from memory.

A key is 32 random bytes, so one SHA-256 is enough: slow hashes and salts protect what can be guessed, and
2^256 cannot.
"""

from __future__ import annotations

import hmac
import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import msgspec

from homeai.errors import ConfigError
from homeai.ledger import open_database

PREFIX = "hai_"


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """`trusted`: believed when it says who it asks for (X-HomeAI-Source). `created_at` is Unix time."""

    name: str
    fairness_class: str | None
    trusted: bool
    created_at: float


class KeyStore:
    """Used by one thread. Raises `ConfigError` when the file cannot be used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version = -1  # of the file as this connection last saw it
        self._keys: list[tuple[str, Key]] = []  # with their hashes
        with self._usable():
            self._database = open_database(path)
            self._reload_if_changed()

    def add(self, name: str, fairness_class: str | None = None, trusted: bool = False) -> str:
        """The new key in plain text, which is nowhere kept."""
        token = PREFIX + secrets.token_urlsafe(32)
        row = (name, _hash(token), fairness_class, trusted, time.time())
        if name in self._names():
            raise ConfigError(f"there is already a key named {name!r}: revoke it first")
        with self._usable():
            self._database.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?)", row)
            self._reload()
        return token

    def list(self) -> list[Key]:
        with self._usable():
            self._reload_if_changed()
        return [key for _, key in self._keys]

    def revoke(self, name: str) -> None:
        if name not in self._names():
            raise ConfigError(f"there is no key named {name!r}")
        with self._usable():
            self._database.execute("DELETE FROM keys WHERE name = ?", (name,))
            self._reload()

    def find(self, token: str) -> Key | None:
        """The key that `token` is. Keys added or revoked by another process count at once.

        How long it takes says nothing about the keys: all are compared, each in constant time.
        """
        with suppress(sqlite3.Error):  # a file that cannot be read just now leaves the keys as they were
            self._reload_if_changed()
        digest = _hash(token)
        matches = [key for known, key in self._keys if hmac.compare_digest(known, digest)]
        return matches[0] if matches else None

    def close(self) -> None:
        self._database.close()

    def _names(self) -> set[str]:
        return {key.name for key in self.list()}

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(f"the keys in {self._path} cannot be used: {error}") from None

    def _reload_if_changed(self) -> None:
        (version,) = self._database.execute("PRAGMA data_version").fetchone()  # moves when others commit
        if version != self._version:
            self._reload()
            self._version = version

    def _reload(self) -> None:
        rows = self._database.execute("SELECT hash, name, fairness_class, trusted, created_at FROM keys ORDER BY name")
        self._keys = [
            (digest, Key(name=name, fairness_class=fairness_class, trusted=bool(trusted), created_at=created_at))
            for digest, name, fairness_class, trusted, created_at in rows
        ]


def _hash(token: str) -> str:
    return sha256(token.encode("utf-8", "replace")).hexdigest()
