"""The training metrics service: takes in logs, metrics and learner status; stores, queries, streams them."""

from services.core.runtime.structlog_import import import_structlog

import_structlog()
