"""A probe pod: tries the ways from a pod to the platform, and reports what fails in its termination message.

The pod is rendered as a learner's, so that it has the learners' network policy, user and volumes.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from services.core.domain.errors import Unavailable, WeftError
from services.core.runtime.address import Address, TlsAuthority
from services.helper.metrics_client import IntakeClient
from services.helper.pod_folder import PodFolder

_MESSAGE: Final = Path("/dev/termination-log")
_CONNECT_S: Final = 5.0
_MOST_TEXT: Final = 500
Check = tuple[str, str]
"""What was tried, and why it failed; empty: it did not."""


def main(root: Path, learner: str, wanted: str) -> int:
    """Tries everything, and writes ``{"checks": [[name, problem]]}``. ``wanted``: JSON ``{"urls": [...]}``."""
    folder = PodFolder(root, learner)
    addresses_file = Path(folder.assignment().addresses_file)
    checks = [*_metrics(addresses_file, folder.trust), *_objects(json.loads(wanted)["urls"])]
    _MESSAGE.write_text(json.dumps({"checks": [(name, problem[:_MOST_TEXT]) for name, problem in checks]}))
    return 0


def _metrics(addresses_file: Path, trust: TlsAuthority | None) -> Iterator[Check]:
    """The way to the metrics service: name, connection, certificate, answer. Ends at the first that fails."""
    address = Address(json.loads(addresses_file.read_bytes())["metrics"], trust)
    host, port = address.host_port
    try:
        socket.getaddrinfo(host, port)
    except OSError as error:
        yield "name", f"{host} has no address in the cluster: {error}"
        return
    try:
        connection = socket.create_connection((host, port), _CONNECT_S)
    except OSError as error:
        yield "connection", f"no connection to {host}, port {port}: {error}"
        return
    with connection:
        if address.is_tls and trust is not None:
            context = ssl.create_default_context(cafile=str(trust.authority))
            try:
                context.wrap_socket(connection, server_hostname=host).close()
            except OSError as error:
                yield "certificate", f"{host}, port {port}: {error}"
                return
    yield "answer", asyncio.run(_answer(addresses_file, trust))


async def _answer(addresses_file: Path, trust: TlsAuthority | None) -> str:
    """A service that refuses the token of the probe has answered."""
    client = IntakeClient(addresses_file, "probe", trust)
    try:
        await client.hello()
    except Unavailable as error:
        return str(error)
    except WeftError:
        pass
    finally:
        await client.close()
    return ""


def _objects(urls: Sequence[str]) -> Iterator[Check]:
    """The way to the object store, by a signed URL of an object that does not exist."""
    for url in urls:
        place = url.partition("?")[0]
        try:
            urllib.request.urlopen(url, timeout=_CONNECT_S).close()  # noqa: S310 - from the platform
        except urllib.error.HTTPError as error:
            yield "objects", "" if error.code == 404 else f"{place} answers {error.code} {error.reason}"
        except (OSError, ValueError) as error:
            yield "objects", f"no answer of {place}: {error}"
        else:
            yield "objects", ""
