"""The store of model files: names, what counts as a model, what may be deleted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from homeai import cli, default_model
from homeai.config import load
from homeai.errors import ConfigError, HomeAIError
from homeai.models import Reference, Store, chosen
from tests.daemon import Daemon

REPO = "Qwen/Qwen3-8B-GGUF"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def put(store: Store, name: str, num_bytes: int = 4) -> Path:
    path = store.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF".ljust(num_bytes))
    return path


def names(store: Store) -> list[str]:
    return [model.name for model in store.list()]


# ---- references ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Qwen/Qwen3-8B-GGUF", Reference("Qwen", "Qwen3-8B-GGUF")),
        ("Qwen/Qwen3-8B-GGUF:Q4_K_M", Reference("Qwen", "Qwen3-8B-GGUF", "Q4_K_M")),
        ("hf.co/Qwen/Qwen3-8B-GGUF:UD-Q4_K_XL", Reference("Qwen", "Qwen3-8B-GGUF", "UD-Q4_K_XL")),
        ("https://huggingface.co/Qwen/Qwen3-8B-GGUF", Reference("Qwen", "Qwen3-8B-GGUF")),
    ],
)
def test_reference_is_owner_repository_and_quant(text: str, expected: Reference) -> None:
    assert Reference.parse(text) == expected


@pytest.mark.parametrize(
    "text", ["", "model", "a/b/c", "/srv/model.gguf", "models/x.gguf", "../x/y", "a/..", "a/b:c d"]
)
def test_path_is_no_reference(text: str) -> None:
    assert Reference.parse(text) is None


# ---- what is there -------------------------------------------------------------------------------------


def test_only_complete_models_are_listed(store: Store) -> None:
    put(store, "mine.gguf")
    put(store, f"{REPO}/Qwen3-8B-Q4_K_M.gguf")
    put(store, f"{REPO}/Qwen3-8B-Q8_0-00001-of-00002.gguf")
    put(store, f"{REPO}/mmproj-F16.gguf")
    put(store, f".partial/{REPO}/abc.part")
    put(store, ".partial/o/r/x.gguf")
    assert names(store) == [f"{REPO}:Q4_K_M", "mine"]
    assert store.unfinished() == [(REPO, 4), ("o/r", 4)]


def test_split_model_is_one_with_the_size_of_all_parts(store: Store) -> None:
    first = put(store, f"{REPO}/Q8_0/Qwen3-8B-Q8_0-00001-of-00002.gguf", 10)
    put(store, f"{REPO}/Q8_0/Qwen3-8B-Q8_0-00002-of-00002.gguf", 7)
    (model,) = store.list()
    assert (model.name, model.path, model.size_bytes) == (f"{REPO}:Q8_0", first, 17)


def test_folder_of_safetensors_is_one_model(store: Store) -> None:
    first = put(store, "o/r/model-00001-of-00002.safetensors", 10)
    put(store, "o/r/config.json", 7)
    assert names(store) == []
    put(store, "o/r/model-00002-of-00002.safetensors", 10)
    put(store, "mine/model.safetensors", 5)
    put(store, "mine/config.json", 4)
    assert names(store) == ["o/r:safetensors", "mine"]
    for wanted in ("o/r", "r", "O/R:safetensors"):
        model = store.find(wanted)
        assert model is not None
        assert (model.path, model.size_bytes) == (first.parent, 27)
    mine = store.find("mine")
    assert mine is not None
    store.remove(mine)
    assert names(store) == ["o/r:safetensors"]
    assert not (store.root / "mine").exists()


def test_store_without_a_folder_is_empty(store: Store) -> None:
    assert names(store) == []
    assert store.unfinished() == []


# ---- names ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wanted",
    [
        "Qwen/Qwen3-8B-GGUF:Q8_0",
        "qwen/qwen3-8b-gguf:q8_0",
        "qwen3-8b:q8_0",
        "Qwen3-8B-GGUF:Q8_0",
        "Qwen3-8B-Q8_0",
        "Qwen3-8B-Q8_0.gguf",
    ],
)
def test_model_is_found_by_its_names(wanted: str, store: Store) -> None:
    put(store, f"{REPO}/Qwen3-8B-Q4_K_M.gguf")
    path = put(store, f"{REPO}/Qwen3-8B-Q8_0.gguf")
    model = store.find(wanted)
    assert model is not None
    assert model.path == path


def test_repository_alone_means_the_preferred_quant(store: Store) -> None:
    put(store, f"{REPO}/Qwen3-8B-Q8_0.gguf")
    path = put(store, f"{REPO}/Qwen3-8B-Q4_K_M.gguf")
    model = store.find("qwen3-8b")
    assert model is not None
    assert model.path == path


@pytest.mark.parametrize("wanted", ["Q8_0", "qwen3", "qwen3-8b:Q2_K", ""])
def test_other_names_are_no_models(wanted: str, store: Store) -> None:
    put(store, f"{REPO}/Qwen3-8B-Q8_0.gguf")
    assert store.find(wanted) is None


def test_name_of_two_models_is_refused_with_both(store: Store) -> None:
    put(store, "one/Parrot-GGUF/Parrot-Q4_0.gguf")
    put(store, "two/Parrot-GGUF/Parrot-Q4_0.gguf")
    with pytest.raises(HomeAIError, match=r"one/Parrot-GGUF:Q4_0 or two/Parrot-GGUF:Q4_0"):
        store.find("parrot")


def test_model_path_may_be_a_name(store: Store, tmp_path: Path) -> None:
    path = put(store, f"{REPO}/Qwen3-8B-Q4_K_M.gguf")
    for wanted in (f"{REPO}:Q4_K_M", REPO, "qwen3-8b", str(path)):
        settings = [("data_dir", str(tmp_path)), ("model.path", wanted)]
        assert chosen(load(None, env={}, overrides=settings)) == path


def test_model_that_was_not_pulled_says_how(tmp_path: Path) -> None:
    settings = [("data_dir", str(tmp_path)), ("model.path", REPO)]
    with pytest.raises(ConfigError, match=rf"model\.path: '{REPO}' does not exist: .*`homeai pull {REPO}`"):
        chosen(load(None, env={}, overrides=settings))


# ---- deleting ------------------------------------------------------------------------------------------


def test_removed_model_leaves_no_folders(store: Store) -> None:
    put(store, f"{REPO}/Q8_0/Qwen3-8B-Q8_0-00001-of-00002.gguf")
    put(store, f"{REPO}/Q8_0/Qwen3-8B-Q8_0-00002-of-00002.gguf")
    mine = put(store, "mine.gguf")
    store.remove(store.list()[0])
    assert list(store.root.iterdir()) == [mine]


def test_other_models_of_the_repository_stay(store: Store) -> None:
    put(store, f"{REPO}/Qwen3-8B-Q8_0.gguf")
    put(store, f"{REPO}/Qwen3-8B-Q4_K_M.gguf")
    store.remove(store.list()[0])
    assert names(store) == [f"{REPO}:Q8_0"]


def test_unfinished_download_can_be_deleted(store: Store) -> None:
    put(store, f".partial/{REPO}/abc.part")
    assert store.remove_unfinished(REPO)
    assert not store.remove_unfinished(REPO)
    assert list(store.root.iterdir()) == []


# ---- the commands --------------------------------------------------------------------------------------

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """One command in this process, with a data folder of its own and no daemon."""
    monkeypatch.setenv("HOMEAI_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("HOMEAI_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("COLUMNS", "300")

    def run_command(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["homeai", *args])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run_command


def test_list_shows_sizes_and_what_is_used(run: Run, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, f"{REPO}/Qwen3-8B-Q4_K_M.gguf", 30_000_000)
    put(store, "mine.gguf")
    put(store, ".partial/o/r/abc.part", 20_000_000)
    monkeypatch.setenv("HOMEAI_MODEL__PATH", "qwen3-8b")
    code, out, _ = run("models", "list")
    assert code == 0
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert "0.03 GB" in lines[f"{REPO}:Q4_K_M"]
    assert "chosen by model.path" in lines[f"{REPO}:Q4_K_M"]
    assert "chosen" not in lines["mine"]
    assert "unfinished" in lines["o/r"]


def test_list_of_nothing_says_so(run: Run) -> None:
    assert run("models", "list")[1].startswith("no models in ")


def test_removed_model_says_what_is_free(run: Run, store: Store) -> None:
    put(store, f"{REPO}/Qwen3-8B-Q4_K_M.gguf", 30_000_000)
    assert run("models", "rm", "qwen3-8b") == (0, f"{REPO}:Q4_K_M is deleted, 0.03 GB are free again\n", "")
    assert names(store) == []


def test_chosen_model_is_only_removed_by_force(run: Run, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOMEAI_MODEL__PATH", REPO)
    put(store, f"{REPO}/Qwen3-8B-Q4_K_M.gguf")
    code, _, err = run("models", "rm", REPO)
    assert code == 1
    assert err.startswith(f"homeai: {REPO}:Q4_K_M is in use (chosen by model.path): choose another model first")
    assert run("models", "rm", REPO, "--force")[0] == 0
    assert names(store) == []


def test_default_model_is_in_use_until_another_is_chosen(
    run: Run, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(store, default_model.FILE_NAME)
    record = path.with_suffix(".verified")
    record.write_bytes(b"")
    assert run("models", "rm", default_model.FILE_NAME)[0] == 1
    monkeypatch.setenv("HOMEAI_MODEL__PATH", str(put(store, "mine.gguf")))
    assert run("models", "rm", default_model.FILE_NAME)[0] == 0
    assert not path.exists()
    assert not record.exists()


def test_model_that_a_daemon_serves_is_in_use(run: Run, store: Store, daemon: Daemon, model_path: Path) -> None:
    put(store, f"o/r/{model_path.name}")
    code, _, err = run("models", "rm", "o/r", "--url", daemon.url)
    assert (code, "(served now)" in err) == (1, True)


def test_unfinished_download_is_removed_by_its_repository(run: Run, store: Store) -> None:
    put(store, f".partial/{REPO}/abc.part")
    assert run("models", "rm", REPO) == (0, f"the unfinished download of {REPO} is deleted\n", "")


def test_unknown_model_is_told(run: Run) -> None:
    code, _, err = run("models", "rm", "parrot")
    assert (code, err.count("\n")) == (1, 1)
    assert "no model 'parrot'" in err


@pytest.mark.parametrize("command", ["pull", "plan", "models list", "models rm"])
def test_every_command_explains_itself(command: str, run: Run) -> None:
    code, out, _ = run(*command.split(), "--help")
    assert code == 0
    assert "Usage:" in out


def test_plan_says_what_a_model_takes(run: Run, model_path: Path) -> None:
    code, out, _ = run("plan", str(model_path), "--set", "scheduler.kv_cells=4096")
    assert code == 0
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert "235 MiB" in lines["weights"]
    assert "72 MiB" in lines["kv"]


def test_plan_refuses_in_one_line(run: Run, model_path: Path) -> None:
    code, out, err = run("plan", str(model_path), "--set", "scheduler.kv_cells=100000000", "--set", "model.fit=strict")
    assert (code, out) == (1, "")
    assert "does not fit: it needs" in err
    assert err.count("\n") == 1
