"""Several runs: seeds and grids, their statistics and tables."""
