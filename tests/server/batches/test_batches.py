"""Whose batches are whose, and for whom and when their lines run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from homeai.errors import NotAuthenticated, QuotaExceeded, TooManyRequests
from homeai.keys import KeyStore
from homeai.server.arrival import Caller
from homeai.server.batches.batches import Batches, owner_of
from homeai.server.service import Service
from homeai.server.sources import Identity, OnBehalf
from homeai.server.supervisor import State
from tests.server.batches.factories import make_batch
from tests.server.fakes import READY, make_service

LAN = "192.168.1.7"


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[KeyStore]:
    with closing(KeyStore(tmp_path / "ledger.db")) as store:
        yield store


def batches_of(service: Service, folder: Path) -> Batches:
    batches = Batches(service.config.batches, folder)
    batches._service = service
    return batches


@pytest.mark.parametrize(
    ("key", "address", "owner"),
    [
        (None, "127.0.0.1", None),
        (None, "::1", None),
        ("ann", "127.0.0.1", "key ann"),
        ("ann", LAN, "key ann"),
        (None, LAN, f"address {LAN}"),
        (None, f"::ffff:{LAN}", f"address {LAN}"),
        (None, "fe80::1%eth0", "address fe80::1"),
        (None, None, "nowhere"),
    ],
)
def test_owner_is_the_key_or_else_the_address_and_this_machine_sees_all(
    key: str | None, address: str | None, owner: str | None
) -> None:
    assert owner_of(key, address).name == owner


def test_nobody_takes_the_name_of_what_this_machine_made() -> None:
    names = {owner_of(key, address).own for key, address in [("this machine", LAN), (None, LAN), (None, None)]}
    assert owner_of(None, "127.0.0.1").own not in names


@pytest.mark.parametrize(
    ("fairness_class", "runs_in"), [("voice", "background"), ("background", "background"), ("gone", "background")]
)
def test_lines_run_in_the_background(fairness_class: str, runs_in: str, keys: KeyStore, tmp_path: Path) -> None:
    batches = batches_of(make_service(keys), tmp_path)
    on_behalf = batches._on_behalf(make_batch(source="kitchen", fairness_class=fairness_class, key="tablet"))
    assert on_behalf == OnBehalf(Identity("kitchen", runs_in), "tablet")


def test_source_whose_class_is_even_lighter_stays_in_it(keys: KeyStore, tmp_path: Path) -> None:
    light = "{bulk: {weight: 0.1, max_waiting: 1, queue_timeout_s: 1}}"
    batches = batches_of(make_service(keys, ("classes", light)), tmp_path)
    assert batches._on_behalf(make_batch(fairness_class="bulk")).identity.fairness_class == "bulk"


async def test_lines_run_unless_nobody_could_answer_or_the_owner_said_no(keys: KeyStore, tmp_path: Path) -> None:
    service = make_service(keys)
    may_run = batches_of(service, tmp_path)._may_run
    on_behalf = OnBehalf(Identity("ann", "background"), None)
    assert may_run(on_behalf), "while it loads they wait in the queue"
    service.supervisor.state, service.supervisor.ready = State.RESIDENT, READY
    assert may_run(on_behalf)
    service.client.pause("background")
    assert not may_run(on_behalf)
    service.client.resume("background")
    service.keeper.unload()
    assert not may_run(on_behalf)
    service.keeper.give_device_away()
    assert not may_run(on_behalf)
    service.keeper.load()
    assert may_run(on_behalf)
    service.supervisor.state = State.FAILED
    assert not may_run(on_behalf)


def test_line_asks_as_its_batch_says_whatever_its_body_names(keys: KeyStore) -> None:
    keys.add("tablet", "voice")
    service = make_service(keys, ("server.auth", "keys"))
    caller = Caller(None, None, None, on_behalf=OnBehalf(Identity("kitchen", "background"), "tablet"))
    with service.arriving("/v1/completions", caller) as arrival:
        service.name_user(arrival, "somebody else")
    assert arrival.identity == Identity("kitchen", "background")
    assert arrival.key is not None
    assert arrival.key.name == "tablet", "its limits count"


async def test_lines_use_up_tokens_but_not_the_requests_of_a_minute(keys: KeyStore) -> None:
    keys.add("tablet", requests_per_minute=1, tokens_per_day=10)
    service = make_service(keys)
    caller = Caller(None, None, None, on_behalf=OnBehalf(Identity("kitchen", "background"), "tablet"))
    with service.arriving("/v1/completions", caller) as arrival:
        for _ in range(3):
            service.check_limits(arrival)
    service.limits.charge("tablet", 10, time.time())
    with pytest.raises(QuotaExceeded), service.arriving("/v1/completions", caller) as arrival:
        service.check_limits(arrival)


async def test_batches_have_so_many_lines_together(
    keys: KeyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homeai.server.batches.batches.MAX_OPEN_LINES", 5)
    batches = batches_of(make_service(keys), tmp_path)
    batches._runner.add(make_batch(num_lines=3))
    batches._check_room(2)
    with pytest.raises(TooManyRequests, match="3 in progress and 3 more > 5 maximum"):
        batches._check_room(3)


def test_line_of_a_revoked_key_is_not_answered(keys: KeyStore) -> None:
    service = make_service(keys)
    caller = Caller(None, None, None, on_behalf=OnBehalf(Identity("kitchen", "background"), "tablet"))
    with pytest.raises(NotAuthenticated, match="'tablet' is not known any more"):
        service.authenticate(caller)
