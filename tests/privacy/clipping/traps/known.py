"""Cases that do not come out right yet, by the reason."""

REASONS: dict[str, tuple[str, ...]] = {
    "the first batch does not show it, and the next look comes later": (
        "mixing_rarely/a detached sum where a value is extreme",
    ),
    "a scripted module does not take another forward, which no sentence says": (
        "weights/scripted",
    ),
}
NOT_YET: dict[str, str] = {name: reason for reason, names in REASONS.items() for name in names}
"""The reason for each case that fails; what is mended leaves the table."""
