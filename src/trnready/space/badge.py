"""A model's badge: a small picture that says whether it runs. The API serves it; there is no library that is
kept up for the twenty lines it takes."""

from __future__ import annotations

from xml.sax.saxutils import escape

from trnready.results import units
from trnready.space.ask import Entry

GREEN, RED, GREY = "#1a7f37", "#b42318", "#5c6570"
LETTER = 6.6
"""Width of a letter in the picture's units; `textLength` makes every font keep to it."""

PADDING = 8


def badge(entry: Entry | None) -> str:
    """Give the badge of a model as SVG; None is a model that nothing is known of."""
    label, message, colour = _words(entry)
    left, right = (round(LETTER * len(text)) + 2 * PADDING for text in (label, message))
    width = left + right
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" '
        f'aria-label="{escape(label)}: {escape(message)}"><title>{escape(label)}: {escape(message)}</title>'
        f'<rect width="{width}" height="20" rx="3" fill="#30363d"/>'
        f'<path d="M{left} 0h{right - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-{right - 3}z" fill="{colour}"/>'
        f'<g fill="#fff" font-family="Verdana,Geneva,DejaVu Sans,sans-serif" font-size="11">'
        f'<text x="{PADDING}" y="14" textLength="{left - 2 * PADDING}">{escape(label)}</text>'
        f'<text x="{left + PADDING}" y="14" textLength="{right - 2 * PADDING}">{escape(message)}</text>'
        "</g></svg>"
    )


def _words(entry: Entry | None) -> tuple[str, str, str]:
    """Software cores are named in the label, so that nobody takes their result for one of Trainium."""
    row = entry.row if entry else None
    if entry is None or row is None or row.checkpoint_kind == "twin":
        left_out = entry is not None and entry.left_out is not None
        return "Trainium", "left out" if left_out else "not tested", GREY
    label = "Trainium" if row.device_kind == "hardware" else "software cores, not Trainium"
    reason = row.reason.replace("_", " ")
    match row.result:
        case "PASS":
            cores = "" if row.neuron_cores is None else f" on {units.count(row.neuron_cores, 'core')}"
            return label, f"runs{cores}", GREEN
        case "FAIL":
            return label, f"fails: {reason}", RED
    return label, f"not judged: {reason}", GREY
