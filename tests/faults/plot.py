"""`make scores`: draws the scores of right devices and of wrong ones that `make false-alarms` and `make
faults` left."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import matplotlib

from trnready.verdict.rule import LIMIT

ALARMS = ("alarms.json", "alarms-interpreted.json")
MISMATCHES = ("FAIL mismatch", "FAIL mismatch on 2 cores")
FLOOR, CEILING = 1e-2, 1e3
"""Scores beyond these are drawn at them: bit-equal logits score 0."""


def main() -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser(prog="faults.plot", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(".faults"), help="where the scores are")
    parser.add_argument("--output", type=Path, default=Path("docs/scores.svg"))
    args = parser.parse_args()
    right, wrong = scores(args.folder)
    draw(right, wrong, args.output)
    print(
        f"{len(right)} scores of right devices, at most {max(right):.3g}; "
        f"{len(wrong)} of wrong ones, at least {min(wrong):.3g}; {args.output}"
    )


def scores(folder: Path) -> tuple[list[float], list[float]]:
    """The scores of right devices, and those of devices that must end as a mismatch."""
    table = _kept(folder / "faults.json")
    alarms = [each for name in ALARMS for each in _kept(folder / name)]
    right = [each["score"] for each in (*alarms, *table) if not each.get("fault")]
    wrong = [each["score"] for each in table if each["fault"] and each["expected"][0] in MISMATCHES]
    return [each for each in right if each is not None], [each for each in wrong if each is not None]


def _kept(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    kept: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return kept


def draw(right: list[float], wrong: list[float], output: Path) -> None:
    """Two histograms on one logarithmic axis, with the limit between them."""
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "scores"
    from matplotlib import pyplot

    steps = 50
    low, high = math.log10(FLOOR), math.log10(CEILING)
    edges = [10 ** (low + (high - low) * step / steps) for step in range(steps + 1)]
    figure, axes = pyplot.subplots(figsize=(8, 3.4))
    for values, colour, label in (
        (right, "#2a7f3f", "right devices"),
        (wrong, "#b3261e", "wrong on purpose"),
    ):
        clipped = [min(max(each, FLOOR * 1.01), CEILING * 0.99) for each in values]
        axes.hist(clipped, bins=edges, color=colour, alpha=0.75, label=f"{label} ({len(values)})")
    axes.axvline(LIMIT, color="black", linestyle="--", linewidth=1)
    axes.text(LIMIT * 1.1, axes.get_ylim()[1] * 0.93, f"limit {LIMIT:g}", va="top")
    axes.set_xscale("log")
    axes.set_xlabel(
        "score: distance from the CPU in the model's own rounding noise (0 is drawn at the left edge)"
    )
    axes.set_ylabel("runs")
    axes.legend(loc="upper right", frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(output, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
