"""The places of downloads in the cache, which several helpers and the cache's bound share."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.helper.fetch.download import locked_place
from services.helper.fetch.progress import FetchProgress
from tests.documents import an_assignment


def test_fetching_fails_where_a_link_in_the_cache_leads_to_a_disk_that_is_not_mounted(tmp_path: Path) -> None:
    """It tried again without a pause for ever, and no halt ended it."""
    assignment = an_assignment(cache=str(tmp_path))
    tenant = tmp_path / "data" / assignment.plan.tenant
    tenant.parent.mkdir()
    tenant.symlink_to(tmp_path / "disk")
    with pytest.raises(FileExistsError), locked_place(assignment, "http://x/a", "a", FetchProgress()):
        pass
    (tmp_path / "disk").mkdir()
    with locked_place(assignment, "http://x/a", "a", FetchProgress()) as place:
        assert (place / "lock").exists()
