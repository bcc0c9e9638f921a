"""The api: what users and programs call, over REST and gRPC."""

from services.core.runtime.structlog_import import import_structlog

import_structlog()
