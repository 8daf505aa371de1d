"""Trireme's version. The package's metadata has it from here: to read them would take longer than to import numpy."""

VERSION = "0.1.0"
