"""Tricks of a learner's own code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.hostile.arena import Arena, end
from tests.hostile.attacks import channels, files, kernel, loads, processes, telemetry
from tests.hostile.trick import Trick, of_learner
from tests.waiting import HANG_S, eventually
from weft._job import Job

_ANY_END: Final = frozenset({"COMPLETED", "FAILED"})
_LOADER: Final = {
    "LD_PRELOAD": "./hostile.so",
    "LD_AUDIT": "./hostile.so",
    "LD_LIBRARY_PATH": ".",
    "LD_DEBUG": "libs",
    "LD_DEBUG_OUTPUT": "/tmp/hostile-loader",
    "GCONV_PATH": ".",
    "GLIBC_TUNABLES": "glibc.malloc.check=3",
    "LD_BIND_NOW": "1",
    "LD_PROFILE": "libc.so.6",
    "LD_PROFILE_OUTPUT": "/tmp",
    "MALLOC_TRACE": "/tmp/hostile-trace",
    "PYTHONPATH": "/tmp",
    "PYTHONSTARTUP": "/tmp/x",
    "PYTHONHOME": "",
    "BASH_ENV": "./x",
    "ENV": "./x",
    "IFS": "/",
}

_ELSEWHERE: Final = {"pod": "The platform's etcd, inner services and their folders are on a machine that is no node."}
_OTHER_LOOPBACK: Final = {"pod": "A pod has a network of its own, in which nothing of the platform listens."}


def _until(arena: Arena, job: Job, name: str) -> Path:
    """Waits until the attack has made the file. Returns its folder."""

    def made() -> Path | None:
        folder = arena.cluster.job_folder(job)
        if folder is not None and (folder / name).exists():
            return folder
        assert not job.refresh().at_rest, f"the attack is {job.status} without {name} ({job.reason}: {job.message})"
        return None

    folder = eventually(made)
    assert folder is not None
    return folder


def _restart_services(arena: Arena, job: Job) -> Iterator[str]:
    """Kills one service after the other, each twice, while the attack tries to take its place."""
    folder = _until(arena, job, "squatting")
    for service in ("metrics", "node", "lcm", "guardian", "api", "etcd") * 2:
        killed = arena.weft.kill(service)
        eventually(lambda: arena.weft.again(service, killed))  # noqa: B023 - in this round only
    (folder / "restarted").touch()
    yield from ()


def _kill(arena: Arena, job: Job) -> Iterator[str]:
    _until(arena, job, "ready")
    end(job)
    yield from ()


def _halt_and_resume(arena: Arena, job: Job) -> Iterator[str]:
    _until(arena, job, "ready")
    job.halt()
    job.wait(HANG_S)
    if job.status != "HALTED":
        yield f"the halted job is {job.status}"
        return
    job.resume()
    eventually(lambda: job.refresh().status not in {"HALTED", "RESUMED", "QUEUED", "PENDING"})
    end(job)


def _work_on(arena: Arena, job: Job) -> Iterator[str]:
    """Trains a job while the attack goes on."""
    folder = _until(arena, job, "ready")
    yield from arena.next_job()
    (folder / "go-on").touch()


def _has_fine(_: Arena, job: Job) -> Iterator[str]:
    """The metric that is fine is there, whatever was written beside it."""
    if "fine" not in {series.name for series in job.series()}:
        yield "the metric beside the hostile ones is lost"


def _plant_foreign_file(arena: Arena, job: Job) -> Iterator[str]:
    """Root's file in a folder of root's, among the results: as a file server, a backup or an operator leaves it."""
    folder = _until(arena, job, "ready")
    inner = folder / "results" / "foreign"
    inner.mkdir(mode=0o700)
    (inner / "file").write_text("root's")
    (inner / "file").chmod(0o600)
    end(job)
    yield from ()


def _look_for_forged_files(arena: Arena, job: Job) -> Iterator[str]:
    """What the platform keeps beside the learner's own part is as the platform has made it."""
    folder = _until(arena, job, "ready")
    yield from arena.cluster.damage(job)
    (folder / "go-on").touch()


CHANNELS: Final = (
    of_learner(channels.etcd_is_read, pointless=_ELSEWHERE),
    of_learner(channels.etcd_exit_is_forged, pointless=_ELSEWHERE),
    of_learner(channels.etcd_keys_are_deleted, pointless=_ELSEWHERE),
    of_learner(channels.etcd_value_is_no_text, pointless=_ELSEWHERE),
    of_learner(channels.etcd_is_filled, pointless=_ELSEWHERE),
    of_learner(channels.services_are_called_without_credentials),
    of_learner(channels.services_are_called_with_forged_tokens),
    of_learner(channels.operations_are_read, pointless=_ELSEWHERE),
    of_learner(channels.loopback_is_scanned),
    of_learner(
        channels.ports_are_squatted_on_during_restarts,
        during=_restart_services,
        restarts=True,
        pointless=_OTHER_LOOPBACK,
    ),
    of_learner(channels.sockets_are_planted, quick=True, pointless=_ELSEWHERE),
)
KERNEL: Final = (
    of_learner(kernel.namespaces_are_made),
    of_learner(kernel.mounts_are_made),
    of_learner(kernel.processes_are_traced),
    of_learner(kernel.signals_are_sent),
    of_learner(kernel.everything_is_killed, ends=_ANY_END, finishes=False),
    of_learner(kernel.rights_are_gained),
    of_learner(kernel.keys_are_stored),
    of_learner(kernel.kernel_programs_are_loaded),
    of_learner(kernel.rare_calls_are_made),
    of_learner(kernel.devices_are_opened),
    of_learner(kernel.kernel_settings_are_written),
    of_learner(kernel.daemons_of_the_machine_are_reached),
    of_learner(kernel.shared_objects_are_left),
    of_learner(kernel.loader_variables_take_effect_inside_only, spec={"env": _LOADER}),
)
PROCESSES: Final = (
    of_learner(processes.daemons_outlive, quick=True),
    of_learner(processes.daemons_fork_for_ever),
    of_learner(processes.sigterm_is_ignored, ends={"KILLED"}, finishes=False, during=_kill),
    of_learner(processes.processes_stop_themselves, ends={"KILLED"}, finishes=False, during=_kill),
    of_learner(processes.parent_is_killed, ends=_ANY_END, finishes=False),
    of_learner(processes.zombies_are_left),
    of_learner(processes.core_is_dumped),
    of_learner(processes.work_is_scheduled),
    of_learner(processes.platform_files_are_forged, during=_look_for_forged_files),
    of_learner(processes.others_files_are_read, quick=True),
    of_learner(processes.others_files_are_written),
)
FILES: Final = (
    of_learner(files.links_lead_to_the_platform, quick=True),
    of_learner(files.hard_links_are_stored),
    of_learner(files.folders_become_links),
    of_learner(files.folders_and_links_change_places),
    of_learner(files.files_appear_while_they_are_stored),
    of_learner(files.names_are_hostile, quick=True),
    of_learner(files.folders_are_nested),
    of_learner(files.kinds_are_strange, quick=True),
    # In a pod its memory bounds the size of a file, and one of a gibibyte would be stored.
    of_learner(files.files_are_sparse, spec={"resources": {"cpus": 0.5, "memory": "2GiB"}}),
    of_learner(files.files_are_many, ends=_ANY_END),
    of_learner(files.files_cannot_be_entered),
    of_learner(files.files_are_immutable),
    of_learner(files.checkpoint_is_forged, ends={"KILLED", "COMPLETED"}, finishes=False, during=_halt_and_resume),
    of_learner(files.own_streams_are_damaged, finishes=False),
    of_learner(files.foreign_files_appear, ends={"KILLED"}, finishes=False, during=_plant_foreign_file),
)
TELEMETRY: Final = (
    of_learner(telemetry.names_are_hostile, check=_has_fine),
    of_learner(telemetry.values_are_hostile, check=_has_fine, quick=True),
    of_learner(telemetry.steps_and_times_are_hostile, check=_has_fine),
    of_learner(telemetry.series_are_many),
    of_learner(telemetry.line_is_long, finishes=False),
    of_learner(telemetry.output_is_binary, finishes=False),
    of_learner(telemetry.lines_are_many, finishes=False),
    of_learner(telemetry.sources_are_links),
)
LOADS: Final = (
    of_learner(loads.processes_are_forked, ends=_ANY_END, finishes=False),
    of_learner(loads.memory_is_taken, ends=_ANY_END, finishes=False),
    of_learner(loads.disk_is_filled, ends=_ANY_END, finishes=False),
    of_learner(loads.shared_memory_is_filled, ends=_ANY_END, finishes=False),
    of_learner(loads.files_are_opened, ends=_ANY_END),
    of_learner(loads.sockets_are_opened, ends=_ANY_END),
    of_learner(loads.connections_are_held, during=_work_on),
    of_learner(loads.processors_are_taken),
)
TRICKS: Final[tuple[Trick, ...]] = (*CHANNELS, *KERNEL, *PROCESSES, *FILES, *TELEMETRY, *LOADS)
