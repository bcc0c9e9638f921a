"""Objects in S3, and in what speaks its protocol.

Helpers import ``transfer`` alone: without obstore, and without anything that could sign.
"""
