"""The pages in a real browser: nothing on the console, and every control does what it says."""

import pytest
from reports_browser import chromium, opened

from fedsofim.config.compose import compose
from fedsofim.reports import compare
from fedsofim.reports.charts import bars, grid, matrix
from fedsofim.reports.page import page as html_page
from fedsofim.runs.session import run as run_session
from fedsofim.studies.sweep import Sweep

browser = pytest.fixture(scope="module")(chromium)
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture
def report(small, tmp_path):
    place = run_session(compose([*small, "rounds=12", "output.counts=true"]), tmp_path / "run")
    return f"file://{place.path / 'report.html'}"


@pytest.fixture
def comparison(small, tmp_path):
    grid = ["strategy=sofim,fedgd,fedavg", "privacy.epsilon=1,10", "seed=0,1"]
    Sweep.begin(tmp_path / "s", [*small, *grid]).run(1, lambda *_: None)
    compare.write([tmp_path / "s"], tmp_path / "page.html", counts=True)
    return f"file://{tmp_path / 'page.html'}"


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_run_s_page_is_drawn_at_every_width_in_every_light(browser, report, width, scheme):
    page, said = opened(browser, report, width=width, scheme=scheme)
    page.wait_for_selector(".plot svg")
    charts = page.locator("figure.chart")
    assert charts.count() >= 7
    assert page.locator("figure.chart .plot svg").count() >= charts.count()
    sizes = page.evaluate("[...document.querySelectorAll('.plot svg')].map(e => e.clientHeight)")
    assert min(sizes) > 60
    assert page.evaluate(WIDER) == 0
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (dark == "rgb(15, 20, 26)") == (scheme == "dark")
    assert said == []
    page.close()


def test_values_appear_under_the_pointer_and_the_arrow_keys(browser, report):
    page, said = opened(browser, report)
    plot = page.locator(".plot").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] / 2)
    tip = plot.locator("[aria-label=tip] text")
    tip.first.wait_for(state="attached")
    assert "accuracy:" in tip.first.text_content()
    plot.focus()
    page.keyboard.press("ArrowRight")
    readout = page.locator(".readout").first
    assert readout.text_content().startswith("round 3 · accuracy: ")  # the first that is drawn
    zoom = page.locator(".zoom").first
    zoom.click()
    plot.focus()
    page.keyboard.press("ArrowLeft")
    assert readout.text_content().startswith("round 1 · accuracy: ")
    assert said == []
    page.close()


def test_a_comparison_s_legend_tables_and_folds_work(browser, comparison):
    page, said = opened(browser, comparison)
    figure = page.locator("figure.chart").first
    lines = figure.locator("[aria-label=line] path")
    before = lines.count()
    button = figure.locator(".legend button").first
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert figure.locator("[aria-label=line] path").count() == before - 1
    button.click()
    assert figure.locator("[aria-label=line] path").count() == before
    table = page.locator("table.sortable").first
    column = table.locator("thead button").nth(1)
    for order in ("descending", "ascending"):
        column.click()
        cells = table.locator("tbody tr td:nth-child(2)").all_text_contents()
        values = [float(cell.split("±")[0]) for cell in cells]
        assert values == sorted(values, reverse=order == "descending")
        assert table.locator("thead th").nth(1).get_attribute("aria-sort") == order
    for fold in page.locator("summary").all():
        if fold.is_visible():
            fold.click()
    page.wait_for_timeout(300)
    heights = page.evaluate("[...document.querySelectorAll('.plot svg')].map(e => e.clientHeight)")
    assert min(heights) > 60  # those in folds are drawn, too
    assert said == []
    page.close()


def test_it_prints_in_light_whatever_the_screen(browser, report, tmp_path):
    page, said = opened(browser, report, scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("nav").is_hidden()
    page.pdf(path=tmp_path / "page.pdf", format="A4")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    assert said == []
    page.close()


def test_what_was_charged_is_printed_and_folds_again(browser, comparison):
    page, said = opened(browser, comparison)
    fold = page.locator("details.paper")
    for event, is_open in (("beforeprint", True), ("afterprint", False)):
        page.evaluate(f"dispatchEvent(new Event('{event}'))")
        assert fold.count() == 1
        assert fold.evaluate("d => d.open") == is_open
    assert said == []
    page.close()


def test_charts_are_drawn_anew_for_paper_and_for_a_phone(browser, report):
    page, said = opened(browser, report)
    widths = "[...document.querySelectorAll('.plot svg')].map(e => Number(e.getAttribute('width')))"
    screen = page.evaluate(widths)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert {300, 640} <= set(page.evaluate(widths))  # halves of a page, and whole ones
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(widths) == screen
    page.set_viewport_size({"width": 390, "height": 900})
    page.wait_for_timeout(300)
    shown = "[...document.querySelectorAll('.plot svg')].map(e => e.clientWidth)"
    assert page.evaluate(shown) == page.evaluate(widths)  # no text is scaled down
    assert said == []
    page.close()


@pytest.mark.parametrize("width", [1400, 390])
def test_long_names_of_classes_stay_on_the_picture(browser, tmp_path, width):
    named = ["colorectal adenocarcinoma epithelium", "normal colon mucosa", "mucus"]
    counts = [[12345, 3, 0], [5, 678, 90], [1, 2, 3]]
    charts = grid(
        bars("by class", [(name, 50.0, "note") for name in named], x="accuracy, %"),
        matrix("taken", counts, rows=named, columns=named, x="taken for", y="true class"),
    )
    (tmp_path / "page.html").write_text(html_page("names", charts))
    page, said = opened(browser, f"file://{tmp_path / 'page.html'}", width=width)
    page.wait_for_selector(".plot svg")
    beyond = """[...document.querySelectorAll('.plot svg text')].filter(t => {
      const a = t.getBoundingClientRect(), b = t.ownerSVGElement.getBoundingClientRect();
      return a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1;
    }).map(t => t.textContent)"""
    assert page.evaluate(beyond) == []
    shown = page.locator(".plot svg").all_text_contents()
    assert all("mucus" in one and "…" in one for one in shown)  # whole if short, else cut
    assert page.evaluate(WIDER) == 0
    assert said == []
    page.close()


def test_the_console_is_heard(browser, tmp_path):
    (tmp_path / "bad.html").write_text("<script>console.log('heard'); nonsense()</script>")
    page, said = opened(browser, f"file://{tmp_path / 'bad.html'}")
    assert "heard" in said
    assert len(said) == 2
    page.close()
