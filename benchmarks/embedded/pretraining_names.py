"""Names and values for the pre-training text, drawn afresh for nearly every record.

Copying is learned only where memorising fails, so a name is put together from syllables and words
at random instead of being picked from a list. ``draw`` turns a kind such as ``@person`` into text.
"""

from collections.abc import Callable
from random import Random

from benchmarks.embedded import pretraining_words


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ONSETS = _words(
    "b c d f g h j k l m n p r s t v w z br ch cl cr dr fl fr gr kl pl pr qu sh sk sl sp st str "
    "th tr wh al an ar el en er in or un am ed"
)
VOWELS = _words("a e i o u a e i o ai ea ee ie oa oo ou y")
CODAS = (
    "",
    *_words(
        "n r l s t m d k x ck ll nd ng nt rd rk rn rt sh ss st th ton ley ham bury ford wick field "
        "well ville ana elli etto ino ella um us ix or er an ia o i a by"
    ),
)
ADJECTIVES = _words(
    "Silver Red Quiet Hidden Old Merry Lucky Wild Royal Little Grand Bright Crooked Frozen "
    "Gentle Happy Hollow Humble Iron Jolly Lonely Misty Noble Painted Proud Purple Restless "
    "Rusty Scarlet Secret Shining Sleepy Stormy Sunny Tall Velvet Wandering White Windy Winter "
    "Wise Yellow Brave Broken Clever Copper Crystal Curious Dancing Distant Electric Emerald "
    "Endless Fancy First Last Lost New Northern Perfect Rapid Sacred Second Seven Silent Simple "
    "Smart Three Western Young Big"
)
NOUNS = _words(
    "Anchor Apple Arrow Badger Barn Bell Bird Boat Book Bridge Brook Candle Castle Cat Cedar "
    "Cherry Circle City Clock Cloud Coach Corner Cottage Crown Dog Door Dragon Drum Elm Engine "
    "Fern Field Fire Flag Forest Fountain Fox Garden Gate Ghost Glass Goose Grape Hammer "
    "Harbour Hare Harp Hat Hawk Heart Hill Horse House Island Jar Journey Key King Kite Ladder "
    "Lake Lamp Leaf Lemon Lion Mango Maple Market Meadow Mirror Moon Mountain Needle Night Oak "
    "Ocean Orange Owl Parrot Pearl Pepper Piano Pine Planet Pony Queen Rabbit Rain River Road "
    "Rocket Rose Salt Sea Shadow Shell Ship Sky Snow Song Spoon Spring Square Stable Star "
    "Station Stone Storm Street Sugar Summer Sun Table Tiger Tower Town Train Tree Tulip Valley "
    "View Village Violin Wall Water Wave Wheel Wind Window Wing Wolf Wood World Yard Cook Farm "
    "Palm Pot Dish Plate Kitchen Inn Cup Bakery"
)
ENDINGS = _words(
    "House Place Hall Park Bridge Hill Green Cross Point Court Lane Road Street Square Bay "
    "Gardens Heights Wharf Mount Corner Junction End Common Grove Rise Walk Row"
)
NATIONS = _words(
    "Italian French Chinese Indian Japanese English Spanish Greek Turkish Mexican Thai Russian "
    "German Polish Swedish Irish Scottish Danish Korean Brazilian African American Dutch Welsh "
    "Persian Moroccan Cuban Austrian Canadian European Asian British"
)


def _syllable(random: Random) -> str:
    return random.choice(ONSETS) + random.choice(VOWELS)


def invented(random: Random) -> str:
    """Return a made-up word with a capital, such as "Brealton"."""
    syllables = "".join(_syllable(random) for _ in range(random.choice((1, 1, 1, 2, 2, 3))))
    return (syllables + random.choice(CODAS)).capitalize()


def person(random: Random) -> str:
    """Return a made-up first and last name."""
    return f"{invented(random)} {invented(random)}"


def word(random: Random) -> str:
    """Return an everyday word, mostly a noun or an adjective."""
    kinds = (pretraining_words.NOUNS, pretraining_words.NOUNS, pretraining_words.ADJECTIVES)
    return random.choice(random.choice((*kinds, pretraining_words.VERBS)))


def _noun_or_invented(random: Random) -> str:
    kind = random.random()
    if kind < 0.4:
        return random.choice(NOUNS)
    return word(random).capitalize() if kind < 0.7 else invented(random)


_NAME_FORMS: tuple[Callable[[Random], str], ...] = (
    invented,
    lambda r: f"The {invented(r)}",
    lambda r: f"The {r.choice(NOUNS)}",
    lambda r: f"The {r.choice(ADJECTIVES)} {_noun_or_invented(r)}",
    lambda r: f"{r.choice(ADJECTIVES)} {_noun_or_invented(r)}",
    lambda r: f"{_noun_or_invented(r)} {_noun_or_invented(r)}",
    lambda r: f"{invented(r)} {r.choice(ENDINGS)}",
    lambda r: f"The {_noun_or_invented(r)} {_noun_or_invented(r)}",
    lambda r: f"The {_noun_or_invented(r)} and {_noun_or_invented(r)}",
    lambda r: f"{_noun_or_invented(r)} {r.choice(('of', 'by', 'at', 'in'))} {_noun_or_invented(r)}",
    lambda r: f"{invented(r)}'s {r.choice(NOUNS)}",
    lambda r: f"{_noun_or_invented(r)} {invented(r)} {r.choice(NOUNS)}",
    lambda r: f"{_noun_or_invented(r)} by {invented(r)} {r.choice(NOUNS)}",
)


def name(random: Random) -> str:
    """Return a made-up name of a thing, a work or a place, one to four words long."""
    return random.choice(_NAME_FORMS)(random)


def place(random: Random) -> str:
    """Return a made-up name of a town, a street or a building."""
    if random.random() < 0.4:
        return invented(random)
    return f"{_noun_or_invented(random)} {random.choice(ENDINGS)}"


def amount(random: Random) -> str:
    """Return a price or a range of prices in pounds."""
    low = random.randrange(2, 90)
    forms = (f"£{low}", f"£{low}-{low + random.choice((3, 5, 10, 20))}", f"{low} pounds")
    bounds = (f"less than £{low}", f"more than £{low}", f"about £{low}", f"under £{low}")
    return random.choice(forms + bounds)


def score(random: Random) -> str:
    """Return a rating, in words or as so many out of so many."""
    top = random.choice((3, 4, 5, 5, 5, 6, 10))
    scores = (f"{random.randint(1, top)} out of {top}", f"{random.randint(1, top)} of {top}")
    return random.choice(scores + ("low", "high", "average", "very good", "poor", "excellent"))


KINDS: dict[str, Callable[[Random], str]] = {
    "@name": name,
    "@place": place,
    "@person": person,
    "@amount": amount,
    "@score": score,
    "@invented": invented,
    "@nation": lambda r: r.choice(NATIONS),
    "@word": word,
    "@two": lambda r: f"{word(r)} and {word(r)}",
    "@phrase": lambda r: " ".join(r.choices(pretraining_words.EVERYDAY, k=r.randint(2, 6))),
    "@number": lambda r: str(r.choice((r.randrange(2, 20), r.randrange(2, 100), 100, 250, 1000))),
    "@year": lambda r: str(r.randrange(1900, 2026)),
}


def draw(values: str, random: Random) -> str:
    """Return one of the values separated by ``/``; a kind such as ``@place`` is drawn afresh."""
    value = random.choice(values.split("/"))
    return KINDS[value](random) if value in KINDS else value
