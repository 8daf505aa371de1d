"""Who may do what, and how often: identity, rights and limits of callers (docs/access.md)."""
