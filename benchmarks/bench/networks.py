"""ResNet-50 and a transformer encoder with random weights, as ONNX files: loads for a runtime, no more than that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save_model

OPSET, IR_VERSION = 17, 8
CLASSES = 1000
RESNET_LAYERS = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
"""Blocks, width, and the stride of the first block."""
EXPANSION = 4

ENCODER_LAYERS, TOKENS, WIDTH, HEADS, INNER = 6, 128, 384, 6, 1536


class Graph:
    """A graph under construction. Methods that add a node give back the name of its output."""

    def __init__(self) -> None:
        self._chance = np.random.default_rng(0)
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def constant(self, values: np.ndarray) -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(values, name))
        return name

    def weight(self, *shape: int, inputs: int) -> str:
        """Random FP32 numbers, so large that outputs are of the size of the inputs, of which there are so many."""
        values = self._chance.standard_normal(shape, np.float32) / np.float32(np.sqrt(inputs))
        return self.constant(values)

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"n{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    def save(self, path: Path, output: str, taken: tuple[int, ...], given: tuple[int, ...]) -> None:
        """Write a model from FP32 INPUT0 to FP32 OUTPUT0; the shapes are without the batch dimension."""
        self._nodes.append(helper.make_node("Identity", [output], ["OUTPUT0"]))
        tensors = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", *shape])
            for name, shape in (("INPUT0", taken), ("OUTPUT0", given))
        ]
        graph = helper.make_graph(self._nodes, path.stem, tensors[:1], tensors[1:], self._constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_model(model, str(path))


def write_resnet50(path: Path) -> None:
    """[n, 3, 224, 224] to [n, 1000]; batch normalisation is folded into the convolutions."""
    graph = Graph()

    def convolution(x: str, taken: int, given: int, size: int, stride: int = 1) -> str:
        inputs = taken * size * size
        weight, bias = graph.weight(given, taken, size, size, inputs=inputs), graph.weight(given, inputs=given)
        return graph.add("Conv", x, weight, bias, strides=[stride, stride], pads=[size // 2] * 4)

    x = graph.add("Relu", convolution("INPUT0", 3, 64, 7, stride=2))
    x = graph.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for count, width, first_stride in RESNET_LAYERS:
        for block in range(count):
            stride, out = (first_stride if block == 0 else 1), width * EXPANSION
            y = graph.add("Relu", convolution(x, channels, width, 1))
            y = graph.add("Relu", convolution(y, width, width, 3, stride))
            y = convolution(y, width, out, 1)
            shortcut = x if channels == out and stride == 1 else convolution(x, channels, out, 1, stride)
            x, channels = graph.add("Relu", graph.add("Add", y, shortcut)), out
    x = graph.add("Flatten", graph.add("GlobalAveragePool", x))
    x = graph.add("Gemm", x, graph.weight(channels, CLASSES, inputs=channels), graph.weight(CLASSES, inputs=CLASSES))
    graph.save(path, x, (3, 224, 224), (CLASSES,))


def write_encoder(path: Path) -> None:
    """A transformer encoder of six layers: [n, 128, 384], a row for each token, to the same."""
    graph = Graph()
    ones, zeros = (graph.constant(np.full(WIDTH, value, np.float32)) for value in (1, 0))
    split = graph.constant(np.array([0, 0, HEADS, WIDTH // HEADS], np.int64))
    joined = graph.constant(np.array([0, 0, WIDTH], np.int64))
    scale = graph.constant(np.array(np.sqrt(WIDTH // HEADS), np.float32))
    root_2, one, half = (graph.constant(np.array(value, np.float32)) for value in (np.sqrt(2), 1, 0.5))

    def linear(x: str, taken: int, given: int) -> str:
        product = graph.add("MatMul", x, graph.weight(taken, given, inputs=taken))
        return graph.add("Add", product, graph.weight(given, inputs=given))

    def heads(x: str, order: list[int]) -> str:
        return graph.add("Transpose", graph.add("Reshape", linear(x, WIDTH, WIDTH), split), perm=order)

    def gelu(x: str) -> str:
        error = graph.add("Add", graph.add("Erf", graph.add("Div", x, root_2)), one)
        return graph.add("Mul", graph.add("Mul", x, error), half)

    def add_and_norm(x: str, y: str) -> str:
        return graph.add("LayerNormalization", graph.add("Add", x, y), ones, zeros, axis=-1)

    x = "INPUT0"
    for _ in range(ENCODER_LAYERS):
        queries, keys, values = heads(x, [0, 2, 1, 3]), heads(x, [0, 2, 3, 1]), heads(x, [0, 2, 1, 3])
        weights = graph.add("Softmax", graph.add("Div", graph.add("MatMul", queries, keys), scale), axis=-1)
        mixed = graph.add("Transpose", graph.add("MatMul", weights, values), perm=[0, 2, 1, 3])
        x = add_and_norm(x, linear(graph.add("Reshape", mixed, joined), WIDTH, WIDTH))
        x = add_and_norm(x, linear(gelu(linear(x, WIDTH, INNER)), INNER, WIDTH))
    graph.save(path, x, (TOKENS, WIDTH), (TOKENS, WIDTH))


def write_identity(path: Path, dims: int, *, batches: bool) -> None:
    """FP32[dims], or [n, dims] if it is asked in batches, to the same."""
    shape = ["n", dims] if batches else [dims]
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("INPUT0", "OUTPUT0")]
    node = helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])
    graph = helper.make_graph([node], "identity", tensors[:1], tensors[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_model(model, str(path))
