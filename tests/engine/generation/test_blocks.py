"""Who has which blocks (the rules of `engine.generation.blocks`)."""

from __future__ import annotations

from collections.abc import Sequence

from trireme.engine.generation.blocks import BlockMemory, BlockTable, Copy


def began(memory: BlockMemory, tokens: Sequence[int], salt: bytes = b"") -> BlockTable:
    """A generation of these tokens, computed."""
    table = memory.begin(tokens, salt, memory.find(tokens, salt))
    assert table is not None
    memory.computed(table, tokens, len(tokens))
    return table


def test_a_table_has_as_many_blocks_as_its_tokens_take() -> None:
    memory = BlockMemory(10, 4)
    assert [memory.blocks_for(count) for count in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]
    table = began(memory, range(5))
    assert (len(table.blocks), memory.free) == (2, 8)
    assert memory.grow(table, 5, 9) == []
    assert (len(table.blocks), memory.free) == (3, 7)
    memory.release(table)
    assert (table.blocks, memory.free) == ([], 10)


def test_where_there_are_too_few_nothing_changes() -> None:
    memory = BlockMemory(2, 4)
    assert memory.begin(range(9), b"", []) is None
    table = began(memory, range(8))
    assert memory.grow(table, 8, 9) is None
    assert (len(table.blocks), memory.free) == (2, 0)


def test_a_beginning_that_was_computed_is_found_block_by_block() -> None:
    memory = BlockMemory(10, 2)
    first = began(memory, [1, 2, 3, 4, 5])
    assert memory.find([1, 2, 3, 4, 9, 9]) == first.blocks[:2]
    assert memory.find([1, 2, 9, 4, 5]) == first.blocks[:1]
    assert memory.find([9, 2, 3, 4, 5]) == []
    second = began(memory, [1, 2, 3, 4, 9, 9])
    assert second.blocks[:2] == first.blocks[:2]
    assert (memory.free, memory.found) == (6, 4)
    memory.release(first)
    assert [memory.users(block) for block in second.blocks] == [1, 1, 1]


def test_the_last_token_is_always_computed() -> None:
    memory = BlockMemory(10, 2)
    began(memory, [1, 2, 3, 4])
    assert len(memory.find([1, 2, 3, 4])) == 1
    assert len(memory.find([1, 2, 3, 4, 5])) == 2
    assert memory.find([1]) == memory.find([]) == []


def test_another_adapter_has_other_blocks() -> None:
    memory = BlockMemory(10, 2)
    began(memory, [1, 2, 3], b"a")
    assert memory.find([1, 2, 3], b"b") == memory.find([1, 2, 3]) == []
    assert len(memory.find([1, 2, 3], b"a")) == 1


def test_what_is_not_computed_yet_is_not_found() -> None:
    memory = BlockMemory(10, 2)
    table = memory.begin([1, 2, 3, 4, 5], b"", [])
    assert table is not None
    memory.computed(table, [1, 2, 3, 4, 5], 3)
    assert len(memory.find([1, 2, 3, 4, 5])) == 1


def test_a_free_block_keeps_its_contents_until_it_is_taken() -> None:
    memory = BlockMemory(4, 2)
    memory.release(began(memory, [1, 2, 3, 4, 5]))
    assert memory.free == 4
    again = began(memory, [1, 2, 3, 4, 6])
    assert memory.found == 4
    memory.release(again)
    memory.release(began(memory, [7, 7, 7, 7]))
    assert len(memory.find([1, 2, 3, 4, 6])) == 2, "two blocks had no name, and were taken first"
    began(memory, [8])
    assert len(memory.find([7, 7, 7])) == 1
    assert len(memory.find([1, 2, 3, 4, 6])) == 1, "of a table its last block goes first"


def test_of_two_that_computed_the_same_one_has_the_name() -> None:
    memory = BlockMemory(4, 2)
    tables = [memory.begin([1, 2, 3], b"", []) for _ in range(2)]
    for table in tables:
        assert table is not None
        memory.computed(table, [1, 2, 3], 3)
    assert tables[0] is not None
    assert memory.find([1, 2, 3]) == tables[0].blocks[:1]


def test_who_writes_to_a_shared_block_gets_a_copy() -> None:
    memory = BlockMemory(6, 4)
    table = began(memory, range(6))
    fork, other = memory.fork(table), memory.fork(table)
    assert memory.free == 4
    shared = table.blocks[1]
    assert memory.lacks(fork, 6, 7) == 1
    assert memory.grow(fork, 6, 7) == [Copy(shared, fork.blocks[1])]
    assert memory.grow(table, 6, 7) == [Copy(shared, table.blocks[1])]
    assert memory.grow(other, 6, 7) == [], "the last user writes in place"
    assert len({fork.blocks[1], table.blocks[1], other.blocks[1]}) == 3
    assert fork.blocks[0] == table.blocks[0] == other.blocks[0]
    for each in (table, fork, other):
        memory.release(each)
    assert memory.free == 6


def test_nothing_is_shared_where_it_is_not_wanted() -> None:
    memory = BlockMemory(10, 2, shares=False)
    began(memory, [1, 2, 3, 4])
    assert memory.find([1, 2, 3, 4]) == []
