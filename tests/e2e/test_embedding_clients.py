"""Clients for vectors and rankings that others wrote, unchanged: each prints what it got, which is
compared with plain HTTP.

The usual ones are among the packages of the tests. `make proof` also runs those that need many
more packages, if QUIRE_CLIENTS_PYTHON names an interpreter that has them; they were run with
cohere 7.3.1, chromadb 1.5.9, haystack-ai 3.4.1, llama-index-embeddings-openai 0.7.0, mteb 2.26.24.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from running_server import RunningServer, engine_options
from tiny_encoder import write_encoder

from .test_other_clients import python_with

TEXTS = ["the red sky", "blue"]
_START = """
import json, os
BASE, TEXTS = os.environ["BASE_URL"], json.loads(os.environ["TEXTS"])
"""
CLIENTS = {
    "openai": """
from openai import OpenAI
client = OpenAI(base_url=f"{BASE}/v1", max_retries=0)
create = client.embeddings.create
print(json.dumps({
    "vectors": [one.embedding for one in create(model="tiny", input=TEXTS).data],
    "others": [one.embedding for one in create(
        model="tiny", input=TEXTS, encoding_format="float").data],
}))
""",
    "langchain_openai": """
from langchain_openai import OpenAIEmbeddings
made = OpenAIEmbeddings(model="tiny", base_url=f"{BASE}/v1", check_embedding_ctx_length=False)
print(json.dumps({
    "vectors": made.embed_documents(TEXTS), "others": [made.embed_query(one) for one in TEXTS],
}))
""",
    "huggingface_hub": """
from huggingface_hub import InferenceClient
root, route = InferenceClient(model=f"{BASE}/"), InferenceClient(model=f"{BASE}/embed")
likeness = InferenceClient(model=f"{BASE}/similarity").sentence_similarity(TEXTS[0], TEXTS)
print(json.dumps({
    "vectors": [root.feature_extraction(one)[0].tolist() for one in TEXTS],
    "others": [route.feature_extraction(one)[0].tolist() for one in TEXTS],
    "order": sorted(range(2), key=lambda index: likeness[index]),
}))
""",
}
LARGER = {
    "litellm": """
import litellm
litellm.telemetry = False
given = {"model": "hosted_vllm/tiny", "api_key": "x"}
found = litellm.embedding(**given, api_base=f"{BASE}/v1", input=TEXTS)
ranks = litellm.rerank(**given, api_base=BASE, query=TEXTS[1], documents=TEXTS)
print(json.dumps({
    "vectors": [one["embedding"] for one in found.data],
    "order": [one["index"] for one in ranks.results],
}))
""",
    "cohere": """
import cohere
client = cohere.ClientV2(api_key="x", base_url=BASE)
found = client.embed(
    model="tiny", input_type="search_query", texts=TEXTS, embedding_types=["float"])
ranks = client.rerank(model="tiny", query=TEXTS[1], documents=TEXTS)
print(json.dumps({
    "vectors": found.embeddings.float_, "order": [one.index for one in ranks.results],
}))
""",
    "llama_index.embeddings.openai": """
from llama_index.embeddings.openai import OpenAIEmbedding
made = OpenAIEmbedding(model_name="tiny", api_base=f"{BASE}/v1", api_key="x")
print(json.dumps({"vectors": made.get_text_embedding_batch(TEXTS)}))
""",
    "haystack": """
from haystack.components.embedders import OpenAITextEmbedder
from haystack.utils import Secret
made = OpenAITextEmbedder(
    model="tiny", api_base_url=f"{BASE}/v1", api_key=Secret.from_token("x"))
print(json.dumps({"vectors": [made.run(one)["embedding"] for one in TEXTS]}))
""",
    "chromadb": """
import chromadb
from chromadb.utils import embedding_functions
made = embedding_functions.OpenAIEmbeddingFunction(
    api_key="x", api_base=f"{BASE}/v1", model_name="tiny")
texts = chromadb.EphemeralClient().create_collection("texts", embedding_function=made)
texts.add(ids=["0", "1"], documents=TEXTS)
ids = texts.query(query_texts=[TEXTS[1]], n_results=2)["ids"][0]
print(json.dumps({
    "vectors": [[float(n) for n in one] for one in made(TEXTS)], "order": [int(i) for i in ids],
}))
""",
    "mteb": """
import mteb, numpy as np
from datasets import Dataset
from openai import OpenAI
from mteb.abstasks import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata

PAIRS = [(a, b, float(a == b)) for a in TEXTS for b in TEXTS]
class Local(AbsTaskSTS):
    metadata = TaskMetadata(
        name="Local", description="Pairs of two texts.", reference=None, type="STS",
        category="t2t", modalities=["text"], eval_splits=["test"], eval_langs=["eng-Latn"],
        main_score="cosine_spearman", date=None, domains=None, task_subtypes=None, license=None,
        annotations_creators=None, dialect=None, sample_creation=None, bibtex_citation=None,
        dataset={"path": "local", "revision": "1"},
    )
    min_score, max_score = 0, 1
    def load_data(self, *args, **kwargs):
        first, second, score = zip(*PAIRS)
        rows = {"sentence1": first, "sentence2": second, "score": score}
        self.dataset, self.data_loaded = {"test": Dataset.from_dict(rows)}, True

client = OpenAI(base_url=f"{BASE}/v1")
class Model(mteb.models.abs_encoder.AbsEncoder):
    def __init__(self):
        self.mteb_model_meta = mteb.models.ModelMeta.create_empty()
    def encode(self, inputs, **kwargs):
        texts = [text for batch in inputs for text in batch["text"]]
        found = client.embeddings.create(model="tiny", input=texts).data
        return np.array([one.embedding for one in found])

result = mteb.evaluate(Model(), Local(), cache=None, overwrite_strategy="always")
score = result.task_results[0].scores["test"][0]["cosine_spearman"]
vectors = [one.embedding for one in client.embeddings.create(model="tiny", input=TEXTS).data]
print(json.dumps({"vectors": vectors, "score": float(score)}))
""",
}


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    directory = write_encoder(tmp_path_factory.mktemp("tiny"))
    options = {**engine_options(directory), "load_format": "dummy"}
    del options["num_gpu_blocks_override"]
    running = RunningServer(options, {"port": 0})
    yield running.wait_until_serving()
    running.stop()


def check(client: str, code: str, server: RunningServer) -> None:
    with server.client() as http:
        reply = http.post("/v1/embeddings", json={"input": TEXTS}).raise_for_status().json()
    wanted = [one["embedding"] for one in reply["data"]]
    environment = {
        **os.environ, "BASE_URL": server.url, "TEXTS": json.dumps(TEXTS), "OPENAI_API_KEY": "x",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "ANONYMIZED_TELEMETRY": "False", "HAYSTACK_TELEMETRY_ENABLED": "False",
    }  # fmt: skip
    done = subprocess.run(
        [python_with(client.partition(".")[0]), "-c", _START + code], env=environment,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    for name in ("vectors", "others"):
        for vector, its_wanted in zip(found.get(name, wanted), wanted, strict=True):
            assert vector == pytest.approx(its_wanted, abs=1e-6)
    assert found.get("order", [1, 0]) == [1, 0]
    assert found.get("score", 1.0) > 0.5


@pytest.mark.parametrize("client", CLIENTS)
def test_usual_clients(client: str, embedder: RunningServer) -> None:
    check(client, CLIENTS[client], embedder)


@pytest.mark.long
@pytest.mark.parametrize("client", LARGER)
def test_larger_clients(client: str, embedder: RunningServer) -> None:
    check(client, LARGER[client], embedder)
