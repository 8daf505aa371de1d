"""What tests of encoders share: one thread of torch, as such networks are computed faster so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import transformers


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    yield
    torch.set_num_threads(count)
