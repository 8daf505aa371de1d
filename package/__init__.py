"""Trireme, an inference server that speaks Triton's protocols. `trireme.actors` has it for programs that hold one."""

from trireme.engine.version import VERSION

__version__ = VERSION

__all__ = ["__version__"]
