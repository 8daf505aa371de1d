"""Sequences of requests that belong together: stateful models (docs/reference/sequences.md).

`batcher.SequenceBatcher` is the scheduler core. It gives each sequence a `slot.Slot` of one instance, or a place in the
`backlog`; `strategies` form the batches of an instance from what its slots offer. `slot_core.SlotCore` has the
requests of the sequence in a slot, in order, and adds to them what only the server knows (`controls`, implicit
`state`).
"""
