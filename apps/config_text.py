"""The configuration of a declared model, as the text of its ``config.pbtxt``."""

from __future__ import annotations

from collections.abc import Iterator

from .declared.declaration import Declaration
from .declared.types import TensorType

_SCHEDULERS = ("dynamic_batching", "sequence_batching")
"""Fields of which a configuration has at most one."""


def config_text(declaration: Declaration) -> str:
    """All of it. What `model` was given as ``config`` comes last, as it is."""
    return "\n".join(_lines(declaration)) + "\n"


def _lines(declaration: Declaration) -> Iterator[str]:
    options = declaration.options
    yield f'name: "{declaration.name}"'
    yield 'backend: "python"'
    yield f"max_batch_size: {options.max_batch_size}"
    for each in declaration.inputs:
        optional = " optional: true" if each.optional else ""
        yield f'input {{ name: "{each.name}" {_tensor(each.type)}{optional} }}'
    for output in declaration.outputs:
        yield f'output {{ name: "{output.name}" {_tensor(output.type)} }}'
    yield f"instance_group {{ kind: KIND_CPU count: {options.instances} }}"
    if declaration.manner.streams:
        yield "model_transaction_policy { decoupled: true }"
    elif options.max_batch_size and not any(each in options.config for each in _SCHEDULERS):
        yield f"dynamic_batching {{ max_queue_delay_microseconds: {options.queue_delay_us} }}"
    if options.in_process:
        yield _parameter("EXECUTION", "in_process")
        if declaration.manner.awaited:
            yield _parameter("ASYNC_LIBRARY", options.async_library)
    if options.config.strip():
        yield options.config.strip()


def _tensor(kind: TensorType) -> str:
    dims = ", ".join(str(dim) for dim in kind.dims)
    return f"data_type: {kind.element.config_name} dims: [ {dims} ]"


def _parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
