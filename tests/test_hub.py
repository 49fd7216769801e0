"""Models are pulled whole or not at all. A real HTTP server speaks the hub's part."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from homeai import hub
from homeai.errors import PullError
from homeai.models import Reference, Store, sets_in
from tests.daemon import eventually
from tests.fake_hub import FakeHub

MIB = 2**20
DATA = b"GGUF" + random.Random(5).randbytes(5 * MIB)
REPO = "tiny/Parrot-GGUF"
Q4 = "Parrot-Q4_K_M.gguf"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    with FakeHub().running() as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        template = running.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        running.repos[REPO] = {Q4: DATA, "Parrot-Q8_0.gguf": DATA + b"8", "README.md": b"# Parrot"}
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def reference(text: str) -> Reference:
    parsed = Reference.parse(text)
    assert parsed is not None
    return parsed


def pull(text: str, store: Store) -> tuple[Path, list[int], list[float]]:
    """The file, the progress as it was told, and how long was waited between tries."""
    told: list[int] = []
    pauses: list[float] = []
    model = hub.Pull(hub.look_up(reference(text)), store, pause=pauses.append).run(told.append)
    return model.path, told, pauses


def partial_files(store: Store) -> list[Path]:
    return sorted(store.partial_directory(REPO).glob("*.part"))


# ---- which files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "names", "chosen"),
    [
        ("o/r", ["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q2_K.gguf"], "m-Q4_K_M"),
        ("o/r", ["m-Q8_0.gguf", "m-Q5_K_M.gguf"], "m-Q5_K_M"),
        ("o/r", ["whatever.gguf"], "whatever"),
        ("o/r", ["mmproj-F16.gguf", "m.Q6_K.gguf", "m.imatrix.gguf"], "m.Q6_K"),
        ("o/r:q8_0", ["m-Q8_0.gguf", "m-Q4_K_M.gguf"], "m-Q8_0"),
        ("o/r:UD-Q4_K_XL", ["m-UD-Q4_K_XL.gguf", "m-Q4_K_M.gguf"], "m-UD-Q4_K_XL"),
        ("o/r:Q4_K_M", ["Q4_K_M/m-00001-of-00002.gguf", "Q4_K_M/m-00002-of-00002.gguf", "m-Q8_0.gguf"], "Q4_K_M/m"),
        ("o/r:big-Q4_0", ["big-Q4_0.gguf", "small-Q4_0.gguf"], "big-Q4_0"),
        ("hf.co/o/r:f16", ["m-f16.gguf", "m-bf16.gguf"], "m-f16"),
        ("o/r", ["config.json", "model.safetensors", "m-Q6_K.gguf", "x.gguf", "m-Q4_0.gguf"], "m-Q4_0"),
        ("o/r:safetensors", ["config.json", "model.safetensors", "m-Q6_K.gguf"], "r"),
        ("o/r", ["config.json", "model.safetensors"], "r"),
    ],
)
def test_quant_chooses_the_files(wanted: str, names: list[str], chosen: str) -> None:
    meant = reference(wanted)
    assert hub.choose(meant, sets_in(meant.repo, names)).stem == chosen


@pytest.mark.parametrize(
    ("wanted", "names", "complaint"),
    [
        ("o/r:Q5_K_M", ["m-Q8_0.gguf", "m-Q4_0.gguf"], "o/r has no Q5_K_M: choose o/r:Q4_0 or :Q8_0"),
        ("o/r", ["a-Q4_0.gguf", "b-Q4_0.gguf"], "o/r has several: choose o/r:a-Q4_0 or :b-Q4_0"),
        ("o/r", ["model.safetensors"], "o/r has no GGUF model"),
        ("o/r", ["m-Q4_0-00001-of-00002.gguf"], "o/r has no GGUF model"),  # the other half is missing
        ("o/r", ["config.json", "model-00001-of-00002.safetensors"], "o/r has no GGUF model .*, nor config.json with"),
        ("o/r", ["../../m-Q4_0.gguf", "/m-Q4_0.gguf"], "o/r has no GGUF model"),  # names that lead elsewhere
    ],
)
def test_choice_that_is_not_clear_is_explained(wanted: str, names: list[str], complaint: str) -> None:
    with pytest.raises(PullError, match=complaint):
        hub.choose(reference(wanted), sets_in("r", names))


# ---- fetching ------------------------------------------------------------------------------------------


def test_model_is_fetched_checked_and_kept(fake: FakeHub, store: Store) -> None:
    path, told, _ = pull(f"{REPO}:Q4_K_M", store)
    assert path == store.root / REPO / Q4
    assert path.read_bytes() == DATA
    assert told == sorted(told)
    assert told[-1] == len(DATA)
    assert [model.name for model in store.list()] == [f"{REPO}:Q4_K_M"]
    assert not store.unfinished()


FOLDER = {
    "README.md": b"# Ant",
    "config.json": b"{}",
    "generation_config.json": b"{}",  # as another one, and small ones come from git
    "tokenizer.json": DATA[:1000],
    "model-00001-of-00002.safetensors": DATA[:MIB],
    "model-00002-of-00002.safetensors": DATA[MIB:],
    "model.safetensors.index.json": b"{}",
    "original/model.safetensors": DATA,
    "chat_template.jinja": b"{{ messages }}",
}


def test_folder_of_safetensors_comes_with_what_belongs_to_it(fake: FakeHub, store: Store) -> None:
    fake.repos["tiny/Ant"] = FOLDER
    path, told, _ = pull("tiny/Ant", store)
    assert path == store.root / "tiny/Ant"
    there = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    assert there == {
        name: data for name, data in FOLDER.items() if name not in ("README.md", "original/model.safetensors")
    }
    assert told[-1] == sum(map(len, there.values()))
    assert [model.name for model in store.list()] == ["tiny/Ant:safetensors"]


def test_small_file_that_came_damaged_is_deleted(fake: FakeHub, store: Store) -> None:
    fake.repos["tiny/Ant"] = FOLDER
    model = hub.look_up(reference("tiny/Ant"))
    fake.repos["tiny/Ant"] = FOLDER | {"config.json": b"[]"}
    with pytest.raises(PullError, match=r"config\.json came damaged and was deleted: its git hash is"):
        hub.Pull(model, store).run(lambda num_bytes: None)
    assert not store.list()


def test_parts_of_a_split_model_come_together(fake: FakeHub, store: Store) -> None:
    names = [f"Q4_K_M/Ox-Q4_K_M-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    fake.repos["tiny/Ox"] = {name: DATA[i * MIB : (i + 1) * MIB] for i, name in enumerate(names)}
    path, told, _ = pull("tiny/Ox", store)
    assert path == store.root / "tiny/Ox" / names[0]
    assert [(store.root / "tiny/Ox" / name).read_bytes() for name in names] == [*fake.repos["tiny/Ox"].values()]
    assert told[-1] == 3 * MIB
    assert len(store.list()) == 1


def test_model_that_is_there_is_only_checked(fake: FakeHub, store: Store) -> None:
    pull(REPO, store)
    fake.starts.clear()
    _, told, _ = pull(REPO, store)
    assert fake.starts == []
    assert told[-1] == len(DATA)


def test_model_that_was_changed_is_fetched_again(fake: FakeHub, store: Store) -> None:
    path, _, _ = pull(REPO, store)
    path.write_bytes(DATA[:-1] + b"!")
    pull(REPO, store)
    assert path.read_bytes() == DATA


def test_newer_version_of_a_model_replaces_the_older(fake: FakeHub, store: Store) -> None:
    pull(REPO, store)
    fake.repos[REPO][Q4] = DATA[::-1]
    path, _, _ = pull(REPO, store)
    assert path.read_bytes() == DATA[::-1]


def test_token_goes_to_the_hub(fake: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    pull(REPO, store)
    assert fake.tokens == ["Bearer hf_secret"]


# ---- interruptions -------------------------------------------------------------------------------------


def test_transfer_that_breaks_off_goes_on_where_it_was(fake: FakeHub, store: Store) -> None:
    fake.cuts = [MIB, 2 * MIB]
    path, told, pauses = pull(REPO, store)
    assert fake.starts == [0, MIB, 3 * MIB]
    assert path.read_bytes() == DATA
    assert told[-1] == len(DATA)
    assert pauses == []  # each try brought something


def test_interrupted_pull_goes_on_from_what_came(fake: FakeHub, store: Store) -> None:
    fake.cuts = [MIB]
    fake.failures = []
    model = hub.look_up(reference(REPO))

    def interrupt(num_bytes: int) -> None:
        if num_bytes >= MIB:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.Pull(model, store).run(interrupt)
    assert not store.list()
    assert store.unfinished() == [(REPO, MIB)]
    fake.starts.clear()
    path, told, _ = pull(REPO, store)
    assert fake.starts == [MIB]
    assert path.read_bytes() == DATA
    assert told[-1] == len(DATA)


def test_half_of_a_split_model_is_not_fetched_again(fake: FakeHub, store: Store) -> None:
    names = [f"Ox-Q4_K_M-0000{i}-of-00002.gguf" for i in (1, 2)]
    fake.repos["tiny/Ox"] = {names[0]: DATA, names[1]: DATA[::-1]}
    with pytest.raises(KeyboardInterrupt):
        hub.Pull(hub.look_up(reference("tiny/Ox")), store).run(_interrupt_above(len(DATA)))
    assert not store.list()
    fake.starts.clear()
    pull("tiny/Ox", store)
    assert fake.starts
    assert fake.starts[0] > 0
    assert len(fake.starts) == 1
    assert [(store.root / "tiny/Ox" / name).read_bytes() for name in names] == [DATA, DATA[::-1]]


def _interrupt_above(limit: int) -> hub.Progress:
    def progress(num_bytes: int) -> None:
        if num_bytes > limit:
            raise KeyboardInterrupt

    return progress


def test_hub_that_sends_all_again_is_understood(fake: FakeHub, store: Store) -> None:
    fake.cuts = [MIB + 7]
    fake.ignores_ranges = True
    path, _, _ = pull(REPO, store)
    assert path.read_bytes() == DATA


def test_hub_in_trouble_is_asked_again(fake: FakeHub, store: Store) -> None:
    fake.failures = [503, 429, 500]
    path, _, pauses = pull(REPO, store)
    assert path.read_bytes() == DATA
    assert pauses == [1.0, 2.0, 4.0]


def test_hub_that_stays_in_trouble_is_left(fake: FakeHub, store: Store) -> None:
    fake.cuts = [MIB]
    fake.failures = [503] * 99
    with pytest.raises(PullError, match=r"broke off: HTTP 503; the same command goes on"):
        pull(REPO, store)
    assert len(fake.starts) == hub.MAX_FRUITLESS + 1


# ---- never a wrong or half file ------------------------------------------------------------------------


def test_wrong_checksum_is_told_with_both_and_leaves_nothing(fake: FakeHub, store: Store) -> None:
    fake.sha256[Q4] = "ab" * 32
    with pytest.raises(PullError, match=rf"SHA-256 is {hashlib.sha256(DATA).hexdigest()}, the hub says {'ab' * 32}"):
        pull(REPO, store)
    assert not store.list()
    assert not partial_files(store)


def test_damage_before_an_interruption_is_found(fake: FakeHub, store: Store) -> None:
    with pytest.raises(KeyboardInterrupt):
        hub.Pull(hub.look_up(reference(REPO)), store).run(_interrupt_above(MIB))
    (part,) = partial_files(store)
    part.write_bytes(b"?" + part.read_bytes()[1:])
    with pytest.raises(PullError, match="came damaged and was deleted"):
        pull(REPO, store)
    path, _, _ = pull(REPO, store)
    assert path.read_bytes() == DATA


def test_two_pulls_of_one_repository_do_not_mix(fake: FakeHub, store: Store) -> None:
    model = hub.look_up(reference(REPO))
    with hub.Pull(model, store)._alone(), pytest.raises(PullError, match="another `homeai pull`"):
        hub.Pull(model, store).run(lambda num_bytes: None)


# ---- what cannot be --------------------------------------------------------------------------------------


def test_disk_without_room_is_told_before_anything_is_fetched(
    fake: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100_000_000))
    with pytest.raises(PullError, match=r"0\.01 GB and 0\.27 GB to spare are needed in .*, 0\.10 GB are free"):
        pull(REPO, store)
    assert fake.starts == []


def test_what_came_already_needs_no_room(fake: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        hub.Pull(hub.look_up(reference(REPO)), store).run(_interrupt_above(4 * MIB))
    free = hub.KEPT_FREE_BYTES + 2 * MIB
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    assert pull(REPO, store)[0].is_file()


def test_repository_that_is_unknown_is_told(fake: FakeHub, store: Store) -> None:
    with pytest.raises(PullError, match=r"knows no model nobody/Nothing \(a private one needs HF_TOKEN\)"):
        pull("nobody/Nothing", store)


def test_gated_repository_tells_what_to_do(fake: FakeHub, store: Store) -> None:
    fake.gated.add(REPO)
    with pytest.raises(PullError, match=rf"{REPO} is gated: accept its terms at {fake.url}/{REPO}, and set HF_TOKEN"):
        pull(REPO, store)


def test_hub_out_of_reach_is_told(fake: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(PullError, match=r"no connection to http://127\.0\.0\.1:9: "):
        pull(REPO, store)


def test_offline_switch_is_obeyed(fake: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PullError, match="HF_HUB_OFFLINE is set"):
        pull(REPO, store)


# ---- the command ---------------------------------------------------------------------------------------


def command(fake: FakeHub, data_dir: Path, *args: str) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HOMEAI_", "HF_"))}
    environment |= {"HF_ENDPOINT": fake.url, "HOMEAI_DATA_DIR": str(data_dir), "HF_HOME": str(data_dir / "hf")}
    argv = [sys.executable, "-m", "homeai", *args]
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Programs that we start take it; in a shell's background they would inherit that it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_the_command_in_one_line_and_it_goes_on_later(fake: FakeHub, tmp_path: Path) -> None:
    fake.cuts = [2 * MIB]
    fake.stalls = True
    with command(fake, tmp_path, "pull", REPO) as process:
        assert fake.is_sending.wait(60)
        eventually(lambda: any(size >= MIB for _, size in Store(tmp_path).unfinished()))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip().splitlines()[-1] == "homeai: interrupted; the same command goes on from here"
    assert "Traceback" not in err
    with command(fake, tmp_path, "pull", REPO) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (
        0,
        f"{REPO}:Q4_K_M is complete and checked; serve it with `homeai serve --model {REPO}:Q4_K_M`\n",
    ), err
    assert fake.starts[1] > 0


@pytest.mark.parametrize("name", ["nobody/Nothing", "not-a-repository", f"{REPO}:Q3_K"])
def test_command_that_fails_says_one_line(name: str, fake: FakeHub, tmp_path: Path) -> None:
    with command(fake, tmp_path, "pull", name) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert err.startswith("homeai: ")
    assert err.count("\n") == 1


def test_serving_does_not_load_the_hub() -> None:
    code = "import sys, homeai.cli, homeai.models, homeai.server.launch; assert 'huggingface_hub' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
