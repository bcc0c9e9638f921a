"""Everything that a learner needs before it starts: code, environment, data, checkpoints.

All of it runs in one thread beside the event loop. A helper may be killed at any point; the next one starts from the
beginning. Files are made in a folder that the learner cannot write, and handed over whole at the end.
"""
