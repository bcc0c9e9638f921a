"""The proxy for the object store: from the environment (HTTP_PROXY, HTTPS_PROXY, NO_PROXY), and never on loopback.

One function for services (obstore) and helpers (standard library), so that both use the same proxy.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

NOWHERE = "http://127.0.0.1:9"
"""A proxy for a library that otherwise reads the environment itself; the store's host is excluded from it."""


def proxy_of(url: str) -> str | None:
    """The proxy's URL; None for a direct connection."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if _loopback(host) or proxy_bypass(host):
        return None
    proxies = getproxies_environment()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    return proxy if proxy is None or "://" in proxy else f"http://{proxy}"


def authorization(proxy: str) -> Mapping[str, str]:
    """The header that authenticates at the proxy, if its URL names a user."""
    parts = urlsplit(proxy)
    if parts.username is None:
        return {}
    user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
