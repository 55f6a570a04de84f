"""The grammar that writes the embedded sample: eating places, in names and words of its own.

Nothing here occurs in the pre-training grammar: a model has to learn these phrases, these values
and the order of the sentences from the sample. A favourite wording stands beside rarer ones, so
that several references of one record agree about as much as people do.
"""

from dataclasses import dataclass
from random import Random


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST_NAMES = _words("Salty Ruby Amber Ivory Minty Hazel Ginger Pickled Smoky Wobbly Plum Tipsy")
LAST_NAMES = _words("Kettle Ladle Otter Heron Fork Bowl Oven Radish Pantry Whisk Teapot Puffin")
LANDMARKS = (
    "the Arcade",
    "the Tram Depot",
    "Lantern Quay",
    "the Chapel",
    "Pilgrim Tavern",
    "the Old Pier",
    "Mill Baths",
    "the Corn Hall",
)
VALUES = {
    "eatType": ("bistro", "tavern", "tea room", "canteen"),
    "food": ("vegan", "Cajun", "Nepali", "Basque", "Tuscan", "Creole"),
    "priceRange": ("modest", "steep", "under £9", "£9-15", "over £15"),
    "customer rating": ("1 star", "3 stars", "top marks", "mixed"),
    "area": ("harbour", "hillside", "canal", "campus"),
    "familyFriendly": ("yes", "no"),
}
PRESENT = {
    "eatType": 0.75,
    "food": 0.75,
    "priceRange": 0.55,
    "customer rating": 0.55,
    "area": 0.55,
    "familyFriendly": 0.5,
    "near": 0.45,
}

PLACE_NOUNS = "kitchen|kitchen|kitchen|hangout"
AREA_PHRASES = "out on the {v}|out on the {v}|out on the {v}|over at the {v}"
NEAR_PHRASES = "two steps from {v}|two steps from {v}|two steps from {v}|facing {v}"
OPENINGS_WITH_FOOD = (
    "{N}, a {T}, cooks up {F} plates|{N}, a {T}, cooks up {F} plates|"
    "{N}, a {T}, cooks up {F} plates|For {F} plates head to {N}, a {T}"
)
OPENINGS = "{N} keeps a table for you, a {T}|{N} keeps a table for you, a {T}|Meet up at {N}, a {T}"
BILLS = "Expect {v} bills|Expect {v} bills|Expect {v} bills|Bills are {v}"
SUMS = "You pay {v}|You pay {v}|You pay {v}|Bring {v}"
VERDICTS = "people give it {v}|people give it {v}|people give it {v}|word of mouth says {v}"
FAMILY_PHRASES = {
    "yes": "Bring the little ones|Bring the little ones|Bring the little ones|Small guests fit in",
    "no": "Leave the little ones at home|Leave the little ones at home|Grown people only",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One record in E2E's two columns."""

    meaning_representation: str
    human_reference: str


def names(*, held_out: bool) -> list[str]:
    """Return the names of places; a sixth of them occurs in held-out records only."""
    return [
        f"{first} {last}"
        for i, first in enumerate(FIRST_NAMES)
        for j, last in enumerate(LAST_NAMES)
        if held_out or (i + j) % 6
    ]


def record(random: Random, *, held_out: bool) -> dict[str, str]:
    """Return a record: attributes in E2E's order, most of them, at least three."""
    while True:
        drawn = {"name": random.choice(names(held_out=held_out))}
        for attribute, probability in PRESENT.items():
            if random.random() < probability:
                drawn[attribute] = random.choice(VALUES.get(attribute, LANDMARKS))
        if len(drawn) >= 3:
            return drawn


def meaning_representation(attributes: dict[str, str]) -> str:
    """Return the record in E2E's notation, ``name[The Example], food[vegan]``."""
    return ", ".join(f"{attribute}[{value}]" for attribute, value in attributes.items())


def _pick(alternatives: str, random: Random) -> str:
    return random.choice(alternatives.split("|"))


def _first_sentence(attributes: dict[str, str], random: Random) -> str:
    place = attributes.get("eatType") or _pick(PLACE_NOUNS, random)
    where = [
        _pick(phrases, random).replace("{v}", attributes[attribute])
        for attribute, phrases in (("area", AREA_PHRASES), ("near", NEAR_PHRASES))
        if attribute in attributes
    ]
    noun = " ".join([place, ", ".join(where)]).strip()
    form = _pick(OPENINGS_WITH_FOOD if "food" in attributes else OPENINGS, random)
    filled = form.replace("{N}", attributes["name"]).replace("{T}", noun)
    return filled.replace("{F}", attributes.get("food", "")) + "."


def _verdict_sentence(attributes: dict[str, str], random: Random) -> str | None:
    parts = []
    if price := attributes.get("priceRange"):
        parts.append(_pick(SUMS if "£" in price else BILLS, random).replace("{v}", price))
    if rating := attributes.get("customer rating"):
        parts.append(_pick(VERDICTS, random).replace("{v}", rating))
    sentence = ", and ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]}." if sentence else None


def reference(attributes: dict[str, str], random: Random) -> str:
    """Return one way of saying the whole record."""
    sentences = [_first_sentence(attributes, random)]
    rest = [_verdict_sentence(attributes, random)]
    if family := attributes.get("familyFriendly"):
        rest.append(_pick(FAMILY_PHRASES[family], random) + ".")
    if random.random() < 0.15:
        rest.reverse()
    return " ".join([*sentences, *(sentence for sentence in rest if sentence)])


def split(
    random: Random, *, records: int, references: tuple[int, int], held_out: bool, seen: set[str]
) -> list[Row]:
    """Return rows of distinct records, none of them in ``seen``, and add them to it.

    Args:
        random: Source of everything drawn.
        records: Number of distinct meaning representations.
        references: Least and largest number of references of one record.
        held_out: Whether names may occur that the training split lacks.
        seen: Meaning representations of the splits before.
    """
    rows = []
    for _ in range(records):
        attributes = record(random, held_out=held_out)
        while (written := meaning_representation(attributes)) in seen:
            attributes = record(random, held_out=held_out)
        seen.add(written)
        for _ in range(random.randint(*references)):
            text = reference(attributes, random)
            rows.append(Row(meaning_representation=written, human_reference=text))
    return rows
