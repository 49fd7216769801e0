"""Another model in the place of the resident one, or the same anew, without dropping the queue.

What runs may end (`residency.drain_timeout_s`). What waits goes on waiting, and is put into the new model's tokens
from what the client sent; a request that the new model cannot serve is told so. With the same file nobody loses
anything: what did not end in time goes on behind its last token. KV and saved beginnings end with the engine, and the
pins are computed anew.

`homeai reload FILE` reads the file's vocabulary first, so that what is no model changes nothing. If the engine then
cannot load it after all, the model before it comes back.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from homeai.errors import NotReady, RequestError
from homeai.server.pins import read_pins
from homeai.server.service import Service
from homeai.server.stream import Stream
from homeai.server.supervisor import AWAY, State
from homeai.server.text import Text

log = logging.getLogger("homeai.residency")


@dataclass(frozen=True, slots=True)
class Switch:
    """One replacement; `text` is the new model's, already read. Done by the keeper's task, like everything else that
    sends the model away."""

    service: Service
    path: Path
    text: Text

    @property
    def is_same_model(self) -> bool:
        """The same file, and nobody wrote to it: what is in the engine now can go on in the next one."""
        before, now = self.service.text, self.text
        if before is None or self.service.model_path.resolve() != self.path.resolve():
            return False
        return (before.card.modified_at, before.card.digest) == (now.card.modified_at, now.card.digest)

    async def __call__(self) -> None:
        """Returns when the new one loads, and what waited waits for it."""
        service, client, supervisor = self.service, self.service.client, self.service.supervisor
        log.info("reloading: %s", self.path)
        is_same, before = self.is_same_model, (service.model_path, service.text)
        client.shut(begun_may_end=True)
        if supervisor.ready is not None:
            supervisor.leave()
            client.take_back(generation.add.request_id for generation in client.not_begun)
            await service.keeper.drain(service.config.residency.drain_timeout_s, cut_off=not is_same)
        await self._put(self.path, self.text)
        if not is_same:
            await self._make_tokens_anew()
        client.open()
        previous_path, previous_text = before
        if previous_path is not None and previous_text is not None and not is_same:
            service.keeper.fall_back = Switch(service, previous_path, previous_text)

    async def _put(self, path: Path, text: Text) -> None:
        service, supervisor = self.service, self.service.supervisor
        supervisor.model_path = str(path)
        supervisor.warm_up.forget(has_pins=bool(service.config.pins))
        if supervisor.state not in AWAY:  # there it is loaded when it is wanted
            await supervisor.rest(State.LOADING, "another model is put in its place")
        service.client.hold_waiting()
        service.model_path = path
        service.open(text)
        if service.embeddings is not None:
            service.embeddings.follow(path)
        if service.config.pins:
            supervisor.pin(await asyncio.to_thread(read_pins, service.config, text))

    async def _make_tokens_anew(self) -> None:
        """Nobody gets in meanwhile: the client is shut."""
        client = self.service.client
        for stream in client.streams:
            try:
                await self._again(stream)
            except RequestError as error:
                log.info("a request that waited cannot be served by %s: %s", self.text.name, error.message)
                client.refuse(stream, error)

    async def _again(self, stream: Stream) -> None:
        if stream.has_begun or stream.again is None:
            raise NotReady("another model was loaded before this request was complete", retry_after_s=5.0)
        adds = await stream.again(self.text)
        for generation, add in zip(stream.generations, adds, strict=True):
            if self.service.client.waits(add.request_id):
                self.service.client.replace(generation, add)
