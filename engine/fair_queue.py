"""A queue whose owners take turns."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Items of several owners. The owner that was served least recently comes next, with its oldest item; so an owner
    waits for one item of each other owner, however many those have.

    Attributes:
        length: how many items there are.
    """

    def __init__(self) -> None:
        self._owners: dict[str, deque[T]] = {}  # in the order in which they come next; none is empty
        self.length = 0

    def __len__(self) -> int:
        return self.length

    def put(self, owner: str, item: T) -> None:
        items = self._owners.get(owner)
        if items is None:
            items = self._owners[owner] = deque()
        items.append(item)
        self.length += 1

    def pop(self) -> T:
        """Take the next item.

        Raises:
            IndexError: there is none.
        """
        if not self.length:
            raise IndexError("pop from an empty queue")
        owner, items = next(iter(self._owners.items()))
        del self._owners[owner]
        item = items.popleft()
        if items:
            self._owners[owner] = items
        self.length -= 1
        return item
