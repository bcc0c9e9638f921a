"""A second process of a service in the same installation, as on another machine: its own addresses, the same stores.

Its folder links to everything of the installation, except what belongs to the processes of one machine (run/, logs/).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from services.core.runtime.address import TLS
from services.core.runtime.home import Home
from services.core.runtime.processes import ProcessIdentity, identify, send_signal, wait_gone
from services.local.layout import tls_variables
from tests.testbed.server import free_address, free_port

_OWN: Final = frozenset({"run", "logs", "lock"})


class Second:
    """Keeps its folder and its addresses when it is started again. ``start`` of a running one does nothing."""

    def __init__(
        self,
        home: Home,
        service: str,
        view: Path,
        environment: Mapping[str, str],
        *,
        through: Callable[[str], str] = lambda address: address,
    ) -> None:
        """``through``: maps the address of another service to the one that this process uses."""
        self._service, self._view = service, view
        self._environment = {
            **os.environ,
            **environment,
            **tls_variables(home, service),
            "WEFT_HOME": str(view),
        }
        self._process: subprocess.Popen[bytes] | None = None
        (view / "run").mkdir(parents=True)
        for entry in home.root.iterdir():
            if entry.name not in _OWN:
                (view / entry.name).symlink_to(entry)
        addresses = {name: through(address) for name, address in home.addresses().items()}
        tls = any(address.startswith(TLS) for address in addresses.values())
        for name in (service, f"{service}-ops"):
            addresses[name] = f"{TLS}127.0.0.1:{free_port()}" if tls else free_address()
        (view / "run" / "addresses.json").write_text(json.dumps(addresses))

    @property
    def process(self) -> ProcessIdentity | None:
        """None if it does not run."""
        return identify(self._process.pid) if self._process is not None and self._process.poll() is None else None

    @property
    def exit_code(self) -> int | None:
        """Of the last process; None while it runs."""
        return self._process.poll() if self._process is not None else None

    @property
    def log(self) -> str:
        return (self._view / "log").read_text()

    def start(self) -> None:
        if self.process is None:
            with (self._view / "log").open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", f"services.{self._service}"],
                    env=self._environment,
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )

    def stop(self, *, within_s: float = 15) -> None:
        """SIGTERM, and SIGKILL after ``within_s``."""
        process = self.process
        if process is not None:
            send_signal(process, signal.SIGTERM)
            if not wait_gone(process, within_s):
                send_signal(process, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
