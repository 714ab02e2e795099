"""Word lists the generated data draws from: nouns, adjectives, names and invented words."""

# ruff: noqa: SIM905  (a word list reads better as one string)

from random import Random

NOUNS: tuple[str, ...] = tuple(
    """
    anchor apple arrow autumn badge baker bamboo banana banjo barrel basket beach bean bear bell
    bench berry bicycle bird blanket blossom boat book bottle branch bread brick bridge broom
    brush bucket butter button cabin cactus cake camel camera candle canoe canyon carpet carrot
    castle cat cave cedar chair chalk cheese cherry clock cloud clover coat cobra coconut coffee
    comet compass copper coral cotton crab crane cricket crown crystal cup curtain daisy desert
    desk diamond dolphin donkey door dragon drum duck eagle echo egg elephant emerald engine
    falcon farmer feather fence fern fiddle field finger fire fish flag flame flower flute forest
    fork fountain fox frog garden garlic gate ghost giant ginger glass globe glove goat gold
    goose grape grass guitar hammer harbor harp hat hawk hazel helmet heron hill honey horse
    house iceberg island ivory jacket jade jar jasmine jewel jungle kettle key king kite kitten
    knight ladder lake lamp lantern leaf lemon letter lily lion lizard lobster magnet mango maple
    marble market meadow melon mirror monkey moon moss mountain mouse mushroom needle nest
    night oak ocean olive onion orange orchid otter owl oyster paddle paint palm panda paper
    parrot peach pearl pebble pencil penguin pepper piano pillow pilot pine planet plum pocket
    pond pony potato prairie pumpkin puppy puzzle queen rabbit radio rain raven ribbon rice ring
    river robin rocket rope rose ruby saddle sail salmon salt sand scarf school seed shadow shark
    sheep shell shoe silver sky snail snow spider spoon spring squirrel star stone storm straw
    sugar summer sun swan sword table tiger timber toast tower train tree trumpet tulip tunnel
    turtle umbrella valley velvet village violin wagon walnut water whale wheat wheel whistle
    willow wind window winter wolf wood yarn zebra
    """.split()
)

ADJECTIVES: tuple[str, ...] = tuple(
    """
    blue brave bright broken calm clean clever cold curious dark deep dry early empty famous fast
    friendly gentle golden green happy heavy hidden hot kind large lazy little lonely long loud
    lucky modern narrow new noisy old open orange pale patient pink plain polite proud purple
    quick quiet red round sharp shiny short silent silver simple slow small smooth soft strange
    strong sweet tall thin tiny tired warm wet white wide wild wise wooden yellow young
    """.split()
)

NAMES: tuple[str, ...] = tuple(
    """
    Ada Alan Alice Amir Amy Ana Anders Anna Anton Aria Ben Bella Bruno Carla Carlos Chen Chloe
    Clara Daniel Daria David Dora Edgar Elena Eli Ella Emil Emma Erik Eva Farah Felix Fiona Frank
    Gita Grace Greta Hana Hannah Harry Heidi Helen Henry Hugo Ida Igor Ines Iris Ivan Jack Jakob
    James Jane Jonas Julia Jun Kai Karim Kate Kenji Lara Laura Lena Leo Liam Lily Lina Linda Lucas
    Lucy Luis Maria Mark Marta Martin Max Maya Mia Mila Mina Nadia Nina Noah Nora Olga Oliver
    Omar Oscar Otto Paul Peter Petra Priya Rafael Raj Ravi Rita Robert Rosa Ruth Sam Sara Sofia
    Stefan Tara Theo Thomas Tim Tom Uma Vera Victor Wei Yara Yuki Yusuf Zara Zoe
    """.split()
)

COLORS: tuple[str, ...] = tuple(
    "red blue green yellow purple orange pink black white brown silver gold".split()
)
ANIMALS: tuple[str, ...] = tuple(
    """cat dog rabbit fox bear owl duck frog mouse turtle pony goat hedgehog squirrel parrot
    penguin otter lion tiger elephant monkey dragon""".split()
)

_ONSETS = "b d f g k l m n p r s t v z br dr gr kr pl st tr".split()
_VOWELS = "a e i o u".split()
_CODAS = ["", "", "n", "l", "r", "s", "x", "m"]


def invented_word(rng: Random) -> str:
    """A pronounceable word that means nothing, so that copying cannot be done from memory."""
    syllables = rng.choice((2, 2, 3))
    parts = [rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(syllables)]
    return "".join(parts) + rng.choice(_CODAS)


def some_word(rng: Random) -> str:
    """Mostly a known noun, sometimes an invented word."""
    return invented_word(rng) if rng.random() < 0.2 else rng.choice(NOUNS)


def some_name(rng: Random) -> str:
    """Mostly a known first name, sometimes an invented one."""
    return invented_word(rng).capitalize() if rng.random() < 0.35 else rng.choice(NAMES)


def word_list(rng: Random, low: int, high: int) -> list[str]:
    """`low` to `high` different known nouns."""
    return rng.sample(NOUNS, rng.randint(low, high))


def article(noun: str) -> str:
    """The noun with its indefinite article."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
