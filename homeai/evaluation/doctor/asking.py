"""What the daemon says over HTTP, or why it says nothing. The edge: it waits a few seconds at most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from homeai.evaluation.bench.watch import quantile
from homeai.evaluation.doctor.facts import Quiet, Silence
from homeai.status import Status
from homeai.vitals import Vitals

TIMEOUT_S: Final = 5.0
ITL: Final = "homeai_inter_token_latency_seconds_bucket"


@dataclass(frozen=True, slots=True)
class Said:
    """`gaps`: what it did not tell, and why."""

    silence: Silence | None = None
    status: Status | None = None
    vitals: Vitals | None = None
    itl_p95_s: Mapping[str, float] = field(default_factory=dict)
    gaps: tuple[str, ...] = ()


def ask(url: str, key: str | None, timeout_s: float = TIMEOUT_S) -> Said:
    headers = {b"authorization": f"Bearer {key}".encode()} if key else {}
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=timeout_s) as http:
            response = http.get("/api/status")
            if response.status_code in (401, 403):
                return Said(Silence(Quiet.LOCKED, f"HTTP {response.status_code} from /api/status"))
            if response.status_code != 200:
                return Said(Silence(Quiet.FOREIGN, f"HTTP {response.status_code} from /api/status"))
            status = msgspec.json.decode(response.content, type=Status)
            gaps: list[str] = []
            return Said(None, status, _vitals(http, gaps), _itl(http, gaps), tuple(gaps))
    except msgspec.MsgspecError:
        return Said(Silence(Quiet.FOREIGN, "/api/status is not homeai's, or another version's"))
    except httpx.TimeoutException as error:
        return Said(Silence(Quiet.TIMEOUT, f"nothing within {timeout_s:g} s: {type(error).__name__}"))
    except httpx.ConnectError as error:
        why = Quiet.REFUSED if "refused" in str(error).lower() else Quiet.UNREACHABLE
        return Said(Silence(why, str(error)))
    except httpx.RemoteProtocolError as error:
        return Said(Silence(Quiet.FOREIGN, f"it does not speak HTTP: {error}"))
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        return Said(Silence(Quiet.UNREACHABLE, str(error) or type(error).__name__))


def _vitals(http: httpx.Client, gaps: list[str]) -> Vitals | None:
    response = http.get("/api/admin/vitals")
    if response.status_code == 200:
        return msgspec.json.decode(response.content, type=Vitals)
    need = "an admin key is needed from here" if response.status_code in (401, 403) else "an older daemon?"
    gaps.append(f"queue, steps and settings of the daemon: HTTP {response.status_code} ({need})")
    return None


def _itl(http: httpx.Client, gaps: list[str]) -> dict[str, float]:
    response = http.get("/metrics")
    if response.status_code != 200:
        gaps.append(f"/metrics: HTTP {response.status_code}")
        return {}
    buckets: defaultdict[str, dict[float, float]] = defaultdict(dict)
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            if sample.name == ITL:
                buckets[sample.labels["class"]][float(sample.labels["le"])] = sample.value
    known = {name: quantile(counts, 0.95) for name, counts in buckets.items()}
    return {name: value for name, value in known.items() if value is not None}
