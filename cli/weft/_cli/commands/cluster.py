"""cluster, queue: what the platform has, which jobs use it, and which wait."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from weft._cli.call import Call, command

if TYPE_CHECKING:
    from weft._cli.answers import Answers, Types

ANSWERS: Final[Answers] = {
    "cluster": {
        "nodes": ("list of Node", "All nodes; empty while the cluster does not answer."),
        "total": ("ResourceSize or null", "Hardware of all ready nodes; null if unknown."),
        "used": ("ResourceSize or null", "Hardware that jobs of all tenants hold; null if unknown."),
        "isolation": ("text or null", "sandbox, process, trusted or pod; null if unknown."),
        "enforced": ("list of text or null", "Limits of learners that the kernel enforces; null if unknown."),
        "jobs": ("map of integer", "Number of jobs by status."),
        "gpu_jobs": ("list of GpuUse or null", "Jobs that train with GPUs, most idle ones first; null if unknown."),
        "gpu_idle_s": ("number or null", "Seconds for which GPUs were not in use that count as idle."),
    },
    "queue": {"waiting": ("list of WaitingJob", "Jobs that wait, in order; at most 1000.")},
}
TYPES: Final[Types] = {
    "Node": {
        "name": ("text", "Name of the node."),
        "cpus": ("number", "CPU cores for learners."),
        "memory": ("integer", "Bytes of memory for learners."),
        "gpus": ("number", "GPUs for learners."),
        "gpu_type": ("text", "Model of its GPUs; empty without any."),
        "ready": ("flag", "It can run learners now."),
        "devices": ("map of integer", "Other devices for learners, e.g. rdma/hca; empty without any."),
        "used": ("ResourceSize", "What the learners below hold."),
        "learners": ("list of PlacedLearner", "Learners on it, of the jobs that you may see."),
    },
    "GpuUse": {
        "job": ("text", "Id of the job."),
        "name": ("text", "Name of the job."),
        "tenant": ("text", "Tenant of the job."),
        "user": ("text", "User of the job."),
        "since": ("time", "Since when it trains."),
        "gpus": ("number", "GPUs that its learners hold."),
        "idle": ("number", "GPUs of its learners that are idle."),
        "used": ("number or null", "The most GPUs in use lately; null: they are not measured."),
        "cpus": ("number or null", "The most CPU cores in use lately; null: not measured."),
    },
    "PlacedLearner": {
        "job": ("text", "Id of the job."),
        "name": ("text", "Name of the job."),
        "user": ("text", "User of the job."),
        "tenant": ("text", "Tenant of the job."),
        "learner": ("text", "Name of the learner, e.g. worker-0."),
        "node": ("text", "Name of its node."),
        "cpus": ("number", "CPU cores that it holds."),
        "memory": ("integer", "Bytes of memory that it holds."),
        "gpus": ("number", "GPUs that it holds."),
        "devices": ("map of integer", "Other devices that it holds."),
    },
}

_HOLDING: Final = ("PENDING", "DOWNLOADING", "PROCESSING", "STORING", "HALTING")
_MOST_SLOTS: Final = 48
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_MOST_WAITING: Final = 1000
"""Most jobs in one answer of the queue."""


def everyone(call: Call) -> str | None:
    """The tenant to show: all of them for administrators."""
    return "*" if call.client.whoami().get("scope") == "admin" else None


@command("cluster")
def cluster_command(call: Call) -> None:
    """Show the nodes, what is free, and which jobs use them.

    A slot is a GPU, or a CPU core of a node without GPUs. GPU USE is the most that a job has used of its GPUs in the
    last minutes; idle: its learners used none of them in that time, or none of their CPUs where GPUs are not measured.
    Administrators see the jobs of all tenants.
    """
    from weft._cli.output import emit

    tenant = everyone(call)
    state = call.client.cluster(tenant=tenant)
    jobs = [job.document for job in call.client.jobs.list(status=_HOLDING, tenant=tenant)]
    sizes = {size["name"]: size for size in call.client.sizes()}
    learners = [learner for job in jobs for learner in _learners(job, sizes)]
    nodes: list[dict[str, Any]] = [
        {
            **node,
            "used": {name: sum(on[name] for on in learners if on["node"] == node["name"]) for name in _AMOUNTS},
            "learners": [on for on in learners if on["node"] == node["name"]],
        }
        for node in state.get("nodes") or ()
    ]
    document = {
        "nodes": nodes,
        "total": state.get("total"),
        "used": state.get("used"),
        "isolation": state.get("isolation"),
        "enforced": state.get("enforced"),
        "jobs": state["jobs"],
        "gpu_jobs": state.get("gpu_jobs"),
        "gpu_idle_s": state.get("gpu_idle_s"),
    }
    emit(call, document, people=lambda wide: _people(document, jobs, wide=wide), names=(n["name"] for n in nodes))
    if call.for_people and state.get("nodes") is None:
        from weft._cli.notices import note

        note("the cluster does not answer; its nodes are not known now")


_AMOUNTS: Final = ("cpus", "memory", "gpus")


def _learners(job: Mapping[str, Any], sizes: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The learners of a job that were placed, with their node and what each holds."""
    from weft._cli.text import bytes_of

    spec: Mapping[str, Any] = job.get("spec") or {}
    of_job: Mapping[str, Any] = spec.get("resources") or {}
    size = sizes.get(of_job.get("size") or "cpu", {})
    for learner, node in ((job.get("attempt") or {}).get("placement") or {}).items():
        role = (spec.get("roles") or {}).get(learner.rpartition("-")[0], {})
        held = {
            name: next((given[name] for given in (role, of_job, size) if given.get(name) is not None), 0)
            for name in _AMOUNTS
        }
        held["memory"] = round(bytes_of(held["memory"]))
        yield {
            "job": job["id"],
            "name": job.get("name", ""),
            "user": job.get("user", ""),
            "tenant": job.get("tenant", ""),
            "learner": learner,
            "node": node,
            **held,
            "devices": of_job.get("devices") or {} if role.get("devices") is None else role["devices"],
        }


def _people(state: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]], *, wide: bool) -> str:
    from weft._cli.output import Column, details, table
    from weft._cli.text import amount, size

    letters = {job["id"]: _LETTERS[place % len(_LETTERS)] for place, job in enumerate(jobs)}
    gpu_jobs = {use["job"]: use for use in state["gpu_jobs"] or ()}
    columns = [
        Column("NODE", flexible=True),
        Column("CPUS", right=True),
        Column("MEMORY", right=True),
        Column("GPUS", right=True),
        Column("SLOTS", flexible=True, spare=1),
        Column("TYPE", wide_only=True),
        Column("DEVICES", wide_only=True),
    ]
    rows = [
        [
            node["name"] if node["ready"] else f"{node['name']} (not ready)",
            f"{amount(node['used']['cpus'])}/{amount(node['cpus'])}",
            f"{size(node['used']['memory'])}/{size(node['memory'])}",
            f"{amount(node['used']['gpus'])}/{amount(node['gpus'])}",
            _slots(node, letters),
            node.get("gpu_type") or "-",
            _devices(node),
        ]
        for node in state["nodes"]
    ]
    holding = [
        [
            letters[job["id"]],
            job["id"],
            job.get("name", ""),
            job.get("user", ""),
            job.get("learners", ""),
            amount(job["resources"]["cpus"]),
            size(job["resources"]["memory"]),
            amount(job["resources"]["gpus"]),
            *([_gpu_use(gpu_jobs.get(job["id"]))] if gpu_jobs else []),
            job.get("status", ""),
        ]
        for job in jobs
    ]
    of_jobs = [
        Column(""),
        Column("JOB"),
        Column("NAME", flexible=True),
        Column("USER", flexible=True, spare=4),
        Column("LEARNERS", right=True, spare=6),
        Column("CPUS", right=True, spare=2),
        Column("MEMORY", right=True, spare=3),
        Column("GPUS", right=True, spare=1),
        *([Column("GPU USE", spare=5)] if gpu_jobs else []),
        Column("STATUS"),
    ]
    counts = ", ".join(f"{count} {status}" for status, count in state["jobs"].items() if count)
    enforced = state.get("enforced")
    isolation = state.get("isolation") or ""
    if enforced is not None and "memory" not in enforced:
        isolation += "; memory limits are not enforced"
    parts = [details([("isolation", isolation), ("jobs", counts)])]
    parts += [table(columns, rows, wide=wide)] if rows else []
    parts += [table(of_jobs, holding, wide=wide)] if holding else []
    return "\n\n".join(filter(None, parts))


def _gpu_use(use: Mapping[str, Any] | None) -> str:
    """E.g. 0.02, 2 idle."""
    from weft._cli.text import amount

    if use is None:
        return "-"
    used = "not measured" if use["used"] is None else amount(use["used"])
    return f"{used}, {amount(use['idle'])} idle" if use["idle"] else used


def _devices(node: Mapping[str, Any]) -> str:
    """What is held of each kind of device, e.g. rdma/hca 1/2."""
    devices = node.get("devices") or {}
    used = {name: sum(learner["devices"].get(name, 0) for learner in node["learners"]) for name in devices}
    return ", ".join(f"{name} {used[name]}/{count}" for name, count in sorted(devices.items())) or "-"


def _slots(node: Mapping[str, Any], letters: Mapping[str, str]) -> str:
    """One character for each slot: the letter of its job, or a dot."""
    unit = "gpus" if node["gpus"] else "cpus"
    count = max(1, math.ceil(node[unit]))
    scale = min(1.0, _MOST_SLOTS / count)
    drawn = "".join(
        letters.get(learner["job"], "?") * max(1, round(learner[unit] * scale))
        for learner in node["learners"]
        if learner[unit]
    )
    return drawn[:_MOST_SLOTS].ljust(round(count * scale), ".")


@command("queue")
@click.option("--tenant", metavar="TENANT", help="Administrators: one tenant; by default all.")
def queue_command(call: Call, tenant: str | None) -> None:
    """Show the jobs that wait, in order, and why."""
    from weft._cli.notices import note
    from weft._cli.output import Column, emit, table
    from weft._cli.text import ago
    from weft._times import parse_time

    waiting = call.client.queue(tenant=tenant or everyone(call))

    def people(wide: bool) -> str:
        columns = [
            Column("PLACE", right=True),
            Column("JOB"),
            Column("NAME", flexible=True, spare=1),
            Column("USER", flexible=True, spare=3),
            Column("AGE", right=True, spare=2),
            Column("WHY", wraps=True),
            Column("TENANT", wide_only=True),
        ]
        rows = [
            [
                job.get("position", "-"),
                job["id"],
                job.get("name", ""),
                job.get("user", ""),
                ago(parse_time(job["created"])),
                job.get("message") or job.get("pending_reason") or "",
                job["tenant"],
            ]
            for job in waiting
        ]
        return table(columns, rows, wide=wide)

    emit(call, {"waiting": waiting}, people=people, names=(job["id"] for job in waiting))
    if len(waiting) >= _MOST_WAITING:
        note(f"these are the first {_MOST_WAITING} jobs; there may be more: `weft list -s queued --all`")
    elif call.for_people and not waiting:
        note("no job waits")
