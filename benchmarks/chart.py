"""Draw the speed of readers as horizontal bars, in an environment that has matplotlib; `results.py` calls it.

    MATPLOTLIB_PYTHON benchmarks/chart.py OUT.png TITLE < READERS.json

READERS is a list of [name, records per second]; the first is the one that the others are compared with. The background
is transparent and the text is gray, so that the chart is legible on light and on dark pages.
"""

import json
import sys

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot

# The contrast with white and with black is equal.
GRAY, OURS, THEIRS = "#777777", "#2f8f5b", "#8c96a8"


def draw(out: str, title: str, readers: list[tuple[str, float]]) -> None:
    """Write the chart."""
    figure, axes = pyplot.subplots(figsize=(7.2, 0.42 * len(readers) + 0.6))
    names, rates = zip(*readers, strict=True)
    places = range(len(readers), 0, -1)
    axes.barh(places, rates, color=[OURS] + [THEIRS] * (len(readers) - 1), height=0.68)
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


if __name__ == "__main__":
    draw(sys.argv[1], sys.argv[2], json.load(sys.stdin))
