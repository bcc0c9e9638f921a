"""Who runs next, and where: pure policy, no I/O, the clock handed in.

Run unchanged by the dispatcher and by simulators.
"""
