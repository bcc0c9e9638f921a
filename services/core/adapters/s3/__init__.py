"""ObjectStore on S3 and servers of its protocol.

Helpers import ``transfer`` only, which needs neither obstore nor credentials.
"""
