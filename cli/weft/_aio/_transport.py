"""The transport of the asynchronous client: the HTTP library's."""

from weft._aio._httpx import AsyncHttpx as AsyncTransport

__all__ = ["AsyncTransport"]
