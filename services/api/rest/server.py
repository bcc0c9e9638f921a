"""The HTTP server of REST."""

from __future__ import annotations

import socket

from services.api.connection_limits import connections
from services.api.rest.app import create_app
from services.api.services import ApiServices
from services.core.bootstrap.http import HttpServer
from services.core.bootstrap.http_limits import HttpLimits
from services.core.runtime.address import Address


def rest_server(services: ApiServices, address: Address, *, held: socket.socket | None = None) -> HttpServer:
    """``held``: a socket that listens at the address already."""
    counted = connections("rest", services.settings, services.instrumentation)
    limits = HttpLimits(counted, services.settings.headers_s)
    return HttpServer(create_app(services), address, held=held, limits=limits)
