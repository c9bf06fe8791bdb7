"""The page of `dask-tfrecord view` in Chromium: each page, the keyboard, reload, hostile values, narrow windows."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import pytest
from support.message_files import write_times
from support.paths import DATA
from support.view_data import HOSTILE, write_episodes, write_gallery, write_hostile, write_numbers

import dask_tfrecord as dtf
from dask_tfrecord.extras.view.opened import BlockCache, open_path
from dask_tfrecord.extras.view.server import Server

pytestmark = [
    pytest.mark.browser,
    # Selenium leaves sockets of its driver to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
# Seconds.
WAIT = 90
MEMORY = 64 << 20
Show = Callable[..., "Tab"]


class Tab:
    """A window of the browser that shows data sets."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver, self.url = driver, url

    def open(self, address: str = "") -> None:
        self.driver.get("about:blank")
        self.driver.get(f"{self.url}#/{address}")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str = "body") -> str:
        found = "[...document.querySelectorAll(arguments[0])].map(e => e.innerText).join('\\n')"
        return str(self.run(f"return {found}", selector))

    def wait(self, condition: str, *arguments: Any) -> Any:
        """Wait until an expression of JavaScript holds."""
        from selenium.common.exceptions import TimeoutException
        from selenium.webdriver.support.wait import WebDriverWait

        try:
            return WebDriverWait(self.driver, WAIT).until(lambda _: self.run(f"return {condition}", *arguments))
        except TimeoutException:
            pytest.fail(f"not within {WAIT} s: {condition} {arguments}; the page has: {self.text()[:2000]}")

    def wait_for(self, text: str, selector: str = "body") -> None:
        """Wait until elements show a text."""
        self.wait(
            "[...document.querySelectorAll(arguments[0])].some(e => e.innerText.includes(arguments[1]))", selector, text
        )

    def settle(self) -> None:
        """Wait until the page has what it asked the server for."""
        busy = ".waiting, .ghost, progress:not([hidden])"
        seen = "[...document.querySelectorAll(arguments[0])].some(e => e.checkVisibility())"
        rows = "!document.querySelector('.grid') || document.querySelector('.layer .row')"
        self.wait(f"document.querySelector('main h1') && ({rows}) && !{seen}", busy)

    def press(self, *keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def address(self) -> str:
        return str(self.run("return location.hash"))


def problems_of(driver: Any) -> list[str]:
    """Return what the console reported since the last call."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver")
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("needs chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    profile = tmp_path_factory.mktemp("profile")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.chrome.service.Service(DRIVER)
    driver = webdriver.Chrome(options=options, service=service)
    driver.set_page_load_timeout(WAIT)
    driver.set_script_timeout(WAIT)
    yield driver
    driver.quit()


@pytest.fixture
def show(driver: Any) -> Iterator[Show]:
    servers = []

    def start(*paths: Path, width: int = 1360, height: int = 860, **reading: Any) -> Tab:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        # The driver is shared: what another test left in the console is not of this one.
        driver.get_log("browser")
        cache = BlockCache(MEMORY)
        sets = [open_path(str(path), cache, **reading) for path in paths]
        servers.append(Server(sets))
        return Tab(driver, servers[-1].url)

    yield start
    problems = problems_of(driver)
    driver.get("about:blank")
    for server in servers:
        server.close()
    assert problems == []


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gallery(tmp_path_factory.mktemp("gallery"))


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_episodes(tmp_path_factory.mktemp("episodes"))


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbers(tmp_path_factory.mktemp("numbers"), 3_000)


def test_rows_show_images_and_the_keyboard_moves_and_opens_a_record(show: Show, gallery: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    tab = show(gallery)
    tab.open("rows")
    tab.wait("[...document.querySelectorAll('.grid img')].some(e => e.complete && e.naturalWidth > 0)")
    tab.run("document.querySelector('.grid').focus()")
    tab.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ENTER)
    tab.wait("document.querySelector('dialog[open]') !== null && location.hash.includes('record=2')")
    tab.wait_for("caption", "dialog")
    tab.press(Keys.ESCAPE)
    tab.wait("document.querySelector('dialog[open]') === null && !location.hash.includes('record=')")


# Scroll by 20 pixels every few milliseconds for 3 seconds, and count the steps after which all rows have values.
SCROLL = """
const done = arguments[0];
const grid = document.querySelector('.grid');
const filled = [];
const until = performance.now() + 3000;
const move = () => {
  grid.scrollTop += 20;
  grid.dispatchEvent(new Event('scroll'));
  const rows = [...grid.querySelectorAll('.layer .row:not([hidden])')];
  filled.push(rows.every(row => !row.classList.contains('ghostly')));
  if (performance.now() < until) setTimeout(move, 4);
  else done([grid.scrollTop, filled.filter(Boolean).length / filled.length]);
};
move();
"""


def test_rows_get_their_values_while_the_grid_scrolls(show: Show, numbers: Path) -> None:
    tab = show(numbers)
    tab.open("rows")
    tab.wait_for("of 3,000", ".place")
    tab.settle()
    position, filled = tab.driver.execute_async_script(SCROLL)
    assert position > 64 * 34, "the grid did not leave the rows that came first"
    # Of steps that each ask anew and wait for a pause, fewer than half have values: the first rows.
    assert filled > 0.6


def test_jump_and_reload_restore_the_row(show: Show, numbers: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    tab = show(numbers)
    tab.open("rows")
    tab.wait_for("of 3,000", ".place")
    tab.press("g")
    tab.press("2500", Keys.ENTER)
    row = "[...document.querySelectorAll('.layer .row .at')].some(e => e.textContent === '2500')"
    tab.wait(row)
    tab.wait("location.hash.includes('row=2500')")
    before = tab.address()
    tab.driver.refresh()
    tab.wait(row)
    assert tab.address() == before


def test_filter_finds_the_rows_of_the_arrays(show: Show, numbers: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    labels = dtf.read_tfrecord(numbers)["label"].compute()
    rows = [str(row) for row, label in enumerate(labels) if label == 3]
    tab = show(numbers)
    tab.open()
    tab.wait("document.querySelector('nav a') !== null")
    tab.press("/")
    tab.wait("document.activeElement.id === 'expression'")
    tab.press("label == 3", Keys.ENTER)
    tab.wait_for(f"{len(rows):,} found in 3,000 of 3,000 rows")
    tab.wait("document.querySelector('.layer .row .at')?.textContent === arguments[0]", rows[0])
    assert problems_of(tab.driver) == []
    tab.open("filter?filter=no_such_column+%3D%3D+3")
    tab.wait_for("no_such_column", ".notice")
    # The console may have the refused request.
    problems_of(tab.driver)


def test_episode_moves_by_scrubber_and_keys(show: Show, episodes: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    tab = show(episodes)
    tab.open("episodes")
    tab.wait_for("0 / 47", "output")
    tab.wait(
        "[...document.querySelectorAll('.cameras img')].filter(e => e.complete && e.naturalWidth > 0).length === 2"
    )
    assert "put the red cup on the blue plate" in tab.text(".instruction")
    move = (
        "const s = document.getElementById('step'); s.value = 20; s.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    tab.run(move)
    tab.wait_for("20 / 47", "output")
    tab.run("document.activeElement.blur()")
    tab.press(Keys.ARROW_RIGHT)
    tab.wait_for("21 / 47", "output")
    tab.wait("location.hash.includes('step=21')")
    tab.driver.refresh()
    tab.wait_for("21 / 47", "output")
    tab.press(Keys.ARROW_DOWN)
    tab.wait_for("/ 29", "output")


@pytest.mark.parametrize(
    ("column", "chart"), [("label", "Histogram"), ("caption", "Frequent values"), ("score", "Histogram")]
)
def test_bar_of_the_overview_finds_its_rows(show: Show, gallery: Path, column: str, chart: str) -> None:
    values = dtf.read_tfrecord(gallery)[column].compute()
    tab = show(gallery)
    tab.open("overview")
    tab.settle()
    (option, *_) = tab.driver.find_elements("css selector", f'[aria-label="{chart} of {column}"] [role=option]')
    text = option.get_attribute("title") or option.find_element("css selector", ".value").text
    option.click()
    tab.wait_for(" found in 60 of 60 rows")
    (expression,) = parse_qs(tab.address().partition("?")[2])["filter"]
    if column == "label":
        assert text.startswith("circle (0): ")
        assert expression == "label == 0"
        found = values == 0
    elif column == "caption":
        assert expression == f"caption == {text!r}"
        found = values == text
    else:
        low, high = re.fullmatch(r"score >= (\S+) and score < (\S+)", expression).groups()  # type: ignore[union-attr]
        assert float(low) == values.min()
        found = (values >= float(low)) & (values < float(high))
    assert 0 < np.count_nonzero(found) < 60
    tab.wait_for(f"{np.count_nonzero(found)} found in 60 of 60 rows")
    assert tab.run("return document.getElementById('expression').value") == expression


def test_bars_of_any_name_find_their_rows(show: Show, tmp_path: Path) -> None:
    names = ["log-in", "a == b", "a/b c", "it's", 'say "x"', "x and y", " in ", "", "'", *HOSTILE]
    dtf.to_tfrecord({name: np.arange(9, dtype=np.float32) for name in dict.fromkeys(names)}, tmp_path / "a.tfrecord")
    tab = show(tmp_path)
    for at in range(len(set(names))):
        tab.open("overview")
        tab.settle()
        charts = tab.driver.find_elements("css selector", ".bars.can")
        assert len(charts) == len(set(names))
        charts[at].find_element("css selector", "[role=option]").click()
        tab.wait_for("1 found in 9 of 9 rows")


def test_bars_of_times_find_their_rows(show: Show, tmp_path: Path) -> None:
    moments = np.datetime64("2001-09-09T01:46:40.5", "ns") + np.arange(40) * np.timedelta64(90_061_007, "us")
    path, message = write_times(tmp_path, moments.astype(int).tolist())
    tab = show(path, message=message)
    tab.open("overview")
    tab.settle()
    assert "2001-09-09T01:46:40Z" in tab.text(".card") and "1000000000s" in tab.text(".card")
    for column in ("at", "took"):
        tab.open("overview")
        tab.settle()
        bar = tab.driver.find_element("css selector", f'[aria-label="Histogram of {column}"] [role=option]:last-child')
        label = bar.get_attribute("title")
        bar.click()
        count = label.split(": ")[-1].split(" ")[0]
        tab.wait_for(f"{count} found in 40 of 40 rows")
        assert 0 < int(count) < 9


def test_cards_show_type_mean_and_range_of_columns(show: Show, numbers: Path) -> None:
    arrays = dtf.read_tfrecord(numbers).compute()
    tab = show(numbers)
    tab.open("overview")
    tab.wait_for("Statistics of 3,000 rows")
    cards = tab.run("return [...document.querySelectorAll('.card')].map(e => e.innerText)")
    assert [card.split("\n")[0] for card in cards] == list(arrays)
    for card, (name, values) in zip(cards, arrays.items(), strict=True):
        assert str(values.dtype) in card
        means = [float(mean) for mean in re.findall(r"mean (\S+)", card)]
        # Numbers of classes have none.
        wanted = [] if name == "label" else [values.mean(dtype=float)]
        assert means == pytest.approx(wanted, rel=1e-4), name
        shown = [float(number) for number in re.findall(r"^[-\d.e+]+$", card, re.MULTILINE)]
        assert shown == pytest.approx([values.min(), values.max()], rel=1e-4), name


def test_compare_shows_a_conversion_as_equal_and_a_changed_value(show: Show, gallery: Path, tmp_path: Path) -> None:
    dataset = dtf.read_tfrecord(gallery)
    dataset.to_zarr(tmp_path / "same.zarr")
    label = dataset["label"].compute()
    label[9] += 1
    dataset.assign(label=label).to_zarr(tmp_path / "other.zarr")
    tab = show(gallery, tmp_path / "same.zarr", tmp_path / "other.zarr")
    tab.open("compare?row=8")
    tab.wait_for("all values are equal")
    assert tab.run("return document.querySelectorAll('.inline img').length") > 0
    tab.open("compare?row=8&b=2")
    tab.wait_for("values that differ: 1")
    row = tab.run("return document.querySelector('tr.differs').innerText")
    assert "label" in row


def test_compare_says_that_no_column_is_in_both(show: Show, gallery: Path, tmp_path: Path) -> None:
    dtf.to_tfrecord({"another": [1, 2]}, tmp_path / "another.tfrecord")
    tab = show(gallery, tmp_path / "another.tfrecord")
    tab.open("compare")
    tab.wait_for("no column has the same name in both")


PAGES = ["overview", "rows", "rows?record=2", "filter", "episodes", "bytes", "compare"]


@pytest.mark.parametrize("width", [1360, 390])
def test_hostile_names_and_values_are_text(show: Show, tmp_path: Path, width: int) -> None:
    folder = write_hostile(tmp_path / "hostile")
    tab = show(folder, folder, width=width)
    for page in PAGES:
        if page == "episodes":
            continue
        tab.open(page)
        tab.settle()
        if "record" in page:
            tab.wait_for("byte offset", "dialog")
        assert (
            tab.run("return document.querySelectorAll('script, style, [onclick], [onerror], b, textarea').length") == 2
        )
        assert tab.run("return innerWidth") == width, page
        assert tab.run("return document.documentElement.scrollWidth") <= width, page
    tab.open("overview")
    tab.settle()
    heads = tab.run("return [...document.querySelectorAll('.card h3')].map(e => e.textContent)")
    shown = {
        name.translate({code: f"\u2039U+{code:04X}\u203a" for code in (0, 0x1B, 0x202E, 0x2066)}) for name in HOSTILE
    }
    assert shown - {""} <= set(heads)
    tab.driver.find_element("css selector", ".values.can [role=option]").click()
    tab.wait_for("8 found in 8 of 8 rows")


@pytest.mark.parametrize("name", ["gallery", "episodes"])
def test_pages_fit_a_phone(show: Show, request: pytest.FixtureRequest, name: str) -> None:
    path: Path = request.getfixturevalue(name)
    tab = show(path, path, width=390, height=844)
    for page in [*PAGES, "filter?filter=label+%3D%3D+2" if name == "gallery" else "filter"]:
        tab.open(page)
        tab.settle()
        assert tab.run("return [innerWidth, document.documentElement.scrollWidth]") == [390, 390], page


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("gallery", "rows?sample=20&seed=3&sort=score&down=1"),
        ("gallery", "rows?record=7&columns=%5B%22label%22%5D"),
        ("gallery", "filter?filter=label+%3D%3D+2&row=3"),
        ("gallery", "bytes?shard=1&offset=0"),
        ("gallery", "compare?a=1&b=0&row=8"),
        ("episodes", "episodes?row=2&step=5"),
    ],
)
def test_reload_shows_the_same(show: Show, request: pytest.FixtureRequest, name: str, address: str) -> None:
    path: Path = request.getfixturevalue(name)
    tab = show(path, path)
    tab.open(address)
    tab.settle()
    tab.wait("performance.getEntriesByType('resource').length > 0 && document.readyState === 'complete'")
    opened, text = tab.address(), tab.run("return document.querySelector('dialog, main').innerText")
    tab.driver.refresh()
    tab.wait("document.querySelector('dialog, main')?.innerText === arguments[0]", text)
    assert tab.address() == opened
    assert set(address.split("?")[1].split("&")) <= set(opened.split("?")[1].split("&"))


GOLDEN = DATA / "golden"
DAMAGED = sorted(path.name for path in GOLDEN.glob("damaged_*.tfrecord"))


@pytest.mark.parametrize("name", DAMAGED)
def test_map_shows_the_damage_that_repair_reports(show: Show, name: str) -> None:
    from dask_tfrecord.records.shard_check import check_shard
    from dask_tfrecord.shards.listing import find_shards

    (shard,) = find_shards(GOLDEN / name)
    report = check_shard(shard)
    tab = show(GOLDEN / name)
    tab.open("bytes")
    tab.wait_for("What repair would keep")
    tab.wait("document.querySelectorAll('.map [aria-selected=true]').length === 1")
    shown = tab.run("return [...document.querySelectorAll('#damage tbody tr')].map(e => e.children[0].textContent)")
    assert shown == [f"{each.start:,}" for each in report.lost]
    tab.wait("document.querySelector('.hex')?.textContent.length > 0")
    assert ("No damage" in tab.text()) == (not report.lost)


def test_rows_of_rows_and_damaged_rows_are_shown(show: Show, tmp_path: Path) -> None:
    dtf.Dataset.from_arrays({"x": [[[1, 2], [3]], [[4], []]], "number": np.arange(2)}).to_zarr(tmp_path / "a.zarr")
    tab = show(tmp_path / "a.zarr")
    tab.open("rows")
    tab.wait_for("1, 2, 3", ".layer .row")
    tab = show(GOLDEN / "damaged_payload_bit.tfrecord")
    tab.open("rows")
    tab.wait_for("the CRC of the payload does not match", ".layer .row .bad")
    title = tab.run("return document.querySelector('.layer .bad').title")
    assert "damaged_payload_bit.tfrecord: record 7" in title


def test_keys_move_through_the_map(show: Show, numbers: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    tab = show(numbers)
    tab.open("bytes?shard=1")
    tab.settle()
    tab.wait("location.hash.includes('offset=0')")
    across = tab.run("return Math.floor(document.querySelector('.map').clientWidth / 16)")
    named = "document.querySelector('.map [aria-selected=true]').getAttribute('aria-label').startsWith(arguments[0])"
    for key, record in (
        (Keys.ARROW_RIGHT, 1),
        (Keys.ARROW_DOWN, 1 + across),
        (Keys.ARROW_LEFT, across),
        (Keys.END, 1499),
    ):
        # The first key goes to the map, and moves from its first record.
        tab.press(*(("g", key) if record == 1 else (key,)))
        tab.wait(named, f"record {record}, ")
        tab.wait("document.activeElement.getAttribute('aria-selected') === 'true'")
    offset = tab.run("return document.activeElement.title.match(/byte (\\d+)/)[1]")
    tab.wait("location.hash.includes(arguments[0])", f"offset={offset}")
    tab.wait_for(f"Byte {int(offset):,}")
