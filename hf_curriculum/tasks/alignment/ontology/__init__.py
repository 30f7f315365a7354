"""Ontologies of nouns, made from captions and objects."""
