"""OpenAI's batches: many requests in a file, answered when there is room. Each also without /v1."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from homeai.server.answers import JSON
from homeai.server.api.batches_bodies import BatchBody, BatchesQuery, read_fields
from homeai.server.api.body import Documents, read_body
from homeai.server.api.caller import caller_of
from homeai.server.api.files import batches_of, page
from homeai.server.api.respond import Value, noted
from homeai.server.batches.batches import owner_of, owner_of_caller
from homeai.server.batches.records import Batch, Status
from homeai.server.service import Service


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["OpenAI"])

    @routes.post("/v1/batches", openapi_extra=Documents(BatchBody))
    @routes.post("/batches", include_in_schema=False)
    async def create(request: Request) -> Response:
        """Have the requests of a file answered in the background."""
        with service.arriving("/v1/batches", caller_of(request)) as arrival:
            body = await read_body(request, BatchBody)
            batch = await batches_of(service).create(arrival, body.order())
        return noted(JSON(_batch(batch)), arrival)

    @routes.get("/v1/batches")
    @routes.get("/batches", include_in_schema=False)
    async def list_batches(request: Request) -> Response:
        """The caller's batches, latest first."""
        owner = owner_of_caller(service, caller_of(request))
        query = read_fields(request.query_params, BatchesQuery)
        batches, has_more = await batches_of(service).batches(owner, query.after, query.limit)
        return JSON(page([_batch(batch) for batch in batches], has_more))

    @routes.get("/v1/batches/{batch_id}")
    @routes.get("/batches/{batch_id}", include_in_schema=False)
    async def retrieve(request: Request, batch_id: str) -> Response:
        owner = owner_of_caller(service, caller_of(request))
        return JSON(_batch(await batches_of(service).batch(owner, batch_id)))

    @routes.post("/v1/batches/{batch_id}/cancel")
    @routes.post("/batches/{batch_id}/cancel", include_in_schema=False)
    async def cancel(request: Request, batch_id: str) -> Response:
        """End a batch; what is answered already stays."""
        with service.arriving("/v1/batches", caller_of(request)) as arrival:
            owner = owner_of(arrival.key.name if arrival.key else None, arrival.caller.address)
            batch = await batches_of(service).cancel(owner, batch_id)
        return JSON(_batch(batch))

    return routes


def _batch(batch: Batch) -> Value:
    """OpenAI's object. Lines are checked before it is made, and a file is written with its last line: what OpenAI
    does in between takes no time here."""
    created_at = int(batch.created_at)

    def ended(*statuses: Status) -> int | None:
        return None if batch.ended_at is None or batch.status not in statuses else int(batch.ended_at)

    has_run = batch.status is not Status.FAILED
    return {
        "id": batch.batch_id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": _errors(batch) if batch.errors else None,
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "status": batch.status,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": created_at,
        "in_progress_at": created_at if has_run else None,
        "expires_at": int(batch.expires_at),
        "finalizing_at": ended(Status.COMPLETED),
        "completed_at": ended(Status.COMPLETED),
        "failed_at": ended(Status.FAILED),
        "expired_at": ended(Status.EXPIRED),
        "cancelling_at": ended(Status.CANCELLED),
        "cancelled_at": ended(Status.CANCELLED),
        "request_counts": {
            "total": batch.num_lines,
            "completed": batch.num_completed,
            "failed": batch.num_failed,
        },
        "usage": _usage(batch),
        "metadata": batch.metadata,
    }


def _errors(batch: Batch) -> Value:
    data = [{"code": e.code, "line": e.line, "message": e.message, "param": e.param} for e in batch.errors]
    return {"object": "list", "data": data}


def _usage(batch: Batch) -> Value:
    return {
        "input_tokens": batch.num_input_tokens,
        "input_tokens_details": {"cached_tokens": batch.num_cached_tokens},
        "output_tokens": batch.num_output_tokens,
        "output_tokens_details": {"reasoning_tokens": batch.num_reasoning_tokens},
        "total_tokens": batch.num_input_tokens + batch.num_output_tokens,
    }
