"""What people do in the dashboard with real jobs: watch, find, halt, search, compare, submit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import apsw
import numpy as np
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from services.core.runtime.processes import ProcessIdentity
from tests.browser.learners import state_folder
from tests.testbed.browser import Visit, sign_in, visit
from tests.testbed.platform import Platform
from tests.waiting import HANG_S, eventually
from weft import Client, Job

Open = Callable[..., Visit]
Submit = Callable[..., Job]
Completed = Callable[[str], str]
expect.set_options(timeout=HANG_S * 1000)
STEPS = """echo "state=$JOB_STATE_DIR"
for step in 1 2 3; do
  until [ -e "$JOB_STATE_DIR/go-$step" ]; do sleep 0.05; done
  echo "{\\"step\\": $step, \\"loss\\": 0.$step}"
done"""
UNTIL_END = 'trap "exit 0" TERM; echo up; until [ -e "$JOB_STATE_DIR/end" ]; do sleep 0.05; done'
HIDDEN = """
Object.defineProperty(document, "hidden", {get: () => !window.__visible});
const parse = JSON.parse;
JSON.parse = (...parameters) => {
  const value = parse(...parameters);
  window.__points = (window.__points ?? 0) + (value?.points?.length ?? 0);
  return value;
};"""
"""The page is taken for hidden until ``__visible`` is true. It counts the points that the live stream has brought."""


def status(page: Page, name: str) -> None:
    """Waits until the job on the page has the status."""
    expect(page.locator(".strip .status")).to_have_text(name)


def test_signing_in_needs_the_right_key_and_signing_out_ends_the_session(browser: Browser, weft_up: Platform) -> None:
    with visit(browser, weft_up.url) as visited:
        page = visited.open("/ui/queue")
        page.get_by_label("API key").fill("weft_k" + "0" * 22 + "_" + "0" * 64)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("key")
        page.get_by_label("API key").fill(weft_up.key)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="Queue")).to_be_visible()  # the address that was opened first
        assert "weft_" not in page.evaluate("document.cookie")
        assert weft_up.key not in page.evaluate(
            "JSON.stringify([location.href, {...localStorage}, {...sessionStorage}])"
        )
        page.get_by_role("button", name="Account and settings").click()
        page.get_by_role("menuitem", name="Sign out").click()
        expect(page.get_by_label("API key")).to_be_visible()
        page.reload()
        expect(page.get_by_label("API key")).to_be_visible()


def test_a_one_time_code_signs_in_and_leaves_the_address(browser: Browser, weft_up: Platform) -> None:
    made = weft_up.request("POST", "/v1/session/codes")
    code = made.raise_for_status().json()["code"]
    with visit(browser, weft_up.url) as visited:
        page = visited.open(f"/ui/signin#code={code}")
        expect(page.get_by_role("navigation")).to_be_visible()
        assert code not in page.url
    with visit(browser, weft_up.url) as visited:
        page = visited.open(f"/ui/signin#code={code}")
        expect(page.get_by_role("alert")).to_contain_text("code")


def test_a_job_is_watched_until_it_completes_while_its_curve_grows(open_visit: Open, submit: Submit) -> None:
    job = submit(STEPS, name="watched")
    page = open_visit().open(f"/ui/jobs/{job.id}")
    status(page, "processing")
    folder = state_folder(job)
    page.get_by_role("tab", name="Learners").click()
    expect(page.get_by_role("row", name="worker-0")).to_contain_text(" CPU")
    page.get_by_role("tab", name="Curves").click()
    for step in (1, 2, 3):
        (folder / f"go-{step}").touch()
        if step > 1:
            expect(page.locator(".chart .legend")).to_contain_text(f"max 0.{step}")
        expect(page.locator(".chart .legend-value")).to_have_text(f"0.{step}")
    status(page, "completed")
    expect(page.locator(".phases")).to_contain_text("Training")
    page.locator(".start-up summary").click()
    for label in ("In the queue", "Placed on nodes", "Learners launched", "First step"):
        expect(page.locator(".start-up-steps")).to_contain_text(label)
    page.get_by_role("tab", name="Events").click()
    expect(page.locator(".events tbody tr").first).to_contain_text("completed")


def test_the_place_in_the_queue_changes_while_a_job_waits(open_visit: Open, submit: Submit) -> None:
    """The place stayed as it was when the page was opened: only other jobs change it."""
    wide = {"cpus": 3, "memory": "64MiB"}
    running, first, second, third = (submit(UNTIL_END, name="waits", resources=wide) for _ in range(4))
    page = open_visit().open(f"/ui/jobs/{third.id}")
    place = page.locator(".place")
    expect(place).to_have_text("Place 3 in the queue")
    first.kill()
    expect(place).to_have_text("Place 2 in the queue")
    second.kill()
    expect(place).to_have_text("Place 1 in the queue")
    third.kill()
    status(page, "killed")
    expect(place).to_have_count(0)
    running.kill()


def test_a_page_that_was_hidden_for_long_reads_its_curves_again(open_visit: Open, submit: Submit) -> None:
    """It kept all points of that time, and drew them at once when somebody came back."""
    points = """for s in $(seq 1 12000); do echo '{"step": '$s', "loss": '$s'}'; done"""
    job = submit(f"{STEPS}; {points}", name="hidden")
    folder = state_folder(job)
    visited = open_visit()
    visited.context.add_init_script(HIDDEN)
    page = visited.open(f"/ui/jobs/{job.id}")
    expect(page.locator(".connection.live")).to_be_visible()
    for step in (1, 2, 3):
        (folder / f"go-{step}").touch()
    eventually(lambda: page.evaluate("window.__points >= 12000"))
    with page.expect_request(re.compile(r"/metrics\?series=true")):
        page.evaluate("window.__visible = true")
    expect(page.locator(".chart .legend")).to_contain_text("max 12 000")
    expect(page.locator(".chart .legend-value")).to_have_text("12 000")
    status(page, "completed")


def test_phases_are_whole_although_an_answer_arrives_after_newer_events(open_visit: Open, submit: Submit) -> None:
    """The stream brought events while the answer was on its way: they were lost until the page was loaded anew."""
    job = submit(STEPS, name="late-answer")
    folder = state_folder(job)
    visited = open_visit()
    held: list[Route] = []
    visited.page.route("**/v1/jobs/*/history*", lambda route: held.append(route))  # noqa: PLW0108 - it is marked
    with visited.page.expect_request("**/v1/jobs/*/history*"):
        page = visited.open(f"/ui/jobs/{job.id}")
    status(page, "processing")
    expect(page.locator(".connection.live")).to_be_visible()
    answers = [(route, route.fetch()) for route in held]
    assert answers
    for step in (1, 2, 3):
        (folder / f"go-{step}").touch()
    status(page, "completed")
    expect(page.locator(".phases")).to_contain_text("Storing results")
    for route, answer in answers:
        route.fulfill(response=answer)
    page.unroute("**/v1/jobs/*/history*")
    for route in held[len(answers) :]:  # of a stream that began later than it was shown
        route.continue_()
    expect(page.locator(".phases")).to_contain_text("Training")
    expect(page.locator(".phases")).to_contain_text("Storing results")


def test_a_job_is_halted_resumed_and_killed(open_visit: Open, submit: Submit) -> None:
    job = submit(UNTIL_END, name="halted")
    visited = open_visit()
    page = visited.open(f"/ui/jobs/{job.id}?tab=logs")
    expect(page.locator(".log-text").first).to_have_text("up")
    page.get_by_role("button", name="Halt").click()
    status(page, "halted")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".log-text", has_text=re.compile("^up$"))).to_have_count(2)  # of both attempts
    status(page, "processing")
    page.get_by_label("Attempt").select_option("Attempt 2")
    expect(page.locator(".log-text", has_text=re.compile("^up$"))).to_have_count(1)
    page.get_by_role("button", name="Kill").click()
    dialog = page.get_by_role("alertdialog")
    dialog.get_by_role("button", name="Cancel").click()
    assert job.refresh().status == "PROCESSING"
    page.get_by_role("button", name="Kill").click()
    dialog.get_by_role("button", name="Kill").click()
    status(page, "killed")
    assert job.refresh().status == "KILLED"


def test_a_failed_job_is_found_by_a_filter_and_its_first_cause_is_read(
    open_visit: Open, finished: dict[str, str]
) -> None:
    page = open_visit().open("/ui/jobs")
    expect(page.locator(".tr.data").first).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("status=FAILED and name~bro and exit_code=3")
    page.keyboard.press("Enter")
    row = page.locator(".tr.data")
    expect(row).to_have_count(1)
    row.get_by_role("link", name="broken").click()
    expect(page.locator(".strip")).to_contain_text("worker-0 exited with code 3")
    expect(page.locator(".last-words")).to_contain_text("ValueError: label 11 is out of range")
    assert page.url.endswith(finished["failed"])


def test_a_wrong_filter_says_what_is_wrong_and_what_was_meant(open_visit: Open, finished: dict[str, str]) -> None:
    assert finished
    page = open_visit().open("/ui/jobs")
    field = page.get_by_label("Filter jobs")
    field.fill("statsu=FAILED")
    field.press("Enter")
    expect(page.locator("#filter-error")).to_contain_text("status")
    expect(field).to_have_attribute("aria-invalid", "true")
    page.get_by_role("button", name="All", exact=True).click()
    expect(page.locator(".tr.data").first).to_be_visible()


def test_a_list_that_nothing_changes_is_not_drawn_again(open_visit: Open, finished: dict[str, str]) -> None:
    assert finished
    page = open_visit().open("/ui/jobs?q=status%3DCOMPLETED")
    expect(page.locator(".tr.data").first).to_be_visible()
    expect(page.locator(".connection.live")).to_be_visible()
    frames = """() => new Promise((resolve) => {
      let changes = 0;
      const observer = new MutationObserver((records) => {
        changes += records.filter((record) => !record.target.parentElement?.closest("time")).length;
      });
      const all = {subtree: true, childList: true, attributes: true, characterData: true};
      observer.observe(document.querySelector(".table"), all);
      let frames = 0;
      const next = () => {
        frames += 1;
        if (frames < 60) requestAnimationFrame(next);
        else { observer.disconnect(); resolve(changes); }
      };
      requestAnimationFrame(next);
    })"""
    eventually(lambda: page.evaluate(frames) == 0)  # once the last answer that was still on its way has come


def test_jobs_are_chosen_by_keyboard_and_compared(open_visit: Open, finished: dict[str, str]) -> None:
    page = open_visit().open("/ui/jobs?q=name%3Dseeds")
    expect(page.locator(".tr.data")).to_have_count(5)
    for key in ("j", "x", "j", "j", "x", "c"):
        page.keyboard.press(key)
    expect(page.get_by_role("heading", name="Compare 2 jobs")).to_be_visible()
    assert page.url.endswith(f"{finished['seed-5']}%2C{finished['seed-3']}")


def test_enter_presses_the_focused_button_and_link_of_the_list(open_visit: Open, finished: dict[str, str]) -> None:
    """It opened the job that j and k had chosen, or did nothing."""
    page = open_visit().open("/ui/jobs?q=name%3Dseeds")
    expect(page.locator(".tr.data")).to_have_count(5)
    for key in ("j", "x"):
        page.keyboard.press(key)
    page.get_by_role("button", name="Delete").press("Enter")
    page.get_by_role("alertdialog").get_by_role("button", name="Cancel").press("Enter")
    page.get_by_role("button", name="Submitted").press("Enter")
    expect(page.get_by_role("columnheader", name="Submitted")).to_have_attribute("aria-sort", "ascending")
    page.locator(".tr.data").nth(1).get_by_role("link").press("Enter")
    expect(page.get_by_role("heading", name="seeds")).to_be_visible()
    assert page.url.endswith(finished["seed-2"])


def test_mean_and_deviation_of_five_seeds_are_exact(open_visit: Open, finished: dict[str, str]) -> None:
    seeds = range(1, 6)
    page = open_visit().open(
        f"/ui/compare?jobs={','.join(finished[f'seed-{seed}'] for seed in seeds)}&group=except:env.SEED"
    )
    cells = page.locator("[data-exact]")
    expect(cells).to_have_count(4)
    last = [1 / (19 + seed) for seed in seeds]
    expected = (np.mean(last), np.std(last), np.min(last), np.max(last))
    shown = [float(cell.get_attribute("data-exact") or "nan") for cell in cells.all()]
    assert shown == pytest.approx(expected, rel=1e-12)
    expect(page.get_by_text("env.SEED", exact=True).locator("visible=true").first).to_be_visible()


def test_the_jobs_of_a_group_are_compared_with_one_click(open_visit: Open, finished: dict[str, str]) -> None:
    page = open_visit().open(f"/ui/jobs/{finished['seed-2']}")
    page.get_by_role("link", name="Compare group").click()
    expect(page.get_by_role("heading", name="Compare 5 jobs")).to_be_visible()
    expect(page.locator("[data-exact]").first).to_have_attribute(
        "data-exact", str(np.mean([1 / (19 + seed) for seed in range(1, 6)]))
    )
    page.get_by_role("link", name='tag="group=five"').click()
    expect(page.locator(".tr.data")).to_have_count(5)


def test_images_and_texts_of_a_job_are_shown_and_files_downloaded(open_visit: Open, finished: dict[str, str]) -> None:
    page = open_visit().open(f"/ui/jobs/{finished['good']}?tab=files")
    page.get_by_role("button", name="worker-0/plot.png").click()
    expect(page.locator(".preview img")).to_be_visible()
    eventually(lambda: page.evaluate("document.querySelector('.preview img').naturalWidth") == 1)
    page.get_by_role("button", name="worker-1/answer.txt").click()
    expect(page.locator(".preview pre")).to_have_text("42\n")
    with page.expect_download() as download:
        page.get_by_role("link", name="worker-1/answer.txt").click()
    assert download.value.path().read_text() == "42\n"


def test_a_line_is_searched_among_a_million_and_its_address_leads_back_to_it(
    open_visit: Open, completed: Completed
) -> None:
    page = open_visit().open(f"/ui/jobs/{completed('long')}?tab=logs")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    expect(page.locator(".log-text").last).to_have_text("line 1000000")
    assert page.locator(".log-row").count() < 200  # only what is visible exists
    page.keyboard.press("/")
    page.keyboard.type("line 12?345$")
    page.keyboard.press("Enter")
    expect(page.locator(".log-text")).to_have_text(["line 1345", "line 12345"])
    expect(page.locator(".log-foot")).to_contain_text("2 lines match")
    expect(page.locator(".log-panel [role=status]")).to_have_count(0)
    queries = [parse_qs(urlsplit(url).query) for url in requests]
    continued = [int(query["before"][0]) for query in queries if query.keys() >= {"search", "before"}]
    assert continued  # the time for a search is shorter than this one: the page went on by itself
    assert continued == sorted(continued, reverse=True)
    page.get_by_role("button", name="Line 12345", exact=True).click()
    page.get_by_role("button", name="Clear the search").click()
    expect(page.locator(".log-row.marked .log-text")).to_have_text("line 12345")
    page.reload()
    expect(page.locator(".log-row.marked .log-text")).to_have_text("line 12345")
    expect(page.locator(".log-row.marked")).to_be_in_viewport()


def test_the_log_is_merged_by_time_or_of_one_learner_and_its_colours_are_those_of_a_terminal(
    open_visit: Open, finished: dict[str, str], client: Client
) -> None:
    page = open_visit().open(f"/ui/jobs/{finished['good']}?tab=logs")
    expect(page.locator(".log-rank", has_text="worker-0").first).to_be_visible()
    expect(page.locator(".log-rank", has_text="worker-1").first).to_be_visible()
    stored = list(client.jobs.logs(finished["good"]))
    merged = sorted(stored, key=lambda line: (line.time, line.seq))
    page.get_by_label("Order").select_option("Merged by time")
    expect(page.locator(".log-foot")).to_contain_text(f"{len(stored)} lines, merged by time")
    expect(page.locator(".log-seq")).to_have_text([str(line.seq) for line in merged])
    assert [line.seq for line in client.jobs.logs(finished["good"], by_time=True)] == [line.seq for line in merged]
    page.reload()
    expect(page.locator(".log-seq").first).to_have_text(str(merged[0].seq))
    expect(page.locator(".log-text .a-2", has_text="green")).to_have_count(2)
    page.get_by_label("Learner", exact=True).select_option("worker-1")
    expect(page.locator(".log-rank", has_text="worker-0")).to_have_count(0)
    expect(page.locator(".log-text .a-2", has_text="green")).to_have_count(1)


def test_a_log_of_the_longest_lines_with_thousands_of_colours_is_read_scrolled_and_saved(
    open_visit: Open, completed: Completed, client: Client
) -> None:
    """Every line was thousands of elements, and the page requested what one answer could not hold without end."""
    job_id = completed("colours")
    visited = open_visit()
    requests: list[str] = []
    visited.page.on("request", lambda request: requests.append(request.url) if "/logs?" in request.url else None)
    page = visited.open(f"/ui/jobs/{job_id}?tab=logs")
    expect(page.locator(".log-text").last).to_contain_text("more characters")
    page.locator(".log").evaluate("(box) => { box.scrollTop = 0; }")
    expect(page.locator(".log-text").first).to_contain_text(re.compile("^0 xy"))
    page.locator(".log").evaluate("(box) => { box.scrollTop = 350 * 18; }")
    expect(page.get_by_role("button", name="Line 351", exact=True)).to_be_visible()
    expect(page.locator(".log-row > .faint")).to_have_count(0)
    assert page.evaluate("document.querySelectorAll('.log-text *').length") < 20_000
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == f"{job_id}.log"
    with download.value.path().open() as file:
        saved = [line.rstrip("\n").split(" ", 3)[3] for line in file]
    assert saved == [line.text for line in client.jobs.logs(job_id)]
    assert len(requests) == len(set(requests))


def test_a_job_is_submitted_from_yaml_after_its_wrong_field_was_marked(open_visit: Open, client: Client) -> None:
    page = open_visit().open("/ui/submit")
    editor = page.get_by_label("Spec of the job, YAML")
    editor.fill("name: typed\ncommand: echo typed\nresources:\n  cpus: 0.2\n  memroy: 64MB\n")
    expect(page.locator(".gutter .wrong")).to_have_text("5")
    expect(page.get_by_role("alert")).to_contain_text("memory")
    expect(page.get_by_role("button", name="Submit")).to_be_disabled()
    editor.fill("name: typed\ncommand: echo typed\nresources:\n  cpus: 0.2\n  memory: 64MB\n")
    expect(page.locator(".gutter .wrong")).to_have_count(0)
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="typed")).to_be_visible()
    status(page, "completed")
    assert re.search(r"/ui/jobs/(j\w+)", page.url)
    assert [job.name for job in client.jobs.list(name="typed")] == ["typed"]


def test_addresses_restore_screens_also_by_back_and_reload(open_visit: Open, finished: dict[str, str]) -> None:
    page = open_visit().open("/ui/jobs?q=name%3Dgood")
    page.locator(".tr.data").get_by_role("link", name="good").click()
    page.get_by_role("button", name="Time since start").click()
    page.get_by_label("Log scale").click()  # check() reads the box at once, and its state follows the address
    page.get_by_role("tab", name="Spec").click()
    page.reload()
    expect(page.get_by_role("tab", name="Spec")).to_have_attribute("data-state", "active")
    page.go_back()
    expect(page.get_by_label("Log scale")).to_be_checked()
    expect(page.get_by_role("button", name="Time since start")).to_have_attribute("aria-pressed", "true")
    page.go_back()
    expect(page.get_by_label("Filter jobs")).to_have_value("name=good")
    page.go_forward()
    expect(page.get_by_role("heading", name="good")).to_be_visible()
    assert finished["good"] in page.url


def test_two_controls_that_are_pressed_in_one_moment_both_count(open_visit: Open, finished: dict[str, str]) -> None:
    """On a busy machine the second one took the first one back: it changed the address of what was still drawn."""
    page = open_visit().open(f"/ui/jobs/{finished['good']}")
    tools = page.get_by_role("toolbar", name="Curves")
    tools.evaluate("(tools) => { for (const part of tools.querySelectorAll('button, [type=checkbox]')) part.click(); }")
    expect(page.get_by_role("button", name="Clock")).to_have_attribute("aria-pressed", "true")  # the last of its group
    expect(page.get_by_label("Log scale")).to_be_checked()


def test_a_second_browser_sees_a_change_by_itself(open_visit: Open, submit: Submit) -> None:
    first, second = open_visit().open("/ui/jobs"), open_visit().open("/ui/jobs")
    for page in (first, second):
        expect(page.locator(".connection.live")).to_be_visible()
    submit(UNTIL_END, name="seen-twice")
    for page in (first, second):
        expect(page.locator(".tr.data", has_text="seen-twice")).to_contain_text("processing")
    first.locator(".tr.data", has_text="seen-twice").get_by_role("checkbox").check()
    first.get_by_role("button", name="Halt").click()
    expect(second.locator(".tr.data", has_text="seen-twice")).to_contain_text("halted")


def test_metric_columns_of_a_live_list_follow_the_jobs(open_visit: Open, submit: Submit) -> None:
    """A job that was submitted while the list was open had no metrics, and those of the others stayed as they were."""
    page = open_visit().open("/ui/jobs?q=name%3Dlive-metrics&metrics=loss:max")
    expect(page.locator(".connection.live")).to_be_visible()
    folder = state_folder(submit(STEPS, name="live-metrics"))
    (folder / "go-1").touch()
    expect(page.locator(".td.c-metric")).to_have_text("0.1 @ 1")
    (folder / "go-2").touch()
    (folder / "go-3").touch()
    expect(page.locator(".tr.data")).to_contain_text("completed")
    expect(page.locator(".td.c-metric")).to_have_text("0.3 @ 3")


def test_a_live_list_with_a_filter_by_metric_shows_only_jobs_that_match(open_visit: Open, submit: Submit) -> None:
    """Each job that changed was put on the list, whatever its loss was."""
    page = open_visit().open("/ui/jobs?q=name%3Dlosses+and+metric.loss%3C0")
    expect(page.get_by_text("No job matches this filter")).to_be_visible()
    expect(page.locator(".connection.live")).to_be_visible()
    unmatched = submit(UNTIL_END, name="losses")
    eventually(lambda: unmatched.refresh().status == "PROCESSING")
    matched = submit("""echo '{"step": 1, "loss": -1}'""", name="losses")
    expect(page.locator(".tr.data", has_text="completed")).to_contain_text("-1 @ 1")
    expect(page.locator(".tr.data a")).to_have_attribute("href", re.compile(matched.id))  # the only one
    unmatched.kill()


def test_the_list_shows_a_small_curve_of_the_first_metric_read_for_all_rows_at_once(
    open_visit: Open, finished: dict[str, str]
) -> None:
    assert finished
    visited = open_visit()
    requests: list[str] = []
    visited.page.on("request", lambda request: requests.append(request.url) if "curve_points" in request.url else None)
    page = visited.open("/ui/jobs?q=name%3Dseeds")
    expect(page.locator(".tr.data")).to_have_count(5)
    expect(page.locator(".sparkline path")).to_have_count(5)
    drawn = [str(path.get_attribute("d")) for path in page.locator(".sparkline path").all()]
    assert all(path.count("L") == 19 for path in drawn)  # 20 points
    assert len(requests) == 1


def test_ran_for_sorts_a_halted_job_by_the_time_that_it_ran(open_visit: Open, submit: Submit) -> None:
    """It was sorted as if it still ran."""
    halted = submit(UNTIL_END, name="ran-for")
    eventually(lambda: halted.refresh().status == "PROCESSING")
    halted.halt()
    eventually(lambda: halted.refresh().status == "HALTED")
    running = submit(UNTIL_END, name="ran-for")
    eventually(lambda: running.refresh().status == "PROCESSING")
    page = open_visit().open("/ui/jobs?q=name%3Dran-for&sort=ran.desc")

    def longest() -> str:
        page.reload()
        expect(page.locator(".tr.data")).to_have_count(2)
        return page.locator(".tr.data .status").first.inner_text()

    eventually(lambda: longest() == "processing")
    running.kill()


def test_a_page_goes_on_by_itself_after_the_api_was_killed(
    open_visit: Open, submit: Submit, api_restarts: Callable[[], ProcessIdentity], weft_up: Platform
) -> None:
    job = submit(STEPS, name="survives")
    page = open_visit().open(f"/ui/jobs/{job.id}?tab=logs")
    folder = state_folder(job)
    status(page, "processing")
    expect(page.locator(".connection.live")).to_be_visible()
    killed = api_restarts()
    eventually(lambda: weft_up.again("api", killed))
    for step in (1, 2, 3):
        (folder / f"go-{step}").touch()
    status(page, "completed")
    expect(page.locator(".log-text").last).to_contain_text('"step": 3')
    expect(page.locator(".connection.live")).to_be_visible()


def test_a_page_says_that_its_connection_is_lost_until_it_is_back(open_visit: Open, submit: Submit) -> None:
    away = True
    visited = open_visit()
    visited.page.route("**/v1/stream?**", lambda route: route.abort() if away else route.continue_())
    page = visited.open(f"/ui/jobs/{submit(UNTIL_END).id}")
    expect(page.locator(".connection.lost")).to_be_visible()
    away = False
    expect(page.locator(".connection.live")).to_be_visible()


def test_a_session_that_is_revoked_leads_to_the_sign_in_page(browser: Browser, weft_up: Platform) -> None:
    with visit(browser, weft_up.url) as visited:
        sign_in(visited, weft_up.key)
        page = visited.open("/ui/queue")
        expect(page.get_by_role("heading", name="Queue")).to_be_visible()
        own = page.evaluate("fetch('/v1/session').then((answer) => answer.json())")["id"]
        weft_up.request("DELETE", f"/v1/keys/{own}").raise_for_status()
        expect(page.get_by_label("API key")).to_be_visible()


def test_a_spec_that_was_typed_outlives_another_screen_and_the_end_of_the_session(
    browser: Browser, weft_up: Platform
) -> None:
    """It was lost by one press of a key outside the editor, and when the session ended before the spec was sent."""
    typed = "name: typed-for-long\ncommand: echo typed\nresources:\n  cpus: 0.2\n  memory: 64MB\n"

    def end_session(page: Page) -> None:
        own = page.evaluate("fetch('/v1/session').then((answer) => answer.json())")["id"]
        weft_up.request("DELETE", f"/v1/keys/{own}").raise_for_status()
        eventually(lambda: page.evaluate("fetch('/v1/session').then((answer) => answer.status)") == 401)

    def sign_in_again(page: Page, key: str) -> None:
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Sign in").click()

    with visit(browser, weft_up.url) as visited:
        sign_in(visited, weft_up.key)
        page = visited.open("/ui/submit")
        editor = page.get_by_label("Spec of the job, YAML")
        editor.fill(typed)
        page.get_by_role("link", name="Queue").click()
        page.get_by_role("heading", name="Queue").wait_for()
        page.keyboard.press("n")
        expect(editor).to_have_value(typed)
        expect(page.locator(".plan")).to_be_visible()  # no other dry run is on its way
        end_session(page)
        editor.fill(f"{typed}learners: 1\n")
        sign_in_again(page, weft_up.key)
        expect(editor).to_have_value(f"{typed}learners: 1\n")
        page.get_by_role("button", name="Submit").click()
        expect(page.get_by_role("heading", name="typed-for-long")).to_be_visible()
        page.get_by_role("link", name="New job").click()
        expect(editor).to_have_value(re.compile("my-first-job"))
        editor.fill(typed)
        page.get_by_role("link", name="Queue").click()
        page.get_by_role("heading", name="Queue").wait_for()
        other = weft_up.new_key(user="somebody", tenant="others")
        end_session(page)
        sign_in_again(page, other)
        page.get_by_role("link", name="New job").click()
        expect(editor).to_have_value(re.compile("my-first-job"))


def test_a_job_whose_document_cannot_be_read_any_more_says_so_until_it_is_repaired(
    open_visit: Open, submit: Submit, api_restarts: Callable[[], ProcessIdentity], weft_up: Platform
) -> None:
    """The page went on to show the last state as if nothing was wrong."""
    job = submit(UNTIL_END)
    page = open_visit().open(f"/ui/jobs/{job.id}")
    status(page, "processing")
    jobs = apsw.Connection(str(weft_up.home / "jobs.sqlite"))
    jobs.set_busy_timeout(10_000)
    ((sound,),) = jobs.execute("SELECT doc FROM jobs WHERE id = ?", (job.id,)).fetchall()
    damaged = json.dumps({**json.loads(str(sound)), "state": 3})
    jobs.execute("UPDATE jobs SET doc = ? WHERE id = ?", (damaged, job.id))
    expect(page.locator(".connection.live")).to_be_visible()
    api_restarts()  # the page connects again, and its stream says what is damaged
    expect(page.get_by_role("alert")).to_contain_text("cannot be read")
    jobs.execute("UPDATE jobs SET doc = ? WHERE id = ?", (sound, job.id))
    jobs.close()
    expect(page.get_by_role("alert")).to_have_count(0)
    job.kill()
