"""The settings that choose adapters: an unknown name ends the service at its start, with the names that exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.core.bootstrap import wiring
from services.core.domain.errors import InvalidRequest
from services.core.runtime.settings import Settings


def test_unknown_cluster_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"WEFT_CLUSTER=slurm .*; there is: local"):
        wiring.cluster(Settings(home=tmp_path, cluster="slurm"), b"secret")
