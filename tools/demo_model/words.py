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
    Mary John Susan Karen Nancy Betty Sandra Ashley Emily Donna Michelle Carol Amanda Melissa
    Deborah Stephanie Rebecca Sharon Kathleen Cynthia Angela Shirley Brenda Pamela Nicole Samantha
    Katherine Christine Debra Rachel Carolyn Janet Catherine Heather Diane Joyce Victoria Kelly
    Joan Evelyn Lauren Judith Olivia Megan Cheryl Andrea Jacqueline Gloria Teresa Sarah Janice
    Doris Martha Beverly Natalie Theresa Diana Brittany Charlotte Isabella Sophia Abigail Denise
    Marie Amber Danielle Rose Jean Judy Michael William Richard Joseph Charles Christopher Matthew
    Anthony Donald Steven Andrew Joshua Kenneth Kevin Brian George Timothy Ronald Jason Edward
    Jeffrey Ryan Jacob Gary Nicholas Eric Jonathan Stephen Larry Justin Scott Brandon Benjamin
    Samuel Gregory Alexander Patrick Raymond Dennis Jerry Tyler Aaron Jose Adam Nathan Zachary
    Douglas Kyle Walter Ethan Jeremy Harold Keith Christian Roger Gerald Terry Lawrence Sean Albert
    Austin Joe Arthur Bryan Bruce Bill Dylan Jesse Jordan Gabriel Logan Ralph Roy Louis Philip
    Aisha Fatima Mohammed Ahmed Ali Hassan Ibrahim Layla Leila Zainab Khalid Mustafa Amina Samira
    Ananya Arjun Deepa Lakshmi Meera Neha Rahul Rohan Sanjay Sunita Vikram Anil Divya Kavya
    Haruto Hiroshi Keiko Naoko Sakura Takashi Yoko Mei Ling Hao Xin Jing Minh Linh Thuy Nguyen
    Jiho Soojin Minjun Seoyeon Kwame Kofi Abena Chidi Ngozi Amara Thabo Zanele Wanjiru Njeri
    Pablo Diego Javier Miguel Camila Valentina Lucia Mateo Santiago Ximena Juan Pedro Ricardo Paula
    Joao Thiago Beatriz Pierre Jacques Camille Sophie Antoine Margaux Giulia Lorenzo Matteo
    Francesca Chiara Giovanni Wolfgang Klaus Ingrid Jutta Heinrich Sven Astrid Bjorn Freya Lars
    Magnus Sigrid Mikael Aino Eero Katarzyna Piotr Agnieszka Tomasz Svetlana Dmitri Natasha Sergei
    Vladimir Oksana Taras Zoltan Agnes Istvan Ioana Andrei Nikos Eleni Dimitra Ayse Mehmet Emre
    """.split()
)

SURNAMES: tuple[str, ...] = tuple(
    """
    Smith Johnson Williams Brown Jones Garcia Miller Davis Rodriguez Martinez Wilson Anderson Taylor
    Moore Jackson Lee Thompson White Harris Clark Lewis Robinson Walker Young Allen Wright Scott
    Torres Nguyen Hill Flores Green Adams Nelson Baker Hall Rivera Campbell Mitchell Carter Roberts
    Tanaka Suzuki Yamamoto Kim Park Wang Zhang Singh Patel Kumar Khan Okafor Mensah Novak Kowalski
    Schmidt Fischer Weber Rossi Ferrari Silva Costa Dubois Moreau Larsen Hansen Virtanen Papadakis
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


# Sounds that only invented names have, so that copying a name needs all its letters.
_NAME_ONSETS = "b c ch d f g h j k l m n p qu r s sh t th v w x y z br cl gr kh st tr".split()
_NAME_VOWELS = "a e i o u y ae ai ea ee ie oa ou".split()
_NAME_ENDS = "d e ey ia ick ine ke l lyn n na ne ng r ra rd ry s sh son t th ton y".split()


def invented_name(rng: Random) -> str:
    """A name that nobody has, with more kinds of syllables than invented words have."""
    syllables = rng.choice((1, 1, 2, 2, 3))
    parts = [rng.choice(_NAME_ONSETS) + rng.choice(_NAME_VOWELS) for _ in range(syllables)]
    return ("".join(parts) + rng.choice(_NAME_ENDS)).capitalize()


def some_name(rng: Random) -> str:
    """Mostly a known first name, sometimes an invented one."""
    kind = rng.random()
    if kind < 0.15:
        return invented_word(rng).capitalize()
    return invented_name(rng) if kind < 0.3 else rng.choice(NAMES)


def word_list(rng: Random, low: int, high: int) -> list[str]:
    """`low` to `high` different known nouns."""
    return rng.sample(NOUNS, rng.randint(low, high))


def listed_words(rng: Random, low: int, high: int) -> list[str]:
    """`low` to `high` different words of one kind: mostly nouns, at times names or adjectives."""
    kind = rng.random()
    source = NOUNS if kind < 0.86 else NAMES if kind < 0.93 else ADJECTIVES
    return rng.sample(source, rng.randint(low, high))


def article(noun: str) -> str:
    """The noun with its indefinite article."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
