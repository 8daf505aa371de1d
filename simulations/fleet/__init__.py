"""Fleets in virtual time: gateways, replicas, and what goes wrong between them."""
