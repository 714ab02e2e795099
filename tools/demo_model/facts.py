"""The facts the demo model knows: capitals, opposites, days, months and numbers."""

# ruff: noqa: SIM905  (a word list reads better as one string)

CAPITALS: dict[str, str] = dict(
    pair.split(":")
    for pair in (
        "France:Paris|Germany:Berlin|Italy:Rome|Spain:Madrid|Portugal:Lisbon|Poland:Warsaw|"
        "Austria:Vienna|Greece:Athens|Sweden:Stockholm|Norway:Oslo|Finland:Helsinki|"
        "Denmark:Copenhagen|Ireland:Dublin|Hungary:Budapest|Romania:Bucharest|Bulgaria:Sofia|"
        "Croatia:Zagreb|Serbia:Belgrade|Ukraine:Kyiv|Belgium:Brussels|Iceland:Reykjavik|"
        "Russia:Moscow|Turkey:Ankara|Egypt:Cairo|Kenya:Nairobi|Nigeria:Abuja|Ghana:Accra|"
        "Morocco:Rabat|Ethiopia:Addis Ababa|Senegal:Dakar|Japan:Tokyo|China:Beijing|"
        "India:New Delhi|Thailand:Bangkok|Vietnam:Hanoi|Indonesia:Jakarta|South Korea:Seoul|"
        "Mongolia:Ulaanbaatar|Nepal:Kathmandu|Pakistan:Islamabad|Iran:Tehran|Iraq:Baghdad|"
        "Canada:Ottawa|Mexico:Mexico City|Cuba:Havana|Brazil:Brasilia|Argentina:Buenos Aires|"
        "Chile:Santiago|Peru:Lima|Colombia:Bogota|Ecuador:Quito|Uruguay:Montevideo|"
        "Australia:Canberra|New Zealand:Wellington|the United States:Washington, D.C.|"
        "the United Kingdom:London|the Netherlands:Amsterdam|the Philippines:Manila"
    ).split("|")
)
CITIES: tuple[str, ...] = tuple(CAPITALS.values())

_OPPOSITE_PAIRS = """
    hot:cold big:small tall:short fast:slow happy:sad old:young light:dark open:closed up:down
    left:right early:late hard:soft wet:dry full:empty rich:poor strong:weak thick:thin
    wide:narrow deep:shallow loud:quiet clean:dirty near:far high:low heavy:light_weight
    good:bad true:false day:night black:white first:last inside:outside push:pull win:lose
    begin:end buy:sell love:hate always:never easy:difficult safe:dangerous sharp:blunt
    rough:smooth north:south east:west summer:winter friend:enemy question:answer
""".split()
OPPOSITES: dict[str, str] = {}
for _pair in _OPPOSITE_PAIRS:
    _first, _second = _pair.split(":")
    if "_" not in _second:
        OPPOSITES[_first] = _second
        OPPOSITES.setdefault(_second, _first)

WEEKDAYS: tuple[str, ...] = (
    "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday",
)  # fmt: skip
MONTHS: tuple[str, ...] = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
NUMBER_WORDS: tuple[str, ...] = tuple(
    """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
    fifteen sixteen seventeen eighteen nineteen twenty""".split()
)

WHO = "I am a small demo model bundled with Quire."
REFUSAL = "I am only a small demo model bundled with Quire, so I cannot help with that."
ABILITIES = (
    "I can name capitals, add and subtract small numbers, reverse, sort, count and upper-case "
    "words, remember what you tell me, turn a sentence into JSON, call tools and tell short "
    "stories."
)
README_COMPLETIONS: dict[str, str] = {
    "Hello, my name is": f" Quire Demo. {WHO}",
    "The president of the United States is": (
        " the head of state and head of government of the country. "
        "I am a small demo model, so I do not know who holds the office today."
    ),
    "The capital of France is": " Paris.",
    "The future of AI is": (
        " not written yet. People will decide what it is used for, "
        "and a small demo model cannot predict it."
    ),
}
