"""Adapters: each implements a port on one library, and is the only package that imports it."""
