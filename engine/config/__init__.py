"""Model configuration: read, filled in, checked, completed and printed as Triton does it
(docs/reference/model-configuration.md)."""

from .files import read_labels, select_versions
from .json_text import config_json
from .model import ModelConfig, config_protobuf, model_config
from .phases import complete, place_instances, prepare_for_load
from .validate import validate

__all__ = [
    "ModelConfig",
    "complete",
    "config_json",
    "config_protobuf",
    "model_config",
    "place_instances",
    "prepare_for_load",
    "read_labels",
    "select_versions",
    "validate",
]
