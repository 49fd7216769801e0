"""What /metrics counts: Prometheus series in vLLM's words, prefixed `homeai_`.

What happened is counted here, by the event loop alone. What is the case now is looked at when somebody asks
(`server/gauges.py`). `docs/metrics.md` explains every series.
"""

from homeai.metrics.metrics import CONTENT_TYPE, Metrics

__all__ = ["CONTENT_TYPE", "Metrics"]
