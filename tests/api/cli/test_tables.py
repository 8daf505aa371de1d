"""Tables look like Triton's (observability.md §4)."""

from __future__ import annotations

from trireme.api.cli.tables import table


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert table(("Model", "Version", "Status"), [("m", "1", "READY"), ("longer name", "12", "UNAVAILABLE: why")]) == (
        "+-------------+---------+------------------+\n"
        "| Model       | Version | Status           |\n"
        "+-------------+---------+------------------+\n"
        "| m           | 1       | READY            |\n"
        "| longer name | 12      | UNAVAILABLE: why |\n"
        "+-------------+---------+------------------+\n"
    )


def test_a_table_without_rows() -> None:
    assert table(("Repository Agent", "Path"), ()) == (
        "+------------------+------+\n"
        "| Repository Agent | Path |\n"
        "+------------------+------+\n"
        "+------------------+------+\n"
    )
