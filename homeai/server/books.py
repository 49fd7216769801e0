"""The end of every request, written down once: totals, metrics, ledger."""

from __future__ import annotations

import time
from dataclasses import dataclass

from homeai.errors import RequestError
from homeai.ledger import Ledger, LedgerRow, prefix_block_hashes
from homeai.messages import StepStats
from homeai.metrics import Metrics
from homeai.request import FinishReason
from homeai.server.generation import Record
from homeai.server.sources import Identity

CLIENT_CLOSED_REQUEST = 499  # nginx's word for it


@dataclass(slots=True)
class Totals:
    """Since the start of the daemon."""

    finished: int = 0
    rejected: int = 0
    failed: int = 0
    preemptions: int = 0
    out_of_room: int = 0


class Books:
    def __init__(self, metrics: Metrics, ledger: Ledger | None) -> None:
        self.totals = Totals()
        self.metrics = metrics
        self._ledger = ledger
        self.model_name = ""

    def stepped(self, stats: StepStats) -> None:
        self.totals.preemptions += stats.num_preemptions
        self.totals.out_of_room += stats.out_of_room
        self.metrics.observe_step(stats)

    def rejected(
        self,
        request_id: str,
        api: str,
        identity: Identity,
        arrival: float,
        error: RequestError,
        *,
        client_request_id: str | None = None,
    ) -> None:
        """Refused before it queued. `arrival` is Unix time."""
        self.totals.rejected += 1
        reason = error.code or error.type
        self.metrics.observe_rejected(identity.fairness_class, reason)
        self._write(
            LedgerRow(
                request_id=request_id,
                client_request_id=client_request_id,
                arrival=arrival,
                api=api,
                source=identity.source,
                fairness_class=identity.fairness_class,
                model=self.model_name,
                status=error.status,
                reject_reason=reason,
            )
        )

    def embedded(
        self,
        request_id: str,
        api: str,
        identity: Identity,
        arrival: float,
        e2e_s: float,
        num_tokens: int,
        *,
        model: str,
        client_request_id: str | None = None,
        key: str | None = None,
    ) -> None:
        """Vectors were made of so many tokens, by `model`. `arrival` is Unix time."""
        row = LedgerRow(
            request_id=request_id,
            client_request_id=client_request_id,
            key=key,
            arrival=arrival,
            api=api,
            source=identity.source,
            fairness_class=identity.fairness_class,
            model=model,
            num_prompt_tokens=num_tokens,
            e2e_s=e2e_s,
            status=200,
            finish_reason=FinishReason.STOP,
        )
        self.totals.finished += 1
        self.metrics.observe_finished(row)
        self._write(row)

    def finished(self, record: Record) -> None:
        """It was queued, and has ended, however it did."""
        row = self._row(record)
        if row.status < 500:
            self.totals.finished += 1
        else:
            self.totals.failed += 1
        self.metrics.observe_finished(row)
        self._write(row)

    def event(self, kind: str, detail: str) -> None:
        if self._ledger is not None:
            self._ledger.event(kind, detail)

    def _write(self, row: LedgerRow) -> None:
        if self._ledger is not None:
            self._ledger.record(row)

    def _row(self, record: Record) -> LedgerRow:
        generation, engine = record.generation, record.finished
        add = generation.add

        def since_arrival(instant: float | None) -> float | None:
            return None if instant is None else instant - add.arrival_at

        return LedgerRow(
            request_id=add.request_id,
            client_request_id=generation.client_request_id,
            key=generation.key,
            arrival=time.time() - (record.ended_at - add.arrival_at),
            api=generation.api,
            source=add.source,
            fairness_class=add.fairness_class,
            model=self.model_name,
            num_prompt_tokens=len(add.prompt_token_ids),
            num_cached_tokens=generation.num_cached_tokens,
            num_output_tokens=generation.num_output_tokens,
            prefix_hashes=prefix_block_hashes(add.prompt_token_ids),
            queue_s=since_arrival(engine.admitted_at if engine else None),
            ttft_s=since_arrival(engine.first_token_at if engine else None),
            e2e_s=record.ended_at - add.arrival_at,
            parked_s=engine.parked_s if engine else 0.0,
            num_recomputed_tokens=engine.num_recomputed_tokens if engine else 0,
            num_moved_bytes=engine.num_moved_bytes if engine else 0,
            num_preemptions=engine.num_preemptions if engine else 0,
            status=status_of(record),
            finish_reason=record.finish_reason,
        )


def status_of(record: Record) -> int:
    """Of its HTTP answer."""
    if record.error is not None:
        return record.error.status
    return CLIENT_CLOSED_REQUEST if record.finish_reason is FinishReason.ABORT else 200
