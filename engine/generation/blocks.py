"""The memory of keys and values of tokens, in blocks (paged memory).

Rules:
 1. Memory is so many blocks of so many tokens. The table of a generation says in which block its tokens are: the first
    block has its first tokens, and so on.
 2. A block that is full and computed has a name: a digest of all tokens up to its end, and of what else its contents
    depend on (`salt`: an adapter). There is one block of a name; another one of the same contents has none.
 3. A generation that begins takes the blocks whose names its own tokens have, from the first on, and counts as another
    user of each. Its last token is always computed, because what follows is drawn from that.
 4. A block without users is free. It keeps its name and contents until it is taken. Those without a name are taken
    first, then the one that has been free for longest; of a table the last ones become free first, so that beginnings
    stay longest.
 5. A block with several users is not written to: who has to write gets a copy of it (copy on write). Only a fork shares
    a block that is not full.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from struct import pack
from typing import NamedTuple

_NAME_BYTES = 16


class Copy(NamedTuple):
    """The contents of a block are to be copied to another one, before anything is computed."""

    source: int
    target: int


@dataclass(slots=True, eq=False)
class BlockTable:
    """Where the tokens of one generation are.

    Attributes:
        blocks: their numbers.
        named: so many of them, from the first on, have been looked at for a name.
        name: of the last one of these, or what comes before the first one.
    """

    salt: bytes = b""
    blocks: list[int] = field(default_factory=list)
    named: int = 0
    name: bytes = b""

    def restart(self) -> None:
        """It has no tokens."""
        self.named, self.name = 0, _origin(self.salt)


class BlockMemory:
    """Who has which blocks.

    Args:
        count: of blocks, at least 1.
        size: tokens of a block, at least 1.
        shares: beginnings that are alike are computed once (rule 3).

    Attributes:
        found: tokens that were there already when generations began.
    """

    def __init__(self, count: int, size: int, *, shares: bool = True) -> None:
        self.count = count
        self.size = size
        self.found = 0
        self._shares = shares
        self._users = [0] * count
        self._names: list[bytes | None] = [None] * count
        self._by_name: dict[bytes, int] = {}
        self._unnamed = list(range(count - 1, -1, -1))  # free ones; taken from the end
        self._named: OrderedDict[int, None] = OrderedDict()  # free ones, the next to be taken first

    @property
    def free(self) -> int:
        """Blocks without users."""
        return len(self._unnamed) + len(self._named)

    def users(self, block: int) -> int:
        return self._users[block]

    def blocks_for(self, tokens: int) -> int:
        """How many blocks hold so many tokens."""
        return -(-tokens // self.size)

    # ---- beginnings ----

    def find(self, tokens: Sequence[int], salt: bytes = b"") -> list[int]:
        """The blocks that have the beginning of these tokens (rule 3)."""
        found: list[int] = []
        name = _origin(salt)
        for begin in range(0, len(tokens) - 1 - (len(tokens) - 1) % self.size if self._shares else 0, self.size):
            name = _name(name, tokens[begin : begin + self.size])
            block = self._by_name.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def missing(self, found: Sequence[int], tokens: int) -> int:
        """How many free blocks a generation takes up that begins with those found and has so many tokens."""
        return self.blocks_for(tokens) - len(found) + sum(not self._users[block] for block in found)

    def begin(self, tokens: Sequence[int], salt: bytes, found: Sequence[int]) -> BlockTable | None:
        """The table of a generation of these tokens, with those found (`find`); None if there are not enough blocks."""
        if self.missing(found, len(tokens)) > self.free:
            return None
        table = BlockTable(salt, list(found))
        table.restart()
        for block in found:
            self._use(block)
        self._look_at(table, tokens, len(found) * self.size)
        self.found += len(found) * self.size
        self.grow(table, len(found) * self.size, len(tokens))
        return table

    # ---- growth ----

    def lacks(self, table: BlockTable, start: int, end: int) -> int:
        """How many free blocks it takes to write the tokens from `start` to `end` (exclusive)."""
        return max(self.blocks_for(end) - len(table.blocks), 0) + len(self._shared(table, start, end))

    def grow(self, table: BlockTable, start: int, end: int) -> list[Copy] | None:
        """Make room to write the tokens from `start` to `end` (exclusive).

        Returns:
            What is to be copied before (rule 5); None if there are not enough blocks, and then nothing has changed.
        """
        if self.lacks(table, start, end) > self.free:
            return None
        copies: list[Copy] = []
        for at in self._shared(table, start, end):
            own = self._take()
            copies.append(Copy(table.blocks[at], own))
            self._leave(table.blocks[at])
            table.blocks[at] = own
        table.blocks += [self._take() for _ in range(self.blocks_for(end) - len(table.blocks))]
        return copies

    def computed(self, table: BlockTable, tokens: Sequence[int], upto: int) -> None:
        """The first `upto` of the tokens of a generation are in its blocks: name those that are full (rule 2)."""
        if self._shares:
            self._look_at(table, tokens, upto)

    def fork(self, table: BlockTable) -> BlockTable:
        """A table for a generation that goes on from the same tokens."""
        for block in table.blocks:
            self._users[block] += 1
        return BlockTable(table.salt, list(table.blocks), table.named, table.name)

    def release(self, table: BlockTable) -> None:
        """A generation needs its blocks no longer."""
        while table.blocks:
            self._leave(table.blocks.pop())
        table.restart()

    # ---- steps ----

    def _shared(self, table: BlockTable, start: int, end: int) -> list[int]:
        """Places in the table of blocks that are to be written to and have other users."""
        first, last = start // self.size, min(self.blocks_for(end), len(table.blocks))
        return [at for at in range(first, last) if self._users[table.blocks[at]] > 1]

    def _look_at(self, table: BlockTable, tokens: Sequence[int], upto: int) -> None:
        while (table.named + 1) * self.size <= upto:
            begin = table.named * self.size
            table.name = _name(table.name, tokens[begin : begin + self.size])
            block = table.blocks[table.named]
            table.named += 1
            if self._names[block] is None and table.name not in self._by_name:
                self._names[block] = table.name
                self._by_name[table.name] = block

    def _use(self, block: int) -> None:
        if not self._users[block]:
            del self._named[block]
        self._users[block] += 1

    def _take(self) -> int:
        if self._unnamed:
            block = self._unnamed.pop()
        else:
            block, _ = self._named.popitem(last=False)
            name = self._names[block]
            assert name is not None, "only these are kept there"
            del self._by_name[name]
            self._names[block] = None
        self._users[block] = 1
        return block

    def _leave(self, block: int) -> None:
        self._users[block] -= 1
        if self._users[block]:
            return
        if self._names[block] is None:
            self._unnamed.append(block)
        else:
            self._named[block] = None


def _origin(salt: bytes) -> bytes:
    """What stands for the name of the block before the first one."""
    return blake2b(salt, digest_size=_NAME_BYTES, person=b"origin").digest()


def _name(before: bytes, tokens: Sequence[int]) -> bytes:
    """The name of a block (rule 2). A digest, so that no client can make another one's block its own."""
    return blake2b(before + pack(f"<{len(tokens)}q", *tokens), digest_size=_NAME_BYTES).digest()
