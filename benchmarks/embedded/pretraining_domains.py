"""What the pre-training text is about: domains, the facts known in each, and ways to say them.

Pure data. Alternatives are separated by ``|``; ``{v}`` stands for the fact's value. Values are
separated by ``/``, and ``@place`` and the like are kinds of ``pretraining_names``.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One attribute of a thing, with three kinds of phrases that can carry it."""

    keys: str
    """Names of the field."""
    values: str
    """Values, or kinds of values, of the field."""
    before: str = ""
    """Phrases that stand before the noun."""
    after: str = ""
    """Phrases that stand after the noun."""
    says: str = ""
    """Phrases that stand after the subject, third person."""


@dataclass(frozen=True, kw_only=True)
class Domain:
    """A kind of thing: how it is called, what it is, and the groups of facts it may have."""

    names: str
    nouns: str
    facts: tuple[tuple[Fact, ...], ...]
    """Each group gives at most one fact to a record; one of its members is drawn."""
    person: bool = False


PRICE = (
    Fact(
        keys="price|price range|cost|prices",
        values="cheap/moderate/high/low/average/expensive",
        before="{v} priced|{v}-priced|{v} cost",
        after="with {v} prices|in the {v} price range|with a {v} price range|at a {v} price",
        says="has {v} prices|has a {v} price range|costs a {v} amount|is in the {v} price range",
    ),
    Fact(
        keys="price|price range|cost|fee",
        values="@amount",
        after="for {v}|with prices of {v}|that costs {v}|in the price range of {v}",
        says="costs {v}|has a price range of {v}|charges {v}|has prices of {v}|is priced at {v}",
    ),
)
RATING = (
    Fact(
        keys="customer rating|rating|score|stars|guest rating",
        values="@score",
        before="{v} rated|{v} customer rated",
        after="with a rating of {v}|rated {v}|with a customer rating of {v}|with a {v} rating",
        says="is rated {v}|has a rating of {v}|has a {v} customer rating|scores {v}|"
        "was rated {v} by customers|has received a rating of {v}",
    ),
)
AREA = (
    Fact(
        keys="area|location|where|part of town",
        values="city centre/riverside/north/south/east/market square/suburbs/old town",
        after="in the {v}|in the {v} area|located in the {v}|by the {v}",
        says="is in the {v}|is located in the {v}|can be found in the {v} area|sits in the {v}",
    ),
    Fact(
        keys="area|location|city|town",
        values="@place",
        after="in {v}|located in {v}|in the {v} area",
        says="is in {v}|is located in {v}|can be found in {v}|lies in {v}",
    ),
)
NEAR = (
    Fact(
        keys="near|close to|next to|beside",
        values="@name/@place",
        after="near {v}|close to {v}|next to {v}|located near {v}|beside {v}|near to {v}",
        says="is near {v}|is close to {v}|is located near {v}|stands beside {v}|is next to {v}",
    ),
)
FAMILIES = (
    Fact(
        keys="family friendly|children|kids|families",
        values="yes",
        before="family friendly|child friendly|family-friendly|kid friendly",
        after="that welcomes children|for families|for the whole family",
        says="is family friendly|welcomes families|is good for children|is kid friendly",
    ),
    Fact(
        keys="family friendly|children|kids|families",
        values="no",
        before="adults only|non family friendly",
        after="for adults|that is not for children",
        says="is not family friendly|does not welcome children|is not suitable for families",
    ),
)
MAKER = (
    Fact(
        keys="maker|brand|made by|company",
        values="@invented/@name",
        after="made by {v}|from {v}|by {v}",
        says="is made by {v}|comes from {v}|was built by {v}",
    ),
)
YEAR = (
    Fact(
        keys="year|since|opened|released|date",
        values="@year",
        after="from {v}|of the year {v}",
        says="came out in {v}|dates from {v}|has been around since {v}|first appeared in {v}",
    ),
)
COLOUR = (
    Fact(
        keys="colour|color|paint",
        values="red/blue/green/black/white/yellow/brown/grey/pink/purple/orange",
        before="{v}|{v} coloured",
        after="in {v}|painted {v}",
        says="comes in {v}|is {v}|is painted {v}",
    ),
)
MATERIAL = (
    Fact(
        keys="material|made of|built from",
        values="wood/glass/metal/paper/stone/plastic/leather/cotton/wool/silver",
        before="{v}",
        after="made of {v}|of {v}",
        says="is made of {v}|is built from {v}",
    ),
)
ORIGIN = (
    Fact(
        keys="origin|country|language|style|nationality",
        values="@nation",
        before="{v}",
        after="of {v} origin|in the {v} style",
        says="is {v}|comes from a {v} family|has a {v} style",
    ),
)
SERVES = (
    Fact(
        keys="sells|offers|serves|stocks|products|food",
        values="@nation/@two/@word",
        after="that sells {v} goods|selling {v} products|with {v} food|that offers {v} things",
        says="sells {v} products|offers {v} food|serves {v} food|has {v} things on offer",
    ),
    Fact(
        keys="sells|offers|serves|stocks|products|food",
        values="@two/@word",
        after="that sells {v}|selling {v}|serving {v}|offering {v}|that provides {v}",
        says="sells {v}|offers {v}|serves {v}|provides {v}|is known for {v}",
    ),
)
SUBJECT = (
    Fact(
        keys="subject|theme|topic|about",
        values="@word/@two",
        after="about {v}|on {v}|on the subject of {v}",
        says="is about {v}|deals with {v}|tells the reader about {v}|looks at {v}",
    ),
)
BY = (
    Fact(
        keys="author|director|artist|written by|creator|teacher|owner",
        values="@person",
        after="by {v}|from {v}|created by {v}|run by {v}",
        says="is by {v}|was made by {v}|is the work of {v}|is run by {v}",
    ),
)
SIZE = (
    Fact(
        keys="size|type of size|scale",
        values="small/large/tiny/huge/big/medium",
        before="{v}|{v} sized",
        after="of {v} size",
        says="is {v}|is of {v} size|is quite {v}",
    ),
)
COUNT = (
    Fact(
        keys="rooms|seats|pages|visitors|members|items",
        values="@number",
        after="with {v} {k}",
        says="has {v} {k}|counts {v} {k}|offers {v} {k}",
    ),
)
JOB = (
    Fact(
        keys="job|work|profession|occupation",
        values="doctor/teacher/singer/farmer/writer/baker/painter/lawyer/nurse/cook/driver/actor",
        says="works as a {v}|is a {v}|has a job as a {v}|makes a living as a {v}",
    ),
)
HOBBY = (
    Fact(
        keys="likes|hobby|loves|interest",
        values="@word/@two",
        after="who likes {v}|with a love of {v}",
        says="likes {v}|loves {v}|enjoys {v}|is fond of {v}",
    ),
)
BORN = (
    Fact(
        keys="born in|home|lives in|birthplace",
        values="@place",
        after="from {v}|who lives in {v}",
        says="comes from {v}|lives in {v}|grew up in {v}",
    ),
)

VISIT = (PRICE, RATING, AREA, NEAR, FAMILIES)
DOMAINS = (
    Domain(names="@name/@place", nouns="hotel|inn|guest house|hostel|lodge", facts=(*VISIT, COUNT)),
    Domain(
        names="@name/@place",
        nouns="museum|gallery|castle|theatre|cinema|zoo",
        facts=(*VISIT, SUBJECT, YEAR),
    ),
    Domain(
        names="@name",
        nouns="shop|store|bookshop|bakery|market|market stall|flower shop|gift shop|butcher",
        facts=(*VISIT, SERVES, SERVES),
    ),
    Domain(names="@place/@name", nouns="park|garden|beach|playground|pool", facts=(*VISIT, SIZE)),
    Domain(
        names="@name", nouns="club|gym|venue|bar|dance hall|cafe", facts=(*VISIT, ORIGIN, SERVES)
    ),
    Domain(
        names="@name",
        nouns="film|book|novel|play|song|poem|story|game|magazine",
        facts=(SUBJECT, BY, YEAR, RATING, ORIGIN, PRICE, FAMILIES),
    ),
    Domain(
        names="@invented/@name",
        nouns="phone|camera|laptop|watch|radio|lamp|printer|robot|toaster|clock",
        facts=(MAKER, PRICE, RATING, COLOUR, SIZE, YEAR, MATERIAL),
    ),
    Domain(
        names="@invented/@name",
        nouns="car|bicycle|train|ship|boat|plane|bus|truck|van",
        facts=(MAKER, PRICE, COLOUR, SIZE, YEAR, ORIGIN, RATING),
    ),
    Domain(
        names="@name",
        nouns="course|class|school|workshop|lesson",
        facts=(SUBJECT, BY, PRICE, RATING, AREA, FAMILIES, NEAR, ORIGIN),
    ),
    Domain(
        names="@person",
        nouns="man|woman|person|neighbour|friend",
        facts=(JOB, HOBBY, BORN, ORIGIN, NEAR),
        person=True,
    ),
    Domain(
        names="@invented/@name",
        nouns="plant|tree|flower|bird|fish|animal|cat|dog|horse",
        facts=(COLOUR, SIZE, AREA, NEAR, ORIGIN),
    ),
    Domain(
        names="@place/@invented",
        nouns="town|village|city|river|bridge|station|island|street",
        facts=(AREA, NEAR, SIZE, YEAR, COUNT, RATING),
    ),
    Domain(
        names="@name",
        nouns="chair|table|bag|coat|cup|box|toy|shirt|bed",
        facts=(MAKER, COLOUR, MATERIAL, PRICE, RATING, SIZE, ORIGIN),
    ),
    Domain(
        names="@name",
        nouns="company|office|bank|firm|charity|studio",
        facts=(BY, AREA, NEAR, YEAR, SERVES, RATING, PRICE),
    ),
)
