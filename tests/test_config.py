from __future__ import annotations

import itertools
from ipaddress import ip_network
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from homeai.config import DEFAULT_CLASSES, ClassConfig, Config, load
from homeai.errors import ConfigError

EXAMPLE = Path(__file__).parent.parent / "config.example.yaml"


@pytest.fixture
def written(tmp_path: Path):
    """Writes a settings file and loads it."""

    def write_and_load(text: str, *, env: dict[str, str] | None = None, overrides=()) -> Config:
        path = tmp_path / "config.yaml"
        path.write_text(text, encoding="utf-8")
        return load(path, env=env or {}, overrides=overrides)

    return write_and_load


def refusal(load_it, *args, **kwargs) -> str:
    with pytest.raises(ConfigError) as caught:
        load_it(*args, **kwargs)
    message = str(caught.value)
    assert message.isprintable(), "one line, whatever was in the file"
    return message


# ---- the example --------------------------------------------------------------------------------------


def test_example_equals_the_defaults():
    assert load(EXAMPLE, env={}) == load(None, env={})


def test_example_shows_every_key_and_no_other():
    example = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    shown = {(section, key) for section, keys in example.items() if isinstance(keys, dict) for key in keys}
    sections = {name: value for name, value in load(None, env={}) if isinstance(value, BaseModel)}
    settings = {(name, key) for name, section in sections.items() for key in type(section).model_fields}
    assert shown == settings | {("classes", name) for name in DEFAULT_CLASSES}
    assert example.keys() == Config.model_fields.keys()


def test_every_key_of_the_example_is_explained():
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    explained_together = {"output_token_weight", "restart_window_s", *ClassConfig.model_fields}
    for above, line in itertools.pairwise(lines):
        key = line.strip().split(":")[0]
        is_setting = (
            line and not line.lstrip().startswith(("#", "- ")) and key not in (*DEFAULT_CLASSES, *explained_together)
        )
        assert not is_setting or above.lstrip().startswith("#"), f"{line} has no comment"


# ---- who wins -----------------------------------------------------------------------------------------


def test_later_layers_win(written):
    text = "server: {port: 1, host: 10.0.0.1, auth: keys}"
    env = {"HOMEAI_SERVER__PORT": "2", "HOMEAI_SERVER__HOST": "10.0.0.2"}
    server = written(text, env=env, overrides=[("server.port", "3"), ("server.port", "4")]).server
    assert (server.port, server.host, server.auth, server.log_level) == (4, "10.0.0.2", "keys", "info")


def test_file_is_named_by_the_argument_then_by_the_environment(tmp_path, written):
    other = tmp_path / "other.yaml"
    other.write_text("server: {port: 2}")
    env = {"HOMEAI_CONFIG": str(other)}
    assert load(None, env=env).server.port == 2
    assert written("server: {port: 1}", env=env).server.port == 1


@pytest.mark.parametrize("text", ["", "# nothing\n", "server:\n", "classes:\n  voice:\n", "data_dir:\n"])
def test_what_is_commented_out_is_the_default(written, text):
    assert written(text) == load(None, env={})


def test_data_dir_follows_the_environment(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    assert load(None, env={}).data_dir == Path("/home/ada/.local/share/homeai")
    assert load(None, env={"XDG_DATA_HOME": "/data"}).data_dir == Path("/data/homeai")
    assert load(None, env={"XDG_DATA_HOME": "relative"}).data_dir == Path("/home/ada/.local/share/homeai")
    assert load(None, env={"XDG_DATA_HOME": "/data", "HOMEAI_DATA_DIR": "/srv/ai"}).data_dir == Path("/srv/ai")


def test_ledger_lives_in_the_data_dir_unless_told():
    assert load(None, env={"HOMEAI_DATA_DIR": "/srv"}).ledger_path == Path("/srv/ledger.db")
    assert load(None, env={"HOMEAI_LEDGER__PATH": "/var/l.db"}).ledger_path == Path("/var/l.db")


@pytest.mark.parametrize(("text", "host"), [("::1", "::1"), ("1:30", "1:30"), ("a b", "a b"), ("@home", "@home")])
def test_text_stays_as_written(text, host):
    assert load(None, env={"HOMEAI_SERVER__HOST": text}).server.host == host


@pytest.mark.parametrize("word", ["on", "off", "auto"])
def test_on_and_off_are_words(written, word):
    assert written(f"model: {{flash_attention: {word}}}").model.flash_attention == word


def test_null_and_nothing_mean_unset():
    env = {"HOMEAI_MODEL__PATH": "", "HOMEAI_MODEL__NAME": "null"}
    assert load(None, env=env).model == load(None, env={}).model


# ---- classes and sources ------------------------------------------------------------------------------


def test_named_class_keeps_what_it_leaves_out(written):
    config = written("classes: {voice: {weight: 3}, kids: {weight: 1, max_waiting: 0, queue_timeout_s: 9}}")
    assert config.classes["voice"].weight == 3
    assert config.classes["voice"].max_waiting == DEFAULT_CLASSES["voice"].max_waiting
    assert config.classes["coding"] == DEFAULT_CLASSES["coding"]
    assert config.classes["kids"].queue_timeout_s == 9


def test_class_can_be_changed_by_a_flag():
    assert load(None, env={}, overrides=[("classes.voice.max_waiting", "1")]).classes["voice"].max_waiting == 1


def test_sources_are_parsed_to_networks(written):
    config = written("""
sources:
  - {name: kitchen, class: voice, match: {address: [192.168.1.20, 192.168.2.7/24, "fd00::/8"], key: [k]}}
  - {name: nobody, class: background}
""")
    kitchen, nobody = config.sources
    assert kitchen.fairness_class == "voice"
    assert kitchen.match.key == ("k",)
    assert kitchen.match.address == (
        ip_network("192.168.1.20/32"),
        ip_network("192.168.2.0/24"),
        ip_network("fd00::/8"),
    )
    assert nobody.match.address == ()


def test_volatile_parts_and_pins_are_read(written):
    config = written("""
sources:
  - name: kitchen
    class: voice
    volatile: [{pattern: 'It is [0-9:]+', action: move}]
pins:
  - {name: house, source: kitchen, system: You are a house.}
  - {name: file, file: ~/house.txt}
""")
    (rule,) = config.sources[0].volatile
    assert (rule.pattern, rule.action) == ("It is [0-9:]+", "move")
    assert [pin.system for pin in config.pins] == ["You are a house.", None]
    assert config.pins[1].file == Path.home() / "house.txt"


# ---- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("server: {port: abc}", "server.port: 'abc' is not allowed: an integer from 0 to 65535"),
        ("server: {port: true}", "server.port: true is not allowed: an integer from 0 to 65535"),
        ("server: {port: 8700.0}", "server.port: 8700.0 is not allowed: an integer from 0 to 65535"),
        ("server: {port: null}", "server.port: null is not allowed: an integer from 0 to 65535"),
        ("server: {port: &a [*a]}", "server.port: [[...]] is not allowed: an integer from 0 to 65535"),
        ("server: {auth: yes}", "server.auth: 'yes' is not allowed: auto, keys or none"),
        ("server: {ping_interval_s: 0}", "server.ping_interval_s: 0 is not allowed: a number above 0, or -1 for off"),
        ("server: {allowed_hosts: [1]}", "server.allowed_hosts[0]: 1 is not allowed: a name, in quotes"),
        ("server: 5", "server: 5 is not allowed: a mapping"),
        ("ledger: {enabled: 1}", "ledger.enabled: 1 is not allowed: true or false"),
        ("ledger: {retention_days: -1}", "ledger.retention_days: -1 is not allowed: an integer from 0"),
        ("model: {path: 3}", "model.path: 3 is not allowed: a path or null"),
        ("model: {n_gpu_layers: -2}", "model.n_gpu_layers: -2 is not allowed: an integer from -1"),
        ("scheduler: {max_num_seqs: 257}", "scheduler.max_num_seqs: 257 is not allowed: an integer from 1 to 256"),
        ("scheduler: {max_num_batched_tokens: -5}", "scheduler.max_num_batched_tokens: -5 is not allowed: an integer"),
        ("scheduler: {prompt_token_weight: 0}", "scheduler.prompt_token_weight: 0 is not allowed: a number above 0"),
        ("classes: {voice: {weight: 0}}", "classes.voice.weight: 0 is not allowed: a number above 0"),
        ("classes: {voice: {weight: .nan}}", "classes.voice.weight: .nan is not allowed: a number above 0"),
        ("classes: {voice: {queue_timeout_s: .inf}}", "classes.voice.queue_timeout_s: .inf is not allowed: a number"),
        ("classes: {voice: {max_waiting: -1}}", "classes.voice.max_waiting: -1 is not allowed: an integer from 0"),
        ("classes: {kids: {weight: 1}}", "classes.kids.max_waiting is missing: an integer from 0"),
        ("sources: [{class: voice}]", "sources[0].name is missing: a name"),
        ("sources: {}", "sources: {} is not allowed: a list"),
        (
            "sources: [{name: a, class: voice, match: {address: [1.2.3.4/33]}}]",
            "sources[0].match.address[0]: '1.2.3.4/33' is not allowed: an address such as",
        ),
        (
            "sources: [{name: a, class: voice, volatile: [{pattern: '(?=a)', action: drop}]}]",
            "sources[0].volatile[0].pattern: '(?=a)' is not allowed: a regular expression (RE2: no look-around",
        ),
        (
            "sources: [{name: a, class: voice, volatile: [{pattern: 'a*', action: drop}]}]",
            "sources[0].volatile[0].pattern: 'a*' is not allowed: a regular expression",
        ),
        (
            "sources: [{name: a, class: voice, volatile: [{pattern: a, action: hide}]}]",
            "sources[0].volatile[0].action: 'hide' is not allowed: drop or move",
        ),
        ("pins: [{name: a, system: ''}]", "pins[0].system: '' is not allowed: a text or null"),
    ],
)
def test_impossible_value_is_named_with_what_is_allowed(written, text, message):
    assert refusal(written, text).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scheduler: {max_num_seq: 3}", "scheduler.max_num_seq is not a setting; did you mean scheduler.max_num_seqs?"),
        ("port: 3", "port is not a setting; did you mean server.port?"),
        ("server: {kv_cells: 3}", "server.kv_cells is not a setting; did you mean scheduler.kv_cells?"),
        ("sever: {port: 3}", "sever is not a setting; did you mean server?"),
        ("classes: {voice: {wieght: 3}}", "classes.voice.wieght is not a setting; did you mean classes.voice.weight?"),
        ("sources: [{nam: a}]", "sources[0].nam is not a setting; did you mean sources[0].name?"),
        ("zzz: 3", "zzz is not a setting ("),
        ("zzz:", "zzz is not a setting ("),
        ("8700: 3", "8700 is not a setting ("),
        ('"a\\nb": 1', r"'a\nb' is not a setting ("),
    ],
)
def test_unknown_key_names_the_closest_known_one(written, text, message):
    assert refusal(written, text).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scheduler: {max_chunk_tokens: 513}", "scheduler.max_chunk_tokens: 513 is not allowed: at most 512"),
        ("scheduler: {max_num_batched_tokens: 7}", "scheduler.max_num_seqs: 8 is not allowed: at most 7"),
        ("scheduler: {max_model_len: 16385}", "scheduler.max_model_len: 16385 is not allowed: at most 16384"),
        ("scheduler: {default_class: x}", "scheduler.default_class: 'x' is not allowed: voice, interactive, coding or"),
        ("sources: [{name: a, class: x}]", "sources[0].class: 'x' is not allowed: voice, interactive, coding or"),
        ("sources: [{name: a, class: voice}, {name: a, class: voice}]", "sources[1].name: 'a' is not allowed: a name"),
        ("pins: [{name: a}]", "pins[0]: null is not allowed: one of system, file and prompt"),
        ("pins: [{name: a, file: f, prompt: x}]", "pins[0]: 'file and prompt' is not allowed: one of system, file"),
        ("pins: [{name: a, prompt: x}, {name: a, prompt: y}]", "pins[1].name: 'a' is not allowed: a name that no"),
        ("pins: [{name: a, prompt: x, source: s}]", "pins[0].source: 's' is not allowed: null, without sources"),
        (
            "{sources: [{name: b, class: voice}], pins: [{name: a, prompt: x, source: s}]}",
            "pins[0].source: 's' is not allowed: b",
        ),
        ("model: {kv_type: q8_0, flash_attention: off}", "model.flash_attention: 'off' is not allowed: auto or on"),
    ],
)
def test_settings_must_fit_together(written, text, message):
    assert refusal(written, text).startswith(message)


@pytest.mark.parametrize("key", ["max_num_seqs", "max_num_batched_tokens", "chunked_prefill", "kv_cells"])
def test_each_control_can_be_changed_alone(key):
    value = "false" if key == "chunked_prefill" else "64"
    changed = load(None, env={}, overrides=[(f"scheduler.{key}", value)]).scheduler
    assert getattr(changed, key) == yaml.safe_load(value)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("server:\n  port: 1\n  port: 2", 3, "port is given twice"),
        ("server: {}\nserver: {}", 2, "server is given twice"),
        ("server:\n  port: [1,\n", 3, "expected"),
        ("server:\n\tport: 1", 2, "found character"),
        ("server: !!python/object:os.system {}", 1, "could not determine a constructor"),
        ("? [1]\n: 2", 1, "unhashable"),
        ("- server", 1, "not a mapping"),
        ("a: 1\n---\nb: 1", 2, "another document"),
    ],
)
def test_broken_yaml_is_told_by_its_line(written, text, line, problem):
    message = refusal(written, text)
    assert f"line {line}: " in message
    assert problem in message


@pytest.mark.parametrize("text", ["a: " + "9" * 5000, "[" * 5000, "!!bool maybe", "!!float x", "server: !!int x"])
def test_absurd_yaml_is_one_line(written, text):
    assert len(refusal(written, text).splitlines()) == 1


def test_unreadable_file_is_one_line(tmp_path):
    assert "cannot be read: No such file" in refusal(load, tmp_path / "none.yaml", env={})
    assert "cannot be read: Is a directory" in refusal(load, tmp_path, env={})
    (tmp_path / "latin.yaml").write_bytes(b"server: {host: caf\xe9}")
    assert "not YAML" in refusal(load, tmp_path / "latin.yaml", env={})


def test_unknown_variable_is_refused_with_the_one_meant():
    message = refusal(load, None, env={"HOMEAI_SERVER_PORT": "1", "HOME": "/", "PATH": "x"})
    assert message == "server_port is not a setting; did you mean server.port? (HOMEAI_SERVER_PORT)"


def test_refusal_says_where_the_value_came_from(written, tmp_path):
    assert refusal(load, None, env={"HOMEAI_SERVER__PORT": "x"}).endswith("(HOMEAI_SERVER__PORT)")
    assert refusal(load, None, env={}, overrides=[("server.port", "x")]).endswith("(--set)")
    assert refusal(written, "server: {port: x}").endswith(f"({tmp_path / 'config.yaml'})")


def test_long_values_are_cut(written):
    assert len(refusal(written, f"server: {{port: {'x' * 10_000}}}")) < 300


def test_settings_cannot_be_changed_afterwards():
    with pytest.raises(ValueError, match="frozen"):
        load(None, env={}).server.port = 1


# ---- who may talk to the daemon -----------------------------------------------------------------------


def test_every_address_to_listen_on_is_read(written):
    server = written("server: {port: 1, listen: ['0.0.0.0:11434', '[::1]:2', 'http://brain.lan:3']}").server
    assert [(a.key, a.host, a.port, a.tls) for a in server.addresses] == [
        ("server.host", "127.0.0.1", 1, False),
        ("server.listen[0]", "0.0.0.0", 11434, False),
        ("server.listen[1]", "::1", 2, False),
        ("server.listen[2]", "brain.lan", 3, False),
    ]


def test_with_a_certificate_addresses_speak_tls_unless_told_otherwise(written):
    files = "tls_cert: /c.pem, tls_key: /k.pem"
    server = written(f"server: {{{files}, listen: ['0.0.0.0:1', 'http://127.0.0.1:2', 'https://[::]:3']}}").server
    assert [address.tls for address in server.addresses] == [True, True, False, True]


@pytest.mark.parametrize(
    "address",
    ["11434", ":11434", "host", "::1", "::1:80", "host:", "host:65536", "ftp://host:1", "host:1/x", "a b:1", ""],
)
def test_what_is_no_address_to_listen_on_is_refused(written, address):
    message = refusal(written, f"server: {{listen: ['{address}']}}")
    assert "server.listen[0]: " in message
    assert "host:port, such as 0.0.0.0:11434 or [::]:11434" in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("server: {tls_cert: /c.pem}", "server.tls_key: null is not allowed: a file, since server.tls_cert is given"),
        ("server: {tls_key: /k.pem}", "server.tls_cert: null is not allowed: a file, since server.tls_key is given"),
        ("server: {listen: ['https://[::]:1']}", "server.listen[0]: 'https://[::]:1' is not allowed: https only with"),
        ("server: {keyless: [everybody]}", "server.keyless[0]: 'everybody' is not allowed: an address such as"),
        ("server: {trusted_proxies: [proxy]}", "server.trusted_proxies[0]: 'proxy' is not allowed: an address such"),
        ("server: {header_timeout_s: 0}", "server.header_timeout_s: 0 is not allowed: a number above 0"),
        ("server: {max_header_bytes: 10}", "server.max_header_bytes: 10 is not allowed: an integer from 1024"),
        ("side_requests: {lower_to: x}", "side_requests.lower_to: 'x' is not allowed: voice, interactive, coding or"),
        ("side_requests: {patterns: ['(']}", "side_requests.patterns[0]: '(' is not allowed: a regular expression"),
        ("side_requests: {headers: {X: ''}}", "side_requests.headers.X: '' is not allowed: a regular expression"),
        (
            "sources: [{name: a, class: voice, match: {user_agent: ['(?=x)']}}]",
            "sources[0].match.user_agent[0]: '(?=x)' is not allowed: a regular expression",
        ),
    ],
)
def test_mistake_about_who_may_talk_is_one_line(written, text, words):
    assert words in refusal(written, text)


def test_side_requests_may_be_left_as_they_are(written):
    assert written("side_requests: {lower_to: null}").side_requests.lower_to is None
