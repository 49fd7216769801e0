"""Who is served how much of late, against what the weights give: classes by weight, a class's sources alike. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from homeai.messages import Served
from homeai.status import ShareStatus

MAX_SHARES: Final = 24
LEAST_PART: Final = 0.001  # who had less and does not ask now is not shown


def shares_of(
    served: Sequence[Served], weights: Mapping[str, float], asking: Collection[tuple[str, str]]
) -> list[ShareStatus]:
    """`asking`: classes and sources with live requests. A source that nobody served yet is due its part, too."""
    total = sum(s.num_tokens for s in served)
    parts = {(s.fairness_class, s.source): s.num_tokens / total for s in served if s.num_tokens > LEAST_PART * total}
    owners = dict.fromkeys([*parts, *sorted(asking)])
    num_sources = Counter(fairness_class for fairness_class, _ in owners)
    total_weight = sum(weights.get(name, 1.0) for name in num_sources)
    shares = [
        ShareStatus(
            source,
            name,
            served=round(parts.get((name, source), 0.0), 4),
            due=round(weights.get(name, 1.0) / total_weight / num_sources[name], 4),
        )
        for name, source in owners
    ]
    return sorted(shares, key=lambda share: -share.served)[:MAX_SHARES]
