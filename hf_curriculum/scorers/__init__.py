"""Difficulty scores: the contract and the scorers themselves. `hf_curriculum.scoring` puts them onto data."""
