"""Models made from functions: what a program declares, and the repository that is written of it."""
