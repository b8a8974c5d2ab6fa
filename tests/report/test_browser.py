"""The page in a real browser: what is drawn, what can be read, what it asks the network for."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sweeper.report.study_page import write_report
from tests.report import samples, test_checks
from tests.report.chromium import FOUND, Browser

pytestmark = pytest.mark.skipif(not FOUND, reason="no Chromium is installed")

# The contrast of every text with what lies behind it (WCAG 2), the least first.
CONTRAST = """(() => {
  const light = c => c.map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const rgba = text => text.match(/[\\d.]+/g).map(Number);
  const behind = node => {
    for (; node; node = node.parentElement) {
      const c = rgba(getComputedStyle(node).backgroundColor);
      if (c.length === 3 || c[3] > 0) return c.slice(0, 3);
    }
    return matchMedia("(prefers-color-scheme: dark)").matches ? [0, 0, 0] : [255, 255, 255];
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some(c => c.nodeType === 3 && c.textContent.trim());
    if (!own || node.closest("svg, script") || !node.getClientRects().length) continue;
    const pair = [rgba(getComputedStyle(node).color).slice(0, 3), behind(node)].map(light);
    const [low, high] = pair.sort((a, b) => a - b);
    found.push([(high + .05) / (low + .05), node.textContent.trim().slice(0, 40)]);
  }
  return found.sort((a, b) => a[0] - b[0])[0];
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as result:
        yield result


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    search = samples.search()
    search["lines"][0] |= {"stopped_log2": [-1.0]}
    search["lines"][0]["points_log2"][0] = [-1.0, float("inf")]
    folder = samples.study(
        tmp_path_factory.mktemp("runs") / "demo",
        search,
        w256=samples.validation(depth=True),
        w1024=samples.validation("fails"),
        w64=None,
    )
    return write_report(test_checks.add(folder))


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1280, True)])
def test_it_can_be_read_on_a_phone_and_a_desk_light_and_dark(
    browser: Browser, page: Path, width: int, dark: bool
) -> None:
    browser.problems.clear()
    browser.open(page, width, dark=dark)
    assert browser.run("document.documentElement.scrollWidth") == width
    contrast, text = browser.run(CONTRAST)
    assert contrast >= 4.5, text
    sizes = "[...document.querySelectorAll('p, td, th, li, small')]"
    assert (
        browser.run(f"Math.min(...{sizes}.map(n => parseFloat(getComputedStyle(n).fontSize)))")
        >= 12
    )
    back = browser.run("getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(21, 23, 26)" if dark else "rgb(255, 255, 255)")
    assert browser.problems == []
    wider = "[...document.querySelectorAll('.scroll')].filter(n => n.scrollWidth > n.clientWidth)"
    assert width < 1280 or browser.run(f"{wider}.length") == 0, "a table is cut"


def test_a_picture_is_saved_from_the_page_alone(browser: Browser, page: Path) -> None:
    browser.problems.clear()
    browser.open(page, 1280)
    browser.run("HTMLAnchorElement.prototype.click = function () { window.saved = this; }")
    click = "[...document.querySelectorAll('.save button')].find(b => b.textContent=='{}').click()"
    browser.run(click.format("SVG"))
    name, kind, text = browser.run("[saved.download, saved.href.slice(0, 18), saved.href]")
    assert (name, kind) == ("figure-1.svg", "data:image/svg+xml")
    assert "%3Csvg" in text
    browser.run("window.saved = null")
    browser.run(click.format("PNG"))
    came(browser, "window.saved !== null")
    assert browser.run("saved.href.slice(0, 22)") == "data:image/png;base64,"
    assert browser.problems == []


def test_on_paper_nothing_is_cut_off(browser: Browser, page: Path) -> None:
    browser.open(page, 700, media="print")  # A4 without its margins, in CSS pixels
    cut = (
        "[...document.querySelectorAll('.plot, .tall, .scroll')]"
        ".filter(one => getComputedStyle(one).overflowX !== 'visible').length"
    )
    assert browser.run(cut) == 0
    assert browser.run("document.documentElement.scrollWidth") <= 700
    assert browser.run("document.querySelector('.plot svg').getBoundingClientRect().width") <= 700
    assert browser.run("getComputedStyle(document.querySelector('pre')).whiteSpace") == ("pre-wrap")
    assert len(browser.call("Page.printToPDF")["data"]) > 10_000


def came(browser: Browser, condition: str) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        # Between two pages there is none that could answer.
        with suppress(AssertionError):
            if browser.run(f"document.readyState == 'complete' && {condition}"):
                return
        time.sleep(0.02)
    raise AssertionError(condition)


def test_a_live_page_renews_itself_where_it_is_read_until_its_run_ends(
    browser: Browser, tmp_path: Path
) -> None:
    folder = samples.study(tmp_path / "live", samples.search(), w256=samples.validation())
    page = write_report(folder, live=0.2)
    browser.problems.clear()
    browser.open(page, 420)
    # Opened, scrolled and read at once: between two looks there may be another page.
    scroll = (
        "(() => {document.querySelectorAll('details')[1].open = true;"
        " [...document.querySelectorAll('h2')].find(h => h.textContent == 'Search')"
        ".parentElement.scrollIntoView(); scrollBy(0, 40);"
        " return [performance.timeOrigin, scrollY]})()"
    )
    came(browser, f"{scroll}[1] > 100")
    before = browser.run(scroll)
    # The next page has more above: what was read stays where it was read.
    page.write_text(
        page.read_text().replace("</header>", "<p>more<br>more<br>more</p></header>", 1)
    )
    came(browser, f"performance.timeOrigin != {before[0]} && scrollY > {before[1]}")
    now = browser.run("[performance.timeOrigin, scrollY]")
    assert now[1] == pytest.approx(before[1] + 72 + 16, abs=30)
    assert browser.run("[...document.querySelectorAll('details')].map(d => d.open)") == [
        False,
        True,
    ]
    write_report(folder)
    came(browser, "!('live' in document.documentElement.dataset)")
    ended = browser.run("performance.timeOrigin")
    assert browser.run("[...document.querySelectorAll('details')].map(d => d.open)")[1]
    assert browser.run("performance.timeOrigin") == ended
    assert browser.problems == []
