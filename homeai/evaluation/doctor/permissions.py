"""May a user, who need not be us, read or write a file? By its mode bits, and those of the folders above it."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class User:
    name: str
    uid: int
    gids: Collection[int]

    @classmethod
    def named(cls, name: str) -> User | None:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            return None
        return cls(name, entry.pw_uid, os.getgrouplist(name, entry.pw_gid))

    @classmethod
    def ourselves(cls) -> User:
        uid = os.geteuid()
        return cls(_name(uid), uid, {os.getegid(), *os.getgroups()})

    @classmethod
    def of_process(cls, pid: int) -> User | None:
        try:
            return cls.named(psutil.Process(pid).username())
        except psutil.Error:
            return None


def problem_of(path: Path, user: User, *, writes: bool = False) -> str | None:
    """Why the user cannot use it, in a few words. Root may do everything; what is not there is nobody's."""
    try:
        for folder in reversed(path.absolute().parents):
            if not _has(folder.stat(), user, stat.S_IXUSR):
                return f"{str(folder)!r} may not be entered"
        status = path.stat()
    except FileNotFoundError:
        return "it does not exist"
    except (PermissionError, NotADirectoryError) as error:
        return f"it cannot be looked at: {error.strerror}"
    if not _has(status, user, stat.S_IRUSR):
        return f"it may not be read (mode {stat.filemode(status.st_mode)}, of {_name(status.st_uid)})"
    if writes and not _has(status, user, stat.S_IWUSR):
        return f"it may not be written (mode {stat.filemode(status.st_mode)}, of {_name(status.st_uid)})"
    return None


def _has(status: os.stat_result, user: User, bit: int) -> bool:
    """`bit` as for the owner."""
    if user.uid == 0:
        return True
    if status.st_uid == user.uid:
        return bool(status.st_mode & bit)
    if status.st_gid in user.gids:
        return bool(status.st_mode & bit >> 3)
    return bool(status.st_mode & bit >> 6)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
