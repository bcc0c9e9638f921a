"""The SDK's asynchronous half, which is also the source of the other: see scripts/sdk.py.

`weft._client`, `_http`, `_job`, `_jobs`, `_keys`, `_follow` and `_download` are generated from the modules of the same
names in here, so that `Client` and `AsyncClient` can never differ in more than `await`.
"""
