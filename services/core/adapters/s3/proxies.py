"""Whether the object store is asked through a proxy: as the environment says (HTTP_PROXY, HTTPS_PROXY, NO_PROXY), and
never on loopback. In one place, so that services (obstore) and helpers (standard library) go the same way.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

NOWHERE = "http://127.0.0.1:9"
"""For a library that asks the environment itself unless it is given a proxy: with the one host excepted."""


def proxy_of(url: str) -> str | None:
    """The proxy's URL; None where the server is asked directly."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if _loopback(host) or proxy_bypass(host):
        return None
    proxies = getproxies_environment()
    found = proxies.get(parts.scheme) or proxies.get("all")
    return found if found is None or "://" in found else f"http://{found}"


def authorization(proxy: str) -> Mapping[str, str]:
    """The header that the proxy asks for, if its URL names a user."""
    parts = urlsplit(proxy)
    if parts.username is None:
        return {}
    who = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(who.encode()).decode()}"}


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
