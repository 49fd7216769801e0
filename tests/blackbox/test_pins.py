"""Pinned beginnings are there before the first request, stay whatever else comes, and return with a new engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.blackbox.stories import cached_tokens, prompt_tokens, story
from tests.daemon import Daemon, eventually
from tests.streaming import CHAT, COMPLETIONS, exactly

HOUSE = f"You are the voice of this house. {story(250, 71)}"
RECIPE = f"Take two eggs. {story(120, 72)}"
NUM_CELLS = 1200
PINS = f"[{{name: house, system: '{HOUSE}'}}, {{name: recipe, source: diary, prompt: '{RECIPE}'}}]"
DIARY = "{name: diary, class: voice, private: true, match: {header: [diary]}}"


@pytest.fixture(scope="module")
def pinned(start_daemon: Callable[..., Daemon]) -> Daemon:
    return start_daemon(f"pins={PINS}", f"sources=[{DIARY}]", f"scheduler.kv_cells={NUM_CELLS}")


def pins(daemon: Daemon) -> dict[str, Any]:
    return {pin["name"]: pin for pin in daemon.status()["pins"]}


def states(daemon: Daemon) -> list[str]:
    return [pin["state"] for pin in daemon.status()["pins"]]


def complete(daemon: Daemon, body: dict[str, object], source: str = "somebody") -> Any:
    answer = httpx.post(daemon.url + COMPLETIONS, json=body, headers={"X-HomeAI-Source": source}, timeout=120.0)
    answer.raise_for_status()
    return answer.json()


def num_cached_of_chat(daemon: Daemon, question: str) -> int:
    messages = [{"role": "system", "content": HOUSE}, {"role": "user", "content": question}]
    answer = httpx.post(daemon.url + CHAT, json={"messages": messages, "max_tokens": 2}, timeout=120.0)
    answer.raise_for_status()
    return cached_tokens(answer.json())


def num_cached_of_recipe(daemon: Daemon, source: str) -> int:
    return cached_tokens(complete(daemon, exactly(2, f"{RECIPE} And then?"), source))


def test_first_chat_goes_on_from_its_pin(pinned: Daemon) -> None:
    house = pins(pinned)["house"]
    assert (house["state"], house["problem"]) == ("kept", None)
    assert house["num_tokens"] > 200
    assert num_cached_of_chat(pinned, "Who are you?") >= house["num_tokens"]


def test_pin_of_a_private_source_is_for_that_source_alone(pinned: Daemon) -> None:
    num_pinned = pins(pinned)["recipe"]["num_tokens"]
    assert num_cached_of_recipe(pinned, "somebody") == 0
    assert num_cached_of_recipe(pinned, "diary") >= num_pinned


def test_pin_outlives_everything_else(pinned: Daemon) -> None:
    others = [exactly(2, story(500, 80 + number)) for number in range(6)]
    for other in others:
        complete(pinned, other)
    assert cached_tokens(complete(pinned, others[0])) == 0, "there was more than fits"
    assert num_cached_of_chat(pinned, "And now?") >= pins(pinned)["house"]["num_tokens"]


def test_pin_gives_way_to_what_could_not_run_otherwise_and_comes_back(pinned: Daemon) -> None:
    assert prompt_tokens(complete(pinned, exactly(2, story(NUM_CELLS - 100, 90)))) > NUM_CELLS - 200
    eventually(lambda: any("gave way" in line for line in pinned.log))
    eventually(lambda: states(pinned) == ["kept", "kept"])
    assert num_cached_of_chat(pinned, "Still there?") >= pins(pinned)["house"]["num_tokens"]


def test_pin_is_there_in_a_new_engine(pinned: Daemon) -> None:
    (engine,) = pinned.engines
    engine.kill()
    eventually(lambda: [child.pid for child in pinned.engines] not in ([], [engine.pid]))
    eventually(lambda: pinned.status()["state"] == "resident")
    assert states(pinned) == ["kept", "kept"]
    assert num_cached_of_chat(pinned, "Are you back?") >= pins(pinned)["house"]["num_tokens"]


def test_pins_that_do_not_fit_are_told_and_the_daemon_serves(start_daemon: Callable[..., Daemon]) -> None:
    long = f"{{name: long, prompt: '{story(900, 73)}'}}"
    daemon = start_daemon(
        f"pins=[{{name: house, system: '{HOUSE}'}}, {long}, {{name: one-too-many, prompt: '{RECIPE}'}}]",
        f"scheduler.kv_cells={NUM_CELLS}",
        "scheduler.max_cached_seqs=1",
    )
    assert states(daemon) == ["kept", "refused", "refused"]
    too_long, too_many = daemon.status()["notes"]
    assert f"pin 'long' is left out: its {pins(daemon)['long']['num_tokens']} tokens" in too_long
    assert f"more than {NUM_CELLS // 2}, half of scheduler.kv_cells" in too_long
    assert "pin 'one-too-many' is left out: the engine has no sequence for it beside 1 other pin" in too_many
    assert "scheduler.max_cached_seqs" in too_many
    eventually(lambda: any(too_long in line for line in daemon.log))
    eventually(lambda: any(too_many in line for line in daemon.log))
    assert num_cached_of_chat(daemon, "Hello") >= pins(daemon)["house"]["num_tokens"]
