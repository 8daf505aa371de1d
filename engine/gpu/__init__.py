"""GPUs: streams, what is enqueued on them, and the memory that it uses. No framework is known here."""
