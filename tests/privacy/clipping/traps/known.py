"""Cases that do not come out right yet, by the reason."""

REASONS: dict[str, tuple[str, ...]] = {
    "the rows left out are not those that count: what is a maximum or a rank stays what it was": (
        "losses/detached focal weights",
        "losses/the hardest half alone",
    ),
    "losses are not compared where the closure draws": ("closures/noise as large as the batch",),
    "losses that cannot be computed on fewer rows are not compared": (
        "closures/rows in a list, padded inside, and a mean",
    ),
    "the first batch does not show it, and the next look comes later": (
        "mixing_rarely/a detached mean at five rows and more, after a batch of three",
        "mixing_rarely/a detached sum where a value is extreme",
    ),
    "only a gradient shows it, and none is compared with that of its example alone": (
        "hooks/own backward that reads the batch",
    ),
    "the refusal says no more than the kind of error": ("closures/words in one line with offsets",),
    "a tensor kept by the model in a run of fewer rows does not fit the batch": (
        "closures/places kept for as many rows as came first",
    ),
    "a scripted module does not take another forward, which no sentence says": (
        "weights/scripted",
    ),
}
NOT_YET: dict[str, str] = {name: reason for reason, names in REASONS.items() for name in names}
"""The reason for each case that fails; what is mended leaves the table."""
