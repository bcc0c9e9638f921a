"""Which job runs next, and on which nodes: pure functions; the time is a parameter.

The dispatcher and simulators run the same code.
"""
