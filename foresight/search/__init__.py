"""The search: which settings of a repository's models serve a request log best (docs/planning.md)."""
