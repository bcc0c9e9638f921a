"""What a process listens on, from the kernel's own tables."""

from __future__ import annotations

from pathlib import Path

from tests.testbed.open_files import open_sockets

_ACCEPTS = 0x10000
"""The flag of a listening socket in /proc/net/unix (``__SO_ACCEPTCON``)."""


def listening_ports(pid: int) -> set[int]:
    """TCP ports on which the process listens, on any address."""
    inodes, ports = open_sockets(pid), set[int]()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and columns[9] in inodes:
                ports.add(int(columns[1].rpartition(":")[2], 16))
    return ports


def abstract_sockets(pid: int) -> set[str]:
    """Names of the abstract sockets on which the process listens: any process of the machine may connect to them."""
    inodes, names = open_sockets(pid), set[str]()
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        columns = line.split()
        listens = len(columns) == 8 and int(columns[3], 16) & _ACCEPTS
        if listens and columns[6] in inodes and columns[7].startswith("@"):
            names.add(columns[7])
    return names
