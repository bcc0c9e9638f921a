"""Pure code: the status machine, the job spec, the job document, the plan, errors and ids.

No I/O, no clock, no randomness: callers pass times and random bits in. import-linter checks this.
"""
