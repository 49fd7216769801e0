"""A real systemd in a container that is made of this machine's own files, none of which it can change.

    tmpfs over /  ─overlay─▶  systemd-nspawn -b

All of it is in namespaces for mounts and processes, whose first process is nspawn: whatever ends that, or us, ends
everything, and nothing stays. Its network is its own: `network()` takes the calling thread there.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import psutil

BOOT_TIMEOUT_S = 90.0
COMMAND_TIMEOUT_S = 120.0
PATIENCE_S = 90.0
POLL_S = 0.05
CLONE_NEWNET = 0x40000000
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

REPO = Path(__file__).parents[2]
CHECKOUT, PYTHON, PACKAGES, VENV = (f"/opt/test/{name}" for name in ("checkout", "python", "packages", "venv"))

CGROUPS = "/sys/fs/cgroup", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified"  # of versions 2 and 1
CGROUP = "homeai-test-{}"  # the same one twice would mix up their services

OVERLAY = """
set -e
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/tree"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/tree"
"""
# What this machine would start when it boots is none of the container's. Without an id it would be a first boot.
BOOT = f"""{OVERLAY}
rm -rf "$1"/tree/etc/systemd/system/*.wants "$1"/tree/etc/systemd/system/homeai*
echo 0123456789abcdef0123456789abcdef > "$1/tree/etc/machine-id"
mkdir -p /run/systemd && mount -t tmpfs tmpfs /run/systemd
for tree in {" ".join(CGROUPS)}; do
    [[ ! -e $tree/cgroup.procs ]] || {{ mkdir -p $tree/$2 && echo 0 > $tree/$2/cgroup.procs; }}
done
cd "$1" && shift 2
exec systemd-nspawn --quiet --register=no --keep-unit --settings=no --link-journal=no --private-network \
    --resolv-conf=off --timezone=off --notify-ready=yes --console=pipe --directory=tree "$@" --boot
"""

T = TypeVar("T")


def obstacle() -> str | None:
    """Why no container can be booted here, if so."""
    if os.geteuid() != 0:
        return "only root can boot a container"
    for program in ("systemd-nspawn", "unshare", "nsenter", "setpriv"):
        if shutil.which(program) is None:
            return f"{program} is not here (Debian: systemd-container, util-linux)"
    attempt = ["unshare", "--mount", "--pid", "--net", "--fork", "sh", "-c", f"{OVERLAY}\numount -l $1", "sh", "/mnt"]
    allowed = subprocess.run(attempt, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)
    return f"namespaces or mounts are not allowed here: {allowed.stderr.strip()}" if allowed.returncode else None


class Container:
    """Booted, with homeai's requirements in `VENV` and its checkout at `CHECKOUT`."""

    def __init__(self, directory: Path) -> None:
        self._console = (directory / "console").open("w+")
        root = directory / "container"
        root.mkdir()
        binds = {sys.base_prefix: PYTHON, sysconfig.get_path("purelib"): PACKAGES, str(REPO): CHECKOUT}
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notes:
            notes.bind(str(directory / "notify"))
            notes.settimeout(BOOT_TIMEOUT_S)
            self._process = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private"),
                    *("--pid", "--mount-proc", "--fork", "--kill-child=KILL"),
                    *("bash", "-c", BOOT, "boot", str(root), CGROUP.format(os.getpid())),
                    *(f"--bind-ro={source}:{target}" for source, target in binds.items()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=self._console,
                stderr=self._console,
                env={"PATH": PATH, "NOTIFY_SOCKET": str(directory / "notify")},
            )
            self.leader = 0
            try:
                self._boot(notes)
                self._make_venv()
            except BaseException:
                self.close()
                raise

    def _boot(self, notes: socket.socket) -> None:
        """Until its init, the leader, has started everything."""
        while not self.leader:
            try:
                note = notes.recv(65536).decode().splitlines()
            except TimeoutError:
                raise RuntimeError(f"the container did not boot:\n{self.console()}") from None
            if "READY=1" in note:
                self.leader = self.process(1).pid

    def _make_venv(self) -> None:
        """Of this Python and its packages, where the service may read them: outside of anybody's home."""
        paths = f"/opt/homeai/src\\n{CHECKOUT}\\nimport site; site.addsitedir('{PACKAGES}')\\n"
        command = f"#!{VENV}/bin/python\\nfrom homeai.cli import main\\nmain()\\n"
        self.shell(
            f"""
            echo {PYTHON}/lib > /etc/ld.so.conf.d/test.conf && ldconfig
            {PYTHON}/bin/python3 -m venv --without-pip {VENV}
            printf "{paths}" > "$(echo {VENV}/lib/python*/site-packages)/test.pth"
            printf "{command}" > {VENV}/bin/homeai && chmod +x {VENV}/bin/homeai
            """
        )

    # ---- in it -----------------------------------------------------------------------------------

    def run(self, *command: str, check: bool = True, env: dict[str, str] | None = None) -> str:
        """What it prints. Raises `AssertionError` with all that it said unless its exit code is 0."""
        variables = [f"{key}={value}" for key, value in ({"PATH": PATH} | (env or {})).items()]
        enter = ["nsenter", f"--target={self.leader}", "--all", "env", "-i", *variables]
        done = subprocess.run([*enter, *command], capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)
        assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout.strip()

    def shell(self, script: str) -> str:
        return self.run("bash", "-euc", script)

    def write(self, path: str, text: str, mode: str = "0644") -> None:
        self.run("bash", "-euc", 'printf %s "$2" | install -D -m "$3" /dev/stdin "$1"', "write", path, text, mode)

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", f"--property={name}", "--value", unit)

    def process(self, pid: int) -> psutil.Process:
        """The process that has this id in there: the last of its ids is the container's, two namespaces below ours."""
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{process.pid}/status").read_text()
                ids = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
                if len(ids) == 3 and ids[2] == str(pid):
                    return process
        raise psutil.NoSuchProcess(pid)

    def processes(self, *words: str) -> list[psutil.Process]:
        """Those whose command line has all the words."""
        found = []
        for process in psutil.Process(self.leader).children(recursive=True):
            try:
                if all(word in process.cmdline() for word in words):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    @contextlib.contextmanager
    def network(self) -> Iterator[None]:
        """What this thread connects to meanwhile is in there."""
        with open("/proc/thread-self/ns/net") as ours, open(f"/proc/{self.leader}/ns/net") as its:
            _set_namespace(its.fileno())
            try:
                yield
            finally:
                _set_namespace(ours.fileno())

    # ---- its end ---------------------------------------------------------------------------------

    def console(self) -> str:
        self._console.flush()
        return Path(self._console.name).read_text()

    def close(self) -> None:
        running = psutil.Process(self._process.pid).children(recursive=True)
        self._process.send_signal(signal.SIGKILL)  # there is nothing to lose
        self._process.wait(COMMAND_TIMEOUT_S)
        _, left = psutil.wait_procs(running, COMMAND_TIMEOUT_S)
        for cgroup in (Path(tree, CGROUP.format(os.getpid())) for tree in CGROUPS):
            for directory in sorted((cgroup, *cgroup.rglob("*/")), reverse=True):
                with contextlib.suppress(OSError):
                    directory.rmdir()
        self._console.close()
        assert not left, f"the container did not end: {left}"

    def __enter__(self) -> Container:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def eventually(probe: Callable[[], T]) -> T:
    """The first result of `probe` that is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not (result := probe()):
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:.0f} s"
        time.sleep(POLL_S)
    return result


def _set_namespace(fd: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(fd, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "the network of the container cannot be entered")
