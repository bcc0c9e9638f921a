"""Commands on a terminal, as a person sees and uses them, against the running platform."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.testbed.cli import SPEC, WEFT_COMMAND, Weft, in_terminal, let_go, variables
from tests.testbed.platform import Platform
from tests.testbed.screen import Screen
from tests.waiting import HANG_S
from weft import Client


def submitted(weft: Weft, code: Path, program: str) -> str:
    """A job of one learner that runs this program."""
    (code / "train.py").write_text(program)
    return weft("train", code, "--set", "learners=1", "-o", "name").out.strip()


def test_train_on_a_terminal_draws_the_curve_without_prompting(weft_up: Platform, code: Path, tmp_path: Path) -> None:
    out, code_ = in_terminal(
        [sys.executable, "-c", "from weft._cli import program; program()", "train", str(code)],
        {**variables(weft_up), "XDG_CONFIG_HOME": str(tmp_path)},
    )
    assert code_ == 0
    assert "COMPLETED" in out
    assert "┤" in out
    assert "weft download" in out
    assert "\x1b[2Jhello" not in out


@pytest.mark.parametrize("weft_up", ["embedded"], indirect=True)
def test_clone_follows_as_train_does_on_a_terminal_and_when_told_to(weft: Weft, weft_up: Platform, code: Path) -> None:
    job = weft("train", code, "--set", "env.CODE='3'", "-o", "name").out.strip()
    drawn, exit_code = in_terminal([WEFT_COMMAND, "clone", job, "--set", "env.CODE='0'"], variables(weft_up))
    assert (exit_code, "COMPLETED" in drawn, "┤" in drawn) == (0, True, True)
    drawn, exit_code = in_terminal([WEFT_COMMAND, "clone", job, "--no-follow"], variables(weft_up))
    assert (exit_code, "weft logs -f" in drawn, "FAILED" in drawn) == (0, True, False)
    assert weft("clone", job).code == 0
    followed = weft("clone", job, "--follow")
    assert (followed.code, "cli-life FAILED" in followed.out) == (100, True)
    assert weft("clone", job, "--follow", "-o", "json").json["status"] == "FAILED"


BAR = """\
import os, sys, time
for percent in range(100):
    print(f"\\rtraining {percent:3}%", end="", flush=True)
    while percent == 30 and not os.path.exists(os.path.join(os.environ["JOB_STATE_DIR"], "go")):
        time.sleep(0.05)
"""


@pytest.mark.parametrize("weft_up", ["embedded"], indirect=True)
def test_progress_bar_is_shown_live_and_stored_as_it_was_last(weft: Weft, weft_up: Platform, code: Path) -> None:
    job = submitted(weft, code, BAR)
    environment = variables(weft_up)
    with Screen([WEFT_COMMAND, "logs", "-f", job], environment) as screen, Client(weft_up.url, weft_up.key) as client:
        screen.wait("training  30%")
        assert [bar["text"] for bar in client.jobs.progress(job)["bars"]] == ["training  30%"]
        let_go(weft_up, job)
        assert screen.end() == 0
        assert weft("logs", job).out == "training  99%\n"
        assert client.jobs.progress(job)["bars"] == []


HELD = """\
import os, time
import weft
for step in range(1, 21):
    weft.report(step=step, loss=1 / step)
print("held " + "x" * 60, flush=True)
while not os.path.exists(os.path.join(os.environ["JOB_STATE_DIR"], "go")):
    time.sleep(0.05)
"""


@pytest.mark.parametrize("weft_up", ["embedded"], indirect=True)
def test_live_view_fits_a_terminal_that_is_resized(weft: Weft, weft_up: Platform, code: Path) -> None:
    job = submitted(weft, code, HELD)
    environment = variables(weft_up)
    with Screen([WEFT_COMMAND, "watch", job], environment, columns=100) as screen:
        screen.wait("held " + "x" * 60)
        screen.wait("loss 0.05")
        for times, columns in enumerate((50, 120), 1):
            screen.resize(columns)
            frame = screen.wait_cleared(times, "PROCESSING")
            # The output is printed again above the curve, and nothing is wider than the terminal.
            assert "held" in frame
            assert max(len(line) for line in frame.splitlines()) <= columns, frame
        let_go(weft_up, job)
        assert screen.end() == 0


@pytest.mark.parametrize("weft_up", ["embedded"], indirect=True)
def test_watch_draws_its_title_once_after_ctrl_c_on_a_narrow_terminal(
    weft: Weft, weft_up: Platform, code: Path
) -> None:
    """The terminal drew ^C behind a full status line, and so on the next one: the view above it stayed."""
    more = HELD.replace("loss=1 / step", "loss=1 / step, perplexity=12345, accuracy=0.12345")
    job = submitted(weft, code, more)
    with Screen([WEFT_COMMAND, "watch", job], variables(weft_up), columns=50) as screen:
        screen.wait("step 20")
        screen.wait("…")
        screen.type("\x03")
        screen.wait("^C")
        screen.process.send_signal(signal.SIGINT)  # the terminal sends none: it is no controlling one
        assert screen.end() == 130
        lines = [part for line in screen.text.split("\n") for part in line.split("\r")]
        drawn = [line for line in lines if "PROCESSING" in line]
        assert any(line.endswith("^C") for line in drawn), drawn
        assert max(map(len, drawn)) < 50, drawn
        end = screen.text.partition("no longer following")[2]
        assert max(map(len, end.split("\n"))) <= 50, end
        assert f"  weft watch {job}\n" in end
    let_go(weft_up, job)


def test_kill_and_delete_of_several_jobs_ask_first(weft: Weft, weft_up: Platform, code: Path) -> None:
    (code / "weft.yaml").write_text(SPEC + "env: {SLEEP: '600'}\n")
    jobs = [weft("train", code, "-o", "name").out.strip() for _ in range(2)]
    environment = variables(weft_up)
    with Client(weft_up.url, weft_up.key) as client:
        for action in (["kill"], ["delete", "--kill"]):
            refused = weft(*action, *jobs)
            assert (refused.code, "give --yes" in refused.err) == (2, True)
            drawn, exit_code = in_terminal([WEFT_COMMAND, *action, *jobs], environment, typed="n\n")
            assert (exit_code, all(job in drawn for job in jobs), "cli-life" in drawn) == (130, True, True)
            assert "nothing was changed" in drawn
        assert all(client.jobs.get(job).document["desired"] == "run" for job in jobs)
        assert in_terminal([WEFT_COMMAND, "kill", *jobs], environment, typed="y\n")[1] == 0
        assert [client.jobs.get(job).wait(HANG_S).status for job in jobs] == ["KILLED", "KILLED"]
        runs = weft("train", code, "-o", "name").out.strip()
        # The question was about two jobs, and one was deleted.
        refused = weft("delete", jobs[0], runs)
        assert "to delete 1 job, with its results" in refused.err
        assert f"left out: job {runs} still" in refused.err
        assert f"`weft delete --kill {runs}`" in refused.err
        assert weft("delete", runs, "--kill", "--yes").code == 0
    assert weft("delete", "--kill", jobs[0]).code == 2
    assert "there is no rank 5: this job has ranks 0 to 1" in weft("logs", jobs[0], "--rank", "5").err
    assert weft("delete", jobs[0]).code == 0
    assert weft("delete", "--kill", jobs[1], "--yes").code == 0
