"""Adapters of a network (LoRA): what they add to its linear layers, for texts with different ones in one step.

Rules:
 1. An adapter adds `scale * B(A x)` to what some linear layers make of x; A has few rows (its rank). The weights of the
    network stay as they are.
 2. Each token of a step has an adapter, or none. A layer is computed once for all of them. What adapters add to it is
    computed for all tokens at once, too: the A of those in the step stand one below the other, and of what comes of
    them a token keeps the rows of its own adapter.
 3. The last layer is computed only for tokens from which one is drawn.
 4. Files that are not what their configuration says are an error when the network is loaded; so are weights that are
    not finite, as they would harm the other texts of a step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import InternalError, InvalidArgumentError, TriremeError, UnsupportedError
from ...generation.iterations import Piece
from ...plugins import import_package
from .adapter_config import WEIGHTS_FILE, AdapterConfig

_WEIGHT = re.compile(r"base_model\.model\.(?P<path>.+)\.lora_(?P<half>[AB])\.weight")
_COPY = re.compile(r"base_model\.model\.(?P<path>.+)\.base_layer\.weight")
"""Of a network's own weights, which PEFT stores with adapters for the first and the last layer."""


class _Halves(NamedTuple):
    """What an adapter adds to a layer: `up @ (down @ x)`.

    Attributes:
        down: [rank, inputs].
        up: [outputs, rank]; `scale` is in it.
    """

    down: Any
    up: Any


class _Stack(NamedTuple):
    """What the adapters of a step add to a layer.

    Attributes:
        down: [ranks, inputs], of one after the other.
        up: [ranks, outputs].
        owners: int64 [ranks], the number of the adapter in the step.
    """

    down: Any
    up: Any
    owners: Any


class Adapters:
    """The adapters of a network. Used by one thread at a time.

    Args:
        torch, transformers: the packages.
        model: the network, on its device. It is told what to add.
        directories: of the adapters' files, by name.

    Raises:
        TriremeError: one cannot be used (rule 4); the text names it.
    """

    def __init__(self, torch: Any, transformers: Any, model: Any, directories: Mapping[str, Path]) -> None:
        self._torch = torch
        self._device = model.device
        self._stacks: dict[str, _Stack] = {}
        self._stacked: tuple[str, ...] = ()
        self._of_tokens: Any = None
        self._of_drawn: Any = None
        self._halves: dict[str, dict[str, _Halves]] = {}
        layers = _Layers(torch, transformers, model)
        for name, directory in directories.items():
            try:
                self._halves[name] = layers.halves(AdapterConfig.read(directory))
            except TriremeError as error:
                raise type(error)(f"unable to load the adapter '{name}': {error.message}") from error
        for path in sorted({path for halves in self._halves.values() for path in halves}):
            layers.linear[path].register_forward_hook(self._hook(path, last=path == layers.last))

    def begin(self, pieces: Sequence[Piece], drawn: Any) -> bool:
        """A step begins.

        Args:
            pieces: of the step, in the order of its row.
            drawn: int64, rows of the tokens for which the last layer is computed.

        Returns:
            Whether any has an adapter.
        """
        names = tuple(sorted({piece.generation.adapter for piece in pieces} - {""}))
        if not names:
            self._of_tokens = self._of_drawn = None
            return False
        numbers = {name: number for number, name in enumerate(names)}
        of_tokens: list[int] = []
        for piece in pieces:
            of_tokens += [numbers.get(piece.generation.adapter, -1)] * (piece.end - piece.start)
        self._of_tokens = self._torch.tensor(of_tokens, device=self._device)
        self._of_drawn = self._of_tokens[drawn]
        if names != self._stacked:
            self._stacked, self._stacks = (), {}  # their memory is needed for the next ones
            self._stacks = self._stacks_of(names)
            self._stacked = names
        return True

    def _stacks_of(self, names: Sequence[str]) -> dict[str, _Stack]:
        torch, found = self._torch, {}
        for path in sorted({path for name in names for path in self._halves[name]}):
            halves = [(number, self._halves[name].get(path)) for number, name in enumerate(names)]
            there = [(number, each) for number, each in halves if each is not None]
            owners = [number for number, each in there for _ in range(each.down.shape[0])]
            down = [each.down for _, each in there]
            up = [each.up.T for _, each in there]
            alone = len(there) == 1
            found[path] = _Stack(
                down[0] if alone else torch.cat(down),
                up[0] if alone else torch.cat(up),
                torch.tensor(owners, device=self._device),
            )
        return found

    def _hook(self, path: str, *, last: bool) -> Any:
        """What torch calls when a layer has been computed; what it returns takes the place of the layer's output."""

        def added(_layer: Any, inputs: tuple[Any, ...], output: Any) -> Any:
            adapters = self._of_drawn if last else self._of_tokens
            stack = self._stacks.get(path)
            if stack is None or adapters is None:
                return None
            given = inputs[0].reshape(-1, inputs[0].shape[-1])
            if given.shape[0] != adapters.shape[0]:
                raise UnsupportedError(f"the layer '{path}' is not computed for each token, and so can have no adapter")
            rows = given @ stack.down.T
            rows = rows.masked_fill(stack.owners != adapters[:, None], 0)
            return self._torch.addmm(output.reshape(-1, output.shape[-1]), rows, stack.up).view(output.shape)

        return added


class _Layers:
    """The linear layers of a network, and what adapters' files have for them.

    Attributes:
        linear: by path.
        last: the path of the one that makes logits.
    """

    def __init__(self, torch: Any, transformers: Any, model: Any) -> None:
        self._torch = torch
        self._device, self._dtype = model.device, model.dtype
        self._kinds = {path: type(module).__name__ for path, module in model.named_modules() if path}
        self._transposed = transformers.pytorch_utils.Conv1D
        kinds = torch.nn.Linear, self._transposed
        self.linear = {path: module for path, module in model.named_modules() if isinstance(module, kinds)}
        head = model.get_output_embeddings()
        self.last = next((path for path, module in self.linear.items() if module is head), "")

    def halves(self, config: AdapterConfig) -> dict[str, _Halves]:
        """What an adapter adds, by the path of the layer.

        Raises:
            TriremeError: its files are not what its configuration says.
        """
        weights = self._read(config.directory / WEIGHTS_FILE)
        targets = self._targets(config)
        found = {}
        for path in targets:
            pair = []
            inputs, outputs = self._shape(path)
            rank = config.rank(path)
            for half, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                tensor = weights.pop((path, half), None)
                if tensor is None:
                    raise InvalidArgumentError(f"'{WEIGHTS_FILE}' has no lora_{half} for the layer '{path}'")
                if tuple(tensor.shape) != shape:
                    raise InvalidArgumentError(
                        f"lora_{half} for the layer '{path}' has the shape {list(tensor.shape)}; "
                        f"expected {list(shape)} with rank {rank}"
                    )
                if not tensor.is_floating_point() or not bool(self._torch.isfinite(tensor).all()):
                    raise InvalidArgumentError(f"lora_{half} for the layer '{path}' has numbers that are not finite")
                pair.append(tensor.float())
            up = pair[1] * config.scale(path)
            found[path] = _Halves(*(half.to(self._device, self._dtype) for half in (pair[0], up)))
        if weights:
            path, _ = next(iter(weights))
            raise InvalidArgumentError(f"'{WEIGHTS_FILE}' has weights for '{path}', which is not in target_modules")
        return found

    def _targets(self, config: AdapterConfig) -> Sequence[str]:
        if config.all_linear:
            found = [path for path in self.linear if path != self.last and config.targets(path)]
        else:
            found = [path for path in self._kinds if config.targets(path)]
        if not found:
            raise InvalidArgumentError(
                f"its target_modules are {config.settings['target_modules']}; expected some of the network's layers"
            )
        for path in found:
            if path not in self.linear:
                raise InvalidArgumentError(
                    f"its target_modules have '{path}', which is {self._kinds[path]}; expected linear layers"
                )
        return found

    def _shape(self, path: str) -> tuple[int, int]:
        """Inputs and outputs of a layer."""
        layer = self.linear[path]
        first, second = layer.weight.shape
        return (first, second) if isinstance(layer, self._transposed) else (second, first)

    def _read(self, path: Path) -> dict[tuple[str, str], Any]:
        """Tensors by layer and half."""
        safetensors = import_package("safetensors", "adapters need", "generate")
        load = import_package("safetensors.torch", "adapters need", "generate").load_file
        try:
            tensors = load(path)
        except (OSError, ValueError, safetensors.SafetensorError) as error:
            raise InternalError(f"unable to read '{path}': {error}") from error
        found = {}
        for name, tensor in tensors.items():
            copied = _COPY.fullmatch(name)
            if copied is not None and copied["path"] in self.linear:
                self._check_copy(copied["path"], tensor)
                continue
            match = _WEIGHT.fullmatch(name)
            if match is None:
                raise InvalidArgumentError(
                    f"'{path}' has '{name}'; expected names such as base_model.model.LAYER.lora_A.weight"
                )
            found[match["path"], match["half"]] = tensor
        return found

    def _check_copy(self, path: str, tensor: Any) -> None:
        own = self.linear[path].weight
        if tensor.shape != own.shape or not self._torch.equal(tensor.to(own.device, own.dtype), own):
            raise InvalidArgumentError(f"it was made for other weights of the layer '{path}' than the network's")
