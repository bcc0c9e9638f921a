"""Which hosts and origins a browser's request may come from.

A session's cookie is sent by the browser, not by the page, so the page that requests must be the dashboard's own:

* DNS rebinding: a page of evil.example whose name now resolves to the api's address has evil.example as its ``Host``.
  Only names that are known to be the api's are allowed. An address is no name, and nobody can rebind it.
* Cross-site requests: browsers name the origin in headers that a page cannot change (``Sec-Fetch-Site``, ``Origin``).
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from services.api.settings import ApiSettings
from services.core.domain.errors import InvalidRequest, PermissionDenied, Unavailable

CSRF: Final = "x-weft-csrf"
_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:/@?#\s]+)(?::\d{1,5})?")
_PREFIX: Final = re.compile(r"(?:/[A-Za-z0-9._~-]+)+/?")


@dataclass(frozen=True, slots=True)
class Origins:
    """What is allowed, in lower case."""

    hosts: frozenset[str]
    """Names of ``Host``, with or without a port."""
    pages: frozenset[str]
    """Hosts of ``Origin`` besides the request's own ``Host``: another port is another origin."""
    prefix: str
    """Of the paths that browsers use, without a slash at its end; empty: none."""

    @classmethod
    def of(cls, settings: ApiSettings) -> Self:
        """As the settings say. Raises InvalidRequest for a wrong ``dashboard_prefix``."""
        pages = frozenset(host.strip().lower() for host in settings.dashboard_hosts.split(",") if host.strip())
        hosts = set(pages)
        with contextlib.suppress(InvalidRequest, Unavailable):  # it listens on a socket, or has no address yet
            hosts.add(settings.installation.address("api").host_port[0].lower())
        prefix = settings.dashboard_prefix.rstrip("/")
        if prefix and _PREFIX.fullmatch(prefix) is None:
            raise InvalidRequest("WEFT_DASHBOARD_PREFIX is a path, such as /weft")
        return cls(frozenset(hosts), pages, prefix)

    def check_host(self, headers: Headers) -> None:
        """Raises PermissionDenied unless the request names a host of the api."""
        named = headers.getlist("host")
        if len(named) != 1 or not self._is_allowed(named[0]):
            raise PermissionDenied(
                "the dashboard is not served under this host name: it may be another site's (DNS rebinding). If it is "
                "yours, add it to WEFT_DASHBOARD_HOSTS and restart the api"
            )

    def check_read(self, headers: Headers) -> None:
        """Raises PermissionDenied if another site's page makes the request."""
        site = headers.get("sec-fetch-site")
        if site is not None and site not in {"same-origin", "none"}:
            raise PermissionDenied("a page of another site made this request; open the dashboard itself")

    def check_change(self, headers: Headers) -> None:
        """Raises PermissionDenied unless the headers show that a page of the dashboard makes the request."""
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if site is None and origin is None:
            raise PermissionDenied("a change in a session needs the header Origin or Sec-Fetch-Site, as browsers send")
        # Browsers send no Sec-Fetch-Site over http to another machine.
        by_origin = site is None and origin is not None and self._is_own(origin, headers)
        if site != "same-origin" and not by_origin:
            raise PermissionDenied("a page of another site made this request; open the dashboard itself")

    def check_sign_in(self, headers: Headers) -> None:
        """As ``check_change``, if the headers name any origin: programs send none, and have no cookie to misuse."""
        self.check_host(headers)
        if "sec-fetch-site" in headers or "origin" in headers:
            self.check_change(headers)

    def prefix_of(self, headers: Headers) -> str:
        """The path under which the browser sees the api, without a slash at its end; empty: at the root."""
        forwarded = headers.get("x-forwarded-prefix", "")
        return forwarded.rstrip("/") if _PREFIX.fullmatch(forwarded) else self.prefix

    def _is_allowed(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].lower().removesuffix(".")
        return name in self.hosts or host.lower() in self.hosts or _is_local(name)

    def _is_own(self, origin: str, headers: Headers) -> bool:
        host = urlsplit(origin).netloc.lower() if origin.startswith(("http://", "https://")) else ""
        named = {headers.get("host", "").lower(), headers.get("x-forwarded-host", "").lower()}
        return bool(host) and (host in named or host in self.pages)


def is_https(scheme: str, headers: Headers) -> bool:
    """Whether the browser's connection is encrypted: to the api itself, or to a proxy that says so."""
    return scheme == "https" or headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower() == "https"


def _is_local(name: str) -> bool:
    """Whether the name is an IP address, or ``localhost`` or below it: no other site can have such a name."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
