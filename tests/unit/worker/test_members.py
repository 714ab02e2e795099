"""What logits processors are told of the batch, against a book that is kept by it."""

from __future__ import annotations

import random

import pytest
from bare_model import plan_of

from quire.logits_processors import BatchUpdate, MoveDirectionality
from quire.logits_processors.adapter import process_dict_updates
from quire.params import SamplingParams
from quire.protocol import ScheduledRequest
from quire.worker.processors.members import Members


def started(name: str, prompt: list[int], output: list[int]) -> ScheduledRequest:
    return ScheduledRequest(
        request_id=name,
        token_ids=prompt + output,
        num_prompt_tokens=len(prompt),
        sampling_params=SamplingParams(seed=1, extra_args={"name": name}),
        block_ids=[[0]],
        first_entries=[0],
        num_computed_tokens=0,
    )


def with_names(names: str) -> Members:
    members = Members()
    members.apply(plan_of({}, *(started(name, [1], []) for name in names)))
    members.settle([*names])
    return members


def test_a_batch_that_stays_is_no_news() -> None:
    members = with_names("abc")
    assert members.settle(["c", "a", "b"]) is None
    members.apply(plan_of({}, started("d", [1], [])))
    assert members.settle(["a", "b", "c"]) is None


@pytest.mark.parametrize(
    ("after", "removed", "added", "moved"),
    [
        ("abcd", [], [], []),
        ("abc", [3], [], []),
        ("bcd", [], [], [(3, 0)]),
        ("ad", [2], [], [(3, 1)]),
        ("abce", [], [3], []),
        ("ebcf", [], [0, 3], []),
        ("cdef", [], [0, 1], []),
        ("de", [2], [0], [(3, 1)]),
        ("abcdef", [], [4, 5], []),
        ("e", [3, 2, 1], [0], []),
    ],
)
def test_places_have_no_gaps(
    after: str, removed: list[int], added: list[int], moved: list[tuple[int, int]]
) -> None:
    members = with_names("abcd")
    members.apply(plan_of({}, started("e", [5], [6]), started("f", [7], [])))
    update = members.settle([*after])
    if update is None:
        assert (removed, added, moved) == ([], [], [])
        return
    assert update.batch_size == len(after)
    assert [place for place, *_ in update.added] == added
    one_way = MoveDirectionality.UNIDIRECTIONAL
    assert [*update.moved] == [(first, second, one_way) for first, second in moved]
    assert [*update.removed] == removed


def test_a_request_that_starts_again_is_another_one() -> None:
    members = with_names("ab")
    members.advance(["a", "b"], [8, 9])
    members.apply(plan_of({}, started("a", [1], [8]), release=("a",)))
    update = members.settle(["a", "b"])
    assert update is not None
    [(place, params, prompt, output)] = update.added
    assert (place, params.extra_args, prompt, output) == (0, {"name": "a"}, [1], [8])
    members.advance(["a", "b"], [5, 6])
    assert output == [8, 5]


@pytest.mark.parametrize("seed", range(30))
def test_a_book_of_what_is_told_is_true(seed: int) -> None:
    draw = random.Random(seed)
    members = Members()
    held: dict[str, list[int]] = {}
    book: dict[int, tuple[str, list[int]]] = {}
    count = 0
    for _ in range(60):
        gone = tuple(name for name in held if draw.random() < 0.2)
        for name in gone:
            del held[name]
        new = []
        for _ in range(draw.choice([0, 0, 1, 2, 5])):
            count += 1
            name = draw.choice(gone) if gone and draw.random() < 0.4 else str(count)
            if name not in held:
                held[name] = [count] * draw.randrange(3)
                new.append(started(name, [0], held[name]))
        members.apply(plan_of({}, *new, release=gone))
        chosen = [name for name in held if draw.random() < 0.9]
        draw.shuffle(chosen)
        update = members.settle(chosen)
        process_dict_updates(book, update, _entry)
        names = [member.request_id for member in members.batch]
        assert sorted(names) == sorted(chosen)
        assert book == {place: (name, held[name]) for place, name in enumerate(names)}
        tokens = [draw.randrange(9) for _ in chosen]
        members.advance(chosen, tokens)
        for name, token in zip(chosen, tokens, strict=True):
            held[name] = [*held[name], token]
        everything: dict[int, tuple[str, list[int]]] = {}
        process_dict_updates(everything, members.all_added(), _entry)
        assert everything == {place: (name, held[name]) for place, name in enumerate(names)}


def _entry(
    params: SamplingParams, prompt: list[int] | None, output: list[int]
) -> tuple[str, list[int]]:
    assert prompt == [0]
    return str((params.extra_args or {})["name"]), output


def test_a_swap() -> None:
    """Quire tells of none; a processor that is tested with one gets it right."""
    book = {0: "a", 1: "b", 2: "c"}
    moves = [(0, 2, MoveDirectionality.SWAP), (1, 0, MoveDirectionality.UNIDIRECTIONAL)]
    assert process_dict_updates(book, BatchUpdate(3, (), (), moves), lambda *_: None)
    assert book == {0: "b", 2: "a"}
    assert not process_dict_updates(book, None, lambda *_: None)
