"""API keys: who may ask from beyond this machine. Kept hashed in the ledger's file, used from memory.

Others can be given in a file, as a systemd credential (`LoadCredential=keys.yaml:…`): a list of

    - {name: tablet, key: hai_…, class: voice}

with `trusted`, `admin`, `requests_per_minute`, `tokens_per_day` and `max_context` besides, where wanted.

A key is 32 random bytes, so one SHA-256 is enough: slow hashes and salts protect what can be guessed, and
2^256 cannot.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import msgspec
import yaml
from sqlite_utils import Database

from homeai.errors import ConfigError
from homeai.ledger import open_database

log = logging.getLogger("homeai.keys")

PREFIX = "hai_"
CREDENTIAL = "keys.yaml"
MIN_GIVEN_CHARS = 32  # of a key that we did not make: fewer could be guessed
COLUMNS = (
    *("name", "hash", "fairness_class", "trusted", "created_at"),
    *("requests_per_minute", "tokens_per_day", "max_context", "admin"),
)


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """`trusted`: believed when it says who it asks for (X-HomeAI-Source). `admin`: may load and unload the model.
    `created_at` is Unix time.

    Limits of its requests, None for none: how many in any 60 s, prompt and answer tokens from midnight to midnight,
    and prompt and answer tokens of one.
    """

    name: str
    fairness_class: str | None = None
    trusted: bool = False
    created_at: float
    requests_per_minute: int | None = None
    tokens_per_day: int | None = None
    max_context: int | None = None
    admin: bool = False


class KeyStore:
    """Used by one thread. `add`, `list` and `revoke` raise `ConfigError` when the file cannot be used.

    A file that cannot be read leaves the keys as they were last read: none, when it never could be. It is left as
    it is, and tried again whenever a key is to be found.
    """

    def __init__(self, path: Path, given: Sequence[tuple[str, Key]] = ()) -> None:
        """`given`: more keys, with their hashes; they are found like those of the file, and not listed."""
        self._path = path
        self._given = given
        self._database: Database | None = None
        self._version = -1  # of the file as this connection last saw it
        self._keys: list[tuple[str, Key]] = []  # with their hashes
        self.failure: str | None = None  # why they could not be read, when they were looked for last

    def add(
        self,
        name: str,
        fairness_class: str | None = None,
        trusted: bool = False,
        *,
        requests_per_minute: int | None = None,
        tokens_per_day: int | None = None,
        max_context: int | None = None,
        admin: bool = False,
    ) -> str:
        """The new key in plain text, which is nowhere kept."""
        token = PREFIX + secrets.token_urlsafe(32)
        limits = requests_per_minute, tokens_per_day, max_context
        row = (name, _hash(token), fairness_class, trusted, time.time(), *limits, admin)
        if name in self._names():
            raise ConfigError(f"there is already a key named {name!r}: revoke it first")
        with self._usable() as database:
            database.execute(f"INSERT INTO keys ({', '.join(COLUMNS)}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            self._reload(database)
        return token

    def list(self) -> list[Key]:
        with self._usable() as database:
            self._reload_if_changed(database)
        return [key for _, key in self._keys]

    def revoke(self, name: str) -> None:
        if name not in self._names():
            raise ConfigError(f"there is no key named {name!r}")
        with self._usable() as database:
            database.execute("DELETE FROM keys WHERE name = ?", (name,))
            self._reload(database)

    def refresh(self) -> None:
        """Read what another process changed, if the file can be read. Logs when that begins and ceases to fail."""
        try:
            self.list()
        except ConfigError as error:
            if self.failure is None:
                log.warning("%s", error)
            self.failure = str(error)
        else:
            if self.failure is not None:
                log.info("the keys in %s can be read again", self._path)
            self.failure = None

    def find(self, token: str) -> Key | None:
        """The key that `token` is. Keys added or revoked by another process count at once.

        How long it takes says nothing about the keys: all are compared, each in constant time.
        """
        self.refresh()
        digest = _hash(token)
        matches = [key for known, key in (*self._given, *self._keys) if hmac.compare_digest(known, digest)]
        return matches[0] if matches else None

    def named(self, name: str) -> Key | None:
        """As it is now."""
        self.refresh()
        return next((key for _, key in (*self._given, *self._keys) if key.name == name), None)

    def spent(self, since: float) -> dict[str, int]:
        """The tokens, of prompts and answers, of each key's requests that came since then (Unix time), by its name.

        As far as the ledger has them: none, where it cannot be read.
        """
        query = """
            SELECT key, SUM(num_prompt_tokens + num_output_tokens) FROM requests
            WHERE arrival >= ? AND key IS NOT NULL GROUP BY key
        """
        try:
            with self._usable() as database:
                return dict(database.execute(query, (since,)).fetchall())
        except ConfigError:
            return {}

    def close(self) -> None:
        self._disconnect()

    def _names(self) -> set[str]:
        return {key.name for key in self.list()}

    @contextmanager
    def _usable(self) -> Iterator[Database]:
        try:
            if self._database is None:
                self._database, self._version = open_database(self._path), -1
            yield self._database
        except (sqlite3.Error, OSError) as error:
            self._disconnect()  # the next attempt opens the file afresh: it may be another one by then
            raise ConfigError(f"the keys in {self._path} cannot be used: {error}") from None

    def _disconnect(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _reload_if_changed(self, database: Database) -> None:
        (version,) = database.execute("PRAGMA data_version").fetchone()  # moves when others commit
        if version != self._version:
            self._reload(database)
            self._version = version

    def _reload(self, database: Database) -> None:
        rows = database.execute(f"SELECT {', '.join(COLUMNS)} FROM keys ORDER BY name")
        keys = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        self._keys = [(row.pop("hash"), msgspec.convert(row, Key, strict=False)) for row in keys]


# ---- keys in a file ------------------------------------------------------------------------------------


class GivenKey(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"fairness_class": "class"}
):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    key: Annotated[str, msgspec.Meta(min_length=MIN_GIVEN_CHARS)]
    fairness_class: str | None = None
    trusted: bool = False
    admin: bool = False
    requests_per_minute: Annotated[int, msgspec.Meta(ge=1)] | None = None
    tokens_per_day: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_context: Annotated[int, msgspec.Meta(ge=2)] | None = None


def given_keys(environ: Mapping[str, str], classes: Collection[str]) -> list[tuple[str, Key]]:
    """The keys of the credential, with their hashes. Raises `ConfigError`, which shows no value."""
    directory = environ.get("CREDENTIALS_DIRECTORY")
    if not directory:
        return []
    path = Path(directory) / CREDENTIAL
    try:
        given = msgspec.yaml.decode(path.read_bytes(), type=list[GivenKey])
        now = path.stat().st_mtime
    except FileNotFoundError:
        return []
    except (OSError, yaml.YAMLError, ValueError) as error:  # whose words can be a part of the file
        why = error if isinstance(error, (OSError, msgspec.ValidationError)) else "it is not a list in YAML"
        raise ConfigError(f"the keys in {CREDENTIAL} cannot be used: {why}") from None
    for key in given:
        if key.fairness_class is not None and key.fairness_class not in classes:
            allowed = ", ".join(classes)
            raise ConfigError(
                f"{CREDENTIAL}, {key.name}: class {key.fairness_class} does not exist; there are {allowed}"
            )
    return [(_hash(key.key), _key(key, now)) for key in given]


def _key(given: GivenKey, created_at: float) -> Key:
    fields = msgspec.structs.asdict(given)
    del fields["key"]
    return Key(**fields, created_at=created_at)


def _hash(token: str) -> str:
    return sha256(token.encode("utf-8", "replace")).hexdigest()
