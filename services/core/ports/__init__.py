"""What the use cases need from the world, as Protocols. Each has one contract suite, which every adapter passes.

All methods are coroutines unless said otherwise. They raise only errors of ``services.core.domain.errors``:
``Unavailable`` where the backing service is away, and those their docstrings name. Times are Unix milliseconds.
"""
