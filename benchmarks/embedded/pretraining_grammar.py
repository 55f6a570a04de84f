"""The grammar that writes the pre-training text: records and what they say, and plain prose.

A record looks as a table-to-text task linearises it, ``key : value | key : value``; its text is
put together from the phrases of ``pretraining_domains``. What can be learned here and nowhere
memorised is the skill that private fine-tuning starts from: to say in English what a record
holds, with names and values copied from it.
"""

import re
from dataclasses import dataclass
from random import Random

from benchmarks.embedded.pretraining_domains import DOMAINS, Domain, Fact
from benchmarks.embedded.pretraining_names import draw, name, person, place, word

NAME_KEYS = "name|name|name|name|title|called|who|what|subject"
NOUN_KEYS = "Type|type|kind|category|is a"
OPENINGS = (
    "{N} is {B} {A}.|{N} is {B} {A}.|{N} is {B} {A}.|There is {B} {A} called {N}.|{B} {A} is {N}.|"
    "{A}, {N} is {B}.|{A}, there is {B} called {N}.|{N}, {A}, is {B}.|{A} you can find {N}, {B}.|"
    "{B} called {N} is {A}.|Looking for {B} {A}? Try {N}.|If you want {B} {A}, choose {N}.|"
    "You might like {N}, {B} {A}.|{N} {A} is {B}.|We know {N} as {B} {A}.|{B} named {N} is {A}."
)
BARE_OPENINGS = (
    "{N} is {B}.|There is {B} called {N}.|{B} is {N}.|{N} is {B}, and it is well known.|"
    "Looking for {B}? Try {N}.|One can visit {N}, {B}.|You might like {N}, {B}."
)
SAYING_OPENINGS = (
    "{N} is {B} that {S}.|{N}, {B}, {S}.|{B} called {N} {S}.|{N} {S}.|The {K} {N} {S}."
)
CLOSINGS = "{P} {S}.|{P} {S}.|{P} also {S}.|{N} {S}.|The {K} {S}.|This {K} {S}."
PROSE = (
    "{n} went to {l} to buy {w} and {w2}. It was {a}, but the {w3} was not.|"
    "In {l} there are many {w} and few {w2}. People there like {w3}.|"
    '"I would like some {w}", said {n}. "We only have {w2}", said {m}.|'
    "{n} and {m} met near {l}. They talked about {w} and {w2} for an hour.|"
    "The {w} in {l} is {a}. The {w2} is not as {a} as the {w3}.|"
    "Why does {n} like {w}? Because it is {a} and not far from {l}.|"
    "{n} does not like {w}, but {m} does. Both of them like {w2} and {w3}.|"
    "If the {w} is {a}, {n} will bring {w2}; if not, {m} will bring {w3}.|"
    "There was once a {w} which had {w2} and {w3}. It stood in {l}, and {n} owned it.|"
    "You can get there by the river or through the city centre, and the {w} at {l} is {a}."
)
DRILLS = "{v}|{v} is the {k}.|The {k} is {v}.|Its {k}: {v}.|For {k}, {v}."
MOODS = "cheap|good|bad|nice|great|large|small|popular|lovely|friendly|quiet|busy|open|new|famous"


@dataclass(frozen=True, kw_only=True)
class Passage:
    """One piece of pre-training text; the loss is on ``text`` only."""

    record: str
    """The linearized record, or nothing for prose."""
    text: str


def _pick(alternatives: str, random: Random) -> str:
    return random.choice(alternatives.split("|"))


def _mend_articles(text: str) -> str:
    return re.sub(r"\b([Aa]) (?=[aeiouAIO])", r"\1n ", text)


def _capitalize(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


def _join(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def _fill(form: str, parts: dict[str, str]) -> str:
    for key, text in parts.items():
        form = form.replace("{" + key + "}", text)
    return ". ".join(_capitalize(s) for s in " ".join(form.split()).split(". "))


def _describe(
    random: Random,
    *,
    subject: str,
    noun: str,
    facts: list[tuple[Fact, dict[str, str]]],
    pronoun: str,
) -> str:
    """Return one to four sentences that say every fact of the subject."""
    before: list[str] = []
    after: list[str] = []
    says: list[str] = []
    for fact, parts in facts:
        roles = [(before, fact.before)] * (len(before) < 2) + [(after, fact.after)] * (
            len(after) < 2
        )
        roles = [role for role in [*roles, (says, fact.says)] if role[1]]
        phrases, forms = random.choice(roles)
        phrases.append(_fill_phrase(_pick(forms, random), parts))
    parts = {
        "N": subject,
        "B": " ".join(["a", ", ".join(before), noun]),
        "A": " ".join(after),
        "K": noun,
        "P": pronoun,
    }
    if after:
        opening = OPENINGS
    elif says and not (before and random.random() < 0.5):
        opening = SAYING_OPENINGS if not before else SAYING_OPENINGS.split("|{N} {S}.")[0]
        count = random.randint(1, min(2, len(says)))
        parts["S"], says = _join(says[:count]), says[count:]
    else:
        opening = BARE_OPENINGS
    sentences = [_fill(_pick(opening, random), parts)]
    while says:
        count = random.randint(1, min(3, len(says)))
        parts["S"], says = _join(says[:count]), says[count:]
        sentences.append(_fill(_pick(CLOSINGS, random), parts))
    return _mend_articles(" ".join(sentences))


def _fill_phrase(form: str, parts: dict[str, str]) -> str:
    return form.replace("{v}", parts["v"]).replace("{k}", parts["k"])


def _domain_record(random: Random, domain: Domain) -> Passage:
    subject = draw(domain.names, random)
    noun = _pick(domain.nouns, random)
    groups = [group for group in domain.facts if random.random() < 0.6]
    if random.random() < 0.5:
        random.shuffle(groups)
    fields = [(_pick(NAME_KEYS, random), subject)]
    if random.random() < 0.7:
        fields.append((_pick(NOUN_KEYS, random), noun))
    facts = []
    for group in groups:
        fact = random.choice(group)
        parts = {"k": _pick(fact.keys, random), "v": draw(fact.values, random)}
        facts.append((fact, parts))
        fields.append((parts["k"], parts["v"]))
    if random.random() < 0.4:
        random.shuffle(facts)
    pronoun = random.choice(("He", "She")) if domain.person else "It"
    text = _describe(random, subject=subject, noun=noun, facts=facts, pronoun=pronoun)
    return Passage(record=_linearise(fields), text=text)


def drill(random: Random) -> Passage:
    """Return a record of arbitrary keys and values that are said in one plain way, or echoed."""
    keys = [word(random) for _ in range(random.choice((1, 1, 2, 2, 3, 4)))]
    kinds = "@name/@name/@place/@person/@phrase/@phrase/@phrase/@word/@amount/@number"
    fields = [(key, draw(kinds, random)) for key in keys]
    form = _pick(DRILLS, random)
    said = [form.replace("{k}", key).replace("{v}", value) for key, value in fields]
    return Passage(record=_linearise(fields), text=" ".join(map(_capitalize, said)))


def _prose(random: Random) -> Passage:
    parts = {key: word(random) for key in ("w", "w2", "w3")}
    parts |= {"n": person(random), "m": name(random), "l": place(random)}
    parts["a"] = _pick(MOODS, random)
    return Passage(record="", text=_fill(_pick(PROSE, random), parts))


def _linearise(fields: list[tuple[str, str]]) -> str:
    return " | ".join(f"{key} : {value}" for key, value in fields)


def passage(random: Random) -> Passage:
    """Return one passage: mostly a record with its text, sometimes a drill or prose."""
    kind = random.random()
    if kind < 0.82:
        return _domain_record(random, random.choice(DOMAINS))
    return drill(random) if kind < 0.94 else _prose(random)
