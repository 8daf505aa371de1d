"""What may be taken of GPUs reaches those who take it."""

from __future__ import annotations

import numpy as np
import pytest
from fake_cupy import FakeCupy, fake_driver
from fake_gpu import FakeGpus
from fake_torch_cuda import FakeTorch

from trireme.engine.backends.services import Services
from trireme.engine.gpu.device import OutOfDeviceMemoryError
from trireme.engine.gpu.pinned_pool import GpuLimits, is_pinned


def test_devices_are_made_with_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """And tell how much pinned memory is in use."""
    fake = FakeGpus(count=2)
    services = Services()
    services.limit_gpus(GpuLimits(8192, {1: 1 << 20}))
    monkeypatch.setattr(services.gpus, "_load", lambda: FakeCupy(fake))
    monkeypatch.setattr(services.gpus, "_load_driver", lambda: fake_driver(fake))
    assert services.pinned_used_bytes() == 0
    device = services.gpus.get(1)
    held = device.pinned((4096,), np.dtype(np.uint8))
    assert services.pinned_used_bytes() == 4096
    assert not is_pinned(device.pinned((8192,), np.dtype(np.uint8)))
    with pytest.raises(OutOfDeviceMemoryError):
        device.empty((2 << 20,), np.dtype(np.uint8))
    del held
    assert services.pinned_used_bytes() == 0


def test_all_frameworks_together_keep_to_the_limit_of_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one of them does not use any more, the other one may have, in memory of its own."""
    gpus, torch = FakeGpus(count=1), FakeTorch(FakeGpus(count=1))
    services = Services()
    services.limit_gpus(GpuLimits(8192))
    monkeypatch.setattr(services.gpus, "_load", lambda: FakeCupy(gpus))
    monkeypatch.setattr(services.gpus, "_load_driver", lambda: fake_driver(gpus))
    monkeypatch.setattr(services.torch_gpus, "_load", lambda: torch)
    monkeypatch.setattr(services.torch_gpus, "_load_driver", lambda: torch.driver)
    first, second = services.gpus.get(0), services.torch_gpus.get(0)
    held = first.pinned((8192,), np.dtype(np.uint8))
    assert not is_pinned(second.pinned((1,), np.dtype(np.uint8)))
    del held
    array = second.pinned((1024,), np.dtype(np.float32))
    array[...] = 3
    stream = second.stream()
    back = stream.download(stream.upload(array))
    torch.gpus.run()
    assert services.pinned_used_bytes() == 8192
    assert back.tolist() == [3] * 1024
