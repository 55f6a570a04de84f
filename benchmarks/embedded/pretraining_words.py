"""Everyday English words, so that the tokenizer has them whole and the model has met them."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text.split()))


FUNCTION_WORDS = _words(
    "the a an and or but if then than that this these those it its is are was were be been being "
    "has have had do does did not no yes of in on at by to from for with without within near "
    "between behind beside under over above below through around along across into out up down "
    "off about after before during since until while when where which who whose what why how all "
    "any both each every few many much more most other some such only own same so too very can "
    "will would could should may might must also just even still again once here there now always "
    "never often sometimes soon already yet however although because as they them their he she "
    "his her we our you your us my me one two three four five six seven eight nine ten first "
    "second third last"
)
VERBS = _words(
    "go goes going went come comes coming came get gets getting got give gives giving given take "
    "takes taking took make makes making made find finds finding found look looks looking looked "
    "see sees seen try tries trying tried like likes liked love loves loved want wants wanted "
    "need needs needed eat eats eating drink drinks drinking serve serves serving served offer "
    "offers offering offered provide provides providing provided sell sells selling sold buy buys "
    "buying bring brings bringing brought cost costs costing charge charges rate rates rated "
    "rating receive receives received locate locates located locating sit sits sitting stand "
    "stands lie lies enjoy enjoys enjoying enjoyed visit visits visiting visited stay stays "
    "staying know known call calls called name names named say says said tell tells told ask asks "
    "asked work works working open opens opened close closes closed start starts started end ends "
    "play plays run runs running walk walks walking keep keeps kept leave leaves left put puts "
    "set sets hold holds turn turns feel feels seem seems become becomes allow allows allowed "
    "welcome welcomes recommend recommended include includes including feature features featuring "
    "range ranges ranging boast boasts expect expects pay pays paying spend choose chooses head "
    "heads hand hands meet meets cook cooks cooking cooked order ordered grab satisfy suit suits "
    "suitable cater caters aimed"
)
ADJECTIVES = _words(
    "good better best great nice fine bad worse worst poor high low higher lower cheap cheaper "
    "expensive inexpensive moderate moderately reasonable affordable average decent excellent "
    "perfect ideal superb lovely beautiful pleasant popular famous favourite friendly "
    "family-friendly kid-friendly child-friendly quiet busy big small large little huge tiny long "
    "short wide tall new old young fresh warm hot cold cool sweet spicy tasty delicious healthy "
    "traditional modern local typical special simple easy hard quick fast slow early late open "
    "clean dark light bright red green blue black white yellow brown golden silver rich full "
    "empty free happy public private main central northern southern right wrong real true whole "
    "various different similar general mid priced well-priced pricey rated highly top standard "
    "quality casual cosy relaxed outdoor indoor adult mixed fun interesting comfortable "
    "convenient available"
)
NOUNS = _words(
    "restaurant restaurants pub pubs bar bars cafe cafes shop shops coffee tea house houses place "
    "places establishment venue eatery diner hotel hotels inn city cities town towns centre "
    "center river riverside river's bank area areas street road square park bridge station market "
    "harbour hill village country north south east west side corner middle edge front view "
    "location spot food foods meal meals dish dishes menu cuisine cooking breakfast lunch dinner "
    "supper snack snacks dessert fruit vegetables meat fish seafood chicken beef lamb steak rice "
    "noodles pasta pizza burger burgers chips soup salad sandwich sandwiches bread cheese wine "
    "wines beer ale milk juice water cake cakes chocolate sugar sushi curry taste kitchen table "
    "tables chef drinks price prices cost money pound pounds budget value range rating ratings "
    "star stars customer customers score review reviews service staff guest guests people person "
    "man woman family families child children kid kids adult adults friend friends baby parents "
    "couple group day days night week weekend hour hours evening morning afternoon year years "
    "time times summer winter spring autumn music book books film story song game school work job "
    "office home room rooms door window garden tree flower animal dog cat horse bird car train "
    "bus boat ship plane world thing things way ways part parts kind kinds type types style name "
    "number lot lots bit piece end top bottom atmosphere experience choice option environment "
    "setting quality options variety Italian French Chinese Indian Japanese English American "
    "British Spanish Greek Thai Mexican"
)
EVERYDAY = FUNCTION_WORDS + VERBS + ADJECTIVES + NOUNS
