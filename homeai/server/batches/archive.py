"""The store and the uploaded files, for the event loop: one thread does all, in the order in which it is asked."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from homeai.errors import ConfigError, NotReady
from homeai.server.batches.contents import Contents
from homeai.server.batches.store import Store

log = logging.getLogger("homeai.batches")

P = ParamSpec("P")
T = TypeVar("T")

RETRY_S = 30.0


class Archive:
    """Opened with the first use. A folder that cannot be used is tried again with each one."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "batches.db"
        self.contents = Contents(folder / "files")
        self._store: Store | None = None
        self._is_tidy = False
        self.failure: str | None = None  # why the folder cannot be used, when it was last
        self._thread = ThreadPoolExecutor(1, "batches")

    async def do(self, work: Callable[Concatenate[Store, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """A method of the store, in the thread. Raises `NotReady` when the folder cannot be used."""
        call = partial(self._do, work, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown()

    # ---- in the thread ---------------------------------------------------------------------------

    def _do(self, work: Callable[Concatenate[Store, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            if self._store is None:
                self._store = Store(self._path)
                self._tidy(self._store)
            result = work(self._store, *args, **kwargs)
        except (sqlite3.Error, OSError, ConfigError) as error:
            self._disconnect()  # the next attempt opens the file afresh: it may be another one by then
            if self.failure is None:
                log.warning("files and batches cannot be used (%s): %s", self._path.parent, error)
            self.failure = f"files and batches cannot be used at the moment: {error}"
            raise NotReady(self.failure, retry_after_s=RETRY_S) from error
        if self.failure is not None:
            log.info("files and batches can be used again")
        self.failure = None
        return result

    def _tidy(self, store: Store) -> None:
        """Once: later there may be uploads under way."""
        if not self._is_tidy:
            self.contents.keep_only(store.uploaded_ids())
        self._is_tidy = True

    def _disconnect(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
