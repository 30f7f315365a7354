from __future__ import annotations

import gzip
import json
import os
import pickle
import random
import tracemalloc

import numpy as np
import pytest
import torch
from accelerate import PartialState
from datasets import Dataset
from transformers import (
    BertConfig,
    BertForTokenClassification,
    DataCollatorForTokenClassification,
    Trainer,
    TrainingArguments,
)

from hf_curriculum import NounCount, PosTagger, make_scenes, train_wordpiece
from hf_curriculum.provenance import score_values
from hf_curriculum.scorers.text import pos_tagger
from hf_curriculum.scorers.text.language_model import padded
from hf_curriculum.scorers.text.pos_tagger import (
    IGNORED,
    TagTraining,
    WordPieces,
    _split,
    piece_labels,
    predict_labels,
    train_classifier,
    training_windows,
)
from hf_curriculum.scorers.text.taggers import NltkTagger, PatternTagger, Tagger, tokenize_sentence

SENTENCES = [
    f"{article} {adjective} {noun} {verb} ."
    for article in ("", "the", "a", "the cats sleeps . a")
    for adjective in ("", "red", "unbelievable")
    for noun in ("dog", "cats", "umbrella")
    for verb in ("", "runs", "sleeps")
]
TAGS = {
    "the": "DT", "a": "DT", "red": "JJ", "unbelievable": "JJ", "dog": "NN", "cats": "NNS", "umbrella": "NN",
    "runs": "VBZ", "sleeps": "VBZ", ".": ".",
}  # fmt: skip
RATES = {"learning_rate": 5e-3, "batch_size": 8}


def tiny(size=32, layers=1, positions=64):
    return BertConfig(
        hidden_size=size, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=2 * size,
        max_position_embeddings=positions,
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    words = [sentence.split() for sentence in SENTENCES]
    tags = [[TAGS[word] for word in line] for line in words]
    folder = tmp_path_factory.mktemp("tagger")
    return PosTagger.train(words, tags, config=tiny(), output_dir=folder, epochs=20, **RATES)


def test_it_learns_and_measures(trained):
    assert trained.accuracy_ >= 0.9
    assert trained.tag(["The red dog sleeps.", "a unbelievable umbrella runs ."]) == [
        ["DT", "JJ", "NN", "VBZ", "."],
        ["DT", "JJ", "NN", "VBZ", "."],
    ]
    assert trained.tag_words([["the", "cats", "runs"], []]) == [["DT", "NNS", "VBZ"], []]


def test_batches_give_what_single_sentences_do(trained):
    texts = ["the dog", "a red umbrella runs . the cats sleeps .", "cats", "the " * 100, "🙂 שלום, 日本 \u200d"]
    together = PosTagger(trained.model, batch_pieces=50).tag(texts)
    assert together == [trained.tag([text])[0] for text in texts]
    assert [len(tags) for tags in together] == [len(tokenize_sentence(text)) for text in texts]


def test_one_tag_per_word_of_captions_longer_than_the_model(trained):
    tags = trained.tag(["the red dog " * 3400])[0]
    assert len(tags) == 10_200
    assert [len(tags) for tags in trained.tag(["x" * 5000, "unbelievable" * 20 + " dog"])] == [1, 2]
    scores = NounCount(trained)({"caption": ["the red dog " * 3400, "", None, "the cats"]})["noun_count"]
    np.testing.assert_array_equal(np.isnan(scores), [False, True, True, False])
    assert scores[3] == 1


def test_saving_loading_and_pickling(trained, tmp_path):
    again = PosTagger.from_pretrained(trained.model)
    assert again.tag(SENTENCES) == trained.tag(SENTENCES)
    assert again.accuracy_ == trained.accuracy_
    content = pickle.dumps(again)
    assert len(content) < 500  # where the weights are, not the weights
    assert content == pickle.dumps(PosTagger(trained.model))
    assert pickle.loads(content).tag(SENTENCES) == trained.tag(SENTENCES)
    copy = trained.save_pretrained(tmp_path / "copy")
    assert copy.tag(SENTENCES) == trained.tag(SENTENCES)
    config = tmp_path / "copy" / "config.json"
    config.write_text(config.read_text().replace('"contractions": "cut"', '"contractions": "whole"'))
    other = PosTagger(tmp_path / "copy")
    assert other.revision != trained.revision
    assert len(other.tag(["the dog's"])[0]) == 2 == len(trained.tag(["the dog's"])[0]) - 1


def test_pushing(trained, monkeypatch):
    pushed = []
    model, pieces = trained.loaded()
    for part in (model, pieces.tokenizer):
        monkeypatch.setattr(
            type(part), "push_to_hub", lambda self, name, **options: pushed.append((type(self), name, options))
        )
    there = trained.push_to_hub("me/tagger", private=True)
    assert there.model == "me/tagger"
    assert pushed == [(type(part), "me/tagger", {"private": True}) for part in (model, pieces.tokenizer)]


def test_noun_count_maps_with_it(trained):
    scorer = NounCount(trained)
    assert scorer.describe().model == trained.model
    assert scorer.describe().revision == trained.revision
    assert "transformers" in scorer.describe().versions
    data = Dataset.from_dict({"caption": ["the red dog runs", None, "the cats sleeps . a dog runs ."]})
    for workers in (None, 2):
        scored = data.map(scorer, batched=True, batch_size=2, num_proc=workers)
        np.testing.assert_array_equal(score_values(scored, "noun_count"), np.float32([1, np.nan, 2]))


def test_annotators_cut_words_their_own_way(tmp_path):
    texts = ["the dog's ball isn't red", "it isn't the cat's", *SENTENCES]
    cut = PosTagger.train(texts, config=tiny(), epochs=1, **RATES)
    assert cut.loaded()[0].config.contractions == PatternTagger.contractions == "cut"

    class Whole(Tagger):
        contractions = NltkTagger.contractions

        def tag(self, sentences, rank=None):
            return [["NN"] * len(tokenize_sentence(sentence, "whole")) for sentence in sentences]

    whole = PosTagger.train(iter(texts), annotator=Whole(), config=tiny(), epochs=1, **RATES)
    assert whole.tag(["the dog's ball isn't red"]) == [["NN"] * 5]
    assert whole.accuracy_ == 1
    assert cut.tag(["isn't"])[0].__len__() == 2
    folder = whole._folder.name
    assert whole.model == folder
    own = PosTagger.train(texts, annotator=lambda lines: [["X"] * len(tokenize_sentence(line)) for line in lines],
                          config=tiny(), epochs=1, held_out=0, output_dir=tmp_path, **RATES)  # fmt: skip
    assert own.accuracy_ is None
    assert own.model == str(tmp_path)


def classifier():
    """A configuration, word pieces, sentences, labels of their words, and both as a data set."""
    words = [sentence.split() for sentence in SENTENCES]
    labels = [[len(word) % 3 for word in line] for line in words]
    pieces = WordPieces(train_wordpiece(SENTENCES, 60), 64)
    config = tiny()
    config.vocab_size, config.num_labels = len(pieces.tokenizer), 3
    return config, pieces, words, labels, tagged(words, labels)


def tagged(words, labels):
    return Dataset.from_dict({"words": words, "tags": [[f"LABEL_{label}" for label in line] for line in labels]})


def test_training_equals_a_loop_written_out():
    config, pieces, words, labels, rows = classifier()
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    how = TagTraining(epochs=6, learning_rate=5e-3, batch_size=1000)  # one batch: the order does not matter
    windows = pieces.windows(words)
    ids, mask = padded([window.ids for window in windows])
    wanted = torch.full_like(ids, IGNORED)
    for row, found in enumerate(piece_labels(windows, labels)):
        wanted[row, : len(found)] = torch.tensor(found)
    torch.manual_seed(how.seed)
    naive = BertForTokenClassification(config).train()
    optimizer = torch.optim.Adam(naive.parameters(), lr=how.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / how.epochs)
    losses = []
    for _ in range(how.epochs):
        loss = naive(input_ids=ids, attention_mask=mask, labels=wanted).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    model = train_classifier(config, pieces, rows, how, torch.device("cpu"))
    with torch.inference_mode():
        found, expected = (made.eval()(input_ids=ids, attention_mask=mask).logits for made in (model, naive))
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


def test_weights_equal_those_of_rows_in_memory_bit_for_bit(tmp_path):
    config, pieces, words, labels, _ = classifier()
    words, labels = [[*line, *line] * 4 for line in words], [[*line, *line] * 4 for line in labels]  # several windows
    windows = pieces.windows(words)
    assert len(windows) > len(words)
    rows = [
        {"input_ids": window.ids, "labels": found}
        for window, found in zip(windows, piece_labels(windows, labels), strict=True)
    ]
    assert list(training_windows(tagged(words, labels), pieces, config.label2id, tmp_path)) == rows
    how = TagTraining(epochs=2, **RATES)
    torch.manual_seed(how.seed)
    wanted = BertForTokenClassification(config)
    arguments = TrainingArguments(
        tmp_path, num_train_epochs=2, per_device_train_batch_size=8, learning_rate=5e-3, max_grad_norm=0, use_cpu=True,
        seed=how.seed, save_strategy="no", logging_strategy="no", report_to="none", disable_tqdm=True,
    )  # fmt: skip
    collator = DataCollatorForTokenClassification(pieces.tokenizer)
    Trainer(wanted, arguments, data_collator=collator, train_dataset=rows).train()
    found = train_classifier(config, pieces, tagged(words, labels), how, torch.device("cpu")).state_dict()
    assert all(torch.equal(found[name], weight) for name, weight in wanted.state_dict().items())


def test_words_tags_and_pieces_are_read_from_files(monkeypatch):
    """What is held grows by the sentence, of which there is a tenth, and by the distinct word."""
    held = []

    def encode_only(config, pieces, tagged, how, device):
        with pos_tagger.tempfile.TemporaryDirectory() as folder:
            rows = training_windows(tagged, pieces, config.label2id, pos_tagger.Path(folder))
            held.append(tracemalloc.get_traced_memory()[0])
            assert len(rows[len(rows) - 1]["input_ids"]) == 12
        return BertForTokenClassification(config)

    monkeypatch.setattr(pos_tagger, "train_classifier", encode_only)
    config, tokenizer = tiny(), train_wordpiece(SENTENCES, 80)

    def peak(sentences):
        rows = (" ".join(["the", "dog"][number >> bit & 1] for bit in range(10)) for number in range(sentences))
        tracemalloc.start()
        try:
            PosTagger.train(rows, config=config, tokenizer=tokenizer, held_out=0, epochs=1)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)  # what is loaded once
    few, many = peak(2_000), peak(22_000)
    assert (many - few) / 20_000 < 100  # bytes per sentence of 10 words


def test_annotators_run_in_several_processes():
    def annotate(lines):
        return [["XY"[len(word) % 2] for word in tokenize_sentence(line)] for line in lines]

    how = {"annotator": annotate, "config": tiny(), "epochs": 1, "held_out": 0, **RATES}
    trained = [PosTagger.train(SENTENCES * 20, num_proc=num_proc, **how) for num_proc in (None, 2)]
    weights = [tagger.loaded()[0].state_dict() for tagger in trained]
    assert all(torch.equal(weights[0][name], weight) for name, weight in weights[1].items())


def test_training_is_of_one_process_and_leaves_the_launchers_state(monkeypatch):
    """The main process trains while the others wait: joined by them, `Trainer` would wait in turn."""
    config, pieces, *_, rows = classifier()
    state = PartialState()
    before = dict(state.__dict__)
    for name, value in {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "2",
        "ACCELERATE_MIXED_PRECISION": "bf16",
    }.items():
        monkeypatch.setenv(name, value)
    environment, numbers = dict(os.environ), (random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002
    train_classifier(config, pieces, rows, TagTraining(epochs=1, **RATES), torch.device("cpu"))
    assert dict(os.environ) == environment
    assert state.__dict__ == before
    assert PartialState().__dict__ is state.__dict__
    assert (random.getstate(), np.random.get_state()[1].tolist()) == numbers  # noqa: NPY002


def test_training_follows_from_its_seed_and_leaves_the_callers():
    config, pieces, *_, rows = classifier()
    state = torch.random.get_rng_state()

    def weights(seed):
        how = TagTraining(epochs=1, seed=seed, **RATES)
        model = train_classifier(config, pieces, rows, how, torch.device("cpu"))
        return torch.cat([weight.flatten() for weight in model.state_dict().values()])

    torch.testing.assert_close(weights(0), weights(0), rtol=0, atol=0)
    assert not torch.equal(weights(0), weights(1))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_first_piece_carries_the_tag_and_windows_lose_no_word():
    tokenizer = train_wordpiece(["ab abc", "ab abc abcd abcd"], 30)
    pieces = WordPieces(tokenizer, 6)
    sentences = [["ab", "abab", "ab", "abcd", "abababababababab", "ab"], [], ["ab"]]
    windows = pieces.windows(sentences)
    assert [window.sentence for window in windows] == [0] * (len(windows) - 1) + [2]
    assert all(len(window.ids) <= 6 for window in windows)
    assert all(window.ids[0] == tokenizer.cls_token_id for window in windows)
    assert all(window.ids[-1] == tokenizer.sep_token_id for window in windows)
    assert sum(len(window.firsts) for window in windows) == 7
    labels = piece_labels(windows, [[1, 2, 3, 4, 5, 6], [], [7]])
    assert [label for row in labels for label in row if label != IGNORED] == [1, 2, 3, 4, 5, 6, 7]
    for window, row in zip(windows, labels, strict=True):
        assert [place for place, label in enumerate(row) if label != IGNORED] == window.firsts
    ids, mask = padded([window.ids for window in windows])
    assert (ids[mask == 0] == tokenizer.pad_token_id).all()
    assert mask.sum(1).tolist() == [len(window.ids) for window in windows]
    (said,) = pieces.windows([["ab", "[SEP]"]])
    assert tokenizer.sep_token_id not in said.ids[1:-1]  # a word of a caption is text, and no end


def test_predictions_are_those_of_the_model_on_one_sentence():
    pieces = WordPieces(train_wordpiece(SENTENCES, 80), 64)
    config = tiny()
    config.vocab_size, config.num_labels = len(pieces.tokenizer), 9
    model = BertForTokenClassification(config).eval()
    sentences = [sentence.split() for sentence in SENTENCES]
    found = predict_labels(model, pieces, sentences, batch_pieces=40)
    for words, labels in zip(sentences, found, strict=True):
        encoded = pieces.tokenizer(words, is_split_into_words=True, return_tensors="pt")
        with torch.inference_mode():
            best = model(**encoded).logits[0].argmax(-1).tolist()
        places = encoded.word_ids()
        assert labels == [best[places.index(word)] for word in range(len(words))]


def test_equal_sentences_are_on_one_side():
    words = [[str(row % 50), "x"] for row in range(200)]
    is_held_out = _split(words, 0.1, seed=0)
    learn, measure = np.flatnonzero(~is_held_out).tolist(), np.flatnonzero(is_held_out).tolist()
    assert sorted([*learn, *measure]) == list(range(200))
    assert len(measure) == 20
    assert not {words[row][0] for row in learn} & {words[row][0] for row in measure}
    assert np.flatnonzero(_split(words, 0.1, seed=1)).tolist() != measure
    # numbered in order of appearance, as the tagger's first version did
    drawn = torch.randperm(50, generator=torch.Generator().manual_seed(0))[:5].tolist()
    assert {int(words[row][0]) for row in measure} == set(drawn)


@pytest.mark.slow
def test_embedded_captions_tagged_by_pattern():
    captions = make_scenes(1000, image_size=32, validation=0)["train"]["caption"][:]
    tagger = PosTagger.train(captions, config=tiny(64, 2, 128), epochs=3, learning_rate=2e-3, batch_size=32)
    assert tagger.accuracy_ >= 0.97
    held_out = make_scenes(300, image_size=32, seed=1, validation=0)["test"]["caption"][:]
    pairs = zip(tagger.tag(held_out), PatternTagger().tag(held_out), strict=True)
    agreed = [one == other for found, wanted in pairs for one, other in zip(found, wanted, strict=True)]
    assert np.mean(agreed) >= 0.97


@pytest.mark.slow
def test_gold_tags_of_child_directed_speech(test_data):
    with gzip.open(test_data("childes_ud") / "utterances.jsonl.gz", "rt", encoding="utf-8") as stream:
        rows = [json.loads(line) for line in stream][:3000]
    rows = [row for row in rows if all(row["xpos"])]
    tagger = PosTagger.train(
        [row["tokens"] for row in rows], [row["xpos"] for row in rows],
        config=tiny(64, 2, 128), epochs=3, learning_rate=4e-3, batch_size=32,
    )  # fmt: skip
    assert tagger.accuracy_ >= 0.8, tagger.accuracy_


def test_errors(trained, monkeypatch, tmp_path):
    with pytest.raises(FileNotFoundError, match="found no 'no/such-tagger'"):
        PosTagger.from_pretrained("no/such-tagger")
    words, tags = [["a", "dog"]], [["DT", "NN"]]
    for sentences, given in ((words, tags * 2), (words * 2500, tags * 1100)):
        with pytest.raises(ValueError, match="The numbers of `tags` and sentences differ"):
            PosTagger.train(sentences, given)
    with pytest.raises(ValueError, match="The annotator gave tags for 0 of 1 sentences"):
        PosTagger.train(["a dog"], annotator=lambda texts: [])
    with pytest.raises(ValueError, match="`num_proc` has no effect with `tags`"):
        PosTagger.train(words, tags, num_proc=2)
    with pytest.raises(ValueError, match=r"A sentence has 2 words \(\['a', 'dog'\]\), but `tags` has 1 tags"):
        PosTagger.train(words, [["DT"]])
    with pytest.raises(ValueError, match="but the annotator has 1 tags for it"):
        PosTagger.train(["a dog"], annotator=lambda texts: [["DT"] for _ in texts])
    with pytest.raises(TypeError, match="`tags` were given for sentences that are not split into words"):
        PosTagger.train(["a dog"], tags)
    with pytest.raises(TypeError, match="`sentences` in row 0 of the batch is a list"):
        PosTagger.train(words)
    with pytest.raises(ValueError, match="There are no sentences with words"):
        PosTagger.train(["", None])
    with pytest.raises(ValueError, match="There are no sentences with words"):
        PosTagger.train([[]], [[]])
    for share in (1, -0.1):
        with pytest.raises(ValueError, match="`held_out` is"):
            PosTagger.train(words, tags, held_out=share)
    with pytest.raises(ValueError, match=r"`held_out=0\.1` of 1 distinct sentences leaves nothing"):
        PosTagger.train(words * 9, tags * 9)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="`fp16=True` needs a CUDA device"):
        PosTagger.train(words, tags, fp16=True)
    pieces = trained.loaded()[1]
    monkeypatch.setattr(type(pieces.tokenizer), "cls_token_id", None, raising=False)
    with pytest.raises(ValueError, match="The tokenizer has no `cls_token_id`"):
        WordPieces(pieces.tokenizer, 10)
