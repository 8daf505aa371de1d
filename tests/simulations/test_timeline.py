"""Timelines of histories written by hand, to the letter."""

from __future__ import annotations

from xml.etree import ElementTree

from trireme.simulations.events import (
    BatchSealed,
    ExecutionEnded,
    ExecutionStarted,
    KernelEnded,
    KernelStarted,
    RequestAbandoned,
    RequestAnswered,
    RequestSubmitted,
)
from trireme.simulations.history import History
from trireme.simulations.scenarios import SCENARIOS
from trireme.simulations.svg import draw_svg
from trireme.simulations.timeline import draw_timeline
from trireme.simulations.world import run_world

MS = 1_000_000


def batch(number: int, instance: str, start_ms: int, end_ms: int, *requests: int) -> list:
    model = instance.rpartition("_")[0]
    return [
        BatchSealed(start_ms * MS, number, model, 1, instance, "full", requests, len(requests)),
        ExecutionStarted(start_ms * MS, number),
        ExecutionEnded(end_ms * MS, number, "done"),
    ]


def history(*events: object) -> History:
    return History(tuple(sorted(events, key=lambda event: event.at_ns)))  # type: ignore[arg-type, attr-defined]


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


HANDMADE = history(
    *(RequestSubmitted(n * 10 * MS, n, "m", 1, 0, 0) for n in range(12)),
    *batch(1, "m_0", 0, 30, 0),
    *batch(2, "m_1", 130, 200, 1, 2, 3, 4, 5),
    *batch(3, "m_0", 150, 155, 6),
    *batch(4, "m_0", 155, 160, 7),
    *batch(5, "a_0", 30, 170, 100, 101),
    *(RequestAnswered(200 * MS, n, "") for n in range(1, 6)),
    *(RequestAbandoned(180 * MS, n) for n in range(8, 12)),
    KernelStarted(135 * MS, "g", 1, "kernel", "compute", 1, 2),
    KernelEnded(195 * MS, "g", 1, "kernel", 2),
    KernelStarted(140 * MS, "g", 0, "k", "compute", 1, 1),
)


def test_a_timeline_shows_queues_instances_and_streams() -> None:
    """Queues by their depth, ten or more as +; short bars, labels that do not fit, and what never ends included."""
    assert lines(draw_timeline(HANDMADE, 40)) == lines("""
        one column is 5 ms
                           0         50        100       150       200 ms
                           |         |         |         |         |
        a_0                ......[100,101===================]......
        m queue            ..112233445566778899++++++6666544444....
        m_0                [0===]........................##........
        m_1                ..........................[1,2,3,4,5===]
        g stream 0 (m_0)   ............................[k=========]
        g stream 1 (m_1)   ...........................[kernel====].
    """)


def test_columns_are_as_short_as_they_can_be() -> None:
    assert draw_timeline(HANDMADE, 12).splitlines()[0] == "one column is 20 ms"
    assert draw_timeline(HANDMADE, 200).splitlines()[0] == "one column is 1 ms"
    assert draw_timeline(HANDMADE, 199).splitlines()[0] == "one column is 2 ms"


def test_labels_that_do_not_fit_say_so() -> None:
    rows = lines(draw_timeline(HANDMADE, 20))
    assert "m_1                .............[1,2,+]" in rows


def test_a_history_without_time_is_drawn() -> None:
    assert draw_timeline(History(())).startswith("one column is 1 ns\n")
    only = History((RequestSubmitted(0, 1, "m", 1, 0, 0), RequestAnswered(0, 1, "refused")))
    assert lines(draw_timeline(only))[-1] == "m queue   ."


def test_times_carry_the_unit_that_fits() -> None:
    def scale(end_ns: int) -> list[str]:
        text = draw_timeline(History((RequestAbandoned(end_ns, 1),)), 30).splitlines()
        return [text[0], *text[1].split()]

    assert scale(30) == ["one column is 1 ns", "0", "10", "20", "30", "ns"]
    assert scale(2_900) == ["one column is 100 ns", "0", "1", "2", "us"]
    assert scale(6_000_000_000) == ["one column is 200 ms", "0", "2", "4", "6", "s"]


def test_the_svg_is_well_formed_and_has_a_bar_for_everything_that_took_time() -> None:
    root = ElementTree.fromstring(draw_svg(HANDMADE))
    space = "{http://www.w3.org/2000/svg}"
    titles = [title.text for title in root.iter(f"{space}title")]
    assert titles == [
        "100,101 (batch 5): 30 ms to 170 ms",
        "m queue: 11 at most",
        "0 (batch 1): 0 ms to 30 ms",
        "6 (batch 3): 150 ms to 155 ms",
        "7 (batch 4): 155 ms to 160 ms",
        "1,2,3,4,5 (batch 2): 130 ms to 200 ms",
        "k (batch 1): 140 ms to 200 ms",
        "kernel (batch 2): 135 ms to 195 ms",
    ]
    bars = [rect for rect in root.iter(f"{space}rect") if rect.find(f"{space}title") is not None]
    assert [(bar.get("x"), bar.get("width")) for bar in bars[1:2]] == [("200.0", "144.0")]
    assert len(bars) == 7


def test_the_svg_escapes_names_and_draws_nothing_as_nothing() -> None:
    events = History((RequestSubmitted(0, 1, "<&>", 1, 0, 0), RequestAnswered(5, 1, "")))
    assert "&lt;&amp;&gt; queue" in draw_svg(events)
    ElementTree.fromstring(draw_svg(History(())))


def test_one_seed_gives_one_drawing() -> None:
    first, again = (run_world(SCENARIOS["mixed"], 5) for _ in range(2))
    assert draw_svg(first) == draw_svg(again)
    assert draw_timeline(first) == draw_timeline(again)


def test_rows_of_stateful_models_show_whose_sequence_is_where() -> None:
    """Padding leaves a gap; a sequence stays in its row."""
    shown = history(
        *(RequestSubmitted(n * MS, n, "m", 1, 0, 0, sequence) for n, sequence in ((1, 7), (2, "b"), (3, "b"))),
        *batch(1, "m_0", 10, 20, 1, 2),
        *batch(2, "m_0", 20, 30, 0, 3),
    )
    assert lines(draw_timeline(shown, 30))[-3:] == [
        "m_0         ..........[1,2=====][0,3=====]",
        "m_0 row 0   ..........[7=======]..........",
        "m_0 row 1   ..........[b=======][b=======]",
    ]
