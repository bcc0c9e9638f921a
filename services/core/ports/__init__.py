"""What the use cases need from the world, as Protocols. One contract suite each in tests/contract, passed by every adapter.

All methods are coroutines unless said otherwise. They raise only errors of ``services.core.domain.errors``:
``Unavailable`` where the backing service is away, and those their docstrings name. Times are Unix milliseconds.
"""
