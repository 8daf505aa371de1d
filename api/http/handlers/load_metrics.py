"""The ORCA header: how full a language model's cache is, sent with its answers on request
(docs/reference/generate.md#load-metrics-header).

A load balancer may ask for it with each request. The numbers are those of a family of custom metrics that the backend
of TensorRT-LLM keeps, and that any other backend may keep.
"""

from __future__ import annotations

import logging

import orjson

from ....engine.metrics.custom import CustomMetrics
from ..exchange import Headers

logger = logging.getLogger("trireme.http")

FORMAT_HEADER = b"endpoint-load-metrics-format"

_HEADER = b"endpoint-load-metrics"
_FAMILY = "nv_trt_llm_kv_cache_block_metrics"
_LABEL = "kv_cache_block_type"
_TYPES = ("tokens_per", "used", "max")


def load_metrics_headers(wanted: bytes | None, metrics: CustomMetrics) -> Headers:
    """The header in the format that the request wants; none, and a word in the log, if it cannot be made.

    Args:
        wanted: ``json`` or ``text``; None for a request that does not ask.
    """
    if wanted is None:
        return ()
    blocks = {labels.get(_LABEL, ""): value for labels, value in metrics.values(_FAMILY)}
    missing = [name for name in _TYPES if name not in blocks]
    if missing:
        logger.error("no %s header: metric family '%s' lacks '%s'", _HEADER.decode(), _FAMILY, "', '".join(missing))
        return ()
    tokens_per_block, used, most = (blocks[name] for name in _TYPES)
    utilization = used / most if most else 0.0
    capacity = int(most * tokens_per_block)
    if wanted == b"json":
        named = {"named_metrics": {"kv_cache_utilization": utilization, "max_token_capacity": capacity}}
        return ((_HEADER, b"JSON " + orjson.dumps(named)),)
    if wanted == b"text":
        text = f"named_metrics.kv_cache_utilization={utilization:f}, named_metrics.max_token_capacity={capacity}"
        return ((_HEADER, b"TEXT " + text.encode()),)
    logger.error("no %s header: format '%s' is neither 'json' nor 'text'", _HEADER.decode(), wanted.decode("latin-1"))
    return ()
