"""The stand-in for tensors of a GPU."""

from __future__ import annotations

import late_tensors
import torch


def test_no_operator_is_made_by_the_threads_that_use_it() -> None:
    """Threads that make the same one at once crash the process. See `late_tensors._resolve_operators`."""
    assert late_tensors.LateTensor
    operators = vars(torch.ops.aten)
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        overload = schema.overload_name or "default"
        if namespace == "aten" and torch._C._get_operation_overload(schema.name, schema.overload_name) is not None:
            assert overload in vars(operators[name]), schema
