"""What a page of a job tells beside its state, and what operators see of all tenants."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.testbed.browser import Visit, sign_in, visit
from tests.testbed.platform import Platform
from tests.waiting import HANG_S, eventually
from weft import Client, Job

Open = Callable[..., Visit]
Submit = Callable[..., Job]
Completed = Callable[[str], str]
expect.set_options(timeout=HANG_S * 1000)
UNTIL_END = 'trap "exit 0" TERM; echo up; until [ -e "$JOB_STATE_DIR/end" ]; do sleep 0.05; done'
BAR = r"""printf '\repoch 3:  41%%|####      |' >&2; """


@pytest.fixture(scope="module")
def other_key(weft_up: Platform) -> str:
    """Of a user of another tenant."""
    return weft_up.new_key(user="grace", tenant="vision")


@pytest.fixture(scope="module")
def other_tenant(weft_up: Platform, other_key: str) -> Iterator[Client]:
    with Client(weft_up.url, other_key) as client:
        yield client


@pytest.fixture(scope="module", autouse=True)
def sleeps(other_tenant: Client) -> Iterator[Job]:
    """A job that does not use its GPU. It begins first: only GPUs that were not used for a while are idle."""
    job = other_tenant.jobs.submit(
        {"name": "sleeps", "command": UNTIL_END, "resources": {"cpus": 0.2, "memory": "64MiB", "gpus": 1}}
    )
    yield job
    job.kill()


def test_an_administrator_sees_which_gpus_are_free_and_the_jobs_of_all_tenants(
    open_visit: Open, other_tenant: Client
) -> None:
    """All GPUs were drawn as free, and queue, cluster and list had the jobs of the administrator's own tenant only."""
    spec = {"name": "gpus", "command": UNTIL_END, "resources": {"cpus": 0.2, "memory": "64MiB", "gpus": 1}}
    holds = other_tenant.jobs.submit({**spec, "name": "holds"})
    waits = other_tenant.jobs.submit({**spec, "name": "waits-there", "learners": 2})
    page = open_visit().open("/ui/cluster")
    expect(page.locator(".slot")).to_have_count(3)
    expect(page.locator(".slot.used")).to_have_count(2)  # the other one is that of ``sleeps``
    expect(page.locator(".holding").get_by_role("row", name="holds")).to_contain_text("vision")
    page.get_by_role("link", name="Queue", exact=True).click()
    expect(page.get_by_role("row", name="waits-there")).to_contain_text("vision")
    page.get_by_role("link", name="Jobs", exact=True).click()
    expect(page.locator(".connection.live")).to_be_visible()
    expect(page.locator(".tr.data", has_text="waits-there")).to_have_count(0)
    page.get_by_label("All tenants").click()  # check() reads the box at once, and its state follows the address
    expect(page.get_by_label("All tenants")).to_be_checked()
    expect(page.locator(".tr.data", has_text="waits-there")).to_contain_text("vision")
    page.reload()
    expect(page.locator(".connection.live")).to_be_visible()
    waits.kill()
    expect(page.locator(".tr.data", has_text="waits-there")).to_contain_text("killed")
    holds.kill()


KEEP_STREAM = """
const send = window.fetch;
window.__stream = "";
window.fetch = async (request, ...rest) => {
  const answer = await send(request, ...rest);
  if (!/v1.stream/.test(request.url ?? request)) return answer;
  const text = new TextDecoder();
  const transform = (bytes, readable) => {
    window.__stream += text.decode(bytes, {stream: true});
    readable.enqueue(bytes);
  };
  return new Response(answer.body.pipeThrough(new TransformStream({transform})), answer);
};"""
"""What the live stream has brought."""


@pytest.mark.parametrize("stream_begins", ["before the changes", "after them"])
def test_a_list_shows_what_changed_while_its_first_answer_was_on_its_way(
    open_visit: Open, submit: Submit, stream_begins: str
) -> None:
    """A job that was killed meanwhile stayed queued on the screen until the page was loaded anew."""
    killed = submit(UNTIL_END, name="ends-meanwhile", learners=20)
    visited = open_visit()
    page = visited.page
    visited.context.add_init_script(KEEP_STREAM)
    lists, streams = list[Route](), list[Route]()
    page.route("**/v1/jobs?*", lambda route: lists.append(route))  # noqa: PLW0108 - it is marked
    if stream_begins == "after them":
        page.route("**/v1/stream?*", lambda route: streams.append(route))  # noqa: PLW0108 - it is marked
    visited.open("/ui/jobs")
    eventually(lambda: page.evaluate("true") and lists)  # Playwright calls routes while it runs a command
    answers = [(route, route.fetch()) for route in lists]

    def stream_has(text: str) -> None:
        eventually(lambda: page.evaluate("text => window.__stream.includes(text)", text))

    if stream_begins == "before the changes":
        stream_has("event: ready")
    killed.kill()
    new = submit(UNTIL_END, name="new-meanwhile", learners=20)
    eventually(lambda: killed.refresh().status == "KILLED")
    if stream_begins == "after them":
        page.unroute("**/v1/stream?*")
        for route in streams:
            route.continue_()
        stream_has("event: ready")
    else:
        stream_has('"KILLED"')
        stream_has("new-meanwhile")
    for route, answer in answers:
        route.fulfill(response=answer)
    page.unroute("**/v1/jobs?*")
    for route in lists[len(answers) :]:
        route.continue_()
    for name, status in (("ends-meanwhile", "killed"), ("new-meanwhile", "queued")):
        expect(page.locator(".tr.data", has_text=name).first.locator(".status")).to_have_text(status)
    new.kill()


def test_the_address_of_an_administrators_list_shows_a_user_the_own_tenant(
    browser: Browser, weft_up: Platform, other_key: str
) -> None:
    with visit(browser, weft_up.url) as visited:
        sign_in(visited, other_key)
        page = visited.open("/ui/jobs?tenant=*")
        expect(page.locator(".connection.live")).to_be_visible()
        expect(page.get_by_role("alert")).to_have_count(0)
        expect(page.get_by_label("All tenants")).to_have_count(0)


def test_a_job_page_has_description_progress_bars_and_labels_of_metrics(open_visit: Open, submit: Submit) -> None:
    """None of them was shown: two metrics "accuracy" of training and test looked the same."""
    point = """python3 -c "import weft; weft.report(step=1, context={'subset': 'test'}, accuracy=0.5)"; """
    job = submit(f"{point}{BAR}{UNTIL_END}", description="Tries the new labels")
    page = open_visit().open(f"/ui/jobs/{job.id}")
    expect(page.locator(".job-description")).to_have_text("Tries the new labels")
    expect(page.locator(".chart figcaption")).to_have_text("accuracysubset=test")
    expect(page.locator(".bars")).to_contain_text("worker-0 epoch 3:  41%|####")
    page.get_by_role("tab", name="Learners").click()
    expect(page.get_by_role("columnheader", name="Uses")).to_be_visible()
    job.kill()
    expect(page.get_by_role("columnheader", name="Used at most")).to_be_visible()


def test_a_line_of_the_log_is_opened_without_its_control_sequences(open_visit: Open, finished: dict[str, str]) -> None:
    page = open_visit().open(f"/ui/jobs/{finished['good']}?tab=logs")
    line = page.locator(".log-row", has=page.locator(".a-2", has_text="green")).first
    line.get_by_role("button").click()
    expect(page.locator(".log-open pre")).to_have_text("green")


def test_a_file_far_down_the_list_is_shown_where_one_looks_and_by_its_address(
    open_visit: Open, completed: Completed
) -> None:
    """The content was drawn above the list, out of sight; of a file after the first 500, the address showed nothing."""
    page = open_visit().open(f"/ui/jobs/{completed('files')}?tab=files")
    page.get_by_role("button", name="sample-400").click()
    expect(page.locator(".preview pre")).to_have_text("400\n")
    expect(page.locator(".preview pre")).to_be_in_viewport()
    page.goto(re.sub(r"sample-400", "sample-99", page.url))
    expect(page.locator(".preview pre")).to_have_text("99\n")
    page.goto(re.sub(r"sample-99$", "sample-601", page.url))
    expect(page.locator(".note")).to_contain_text("There is no file")


TIME_READINGS = """
const send = window.fetch;
window.__readings = [];
window.fetch = (request, ...rest) => {
  if (/logs[?]after=0&/.test(request.url ?? request)) window.__readings.push(performance.now());
  return send(request, ...rest);
};"""
"""When the page has requested the first lines of the log, in ms."""


def test_lines_that_could_not_be_read_are_requested_again_after_a_pause(open_visit: Open, completed: Completed) -> None:
    """They were requested again and again, without a pause."""
    job_id = completed("lines")
    visited = open_visit()
    visited.context.add_init_script(TIME_READINGS)
    away, refused = True, list[str]()

    def answer(route: Route) -> None:
        if not away:
            return route.continue_()
        refused.append(route.request.url)
        return route.fulfill(status=503)

    visited.page.route("**/logs?after=0&*", answer)
    page = visited.open(f"/ui/jobs/{job_id}?tab=logs")
    expect(page.locator(".log-text").last).to_have_text("line 2000")
    page.locator(".log").evaluate("(box) => { box.scrollTop = 0; }")
    expect(page.get_by_role("alert")).to_contain_text("503")
    eventually(lambda: page.evaluate("window.__readings.length") >= 3)
    away = False
    expect(page.locator(".log-text").first).to_have_text("line 1")
    expect(page.get_by_role("alert")).to_have_count(0)
    readings = page.evaluate("window.__readings")
    assert len(readings) == len(refused) + 1
    assert all(later - earlier > 1900 for earlier, later in pairwise(readings))


def test_lines_that_may_not_be_read_are_requested_once(open_visit: Open, completed: Completed) -> None:
    job_id = completed("lines")
    visited = open_visit()
    visited.context.add_init_script(TIME_READINGS)
    visited.page.route("**/logs?after=0&*", lambda route: route.fulfill(status=403))
    page = visited.open(f"/ui/jobs/{job_id}?tab=logs")
    expect(page.locator(".log-text").last).to_have_text("line 2000")
    page.locator(".log").evaluate("(box) => { box.scrollTop = 0; }")
    expect(page.get_by_role("alert")).to_contain_text("403")
    page.locator(".log").evaluate("(box) => { box.scrollTop = 300 * 18; }")
    expect(page.get_by_role("button", name="Line 301", exact=True)).to_be_visible()
    page.locator(".log").evaluate("(box) => { box.scrollTop = 600 * 18; }")
    expect(page.get_by_text("line 610", exact=True)).to_be_visible()
    assert len(page.evaluate("window.__readings")) == 1


def test_curves_that_could_not_be_read_are_drawn_once_the_platform_answers(
    open_visit: Open, finished: dict[str, str]
) -> None:
    """They stayed away until the page was loaded again."""
    visited = open_visit()
    away = True
    visited.page.route(
        "**/metrics?series=true*", lambda route: route.fulfill(status=503) if away else route.continue_()
    )
    visited.page.clock.install()
    page = visited.open(f"/ui/jobs/{finished['seed-1']}")

    def alert_after_a_minute() -> bool:
        page.clock.fast_forward(60_000)
        return page.get_by_role("alert").is_visible()

    eventually(alert_after_a_minute)
    expect(page.get_by_role("alert")).to_contain_text("503")
    away = False
    expect(page.locator(".chart .legend-value")).to_have_text("0.05")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_the_charts_of_a_comparison_are_read_by_few_requests(open_visit: Open, submit: Submit) -> None:
    """Each chart was read by a request of its own, for each of which the server read all jobs again."""
    names = [f"metric-{number:02}" for number in range(12)]
    values = ", ".join(f'\\"{name}\\": {number}.5' for number, name in enumerate(names))
    jobs = [submit(f'echo "{{\\"step\\": 1, {values}}}"') for _ in range(2)]
    for job in jobs:
        assert job.wait(HANG_S).status == "COMPLETED"
    visited = open_visit(size={"width": 1440, "height": 1600})
    requests: list[str] = []
    visited.page.on("request", lambda request: requests.append(request.url) if "statistics?" in request.url else None)
    page = visited.open(f"/ui/compare?jobs={','.join(job.id for job in jobs)}&all=1")
    for number, name in enumerate(names):
        chart = page.locator(".chart-place").nth(number)
        chart.scroll_into_view_if_needed()
        expect(chart).to_contain_text(name)
        expect(chart.locator(".legend-value")).to_have_text(f"{number}.5")
    queries = [parse_qs(urlsplit(url).query) for url in requests]
    assert {name for query in queries for name in (*query["name"], *query.get("also", []))} == set(names)
    assert len(requests) < len(names)


COUNT_DRAWINGS = """
const clear = CanvasRenderingContext2D.prototype.clearRect;
CanvasRenderingContext2D.prototype.clearRect = function (...box) {
  window.__drawings = (window.__drawings ?? 0) + 1;
  return clear.apply(this, box);
};"""


def test_a_chart_is_drawn_once_when_its_page_opens(open_visit: Open, finished: dict[str, str]) -> None:
    """Each was drawn twice before the curve was seen: again for its data, and for a size that it had already."""
    visited = open_visit()
    visited.context.add_init_script(COUNT_DRAWINGS)
    page = visited.open(f"/ui/jobs/{finished['seed-1']}")
    expect(page.locator(".chart .legend-value")).to_have_text("0.05")
    expect(page.locator(".connection.live")).to_be_visible()
    page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    assert page.evaluate("window.__drawings") == 1
    page.get_by_label("Log scale").click()
    eventually(lambda: page.evaluate("window.__drawings") == 2)


REQUESTS_OF_CURVES = """
const send = window.fetch;
window.__curves = [];
window.fetch = (request, ...rest) => {
  const url = request.url ?? request;
  if (url.includes("series=true")) window.__curves.push([url, document.querySelector("section.job") !== null]);
  return send(request, ...rest);
};"""
"""The addresses of the curves that the page has requested, and whether a job's page was drawn then."""
PASS_OVER = """(links) => {
  for (const link of links)
    for (const type of ["mouseover", "mouseout"]) link.dispatchEvent(new MouseEvent(type, {bubbles: true}));
}"""
"""A pointer that moves over all links within no time."""


def listed_seeds(open_visit: Open) -> Page:
    """The list of the jobs with five seeds; the page notes its requests of curves."""
    visited = open_visit()
    visited.context.add_init_script(REQUESTS_OF_CURVES)
    return visited.open("/ui/jobs?q=name%3Dseeds")


def test_a_click_on_a_job_requests_its_curves_before_the_page_is_drawn(
    open_visit: Open, finished: dict[str, str]
) -> None:
    """The page was drawn first, so the curves came later by that."""
    page = listed_seeds(open_visit)
    page.locator(".tr.data a.strong").nth(1).evaluate("(link) => link.click()")  # no pointer announces this one
    expect(page.locator(".chart .legend-value")).to_have_text("0.04348")  # 1 / 23
    [(address, drawn)] = page.evaluate("window.__curves")
    assert finished["seed-4"] in address
    assert not drawn


def test_curves_are_requested_once_for_a_pointer_that_rests_on_a_job_and_not_for_those_it_passes(
    open_visit: Open, finished: dict[str, str]
) -> None:
    page = listed_seeds(open_visit)
    links = page.locator(".tr.data a.strong")
    expect(links).to_have_count(5)
    links.evaluate_all(PASS_OVER)
    links.nth(1).hover()
    eventually(lambda: page.evaluate("window.__curves.length") > 0)
    expect(page.get_by_role("heading", name="seeds")).to_have_count(0)  # it is on the list still
    links.nth(1).click()
    expect(page.locator(".chart .legend-value")).to_be_visible()
    [(address, _)] = page.evaluate("window.__curves")
    assert finished["seed-4"] in address


def test_the_cluster_screen_lists_gpus_that_are_allocated_and_idle(open_visit: Open, sleeps: Job) -> None:
    """It said which GPUs are held, and not that nobody uses them."""
    page = open_visit().open("/ui/cluster")
    row = page.locator(".idle-gpus").get_by_role("row", name="sleeps")
    expect(row).to_contain_text("1 of 1")
    expect(row).to_contain_text("not measured")
    expect(row).to_contain_text("vision")
    expect(page.get_by_text("The GPUs of 1 job are not measured")).to_be_visible()
    sleeps.kill()
    expect(row).to_have_count(0)
