"""The pure heart of Weft: what a job is and what may happen to it. No I/O, no clock, no randomness of its own."""
