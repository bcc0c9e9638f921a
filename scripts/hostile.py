"""Write docs/hostile.md from the registry of tricks: every trick, and what its attacker does.

python scripts/hostile.py          writes it
python scripts/hostile.py --check  says whether the committed page is current
"""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.generated import write_or_check
from tests.hostile.combinations import ALL
from tests.hostile.tricks.registry import TRICKS

PAGE = Path(__file__).parents[1] / "docs" / "hostile.md"
HEAD = """# Hostile learners and users

`make hostile` starts the platform and plays every trick of this page on it, as a user who wants to harm others would.
It is done for each of these combinations of isolation, user of the platform, and store of the jobs: {combinations}.
`user` means without root; `pod` is the platform on this machine with its learners in the test bed's Kubernetes: a real
API server and two real kubelets. `make hostile ON=sandbox-user` plays the combinations whose names contain this text.
A trick that means nothing in an isolation is not played there: "Not played" names it with its reason.
`make test` plays the tricks marked with * on one combination. A run prints a table: "held" where no harm was done, else
"FELL". Results of full runs: [promises.md](promises.md#not-shown-yet).

An attacker is a user of a tenant of its own. Its learner is given more knowledge than a real attacker has: addresses,
sockets, process ids, and paths of the platform and of the victim, a user of another tenant. After each trick an
auditor, a part of the test outside the platform, checks that

* the attacker's job has ended, and has reported no success; the attack was tried to its end;
* the platform trains the next job, of another tenant, and stores its result; no service has died, or grown by 800 MiB;
* nothing of the attacker's is left after 30 s: processes, mounts, control groups, folders, files in /tmp and /dev/shm,
  shared memory; in pods: pods, ConfigMaps, Secrets, Services, network policies and PodGroups in the API server,
  containers, processes and kubelets' folders on the nodes;
* the victim's running job continues in the same process; in pods: in the same pod, no container of which has started
  again, with the same objects; at no moment have two attempts of a job been live;
* the victim's files, the operator's data and the platform's secrets are unchanged; no secret, and no canary (a text
  that only the victim's data contains), occurs in what the attacker has written, stored or received.

Loads are bounded: an attack takes at most half a gibibyte of memory, 1,500 processes, and 300 MB of disk, and ends by
itself within 90 s. A trick that succeeds changes nothing outside the platform under test.

A trick is a function in `tests/hostile/attacks` (inside a learner) or in `tests/hostile/tricks` (from outside), and an
entry in the list of its module. This page is made by `python scripts/hostile.py`.
"""


def page() -> str:
    """The whole text."""
    combinations = ", ".join(f"`{combination}`" for combination in ALL)
    parts = [HEAD.format(combinations=combinations)]
    for theme in dict.fromkeys(trick.theme for trick in TRICKS):
        tricks = [trick for trick in TRICKS if trick.theme == theme]
        rows = [f"| {trick.name}{' *' if trick.quick else ''} | {trick.does} |" for trick in tricks]
        parts.append(
            "\n".join([f"## {theme.capitalize()}", "", "| trick | what the attacker does |", "|---|---|", *rows])
        )
    parts.append("\n".join(["## Not played", "", "| isolation | trick | reason |", "|---|---|---|", *_not_played()]))
    return "\n".join([parts[0], *(f"{part}\n" for part in parts[1:])]) + f"\n{len(TRICKS)} tricks.\n"


def _not_played() -> list[str]:
    return [
        f"| {isolation} | {trick.theme}: {trick.name} | {reason} |"
        for isolation in dict.fromkeys(combination.isolation for combination in ALL)
        for trick in TRICKS
        for reason in [trick.pointless.get(isolation)]
        if reason is not None
    ]


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page()))
