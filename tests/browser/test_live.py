"""What changes while an answer is on its way, or while something else is shown, is on the screen in the end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from playwright.sync_api import APIResponse, Locator, Page, Route, expect

from tests.browser.learners import state_folder
from tests.testbed.browser import Visit
from tests.waiting import HANG_S, eventually
from weft import Job

Open = Callable[..., Visit]
Submit = Callable[..., Job]
Completed = Callable[[str], str]
expect.set_options(timeout=HANG_S * 1000)
PRINTS = """echo "state=$JOB_STATE_DIR"
until [ -e "$JOB_STATE_DIR/go" ]; do sleep 0.05; done
echo last line
until [ -e "$JOB_STATE_DIR/end" ]; do sleep 0.05; done"""
REPORTS_TWICE = """echo "state=$JOB_STATE_DIR"
echo '{"step": 1, "loss": 0.5}'
until [ -e "$JOB_STATE_DIR/go" ]; do sleep 0.05; done
echo '{"step": 2, "loss": 0.25}'"""
DRAWN = "() => new Promise((drawn) => setTimeout(() => requestAnimationFrame(() => setTimeout(drawn))))"
"""Until what the page has received is drawn."""


def waiting(submit: Submit, name: str) -> Job:
    """A job that waits for hardware that there is not."""
    return submit("sleep 1000", name=name, learners=30)


def row(page: Page, job: Job) -> Locator:
    return page.locator(".tr.data", has_text=job.name)


def test_a_list_shows_what_changed_while_it_had_other_columns(open_visit: Open, submit: Submit) -> None:
    """A job that was killed meanwhile stayed queued: the stream changed the list with the other columns only."""
    killed = waiting(submit, "ends-behind")
    visited = open_visit()
    visited.page.clock.set_fixed_time(datetime.now(UTC))  # no list becomes old, however slow the machine is
    page = visited.open("/ui/jobs")
    expect(page.locator(".connection.live")).to_be_visible()
    expect(row(page, killed)).to_contain_text("queued")
    columns = page.get_by_label("Metric columns")
    with page.expect_response("**/v1/jobs?*metrics=other*"):
        columns.fill("other")
        columns.press("Enter")
    killed.kill()
    expect(row(page, killed)).to_contain_text("killed")
    columns.fill("loss,accuracy")
    columns.press("Enter")
    expect(page).not_to_have_url("**metrics**")
    expect(columns).to_have_value("loss,accuracy")
    expect(row(page, killed)).to_contain_text("killed")


def test_a_list_that_could_not_be_read_again_is_read_once_the_platform_answers(
    open_visit: Open, submit: Submit
) -> None:
    """The next change of any job took its error away, and what had changed before was never shown."""
    killed = waiting(submit, "ends-unseen")
    other = open_visit().open("/ui/jobs")
    expect(row(other, killed)).to_contain_text("queued")
    visited = open_visit()
    page = visited.page
    streams = list[Route]()
    page.route("**/v1/stream?*", lambda route: streams.append(route))  # noqa: PLW0108 - it is marked
    visited.open("/ui/jobs")
    expect(row(page, killed)).to_contain_text("queued")
    killed.kill()
    expect(row(other, killed)).to_contain_text("killed")  # so the stream that begins now has no more of this job
    eventually(lambda: page.evaluate("true") and streams)  # Playwright calls routes while it runs a command
    page.route("**/v1/jobs?*", lambda route: route.fulfill(status=429))
    page.unroute("**/v1/stream?*")
    for route in streams:
        route.continue_()
    expect(page.get_by_role("alert")).to_be_visible()
    new = waiting(submit, "new-behind")
    expect(row(page, new)).to_contain_text("queued")
    page.unroute("**/v1/jobs?*")
    expect(row(page, killed)).to_contain_text("killed")
    expect(page.get_by_role("alert")).to_have_count(0)
    new.kill()


def test_a_list_that_is_opened_while_the_platform_starts_is_read_once_it_answers(
    open_visit: Open, submit: Submit
) -> None:
    """It showed the error until it was read again by hand, and was not live then."""
    job = waiting(submit, "found-late")
    visited = open_visit()
    page = visited.page
    page.route("**/v1/jobs?*", lambda route: route.fulfill(status=503))
    visited.open("/ui/jobs")
    expect(page.get_by_role("alert")).to_contain_text("503")
    page.unroute("**/v1/jobs?*")
    expect(row(page, job)).to_contain_text("queued")
    expect(page.get_by_role("alert")).to_have_count(0)
    job.kill()
    expect(row(page, job)).to_contain_text("killed")


def test_a_list_that_is_opened_while_the_store_is_away_shows_what_changed_before(
    open_visit: Open, submit: Submit
) -> None:
    """The server answered with what it had read before, and the stream had only what changed since it began."""
    killed = waiting(submit, "ends-before")
    other = open_visit().open("/ui/jobs")
    expect(row(other, killed)).to_contain_text("queued")
    visited = open_visit()
    page = visited.page
    away, before = True, list[APIResponse]()

    def answer(route: Route) -> None:
        if not away:
            return route.continue_()
        before.append(route.fetch() if not before else before[0])
        if len(before) == 1:
            killed.kill()
            expect(row(other, killed)).to_contain_text("killed")  # so the stream has no more of this job
        return route.fulfill(response=before[0], headers={**before[0].headers, "age": "60"})

    page.route("**/v1/stream?*", lambda route: route.continue_() if before else route.abort())
    page.route("**/v1/jobs?*", answer)
    visited.open("/ui/jobs")
    expect(page.locator(".connection.live")).to_be_visible()
    expect(row(page, killed)).to_contain_text("queued")
    eventually(lambda: page.evaluate("true") and len(before) > 1)  # for what the stream may have missed
    away = False
    expect(row(page, killed)).to_contain_text("killed")


def test_a_log_that_is_opened_again_has_the_lines_that_came_meanwhile(open_visit: Open, submit: Submit) -> None:
    """The answer took their place. They were missing until the job printed another one."""
    job = submit(PRINTS, name="prints-last")
    visited = open_visit()
    page = visited.page
    visited.open(f"/ui/jobs/{job.id}")
    log = page.get_by_role("tab", name="Log")
    log.click()
    first = page.locator(".log-panel", has_text="state=")
    expect(first).to_be_visible()
    state = state_folder(job)
    page.go_back()
    expect(first).to_have_count(0)
    tails = list[Route]()
    page.route("**/logs?tail=*", lambda route: tails.append(route))  # noqa: PLW0108 - it is marked
    log.click()
    eventually(lambda: page.evaluate("true") and tails)
    answers = [(route, route.fetch()) for route in tails]
    (state / "go").touch()
    last = page.locator(".log-panel", has_text="last line")
    expect(last).to_be_visible()
    expect(first).to_be_visible()  # read for its place on the screen
    with page.expect_response("**/logs?tail=*"):
        for route, answer in answers:
            route.fulfill(response=answer)
    page.evaluate(DRAWN)
    expect(last).to_be_visible()
    (state / "end").touch()


def test_a_searched_log_has_its_last_line_after_too_many_searches(open_visit: Open, submit: Submit) -> None:
    """The line was searched for when it came, and not again after the answer 429."""
    job = submit(PRINTS, name="prints-searched")
    visited = open_visit()
    page = visited.page
    refused = list[str]()

    def answer(route: Route) -> None:
        refused.append(route.request.url)
        return route.fulfill(status=429) if len(refused) == 1 else route.continue_()

    page.route("**/logs?*after=*", answer)
    visited.open(f"/ui/jobs/{job.id}?tab=logs&search=state|last")
    expect(page.locator(".log-panel", has_text="state=")).to_be_visible()
    (state_folder(job) / "go").touch()
    expect(page.locator(".log-panel", has_text="last line")).to_be_visible()
    assert len(refused) > 1
    expect(page.get_by_role("alert")).to_have_count(0)
    job.kill()


def test_why_a_job_ended_is_shown_once_it_can_be_read(open_visit: Open, submit: Submit) -> None:
    """Where it could not be read at the end, the page went on to show what the job had waited for."""
    killed = waiting(submit, "ends-unexplained")
    page = open_visit().open(f"/ui/jobs/{killed.id}")
    strip = page.locator(".strip")
    expect(strip).to_contain_text("request less")
    refused = list[str]()

    def away(route: Route) -> None:
        refused.append(route.request.url)
        route.fulfill(status=503)

    page.route("**/explain", away)
    killed.kill()
    expect(page.locator(".strip .status")).to_have_text("killed")
    before = len(refused)
    tries = 4  # of one reading
    eventually(lambda: page.evaluate("true") and len(refused) > before + tries)
    page.unroute("**/explain")
    expect(strip).not_to_contain_text("request less")


def test_a_zoom_shows_the_points_that_come_within_it(open_visit: Open, submit: Submit) -> None:
    """It showed those that there were when it was chosen, also after the end of the job."""
    job = submit(REPORTS_TWICE, name="zoomed")
    eventually(lambda: list(job.points()))
    page = open_visit().open(f"/ui/jobs/{job.id}?from=0&to=10")
    expect(page.locator(".chart .legend-value")).to_have_text("0.5")
    (state_folder(job) / "go").touch()
    expect(page.locator(".chart .legend-value")).to_have_text("0.25")


def test_the_page_of_a_job_that_is_deleted_says_so(open_visit: Open, submit: Submit) -> None:
    """It showed the job as it had been."""
    job = waiting(submit, "goes")
    page = open_visit().open(f"/ui/jobs/{job.id}")
    job.kill()
    expect(page.locator(".strip .status")).to_have_text("killed")
    job.delete()
    expect(page.get_by_text("There is no such job, or it was deleted")).to_be_visible()


def test_a_list_is_live_again_after_a_proxy_did_not_know_the_platform(open_visit: Open, submit: Submit) -> None:
    """Its stream was given up for good at the first answer 404."""
    visited = open_visit()
    answers = list[str]()

    def answer(route: Route) -> None:
        answers.append(route.request.url)
        if len(answers) > 1:
            return route.continue_()
        return route.fulfill(status=404, body="404 page not found")

    visited.page.route("**/v1/stream?*", answer)
    page = visited.open("/ui/jobs")
    expect(page.locator(".connection.live")).to_be_visible()
    new = waiting(submit, "seen-through-proxy")
    expect(row(page, new)).to_contain_text("queued")
    new.kill()


def test_more_files_do_not_end_a_reading_of_the_list(open_visit: Open, completed: Completed) -> None:
    """A list that was read again at the job's end stayed without its results."""
    job_id = completed("files")
    page = open_visit().open(f"/ui/jobs/{job_id}?tab=files")
    more = page.get_by_role("button", name="More files")
    expect(more).to_be_enabled()
    readings = list[Route]()
    page.route("**/artifacts?*", lambda route: readings.append(route))  # noqa: PLW0108 - it is marked
    page.clock.install()
    page.clock.fast_forward(5_000)  # so that the list is old enough
    page.evaluate("window.dispatchEvent(new Event('visibilitychange'))")
    eventually(lambda: page.evaluate("true") and readings)
    expect(more).to_be_disabled()
    page.unroute("**/artifacts?*")
    expect(more).to_be_enabled()
    more.click()
    expect(page.get_by_role("row", name="sample-600")).to_be_visible()
