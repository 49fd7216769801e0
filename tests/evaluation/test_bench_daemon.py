"""`homeai bench` against the real daemon, and with daemons of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from homeai.errors import HomeAIError
from homeai.evaluation.bench import groups, targets
from homeai.evaluation.bench.daemon import serving
from homeai.evaluation.bench.groups import Sizes
from homeai.evaluation.bench.records import Ending
from homeai.evaluation.bench.targets import Asking
from homeai.evaluation.bench.trace import Part, Trace
from tests.daemon import Daemon, eventually_async
from tests.evaluation.bench_factories import create_call

TINY = Sizes().scaled(0.1)


def bench(*arguments: str, data_dir: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "homeai", "bench", *arguments, "--data-dir", str(data_dir)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("api", ["chat", "completions", "ollama"])
async def test_every_api_gives_the_lengths_that_the_trace_asks_for(daemon: Daemon, api: str) -> None:
    calls = [
        create_call(0.0, prompt=[Part("p", 80)], max_tokens=6),
        create_call(0.1, prompt=[Part("q", 20)], max_tokens=4),
    ]
    async with targets.connected(daemon.url, Asking(api=api)) as server:
        play = await server.play(Trace.of("t", calls), f"salt-{api}")
    assert [record.ending for record in play.records] == [Ending.COMPLETED] * 2
    assert all(record.token_times for record in play.records)
    if api != "ollama":
        assert [record.num_output_tokens for record in play.records] == [6, 4]
    # A word is about a token.
    assert play.records[0].num_prompt_tokens == pytest.approx(80, abs=25)


async def test_a_salt_finds_nothing_in_the_cache_and_a_shared_part_does(daemon: Daemon) -> None:
    calls = [create_call(3.0 * number, prompt=[Part("shared", 200), Part(f"{number}", 10)]) for number in range(2)]
    async with targets.connected(daemon.url, Asking()) as server:
        first = await server.play(Trace.of("t", calls), "one")
        second = await server.play(Trace.of("t", calls), "two")
    for play in (first, second):
        assert (play.records[0].num_cached_tokens or 0) < 30
        assert (play.records[1].num_cached_tokens or 0) >= 190


async def test_daemon_tells_what_it_is_and_what_it_did(daemon: Daemon) -> None:
    async with targets.connected(daemon.url, Asking()) as server:
        known = server.conditions
        play = await server.play(groups.overlap(1, 2, TINY), "told")
    assert known.server.startswith("homeai ")
    assert known.lengths == "as the trace says"
    assert "unknown" not in msgspec.structs.astuple(known)
    assert server.memory["weights"] > 0
    assert play.counters.busy_s is not None
    assert play.counters.busy_s > 0
    assert play.counters.num_preemptions == 0
    assert play.counters.num_loads == 0
    assert play.readings[0].kv_total == 16384
    assert (play.readings[0].rss_bytes or 0) > 0


async def test_too_long_a_prompt_is_a_rejection_with_its_reason(daemon: Daemon) -> None:
    async with targets.connected(daemon.url, Asking()) as server:
        play = await server.play(Trace.of("t", [create_call(prompt=[Part("p", 40_000)])]), "long")
    assert play.records[0].ending is Ending.REJECTED
    assert play.records[0].status == 400


def test_bench_against_a_running_daemon_writes_all_reports(daemon: Daemon, tmp_path: Path) -> None:
    done = bench(
        *("--target", daemon.url, "--duration", "4", "--rate", "3", "--sizes", "0.1", "--rates", "1"),
        *("--spike", "0", "--overlap", "1,2", "--rounds", "2"),
        *("--html", str(tmp_path / "r.html"), "--markdown", str(tmp_path / "r.md")),
        data_dir=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "Verdict" in done.stdout
    assert "homeai bench --modes" in done.stdout or "single mode is enough" in done.stdout
    assert "TTFT by class" in (tmp_path / "r.html").read_text()
    assert "## Offered rate" in (tmp_path / "r.md").read_text()
    again = bench("report", "--format", "json", data_dir=tmp_path)
    document = msgspec.json.decode(again.stdout)
    assert [row["load"]["kind"] for row in document["findings"]["rows"]] == ["rate", "overlap", "overlap"]
    listed = bench("list", data_dir=tmp_path)
    assert document["findings"]["bench_id"] in listed.stdout
    assert bench("export", str(tmp_path / "b.zip"), data_dir=tmp_path).returncode == 0


def test_own_daemons_are_started_per_setting_and_leave_nothing_behind(model_path: Path, tmp_path: Path) -> None:
    done = bench(
        *("--model", str(model_path), "--mode", "single", "--duration", "3", "--rate", "3", "--sizes", "0.1"),
        *("--rates", "1", "--spike", "0", "--overlap", "", "--set", "model.num_threads=1", "--json"),
        data_dir=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    findings = msgspec.json.decode(done.stdout)["findings"]
    assert [row["changed"]["settings"] for row in findings["rows"]] == [{}, {"scheduler.mode": "single"}]
    assert not findings["flags"]
    assert set(findings["start_s"]) == {"base line", "mode=single"}
    assert all(row["scores"][0]["figures"]["queue_p95"] is not None for row in findings["rows"])
    mine = [p for p in psutil.process_iter(["cmdline"]) if f"{tmp_path}" in " ".join(p.info["cmdline"] or [])]
    assert not mine


def test_setting_that_cannot_be_is_refused_before_anything_is_measured(model_path: Path, tmp_path: Path) -> None:
    done = bench("--model", str(model_path), "--control", "scheduler.kv_layout=diagonal", data_dir=tmp_path)
    assert done.returncode == 2
    assert "scheduler.kv_layout: 'diagonal' is not allowed" in done.stderr


async def test_daemon_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(HomeAIError, match=r"homeai serve ended with \d: .*none\.gguf"):
        async with serving(tmp_path / "none.gguf", None, {}, {}):
            pass


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--api", "grpc"), "--api grpc: known are chat, completions, ollama"),
        (("--simulate", "--target", "http://127.0.0.1:9"), "a simulation has neither"),
        (("--trace", "a", "--bundle", "b"), "only one of them"),
        (("--trace", "/nowhere.jsonl"), "cannot be read"),
        (("--rates", "fast"), "needs numbers"),
        (("--control", "max_num_seqs"), "needs the form section.key=value"),
    ],
)
def test_options_that_make_no_sense_are_refused_in_one_line(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = bench(*arguments, data_dir=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_trace_too_short_for_a_single_call_is_refused(tmp_path: Path) -> None:
    done = bench("--simulate", "--duration", "1", "--rate", "0.01", data_dir=tmp_path)
    assert done.returncode == 2
    assert "nobody asks" in done.stderr


def test_nobody_there_is_one_line(tmp_path: Path) -> None:
    done = bench("--target", "http://127.0.0.1:9", data_dir=tmp_path)
    assert done.returncode == 1
    assert "no server answers at http://127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr


async def test_sources_of_the_trace_are_the_ledgers(daemon: Daemon) -> None:
    async with targets.connected(daemon.url, Asking()) as server:
        await server.play(Trace.of("t", [create_call(source="bench-kitchen")]), "named")
    await eventually_async(lambda: daemon.ledger_rows("bench-kitchen"))
