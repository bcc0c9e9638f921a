"""The life-cycle manager: keeps the queue, decides which jobs are admitted and when, and removes leftovers."""

from services.core.runtime.structlog_import import import_structlog

import_structlog()
