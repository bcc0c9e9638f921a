"""The command `weft`: which commands there are, where they are found, and how a failure is shown.

`weft --help` has 150 ms, so this module imports click and nothing else, and no command's module before it is called:
what the help says of each stands in the table below (a test keeps it equal to what the commands say of themselves).
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final, TextIO

import click

from weft._cli.call import Call, shared_options

# Section -> command -> (module in weft._cli.commands, what it does).
COMMANDS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Train": {
        "init": ("init", "Write a job to start from: weft.yaml and train.py."),
        "train": ("train", "Submit a job: plan, upload, queue, follow."),
        "clone": ("compare", "Submit a job again, with the same code and some fields changed."),
        "list": ("jobs", "List jobs, newest first."),
        "show": ("jobs", "Show one job: state, reason, progress, metrics, use of CPU and memory."),
        "logs": ("logs", "Print or follow what the learners print."),
        "watch": ("watch", "Watch a job until it is at rest: status, progress, curve, output."),
        "metrics": ("metrics", "Show metrics and their curves, of one job or several."),
        "diff": ("compare", "Show how two jobs differ: spec, files of the code, environment."),
        "events": ("jobs", "Show how a job's state changed, and why."),
        "explain": ("jobs", "Explain why a job is in its state, and where the time of its start-up went."),
        "wait": ("wait", "Wait until jobs are at rest; the exit code says how they ended."),
        "download": ("download", "Fetch results, logs, checkpoints or code of a job."),
    },
    "Steer": {
        "halt": ("control", "Let jobs checkpoint and stop; they can be resumed."),
        "resume": ("control", "Queue halted jobs again, from their checkpoints."),
        "kill": ("control", "End jobs at once; nothing more is stored."),
        "delete": ("control", "Remove jobs that have ended, with their results."),
    },
    "This machine": {
        "up": ("platform", "Start the platform on this machine."),
        "down": ("platform", "Stop the platform on this machine."),
        "status": ("platform", "Show what runs on this machine."),
        "manifests": (
            "manifests",
            "Print what a Kubernetes cluster needs: accounts, rights, admission policies.",
        ),
        "dashboard": ("dashboard", "Open the dashboard in a browser, signed in."),
        "doctor": ("platform", "Find what is missing or unsafe here, and how to repair it."),
        "conformance": ("platform", "Try an installation of containers or pods: what passes, what fails, what to do."),
        "backup": ("backup", "Write all of a platform into one file, while it runs."),
        "restore": ("backup", "Bring a platform back from a backup, on an empty one."),
        "master-key": ("backup", "Show or change the master key, which opens the platform's secrets."),
    },
    "Account": {
        "login": ("account", "Sign in to a platform and make it current."),
        "logout": ("account", "Forget a platform and its key."),
        "whoami": ("account", "Show the user of the key."),
        "user": ("keys", "List, add or remove users."),
        "key": ("keys", "List, create or revoke API keys."),
        "secret": ("secrets", "List, set or delete the tenant's secrets."),
        "storage": ("account", "Show what the tenant has stored."),
        "profile": ("account", "List the platforms you know, or switch to one."),
    },
    "More": {
        "cluster": ("cluster", "Show the nodes, what is free, and which jobs use them."),
        "queue": ("cluster", "Show the jobs that wait, in order, and why."),
        "usage": ("usage", "Show GPU-hours and CPU-hours by tenant and user."),
        "frameworks": ("offers", "List the environments that a job may name."),
        "sizes": ("offers", "List the T-shirt sizes of learners."),
        "version": ("version", "Show the versions of this command and of the platform."),
        "completion": ("version", "Print a script that completes commands in your shell."),
    },
}
# FfDL's users type `list` and `train`; others come from batch systems and containers.
ALIASES: Final = {"ps": "list", "ls": "list", "submit": "train"}
_HOMES: Final = {name: entry for section in COMMANDS.values() for name, entry in section.items()}


@contextmanager
def _closed_pipe_ends() -> Generator[None, None, None]:
    """`weft logs | head`: the reader has read enough. click would exit with 1."""
    try:
        yield
    except BrokenPipeError:
        raise click.exceptions.Exit(0) from None


class LazyGroup(click.Group):
    """Commands by name, imported on first use."""

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        with _closed_pipe_ends():  # of the help
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with _closed_pipe_ends():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_HOMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        name = ALIASES.get(cmd_name, cmd_name)
        if name not in _HOMES:
            return None
        module = import_module(f"weft._cli.commands.{_HOMES[name][0]}")
        command: click.Command = getattr(module, f"{name.replace('-', '_')}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            import difflib

            close = difflib.get_close_matches(name, [*_HOMES, *ALIASES], n=1, cutoff=0.65)
            hint = f"did you mean '{close[0]}'?" if close else "`weft --help` lists what there is."
            raise click.UsageError(f"there is no command '{name}'; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        for title, section in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name, summary) for name, (_module, summary) in section.items()], col_max=12)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="`weft COMMAND --help` says more. Exit codes: 0 ok, 1 error, 2 usage, 3 not allowed, 4 not found, "
    "5 conflict, 6 cannot be placed, 100 job failed, 101 not finished, 103 job killed or halted.",
)
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=lambda c, _p, v: _version(c, v))
@shared_options
def weft() -> None:
    """Train deep-learning models on a shared platform."""


def _version(ctx: click.Context, given: bool) -> None:
    if given:
        from weft._version import SDK_VERSION

        click.echo(f"weft {SDK_VERSION}")
        ctx.exit()


def run(arguments: list[str] | None = None) -> int:
    """Run one command; its exit code. Whatever goes wrong is one red line, and a trace only with --debug."""
    call = Call()
    try:
        code = weft.main(args=arguments, prog_name="weft", standalone_mode=False, obj=call)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        _discard(sys.stdout)
        return 0
    # The edge of the program: everything has to become a line and an exit code here.
    except (Exception, KeyboardInterrupt) as failure:  # noqa: BLE001
        from weft._cli.failure import show

        form = _form(call, sys.argv[1:] if arguments is None else arguments)
        try:
            return show(failure, debug=call.debug, form=form)
        except BrokenPipeError:  # `weft list 2>&1 | head`: the exit code is that of the failure all the same
            _discard(sys.stdout)
            _discard(sys.stderr)
            return show(failure, debug=call.debug, form=form)


def _discard(stream: TextIO) -> None:
    """Write no more to a closed pipe. Python would report it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _form(call: Call, arguments: list[str]) -> str:
    """The form of the output, also where the command line could not be read to its end."""
    if call.output != "table":
        return call.output
    for form in ("json", "yaml"):
        near = any(pair in {("-o", form), ("--output", form)} for pair in itertools.pairwise(arguments))
        if near or {f"-o{form}", f"--output={form}", f"--{form}"} & set(arguments):
            return form
    return call.output
