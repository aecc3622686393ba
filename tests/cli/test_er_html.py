"""The page of ``er_html`` in a real browser: figures are er_print's, keys reach everything, nothing of the data runs.

All pages are looked at in one Chromium, which reaches no network.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from itertools import pairwise
from pathlib import Path
from typing import Any

import interpreted
import numpy as np
import prefork
import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.actions.mouse_button import MouseButton
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from collector.aggregate.language import compile_expression
from collector.aggregate.ready import READY
from collector.cli import er_html
from collector.errors import CollectorError
from collector.experiment.aggregations import Stored, pack
from collector.experiment.recorder import Header, Recorder
from collector.experiment.records import KEY_NAME, KEY_NUMBER

Completed = subprocess.CompletedProcess[str]

START_NS = 7_001_000_000_013
TICK_NS = 10_007_000
HEADER = Header(
    hostname="somewhere", os="Linux 6.1.0", arch="x86_64", page_size=4096, n_pages=262_147, cpus=[2500, 2501, 2503],
    pid=4711, ppid=4001, pgrp=4711, sid=4001, cwd=b"/tmp", arguments=b"/usr/bin/prog -a", wsize=64,
    interval_ns=TICK_NS, sample_period_s=1, start_ns=START_NS, start_unix=2_100_000_003, collector="collect 0.1")
HOSTILE = (
    b"</script><script>window.hacked = 1</script>", b'"><img src=x onerror="window.hacked = 2">',
    b"two\nlines\tand \0nul", b"not \xff\xfe UTF-8", b"long" * 1000,
    "\u202eright to left\u202c \u05d0\u05d1".encode(), b"${hacked} {{hacked}} &lt;", b"-->]]><!--")
PLAIN = (b"work", b"deeper", b"waits", b"main", b"again")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-breakpad",
         "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
         "--disable-extensions", "--window-size=1300,900")
VIEWS = ("summary", "flame", "timeline", "functions", "lines", "objects", "threads")


# --- experiments ----------------------------------------------------------------------------------


def made(path: Path, names: tuple[bytes, ...] = PLAIN, n: int = 3001, slow: int = 0) -> Path:
    """Two processes of threads that run, wait, and call themselves; functions without a file, of any name.

    ``slow``: so many ticks more in the first function.
    """
    path.mkdir(parents=True)
    for number, directory in enumerate((path, path / "_f1.er")):
        program = b"prog" if names is PLAIN else names[number]
        recorder = Recorder.create(directory, replace(HEADER, pid=4711 + number, arguments=b"/usr/bin/" + program))
        for thread in range(5):
            recorder.thread_started(4711 + thread, START_NS, names[thread % len(names)])
        for place, name in enumerate(names):
            recorder.function_mapped(START_NS, 0x10000 + 0x1000 * place, 0x1000, name)
        random = np.random.default_rng(20_261_124 + number)
        depth = random.integers(1, 6, 97)
        pcs = 0x10000 + 0x1000 * random.integers(0, len(names), (97, 6)) + random.integers(0, 9, (97, 6))
        pcs = np.where(np.arange(6) < depth[:, None], pcs, 0).astype(np.uint64)
        rows, chosen = np.arange(n), random.integers(0, 97, n)
        recorder.clock(4711 + random.integers(0, 5, n), rows % 3, START_NS + 5 + rows * 3_333_331,
                       recorder.frames.intern(pcs[chosen], depth[chosen]), random.choice([0, 0, 1, 2, 4, 6, 7, 8], n),
                       random.integers(1, 4, n) + slow * (pcs[chosen, 0] < 0x11000))
        recorder.close(START_NS + n * 3_333_331)
    return path


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of known contents."""
    return made(tmp_path_factory.mktemp("made") / "made.1.er")


def page_of(*arguments: Path | str, folder: Path, name: str = "page") -> Path:
    """The page that er_html makes."""
    path = folder / f"{name}.html"
    assert er_html.run([*map(str, arguments), "-o", str(path)]) == 0
    return path


# --- the browser ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chromium(need: Callable[[str, str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """A browser with nothing in it."""
    options = webdriver.ChromeOptions()
    options.binary_location = need("chromium", "chromium")
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(need("chromedriver", "chromium-driver"))
    driver = webdriver.Chrome(options=options, service=service)
    driver.set_page_load_timeout(60)
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture
def look(chromium: webdriver.Chrome) -> Iterator[Callable[..., webdriver.Chrome]]:
    """``look(page, "view=flame")``: the browser with a page open; the console must have stayed empty."""

    def open_page(page: Path, view: str = "") -> webdriver.Chrome:
        chromium.get("about:blank")
        chromium.get(f"{page.as_uri()}#{view}")
        settled(chromium, "return document.documentElement.dataset.ready")
        return chromium

    chromium.get_log("browser")
    yield open_page
    assert [one["message"] for one in chromium.get_log("browser")] == []


def settled(driver: webdriver.Chrome, script: str) -> Any:
    """What a script returns, once it returns something."""
    deadline = time.monotonic() + 30
    while not (found := driver.execute_script(script)):
        assert time.monotonic() < deadline, script
        time.sleep(0.02)
    return found


def drawn(driver: webdriver.Chrome) -> None:
    """Until what has happened is drawn, and figures have followed the selection."""
    two_frames = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done));"
    driver.execute_async_script(two_frames)
    settled(driver, "return !document.querySelector('[aria-busy=true]')")
    driver.execute_async_script(two_frames)


def table(driver: webdriver.Chrome, label: str) -> list[list[str]]:
    """The rows in the document of a table whose label begins so."""
    drawn(driver)
    found: list[list[str]] = driver.execute_script("""
        const all = [...document.querySelectorAll("table")];
        const table = all.find((one) => one.ariaLabel?.startsWith(arguments[0]));
        return table && [...table.tBodies[0].rows].filter((one) => !one.ariaHidden)
            .map((one) => [...one.cells].map((cell) => cell.textContent));""", label)
    return found


def printed(path: Path, *commands: str, capsys: pytest.CaptureFixture[str]) -> list[list[Any]]:
    """The rows that er_print prints, as it prints them: values, shares, names."""
    from collector.cli import er_print

    capsys.readouterr()
    assert er_print.run([*commands, str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [re.fullmatch(r" *((?:-?\d+\.?\d* +)+) ?(\S.*)", line) for line in lines]
    return [[*row[1].split(), row[2]] for row in rows if row]


# --- figures --------------------------------------------------------------------------------------

SELECTIONS = {
    "everything": ("totalcpu latency", "", ""),
    "a time": ("totalcpu lock", "from=2333331000&to=7000000015", "(TSTAMP >= 2333331000) && (TSTAMP < 7000000015)"),
    "threads": ("total", "threads=1.7", "((THRID == 2) && (EXPID == 1)) || ((THRID == 3) && (EXPID == 2))"),
    "a thread's time": ("latency", "from=3333331&to=5000000000&threads=6",
                        "(TSTAMP >= 3333331) && (TSTAMP < 5000000000) && (THRID == 2) && (EXPID == 2)"),
    "threads of both processes in a moment": (
        "sleep lock", "from=4999999&to=1234567891&threads=2.5.9",
        "(TSTAMP >= 4999999) && (TSTAMP < 1234567891) && (((THRID == 3) && (EXPID == 1)) || "
        "((THRID == 1) && (EXPID == 2)) || ((THRID == 5) && (EXPID == 2)))"),
    "until a packet": ("wait", "to=3333336", "(TSTAMP < 3333336)"),
    "from a packet on": ("system trap", "from=6666667", "(TSTAMP >= 6666667)"),
    "nothing": ("user", "from=90000000000&to=95000000000", "(TSTAMP >= 90000000000) && (TSTAMP < 95000000000)"),
}


@pytest.fixture(scope="module")
def page(experiment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of ``experiment``."""
    return page_of(experiment, folder=tmp_path_factory.mktemp("page"))


@pytest.mark.parametrize("chosen", SELECTIONS)
def test_tables_have_the_figures_of_er_print(page: Path, experiment: Path, look: Callable[..., webdriver.Chrome],
                                             capsys: pytest.CaptureFixture[str], chosen: str) -> None:
    metrics, address, expression = SELECTIONS[chosen]
    asked = ["-filters", expression] if expression else []
    for metric in metrics.split():
        driver = look(page, f"view=functions&metric={metric}&{address}")
        view = ["-metrics", f"e.%{metric}:i.%{metric}:name", *asked]
        wanted = printed(experiment, *view, "-functions", capsys=capsys)
        assert sorted(row[:5] for row in table(driver, "Functions")) == sorted(wanted), metric
        driver = look(page, f"view=threads&metric={metric}&{address}")
        wanted = printed(experiment, *view, "-threads", capsys=capsys)
        assert [row[:3] for row in table(driver, "Threads")][:1] == wanted[:1]
        assert sorted(row[:3] for row in table(driver, "Threads")) == sorted(wanted), metric


def test_functions_of_an_interpreter_are_those_of_er_print(need: Callable[[str, str], str], tmp_path: Path,
                                                           look: Callable[..., webdriver.Chrome],
                                                           capsys: pytest.CaptureFixture[str]) -> None:
    """Its own frames are left out, of comparisons, too."""
    one, other = (interpreted.recorded(tmp_path / f"{more}.er", need("gcc", "gcc"), more) for more in (0, 17))
    driver = look(page_of(one, folder=tmp_path), "view=functions&metric=user")
    wanted = printed(one, "-metrics", "e.%user:i.%user:name", "-functions", capsys=capsys)
    assert sorted(row[:5] for row in table(driver, "Functions")) == sorted(wanted)
    assert {row[4] for row in wanted} == {"<Total>", "<module>", "slow", "quick", "main"}
    rows = table(look(page_of("--compare", one, other, folder=tmp_path)), "Functions compared")
    assert sorted((row[0], row[1], row[-1]) for row in rows) == sorted(json_rows(one, other, capsys))
    assert {row[-1] for row in rows} == {row[4] for row in wanted}


def test_callers_and_callees_are_those_of_er_print(page: Path, experiment: Path,
                                                   look: Callable[..., webdriver.Chrome],
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    driver = look(page, "view=functions&metric=totalcpu&from=1000000000&to=8000000000")
    rows = printed(experiment, "-metrics", "e.%totalcpu:name", "-filters",
                   "(TSTAMP >= 1000000000) && (TSTAMP < 8000000000)", "-callers-callees", capsys=capsys)
    selves = [at for at, row in enumerate(rows) if row[2].startswith("*")]
    shown = [row[4] for row in table(driver, "Functions")]
    assert [rows[at][2] for at in selves] == [f"*{name}" for name in shown]
    for number, at in enumerate(selves[1:], 1):
        begin = selves[number - 1] + 1 + n_callees(rows, selves[number - 1])
        end = at + 1 + n_callees(rows, at)
        driver.execute_script("document.querySelectorAll('[aria-label^=Functions] tbody tr')[arguments[0]].click()",
                              number)
        assert sorted(table(driver, "Callers")) == sorted(rows[begin:at])
        assert sorted(table(driver, "Callees")) == sorted(rows[at + 1:end])
        driver.find_element("xpath", "//button[text()='Close']").click()
        drawn(driver)


def n_callees(rows: list[list[Any]], at: int) -> int:
    """How many rows behind a function's own are its callees: with it they add up to all."""
    so_far, n = float(rows[at][1]), 0
    while so_far < 99.9 or (at + 1 + n < len(rows) and not float(rows[at + 1 + n][0])):
        so_far, n = so_far + float(rows[at + 1 + n][1]), n + 1
    return n


@pytest.mark.parametrize("chosen", ["a time", "threads", "a thread's time", "nothing"])
def test_lines_and_objects_are_those_of_er_print(page: Path, experiment: Path, look: Callable[..., webdriver.Chrome],
                                                 capsys: pytest.CaptureFixture[str], chosen: str) -> None:
    _, address, expression = SELECTIONS[chosen]
    for view, label, command in (("lines", "Lines", "-lines"), ("objects", "Load objects", "-osummary")):
        driver = look(page, f"view={view}&metric=user&{address}")
        wanted = printed(experiment, "-metrics", "e.%user:i.%user:name", "-filters", expression, command,
                         capsys=capsys)
        assert sorted(row[:5] for row in table(driver, label)) == sorted(wanted)


STATES = {"User CPU": "user", "System CPU": "system", "Trap CPU": "trap", "Wait CPU": "wait", "User lock": "lock",
          "Text page fault": "textpfault", "Data page fault": "datapfault", "Kernel page fault": "kernelpfault",
          "Stopped": "stop", "Sleep": "sleep"}


@pytest.mark.parametrize("chosen", [one for one in SELECTIONS if one != "nothing"])
def test_states_are_those_of_er_print(page: Path, experiment: Path, look: Callable[..., webdriver.Chrome],
                                      capsys: pytest.CaptureFixture[str], chosen: str) -> None:
    _, address, expression = SELECTIONS[chosen]
    driver = look(page, f"view=summary&{address}")
    drawn(driver)
    shown = driver.execute_script("""return [...document.querySelectorAll(".legend li")].map((one) =>
        [one.querySelector("span").textContent, one.querySelector("b").textContent]);""")
    asked = ["-filters", expression] if expression else []
    wanted = {name: printed(experiment, "-metrics", f"e.{metric}:name", *asked, "-functions", capsys=capsys)[0]
              for name, metric in STATES.items()}
    assert {row[-1] for row in wanted.values()} == {"<Total>"}
    assert dict(shown) == {name: row[0] for name, row in wanted.items()}
    assert any(float(value) > 0 for _, value in shown)


def test_numbers_are_rounded_as_er_print_rounds_them(page: Path, look: Callable[..., webdriver.Chrome]) -> None:
    driver = look(page)
    values = [0, 1, 500, 499, 62_500, 187_500, 312_500, 12_500, 1_062_500, 999_999_500, 10_007, 2**40 + 500, -62_500]
    found = driver.execute_async_script("""const [values, done] = arguments; import("page/figures").then((module) =>
        done(values.map((one) => [module.seconds(one), module.share(one / 500000)])));""", values)
    assert found == [[f"{v / 1e6:.3f}" if v else "0.", f"{v / 500_000:.2f}" if v else "0."] for v in values]


def test_a_zero_before_the_point_is_kept(page: Path, look: Callable[..., webdriver.Chrome]) -> None:
    driver = look(page)
    values = [99_960_000, 99_960, 100_000_000, 12_000_000, 10_000, 1_500_000]
    found = driver.execute_async_script("""const [values, done] = arguments; import("page/figures").then((module) =>
        done(values.map(module.duration)));""", values)
    assert found == ["100 ms", "100 \u00b5s", "100 ms", "12 ms", "10 \u00b5s", "1.5 ms"]


def test_a_canvas_is_no_larger_than_browsers_take(page: Path, look: Callable[..., webdriver.Chrome]) -> None:
    """A side has 32,767 pixels at most, whatever the screen; what is larger is less sharp."""
    driver = look(page)
    found = driver.execute_async_script("""const done = arguments[0]; import("page/ui").then(({ ground }) => {
        const canvas = document.createElement("canvas");
        done([[40, 50], [10, 40000], [40000, 10]].map((sides) => {
            ground(canvas, ...sides);
            return [canvas.width, canvas.height, canvas.style.width, canvas.style.height];
        }));
    });""")
    assert found == [[40, 50, "40px", "50px"], [8, 32_767, "10px", "40000px"], [32_767, 8, "40000px", "10px"]]


def test_any_number_of_threads_has_a_table(page: Path, look: Callable[..., webdriver.Chrome]) -> None:
    """More than a function can have arguments, each in an experiment of its own."""
    driver = look(page)
    found = driver.execute_async_script("""const done = arguments[0];
        Promise.all(["recording", "tables", "ui", "states"].map((name) => import(`page/${name}`))).then((modules) => {
            const [{ Recording, ALL }, { Threads }, { html, render }, { N_STATES }] = modules;
            const n = 130000;
            const metric = { command: "user", title: "User", states: [0], unit: "us" };
            const recording = new Recording({
                experiments: Array.from({ length: n }, (_, i) => (
                    { begin_ns: -i, end_ns: 7 * i, interval_us: 1, program: "p" })),
                threads: Array.from({ length: n }, (_, i) => [i, 1, i, ""]),
                metrics: [metric], n_columns: N_STATES + 1, latency_column: N_STATES,
                columns: { parents: [], instructions: [], leaf: new Int32Array(n), counts: new Int32Array(n).fill(1),
                    firsts: new Float64Array(n), between: new Float64Array(n), column: new Uint8Array(n),
                    amount: new Int32Array(n).fill(3), latency: new Int32Array(n) } });
            const place = document.createElement("div");
            render(html`<${Threads} recording=${recording} metric=${metric} sums=${recording.allSums} selection=${ALL}
                onSelect=${() => 0} height=${400} />`, place);
            done([recording.begin, recording.end, place.querySelector("tbody").textContent.slice(0, 13)]);
        }).catch((error) => done(String(error)));""")
    assert found == [-129_999, 7 * 129_999, "0.390100.00<T"]


# --- keys -----------------------------------------------------------------------------------------


def press(driver: webdriver.Chrome, *keys: str) -> None:
    """Keys, as a person presses them."""
    chain = ActionChains(driver)
    for key in keys:
        chain.send_keys(key)
    chain.perform()
    drawn(driver)


def reach(driver: webdriver.Chrome, selector: str) -> None:
    """Tab until the focus is on what a selector finds."""
    for _ in range(60):
        if driver.execute_script("return document.activeElement.matches(arguments[0])", selector):
            return
        press(driver, Keys.TAB)
    raise AssertionError(f"the Tab key does not lead to {selector}")


def voices(driver: webdriver.Chrome) -> str:
    """What a screen reader is told."""
    return str(driver.execute_script(
        "return [...document.querySelectorAll('[role=status]')].map((one) => one.textContent).join('|')"))


def test_keys_reach_every_view(page: Path, look: Callable[..., webdriver.Chrome]) -> None:
    driver = look(page)
    press(driver, Keys.TAB)
    assert driver.execute_script("return document.activeElement.id") == "metric"  # the first thing on the page
    reach(driver, "[role=tab]")
    for view in VIEWS:
        assert driver.execute_script("return document.activeElement.id") == f"tab-{view}"
        assert driver.find_element("id", "panel").get_attribute("aria-labelledby") == f"tab-{view}"
        press(driver, Keys.ARROW_RIGHT)
    assert driver.execute_script("return document.activeElement.id") == "tab-summary"  # and around


def test_keys_zoom_and_search_the_flame_graph(page: Path, look: Callable[..., webdriver.Chrome]) -> None:
    driver = look(page, "view=flame&metric=total")
    reach(driver, "#flame-search")
    press(driver, "w", "o", "r", "k")
    assert re.search(r"\d+ % of .* is in stacks that match", driver.find_element("id", "flame-help").text)
    reach(driver, ".flame canvas")
    press(driver, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert re.search(r"\w+: .* of all; itself", voices(driver))
    press(driver, Keys.ENTER)
    assert driver.find_elements("xpath", "//button[text()='Reset zoom']")
    press(driver, Keys.ESCAPE)
    assert not driver.find_elements("xpath", "//button[text()='Reset zoom']")
    press(driver, Keys.ARROW_DOWN, Keys.ARROW_DOWN, "t")
    assert driver.execute_script("return document.querySelector('.neighbours .name').textContent") in [
        one.decode() for one in PLAIN]


def test_keys_select_in_the_timeline(page: Path, look: Callable[..., webdriver.Chrome]) -> None:
    driver = look(page, "view=timeline")
    reach(driver, ".timeline canvas")
    press(driver, Keys.HOME)
    assert "at 0" in voices(driver)
    ActionChains(driver).key_down(Keys.SHIFT).send_keys(Keys.ARROW_RIGHT * 10).key_up(Keys.SHIFT).perform()
    drawn(driver)
    assert float(driver.find_element("id", "bound-to").get_attribute("value") or 0) > 0.9
    press(driver, Keys.ENTER)
    assert "THRID" in driver.find_element("css selector", ".chosen code").text
    press(driver, Keys.ESCAPE)
    assert not driver.find_elements("css selector", ".chosen code")
    reach(driver, ".heat canvas")
    ActionChains(driver).key_down(Keys.SHIFT).send_keys(Keys.ARROW_DOWN * 4).key_up(Keys.SHIFT).perform()
    drawn(driver)
    assert "TSTAMP <" in driver.find_element("css selector", ".chosen code").text


def test_keys_walk_through_a_table(page: Path, look: Callable[..., webdriver.Chrome]) -> None:
    driver = look(page, "view=threads")
    reach(driver, "tbody tr")
    press(driver, Keys.ARROW_DOWN, Keys.ENTER)
    assert "THRID" in driver.find_element("css selector", ".chosen code").text
    assert driver.find_element("css selector", "tr.chosen").value_of_css_property("display") == "table-row"
    reach(driver, "body")
    reach(driver, "thead button")
    press(driver, Keys.ENTER)
    assert driver.find_element("css selector", "th").get_attribute("aria-sort") == "ascending"


def test_dragging_selects_what_the_bounds_say(page: Path, experiment: Path, look: Callable[..., webdriver.Chrome],
                                              capsys: pytest.CaptureFixture[str]) -> None:
    """And the filter that is shown, given to er_print, gives the same table."""
    driver = look(page, "view=functions")
    drawn(driver)  # a canvas has its size from then on
    strip = driver.find_element("css selector", ".strip canvas")
    mouse = ActionChains(driver).move_to_element_with_offset(strip, -200, 0).click_and_hold()
    mouse.move_by_offset(300, 3).release().perform()
    drawn(driver)
    shown = driver.find_element("css selector", ".chosen code").text
    wanted = printed(experiment, "-filters", shown.removeprefix("-filters '").removesuffix("'"), "-functions",
                     capsys=capsys)
    assert sorted(row[:5] for row in table(driver, "Functions")) == sorted(wanted)
    assert len(wanted) > len(PLAIN)


@pytest.mark.parametrize("canvas", [".strip canvas", ".timeline canvas", ".heat canvas"])
def test_only_the_first_button_selects_and_while_it_is_held(page: Path, look: Callable[..., webdriver.Chrome],
                                                            canvas: str) -> None:
    """Also where the page is not told that it was released, or that the drag is another one's."""
    driver = look(page, "view=timeline&metric=total")
    place = driver.find_element("css selector", canvas)
    driver.execute_script("""arguments[0].scrollIntoView({ block: "center" });
        addEventListener("contextmenu", (event) => event.preventDefault());""", place)
    drawn(driver)
    mouse = at_left_of(driver, place)
    mouse.w3c_actions.pointer_action.pointer_down(MouseButton.RIGHT)
    mouse.move_by_offset(200, 0)
    mouse.w3c_actions.pointer_action.pointer_up(MouseButton.RIGHT)
    mouse.perform()
    assert selected(driver) == ""
    driver.execute_script("""
        addEventListener("pointerup", (event) => event.stopImmediatePropagation(), { capture: true, once: true });""")
    at_left_of(driver, place).click_and_hold().move_by_offset(60, 0).release().perform()
    before = selected(driver)
    assert "TSTAMP <" in before
    ActionChains(driver, duration=20).move_by_offset(140, 0).perform()
    assert selected(driver) == before
    at_left_of(driver, place).click_and_hold().perform()
    before = selected(driver)
    driver.execute_script("arguments[0].dispatchEvent(new PointerEvent('pointercancel'))", place)
    ActionChains(driver, duration=20).move_by_offset(200, 0).release().perform()
    assert selected(driver) == before


def at_left_of(driver: webdriver.Chrome, element: Any) -> ActionChains:
    """The mouse goes there, 100 pixels from the middle."""
    return ActionChains(driver, duration=20).move_to_element_with_offset(element, -100, 0)


def selected(driver: webdriver.Chrome) -> str:
    """The filter of what is selected; nothing for all."""
    drawn(driver)
    return str(driver.execute_script("return document.querySelector('.chosen code')?.textContent ?? ''"))


# --- one view after another -----------------------------------------------------------------------


def recursed(path: Path) -> Path:
    """Three threads in one stack of thirty frames, the later ones for a shorter time."""
    path.mkdir()
    recorder = Recorder.create(path, HEADER)
    recorder.function_mapped(START_NS, 0x10000, 0x1000, b"again")
    (uid,) = recorder.frames.intern(np.full((1, 30), 0x10004, np.uint64), np.array([30]))
    for thread in range(3):
        n = 30 - 10 * thread
        recorder.clock(np.full(n, 4711 + thread), np.zeros(n, int), START_NS + TICK_NS * (1 + np.arange(n)),
                       np.full(n, uid), np.zeros(n, int), np.ones(n, int))
    recorder.close(START_NS + 30 * TICK_NS)
    return path


def enter(driver: webdriver.Chrome, identity: str, value: str) -> None:
    """A value into a field or a choice."""
    driver.execute_script("""const field = document.getElementById(arguments[0]); field.value = arguments[1];
        field.dispatchEvent(new Event("change", { bubbles: true }));""", identity, value)
    drawn(driver)


def is_zoomed(driver: webdriver.Chrome) -> bool:
    """Whether the flame graph shows a part of itself, and stands at all."""
    assert " in all." in driver.find_element("id", "flame-help").text
    return bool(driver.find_elements("xpath", "//button[text()='Reset zoom']"))


def test_a_zoomed_flame_graph_may_become_another(look: Callable[..., webdriver.Chrome], tmp_path: Path) -> None:
    """What was zoomed, pointed at and reached by keys is not in a smaller tree, nor in fewer threads."""
    driver = look(page_of(recursed(tmp_path / "again.1.er"), folder=tmp_path), "view=flame&metric=total")
    ActionChains(driver, duration=20).move_to_element(driver.find_element("css selector", ".flame canvas")).perform()
    reach(driver, ".flame canvas")
    press(driver, *[Keys.ARROW_DOWN] * 21, Keys.ENTER, *[Keys.ARROW_DOWN] * 21)
    assert is_zoomed(driver)
    enter(driver, "metric", "user")
    assert is_zoomed(driver)
    enter(driver, "flame-group", "object")
    assert not is_zoomed(driver)
    enter(driver, "flame-group", "function")
    for change in (lambda: driver.find_element("id", "flame-threads").click(),
                   lambda: enter(driver, "bound-from", "0.25")):
        if not driver.find_element("id", "flame-threads").is_selected():
            driver.find_element("id", "flame-threads").click()
        reach(driver, ".flame canvas")
        press(driver, Keys.HOME, Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ENTER,
              *[Keys.ARROW_DOWN] * 9)
        assert is_zoomed(driver)
        change()
        drawn(driver)
        assert not is_zoomed(driver)


PAINTED = """
const copy = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
copy.drawImage(document.querySelector(".heat canvas"), 0, 0);
return copy.getImageData(0, 0, 300, 150).data.some(Boolean);"""


def test_a_heat_map_comes_back_after_nothing(page: Path, look: Callable[..., webdriver.Chrome]) -> None:
    driver = look(page, "view=timeline&metric=stop")
    for _ in range(2):
        assert "There is nothing of Stopped Time to show." in driver.find_element("css selector", ".heat").text
        enter(driver, "metric", "user")
        assert settled(driver, PAINTED)
        enter(driver, "metric", "stop")


def test_an_address_has_threads_that_there_are(page: Path, look: Callable[..., webdriver.Chrome]) -> None:
    for threads in ("-1", "1e-1.10.x"):
        assert selected(look(page, f"view=timeline&threads={threads}")) == ""
    assert "((THRID == 3) && (EXPID == 1))" in selected(look(page, "view=timeline&threads=-1.2.7"))


def test_the_page_follows_its_address(page: Path, look: Callable[..., webdriver.Chrome]) -> None:
    driver = look(page, "view=flame")
    settled(driver, "return location.hash === '#view=flame&metric=totalcpu'")  # which the page wrote itself
    driver.execute_script("location.hash = 'metric=lock&view=threads&from=1000&threads=2'")
    settled(driver, "return location.hash === '#view=threads&metric=lock&from=1000&threads=2'")
    assert driver.find_element("id", "panel").get_attribute("aria-labelledby") == "tab-threads"
    assert driver.execute_script("return document.getElementById('metric').value") == "lock"
    assert selected(driver) == "-filters '(TSTAMP >= 1000) && ((THRID == 3) && (EXPID == 1))'"
    driver.execute_script("location.hash = 'view=threads&metric=lock'")
    settled(driver, "return !document.querySelector('.chosen code')")


# --- small windows, and paper ---------------------------------------------------------------------


def test_what_keys_reach_is_in_sight_in_a_small_window(page: Path, look: Callable[..., webdriver.Chrome]) -> None:
    """The tab that is shown, and the frame that the arrow keys are on."""
    driver = look(page, "view=threads")
    before = driver.get_window_size()
    try:
        driver.set_window_size(500, 430)
        driver = look(page, "view=threads")
        comes_in_sight(driver, "#tab-threads")
        driver = look(page, "view=flame&metric=total")
        reach(driver, ".flame canvas")
        press(driver, *[Keys.ARROW_DOWN] * 6)
        comes_in_sight(driver, ".flame-mark")
    finally:
        driver.set_window_size(before["width"], before["height"])


def comes_in_sight(driver: webdriver.Chrome, selector: str) -> None:
    """It is scrolled there when it has been drawn."""
    WebDriverWait(driver, 20).until(lambda _: driver.execute_script(IN_SIGHT, selector))


IN_SIGHT = """
const box = document.querySelector(arguments[0]).getBoundingClientRect();
return box.top >= 0 && box.left >= -1 && box.bottom <= innerHeight + 1 && box.right <= innerWidth + 1;"""


def test_paper_has_all_rows_on_light_ground(look: Callable[..., webdriver.Chrome], tmp_path: Path) -> None:
    """Also those that are not in sight, and of a dark page; afterwards it is as it was."""
    names = tuple(b"function_%d" % i for i in range(71))
    driver = look(page_of(made(tmp_path / "long.er", names, 1009), folder=tmp_path), "view=functions&metric=total")
    if driver.execute_script("return document.documentElement.dataset.theme") == "light":
        driver.find_element("xpath", "//button[text()='Dark']").click()
    n_in_sight = len(table(driver, "Functions"))
    n_all = int(driver.find_element("css selector", "[aria-label^=Functions][aria-rowcount]").get_attribute(
        "aria-rowcount") or 0) - 1
    driver.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert driver.execute_script("return document.documentElement.dataset.theme") == "light"
    assert n_in_sight < len(table(driver, "Functions")) == n_all
    driver.execute_script("window.dispatchEvent(new Event('afterprint'))")
    assert driver.execute_script("return document.documentElement.dataset.theme") == "dark"
    assert len(table(driver, "Functions")) == n_in_sight


# --- what the data may hold -----------------------------------------------------------------------


def test_nothing_of_the_data_runs(look: Callable[..., webdriver.Chrome], tmp_path: Path) -> None:
    """Whatever functions, threads, programs and files are called, it is text."""
    path = made(tmp_path / "<img src=x onerror='window.hacked=3'>.er", HOSTILE, 401)
    page = page_of(path, folder=tmp_path)
    for view in VIEWS:
        driver = look(page, f"view={view}&metric=total")
        drawn(driver)
        assert driver.execute_script("return window.hacked === undefined")
        assert driver.execute_script("return document.querySelectorAll('img, iframe, object').length") == 0
        assert driver.execute_script("return document.scripts.length") == 2  # the map of imports, and what it starts
    driver = look(page, "view=functions&metric=total")
    names = [row[4] for row in table(driver, "Functions")]
    assert "</script><script>window.hacked = 1</script>" in names
    assert "two\\nlines\\tand \\x00nul" in names
    assert "not \\xff\\xfe UTF-8" in names
    assert "long" * 1000 in names
    assert "\\u202eright to left\\u202c \u05d0\u05d1" in names


def test_a_page_asks_nothing_of_a_network(page: Path, look: Callable[..., webdriver.Chrome]) -> None:
    text = page.read_text("utf-8")
    assert not re.search(r"""(?:src|href)=["']?(?!data:)\w""", text)
    driver = look(page)
    asked = driver.execute_script("return performance.getEntriesByType('resource').map((one) => one.name.slice(0, 5))")
    assert set(asked) <= {"data:"}
    is_refused = driver.execute_async_script(
        "const done = arguments[0]; fetch('data:,x').then(() => done(false), () => done(true));")
    assert is_refused
    chromium_said = [one["message"] for one in driver.get_log("browser")]
    assert all("Content Security Policy" in one for one in chromium_said)


# --- which experiments ----------------------------------------------------------------------------


def test_an_experiment_without_packets(look: Callable[..., webdriver.Chrome], tmp_path: Path) -> None:
    path = tmp_path / "empty.1.er"
    path.mkdir()
    Recorder.create(path, HEADER).close(START_NS + 1)
    page = page_of(path, folder=tmp_path)
    for view in VIEWS:
        look(page, f"view={view}")
    text = look(page, "view=summary").find_element("css selector", "main").text
    for words in ("No time was recorded", "Nothing was sampled", "No thread has any time to show", "0 packets"):
        assert words in text


def test_an_experiment_of_one_packet(look: Callable[..., webdriver.Chrome], tmp_path: Path) -> None:
    """Every view shows it; nothing is divided by what is not there."""
    path = tmp_path / "one.1.er"
    path.mkdir()
    recorder = Recorder.create(path, HEADER)
    recorder.function_mapped(START_NS, 0x10000, 0x1000, b"work")
    recorder.clock(np.array([4711]), np.array([0]), np.array([START_NS + TICK_NS]), recorder.frames.intern(
        np.array([[0x10004]], np.uint64), np.array([1])), np.array([0]), np.array([1]))
    recorder.close(START_NS + TICK_NS)
    page = page_of(path, folder=tmp_path)
    for view in VIEWS:
        text = look(page, f"view={view}").find_element("css selector", "main").text
        assert "NaN" not in text
        assert "Infinity" not in text
    assert [row[:5] for row in table(look(page, "view=functions"), "Functions")] == [
        ["0.010", "100.00", "0.010", "100.00", name] for name in ("<Total>", "work")]
    assert "work has 100 % of the CPU time" in look(page).find_element("css selector", ".findings").text.replace(
        "\u00a0", " ")


def of_program(path: Path, program: Path, slow: int) -> Path:
    """Stacks in the functions of a compiled program; ``slow``: so many ticks more in the first of them."""
    symbols = {words[2]: int(words[0], 16) for line in subprocess.run(
        ["nm", program], capture_output=True, text=True, check=True).stdout.splitlines()
        if len(words := line.split()) == 3}
    base = 0x5555_5555_4000
    leaves = [base + symbols[name] + 5 for name in ("leaky", "fine", "held", "input_and_output", "work")]
    path.mkdir()
    recorder = Recorder.create(path, HEADER)
    recorder.segment_mapped(START_NS, base + 0x1000, 0x1000, 0x1000, os.fsencode(program), 5)
    uids = recorder.frames.intern(np.array([(leaf, base + symbols["main"] + 0x40) for leaf in leaves], np.uint64),
                                  np.full(len(leaves), 2))
    rows = np.arange(4001)
    recorder.clock(np.full(4001, 4711), rows % 2, START_NS + 5 + rows * TICK_NS, uids[rows % 5], np.zeros(4001, int),
                   1 + slow * (rows % 5 == 0))
    recorder.close(START_NS + 4001 * TICK_NS)
    return path


def test_a_comparison_has_the_figures_of_er_print(workload: Callable[..., Path], look: Callable[..., webdriver.Chrome],
                                                  tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = workload("kinds", "-O0", "-gdwarf-4")
    one, other = (of_program(tmp_path / f"{name}.1.er", program, slow) for name, slow in (("one", 0), ("other", 2)))
    driver = look(page_of("--compare", one, other, folder=tmp_path))
    rows = table(driver, "Functions compared")
    assert sorted((row[0], row[1], row[-1]) for row in rows) == sorted(json_rows(one, other, capsys))
    assert {row[-1]: row[3].endswith("~") for row in rows} == {
        "<Total>": False, "main": False, "leaky": False, "fine": True, "held": True, "input_and_output": True,
        "work": True}
    reach(driver, ".flame canvas")
    press(driver, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert "leaky:" in voices(driver)


def test_nothing_is_compared_where_no_times_were_recorded(look: Callable[..., webdriver.Chrome],
                                                          tmp_path: Path) -> None:
    """The page is as it is of one of them, and says so."""
    paths = [tmp_path / f"{name}.1.er" for name in ("one", "other")]
    for path in paths:
        path.mkdir()
        Recorder.create(path, replace(HEADER, interval_ns=0, numstates=0)).close(START_NS + 1)
    driver = look(page_of("--compare", *paths, folder=tmp_path))
    assert driver.find_element("id", "panel").text == "There is nothing to compare: no times were recorded."
    assert "No time was recorded" in look(tmp_path / "page.html", "view=summary").find_element("id", "panel").text


INLINED_C = """\
static inline __attribute__((always_inline)) unsigned long churn(unsigned long n)
{
    for (unsigned long i = 0; i < 9; i++)
        n = n * 7 + (n >> 3);
    return n;
}

__attribute__((noinline)) unsigned long work(unsigned long n)
{
    return churn(n) / (n | 1);
}

int main(int n, char **v)
{
    (void)v;
    return work(n) & 1;
}
"""


def test_the_code_of_a_function_tells_what_was_inlined(need: Callable[[str, str], str], tmp_path: Path,
                                                       look: Callable[..., webdriver.Chrome]) -> None:
    """Below a heading with what it took; the headings together are the function. Instructions tell from where."""
    (tmp_path / "inlined.c").write_text(INLINED_C)
    program = tmp_path / "inlined"
    subprocess.run([need("gcc", "gcc"), "-O1", "-g", "-o", program, tmp_path / "inlined.c"], check=True)
    listed = [line.split() for line in subprocess.run(["nm", "-S", program], capture_output=True, text=True,
                                                      check=True).stdout.splitlines()]
    begin, size = next((int(words[0], 16), int(words[1], 16)) for words in listed if words[-1] == "work")
    base, path = 0x5555_5555_4000, tmp_path / "inlined.1.er"
    path.mkdir()
    recorder = Recorder.create(path, replace(HEADER, start_unix=2_100_000_003))
    recorder.segment_mapped(START_NS, base + 0x1000, 0x1000, 0x1000, os.fsencode(program), 5)
    rows = np.arange(size)
    uids = recorder.frames.intern((base + begin + rows).astype(np.uint64)[:, None], np.ones(size, np.int64))
    recorder.clock(np.full(size, 4711), rows % 2, START_NS + 5 + rows * TICK_NS, uids, np.zeros(size, int),
                   np.ones(size, int))
    recorder.close(START_NS + size * TICK_NS)
    driver = look(page_of(path, folder=tmp_path), "view=code")
    found = table(driver, "Source of work")
    heads = [at for at, row in enumerate(found) if not row[2] and row[0]]
    assert [found[at][3] for at in heads] == ["<Function: work>", "churn, inlined from inlined.c"]
    assert sum(ticks(found[at][0]) for at in heads) == size
    at = heads[1]
    assert sum(ticks(row[0]) for row in found[at + 1:]) == ticks(found[at][0]) > 0
    assert ("4", "        n = n * 7 + (n >> 3);") in [(row[2], row[3]) for row in found[at:]]
    driver.execute_script("""const kind = document.getElementById("code-kind"); kind.value = "disasm";
        kind.dispatchEvent(new Event("change", { bubbles: true }));""")
    found = table(driver, "Instructions of work")
    assert ("4", "inlined.c: churn") in [(row[2], row[3]) for row in found]
    assert any(row[2] == "10" and not row[3] for row in found)


def ticks(seconds: str) -> int:
    return round(float(seconds or 0) * 1e9 / TICK_NS)


def json_rows(one: Path, other: Path, capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str, str]]:
    """Both sides of each function, by er_print."""
    from collector.cli import er_print

    capsys.readouterr()
    assert er_print.run(["-printmode", "json", "-compare", "on", "-metrics", "i.totalcpu:name", "-functions", str(one),
                         str(other)]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    return [(*(f"{value:.3f}" if value else "0." for value in (row["i.totalcpu@1"], row["i.totalcpu@2"])), row["name"])
            for row in document["rows"]]


# --- what is worth knowing ------------------------------------------------------------------------

USER, LOCK, SLEEP, WAIT = 0, 6, 7, 8
N_LIBRARIES = 5
IN_PROGRAM, IN_LIBRARY, IN_KERNEL = 0x5555_5555_5000, 0x7FFF_F000_0000, 0xFFFF_FFFF_8100_0000


def lived(path: Path, program: Path, pieces: list[tuple[int, int, tuple[str, ...], int]],
          warnings: Sequence[str] = ()) -> Path:
    """A program whose threads were in states at stacks of its functions, by (thread, state, stack, ticks).

    Functions are named ``work`` where they are the program's, else ``lib:0``, ``kernel:0`` or ``python:name``.
    """
    path.mkdir()
    recorder = Recorder.create(path, HEADER)
    recorder.segment_mapped(START_NS - 1, IN_KERNEL, 0x10000, 0, b"kernel", 5)
    recorder.segment_mapped(START_NS, IN_PROGRAM, 0x1000, 0x1000, os.fsencode(program), 5)
    for place in range(N_LIBRARIES):
        recorder.segment_mapped(START_NS, IN_LIBRARY + 0x1000 * place, 0x1000, 0, b"/usr/lib/lib%d.so" % place, 5)
    symbols = {words[2]: int(words[0], 16) for line in subprocess.run(
        ["nm", program], capture_output=True, text=True, check=True).stdout.splitlines()
        if len(words := line.split()) == 3}
    dynamic: dict[str, int] = {}

    def pc(name: str) -> int:
        where, _, which = name.partition(":")
        if not which:
            return IN_PROGRAM - 0x1000 + symbols[where] + 5
        if where == "python":
            if which not in dynamic:
                dynamic[which] = 0x10000 + 0x1000 * len(dynamic)
                recorder.function_mapped(START_NS, dynamic[which], 0x1000, which.encode())
            return dynamic[which] + 1
        return (IN_LIBRARY if where == "lib" else IN_KERNEL) + 0x1000 * int(which)

    n_ticks = [0] * 10
    for thread, state, stack, ticks in pieces:
        n_ticks[thread] += ticks
        pcs = np.array([[pc(name) for name in stack]], np.uint64)
        recorder.clock(np.array([4711 + thread]), np.array([0]), np.array([START_NS + n_ticks[thread] * TICK_NS]),
                       recorder.frames.intern(pcs, np.array([len(stack)])), np.array([state]), np.array([ticks]))
    for warning in warnings:
        recorder.warning(warning)
    recorder.close(START_NS + max(n_ticks) * TICK_NS)
    return path


LIVES: dict[str, tuple[list[tuple[int, int, tuple[str, ...], int]], list[str]]] = {
    "its own code": (
        [(0, USER, ("leaky", "main"), 70), (0, USER, ("fine", "main"), 30)],
        ["leaky has 70 % of the CPU time itself (700 ms of 1.00 s).",
         "The threads ran for 100 % of their time: what limits this program is the CPU time that it needs."]),
    "libraries for it": (
        [(0, USER, (f"lib:{i}", "leaky", "main"), 14) for i in range(N_LIBRARIES)] + [(0, USER, ("fine", "main"), 30)],
        ["leaky, with what it calls in libraries, has 70 % of the CPU time (700 ms of 1.00 s)."]),
    "an interpreter": (
        [(0, USER, ("work", "python:hot", "main"), 61), (0, USER, ("fine", "python:cold", "main"), 39)],
        ["work has 61 % of the CPU time itself (610 ms of 1.00 s), mostly for hot."]),
    "locks, seen from the kernel": (
        [(i, LOCK, ("kernel:1", "kernel:2", "held", "main"), 90) for i in range(2)]
        + [(2, USER, ("leaky", "main"), 90)],
        ["Threads waited for each other (locks, conditions, joins) for 1.80 s, 67 % of their time, longest in held "
         "(1.80 s)."]),
    "too few CPUs": (
        [(i, WAIT, ("leaky", "main"), 100) for i in range(5)] + [(i, USER, ("leaky", "main"), 20) for i in range(5)],
        ["Threads waited for a CPU for 5.00 s, 83 % of their time: on average 5.0 threads wanted to run, on 3 CPUs."]),
    "others on the CPUs": (
        [(0, WAIT, ("leaky", "main"), 50), (0, USER, ("leaky", "main"), 50)],
        ["Threads waited for a CPU for 500 ms, 50 % of their time: no more than 1.0 threads on average wanted to run, "
         "on 3 CPUs"]),
    "sleep": (
        [(0, SLEEP, ("kernel:1", "input_and_output", "main"), 90), (0, USER, ("leaky", "main"), 10)],
        ["leaky has 100 % of the CPU time itself (100 ms of 100 ms).",
         "Threads slept for 901 ms, 90 % of their time, longest in input_and_output (901 ms)."]),
}


@pytest.mark.parametrize("life", LIVES)
def test_what_is_worth_knowing_of_a_program(workload: Callable[..., Path], look: Callable[..., webdriver.Chrome],
                                            tmp_path: Path, life: str) -> None:
    pieces, sentences = LIVES[life]
    path = lived(tmp_path / "lived.1.er", workload("kinds", "-O0", "-gdwarf-4"), pieces)
    driver = look(page_of(path, folder=tmp_path))
    said = [one.text.replace("\u00a0", " ") for one in driver.find_elements("css selector", ".findings li")]
    for sentence in sentences:
        assert any(one.startswith(sentence) for one in said), (sentence, said)


def test_recordings_are_told_apart(workload: Callable[..., Path], look: Callable[..., webdriver.Chrome],
                                   tmp_path: Path) -> None:
    """They did not run side by side, have each their path, and what not all of them say is said with a name."""
    pieces, sentences = LIVES["too few CPUs"]
    program = workload("kinds", "-O0", "-gdwarf-4")
    paths = [lived(tmp_path / f"{name}.1.er", program, pieces, ("for both", f"for {name}")) for name in ("one", "two")]
    driver = look(page_of(*paths, folder=tmp_path))
    said = [one.text.replace("\u00a0", " ") for one in driver.find_elements("css selector", ".findings li")]
    assert sentences[0].replace("5.00 s", "10.0 s") in said
    names = [one.text for one in driver.find_elements("css selector", ".about dt")]
    values = [one.text for one in driver.find_elements("css selector", ".about dd")]
    assert [value for name, value in zip(names, values, strict=True) if name == "experiment"] == list(map(str, paths))
    assert [one.text for one in driver.find_elements("css selector", ".quality .warning span")][1:] == [
        "for both", "one.1.er: for one", "two.1.er: for two"]


def damage() -> Any:
    """``scripts/damage`` as a module."""
    import sys

    path = Path(__file__).resolve().parents[2] / "scripts" / "damage"
    spec = spec_from_loader("damage_of_pages", SourceFileLoader("damage_of_pages", str(path)))
    assert spec is not None and spec.loader is not None
    module = sys.modules["damage_of_pages"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_damaged_experiments_make_a_page_or_an_error(need: Callable[[str, str], str], tmp_path: Path) -> None:
    """Of ours and of gprofng's collector."""
    need("gcc", "gcc")
    need("gprofng", "binutils")
    module = damage()
    program = Path(module.compiled(tmp_path))
    originals = (module.written(tmp_path, program), module.of_gprofng(tmp_path, program, "-s", "on", "-H", "on"))
    ends = {True: 0, False: 0}
    for number in range(12):
        original = originals[number % 2]
        copy = tmp_path / f"damaged{number}" / original.name
        shutil.copytree(original, copy, symlinks=True)
        hurt(copy, number)
        try:
            er_html.made([str(copy)], n_code=3)
            ends[True] += 1
        except CollectorError:
            ends[False] += 1
    assert ends[True] > 5


def hurt(experiment: Path, number: int) -> None:
    """Bytes of one of its files are changed, or it is cut."""
    random = np.random.default_rng(number)
    files = sorted(one for one in experiment.rglob("*") if one.is_file() and not one.is_symlink()
                   and "archives" not in one.parts)
    file = files[int(random.integers(len(files)))]
    content = bytearray(file.read_bytes())
    if not content:
        return
    if number % 3 == 0:
        file.write_bytes(content[:int(random.integers(len(content)))])
        return
    for _ in range(20):
        content[int(random.integers(len(content)))] = int(random.integers(256))
    file.write_bytes(content)


# --- aggregations ---------------------------------------------------------------------------------


def aggregated(expression: str, values: dict[tuple[int, ...], list[int]], names: Sequence[bytes] = (),
               n_dropped: int = 0) -> Stored:
    """What was recorded by key, of keys of numbers; with ``names`` those below 0 are names, from the first on: -1."""
    query = compile_expression(expression)
    states = [query.fold.empty() for _ in values]
    for state, each in zip(states, values.values(), strict=True):
        query.fold.add(state, each)
    keys = np.array([*values])
    kinds = [KEY_NAME if (column < 0).any() else KEY_NUMBER for column in keys.T]
    return Stored(query.expression, tuple(kinds), np.where(keys < 0, -1 - keys, keys), np.array(states), len(values),
                  tuple(names), n_dropped)


def page_with(path: Path, *stored: Stored) -> Path:
    """The page of an experiment that has these aggregations, and nothing else."""
    path.mkdir()
    recorder = Recorder.create(path, HEADER)
    recorder.aggregations(pack(stored))
    recorder.close(START_NS + 1)
    return page_of(path, folder=path.parent)


def test_values_of_aggregations_have_the_unit_of_their_expression(look: Callable[..., webdriver.Chrome],
                                                                  tmp_path: Path) -> None:
    """Times were divided, a variance is no time, and a bucket without a lower bound ends where the next one begins."""
    page = page_with(
        tmp_path / "units.1.er", aggregated("sums[tid] = sum(sleep / 1ms)", {(7,): [200, 300]}),
        aggregated("plain[tid] = sum(sleep)", {(7,): [500_000]}),
        aggregated("times[tid] = sum(switches / 2)", {(7,): [500_000]}),
        aggregated("spread[tid] = variance(sleep)", {(7,): [0, 2_000_000]}),
        aggregated("pieces[tid] = lquantize(sleep / 1ms, 10, 30, 5)", {(7,): [3, 12, 12, 31]}, n_dropped=1_002))
    driver = look(page, "view=aggregations")
    found = {name: [row[0] for row in table(driver, name)] for name in ("sums", "plain", "times", "spread")}
    assert found == {"sums": ["500 ms"], "plain": ["500 \u00b5s"], "times": ["500,000"],
                     "spread": ["2,000,000,000,000"]}
    bounds = [one.text for one in driver.find_elements("css selector", ".histogram td:first-child")]
    assert bounds == ["< 10 ms", "10 ms", "15 ms", "30 ms"]
    assert [one.text for one in driver.find_elements("css selector", ".aggregations .under")][-1] == (
        "1,002 values are of keys for which the recording had no room.")


def test_what_a_page_has_not_of_aggregations_is_said(look: Callable[..., webdriver.Chrome], tmp_path: Path) -> None:
    """Of keys those with the largest values are there, as histograms, too, and the longest waits."""
    page = page_with(
        tmp_path / "many.1.er", aggregated("few[tid] = sum(sleep)", {(one,): [one] for one in range(1, 61)}),
        aggregated("many[tid] = sum(sleep)", {(one,): [one] for one in range(1, 1_062)}),
        aggregated("pieces[tid] = quantize(sleep)", {(one,): [1 << one] for one in range(1, 41)}),
        aggregated(READY["wakers"], {(-1, one, -2, one + 1, -3): [one] for one in range(1, 402)},
                   (b"waker", b"woken", b"sleep")))
    driver = look(page, "view=aggregations")
    drawn(driver)
    notes = [one.text for one in driver.find_elements("css selector", ".aggregations .under")]
    assert [note for note in notes if note.startswith("The page has")] == [
        "The page has 400 of 401 rows, those with the longest waits.",
        "The page has 60 of 1,061 keys, those with the largest values.",
        "The page has 60 of 401 keys, those with the largest values."]
    assert len(driver.find_elements("css selector", ".histogram")) == 40
    assert table(driver, "many")[0][0] == "1.06 \u00b5s"


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def command(collect: Callable[..., Completed]) -> Callable[..., Completed]:
    """``command("-o", path, experiment)``: the installed er_html."""
    import sys

    def run(*arguments: str | Path, **options: Any) -> Completed:
        return prefork.run([Path(sys.executable).parent / "er_html", *map(str, arguments)], capture_output=True,
                           text=True, timeout=120, **options)

    return run


def test_the_command(command: Callable[..., Completed], experiment: Path, tmp_path: Path) -> None:
    done = command(experiment, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"made\.1\.html: \d+\.\d MB; open it in a browser\n", done.stdout)
    assert os.listdir(tmp_path) == ["made.1.html"]
    assert command("--version").stdout.startswith("er_html ")
    assert "Usage: er_html" in command("--help").stdout


@pytest.mark.parametrize(("arguments", "words"), [
    ((), "no experiment given"), (("--compare", "a.er"), "two experiments"), (("nothing.er",), "not an experiment"),
    (("--code", "x", "a.er"), "give a number"), (("--code", "0" * 5000, "a.er"), "give a number"),
    (("--odd",), "er_html --help"),
    (("-o", "/nonexistent/x.html", "EXPERIMENT"), "-o gives another file")])
def test_errors_are_one_line(arguments: tuple[str, ...], words: str, experiment: Path,
                             command: Callable[..., Completed]) -> None:
    done = command(*(str(experiment) if one == "EXPERIMENT" else one for one in arguments))
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_is_no_file_is_written_into_and_stays(experiment: Path, command: Callable[..., Completed],
                                                   tmp_path: Path) -> None:
    """A full device, a pipe with a name, the file behind a link: none of them is replaced."""
    full, pipe, link, target = (tmp_path / name for name in ("full", "pipe", "link", "target.html"))
    full.symlink_to("/dev/full")
    done = command("-o", full, experiment)
    assert (done.returncode, done.stderr) == (2, f"er_html: {full}: No space left on device; -o gives another file\n")
    assert full.is_symlink()
    assert full.is_char_device()
    os.mkfifo(pipe)
    with target.open("w") as file, subprocess.Popen(["cat", pipe], stdout=file) as reader:
        assert command("-o", pipe, experiment).returncode == 0
        assert reader.wait(timeout=60) == 0
    assert target.read_text().endswith("</html>\n")
    assert pipe.is_fifo()
    target.write_text("old")
    link.symlink_to(target.name)
    assert command("-o", link, experiment).returncode == 0
    assert link.is_symlink()
    assert target.read_text().endswith("</html>\n")
    assert sorted(os.listdir(tmp_path)) == ["full", "link", "pipe", "target.html"]


def test_the_standard_output_by_its_path_has_only_the_page(experiment: Path, command: Callable[..., Completed]) -> None:
    done = command("-o", "/dev/stdout", experiment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("</html>\n")


def test_collect_makes_the_page_at_the_end(collect: Callable[..., Completed], perf_allowed: None,
                                           tmp_path: Path) -> None:
    """Named after the experiment or as it is told; words of the program's own stay as they are."""
    done = collect("--html", "-o", "a.er", "sh", "-c", 'exit $(($# + 2))', "--html=b", cwd=tmp_path)
    assert (done.returncode, "a.html: " in done.stderr) == (2, True)
    assert collect("--html=c.html", "-o", "d.er", "true", cwd=tmp_path).returncode == 0
    assert sorted(one.name for one in tmp_path.glob("*.html")) == ["a.html", "c.html"]
    failing = collect("--html=/nonexistent/x", "-o", "e.er", "true", cwd=tmp_path)
    assert (failing.returncode, failing.stderr.count("--html: /nonexistent/x")) == (0, 1)


def test_aggregations_say_what_they_are_of(collect: Callable[..., Completed], workload: Callable[..., Path],
                                           look: Callable[..., webdriver.Chrome], perf_allowed: None,
                                           tmp_path: Path) -> None:
    """They were summed up by key: a thread can be chosen where the key has it, a time cannot."""
    done = collect("--html", "-o", "a.er", "--aggregate", "each[tid] = count()", "--aggregate",
                   "every[execname] = count()", workload("split"), "0.5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    seen = {}
    for address in ("", "threads=1", "threads=1&from=1000000"):
        driver = look(tmp_path / "a.html", f"view=aggregations&{address}")
        notes = [one.text for one in driver.find_elements("css selector", ".whole")]
        seen[address] = [row[2] for row in table(driver, "each")], notes
        assert len(table(driver, "every")) == 1
    tid = str(driver.execute_script("return page.recording.threads[1][2]"))
    whole = "Of the whole recording, not of what is selected."
    assert tid in seen[""][0]
    assert len(seen[""][0]) == 3
    assert seen[""][1] == []
    assert seen["threads=1"] == ([tid], ["Of the threads selected.", whole])
    assert seen["threads=1&from=1000000"] == (
        [tid], ["Of the threads selected, over the whole recording: not of the time selected.", whole])


def test_empty_buckets_between_others_have_a_row(collect: Callable[..., Completed], tmp_path: Path, perf_allowed: None,
                                                 look: Callable[..., webdriver.Chrome]) -> None:
    done = collect("--html", "-o", "a.er", "--aggregate", "q = quantize(sleep)", "sh", "-c",
                   "sleep 0.003; sleep 0.6; :", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    driver = look(tmp_path / "a.html", "view=aggregations")
    shown = [int(row.text) for row in driver.find_elements("css selector", ".histogram td:last-child")]
    buckets = driver.execute_script("return page.recording.aggregations[0].recorded[0].buckets")
    expected = [buckets[0]["count"]]
    for before, bucket in pairwise(buckets):
        expected += ([0] if bucket["min"] > before["max"] + 1 else []) + [bucket["count"]]
    assert shown == expected
    assert 0 in shown


def test_a_page_of_what_was_attached_to(collect: Callable[..., Completed], workload: Callable[..., Path],
                                        look: Callable[..., webdriver.Chrome], attach_allowed: None,
                                        tmp_path: Path) -> None:
    with subprocess.Popen([workload("busy"), "2", "1000000000"], stdout=subprocess.DEVNULL) as target:
        try:
            done = collect("--html", "-o", "attached.er", "-t", "1", "-P", str(target.pid), cwd=tmp_path)
        finally:
            target.kill()
    assert done.returncode == 0, done.stderr
    driver = look(tmp_path / "attached.html", "view=flame&metric=total")
    assert driver.find_elements("css selector", ".flame canvas")
    assert float(driver.execute_script("return page.recording.n")) > 0
