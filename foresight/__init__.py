"""Foresight: what models were measured to take, and what a server would do with traffic, in virtual time."""
