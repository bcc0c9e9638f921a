"""Everything a learner needs before it starts: its code, its environment, its data, its checkpoints.

All of it runs in one thread beside the event loop, may be killed at any point and is done again from the start by the
next helper: each part is made beside its place and moved there whole.
"""
