"""Encoders: BERT and its relatives, Nomic BERT, Jina BERT 2, ModernBERT and EuroBERT.

Tables of positions of RoBERTa and XLM-R begin with the first position in files: llama.cpp's
conversion leaves out the rows before it. What a file pools, `gguf/model_config.py` reads.
"""

from __future__ import annotations

from quire.gguf.architectures.dense import LLAMA_PARTS
from quire.gguf.architectures.facts import has_part, has_tensor, refused
from quire.gguf.architectures.row import Architecture, Config, Parts, Place
from quire.gguf.keys import Keys

_BERT_PARTS: Parts = {
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}
_JINA2_PARTS: Parts = {
    **_BERT_PARTS,
    "ffn_up": "mlp.gated_layers",
    "ffn_down": "mlp.wo",
    "layer_output_norm": "mlp.layernorm",
}
_OLD_JINA2_PARTS: Parts = {
    **_JINA2_PARTS,
    "ffn_gate": (Place("mlp.gated_layers", half=0),),
    "ffn_up": (Place("mlp.gated_layers", half=1),),
}
_NOMIC_PARTS: Parts = {
    "attn_qkv": "attn.Wqkv",
    "attn_output": "attn.out_proj",
    "attn_output_norm": "norm1",
    "ffn_up": "mlp.fc11",
    "ffn_gate": "mlp.fc12",
    "ffn_down": "mlp.fc2",
    "layer_output_norm": "norm2",
}
_MODERN_PARTS: Parts = {
    "attn_norm": "attn_norm",
    "attn_qkv": "attn.Wqkv",
    "attn_output": "attn.Wo",
    "ffn_norm": "mlp_norm",
    "ffn_up": "mlp.Wi",
    "ffn_down": "mlp.Wo",
}


def _top(root: str) -> dict[str, str]:
    return {
        "token_embd": f"{root}embeddings.word_embeddings",
        "position_embd": f"{root}embeddings.position_embeddings",
        "token_types": f"{root}embeddings.token_type_embeddings",
        "token_embd_norm": f"{root}embeddings.LayerNorm",
        "cls": "classifier.dense",
        "cls.output": "classifier.out_proj",
    }


def has_classifier(keys: Keys) -> bool:
    """Whether the file is a classifier or a reranker."""
    return any(has_tensor(keys, f"{name}.weight") for name in ("cls", "cls.output"))


def is_old_jina2(keys: Keys) -> bool:
    """Whether gate and up have tensors of their own, as llama.cpp wrote them in 2024."""
    return has_part(keys, "ffn_gate.weight")


def _encoder(keys: Keys) -> Config:
    """Configuration that all encoders share."""
    types = keys.tensor("token_types.weight")
    return {
        "layer_norm_eps": keys.number("{arch}.attention.layer_norm_epsilon"),
        "hidden_act": "gelu",
        "type_vocab_size": 0 if types is None else types.shape[0],
    }


def _bert(keys: Keys) -> Config:
    table = keys.tensor("position_embd.weight")
    if table is None:
        raise refused(keys, "a BERT without a table of positions")
    return {**_encoder(keys), "max_position_embeddings": table.shape[0]}


def _roberta(keys: Keys) -> Config:
    """A classifier of RoBERTa's kind: the conversion drops what others need (BERT's pooler)."""
    if not all(has_tensor(keys, f"{name}.weight") for name in ("cls", "cls.output")):
        raise refused(keys, "a classifier without its dense layer, which the conversion drops,")
    return {**_bert(keys), **_labels(keys), "position_offset": 0}


def _labels(keys: Keys) -> Config:
    """The classes of a classifier."""
    head = keys.tensor("cls.output.weight")
    count = 1 if head is None else head.shape[0]
    names = keys.texts("{arch}.classifier.output_labels") or []
    if len(names) not in (0, count):
        raise keys.error("{arch}.classifier.output_labels", f"a list of {count} names")
    labels = {"id2label": {str(index): name for index, name in enumerate(names)}} if names else {}
    return {"num_labels": count, **labels}


def _nomic(keys: Keys) -> Config:
    return {**_encoder(keys), "hidden_act": "silu"}


def _jina2(keys: Keys) -> Config:
    if has_part(keys, "attn_q_norm.weight"):
        raise refused(keys, "norms of q and k (Jina Embeddings 2 for code)")
    if has_classifier(keys):
        raise refused(keys, "a classifier")
    return {**_encoder(keys), "position_embedding_type": "alibi"}


def _modern(keys: Keys) -> Config:
    """The file has the activation if it is not the exact GELU."""
    act = keys.text("{arch}.hidden_activation") or keys.text("{arch}.hidden_act") or "gelu"
    head = {}
    if has_classifier(keys):
        head = {
            "architectures": ["ModernBertForSequenceClassification"],
            "classifier_bias": has_tensor(keys, "cls.bias"),
            "classifier_pooling": "mean",  # as llama.cpp has it for all of them
            **_labels(keys),
        }
        if not all(has_tensor(keys, f"{name}.weight") for name in ("cls", "cls.norm")):
            raise refused(keys, "a classifier without its dense layer and its norm")
    return {
        "norm_eps": keys.number("{arch}.attention.layer_norm_epsilon"),
        "hidden_activation": act,
        "local_attention": keys.whole("{arch}.attention.sliding_window"),
        "global_attn_every_n_layers": keys.whole("{arch}.attention.sliding_window_pattern", 3),
        "global_rope_theta": keys.number("{arch}.rope.freq_base", 160_000.0),
        "local_rope_theta": keys.number("{arch}.rope.freq_base_swa", 10_000.0),
        "norm_bias": has_tensor(keys, "output_norm.bias"),
        "attention_bias": has_part(keys, "attn_qkv.bias"),
        "mlp_bias": has_part(keys, "ffn_up.bias"),
        **head,
    }


def _row(hf_name: str, model_type: str, parts: Parts, **more: object) -> Architecture:
    return Architecture(hf_name, model_type, parts, eps="layer_norm_epsilon", **more)  # type: ignore[arg-type]


_BERT_LAYERS = "bert.encoder.layer."

ROBERTA_CLASSIFIER = _row(
    "XLMRobertaForSequenceClassification",
    "xlm-roberta",
    _BERT_PARTS,
    top=_top("roberta."),
    layers="roberta.encoder.layer.",
    config=_roberta,
)
"""Files of architecture bert with a classifier."""

OLD_JINA2 = _row(
    "JinaBertModel", "bert", _OLD_JINA2_PARTS, top=_top("bert."), layers=_BERT_LAYERS, config=_jina2
)
"""Files of architecture jina-bert-v2 from 2024."""

ENCODERS: dict[str, Architecture] = {
    "bert": _row(
        "BertModel", "bert", _BERT_PARTS, top=_top("bert."), layers=_BERT_LAYERS, config=_bert
    ),
    "nomic-bert": _row(
        "NomicBertModel",
        "nomic_bert",
        _NOMIC_PARTS,
        top={**_top("bert."), "token_embd_norm": "bert.emb_ln"},
        layers="bert.encoder.layers.",
        config=_nomic,
    ),
    "jina-bert-v2": _row(
        "JinaBertModel", "bert", _JINA2_PARTS, top=_top("bert."), layers=_BERT_LAYERS, config=_jina2
    ),
    "modern-bert": _row(
        "ModernBertModel",
        "modernbert",
        _MODERN_PARTS,
        top={
            "token_embd": "model.embeddings.tok_embeddings",
            "token_embd_norm": "model.embeddings.norm",
            "output_norm": "model.final_norm",
            "cls": "head.dense",
            "cls.norm": "head.norm",
            "cls.output": "classifier",
        },
        layers="model.layers.",
        config=_modern,
    ),
    "eurobert": Architecture("EuroBertModel", "eurobert", LLAMA_PARTS),
}
