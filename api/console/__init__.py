"""The console: a page on the metrics port that shows what a server does while it does it (docs/console.md)."""
