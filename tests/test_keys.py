from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from homeai.errors import ConfigError
from homeai.keys import Key, KeyStore, given_keys
from homeai.ledger import Ledger, LedgerRow

NOT_A_DATABASE = b"this is not a database, whatever its name says" * 100


def make_row(**fields) -> LedgerRow:
    return LedgerRow(
        **{"request_id": "r", "api": "", "source": "s", "fairness_class": "c", "model": "", "status": 200} | fields
    )


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


def test_key_is_found_by_its_name_as_long_as_it_counts(store, path):
    store.add("kitchen", "voice")
    assert store.named("kitchen").fairness_class == "voice"
    assert store.named("kitche") is None
    other = KeyStore(path)
    other.revoke("kitchen")
    other.close()
    assert store.named("kitchen") is None


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


def test_key_keeps_its_limits(store, path):
    store.add("guest", requests_per_minute=5, tokens_per_day=20_000, max_context=2048)
    store.add("owner")
    later = KeyStore(path)
    guest, owner = later.list()
    later.close()
    assert (guest.requests_per_minute, guest.tokens_per_day, guest.max_context) == (5, 20_000, 2048)
    assert (owner.requests_per_minute, owner.tokens_per_day, owner.max_context) == (None, None, None)


def test_what_keys_have_used_is_in_the_ledger(store, path):
    ledger = Ledger(path, 90)
    ledger.start()
    for key, arrival in (("a", 10.0), ("a", 20.0), ("a", 30.0), ("b", 30.0), (None, 30.0)):
        ledger.record(make_row(key=key, arrival=arrival, num_prompt_tokens=100, num_output_tokens=1))
    ledger.close()
    assert store.spent(20.0) == {"a": 202, "b": 101}


def test_nothing_is_known_to_be_used_where_the_ledger_cannot_be_read(path):
    path.write_bytes(NOT_A_DATABASE)
    assert KeyStore(path).spent(0.0) == {}


def test_keys_of_an_earlier_homeai_have_no_limits(path):
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE requests (request_id TEXT);"
            "CREATE TABLE keys (name TEXT PRIMARY KEY, hash TEXT, fairness_class TEXT, trusted INTEGER,"
            "created_at REAL);"
            "INSERT INTO keys VALUES ('old', 'x', 'voice', 1, 5.0); PRAGMA user_version = 2;"
        )
    store = KeyStore(path)
    (key,) = store.list()
    store.close()
    assert key == Key(name="old", fairness_class="voice", trusted=True, created_at=5.0)


def test_nothing_is_opened_before_it_is_needed(path):
    KeyStore(path).close()
    assert not path.exists()


# ---- keys in a file ------------------------------------------------------------------------------------

GIVEN = "hai_" + "0123456789" * 4


def given(directory: Path, text: str) -> list[tuple[str, Key]]:
    (directory / "keys.yaml").write_text(text)
    return given_keys({"CREDENTIALS_DIRECTORY": str(directory)}, ["voice"])


def test_key_in_a_credential_is_a_key_without_a_word_in_the_database(tmp_path, path):
    keys = given(tmp_path, f"- {{name: tablet, key: {GIVEN}, class: voice, admin: true, max_context: 4096}}")
    store = KeyStore(path, keys)
    token = store.add("laptop")
    try:
        key, other = store.find(GIVEN), store.find(token)
        assert key is not None
        assert other is not None
        assert (key.name, key.fairness_class, key.admin, key.max_context) == ("tablet", "voice", True, 4096)
        assert other.name == "laptop"
        assert store.named("tablet") == key
        assert [key.name for key in store.list()] == ["laptop"]
    finally:
        store.close()


def test_key_in_a_credential_works_without_a_readable_database(tmp_path, path):
    path.write_bytes(NOT_A_DATABASE)
    store = KeyStore(path, given(tmp_path, f"- {{name: tablet, key: {GIVEN}}}"))
    assert store.find(GIVEN) is not None
    assert store.failure is not None


def test_no_credential_is_no_keys(tmp_path):
    assert given_keys({}, []) == []
    assert given_keys({"CREDENTIALS_DIRECTORY": str(tmp_path)}, []) == []
    assert given(tmp_path, "[]") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- {name: a, key: secret-but-short}", "length >= 32 - at `$[0].key`"),
        (f"- {{name: a, key: {GIVEN}, class: loud}}", "keys.yaml, a: class loud does not exist; there are voice"),
        (f"- {{name: a, key: {GIVEN}, clas: voice}}", "unknown field `clas`"),
        (f"a: {GIVEN}", "Expected `array`"),
        (f"- {GIVEN}", "Expected `object`"),
        (f"[{GIVEN}", "it is not a list in YAML"),
        (f"- {{name: a, key: {GIVEN}, tokens_per_day: 0}}", "`$[0].tokens_per_day`"),
    ],
)
def test_credential_that_cannot_be_used_is_one_line_without_the_key(tmp_path, text, words):
    with pytest.raises(ConfigError) as caught:
        given(tmp_path, text)
    assert words in str(caught.value)
    assert str(caught.value).isprintable()
    assert GIVEN not in str(caught.value)
    assert "secret" not in str(caught.value)
