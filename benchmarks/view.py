"""Measure `dask-tfrecord view`: seconds to the first rows, seconds of a jump to any row, and memory of the process.

usage: python benchmarks/view.py PATTERN [--jumps 200] [--frames 0] [--minutes 0] [--seed 0]

With --frames, Chromium scrolls through the rows for as many seconds, and through a page of still rows, which shows what
the browser reaches on this machine (needs selenium and chromedriver). With --minutes, a page that is used at random
follows: rows, jumps, records, images, filters and statistics that are cancelled, episodes, maps of shards and bytes of
records.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode


def get(address: str) -> Any:
    """Return the answer to a request."""
    with urllib.request.urlopen(address, timeout=600) as answer:
        return json.load(answer)


def cpu_seconds(process: int) -> float:
    """Return the CPU time of all threads of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(process: int, name: str) -> float:
    """Return the memory of a process: VmRSS is that of now, VmHWM its peak."""
    lines = Path(f"/proc/{process}/status").read_text("ascii").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(name))) / 1024


class Page:
    """A page that is used at random."""

    def __init__(self, address: str, seed: int) -> None:
        self.address, self.rng = address, random.Random(seed)
        self.overview = get(f"{address}overview")
        self.refused: Counter[str] = Counter()

    def get(self, name: str, **parameters: Any) -> bytes:
        """Return an answer; one that is refused is counted."""
        try:
            with urllib.request.urlopen(f"{self.address}{name}?{urlencode(parameters)}", timeout=600) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            self.refused[f"{name} {error.code}"] += 1
            return b"{}"

    def follow(self, name: str, **parameters: Any) -> None:
        """Follow an event stream for a moment, and cancel it."""
        until = time.monotonic() + self.rng.uniform(0.1, 3)
        try:
            with urllib.request.urlopen(f"{self.address}{name}?{urlencode(parameters)}", timeout=600) as answer:
                while answer.readline() and time.monotonic() < until:
                    pass
        except urllib.error.HTTPError as error:
            self.refused[f"{name} {error.code}"] += 1

    def row(self) -> int:
        """Return the number of any row."""
        return self.rng.randrange(max(1, self.overview["found"]))

    def columns(self, *kinds: str) -> list[str]:
        """Return the names of the columns of some kinds."""
        return [column["name"] for column in self.overview["columns"] if column["kind"] in kinds]

    def jump(self) -> None:
        """Show rows from any row on."""
        start = self.row()
        self.get("rows", start=start, stop=start + self.rng.choice([20, 100, 500]))

    def scroll(self) -> None:
        """Show rows page by page."""
        start = self.row()
        for at in range(start, start + 500, 100):
            self.get("rows", start=at, stop=at + 100)

    def sample(self) -> None:
        """Show a sample of all rows."""
        self.get("rows", sample=100, seed=self.rng.randrange(1000))

    def record(self) -> None:
        """Show everything about a row, and its bytes."""
        place = json.loads(self.get("row", row=self.row())).get("location") or {}
        names = [shard["name"] for shard in self.overview["shards"]]
        if place.get("file") in names and place["offset"] is not None:
            self.get("record", shard=names.index(place["file"]), offset=place["offset"])

    def image(self) -> None:
        """Show images of a column."""
        for name in self.columns("image"):
            self.get("image", row=self.row(), column=name, width=self.rng.choice([96, 512]))

    def filter(self) -> None:
        """Search rows, and stop early."""
        if names := self.columns("number"):
            self.follow("filter", expression=f"{self.rng.choice(names)} > {self.rng.randrange(100)}")

    def statistics(self) -> None:
        """Follow the statistics for a while."""
        self.follow("statistics")

    def shard(self) -> None:
        """Show a part of the map of a shard."""
        if shards := self.overview["shards"]:
            start = self.rng.randrange(self.overview["found"] // len(shards) + 1)
            self.get("shard", shard=self.rng.randrange(len(shards)), start=start, stop=start + 1024)

    def episode(self) -> None:
        """Show the steps of a row."""
        for group in self.overview["groups"]:
            self.get("episode", row=self.row(), group=group)


# Scroll down by 120 pixels in each frame for a while; return the milliseconds between frames.
SCROLL = """
const [selector, seconds, done] = arguments;
const element = document.querySelector(selector), times = [];
const frame = (now) => {
  times.push(now);
  element.scrollTop += 120;
  if (now - times[0] < 1000 * seconds) requestAnimationFrame(frame);
  else done(times.slice(1).map((time, at) => time - times[at]));
};
requestAnimationFrame(frame);
"""
READY = "return document.querySelectorAll('.layer .row').length && !document.querySelector('.ghost')"
STILL = """
document.body.innerHTML = '<div class="still" style="height: 90vh; overflow: auto"></div>';
const still = document.querySelector(".still");
for (let row = 0; row < 5000; row++) {
  still.append(Object.assign(document.createElement("p"), { textContent: "row " + row }));
}
"""


def frames(address: str, seconds: float) -> None:
    """Print how many frames Chromium draws each second while it scrolls, for rows and for a page of still rows."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.support.wait import WebDriverWait

    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,900"):
        options.add_argument(argument)
    with webdriver.Chrome(options, Service(shutil.which("chromedriver"))) as driver:
        driver.set_script_timeout(60 + seconds)
        for name, selector in (("still rows", ".still"), ("rows", ".grid")):
            if name == "rows":
                driver.get(f"{address}#/rows")
                WebDriverWait(driver, 60).until(lambda driver: driver.execute_script(READY))
            else:
                driver.execute_script(STILL)
            between = driver.execute_async_script(SCROLL, selector, seconds)
            late = sum(time > 1.5 * 1000 / 60 for time in between) / len(between)
            print(
                f"scrolling {name}: {1000 * len(between) / sum(between):.1f} frames a second, median "
                f"{statistics.median(between):.1f} ms, {late:.1%} of frames late"
            )


def use(address: str, process: int, minutes: float, seed: int) -> None:
    """Use a page at random, and print how often and how much memory that takes."""
    page = Page(address, seed)
    actions: list[Callable[[], None]] = [
        *(page.jump, page.scroll, page.sample, page.record, page.image),
        *(page.filter, page.statistics, page.shard, page.episode),
    ]
    counts: Counter[str] = Counter()
    began = printed = time.monotonic()
    while time.monotonic() - began < 60 * minutes:
        action = page.rng.choice(actions)
        action()
        counts[action.__name__] += 1
        if time.monotonic() - printed > 30:
            printed = time.monotonic()
            now, peak = memory_mib(process, "VmRSS"), memory_mib(process, "VmHWM")
            print(f"  after {printed - began:.0f} s: {now:,.0f} MiB, peak {peak:,.0f} MiB", flush=True)
    print(f"{sum(counts.values()):,} random actions in {minutes:g} minutes: {dict(counts)}")
    print(f"refused: {dict(page.refused)}")


def main() -> None:
    """Start the command, and print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pattern")
    parser.add_argument("--jumps", type=int, default=200)
    parser.add_argument("--frames", type=float, default=0)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    began = time.perf_counter()
    command = [sys.executable, "-m", "dask_tfrecord", "view", given.pattern, "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip() + "api/"
            get(f"{address}overview")
            while not get(f"{address}rows?stop=50")["rows"]:
                time.sleep(0.01)
            seconds, cpu = time.perf_counter() - began, cpu_seconds(process.pid)
            print(f"first rows after {seconds:.2f} s, {cpu:.2f} s of CPU")
            while (overview := get(f"{address}overview"))["nrows"] is None:
                time.sleep(0.1)
            rows = overview["nrows"]
            print(f"{rows:,} rows counted after {time.perf_counter() - began:.2f} s")
            chosen, times = random.Random(given.seed), []
            for _ in range(given.jumps):
                start = chosen.randrange(rows)
                before = time.perf_counter()
                get(f"{address}rows?start={start}&stop={start + 50}")
                times.append(time.perf_counter() - before)
            if times:
                print(f"jump: median {statistics.median(times) * 1e3:.0f} ms, worst {max(times) * 1e3:.0f} ms")
            if given.frames:
                frames(address.removesuffix("api/"), given.frames)
            if given.minutes:
                use(address, process.pid, given.minutes, given.seed)
            print(f"peak memory {memory_mib(process.pid, 'VmHWM'):,.0f} MiB")
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
