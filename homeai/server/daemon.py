"""One run of the server: put the parts together, announce, feed the watchdog, drain, stop in order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI

from homeai.config import Config
from homeai.errors import ConfigError, HomeAIError, ModelLoadError
from homeai.hardware import MachineProbe
from homeai.keys import KeyStore, given_keys
from homeai.ledger import Ledger
from homeai.metrics import Metrics
from homeai.server import sleep_lock
from homeai.server.admission import Door
from homeai.server.app import create_app
from homeai.server.batches.batches import Batches
from homeai.server.books import Books
from homeai.server.client import EngineClient
from homeai.server.connection import Connection, ConnectionLimits
from homeai.server.embeddings import Embeddings
from homeai.server.launch import Listener
from homeai.server.limits import KeyLimits, day_of
from homeai.server.notify import Notifier
from homeai.server.pins import read_pins
from homeai.server.service import Service
from homeai.server.sleep_lock import SleepLock
from homeai.server.sources import Sources
from homeai.server.supervisor import AWAY, State, Supervisor
from homeai.server.text import Text
from homeai.server.vitals import record

log = logging.getLogger("homeai")

EXIT_FAILED = 3  # told to systemd: the model cannot be loaded, starting again would not help
LOAD_NOTE_S = 5.0
KEYS_RETRY_S = 5.0
GRACE_S = 5  # for connections that are still open after the drain
LOCAL_PROXIES = ("127.0.0.0/8", "::1", "::ffff:127.0.0.0/104")  # who says for whom it forwards, and is believed
STOP_S = 20.0  # for everything after the drain: open connections, the engine, the ledger


class Server(uvicorn.Server):
    """uvicorn, but a signal asks the daemon to drain (the second one does not wait), and some sockets may speak TLS."""

    def __init__(
        self, config: uvicorn.Config, protocol: type[Connection], listeners: Sequence[Listener], stop: asyncio.Event
    ) -> None:
        super().__init__(config)
        self._protocol = protocol
        self._listeners = listeners
        self._stop = stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn has one context for all of its sockets."""
        await super().startup([listener.sock for listener in self._listeners if listener.tls is None])
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            if listener.tls is not None:
                server = await loop.create_server(self._connection, sock=listener.sock, ssl=listener.tls)
                self.servers.append(server)

    def _connection(self) -> asyncio.Protocol:
        return self._protocol(self.config, self.server_state, self.lifespan.state)

    def let_wait(self) -> None:
        """Whoever comes from now on waits for the next daemon, in the sockets that systemd keeps open. A connection
        that was not asked anything yet may still be: it gets an answer."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            if isinstance(connection, Connection) and connection.cycle is not None:
                connection.shutdown()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._stop.is_set():
            self.should_exit = self.force_exit = True
        self._stop.set()


def with_mapped(networks: Iterable[IPv4Network | IPv6Network]) -> list[str]:
    """Each network, and an IPv4 one also as an IPv6 socket sees it."""
    texts = []
    for network in networks:
        texts.append(str(network))
        if isinstance(network, IPv4Network):
            texts.append(f"::ffff:{network.network_address}/{96 + network.prefixlen}")
    return texts


class Daemon:
    def __init__(self, config: Config, model_path: Path, supervisor: Supervisor, listeners: Sequence[Listener]) -> None:
        self._config = config
        self._model_path = model_path
        self._supervisor = supervisor
        self._listeners = listeners
        self._notifier = Notifier()
        keys = KeyStore(config.ledger_path, given_keys(os.environ, config.classes))
        keys.refresh()  # first: it makes the file that the ledger's thread then writes to
        self._ledger = Ledger(config.ledger_path, config.ledger.retention_days) if config.ledger.enabled else None
        self._books = Books(self._make_metrics(), self._ledger)
        self._embeddings = Embeddings.of(config, model_path)
        self._batches = Batches(config.batches, config.data_dir / "batches")
        self._service = self._make_service(keys)
        self._stop = asyncio.Event()
        self._lines: asyncio.Task[None] | None = None  # of batches
        self._server = self._make_server()
        self._exit_code = 0

    def _make_metrics(self) -> Metrics:
        config, scheduler = self._config, self._config.scheduler
        token_weights = (scheduler.prompt_token_weight, scheduler.output_token_weight)
        return Metrics(config.classes, (source.name for source in config.sources), token_weights)

    def _make_service(self, keys: KeyStore) -> Service:
        config, scheduler, now = self._config, self._config.scheduler, time.time()
        max_waiting = {name: c.max_waiting for name, c in config.classes.items()}
        queue_timeouts_s = {name: c.queue_timeout_s for name, c in config.classes.items()}
        max_running = 1 if scheduler.mode == "single" else scheduler.max_num_seqs
        return Service(
            config=config,
            supervisor=self._supervisor,
            client=EngineClient(self._supervisor, Door(max_waiting, max_running), queue_timeouts_s),
            sources=Sources(config.sources, config.classes, scheduler.default_class, server=config.server),
            keys=keys,
            limits=KeyLimits(keys.spent(day_of(now)[0]), now),
            books=self._books,
            probe=MachineProbe(),
            embeddings=self._embeddings,
            batches=self._batches,
            model_path=self._model_path,
        )

    def _make_server(self) -> Server:
        app = create_app(self._service, lifespan=self._lifespan)
        server = self._config.server
        protocol = Connection.limited(
            ConnectionLimits(
                max_header_bytes=server.max_header_bytes,
                header_timeout_s=server.header_timeout_s,
                body_timeout_s=server.body_timeout_s,
                slow_reader_s=server.slow_reader_s,
            )
        )
        options = uvicorn.Config(
            app,
            http=protocol,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=True,
            forwarded_allow_ips=[*LOCAL_PROXIES, *with_mapped(server.trusted_proxies)],
            timeout_keep_alive=75,
            timeout_graceful_shutdown=GRACE_S,
        )
        return Server(options, protocol, self._listeners, self._stop)

    def run(self) -> int:
        self._server.run(sockets=[listener.sock for listener in self._listeners])
        return self._exit_code

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        if self._ledger is not None:
            self._ledger.start()
        self._supervisor.on_state = self._announce
        self._announce(self._supervisor.state)
        self._supervisor.start().add_done_callback(self._task_ended)
        work = (
            *(self._become_ready(), self._feed_watchdog(), self._drain_on_stop(), self._retry_keys()),
            *(self._service.keeper.run(), self._stay_awake(), record(self._service)),
        )
        self._lines = asyncio.create_task(self._batches.run(self._service, app))
        tasks = [self._lines, *(asyncio.create_task(w) for w in work)]
        for task in tasks:
            task.add_done_callback(self._task_ended)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._batches.close()
            await self._embeddings.close()
            await self._supervisor.stop()
            if self._ledger is not None:
                self._ledger.close()

    # ---- start -----------------------------------------------------------------------------------

    async def _become_ready(self) -> None:
        """READY only when its text can be read and the model is resident, or was and left: what comes loads it."""
        try:
            text = await asyncio.to_thread(Text.load, self._model_path, self._config)
            self._service.open(text)
            for note in self._service.notes:
                log.warning("%s", note)
            if self._config.pins:
                self._supervisor.pin(await asyncio.to_thread(read_pins, self._config, text))
        except (ModelLoadError, ConfigError) as error:
            self._supervisor.give_up(str(error))
            self._service.stay_closed()
        try:
            await self._supervisor.begun()
        except HomeAIError as error:
            self._notifier.send(STATUS=str(error))
            if self._notifier.is_active and self._supervisor.state is State.FAILED:
                self._exit_code = EXIT_FAILED
                self._server.should_exit = True
            return
        gc.collect()
        gc.freeze()  # what is loaded stays: looking through it again would stop every stream for some 30 ms
        self._notifier.send(READY=1)
        log.info("serving on %s", ", ".join(listener.url for listener in self._listeners))
        if not self._notifier.is_active:
            print(self._invitation(), flush=True)

    def _invitation(self) -> str:
        """For people in a terminal: where to look, and something to paste."""
        url = self._listeners[0].url
        return (
            f"\n  status page  {url}/"
            f"\n  try          curl {url}/v1/chat/completions"
            """ -d '{"messages":[{"role":"user","content":"What is a resident model?"}],"max_tokens":64}'\n"""
        )

    def _announce(self, state: State) -> None:
        self._books.event("state", state)
        self._service.lookback.state(state, self._why(state))
        why = f" ({self._supervisor.failure})" if self._supervisor.failure else ""
        self._notifier.send(STATUS=f"{state}: {self._service.model_file}{why}")
        self._service.keeper.look()

    def _why(self, state: State) -> str:
        """In words, for whoever looks later."""
        supervisor = self._supervisor
        if state is State.RESIDENT and supervisor.startup is not None:
            return f"{self._service.model_file}, loaded in {supervisor.startup.total_s:.1f} s"
        if state in AWAY:
            return supervisor.away_reason or ""
        return supervisor.failure or ""

    async def _feed_watchdog(self) -> None:
        """While loading: ask for more time. Later: only as long as the engine's own loop is heard of."""
        while True:
            if self._supervisor.state in (State.LOADING, State.WARMING):
                self._notifier.send(EXTEND_TIMEOUT_USEC=int(4e6 * LOAD_NOTE_S))
            # FAILED is said, not hidden behind a restart: what failed for good would fail again
            if self._supervisor.is_alive or self._supervisor.state is State.FAILED:
                self._notifier.send(WATCHDOG=1)
            await asyncio.sleep(min(LOAD_NOTE_S, self._notifier.watchdog_s / 3 or LOAD_NOTE_S))

    async def _stay_awake(self) -> None:
        client = self._service.client
        if self._config.residency.keep_awake and sleep_lock.is_available():
            await SleepLock(lambda: self._supervisor.ready is not None and client.num_live > 0).run()

    async def _retry_keys(self) -> None:
        """What keeps people out is looked at again by itself."""
        keys = self._service.keys
        while True:
            await asyncio.sleep(KEYS_RETRY_S)
            if keys.failure is not None:
                keys.refresh()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """A bug in one of them would leave a daemon that only looks alive: end, and let systemd start us again."""
        if not task.cancelled() and task.exception() is not None:
            log.critical("the daemon is broken and ends", exc_info=task.exception())
            self._exit_code = 1
            self._server.should_exit = True

    # ---- stop ------------------------------------------------------------------------------------

    async def _drain_on_stop(self) -> None:
        """Nothing new; what runs may end within the deadline; the rest is told."""
        await self._stop.wait()
        deadline_s = self._config.server.drain_timeout_s
        client = self._service.client
        log.info("stopping: %d request(s) have up to %.0f s to end", len(client.live), deadline_s)
        self._notifier.send(STOPPING=1, EXTEND_TIMEOUT_USEC=int(1e6 * (deadline_s + STOP_S)))
        self._supervisor.drain()
        if all(listener.outlives_us for listener in self._listeners):
            self._server.let_wait()
        self._service.keeper.close()
        if self._lines is not None:
            self._lines.cancel()  # nobody waits for them, and they are run again
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await client.idle()
        if client.live:
            log.warning("%d request(s) did not end in time and are cut off", len(client.live))
            client.abort_all()
        self._service.is_closing = True
        self._server.should_exit = True
