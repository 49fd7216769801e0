"""The machine around the daemon, as it is now. The edge: it watches the CPUs for half a second."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import ipaddress
import shutil
import socket
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

import psutil

from homeai.config import Config
from homeai.errors import HomeAIError
from homeai.evaluation.bench.watch import family
from homeai.evaluation.doctor import graphics, systemd
from homeai.evaluation.doctor.facts import Access, Build, Busy, Disk, Listener, Machine, Unit
from homeai.evaluation.doctor.permissions import User, problem_of
from homeai.hardware import MachineProbe, Probe
from homeai.models import chosen

WATCH_S: Final = 0.5
MIN_CPUS: Final = 0.05  # of a program that is worth its name
NUM_OTHERS: Final = 5
THROTTLES: Final = "cpu[0-9]*/thermal_throttle/core_throttle_count"


def look(config: Config | None, port: int, pid: int | None, model: Path | None, probe: Probe | None = None) -> Machine:
    """`pid`: the daemon's, if it told; `model`: the file that it serves, else the settings say which."""
    units, unit_user = systemd.units()
    user = (User.of_process(pid) if pid else None) or (User.named(unit_user) if unit_user else None) or User.ourselves()
    memory = (probe or MachineProbe()).memory()
    ours = {*(family(pid) if pid else ()), psutil.Process().pid}
    throttles = _throttle_events()
    others = busy_others(ours)
    return Machine(
        num_cpus=len(psutil.Process().cpu_affinity()),
        total_bytes=memory.total_bytes,
        available_bytes=memory.available_bytes,
        swap_used_bytes=psutil.swap_memory().used,
        others=others[:NUM_OTHERS],
        others_cpus=sum(busy.num_cpus for busy in others),
        cpu_throttle_events=_throttle_events() - throttles,
        disks=list(_disks(config)),
        accesses=list(_accesses(config, model, user)),
        graphics=graphics.graphics(user),
        build=build(),
        units=units,
        listener=listener(port, units),
    )


def is_here(host: str) -> bool:
    """A name or address of this machine."""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    own = {address.address.partition("%")[0] for each in psutil.net_if_addrs().values() for address in each}
    return all(ipaddress.ip_address(each.partition("%")[0]).is_loopback or each in own for each in found)


def busy_others(ours: Collection[int], watch_s: float = WATCH_S) -> list[Busy]:
    """Programs that are not among `ours`, by the CPUs that they kept busy meanwhile, the busiest first."""
    processes = [process for process in psutil.process_iter() if process.pid not in ours]
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.cpu_percent()
    time.sleep(watch_s)
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found.append(Busy(process.pid, process.name(), process.cpu_percent() / 100))
    return sorted((busy for busy in found if busy.num_cpus >= MIN_CPUS), key=lambda busy: -busy.num_cpus)


def build() -> Build | None:
    """None where llama.cpp is not installed beside this command."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        return None
    libraries = Path(spec.submodule_search_locations[0]) / "lib"
    version = importlib.metadata.version("llama-cpp-python")
    return Build(any(libraries.glob("*ggml-cuda*")), version)


def listener(port: int, units: Collection[Unit] = ()) -> Listener | None:
    """Who listens on this port; None: nobody."""
    try:
        connections = psutil.net_connections("tcp")
    except psutil.Error:
        return None
    listening = [c for c in connections if c.status == psutil.CONN_LISTEN and getattr(c.laddr, "port", None) == port]
    if not listening:
        return None
    pid = next((connection.pid for connection in listening if connection.pid), None)
    is_activated = any(unit.name == "homeai.socket" and unit.active_state == "active" for unit in units)
    if pid is None:
        return Listener(port, None, None, _owner(port), is_homeai=is_activated)
    try:
        process = psutil.Process(pid)
        words = process.cmdline()
        is_ours = "serve" in words and any("homeai" in word for word in words)
        return Listener(port, pid, process.name(), process.username(), is_homeai=is_ours or (pid == 1 and is_activated))
    except psutil.Error:
        return Listener(port, pid, None, None)


def _owner(port: int) -> str | None:
    """By the kernel's table, which tells everybody whose a socket is."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    return _user_name(int(fields[7]))
    return None


def _user_name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _disks(config: Config | None) -> Iterator[Disk]:
    if config is None:
        return
    seen = set()
    for path in (config.data_dir, config.ledger_path.parent):
        there = next((each for each in (path, *path.parents) if each.exists()), None)
        if there is None or there.stat().st_dev in seen:
            continue
        seen.add(there.stat().st_dev)
        usage = shutil.disk_usage(there)
        yield Disk(str(path), usage.free, usage.total)


def _accesses(config: Config | None, model: Path | None, user: User) -> Iterator[Access]:
    if config is None:
        return
    if config.data_dir.exists():
        yield Access("data_dir", str(config.data_dir), user.name, problem_of(config.data_dir, user, writes=True))
    if config.ledger_path.exists():
        yield Access("ledger", str(config.ledger_path), user.name, problem_of(config.ledger_path, user, writes=True))
    try:
        file = model or chosen(config)
    except HomeAIError as error:
        yield Access("model.path", str(config.model.path), user.name, str(error))
        return
    if file is not None:
        yield Access("model file", str(file), user.name, problem_of(file, user))


def _throttle_events() -> int:
    total = 0
    for file in Path("/sys/devices/system/cpu").glob(THROTTLES):
        with contextlib.suppress(OSError, ValueError):
            total += int(file.read_text())
    return total
