"""Trireme beside its peers, on the user's own machine: what `make bench` runs."""
