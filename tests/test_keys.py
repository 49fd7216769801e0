from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from homeai.errors import ConfigError
from homeai.keys import KeyStore

NOT_A_DATABASE = b"this is not a database, whatever its name says" * 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def store(path: Path):
    store = KeyStore(path)
    yield store
    store.close()


def test_key_is_found_by_its_token_alone(store):
    token = store.add("kitchen", "voice", trusted=True)
    store.add("laptop")
    key = store.find(token)
    assert key is not None
    assert (key.name, key.fairness_class, key.trusted) == ("kitchen", "voice", True)


@pytest.mark.parametrize("token", ["", "hai_", "hai_wrong", "\ud83d", "x" * 100_000])
def test_anything_else_finds_nobody(store, token):
    store.add("kitchen")
    assert store.find(token) is None


def test_tokens_are_recognisable_and_never_the_same(store):
    tokens = {store.add(f"key{i}") for i in range(20)}
    assert len(tokens) == 20
    assert all(token.startswith("hai_") and len(token) >= 40 for token in tokens)


def test_token_is_nowhere_in_the_file(store, path):
    token = store.add("kitchen")
    files = [file for file in path.parent.iterdir() if file.name.startswith(path.name)]
    assert all(token.encode() not in file.read_bytes() for file in files)


def test_keys_of_another_process_count_at_once(store, path):
    assert store.find("hai_x") is None
    other = KeyStore(path)
    token = other.add("phone")
    assert store.find(token)
    other.revoke("phone")
    assert store.find(token) is None
    other.close()


def test_revoked_key_finds_nobody(store):
    token = store.add("kitchen")
    store.revoke("kitchen")
    assert store.find(token) is None
    assert store.list() == []


def test_keys_are_listed_by_name(store):
    store.add("b")
    store.add("a")
    assert [key.name for key in store.list()] == ["a", "b"]


def test_names_are_unique(store):
    token = store.add("kitchen")
    with pytest.raises(ConfigError, match="already a key named 'kitchen'"):
        store.add("kitchen")
    assert store.find(token)


def test_unknown_name_cannot_be_revoked(store):
    with pytest.raises(ConfigError, match="no key named 'attic'"):
        store.revoke("attic")


def test_keys_outlive_the_daemon(store, path):
    token = store.add("kitchen")
    later = KeyStore(path)
    assert later.find(token)
    later.close()


def test_known_keys_work_while_the_file_cannot_be_read(store, path):
    token = store.add("kitchen")
    store._database.close()
    assert store.find(token)


def test_unusable_file_is_refused_in_one_line(path):
    path.write_bytes(NOT_A_DATABASE)
    with pytest.raises(ConfigError, match=r"keys in .* cannot be used: file is not a database"):
        KeyStore(path).list()
    assert path.read_bytes() == NOT_A_DATABASE


def test_file_of_a_newer_homeai_is_refused(path):
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 999")
    connection.close()
    with pytest.raises(ConfigError, match="newer homeai"):
        KeyStore(path).list()


def test_unusable_file_knows_nobody_and_is_tried_again(path, store, caplog):
    """Said when it begins and when it ends; the file itself is left to its owner."""
    caplog.set_level("INFO", logger="homeai.keys")
    path.write_bytes(NOT_A_DATABASE)
    for _ in range(2):
        assert store.find("hai_x") is None
        assert "not a database" in store.failure
    assert path.read_bytes() == NOT_A_DATABASE
    path.unlink()
    token = store.add("kitchen")
    assert store.find(token).name == "kitchen"
    assert store.failure is None
    assert [(record.levelname, "cannot be used" in record.message) for record in caplog.records] == [
        ("WARNING", True),
        ("INFO", False),
    ]


def test_nothing_is_opened_before_it_is_needed(path):
    KeyStore(path).close()
    assert not path.exists()
