"""Requests that the score asks are not trained on, nor any that is a word away from one of them."""

from collections.abc import Iterator
from random import Random

import pytest
from tools.demo_model import odd_requests, wordplay
from tools.demo_model.courtesies import courteous
from tools.demo_model.phrasings import COPY, COUNT, REVERSE, SORT, UPPER, Skill, is_new, wording
from tools.demo_model.talk import _OUT_OF_REACH
from tools.demo_model.unseen_phrasings import PHRASINGS

SKILLS = (REVERSE, SORT, COUNT, UPPER, COPY)
_POLITE = {"please", "kindly", "hi", "hey", "hello", "pls", "plz", "a", "an", "the"}
_SLOTS = ("{q}", "{n}", "{an}", "{l}", "{b}", "{bn}", "{c}")


def bare(phrasing: str) -> tuple[str, ...]:
    """Its words but those of politeness and articles; every slot is `{w}`."""
    for slot in _SLOTS:
        phrasing = phrasing.replace(slot, "{w}")
    return tuple(word for word in wording(phrasing).split() if word not in _POLITE)


def is_near(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """The same words in any order; or of six and more, all but one in the same order."""
    if sorted(one) == sorted(other):
        return True
    most = max(len(one), len(other))
    if most < 6 or len({*one} ^ {*other}) > 2:
        return False
    return _distance(one, other) <= 1


def _distance(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """The words to insert, delete or replace (Levenshtein)."""
    row = list(range(len(other) + 1))
    for word in one:
        last, row = row, [row[0] + 1]
        for place, there in enumerate(other):
            row.append(min(last[place] + (word != there), last[place + 1] + 1, row[place] + 1))
    return row[-1]


def written_phrasings(kind: str) -> Iterator[str]:
    """All whole phrasings of the training data that are answered in one way."""
    if kind == "odd":
        yield from (*odd_requests._ODD_REQUESTS, *odd_requests.LETTERS, *odd_requests.WORDS)
        yield from (*odd_requests.LISTS, *_OUT_OF_REACH)
        return
    own, skill = WRITTEN[kind]
    yield from (*own, *skill.direct, *skill.frames)
    yield from (verb.format(o="{w}") for verb in skill.verbs)


WRITTEN = {
    "reverse": (wordplay._REVERSE_PHRASES, REVERSE),
    "sort": (wordplay._SORT_PHRASES, SORT),
    "count": (wordplay._COUNT_PHRASES, COUNT),
    "upper": (wordplay._UPPER_PHRASES, UPPER),
}
SCORED = {bare(phrasing) for all_of in PHRASINGS.values() for phrasing in all_of}


@pytest.mark.parametrize(
    ("trained", "near"),
    [
        ("Alphabetize the {w}, please!", True),
        ("{w} alphabetize", True),
        ("How big is this list: {w}", True),
        ("Tell me how many words I wrote: {w}", True),
        ("Sort {w} by the alphabet.", False),
        ("Mirror {n} for me.", False),
        ("What do you hear when you read {n} from right to left?", True),
    ],
)
def test_what_is_near(trained: str, near: bool) -> None:
    assert any(is_near(bare(trained), scored) for scored in SCORED) == near


@pytest.mark.parametrize("kind", PHRASINGS)
def test_no_written_phrasing_is_near_one_that_is_scored(kind: str) -> None:
    trained = list(written_phrasings(kind))
    assert len(trained) > 130
    scored = [bare(phrasing) for phrasing in PHRASINGS[kind]]
    assert not [one for one in trained if any(is_near(bare(one), other) for other in scored)]


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.name)
def test_no_phrasing_of_the_grammar_is_one_that_is_scored(skill: Skill) -> None:
    rng = Random(1)
    drawn = {bare(skill.phrasing(rng)) for _ in range(5000)}
    assert not drawn & SCORED


def test_every_frame_has_its_words_and_is_written_once() -> None:
    for skill in SKILLS:
        for frame in (*skill.direct, *skill.frames):
            assert "{w}" in frame
            assert not frame.replace("{w}", "").count("{")
        assert len({*skill.frames}) == len(skill.frames)
        assert not {*skill.frames} & {*skill.direct}


def test_a_phrasing_is_held_out_however_it_is_punctuated() -> None:
    for phrasing in SORT.frames:
        assert is_new(phrasing) == is_new(phrasing.lower().rstrip(".?") + "!")
    assert any(is_new(phrasing) for phrasing in SORT.frames)


def test_courtesies_leave_the_request_as_it_is() -> None:
    rng = Random(2)
    seen = set()
    for _ in range(500):
        said = courteous("Sort: {w}.", rng)
        assert "ort: {w}." in said
        seen.add(said)
    assert len(seen) > 30
