"""`ContrastiveTrainer`: every model's own loss, gradients by chunks, retrieval that paces a curriculum, refusals."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from contrastive_task import (
    DIMS,
    NOUNS,
    grads,
    make_aligner,
    make_clip,
    make_open_clip,
    make_pairs,
    make_siglip,
    paint,
    pixel_collator,
    region_collator,
    tokenizer,
)
from datasets import Dataset

from hf_curriculum import CurriculumTrainingArguments, NodeSampling
from hf_curriculum.data.regions.base import Regions
from hf_curriculum.tasks.alignment import ContrastiveTrainer
from hf_curriculum.tasks.alignment import trainer as evaluation_module
from hf_curriculum.tasks.alignment import trainer as gather_module
from hf_curriculum.tasks.alignment import trainer as trainer_module
from hf_curriculum.tasks.alignment.trainer import score_matrix

PAIRS, STORE = make_pairs(48)
HELD, MORE = make_pairs(20, 48)
STORE |= MORE
NODES = {"type": "node_sampling", "node_column": "node", "metric": "heldout_image_r1"}


def arguments(folder, steps=3, batch=8, **settings):
    settings = {"learning_rate": 5e-3, "logging_steps": 1, "save_strategy": "no", "max_steps": steps, **settings}
    return CurriculumTrainingArguments(
        str(folder), per_device_train_batch_size=batch, use_cpu=True, report_to=[], disable_tqdm=True,
        dataloader_pin_memory=False, **settings,
    )  # fmt: skip


def aligner_trainer(folder, model=None, settings=None, **options):
    data = {"train_dataset": PAIRS, "eval_dataset": {"heldout": HELD}, "data_collator": region_collator(STORE)}
    model = make_aligner() if model is None else model
    return ContrastiveTrainer(model, arguments(folder, **(settings or {})), **{**data, **options})


def pixel_trainer(folder, model, **options):
    collator = options.pop("data_collator", None) or pixel_collator()
    data = {"train_dataset": PAIRS.with_transform(paint), "eval_dataset": HELD.with_transform(paint)}
    settings = options.pop("settings", {})
    return ContrastiveTrainer(model, arguments(folder, **settings), **data, data_collator=collator, **options)


def batch_of(trainer, rows=8):
    data = trainer.train_dataset
    return trainer.data_collator([data[row] for row in range(rows)])


def open_clip_words(texts):
    import open_clip

    return open_clip.get_tokenizer("ViT-B-32")(texts)


def library_losses():
    """Name → a model, its collator, and the loss of a batch by the model's own library."""
    import open_clip

    def transformers_loss(model, batch):
        names = ("input_ids", "attention_mask", "pixel_values")
        return model(**{name: batch[name] for name in names if name in batch}, return_loss=True).loss

    def open_clip_loss(kind):
        def loss(model, batch):
            vectors = model(batch["pixel_values"], batch["input_ids"])
            return kind(*vectors)

        return loss

    siglip_words = pixel_collator(pad_to_max_length=True, max_length=16)
    return {
        "clip": (make_clip(), pixel_collator(), transformers_loss),
        "siglip": (make_siglip(), siglip_words, transformers_loss),
        "open_clip": (
            make_open_clip(), pixel_collator(words=open_clip_words), open_clip_loss(open_clip.loss.ClipLoss())
        ),
        "open_clip siglip": (
            make_open_clip(True), pixel_collator(words=open_clip_words), open_clip_loss(open_clip.loss.SigLipLoss())
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["clip", "siglip", "open_clip", "open_clip siglip"])
def test_each_model_trains_by_its_librarys_own_loss(name, tmp_path):
    pytest.importorskip("open_clip")
    model, collator, own_loss = library_losses()[name]
    trainer = pixel_trainer(tmp_path, model, data_collator=collator, mask_false_negatives=False)
    batch = batch_of(trainer)
    loss = trainer.compute_loss(model, batch)
    loss.backward()
    gradients = grads(model)
    model.zero_grad()
    own = own_loss(model, batch)
    own.backward()
    assert loss.item() == pytest.approx(own.item(), rel=1e-6)
    largest = max(gradient.abs().max() for gradient in grads(model).values())
    assert gradients.keys() == grads(model).keys()
    assert all((gradients[key] - gradient).abs().max() < 1e-5 * largest for key, gradient in grads(model).items())
    before = {key: weight.detach().clone() for key, weight in model.named_parameters()}
    trainer.train()
    assert trainer.state.global_step == 3
    assert any(not torch.equal(weight, before[key]) for key, weight in model.named_parameters())
    assert 0 <= trainer.evaluate()["eval_image_r1"] <= 1


def test_an_aligner_trains_by_the_sum_of_both_losses(tmp_path):
    model = make_aligner()
    trainer = aligner_trainer(tmp_path, model, mask_false_negatives=False)
    batch = batch_of(trainer)
    assert trainer.compute_loss(model, batch).item() == pytest.approx(model(**batch, return_loss=True).loss.item())
    ways = {
        loss: aligner_trainer(tmp_path, model, loss=loss, mask_false_negatives=False).compute_loss(model, batch).item()
        for loss in ("image", "text", "sum")
    }
    assert ways["image"] + ways["text"] == pytest.approx(ways["sum"])
    assert ways["image"] != pytest.approx(ways["text"])


def test_wrong_pairs_of_one_image_or_caption_do_not_count(tmp_path):
    model = make_aligner()
    batch = batch_of(aligner_trainer(tmp_path, model))
    assert batch["image_keys"].unique().numel() == 4  # two nouns of each image
    plain, masked = (
        aligner_trainer(tmp_path, model, loss="image", mask_false_negatives=mask).compute_loss(model, batch)
        for mask in (False, True)
    )
    scores = model(**batch).logits_per_text
    own = torch.arange(8)
    twins = scores[own, own ^ 1]  # of the image's other row: the same image, so the same score
    assert torch.allclose(twins, scores[own, own], atol=1e-4)
    expected = (scores.logsumexp(1).exp() - twins.exp()).log() - scores[own, own]
    assert plain.item() == pytest.approx((scores.logsumexp(1) - scores[own, own]).mean().item(), rel=1e-5)
    assert masked.item() == pytest.approx(expected.mean().item(), rel=1e-3)


@pytest.mark.parametrize("chunk_size", [1, 7, 8])
@pytest.mark.parametrize("kind", ["aligner", "clip"])
def test_gradients_by_chunks_are_those_of_the_graph(kind, chunk_size, tmp_path, monkeypatch):
    """With dropout: beside the same chunks with their whole graph kept, and without it beside no chunks at all."""

    def gradients(dropout, chunk, keep=False):
        if kind == "aligner":
            model = make_aligner(dropout=dropout)
            trainer = aligner_trainer(tmp_path, model, chunk_size=chunk)
        else:
            model = make_clip(attention_dropout=dropout)
            trainer = pixel_trainer(tmp_path, model, chunk_size=chunk)
        batch = batch_of(trainer)
        model.train()
        torch.manual_seed(5)
        with monkeypatch.context() as patch:
            if keep:
                for module in (trainer_module, __import__("hf_curriculum.tasks.alignment.model", fromlist=["x"])):
                    patch.setattr(module, "checkpoint", lambda function, *given, use_reentrant: function(*given))
            loss = trainer.compute_loss(model, batch)
            loss.backward()
        return loss.item(), grads(model)

    whole = gradients(0.0, None)
    for one, other in (
        (gradients(0.3, chunk_size), gradients(0.3, chunk_size, keep=True)),
        (gradients(0.0, chunk_size), whole),
    ):
        assert one[0] == pytest.approx(other[0], rel=1e-5)
        largest = max(value.abs().max() for value in other[1].values())
        assert one[1].keys() == other[1].keys()
        assert all((one[1][key] - other[1][key]).abs().max() < 1e-5 * largest for key in one[1])
    assert gradients(0.3, chunk_size)[0] != pytest.approx(whole[0], rel=1e-3)


def naive_metrics(trainer, rows):
    """Recalls of a set, text by text and image by image, each in a batch of its own."""
    encoders, collate = trainer.encoders, trainer.data_collator
    captions, images = {}, {}
    with torch.no_grad():
        for row in rows:
            batch = collate([row])
            images.setdefault(row["image_id"], encoders.encode_images(batch))
            captions.setdefault((row["image_id"], row["caption"]), []).append(encoders.encode_text(batch))
        table = {
            caption: {
                name: np.mean([encoders.score(text, image).item() for text in texts]) for name, image in images.items()
            }
            for caption, texts in captions.items()
        }
    found = [sum(scores[name] >= scores[own] for name in scores) for (own, _), scores in table.items()]
    texts = [
        1 + sum(row[name] >= max(other[name] for (own, _), other in table.items() if own == name)
                for (own, _), row in table.items() if own != name)
        for name in images
    ]  # fmt: skip
    return {
        **{f"image_r{k}": np.mean([rank <= k for rank in found]) for k in (1, 5, 10)},
        **{f"text_r{k}": np.mean([rank <= k for rank in texts]) for k in (1, 5, 10)},
        "image_median_rank": np.median(found),
        "text_median_rank": np.median(texts),
    }


def test_evaluation_is_retrieval_among_captions_and_images(tmp_path):
    model = make_aligner(query_residual=False)
    trainer = aligner_trainer(tmp_path, model, {"steps": 25, "per_device_eval_batch_size": 7, "batch": 16})
    trainer.train()
    model.eval()
    rows = [HELD[row] for row in range(len(HELD))]
    assert len(rows) > len({row["image_id"] for row in rows}) == 20
    metrics = trainer.evaluate()
    for name, value in naive_metrics(trainer, rows).items():
        assert metrics[f"eval_heldout_{name}"] == pytest.approx(value), name
    assert metrics["eval_heldout_image_r1"] > 0.1
    predicted = trainer.predict(HELD)
    assert predicted.predictions.shape == (20, 20)
    assert predicted.label_ids.tolist() == list(range(20))
    assert predicted.metrics["test_image_r1"] == metrics["eval_heldout_image_r1"]
    trainer.noun_scores = "max"
    assert (trainer.predict(HELD).predictions >= predicted.predictions - 1e-5).all()


def test_each_image_of_an_evaluation_is_encoded_once(tmp_path, monkeypatch):
    trainer, encoded = aligner_trainer(tmp_path, settings={"per_device_eval_batch_size": 7}), []
    encode = trainer.encoders.encode_images

    def counted(batch):
        encoded.extend(batch["image_keys"].tolist())
        return encode(batch)

    monkeypatch.setattr(trainer.encoders, "encode_images", counted)
    trainer.evaluate()
    assert len(encoded) == len(set(encoded)) == 20


def easy_task():
    """Images of one thing each, which a few steps tell apart."""
    rows, store = [], {}
    for number in range(64):
        noun = NOUNS[number % len(NOUNS)]
        features = np.zeros((1, DIMS), np.float32)
        features[0, number % len(NOUNS)] = 3
        store[str(number)] = Regions(str(number), features=features)
        rows.append(
            {
                "image_id": str(number), "caption": f"a {noun}", "node": noun,
                "noun_start": 2, "noun_end": 2 + len(noun),
            }
        )  # fmt: skip
    return Dataset.from_list(rows), Dataset.from_list(rows[: len(NOUNS)]), store


def test_fifteen_refreshes_by_evaluations_of_a_trainer(tmp_path):
    train, held, store = easy_task()
    rule = NodeSampling("node", metric="heldout_image_r1", threshold=0.9, check_every=4, decay=0.9, floor=0.2)
    trainer = ContrastiveTrainer(
        make_aligner(query_residual=False),
        arguments(tmp_path, 100, 16, curriculum=rule, learning_rate=1e-2),
        train_dataset=train,
        eval_dataset={"heldout": held},
        data_collator=region_collator(store),
    )
    trainer.train()
    log = trainer.plan.log
    evaluated = [entry for entry in trainer.state.log_history if "eval_heldout_image_r1" in entry]
    assert [entry["value"] for entry in log] == [entry["eval_heldout_image_r1"] for entry in evaluated][: len(log)]
    assert [entry["decision"] == "refresh" for entry in log] == [entry["value"] >= 0.9 for entry in log]
    assert {entry["decision"] for entry in log} == {"stay", "refresh"}
    assert [entry["random_share"] for entry in log if entry["decision"] == "refresh"] == pytest.approx(
        [0.9**count for count in range(1, 16)]
    )
    assert round(log[-1]["random_share"], 6) == 0.205891
    # After the last refresh every step follows from it: no decision is asked for any more.
    assert trainer.plan.known_steps == 100 > log[-1]["step"] + 4


def test_images_that_do_not_vary_with_their_batch(tmp_path):
    """A set's scores do not depend on how it is cut into batches."""
    trainer = aligner_trainer(tmp_path, settings={"per_device_eval_batch_size": 3})
    with torch.no_grad():
        trainer.model.eval()
        one, rows = score_matrix(trainer, trainer.get_eval_dataloader(HELD))
        trainer.args.per_device_eval_batch_size = 64
        other, same = score_matrix(trainer, trainer.get_eval_dataloader(HELD))
    assert np.allclose(one, other, atol=1e-5)
    assert np.array_equal(rows, same)


def test_adapters_alone_are_trained(tmp_path):
    peft = pytest.importorskip("peft")
    clip = make_clip()
    model = peft.get_peft_model(clip, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    frozen = clip.text_projection.weight.detach().clone()
    trainer = pixel_trainer(tmp_path, model)
    trainer.train()
    changed = [
        name for name, weight in model.named_parameters() if weight.requires_grad and "lora_B" in name and weight.any()
    ]
    assert len(changed) == 4
    assert torch.equal(clip.text_projection.weight, frozen)
    aligner = peft.get_peft_model(make_aligner(), peft.LoraConfig(r=2, target_modules=["query", "value"]))
    aligner_trainer(tmp_path, aligner, chunk_size=3).train()
    assert any(weight.any() for name, weight in aligner.named_parameters() if "lora_B" in name)


def test_half_precision(tmp_path):
    model = make_aligner()
    trainer = aligner_trainer(tmp_path, model, {"bf16": True, "steps": 1}, chunk_size=3)
    seen = []
    model.layer.register_forward_hook(lambda module, given, output: seen.append(output.dtype))
    model.layer.down.register_forward_hook(lambda module, given, output: seen.append(output.dtype))
    trainer.train()
    assert torch.bfloat16 in seen
    with torch.autocast("cpu", torch.bfloat16):
        batch = batch_of(trainer)
        scores = model(**batch).logits_per_text
    assert scores.dtype == torch.float32
    assert not torch.equal(scores.bfloat16().float(), scores)
    assert 0 < trainer.state.log_history[0]["loss"] < 20
    assert all(torch.isfinite(weight).all() for weight in model.parameters())
    assert trainer.evaluate()["eval_heldout_image_r10"] > 0


def test_all_three_parts_of_the_encoders_are_compiled(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(torch, "compile", lambda part, **options: made.append((part.__name__, options)) or part)
    settings = {"torch_compile": True, "torch_compile_backend": "aot_eager"}
    encoders = aligner_trainer(tmp_path, settings=settings).encoders
    options = {"backend": "aot_eager", "mode": None}
    assert made[:3] == [(name, options) for name in ("encode_text", "encode_images", "score")]
    assert encoders.score is not None


@pytest.mark.slow
def test_compiled_encoders_train_alike(tmp_path):
    losses = []
    compiled = {"torch_compile": True, "torch_compile_backend": "aot_eager"}
    for settings, chunk_size in (({}, None), (compiled, 4)):
        trainer = aligner_trainer(tmp_path, settings=settings, chunk_size=chunk_size)
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_what_the_trainer_refuses(tmp_path):
    with pytest.raises(ValueError, match=r"loss='nce' is not known"):
        aligner_trainer(tmp_path, loss="nce")
    with pytest.raises(ValueError, match="chunk_size=0 encodes nothing"):
        aligner_trainer(tmp_path, chunk_size=0)
    with pytest.raises(ValueError, match=r"`noun_scores` is 'sum'. It is one of"):
        aligner_trainer(tmp_path, noun_scores="sum")
    assert aligner_trainer(tmp_path, settings={"batch": 2}, chunk_size=1).args.train_batch_size == 2
    with pytest.raises(ValueError, match=r"gradient_accumulation_steps=2 would make.*chunk_size="):
        aligner_trainer(tmp_path, settings={"gradient_accumulation_steps": 2})
    with pytest.raises(ValueError, match="The batch is one pair"):
        aligner_trainer(tmp_path, settings={"batch": 1})
    with pytest.raises(ValueError, match="dataloader_drop_last=True would leave the last images"):
        aligner_trainer(tmp_path, settings={"dataloader_drop_last": True})
    with pytest.raises(ValueError, match=r"label_smoothing_factor=0.1 was given to ContrastiveTrainer"):
        aligner_trainer(tmp_path, settings={"label_smoothing_factor": 0.1})
    with pytest.raises(ValueError, match=r"compute_metrics=.* was given to ContrastiveTrainer"):
        aligner_trainer(tmp_path, compute_metrics=lambda prediction: {})
    with pytest.raises(TypeError, match="A Linear has neither of"):
        aligner_trainer(tmp_path, torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="A SiglipModel reads the last token"):
        pixel_trainer(tmp_path, make_siglip())
    trainer = aligner_trainer(tmp_path)
    for name in ("FSDP", "DeepSpeed"):
        setattr(trainer, f"is_{name.lower()}_enabled", True)
        with pytest.raises(ValueError, match=f"{name} shards the weights"):
            trainer._validate_contrastive()
        setattr(trainer, f"is_{name.lower()}_enabled", False)
    several = arguments(tmp_path)
    several._n_gpu = 2
    with pytest.raises(ValueError, match="One process has 2 devices"):
        ContrastiveTrainer(make_aligner(), several, train_dataset=PAIRS, data_collator=region_collator(STORE))


def test_batches_that_have_no_loss(tmp_path):
    trainer = aligner_trainer(tmp_path)
    batch = batch_of(trainer)
    with pytest.raises(ValueError, match="The batch has one pair alone"):
        trainer.compute_loss(trainer.model, {name: part[:1] for name, part in batch.items()})
    with pytest.raises(ValueError, match=r"no \['image_keys', 'text_keys'\], by which false negatives"):
        trainer.compute_loss(trainer.model, {name: part for name, part in batch.items() if "keys" not in name})
    with pytest.raises(ValueError, match="outputs of a contrastive batch are spread"):
        trainer.compute_loss(trainer.model, batch, return_outputs=True)
    assert "forward" not in vars(trainer.model)
    narrow = {name: Regions(name, features=np.ones((1, 3), np.float32)) for name in STORE}
    with pytest.raises(ValueError, match=r"model reads features of width 14"):
        aligner_trainer(tmp_path, data_collator=region_collator(narrow)).train()


def test_scores_that_are_no_numbers(tmp_path):
    model = make_aligner()
    with torch.no_grad():
        model.layer.down.bias[0] = torch.nan
    with pytest.raises(ValueError, match=r"640 of 640 scores of the evaluation set are not finite"):
        aligner_trainer(tmp_path, model).evaluate()


def test_a_set_without_keys(tmp_path):
    class Bare(type(region_collator(STORE))):
        def collate(self, prepared):
            return {name: part for name, part in super().collate(prepared).items() if "keys" not in name}

    collator = Bare(tokenizer(), region_collator(STORE).image_inputs)
    with pytest.raises(ValueError, match="which identify a caption's own image"):
        aligner_trainer(tmp_path, data_collator=collator).evaluate()


def test_a_metric_that_no_set_returns(tmp_path):
    rule = NodeSampling("node", metric="retrieval_accuracy", check_every=2)
    trainer = aligner_trainer(tmp_path, settings={"curriculum": rule})
    with pytest.raises(ValueError, match=r"decides on 'eval_retrieval_accuracy'.*'eval_heldout_image_r1'"):
        trainer.train()


def test_retrieval_is_evaluated_without_dropout_and_training_goes_on_with_it(tmp_path):
    trainer = aligner_trainer(tmp_path, make_aligner(dropout=0.5))
    trainer.model.train()
    first, second = (trainer.predict(HELD).predictions for _ in range(2))
    assert np.array_equal(first, second)
    assert all(module.training for module in trainer.model.modules())


def test_a_forward_that_was_wrapped_before_is_put_back():
    model = torch.nn.Linear(2, 2)
    with trainer_module.redirected_forward(model, lambda x: x):
        assert model(3) == 3
    assert "forward" not in vars(model)
    own = model.forward = lambda x: 2 * x
    with trainer_module.redirected_forward(model, lambda x: x + 1):
        assert model(3) == 4
    assert model.forward is own


def test_rows_of_two_processes_are_one_batch(monkeypatch):
    """As the second of two processes sees it: three rows of the first, two of its own."""
    first, own = torch.arange(6.0).view(3, 2), torch.tensor([[9.0, 8.0], [7.0, 6.0]], requires_grad=True)

    def all_gather(found, value):
        theirs = torch.tensor([3]) if value.ndim == 1 else first
        for place, part in zip(found, (theirs, value), strict=True):
            assert (place.shape, place.dtype) == (part.shape, part.dtype)
            place.copy_(part)

    assert gather_module.gather(own) is own
    monkeypatch.setattr(gather_module, "num_processes", lambda: 2)
    for name, stand_in in (
        ("all_gather", all_gather), ("all_reduce", lambda gradient: gradient.mul_(2)), ("get_rank", lambda: 1),
    ):  # fmt: skip
        monkeypatch.setattr(gather_module.dist, name, stand_in)
    both = gather_module.gather(own)
    assert torch.equal(both, torch.cat([first, own]))
    (both * torch.arange(1.0, 6.0)[:, None]).sum().backward()
    assert own.grad.tolist() == [[8, 8], [10, 10]]


def test_scores_stand_by_caption_and_image_in_the_order_of_the_set():
    columns = torch.arange(12.0).view(3, 4)  # of an image that comes twice, and of one of a smaller key
    keys = np.array([[2, 1], [9, 5], [9, 5], [9, 6]])
    for kind, second in (("mean", [1.5, 5.5]), ("max", [2, 6])):
        scores, images = evaluation_module._by_caption(columns, torch.tensor([9, 2, 9]), keys, kind)
        assert scores.tolist() == [[0, 4], second, [3, 7]]
        assert images.tolist() == [1, 0, 0]
    seen = {4}
    assert evaluation_module._new_rows([3, 4, 3, 5], seen) == [0, 3]
    assert seen == {3, 4, 5}
    assert evaluation_module._new_rows([5, 3], seen) == []


def test_encoded_in_chunks(monkeypatch):
    run = []

    def watched(encode, chunk, **options):
        run.append((len(chunk["input_ids"]), options))
        return encode(chunk)

    monkeypatch.setattr(trainer_module, "checkpoint", watched)
    batch = {"input_ids": torch.arange(5), "more": torch.arange(5) * 10}

    def encode(part):
        return part["input_ids"] + part["more"]

    for size in (None, 5, 6):
        assert torch.equal(trainer_module._in_chunks(encode, batch, size), 11 * torch.arange(5))
    assert run == []
    assert torch.equal(trainer_module._in_chunks(encode, batch, 4), 11 * torch.arange(5))
    assert run == [(4, {"use_reentrant": False}), (1, {"use_reentrant": False})]
    trainer_module._validate_options("sigmoid", 1, "max")
    trainer_module._validate_options(None, None, "mean")


def test_a_gathered_rows_gradient_is_that_of_all_processes(monkeypatch):
    monkeypatch.setattr(gather_module.dist, "all_reduce", lambda gradient: gradient.mul_(3))
    monkeypatch.setattr(gather_module.dist, "get_rank", lambda: 1)
    gradient = torch.arange(6.0).reshape(3, 2)
    found = gather_module._Gather.backward(SimpleNamespace(counts=[1, 2]), gradient.clone())
    assert torch.equal(found, 3 * gradient[1:])
