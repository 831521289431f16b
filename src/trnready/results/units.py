"""Numbers with their units, for people: the command line and the Space both take them from here."""

from __future__ import annotations

UNKNOWN = "not reported"


def seconds(value: float | None) -> str:
    """Give a duration: `0.42 s`, `41.5 s`, `3 min 05 s`, `2 h 10 min`."""
    if value is None:
        return UNKNOWN
    if value < 10:
        return f"{value:.2f} s"
    if value < 99.95:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def size(value: int | None) -> str:
    """Give an amount of memory in binary units: `512 B`, `300.0 MiB`, `13.4 GiB`."""
    if value is None:
        return UNKNOWN
    if value < 1024:
        return f"{value} B"
    scale = 1024
    for unit in ("KiB", "MiB", "GiB"):
        if value < 1023.95 * scale:
            return f"{value / scale:.1f} {unit}"
        scale *= 1024
    return f"{value / scale:.1f} TiB"


def count(value: int | None, noun: str = "") -> str:
    """Give a count, with a noun in the right number if there is one: `1 core`, `4 cores`."""
    if value is None:
        return UNKNOWN
    if not noun:
        return f"{value:,}"
    return f"{value:,} {noun if value == 1 else noun + 's'}"


def rate(value: float | None) -> str:
    """Give a speed in tokens per second."""
    return UNKNOWN if value is None else f"{value:.1f} tokens/s"


def short(value: float | None) -> str:
    """Give a large count in three digits: `842`, `12.3 k` (thousands), `29.6 M` (millions), `1.20 B`
    (billions)."""
    if value is None:
        return UNKNOWN
    units = ((999.5, 1.0, ""), (999.5e3, 1e3, " k"), (999.5e6, 1e6, " M"), (float("inf"), 1e9, " B"))
    scale, unit = next((scale, unit) for limit, scale, unit in units if value < limit)
    number = value / scale
    digits = 0 if not unit or number >= 99.95 else 1 if number >= 9.995 else 2
    return f"{number:.{digits}f}{unit}"
