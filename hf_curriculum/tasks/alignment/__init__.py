"""Alignment of images and nouns, as TOnICS does it: aligner, ontology, contrastive training, retrieval."""

from __future__ import annotations

from hf_curriculum.names import exports

NAMES = {
    "collator": ("ContrastiveCollator",),
    "config": ("AlignerConfig",),
    "model": ("AlignerModel",),
    "ontology.ontology": ("Ontology",),
    "ontology.sources": ("count_stages", "hold_out_instances", "join_sources"),
    "probing": ("colour_captions", "probe_colours", "word_vectors"),
    "processor": ("AlignerProcessor",),
    "retrieval.compare": ("compare_retrieval",),
    "retrieval.ranks": ("retrieval_metrics",),
    "retrieval.score_captions": ("aligner_scores", "caption_classes", "clip_similarities", "noun_spans"),
    "retrieval.suite": ("RetrievalSuite",),
    "trainer": ("ContrastiveTrainer",),
}
"""Module of the task → names that it offers."""

__all__, __getattr__, __dir__ = exports(__name__, NAMES)
