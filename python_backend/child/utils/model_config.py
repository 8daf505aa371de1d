"""`ModelConfig`: what ``auto_complete_config`` adds to a configuration
(docs/reference/python-backend.md#auto-complete)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class ModelConfig:
    """A model's configuration, as JSON, while it is completed."""

    def __init__(self, model_config: str) -> None:
        self._model_config: dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> dict[str, Any]:
        """The configuration itself, not a copy."""
        return self._model_config

    def _as_json(self) -> str:
        return json.dumps(self._model_config)

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """
        Raises:
            ValueError: the configuration has a larger one.
        """
        configured = self._model_config["max_batch_size"]
        if configured > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {configured}, but in auto-complete-config function for model "
                f"'{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Batch dynamically, unless the configuration says how to already. ValueError if it has another scheduler."""
        for other in ("sequence_batching", "ensemble_scheduling"):
            if other in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{other}', but auto-complete-config function for "
                    f"model '{self._name}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: Mapping[str, Any]) -> None:  # noqa: A002 - its public name
        """Declare an input.

        Args:
            input: name, data_type (``TYPE_FP32`` ...), dims (without the batch dimension; one may stand without a
                list); optional, if wanted.

        Raises:
            ValueError: one of them is missing, something else is there, or the configuration contradicts.
        """
        self._add("input", input, ("name", "data_type", "dims", "optional"))

    def add_output(self, output: Mapping[str, Any]) -> None:
        """Declare an output: name, data_type, dims. Raises as `add_input`."""
        self._add("output", output, ("name", "data_type", "dims"))

    def set_model_transaction_policy(self, transaction_policy_dict: Mapping[str, bool]) -> None:
        """
        Args:
            transaction_policy_dict: ``{"decoupled": True}``.

        Raises:
            ValueError: other keys, or another value in the configuration.
        """
        if set(transaction_policy_dict) - {"decoupled"}:
            raise ValueError(
                f"model transaction property in auto-complete-config function for model '{self._name}' contains "
                "property other than 'decoupled'."
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        for key, decoupled in transaction_policy_dict.items():
            if policy.setdefault(key, decoupled) != decoupled:
                raise ValueError(
                    f"trying to change decoupled property in auto-complete-config for model '{self._name}', which is "
                    f"already set to '{policy[key]}'."
                )

    @property
    def _name(self) -> str:
        return self._model_config["name"]

    def _add(self, kind: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
        where = f"in auto-complete-config function for model '{self._name}'"
        if set(given) - set(known):
            *most, last = (f"'{each}'" for each in known)
            others = f"{', '.join(most)} and {last}"
            raise ValueError(f"{kind} '{given.get('name', '')}' {where} contains property other than {others}.")
        if "name" not in given:
            raise ValueError(f"{kind} {where} is missing 'name' property.")
        name = given["name"]
        for needed in ("data_type", "dims"):
            if needed not in given:
                raise ValueError(f"{kind} '{name}' {where} is missing '{needed}' property.")
        entries = self._model_config.setdefault(kind, [])
        entry = next((entry for entry in entries if entry["name"] == name), None)
        if entry is None:
            entries.append({**given, "dims": _dims(given)})
        else:
            self._merge(kind, entry, given)

    def _merge(self, kind: str, entry: dict[str, Any], given: Mapping[str, Any]) -> None:
        """Fill in what `entry` leaves open; nothing of it if something contradicts."""
        name, data_type, dims = given["name"], given["data_type"], _dims(given)
        if entry["data_type"] not in ("TYPE_INVALID", data_type):
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype {entry['data_type']} for {kind} "
                f"'{name}', model provides {data_type}"
            )
        about = f"model '{self._name}', tensor '{name}': the model expects"
        if entry["dims"] and entry["dims"] != dims:
            raise ValueError(f"{about} dims {dims} but the model configuration specifies dims {entry['dims']}")
        if "optional" in given and entry.setdefault("optional", given["optional"]) != given["optional"]:
            raise ValueError(
                f"{about} optional {given['optional']} but the model configuration specifies optional "
                f"{entry['optional']}"
            )
        entry["data_type"] = data_type
        entry["dims"] = dims


def _dims(given: Mapping[str, Any]) -> list[Any]:
    """Its dims: a single number is one dimension, as protobuf's JSON has it."""
    dims = given["dims"]
    return [dims] if isinstance(dims, int) else list(dims)
