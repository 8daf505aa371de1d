"""What is said of a log."""

from __future__ import annotations

import pytest

from trireme.engine.logs.generators import BurstArrivals, PoissonArrivals, RequestKind, generate
from trireme.engine.logs.request_log import LoggedLoop, LoggedRequest, LoggedResult, RequestTraffic
from trireme.engine.logs.request_summary import summarise, summary_lines


def test_rates_and_how_uneven_they_are() -> None:
    steady = summarise(RequestTraffic([LoggedRequest(0.01 * at, "m") for at in range(1000)])).rate
    assert (steady.mean_hz, steady.most_hz) == (pytest.approx(100, rel=0.01), pytest.approx(100, abs=1))
    assert (steady.burstiness, steady.gap_variation) == (pytest.approx(0, abs=0.02), pytest.approx(0, abs=0.01))
    poisson = summarise(generate(PoissonArrivals(100), [RequestKind("m")], 200)).rate
    assert (poisson.burstiness, poisson.gap_variation) == (pytest.approx(1, rel=0.3), pytest.approx(1, rel=0.1))
    bursts = summarise(generate(BurstArrivals(1000, 0.2, 2), [RequestKind("m")], 100)).rate
    assert bursts.burstiness > 20
    assert bursts.gap_variation > 3


def test_models_are_told_of_one_by_one() -> None:
    requests = [
        LoggedRequest(0.0, "a", rows=2, nbytes=64, priority=1, tenant="t", protocol="grpc"),
        LoggedRequest(0.5, "a", rows=4, nbytes=128, timeout_us=5),
        LoggedRequest(0.75, "s", sequence=1, start=True, ensemble=True),
        LoggedRequest(1.0, "s", sequence=1, end=True, ensemble=True),
        LoggedRequest(2.0, "s", sequence=2, ensemble=True),
    ]
    facts = summarise(RequestTraffic(requests, dropped=3))
    assert [(each.model, each.requests) for each in facts.models] == [("s", 3), ("a", 2)]
    sums, a = facts.models
    assert (sums.sequences, sums.steps, sums.ensemble, sums.results) == (2, 1.5, True, None)
    assert (a.rows, a.nbytes, a.priorities, a.timeouts) == ((3.0, 4), (96.0, 128), ((1, 1),), 1)
    text = "\n".join(summary_lines(facts))
    assert text.startswith("5 requests in 2.000 s\n2.5 a second, 3 in the busiest;")
    assert "3 more are missing: there was no room to log them" in text
    assert "s (ensemble): 3 requests, 60.0%" in text
    assert "  sequences: 2, of 1.5 requests on average" in text
    assert "  protocols: grpc (1)\n  tenants: t (1)\n  with a timeout: 1" in text


def test_results_are_summed_up() -> None:
    good = [LoggedResult(1000.0 * (at + 1), 100.0, 0.0, 500.0, 0.0, 8) for at in range(100)]
    results = [*good, LoggedResult(5.0, outcome="queue_full"), LoggedResult(5.0, outcome="failed")]
    facts = summarise(RequestTraffic([LoggedRequest(0.01 * at, "m", result=each) for at, each in enumerate(results)]))
    told = facts.models[0].results
    assert told is not None
    assert (told.answered, told.p50_us, told.batch) == (100, 50_500.0, 8.0)
    assert told.outcomes == (("queue_full", 1), ("failed", 1))
    text = "\n".join(summary_lines(facts))
    assert "answered: 100; p50 50.500 ms" in text
    assert "not answered: queue_full (1), failed (1)" in text


def test_closed_loops_and_logs_of_little() -> None:
    loop = summarise(RequestTraffic([LoggedRequest(0.0, "m")] * 3, LoggedLoop(2, 0.5)))
    assert next(summary_lines(loop)) == "3 requests of 2 clients in a closed loop, who think for 0.5 s on average"
    assert next(summary_lines(summarise(RequestTraffic([])))) == "0 requests in 0.000 s"
    assert summarise(RequestTraffic([LoggedRequest(3.0, "m")])).seconds == 0.0


def test_a_single_request_has_no_rate() -> None:
    lines = list(
        summary_lines(
            summarise(RequestTraffic([LoggedRequest(0.0, "a"), LoggedRequest(1.0, "a"), LoggedRequest(2.0, "b")]))
        )
    )
    assert "b: 1 request, 33.3%" in lines
    assert not [line for line in lines[lines.index("b: 1 request, 33.3%") :] if "a second" in line]
    assert "1 request in 0.000 s" in list(summary_lines(summarise(RequestTraffic([LoggedRequest(0.0, "a")]))))
