"""One Guardian per job: provisions all of its learners or none, watches them, decides the end, releases everything."""

from services.core.runtime.structlog_import import import_structlog

import_structlog()
