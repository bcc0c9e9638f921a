"""The folder layout of an installation on one machine: all is in one folder, WEFT_HOME.

VERSION                schema of this folder
lock                   held by the supervisor
run/addresses.json     name -> address (services.core.runtime.address); clients read it again when no service answers
run/down.json          the `weft down` that waits for the jobs
run/s/                 the sockets of etcd and the services
run/<service>.json     pid, start time and boot id of each service; run/came-up: all services have run at the same time
run/<service>.lease.json  the service's lease in etcd, which its next process revokes
logs/<service>.log
tls/                   with WEFT_TRANSPORT=tls: the installation's authority, certificates and keys
secrets/               0600 files: keys of services (docs/adr/0015-identities.md), master key, admin key
stores.json            which stores the platform used last
restoring.json         a restore has begun and not ended
jobs.sqlite            JobStore; records.sqlite: RecordStore
objects/               ObjectStore; without .weft-staging in it, its volume is not mounted
uploads/               the api's: code that is being uploaded; emptied at each start
metrics/               MetricStore, one folder per job
node/                  the node agent's: one folder per learner
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
from typing import Final

from services.core.domain.errors import InvalidRequest, Unavailable
from services.core.runtime.address import Address, TlsFiles

SOCKETS: Final = "run/s"
"""The folder of the sockets; its path counts towards the length of each."""

STOPPING: Final = "run/down.json"
"""The `weft down` that halts the jobs, as long as its process runs: meanwhile no job is admitted."""

AGENT: Final = ".agent"
"""The node agent's own folder, below ``node``."""

GROUPS_FILE: Final = "groups.json"
"""In the agent's own folder: where it has made control groups. Without learners the agent removes it at its end."""


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of one installation. ``home / "objects"`` is a path in it."""

    root: Path
    tls: TlsFiles | None = None
    """Certificate and key of this process, for addresses that need them."""

    def __truediv__(self, part: str) -> Path:
        return self.root / part

    def command(self, words: str) -> str:
        """The command ``weft WORDS`` for this installation. Without its folder it could be another's."""
        import shlex  # noqa: PLC0415 - most commands print none

        return f"weft {words} --home {shlex.quote(str(self.root))}"

    @property
    def addresses_file(self) -> Path:
        """The file that ``weft up`` writes the services' addresses to."""
        return self.root / "run" / "addresses.json"

    def addresses(self) -> dict[str, str]:
        """Returns name -> address, read anew. Raises Unavailable where the platform was never started here."""
        try:
            return dict(json.loads(self.addresses_file.read_text()))
        except FileNotFoundError:
            message = f"nothing has been started in {self.root}; start it with `{self.command('up')}`"
            raise Unavailable(message) from None

    def address(self, name: str) -> Address:
        """Returns the address of a server. Raises Unavailable where it has none.

        ``name``: ``api``, ``api-grpc``, ``api-inner``, ``lcm``, ``guardian``, ``metrics``, ``node``, ``etcd``, or
        ``<service>-ops``.
        """
        address = self.addresses().get(name)
        if address is None:
            raise Unavailable(f"{name} has no address in {self.addresses_file}")
        return Address(address, self.tls)


def default_home() -> Path:
    """Returns the absolute ``$WEFT_HOME``, else ``/var/lib/weft`` as root, else ``~/.local/share/weft``.

    As root the learners run under uids of their own, which could not enter root's home. Raises InvalidRequest for a
    user without a home folder.
    """
    if configured := os.environ.get("WEFT_HOME"):
        return Path(configured).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/weft")
    if data_home := os.environ.get("XDG_DATA_HOME"):
        return Path(data_home) / "weft"
    try:
        return Path.home() / ".local" / "share" / "weft"
    except RuntimeError:
        raise InvalidRequest("there is no home folder: set HOME, or WEFT_HOME to a folder for the platform") from None
