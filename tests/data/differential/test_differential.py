"""Random inputs are read as other libraries read them, or refused in words."""

from __future__ import annotations

import tempfile
from pathlib import Path

import datasets
import pytest
from hypothesis import Phase, given, note, settings
from hypothesis import strategies as st
from judging import Reader, describe, judge
from run import QUIET, READERS, one_trial


@pytest.fixture(autouse=True, scope="module")
def quiet_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        datasets.disable_progress_bars()
        yield
        datasets.enable_progress_bars()


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_inputs_are_read_as_others_read_them_or_refused_in_words(reader: Reader):
    phases = [Phase.generate, Phase.shrink]

    @settings(max_examples=max(4, reader.share // 8), derandomize=True, phases=phases, **QUIET)
    @given(st.data())
    def check(data):
        with tempfile.TemporaryDirectory() as parent:
            folder, trial = one_trial(reader, data.draw, Path(parent))
            note(describe(folder))
            verdict = judge(trial)
        assert not verdict.is_fault, f"{verdict.kind}: {verdict.why}"

    check()
