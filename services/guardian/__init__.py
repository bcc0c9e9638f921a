"""Guardians: each carries one job from admission to its released end."""
