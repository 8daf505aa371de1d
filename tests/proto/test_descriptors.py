"""Protobuf's classes of the schema's messages."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from trireme.proto.descriptors import SOURCES, descriptor_pool, message_class


def messages() -> list[str]:
    """The full names of all messages, nested ones and map entries too, as their descriptors tell them."""
    found = [
        each
        for source in SOURCES
        for each in descriptor_pool().FindFileByName(f"{source}.proto").message_types_by_name.values()
    ]
    for each in found:
        found += each.nested_types
    return [each.full_name for each in found]


def test_no_class_is_collected() -> None:
    """Nobody but protobuf's own table, which does not hold them, asks for most of these."""
    held = {name: weakref.ref(message_class(name)) for name in messages()}
    assert "inference.ModelConfig.ParametersEntry" in held
    gc.collect()
    assert [name for name, each in held.items() if each() is None] == []


def test_messages_read_amid_a_collection_keep_their_class() -> None:
    """A class that is being cleared crashes the process when a message is read into it."""
    read: list[Any] = []

    def read_one(_gone: object) -> None:
        read.append(message_class("inference.ModelConfig")().dynamic_batching)

    def garbage() -> weakref.ref[Any]:
        """Something that runs `read_one` when a collection has begun to clear."""
        array = np.zeros(1)
        cycle: list[Any] = [array]
        cycle.append(cycle)
        return weakref.ref(array, read_one)

    first = garbage()
    used = type(message_class("inference.ModelConfig")().dynamic_batching)
    later = garbage()
    names = weakref.ref(used)
    del used
    gc.collect()
    assert (first(), later()) == (None, None)
    assert [type(each) for each in read] == [names()] * 2
    assert [each.DESCRIPTOR.full_name for each in read] == ["inference.ModelDynamicBatching"] * 2


def test_there_is_one_pool() -> None:
    assert descriptor_pool() is descriptor_pool()
    assert message_class("inference.ModelConfig").DESCRIPTOR.file.pool is descriptor_pool()


def test_a_message_that_is_not_there() -> None:
    with pytest.raises(KeyError, match="Absent"):
        message_class("inference.Absent")
