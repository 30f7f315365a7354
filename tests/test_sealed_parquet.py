"""Parquet files that hold a digest of themselves, of more than one block."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from hf_curriculum.files import DamagedFileError
from hf_curriculum.sealed_parquet import read_sealed_parquet, sealed_parquet, validate_sealed_parquet


def test_each_block_of_a_large_file_is_compared(tmp_path):
    file = tmp_path / "scores.parquet"
    table = pa.table({"score": np.random.default_rng(0).random(500_000)})  # 4 MB that zstd cannot make smaller
    with sealed_parquet(file, table.schema) as writer:
        writer.write_table(table)
    assert file.stat().st_size > 3 << 20
    assert read_sealed_parquet(file, "Write it again.").equals(table)
    content = file.read_bytes()
    for place in (4, (1 << 20) - 1, 1 << 20, (5 << 20) // 2, len(content) - 9, len(content) - 1):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(DamagedFileError, match="Write it again"):
            validate_sealed_parquet(file, "Write it again.")
