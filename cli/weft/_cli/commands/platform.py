"""up, down, status, doctor: the platform on this machine, found by its entry point.

The SDK does not depend on the platform. What it needs of it is one object behind the entry point ``weft.platform``,
name ``local``, which answers with plain dictionaries; its errors have the same names as ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from weft._cli.call import Call, Stop, command
from weft._cli.confirm import YES, confirm
from weft._cli.homes import HOME_HELP

if TYPE_CHECKING:
    from weft._cli.answers import Answers, Types

ANSWERS: Final[Answers] = {
    "up": {
        "url": ("text", "Address of the API."),
        "key": ("text", "Key of the first administrator."),
        "home": ("text", "Folder of the platform."),
        "started": ("flag", "False: it ran already."),
        "queued_again": ("list of text", "Ids of jobs that `weft down` had halted."),
        "ignored": ("list of text", "Settings, NAME=value, that a platform that ran already does not have."),
        "unknown": ("list of text", "Variables WEFT_... that are no settings, with the setting that looks alike."),
        "probe": ("list of ProbeCheck", "What a pod of the cluster has tried; empty without Kubernetes."),
        "profile": ("text", "Name of the profile that was written; empty if it could not be."),
    },
    "down": {
        "home": ("text", "Folder of the platform."),
        "was_running": ("flag", "It ran before."),
        "purged": ("flag", "It had a folder, which is removed."),
        "unfinished": ("integer or null", "Number of jobs that continue after the next start; null if unknown."),
        "halted": ("list of text", "Ids of jobs that were halted."),
    },
    "status": {
        "running": ("flag", "The platform runs."),
        "home": ("text", "Folder of the platform."),
        "url": ("text", "Address of the API; empty while it does not run."),
        "grpc": ("text", "Address of gRPC; empty while it does not run."),
        "isolation": ("object", "name, why and enforced: how learners are kept apart; empty if unknown."),
        "caches": ("object", "bytes by kind, and max_bytes; empty if unknown."),
        "services": ("list of Service", "Its services."),
        "quarantine": ("GetQuarantineReply or null", "Data that cannot be read; null if unknown."),
    },
    "doctor": {"checks": ("list of Check", "What was checked.")},
    "conformance": {"checks": ("list of Conformance", "What was tried.")},
}
TYPES: Final[Types] = {
    "Service": {
        "name": ("text", "Name of the service."),
        "state": ("text", "ready, starting or down."),
        "pid": ("integer or null", "Its process; null if it does not run."),
        "restarts": ("integer", "How often it was started again."),
        "address": ("text", "Where it listens; may be empty."),
        "why": ("text", "Why it is not ready, or what is unusual; may be empty."),
    },
    "Conformance": {
        "check": ("text", "Its name."),
        "verdict": ("text", "pass, fail or not applicable."),
        "detail": ("text", "What was found."),
        "fix": ("text", "What to do; empty unless it failed."),
    },
    "Check": {
        "check": ("text", "What was checked."),
        "ok": ("flag", "Nothing is wrong."),
        "detail": ("text", "What was found."),
        "fix": ("text", "The command that repairs it; empty where ok."),
    },
    "ProbeCheck": {
        "name": ("text", "access, pod, image, metrics or object store."),
        "problem": ("text", "What keeps jobs from running; empty where it works."),
        "fix": ("text", "What to do; empty where it works."),
    },
}


@command("up")
@click.option("--home", metavar="DIR", help=HOME_HELP)
@click.option("--gpus", type=click.IntRange(min=0), help="How many GPUs to offer; by default those that are found.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the API; by default a free one.")
@click.option(
    "--cluster", type=click.Choice(["local", "kubernetes"]), help="Where learners run; by default on this machine."
)
@click.option("--kubeconfig", metavar="FILE", help="Access to the cluster; by default KUBECONFIG or ~/.kube/config.")
@click.option(
    "--context", "context_name", metavar="NAME", help="Context of the kubeconfig; by default its current one."
)
@click.option("--advertise", metavar="HOST", help="Name or address of this machine by which pods reach it.")
@click.option("--registry", metavar="HOST/PATH", help="Registry from which the cluster pulls Weft's images.")
def up_command(
    call: Call,
    home: str | None,
    gpus: int | None,
    port: int | None,
    cluster: str | None,
    kubeconfig: str | None,
    context_name: str | None,
    advertise: str | None,
    registry: str | None,
) -> None:
    """Start the platform on this machine.

    With --cluster kubernetes the services run here and the learners as pods of that cluster, which need a way to this
    machine (--advertise) and to Weft's images (--registry).

    Prints its address and key, and writes a profile: 'local', or one named after the folder that --home or WEFT_HOME
    names. Already running: says so, and changes nothing.
    """
    from weft._cli.homes import chosen_home, command_for, command_in, is_named, profile_name
    from weft._cli.local import platform, translated
    from weft._cli.notices import note, warn
    from weft._cli.output import details, emit
    from weft._profile import Profile, config_file, locked_config, write_config

    place = chosen_home(call, home, new=True)
    flags = {
        "kind": cluster,
        "kubeconfig": kubeconfig,
        "context": context_name,
        "advertise": advertise,
        "registry": registry,
    }
    where = {name: value for name, value in flags.items() if value}
    if where and cluster != "kubernetes" and set(where) != {"kind"}:
        raise click.UsageError("--kubeconfig, --context, --advertise and --registry belong to --cluster kubernetes")
    if cluster == "kubernetes" and not advertise:
        raise click.UsageError("--cluster kubernetes needs --advertise HOST: how do pods reach this machine?")
    with translated():
        answer: dict[str, Any] = platform().up(place, gpus=gpus, port=port, cluster=where, report=note)
    if answer["ignored"]:
        restart = f"`{command_in('down --keep-jobs', place)}`, then `{command_in('up', place)}` with them"
        warn(f"the platform runs already, without {', '.join(answer['ignored'])}; to apply: {restart}")
    if answer["unknown"]:
        warn(f"no settings, and without effect: {', '.join(answer['unknown'])}; docs/settings.md has all settings")
    try:
        with locked_config() as config:
            name = profile_name(config, answer["home"], wanted=call.profile, named=is_named(place))
            current = config.current in {"", name} or config.current not in config.profiles
            own = Profile(name, answer["url"], answer["key"], answer["home"])
            write_config(config.with_profile(own, current=current))
        profile = f"'{name}' in {config_file()}" + (
            "" if current else f"; '{config.current}' stays current: `weft profile {name}` changes that"
        )
    except OSError as refused:  # HOME is / or cannot be written; the platform runs all the same
        profile, name, current = "", "", False
        warn(
            f"no profile was written: {config_file()}: {refused.strerror}; set XDG_CONFIG_HOME to a folder of yours "
            f"and repeat `{command_in('up', place)}`, or give other commands WEFT_URL and WEFT_KEY"
        )

    def people(_wide: bool) -> str:
        following = [
            "weft init",
            command_for("train", name, current=current or not name),
            command_in("status", place),
            command_in("down", place),
        ]
        return details(
            [
                ("address", answer["url"]),
                ("key", answer["key"]),
                ("folder", answer["home"]),
                ("profile", profile),
                ("next", ", ".join(following)),
            ]
        )

    emit(call, {**answer, "profile": name}, people=people, names=[answer["url"]])
    failed = [check for check in answer["probe"] if check["problem"]]
    for check in failed:
        warn(f"no job can run: {check['name']}: {check['problem']}; {check['fix']}")
    if failed:
        raise Stop(1)


@command("down")
@click.option("--home", metavar="DIR", help=HOME_HELP)
@click.option("--purge", is_flag=True, help="Remove the folder, too: every job, result and key.")
@click.option("--now", is_flag=True, help="Do not halt running jobs: end them at once. They lose what is not stored.")
@click.option("--keep-jobs", is_flag=True, help="Leave running jobs alone; the next `weft up` takes them up.")
@YES
def down_command(call: Call, home: str | None, purge: bool, now: bool, keep_jobs: bool, yes: bool) -> None:
    """Stop the platform on this machine.

    Jobs that run are halted: they have their `grace` to write a checkpoint, and the next `weft up` queues them again.
    Asks first if jobs run, and with --purge.
    """
    from weft._cli.homes import chosen_home, command_in, elsewhere
    from weft._cli.local import platform, translated
    from weft._cli.notices import note
    from weft._cli.output import emit
    from weft._profile import locked_config, write_config

    if keep_jobs and (now or purge):
        raise click.UsageError("--keep-jobs leaves jobs running; it excludes --now and --purge")
    place = chosen_home(call, home)
    with translated():
        if not (yes or keep_jobs):
            losses: list[str] = platform().down_losses(place, purge=purge, now=now)
            if losses:
                confirm("stop the platform" + (" and remove its folder" if purge else ""), losses, yes=False)
        answer: dict[str, Any] = platform().down(place, purge=purge, now=now, keep_jobs=keep_jobs, report=note)
    if purge:
        with locked_config() as config:
            if (without := config.without_home(answer["home"])) != config:
                write_config(without)
    outcome = "stopped" if answer.get("was_running", True) else "nothing was running"
    if not answer.get("was_running", True) and (other := elsewhere("down", place, answer["home"])):
        note(other)
    going_on = answer.get("unfinished") or 0
    if going_on and not purge:
        unfinished = f"{going_on} unfinished job{'s go' if going_on > 1 else ' goes'}"
        note(f"{unfinished} on after the next `{command_in('up', place)}`")
    if purge:
        outcome += "; its folder is removed" if answer["purged"] else "; there is no such folder"
    emit(
        call, answer, people=lambda _wide: f"{outcome} ({answer.get('home', '')})", names=[str(answer.get("home", ""))]
    )


def _isolation(answer: dict[str, Any]) -> str:
    """How learners are kept apart, what the kernel enforces, and why it is not more."""
    isolation = answer.get("isolation") or {}
    if not isolation:
        return ""
    enforced = f"; {', '.join(isolation['enforced'])} enforced" if isolation["enforced"] else ""
    return f"isolation {isolation['name']}{enforced}" + (f" ({isolation['why']})" if isolation["why"] else "")


def _caches(answer: dict[str, Any]) -> str:
    """What environments, packages and data take of the disk; empty before the node agent has measured it."""
    from weft._cli.text import size

    caches = answer.get("caches") or {}
    if not caches:
        return ""
    kinds = ", ".join(f"{kind} {size(count)}" for kind, count in caches["bytes"].items())
    return f"{size(sum(caches['bytes'].values()))} of {size(caches['max_bytes'])} ({kinds})"


def _quarantine(answer: dict[str, Any], *, wide: bool) -> str:
    """What the services cannot read and left alone; empty if there is none."""
    from weft._cli.output import Column, table

    held = (answer.get("quarantine") or {}).get("held") or []
    if not held:
        return ""
    columns = [
        Column("KIND"),
        Column("WHERE", flexible=True),
        Column("SINCE", spare=1),
        Column("WHY", flexible=True),
    ]
    rows = [[entry["kind"], entry["place"], entry["since"][:19], entry["reason"]] for entry in held]
    return f"\n\nin quarantine: {len(held)} (`weft doctor` says what to do)\n{table(columns, rows, wide=wide)}"


@command("status")
@click.option("--home", metavar="DIR", help=HOME_HELP)
def status_command(call: Call, home: str | None) -> None:
    """Show what runs on this machine."""
    from weft._cli.homes import chosen_home, command_in, elsewhere
    from weft._cli.local import platform, translated
    from weft._cli.notices import note
    from weft._cli.output import Column, details, emit, table

    place = chosen_home(call, home)
    with translated():
        answer: dict[str, Any] = platform().status(place)

    if not answer["running"] and (other := elsewhere("status", place, answer["home"])):
        note(other)

    def people(wide: bool) -> str:
        where = details(
            [
                ("address", answer.get("url")),
                ("gRPC", answer.get("grpc")),
                ("folder", answer.get("home")),
                ("learners", _isolation(answer)),
                ("caches", _caches(answer)),
            ]
        )
        if not answer["running"]:
            return f"not running; `{command_in('up', place)}` starts it\n{where}"
        columns = [
            Column("SERVICE"),
            Column("STATE"),
            Column("PID", right=True, spare=1),
            Column("RESTARTS", right=True, spare=2),
            Column("ADDRESS", spare=3),
            Column("WHY", flexible=True),
        ]
        rows = [
            [s["name"], s["state"], s["pid"] or "-", s["restarts"], _short(s.get("address") or "-"), s.get("why") or ""]
            for s in answer["services"]
        ]
        return f"{where}\n\n{table(columns, rows, wide=wide)}{_quarantine(answer, wide=wide)}"

    emit(call, answer, people=people, names=(s["name"] for s in answer["services"]))
    if not answer["running"]:
        raise Stop(1)


@command("doctor")
@click.option("--home", metavar="DIR", help=HOME_HELP)
def doctor_command(call: Call, home: str | None) -> None:
    """Find what is missing or unsafe here, and how to repair it."""
    from weft._cli.homes import chosen_home
    from weft._cli.local import platform, translated
    from weft._cli.output import emit

    with translated():
        checks: list[dict[str, Any]] = platform().doctor(chosen_home(call, home))

    def people(_wide: bool) -> str:
        lines: list[str] = []
        for check in checks:
            warned = check["ok"] and check["detail"].startswith("warning: ")
            mark = click.style("warn", fg="yellow") if warned else click.style("ok  ", fg="green")
            mark = mark if check["ok"] else click.style("BAD ", fg="red")
            lines.append(_marked(mark, f"{check['check']}: {check['detail'].removeprefix('warning: ')}", indent=5))
            if not check["ok"] and check.get("fix"):
                lines.append(_marked("", f"-> {check['fix']}", indent=5))
        return "\n".join(lines)

    emit(call, {"checks": checks}, people=people, names=(c["check"] for c in checks if not c["ok"]))
    if not all(check["ok"] for check in checks):
        raise Stop(1)


@command("conformance")
@click.option("--home", metavar="DIR", help=HOME_HELP)
@click.option("--skip", metavar="CHECK", multiple=True, help="Leave a check out; repeatable.")
@click.option("--within", default=600.0, show_default=True, metavar="SECONDS", help="Time limit of each of its jobs.")
@click.option("--step-down", is_flag=True, help="Also ask MongoDB's primary to step down; jobs wait some seconds.")
def conformance_command(call: Call, home: str | None, skip: tuple[str, ...], within: float, step_down: bool) -> None:
    """Try an installation of containers or pods: what passes, what fails, what to do.

    Run it where the lcm runs: `docker compose exec lcm weft conformance`, or
    `kubectl exec deployment/weft-lcm --container lcm -- weft conformance`.
    """
    from weft._cli.homes import chosen_home
    from weft._cli.local import platform, translated
    from weft._cli.output import emit

    def report(name: str) -> None:
        click.echo(f"trying: {name}", err=True)

    with translated():
        checks: list[dict[str, str]] = platform().conformance(
            chosen_home(call, home), skip=skip, within_s=within, step_down=step_down, report=report
        )

    def people(_wide: bool) -> str:
        colors = {"pass": "green", "fail": "red"}
        lines: list[str] = []
        for check in checks:
            mark = click.style(check["verdict"].ljust(14), fg=colors.get(check["verdict"]))
            lines.append(_marked(mark, f"{check['check']}: {check['detail']}", indent=15))
            if check["fix"]:
                lines.append(_marked("", f"-> {check['fix']}", indent=15))
        return "\n".join(lines)

    failed = [check["check"] for check in checks if check["verdict"] == "fail"]
    emit(call, {"checks": checks}, people=people, names=iter(failed))
    if failed:
        raise Stop(1)


def _marked(mark: str, text: str, *, indent: int) -> str:
    """A styled mark, and text behind it that is wrapped to the terminal. ``indent``: where the text begins."""
    from weft._cli.output import width
    from weft._cli.text import plain, wrapped

    space = " " * indent
    lines = wrapped(f"{space}{plain(text)}", width(), indent=space)
    return f"{mark} {lines[indent:]}" if mark else lines


def _short(address: str) -> str:
    """The address for a table: the paths of sockets are long, and all lie in one folder (-o json has them)."""
    return "socket" if address.startswith("unix:") else address
