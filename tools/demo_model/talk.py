"""Items of plain talk: greetings, who the model is, what it cannot do, and short stories."""

from random import Random

from tools.demo_model.example import Item
from tools.demo_model.facts import ABILITIES, CITIES, REFUSAL, WHO
from tools.demo_model.words import ADJECTIVES, ANIMALS, NAMES, NOUNS, article

_OPENERS = ("", "", "", "Hi! ", "Hello, ", "Please tell me, ", "Hey, ", "One question: ", "So, ")
_WHO = (
    "who are you?", "what are you?", "what is your name?", "which model are you?",
    "are you a language model?", "are you ChatGPT?", "who made you?", "introduce yourself.",
    "tell me about yourself.", "what model is this?", "are you human?", "what's your name?",
    "are you a big model?", "who am I talking to?", "what is Quire?",
)  # fmt: skip
_ABLE = (
    "what can you do?", "how can you help me?", "what are you able to do?", "can you help me?",
    "what are your skills?", "what should I ask you?", "help", "what do you know?",
)  # fmt: skip
_SMALL_TALK: dict[str, tuple[str, ...]] = {
    "Hello! How can I help you?": (
        "Hello", "Hi", "Hello!", "Hi!", "Hey", "hello", "hi", "Good morning!", "Good evening",
        "Hi there", "Hello there!", "Hey there!", "Good day",
    ),
    "You are welcome!": (
        "Thank you", "Thanks", "Thanks!", "Thank you!", "thank you very much", "Thanks a lot!",
        "Thank you for your help.",
    ),
    "Goodbye!": ("Bye", "Goodbye", "See you", "bye", "Good night", "Bye!", "See you later."),
    "I am fine, thank you. How can I help you?": (
        "How are you?", "how are you", "Hello, how are you?", "How are you today?",
        "How is it going?",
    ),
}  # fmt: skip
_OUT_OF_REACH = (
    "Write a poem about {n}.", "How do I repair {an}?", "Explain {t} to me.", "What is {t}?",
    "Who invented the {n}?", "Write a program that draws {an}.", "Who won the game in {c}?",
    "Give me a recipe for {n} soup.", "What is the best {n} to buy?", "Summarize the book {n}.",
    "Translate {n} into French.", "What happened in {c} in 19{d}?", "How far is it to {c}?",
    "Why is the {n} {a}?", "Should I invest in {t}?", "Can you draw {an}?", "How old is {p}?",
    "What do you think about {t}?", "Plan a trip to {c}.", "How do I learn {t}?",
    "Tell me the news from {c}.", "What is the meaning of life?", "Write an essay about {t}.",
    "Which {n} is the largest in the world?", "Prove that {t} works.", "Who is {p}?",
    "How does {an} work?", "Tell me a joke about {an}.", "Write code in Python.",
    "What will the price of {n} be?", "Give me advice about {t}.", "Solve this puzzle: {n}",
)  # fmt: skip
_TOPICS = (
    "physics", "chemistry", "history", "music", "economics", "the internet", "democracy", "love",
    "quantum mechanics", "machine learning", "politics", "football", "philosophy", "medicine",
    "biology", "gravity", "evolution", "law", "art", "religion", "climate change", "a black hole",
    "cooking", "chess", "programming", "photosynthesis", "the stock market", "Linux", "algebra",
)  # fmt: skip
_STORY_ASKS = (
    "Tell me a story about {an}.", "Tell me a short story about {an}.", "Write a story about {an}.",
    "Please tell a story about {an}.", "Can you tell me a story about {an}?",
    "I want to hear a story about {an}.", "story about {an}", "Write a short story with {an}.",
)  # fmt: skip
_BEGINNINGS = (
    "Once upon a time there was a {a} {h} named {p}. {p} lived near {place}.",
    "Once upon a time a {a} {h} named {p} lived near {place}.",
    "There was once a {a} {h} called {p}, who lived near {place}.",
)  # fmt: skip
_PLACES = (
    "a big forest", "a quiet lake", "an old mill", "the sea", "a small village", "a green hill",
    "a wide river", "a garden full of flowers",
)  # fmt: skip
_PLOTS = (
    ("One day {p} found a {b} {n} on the path.", "Nobody knew whose {n} it was.",
     "So {p} carried it from house to house and asked everyone.",
     "At last {q} the {g} called out: that is my {n}!", "{q} was very happy and thanked {p}."),
    ("One morning {p} could not find the {b} {n} anywhere.",
     "{p} looked under the bed and behind the door, but it was gone.",
     "Then {q} the {g} came by and offered to help.",
     "Together they searched until they found the {n} under a tree.", "{p} laughed with joy."),
    ("One evening a storm came, and the rain fell all night.",
     "{q} the {g} knocked at the door, wet and cold.",
     "{p} made a fire and shared some warm soup.", "In the morning the sun was shining again.",
     "{q} gave {p} a {b} {n} as a present."),
    ("{p} had always wanted to see the {b} {s} on the other side of the hill.",
     "So one day {p} packed some bread and set out.",
     "On the way {p} met {q} the {g}, who knew the road.",
     "They walked together until the evening.", "When they saw the {s}, they were very happy."),
    ("Every day {p} practiced playing the {i}, but it sounded terrible.",
     "{q} the {g} said that {p} should never give up.", "So {p} went on playing, week after week.",
     "In the summer {p} played for the whole village.", "Everybody clapped and asked for more."),
)  # fmt: skip
_OBJECTS = (
    "book", "basket", "lantern", "ring", "hat", "scarf", "key", "clock", "cup", "umbrella", "box",
    "mirror", "button", "ribbon", "bell", "pencil", "jar", "kite", "compass", "shell", "crown",
)  # fmt: skip
_SIGHTS = ("castle", "lake", "tower", "village", "bridge", "fountain", "lighthouse", "waterfall")
_INSTRUMENTS = ("piano", "violin", "flute", "drum", "banjo", "harp", "guitar", "trumpet")
_QUALITIES = (
    "blue", "golden", "green", "red", "silver", "small", "white", "yellow", "purple", "beautiful",
    "new", "round", "shiny", "wooden", "pink",
)  # fmt: skip
_ENDINGS = (
    "From that day on, {p} and {q} were best friends.",
    "And {p} learned that it is good to help others.",
    "That night {p} slept well and dreamed of new adventures.",
    "And they lived happily ever after.",
)  # fmt: skip


def _sentence(opener: str, rest: str) -> str:
    return opener + rest if opener else rest[0].upper() + rest[1:]


def who_item(rng: Random) -> Item:
    """A question about the model itself."""
    able = rng.random() < 0.35
    question = _sentence(rng.choice(_OPENERS), rng.choice(_ABLE if able else _WHO))
    if rng.random() < 0.2:
        question = question.lower().rstrip("?.")
    return Item(
        "who are you", f"who:{question}", question, ABILITIES if able else WHO,
        thought="The user asks about me. I answer honestly.",
    )  # fmt: skip


def small_talk_item(rng: Random) -> Item:
    """A greeting, thanks or a farewell."""
    answer = rng.choice(tuple(_SMALL_TALK))
    return Item(
        "small talk", "small talk", rng.choice(_SMALL_TALK[answer]), answer,
        thought="The user is polite. I am polite, too.",
    )  # fmt: skip


def refusal_item(rng: Random) -> Item:
    """A question outside the skills."""
    noun = rng.choice(NOUNS)
    prompt = rng.choice(_OUT_OF_REACH).format(
        n=noun, an=article(noun), t=rng.choice(_TOPICS), c=rng.choice(CITIES).rstrip("."),
        d=rng.randint(10, 99), a=rng.choice(ADJECTIVES), p=rng.choice(NAMES),
    )  # fmt: skip
    return refused(rng, prompt)


def refused(rng: Random, prompt: str) -> Item:
    """The question, now and then with an opening, and the honest answer to it."""
    if rng.random() < 0.3:
        prompt = _sentence(rng.choice(_OPENERS), prompt[0].lower() + prompt[1:])
    if rng.random() < 0.1:
        prompt = prompt.removesuffix(".").removesuffix("?")
    return Item(
        "outside its skills", f"outside:{prompt}", prompt, REFUSAL,
        thought="This is outside my skills. I should say so.",
    )  # fmt: skip


def _story(rng: Random, hero: str) -> str:
    name, friend = rng.sample(NAMES, 2)
    lines = (rng.choice(_BEGINNINGS), *rng.choice(_PLOTS), rng.choice(_ENDINGS))
    return " ".join(lines).format(
        a=rng.choice(("brave", "clever", "curious", "friendly", "kind", "lonely", "little", "shy")),
        b=rng.choice(_QUALITIES), h=hero, n=rng.choice(_OBJECTS), s=rng.choice(_SIGHTS),
        i=rng.choice(_INSTRUMENTS), p=name, q=friend,
        g=rng.choice(ANIMALS), place=rng.choice(_PLACES),
    )  # fmt: skip


def story_item(rng: Random) -> Item:
    """A request for a story about an animal."""
    hero = rng.choice(ANIMALS)
    prompt = rng.choice(_STORY_ASKS).format(an=article(hero))
    if rng.random() < 0.1:
        prompt = rng.choice(("Tell me a story.", "Tell me a short story.", "Write a story."))
    return Item(
        "stories", f"story:{prompt}", prompt, _story(rng, hero),
        thought=f"I tell a short story about {article(hero)}.",
    )  # fmt: skip


def story_completion(rng: Random) -> Item:
    """The first words of a story as plain text."""
    text = _story(rng, rng.choice(ANIMALS))
    cut = rng.choice((4, 6, 8))
    words = text.split(" ")
    prompt, rest = " ".join(words[:cut]), " " + " ".join(words[cut:])
    return Item("stories, completion", f"story:{prompt}", prompt, rest, completion=True)
