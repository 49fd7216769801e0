"""OpenAI's files: what batches read, and what they answered. Each also without /v1."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from fastapi import APIRouter
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse

from homeai.errors import InvalidRequest, NotFound, NotSupported
from homeai.server.answers import JSON
from homeai.server.api.batches_bodies import FileForm, FilesQuery, read_fields
from homeai.server.api.caller import caller_of
from homeai.server.api.respond import Value
from homeai.server.batches.batches import Batches, Owner, owner_of, owner_of_caller
from homeai.server.batches.records import StoredFile
from homeai.server.service import Service

JSONL: Final = "application/jsonl"
MAX_FIELDS: Final = 16
FORM: Final = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": ["batch"]},
                    },
                }
            }
        },
    }
}


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["OpenAI"])

    @routes.post("/v1/files", openapi_extra=FORM)
    @routes.post("/files", include_in_schema=False)
    async def upload(request: Request) -> Response:
        """Store a file of requests for a batch: purpose "batch", a JSON object in each line."""
        with service.arriving("/v1/files", caller_of(request)) as arrival:
            owner = owner_of(arrival.key.name if arrival.key else None, arrival.caller.address)
            async with _form(request) as form:
                content = form.get("file")
                if not isinstance(content, UploadFile):
                    raise InvalidRequest("file: a file is needed, in multipart/form-data", param="file")
                fields = read_fields({name: value for name, value in form.items() if name != "file"}, FileForm)
                kept = fields.expires_after
                file = await batches_of(service).upload(
                    owner,
                    content.filename or "batch.jsonl",
                    content.file,
                    content.size or 0,
                    None if kept is None else float(kept.seconds),
                )
        return JSON(_file(file))

    @routes.get("/v1/files")
    @routes.get("/files", include_in_schema=False)
    async def list_files(request: Request) -> Response:
        """The caller's files, latest first."""
        owner = owner_of_caller(service, caller_of(request))
        query = read_fields(request.query_params, FilesQuery)
        files, has_more = await batches_of(service).files(
            owner, query.purpose, query.after, query.limit, oldest_first=query.order == "asc"
        )
        return JSON(page([_file(file) for file in files], has_more))

    @routes.get("/v1/files/{file_id}")
    @routes.get("/files/{file_id}", include_in_schema=False)
    async def retrieve(request: Request, file_id: str) -> Response:
        owner = owner_of_caller(service, caller_of(request))
        return JSON(_file(await batches_of(service).file(owner, file_id)))

    @routes.get("/v1/files/{file_id}/content")
    @routes.get("/files/{file_id}/content", include_in_schema=False)
    async def content(request: Request, file_id: str) -> Response:
        """The file itself."""
        owner = owner_of_caller(service, caller_of(request))
        return await _content(batches_of(service), owner, file_id)

    @routes.delete("/v1/files/{file_id}")
    @routes.delete("/files/{file_id}", include_in_schema=False)
    async def remove(request: Request, file_id: str) -> Response:
        """Delete a file, unless a batch still reads it."""
        with service.arriving("/v1/files", caller_of(request)) as arrival:
            owner = owner_of(arrival.key.name if arrival.key else None, arrival.caller.address)
            await batches_of(service).remove_file(owner, file_id)
        return JSON({"id": file_id, "object": "file", "deleted": True})

    return routes


def batches_of(service: Service) -> Batches:
    if service.batches is None:
        raise NotSupported("this server runs no batches")
    return service.batches


def page(items: list[Value], has_more: bool) -> Value:
    """OpenAI's list."""
    first, last = (items[0]["id"], items[-1]["id"]) if items else (None, None)
    return {"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": has_more}


@asynccontextmanager
async def _form(request: Request) -> AsyncIterator[FormData]:
    try:
        async with request.form(max_files=1, max_fields=MAX_FIELDS) as form:
            yield form
    except HTTPException as error:  # as Starlette says that it is no form
        raise InvalidRequest(f"the form cannot be read: {error.detail}") from None


async def _content(batches: Batches, owner: Owner, file_id: str) -> Response:
    file = await batches.file(owner, file_id)
    if file.batch_id is not None:
        return StreamingResponse(batches.answers(file), media_type=JSONL)
    path = batches.path(file)
    if not path.is_file():
        raise NotFound(f"file {file_id!r} is not on the disk any more")
    return FileResponse(path, media_type=JSONL)


def _file(file: StoredFile) -> Value:
    return {
        "id": file.file_id,
        "object": "file",
        "bytes": file.num_bytes,
        "created_at": int(file.created_at),
        "expires_at": None if file.expires_at is None else int(file.expires_at),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }
