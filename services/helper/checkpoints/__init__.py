"""Checkpoints are stored while the learner trains, and once more at its end: ADR 0022, checkpoints-while-training.

``detection`` decides when a snapshot is due and of which files (pure), ``catalog`` keeps what is in the store,
``snapshots`` stores one, ``thread`` does both in the background.
"""
