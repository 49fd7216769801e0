"""Who cannot join in this step, and why: noted once, then passed over."""

from __future__ import annotations

from collections.abc import Collection

from homeai.request import Request, WaitReason

MAX_SKIPPED_SOURCES = 32  # of a class, looked at one by one; then the rest of the class waits for another step


class Skips:
    def __init__(self) -> None:
        self.everybody: WaitReason | None = None
        self._classes: dict[str, WaitReason] = {}
        self._sources: dict[str, dict[str, WaitReason]] = {}

    def clear(self) -> None:
        self.everybody = None
        self._classes.clear()
        self._sources.clear()

    def skip_class(self, request: Request, reason: WaitReason) -> None:
        self._classes[request.fairness_class] = reason

    def skip_source(self, request: Request, reason: WaitReason) -> None:
        sources = self._sources.setdefault(request.fairness_class, {})
        sources[request.source] = reason
        if len(sources) > MAX_SKIPPED_SOURCES:
            self.skip_class(request, reason)

    def has_class(self, fairness_class: str) -> bool:
        return fairness_class in self._classes

    def sources_of(self, fairness_class: str) -> Collection[str]:
        return self._sources.get(fairness_class, ())

    def reason(self, request: Request) -> WaitReason | None:
        own = self._sources.get(request.fairness_class, {}).get(request.source)
        return own or self._classes.get(request.fairness_class) or self.everybody
