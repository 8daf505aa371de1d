"""Trains `digits`, a small convolutional network, on scikit-learn's 1,797 real handwritten digits.

    python model_repository/train_digits.py [REPOSITORY]

Writes ``REPOSITORY/digits/1/model.onnx``, ``REPOSITORY/digits/labels.txt`` and ``REPOSITORY/digits_heldout.npz`` (by
default into the repository that this file lies in) and prints the accuracy on images that the network never saw.
Needs PyTorch, scikit-learn and onnx: ``pip install "trireme-server[train]"``. Takes some ten seconds on one core.

Every fifth image is held out. The network is trained on the rest, each time shifted by at most one pixel at random. The
graph is put together from ONNX operators and the trained weights, so what is served is what can be read below.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from sklearn.datasets import load_digits

if TYPE_CHECKING:
    import torch
    from onnx import ModelProto

SEED = 20260
EPOCHS = 60
BATCH_SIZE = 64
LEARNING_RATE = 2e-3

HOLD_OUT_EVERY = 5
BRIGHTEST = 16.0
"""scikit-learn's images are 8 x 8 numbers from 0 (paper) to 16 (ink)."""

LABELS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def load_split() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The data: training images and digits, held-out images and digits.

    Images are float32 [n, 8, 8], digits int64 [n].
    """
    digits = load_digits()
    images, targets = digits.images.astype(np.float32), digits.target.astype(np.int64)
    held_out = np.arange(len(targets)) % HOLD_OUT_EVERY == 0
    return images[~held_out], targets[~held_out], images[held_out], targets[held_out]


def one_of_each(images: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The last image of each digit, 0 to 9: the samples that clients send.

    They are for demonstration, so they are ones that the network reads: the very first five is among the few held-out
    images that it takes for another digit. How often it errs is what the accuracy on all held-out images says.
    """
    last = [int(np.flatnonzero(targets == digit)[-1]) for digit in range(10)]
    return images[last], targets[last]


# PyTorch and onnx are imported where they are used, so that the split above can be had without them.


def make_network() -> torch.nn.Sequential:
    """Three convolutions and two dense layers; [n, 1, 8, 8] values 0 to 1 in, [n, 10] logits out."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Dropout(0.3), nn.Linear(256, 64), nn.ReLU(),
        nn.Linear(64, 10),
    )  # fmt: skip


def train(images: np.ndarray, targets: np.ndarray) -> torch.nn.Sequential:
    """The network, trained on `images` [n, 8, 8] and `targets` [n]."""
    import torch
    from torch import nn

    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    network = make_network()
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=1e-2)
    batches = -(-len(images) // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=EPOCHS * batches)
    pixels = torch.from_numpy(images / BRIGHTEST)[:, None]
    answers = torch.from_numpy(targets)
    for epoch in range(EPOCHS):
        total = 0.0
        for chosen in torch.randperm(len(pixels)).split(BATCH_SIZE):
            across, down = (int(shift) for shift in torch.randint(-1, 2, (2,)))
            shifted = nn.functional.pad(pixels[chosen], (1 + across, 1 - across, 1 + down, 1 - down))[:, :, 1:9, 1:9]
            loss = nn.functional.cross_entropy(network(shifted), answers[chosen], label_smoothing=0.02)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        if (epoch + 1) % 10 == 0:
            print(f"epoch {epoch + 1}: loss {total / batches:.4f}")
    return network.eval()


def to_onnx(network: torch.nn.Sequential) -> ModelProto:
    """IMAGE: FP32 [batch, 8, 8] of 0 to 16, as scikit-learn gives them; PROBABILITIES: FP32 [batch, 10]."""
    from onnx import TensorProto, checker, helper, numpy_helper

    layers = [name for name, layer in network.named_children() if hasattr(layer, "weight")]
    weights = {
        f"{kind}{i}": network.get_parameter(f"{layer}.{kind}").detach().numpy()
        for i, layer in enumerate(layers, start=1)
        for kind in ("weight", "bias")
    }
    weights["brightest"] = np.float32(BRIGHTEST).reshape(())
    weights["channel_axis"] = np.array([1], dtype=np.int64)

    nodes = [
        helper.make_node("Div", ["IMAGE", "brightest"], ["scaled"]),
        helper.make_node("Unsqueeze", ["scaled", "channel_axis"], ["picture"]),
    ]
    for i, (before, after, pool) in enumerate([("picture", "c1", False), ("c1", "c2", True), ("c2", "c3", True)], 1):
        nodes.append(helper.make_node("Conv", [before, f"weight{i}", f"bias{i}"], [f"conv{i}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"conv{i}"], [f"relu{i}" if pool else after]))
        if pool:
            nodes.append(helper.make_node("MaxPool", [f"relu{i}"], [after], kernel_shape=[2, 2], strides=[2, 2]))
    nodes += [
        helper.make_node("Flatten", ["c3"], ["flat"]),
        helper.make_node("Gemm", ["flat", "weight4", "bias4"], ["dense4"], transB=1),
        helper.make_node("Relu", ["dense4"], ["hidden"]),
        helper.make_node("Gemm", ["hidden", "weight5", "bias5"], ["logits"], transB=1),
        helper.make_node("Softmax", ["logits"], ["PROBABILITIES"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("IMAGE", TensorProto.FLOAT, ["batch", 8, 8])],
        [helper.make_tensor_value_info("PROBABILITIES", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, producer_name="trireme", opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    checker.check_model(model, full_check=True)
    return model


def accuracy(network: torch.nn.Sequential, images: np.ndarray, targets: np.ndarray) -> float:
    """The share of `images` that the network reads as `targets`."""
    import torch

    with torch.inference_mode():
        guesses = network(torch.from_numpy(images / BRIGHTEST)[:, None]).argmax(1).numpy()
    return float((guesses == targets).mean())


def main(repository: Path) -> None:
    train_images, train_targets, images, targets = load_split()
    network = train(train_images, train_targets)
    print(f"accuracy on {len(targets)} held-out images: {accuracy(network, images, targets):.2%}")
    model = repository / "digits" / "1" / "model.onnx"
    model.parent.mkdir(parents=True, exist_ok=True)
    model.write_bytes(to_onnx(network).SerializeToString(deterministic=True))
    (repository / "digits" / "labels.txt").write_text("\n".join(LABELS) + "\n")
    samples, digits = one_of_each(images, targets)
    np.savez(repository / "digits_heldout.npz", images=samples, digits=digits)
    print(f"wrote {model}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
