"""Prepares an installation of containers (docker-compose.yml), and answers the probes of a container.

    python -m services.local.containers setup      makes and distributes keys, certificates and passwords
    python -m services.local.containers mongodb    makes the replica set and the users of a new MongoDB server
    python -m services.local.containers serving    exit code 0 if the service of this container shall get traffic
    python -m services.local.containers ready      exit code 0 if it can do all its work: it reaches all its stores
    python -m services.local.containers alive      exit code 0 if its event loop runs

``setup`` makes each value once, at random, and keeps all of them in a volume that only it mounts. It gives each
container the part that it needs (``container_files``), at each start again: a value that was removed or has expired is
made anew. No value is in the environment of a container (docs/adr/0020-containers.md).
"""

from __future__ import annotations

import argparse
import http
import json
import os
import sys
from pathlib import Path
from typing import Final

from services.core.domain.errors import WeftError
from services.core.ports.secret_store import escaped
from services.core.runtime.address import Address, TlsFiles
from services.core.runtime.durable_files import sync_folder
from services.core.runtime.home import SOCKETS, Home, default_home
from services.core.runtime.operations_client import read_operations
from services.local.container_files import ADMIN_KEY, Volume, volumes
from services.local.layout import prepare
from weft.http_exchange import HttpError, bearer

INSTALLATION: Final = Path("/installation")
VOLUMES: Final = Path("/volumes")
_UID: Final = 10_001
"""Of the image's user, under which all containers run but these."""
_ROOT: Final = frozenset({"node"})
"""The node agent starts learners under users of their own."""
_MONGODB_USERS: Final = Path("/data/db/users.json")
_MONGODB_PORT: Final = 27_017
_MONGODB_WITHIN_S: Final = 240.0
_PROBES: Final = {"serving": "/servingz", "ready": "/readyz", "alive": "/healthz"}
"""Command -> path of the operations address."""
_READY_TIMEOUT_S: Final = 8.0


def setup(installation: Path, targets: Path, *, uid: int = _UID) -> None:
    """Makes what is missing in ``installation``, and fills a folder of ``targets`` for each service and store.

    ``uid``: the owner of the files. Raises WeftError and OSError.
    """
    import asyncio  # noqa: PLC0415 - ``ready`` runs every few seconds in each container, and needs little

    from services.local.installation import make  # noqa: PLC0415 - as above

    made = asyncio.run(make(installation))
    for name, volume in volumes(made).items():
        _fill(targets / name, volume, owner=os.geteuid() if name in _ROOT else uid)


def _fill(root: Path, volume: Volume, *, owner: int) -> None:
    """Writes what is missing or differs: services and stores read changed files again."""
    made: list[Path] = []
    if volume.home and not (root / SOCKETS).exists():  # the last of the folders
        prepare(Home(root))
        made += (root / "objects").iterdir()  # only now: later a service could have made it a link
    for folder in sorted({str(parent) for name in volume.files for parent in Path(name).parents} | {*volume.folders}):
        if (root / folder).is_symlink():  # into another volume: its service could have made it
            raise WeftError(f"{root / folder} is a link; remove it")
        (root / folder).mkdir(mode=0o700, exist_ok=True)
    made += (root, *(root / folder for folder in volume.folders), *root.iterdir(), *root.glob(SOCKETS))
    for path in made:
        if not path.is_symlink() and path.stat().st_uid != owner:
            os.chown(path, owner, owner)
    for name, content in volume.files.items():
        path = root / name
        if not path.exists() or path.read_bytes() != content:
            _replace(path, content, owner=owner)


def _replace(path: Path, content: bytes, *, owner: int) -> None:
    """Readable by its owner only. Readers see the old or the new content."""
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        os.fchown(descriptor, owner, owner)
        file.flush()
        os.fsync(descriptor)
    unfinished.rename(path)
    os.chown(path.parent, owner, owner)
    sync_folder(path.parent)


def prepare_mongodb() -> None:
    """Runs beside the server, in its network. Raises Unavailable if the server does not get ready."""
    from services.core.adapters.mongo.installing import Installation, install  # noqa: PLC0415 - as above

    passwords = json.loads(_MONGODB_USERS.read_text())
    wanted = Installation(
        replica_set="weft",
        member=f"mongodb:{_MONGODB_PORT}",
        user="weft",
        password=passwords["mongodb"],
        admin_password=passwords["mongodb-admin"],
    )
    install(wanted, port=_MONGODB_PORT, within_s=_MONGODB_WITHIN_S)


def why_not_ready(home: Home, path: str = "/readyz") -> str:
    """Why the service of this container is not ready; empty if it is. ``path``: of another probe (``_PROBES``)."""
    own = [name for name, address in home.addresses().items() if address.startswith("tls:0.0.0.0:")]
    name = next(name for name in own if name.endswith("-ops"))
    address = Address(f"tls:localhost:{home.address(name).host_port[1]}", home.tls)
    try:
        key = (home / "secrets" / escaped(ADMIN_KEY)).read_text().strip()
        answer = read_operations(address, path, timeout_s=_READY_TIMEOUT_S, headers=bearer(key))
    except (OSError, HttpError, WeftError) as error:
        return f"{name} does not answer: {error}"
    return "" if answer.status == http.HTTPStatus.OK else answer.body.decode(errors="replace")


def main() -> int:
    """Runs a command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m services.local.containers", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("command", choices=("setup", "mongodb", *_PROBES))
    command = parser.parse_args().command
    try:
        if command == "setup":
            setup(INSTALLATION, VOLUMES)
        elif command == "mongodb":
            prepare_mongodb()
        elif why := why_not_ready(Home(default_home(), TlsFiles.given()), _PROBES[command]):
            print(why)
            return 1
    except (WeftError, OSError) as error:
        sys.stderr.write(f"{command}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
