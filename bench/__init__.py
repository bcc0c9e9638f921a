"""Benchmarks: what docs/performance.md reports, each a program (``python -m bench.NAME``); README.md lists them."""
