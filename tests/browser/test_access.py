"""Keys, sessions and secrets in the dashboard."""

from __future__ import annotations

from playwright.sync_api import Browser, expect

from tests.testbed.browser import sign_in, visit
from tests.testbed.platform import Platform
from tests.waiting import HANG_S, eventually
from weft import Client

expect.set_options(timeout=HANG_S * 1000)


def new_key(weft_up: Platform, name: str) -> str:
    return weft_up.new_key(user="ada", tenant="access", name=name)


def answer_for(weft_up: Platform, key: str) -> int:
    return weft_up.request("GET", "/v1/whoami", key=key).status_code


def test_a_key_is_made_shown_once_and_revoked(browser: Browser, weft_up: Platform) -> None:
    with visit(browser, weft_up.url) as visited:
        sign_in(visited, new_key(weft_up, "first"))
        page = visited.page
        page.get_by_role("button", name="Account and settings").click()
        page.get_by_role("menuitem", name="Keys and secrets").click()
        expect(page.locator(".keys").get_by_role("row", name="first")).to_contain_text("this browser")
        expect(page.get_by_label("User of the key")).to_have_count(0)  # a user makes keys of their own only
        page.get_by_label("Where the key is used").fill("laptop")
        page.get_by_role("button", name="New key").click()
        text = page.locator(".made-key code").inner_text()
        assert answer_for(weft_up, text) == 200
        expect(page.locator(".keys").get_by_role("row", name="laptop")).to_be_visible()
        page.reload()
        expect(page.locator(".keys").get_by_role("row", name="laptop")).to_be_visible()
        assert text not in page.content()
        page.get_by_role("button", name="Revoke laptop").click()
        page.get_by_role("alertdialog").get_by_role("button", name="Revoke").click()
        expect(page.get_by_text("Revoked keys: 1")).to_be_visible()
        eventually(lambda: answer_for(weft_up, text) == 401)


def test_a_browser_that_was_left_signed_in_is_signed_out_from_another_one(browser: Browser, weft_up: Platform) -> None:
    key = new_key(weft_up, "office")
    with visit(browser, weft_up.url) as left, visit(browser, weft_up.url) as visited:
        sign_in(left, key)
        page_left = left.open("/ui/queue")
        expect(page_left.get_by_role("heading", name="Queue")).to_be_visible()
        sign_in(visited, key)
        page = visited.open("/ui/access")
        of_key = page.locator(".sessions").get_by_role("row", name="office")
        expect(of_key).to_have_count(2)
        of_key.get_by_role("button", name="End").click()
        page.get_by_role("alertdialog").get_by_role("button", name="End").click()
        expect(of_key).to_have_count(1)
        expect(page_left.get_by_label("API key")).to_be_visible()


def test_secrets_are_listed_without_values_and_deleted(browser: Browser, weft_up: Platform) -> None:
    key = new_key(weft_up, "secrets")
    with Client(weft_up.url, key) as client, visit(browser, weft_up.url) as visited:
        client.secrets.set("training-data", {"access_key": "value-of-access", "secret_key": "value-of-secret"})
        sign_in(visited, key)
        page = visited.open("/ui/access")
        row = page.locator(".secrets").get_by_role("row", name="training-data")
        expect(row).to_contain_text("access_key, secret_key")
        assert "value-of" not in page.content()
        row.get_by_role("button", name="Delete").click()
        page.get_by_role("alertdialog").get_by_role("button", name="Delete").click()
        expect(page.get_by_text("No secrets yet.")).to_be_visible()
        assert list(client.secrets.list()) == []
