"""The smallest helper that keeps to docs/adr/0002-one-machine.md: lets its learner go, and waits for its end.

    python -I -S tiny_helper.py LEARNER_DIR

Its learner's job decides what is prepared: a file ``prepared`` in the learner's spool, if the test has put one there.
"""

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.002)


def start_time(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def main(folder: Path) -> None:
    lock = os.open(folder / "helper.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    document = {"schema": 1, "pid": os.getpid(), "start_time": start_time(os.getpid()), "boot_id": boot}
    new = folder / ".helper.json"
    new.write_text(json.dumps(document))
    new.rename(folder / "helper.json")
    wait_for(folder / "active")
    if (folder / "spool/prepared").exists():
        (folder / "spool/prepared").rename(folder / "prepared.json")
    (folder / "go").touch()
    try:
        os.kill(json.loads((folder / "shim.json").read_text())["pid"], signal.SIGUSR1)
    except ProcessLookupError:
        sys.stderr.write("the shim has ended already\n")
    wait_for(folder / "runs/1/exit.json")
    (folder / "stored").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
