"""A real browser without a window, for tests of pages."""

import shutil

import pytest

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


def chromium():
    """The browser; skips the test, and says why, where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    program = program or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no Chromium here")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def opened(browser, url, *, width=1400, scheme="light"):
    """A page, and the list of all that it says on its console, which is to stay empty."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    said = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda r: said.append(r.url) if not r.url.startswith(url[:12]) else None)
    page.goto(url)
    return page, said
