"""What the command line bounds when nothing is said."""

from __future__ import annotations

from trireme.api.cli.command import build_command
from trireme.api.cli.flag_table import FLAGS
from trireme.api.cli.flags import parse


def test_what_one_client_or_model_may_take_is_bounded_by_default() -> None:
    """As the README and docs/security.md say. Most flags mean no bound by 0."""
    bounds = build_command(parse((), FLAGS), {})
    server, http = bounds.server, bounds.http
    assert (server.hang_limit_s, server.watchdog_limit_s, server.address_share) == (300.0, 10.0, 0.5)
    assert (server.max_inflight_requests, server.max_inflight_bytes) == (65_536, 4 << 30)
    assert (server.tensor_limits.max_rank, server.tensor_limits.max_elements) == (64, 1 << 20)
    assert http is not None
    assert http.service.limits.idle_timeout_s == 75
    assert (http.options.max_input_bytes, http.options.max_management_bytes) == (64 << 20, 1 << 20)
    assert (http.options.max_json_values, http.options.max_compression_ratio) == (1 << 17, 1000)
