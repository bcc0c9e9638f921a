"""A hostile job, and a hostile site in another tab: no script of theirs runs, no request of theirs has an effect."""

from __future__ import annotations

import http.server
import json
import re
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, Response, StorageState, expect

from tests.testbed.browser import Visit, visit
from tests.testbed.platform import Platform
from tests.waiting import HANG_S, eventually
from weft import Client, Job

Open = Callable[..., Visit]
Submit = Callable[..., Job]
expect.set_options(timeout=HANG_S * 1000)
# The classes of stored XSS: elements, attributes, addresses, markup in other languages, ends of quotes and of scripts.
CORPUS = (
    "<script>window.__ran = 1</script>",
    '"><img src=x onerror="window.__ran = 1">',
    "<svg/onload=window.__ran=1>",
    "javascript:window.__ran=1",
    "</script><script>window.__ran = 1</script>",
    "</title><script>window.__ran = 1</script>",
    "</textarea><img src=x onerror=window.__ran=1>",
    "<a href=javascript:window.__ran=1>click</a>",
    "[click](javascript:window.__ran=1)",
    "![x](x onerror=window.__ran=1)",
    "{{constructor.constructor('window.__ran = 1')()}}",
    "${window.__ran = 1}",
    "<iframe srcdoc='<script>parent.__ran = 1</script>'>",
    "<math><mtext><style><img src=x onerror=window.__ran=1></style></mtext></math>",
    "<object data=data:text/html,<script>parent.__ran=1</script>>",
    "<meta http-equiv=refresh content='0;url=javascript:window.__ran=1'>",
    "<base href=http://127.0.0.1:9/>",
    "\x1b]8;;javascript:window.__ran=1\x07link\x1b]8;;\x07",
    "\x1b[31m<img src=x onerror=window.__ran=1>\x1b[0m",
    "%3Cscript%3Ewindow.__ran=1%3C/script%3E",
    "&lt;script&gt;window.__ran=1&lt;/script&gt;",
    "\u202e<script>window.__ran=1</script>\u202c",
)
PRINTABLE = [text for text in CORPUS if text.isprintable()]
"""What a spec accepts: it refuses control characters."""
IMAGE_TEXT = "<img src=x onerror=window.__ran=1>"
TRAIN = """
import json, os, sys
for text in json.load(open("texts.json")):
    print(text)
    print(text, file=sys.stderr)
    print(json.dumps({"step": 1, text: 1.0, "loss": text}))
    name = "".join(c for c in text.replace("/", "_") if c.isprintable())[:60]
    for ending in (".html", ".md", ".svg", ".png", ".txt"):
        with open(os.path.join(os.environ["RESULT_DIR"], name + ending), "w") as file:
            file.write(text)
sys.exit(3)
"""


@pytest.fixture(scope="module")
def hostile(weft_up: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Job]]:
    """Jobs that have failed, with the corpus wherever a job can put text."""
    code, wrong = tmp_path_factory.mktemp("code"), tmp_path_factory.mktemp("wrong")
    (code / "train.py").write_text(TRAIN)
    (code / "texts.json").write_text(json.dumps(CORPUS))
    (wrong / "requirements.txt").write_text(f"{IMAGE_TEXT}\n")
    common = {"resources": {"cpus": 0.2, "memory": "64MiB"}, "metrics": [{"type": "jsonl"}]}
    spec: dict[str, Any] = {
        **common,
        "name": "hostile",
        "command": "python3 train.py",
        "description": "\n".join(PRINTABLE)[:4000].replace("\n", " "),
        "env": {f"TEXT_{number}": text for number, text in enumerate(PRINTABLE)},
        "tags": [text for text in PRINTABLE if len(text) <= 63],
    }
    with Client(weft_up.url, weft_up.key) as client:
        jobs = {
            "texts": client.jobs.submit(spec, code=code),
            "reason": client.jobs.submit({**common, "name": "reason", "command": IMAGE_TEXT}, code=wrong),
        }
        for job in jobs.values():
            job.wait(HANG_S)
        yield jobs


def check_quiet(page: Page) -> None:
    """No script of a job ran, and none waits for a click."""
    assert page.evaluate("window.__ran") is None
    assert (
        page.locator('[href^="javascript:" i], [src^="javascript:" i], iframe, object, embed, base + base').count() == 0
    )
    assert page.locator("[onerror], [onload], [onclick], [onmouseover]").count() == 0


def test_texts_of_jobs_never_run_as_scripts_on_any_screen(open_visit: Open, hostile: dict[str, Job]) -> None:
    job, reason = hostile["texts"], hostile["reason"]
    assert (job.refresh().status, reason.refresh().status) == ("FAILED", "FAILED")
    visited = open_visit()
    page = visited.open("/ui/jobs")
    page.locator(".tag", has_text="window.__ran").first.hover()
    check_quiet(page)
    for path, shown in (
        (f"/ui/jobs/{job.id}", "window.__ran"),
        (f"/ui/jobs/{job.id}?tab=learners", "worker-0"),
        (f"/ui/jobs/{job.id}?tab=events", "failed"),
        (f"/ui/jobs/{job.id}?tab=spec", "TEXT_1"),
        (f"/ui/jobs/{reason.id}", IMAGE_TEXT),
        (f"/ui/jobs/{reason.id}?tab=events", IMAGE_TEXT),
        (f"/ui/compare?jobs={job.id},{reason.id}", "TEXT_1"),
        (f"/ui/jobs?q={IMAGE_TEXT}", "Filter"),
        (f"/ui/jobs/{IMAGE_TEXT}", "no such job"),
    ):
        visited.open(path)
        page.get_by_text(shown).or_(page.get_by_label(shown)).first.wait_for()
        check_quiet(page)
    page = visited.open(f"/ui/submit?from={job.id}")
    editor = page.get_by_label("Spec of the job, YAML")
    expect(editor).to_have_value(re.compile("TEXT_1"))
    editor.fill(f'name: x\ncommand: "true"\n"{IMAGE_TEXT}": 1\n')
    expect(page.get_by_role("alert")).to_contain_text(IMAGE_TEXT)
    check_quiet(page)


def test_lines_and_colours_of_a_hostile_log_are_shown_as_text(open_visit: Open, hostile: dict[str, Job]) -> None:
    page = open_visit().open(f"/ui/jobs/{hostile['texts'].id}?tab=logs&line=1")
    page.locator(".log-text", has_text=CORPUS[0]).first.wait_for()
    page.locator(".log-row").first.click()
    expect(page.locator(".log-open pre")).to_contain_text(CORPUS[0])
    page.get_by_label("Search the log").fill("img src=x")
    page.keyboard.press("Enter")
    expect(page.locator(".log-text .a-1", has_text=IMAGE_TEXT).first).to_be_visible()
    check_quiet(page)


def test_files_of_a_hostile_job_are_shown_as_text_and_never_run(open_visit: Open, hostile: dict[str, Job]) -> None:
    job = hostile["texts"]
    visited = open_visit()
    page = visited.open(f"/ui/jobs/{job.id}?tab=files")
    page.get_by_role("button", name=IMAGE_TEXT).first.wait_for()
    for ending in (".html", ".md", ".txt", ".png"):
        page.locator("button.link", has_text=f"onload=window.__ran=1>{ending}").click()
        preview = page.locator(".preview pre, .preview p")  # no image: its content is a text
        preview.first.wait_for()
        check_quiet(page)
        page.get_by_role("button", name="Close the file").click()
        preview.first.wait_for(state="detached")
    # Opened by its address, with the session: the browser saves it, and shows nothing.
    for ending in (".html", ".svg"):
        path = next(file.path for file in job.artifacts() if file.path.endswith(ending))
        with page.expect_download() as download:
            page.evaluate("(path) => { location.href = path; }", f"/v1/jobs/{job.id}/artifacts/{quote(path)}")
        download.value.cancel()
        check_quiet(page)


@contextmanager
def other_site(content: dict[str, str]) -> Generator[str]:
    """A site on another port of this machine, for which browsers send the dashboard's cookie: they ignore ports."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = content.get(self.path, "").encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(BrokenPipeError):  # the browser has left already
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - the name of the base class

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            serving.join()


def test_another_origin_can_change_nothing_and_read_nothing_with_the_session(
    browser: Browser, state: StorageState, weft_up: Platform, submit: Submit, client: Client
) -> None:
    job = submit('trap "exit 0" TERM; echo up; until [ -e "$JOB_STATE_DIR/end" ]; do sleep 0.05; done', name="victim")
    eventually(lambda: job.refresh().status == "PROCESSING")
    spec = '{"name":"forged","command":"true","x":"'
    forms = "".join(
        f'<form id="{name}" method="post" action="{weft_up.url}{path}" enctype="text/plain">'
        f"<input name='{spec}' value='\"}}'></form>"
        for name, path in (
            ("kill", f"/v1/jobs/{job.id}/kill"),
            ("submit", "/v1/jobs"),
            ("key", "/v1/keys"),
            ("code", "/v1/session/codes"),
            ("session", "/v1/session"),
        )
    )
    requests = """async ([url, job]) => {
      const outcomes = [];
      const kill = `/v1/jobs/${job}/kill`;
      for (const [method, path, mode, headers] of [
        ["GET", "/v1/jobs", "cors", {}], ["GET", "/v1/session", "cors", {}],
        ["GET", `/v1/stream?job=${job}`, "cors", {}], ["GET", "/v1/jobs", "no-cors", {}],
        ["POST", kill, "no-cors", {}], ["POST", kill, "cors", {"X-Weft-CSRF": "0"}],
        ["DELETE", `/v1/jobs/${job}`, "cors", {}],
        ["PATCH", `/v1/jobs/${job}`, "cors", {"Content-Type": "application/json"}],
      ]) {
        try {
          const answer = await fetch(url + path, {method, mode, headers, credentials: "include"});
          outcomes.push(mode === "no-cors" ? (await answer.text()) : `read ${path}: ${answer.status}`);
        } catch { outcomes.push(""); }
      }
      return outcomes;
    }"""
    with other_site({"/": forms}) as site, browser.new_context(storage_state=state) as context:
        page = context.new_page()
        answers: list[Response] = []
        page.on("response", lambda answer: answers.append(answer) if answer.url.startswith(weft_up.url) else None)
        page.goto(site)
        assert page.evaluate("document.cookie") == ""  # that of the dashboard is sent here too, and no script reads it
        assert set(page.evaluate(requests, [weft_up.url, job.id])) == {""}
        for form in ("kill", "submit", "key", "code", "session"):
            page.goto(site)
            with page.expect_navigation() as sent:
                page.evaluate("(id) => document.getElementById(id).submit()", form)
            assert sent.value.status in {400, 403}, form
        assert {answer.status for answer in answers} <= {400, 401, 403}
        assert any("weft_session" in answer.request.all_headers().get("cookie", "") for answer in answers)
    assert job.refresh().status == "PROCESSING"
    assert list(client.jobs.list(name="forged")) == []
    job.kill()


def test_no_site_can_show_the_dashboard_in_a_frame(browser: Browser, state: StorageState, weft_up: Platform) -> None:
    frames = "".join(f'<iframe src="{weft_up.url}{path}"></iframe>' for path in ("/", "/ui/jobs", "/v1/jobs"))
    with other_site({"/": frames}) as site, browser.new_context(storage_state=state) as context:
        page = context.new_page()
        page.goto(site)
        eventually(lambda: [frame.url for frame in page.frames[1:]] == ["chrome-error://chromewebdata/"] * 3)


def test_the_sessions_cookie_is_out_of_reach_of_scripts(
    browser: Browser, weft_up: Platform, state: StorageState
) -> None:
    with visit(browser, weft_up.url, state=state) as visited:
        page = visited.open("/ui/jobs")
        page.get_by_role("navigation").wait_for()
        [cookie] = visited.context.cookies()
        assert (cookie.get("name"), cookie.get("httpOnly"), cookie.get("sameSite")) == ("weft_session", True, "Strict")
        assert page.evaluate("document.cookie") == ""
        assert page.evaluate("cookieStore ? cookieStore.getAll() : []") == []
