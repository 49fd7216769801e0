"""A supervisor with a child that does as it is told and a clock that moves when told."""

from __future__ import annotations

from homeai.clock import VirtualClock
from homeai.config import ResidencyConfig
from homeai.errors import NotReady
from homeai.messages import EngineFailed
from homeai.server.supervisor import State, Supervisor
from homeai.server.warmup import WarmUp
from tests.server.fakes import READY, FakeChild, until

CONFIG = ResidencyConfig(load_timeout_s=600.0, heartbeat_timeout_s=60.0, max_restarts=2, restart_window_s=100.0)


class House:
    """A supervisor, its children so far, and what it told the rest of the house."""

    def __init__(self, warm_up: WarmUp | None = None) -> None:
        self.clock = VirtualClock()
        self.children: list[FakeChild] = []
        self.supervisor = Supervisor(self._start_child, CONFIG, self.clock, warm_up)
        self.states: list[State] = []
        self.messages: list[object] = []
        self.losses: list[NotReady] = []
        self.supervisor.on_state = self.states.append
        self.supervisor.on_message = self.messages.append
        self.deaths: list[str] = []
        self.supervisor.on_lost = self.losses.append
        self.supervisor.on_died = lambda reason, by_itself: self.deaths.append(reason)

    def _start_child(self) -> FakeChild:
        self.children.append(FakeChild(pid=len(self.children) + 1))
        return self.children[-1]

    @property
    def child(self) -> FakeChild:
        return self.children[-1]

    @property
    def state(self) -> State:
        return self.supervisor.state

    async def reach(self, state: State) -> None:
        await until(lambda: self.state is state)

    async def become_resident(self) -> None:
        self.child.say(READY)
        await self.reach(State.RESIDENT)

    async def lose_child(self, *last_words: EngineFailed, exit_code: int = 1) -> None:
        """It dies, and the next one is started or none."""
        num_ends = len(self.losses) + len(self.deaths)
        self.child.say(*last_words)
        self.child.die(exit_code)
        await until(lambda: len(self.losses) + len(self.deaths) > num_ends)
