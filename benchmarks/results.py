"""Write the figures of `read.py --json` and `scale.py records --json` as Markdown, and draw the chart.

python benchmarks/results.py FIGURES.json OUT.md [--scaling SCALING.json] [--chart OUT.png --environments DIR]
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Collection, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from harness import OURS, environment, spread

CLOCKS = {"cpu": "processor time", "wall": "wall-clock time"}
# The contrast of the gray with white and with black is equal.
GRAY, GREEN, SLATE = "#777777", "#2f8f5b", "#8c96a8"
TASKS = {
    "touch": "Each block decoded, read and dropped",
    "gather": "Everything gathered into one NumPy array per feature",
}


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    names = list(header)
    return [f"| {' | '.join(cells)} |" for cells in [names, ["---"] * len(names), *rows]] + [""]


def median(values: Collection[float], form: str) -> str:
    """Return the median, and the smallest and largest value."""
    return f"{statistics.median(values):{form}} ({spread(values, form)})"


def machine() -> list[str]:
    """Return a paragraph about the machine and the versions."""
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), model)
    versions = f"Python {platform.python_version()}, NumPy {version('numpy')}, dask {version('dask')}"
    return [
        f"{os.cpu_count()} cores ({model}), {platform.system()}, {versions}, dask_tfrecord {version('dask-tfrecord')}.",
        "",
    ]


def peers(figures: list[dict[str, Any]]) -> list[str]:
    """Return the table of readers."""
    lines = [
        "## Readers",
        "",
        "Records per second with two threads or workers. dask_tfrecord, TensorFlow and tfx-bsl check both CRCs, the",
        "others check none. All readers returned the same sums of every feature. Runs of a reader and of dask_tfrecord",
        "alternated, and the ratio is the median of the rounds. In brackets: the smallest and the largest value.",
        "",
    ]
    for clock in sorted({figure["clock"] for figure in figures}):
        rows = []
        for figure in figures:
            if figure["clock"] == clock:
                rates = median(figure["rates"], ",.0f") if figure["rates"] else figure["error"]
                ratios = median(figure["ratios"], ",.1f") if figure["ratios"] else ""
                rows.append([f"`{figure['data']}`", figure["reader"], f"{figure['records']:,}", rates, ratios])
        lines += [f"By {CLOCKS[clock]}:", ""]
        lines += table(["set", "reader", "records", "records/s", "dask_tfrecord, times as fast"], rows)
    return lines


def tensorflow(figures: list[dict[str, Any]], task: str) -> list[str]:
    """Return the tables of one task, compared with TensorFlow."""
    lines = [f"## {TASKS[task]}", ""]
    for clock in sorted({figure["clock"] for figure in figures}):
        rows = []
        of_clock = [figure for figure in figures if figure["clock"] == clock]
        for name in dict.fromkeys(figure["data"] for figure in of_clock):
            of_set = [figure for figure in of_clock if figure["data"] == name]
            theirs = [figure for figure in of_set if not figure["pipeline"].startswith(OURS)]
            best = max(theirs, key=lambda figure: float(figure["records_per_second"]))
            for figure in of_set:
                if figure["pipeline"].startswith(OURS):
                    rates = [[each["records"] / second for second in each["seconds"]] for each in (best, figure)]
                    shown = f"`{name}`{figure['pipeline'].removeprefix(OURS)}"
                    megabytes = f"{figure['bytes_per_second'] / 1e6:,.0f}"
                    cells = [shown, median(rates[0], ",.0f"), median(rates[1], ",.0f"), megabytes]
                    rows.append([*cells, f"{figure['ratio']:.2f}", f"{figure['peak_rss'] / best['peak_rss']:.2f}"])
        header = ["set", "TensorFlow, records/s", "dask_tfrecord, records/s", "MB/s", "ratio", "peak memory, ratio"]
        lines += [f"By {CLOCKS[clock]}, ratios to the faster pipeline of TensorFlow:", "", *table(header, rows)]
    return lines


def limits(figures: list[dict[str, Any]]) -> list[str]:
    """Return the limits of the machine, and their shares."""
    text = "Rates of one core, and their parts in the processor time of dask_tfrecord in the same run:"
    lines = ["## Limits of the machine", "", text, ""]
    rows = []
    for figure in figures:
        if figure["data"] == "":
            unit = {limit: "M integers/s" if limit == "varints" else "MB/s" for limit in figure["rates"]}
            shown = [
                [
                    limit,
                    f"{rate / 1e6:,.0f} {unit[limit]}",
                    " to ".join(f"{extreme / 1e6:,.0f}" for extreme in figure["spreads"][limit]),
                ]
                for limit, rate in figure["rates"].items()
            ]
            lines += table(["limit", "rate", "spread"], shown)
            continue
        speed = figure["nbytes"] / statistics.median(figure["seconds"]) / 1e6
        shares = [f"{share:.0%}" for share in [*figure["shares"].values(), sum(figure["shares"].values())]]
        task = figure["task"].removeprefix("limits of ")
        rows.append([f"`{figure['data']}`", task, f"{speed:,.0f}", *shares, figure["binding"]])
    lines += table(["set", "task", "MB/s", "copy", "crc", "memory", "varints", "sum", "binding"], rows)
    return lines


def scaling(report: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return the tables of `scale.py records`."""
    text = "Workers by wall-clock time, the other tables by processor time. Memory is that of the client."
    lines = ["## Scaling", "", text, ""]
    for rows in report.values():
        cells = [
            [f"{value:,.3g}" if isinstance(value, float) and value < 100 else f"{value:,.0f}" for value in numbers]
            for numbers in ([value for value in row.values() if not isinstance(value, str)] for row in rows)
        ]
        named = [[value for value in row.values() if isinstance(value, str)] for row in rows]
        lines += table(rows[0], [name + each for name, each in zip(named, cells, strict=True)])
    return lines


def draw(figures: list[dict[str, Any]], chart: Path, environments: Path) -> None:
    """Draw the readers of `tabular`, the fastest pipeline of each, with matplotlib of an environment."""
    rates: dict[str, float] = {}
    for figure in figures:
        if figure["data"] == "tabular" and figure["rates"]:
            name = figure["reader"].partition(" ")[0]
            rates[name] = max(rates.get(name, 0), statistics.median(figure["rates"]))
    readers = sorted(rates.items(), key=lambda item: (item[0] != OURS, -item[1]))
    python = environment(environments, "matplotlib", ("matplotlib",))
    title = f"Records of 18 features read per second of {CLOCKS[figures[0]['clock']]}"
    subprocess.run([python, __file__, "--draw", str(chart), title], input=json.dumps(readers), text=True, check=True)


def draw_bars(out: str, title: str, readers: list[tuple[str, float]]) -> None:
    """Draw horizontal bars, in an environment that has matplotlib; the first reader is compared with the others.

    The background is transparent and the text is gray, so that the chart is legible on light and on dark pages.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 0.42 * len(readers) + 0.6))
    names, rates = zip(*readers, strict=True)
    places = range(len(readers), 0, -1)
    axes.barh(places, rates, color=[GREEN] + [SLATE] * (len(readers) - 1), height=0.68)
    for place, rate in zip(places, rates, strict=True):
        text, times = f"{float(f'{rate:.3g}'):,.0f}", rates[0] / rate
        text += f"  (takes {times:,.{0 if times > 20 else 1}f} times as long)" if times != 1 else ""
        axes.text(rate + rates[0] * 0.01, place, text, va="center", color=GRAY, fontsize=9)
    axes.set_yticks(list(places), names, color=GRAY, fontsize=10)
    axes.set_xlim(0, rates[0] * 1.15)
    axes.set_title(title, color=GRAY, fontsize=10, loc="left")
    axes.tick_params(left=False, bottom=False, labelbottom=False)
    for side in axes.spines.values():
        side.set_visible(False)
    figure.savefig(out, dpi=160, bbox_inches="tight", transparent=True)


def write(figures: list[dict[str, Any]], out: Path, scaled: dict[str, Any] | None = None) -> None:
    """Write the tables of all figures."""
    of_peers = [figure for figure in figures if figure["task"] == "peers"]
    lines = ["# Results", "", *machine()]
    lines += peers(of_peers) if of_peers else []
    for task in TASKS:
        found = [figure for figure in figures if figure["task"] == task]
        lines += tensorflow(found, task) if found else []
    found = [figure for figure in figures if figure["task"].startswith("limits")]
    lines += limits(found) if found else []
    lines += scaling(scaled) if scaled else []
    out.write_text("\n".join(lines).rstrip() + "\n")


def main() -> None:
    """Write the results of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--scaling", type=Path)
    parser.add_argument("--chart", type=Path)
    parser.add_argument("--environments", type=Path)
    arguments = parser.parse_args()
    figures = json.loads(arguments.figures.read_text())
    write(figures, arguments.out, json.loads(arguments.scaling.read_text()) if arguments.scaling else None)
    if arguments.chart is not None:
        of_peers = [figure for figure in figures if figure["task"] == "peers"]
        draw(of_peers, arguments.chart, arguments.environments)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--draw"]:
        draw_bars(sys.argv[2], sys.argv[3], json.load(sys.stdin))
    else:
        main()
