"""Encoders: models that make vectors, labels or scores of texts, many at a time, without padding."""

from .layout import read_layout
from .model import EncoderModel, encoder_completion
from .network import EncoderNetwork

__all__ = ["EncoderModel", "EncoderNetwork", "encoder_completion", "read_layout"]
