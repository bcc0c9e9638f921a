"""Hints on Celery: tiny messages that make things fast and may all be lost. The queue itself is the job store."""
