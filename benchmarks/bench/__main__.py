"""`python -m bench`, with `benchmarks/` on the path."""

from bench.command import main

if __name__ == "__main__":
    raise SystemExit(main())
