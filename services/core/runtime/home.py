"""Where a local installation keeps everything: one folder, WEFT_HOME, and one small file of addresses inside it.

VERSION                schema of this folder
lock                   held by the supervisor
run/addresses.json     name -> "127.0.0.1:port"; read again by whoever lost a peer
run/<service>.json     pid, start time and boot id of each service; run/came-up: all of them have run at one time
logs/<service>.log
secrets/               0600 files: what opens the rest (docs/adr/0008-secrets.md)
restoring.json         a restore was begun, and has not ended
jobs.sqlite            JobStore; records.sqlite: RecordStore
objects/               ObjectStore
uploads/               the api's: code on its way in; emptied at each start
metrics/               MetricStore, one folder per job
node/                  the node agent's: a folder per learner
cache/envs, cache/data environments and data sets
broker/                Celery's filesystem transport
etcd/                  emptied at each start
sdk/                   a copy of the SDK for learners, readable by their uid
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from services.core.domain.errors import Unavailable


@dataclass(frozen=True, slots=True)
class Home:
    root: Path

    def __truediv__(self, part: str) -> Path:
        return self.root / part

    @property
    def addresses_file(self) -> Path:
        return self.root / "run" / "addresses.json"

    def addresses(self) -> dict[str, str]:
        """All addresses. Unavailable where the platform has never been started here."""
        try:
            return dict(json.loads(self.addresses_file.read_text()))
        except FileNotFoundError:
            raise Unavailable(f"nothing has been started in {self.root}; start it with `weft up`") from None

    def address(self, name: str) -> str:
        """``api``, ``lcm``, ``guardian``, ``metrics``, ``node``, ``etcd``, and ``<service>-ops``."""
        found = self.addresses().get(name)
        if found is None:
            raise Unavailable(f"{name} has no address in {self.addresses_file}")
        return found


def default_home() -> Path:
    """``$WEFT_HOME``; else, as root, ``/var/lib/weft`` (learners' uids must reach it); else ``~/.local/share/weft``."""
    if given := os.environ.get("WEFT_HOME"):
        return Path(given).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/weft")
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "weft"
