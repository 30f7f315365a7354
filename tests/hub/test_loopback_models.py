"""Models, checkpoints and resuming on a Hub on this machine, with the real clients."""

from __future__ import annotations

import json
import re

import pytest
import yaml

pytestmark = pytest.mark.slow

SECRETS = ("hf_writerTOKENwriter", "hf_readerTOKENreader", "hf_strangerTOKENstranger")


@pytest.fixture(scope="module")
def trainer(user):
    """`user` with `make(output_dir, **arguments)`, which makes a trainer of a tiny captioner or classifier."""
    user.run("""
        import torch
        from torch import nn
        from hf_curriculum import CaptionCollator, make_image_processor
        from hf_curriculum.models.git.build import git_from_config, small_git_config
        torch.set_num_threads(1)
        data = scored(24)
        tokenizer = train_wordpiece(data, 100)

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))

            def forward(self, x, labels=None):
                logits = self.layers(x)
                return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

        def numbers():
            x = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
            made = Dataset.from_dict({"x": x.tolist(), "labels": (x.sum(1) > 0).astype(int).tolist(),
                                      "difficulty": (np.arange(24) % 6).astype(np.float32)})
            return attach_provenance(made, {"difficulty": ScoreProvenance("difficulty", "by hand")})

        def arguments(out, **given):
            given = {"per_device_train_batch_size": 4, "report_to": [], "use_cpu": True, "disable_tqdm": True,
                     "logging_steps": 1, "save_strategy": "no", "score_column": "difficulty",
                     "curriculum": Phases(2, easy="low"), **given}
            torch.manual_seed(0)
            return CurriculumTrainingArguments(out, **given)

        def make(out, net=None, **given):
            args = arguments(out, **given)
            data = numbers()
            return CurriculumTrainer(net or Net(), args, train_dataset=data, eval_dataset=data)

        def make_captioner(out, **given):
            args = arguments(out, score_column="caption_length", eval_strategy="steps", eval_steps=4, **given)
            config = small_git_config(len(tokenizer), tokenizer=tokenizer, image_size=8, hidden_size=16,
                                      vision_layers=1, text_layers=1)
            model = git_from_config(config)
            from transformers import GitProcessor
            processor = GitProcessor(make_image_processor(8), tokenizer)
            return CurriculumTrainer(model, args, train_dataset=data, eval_dataset=data.select(range(8)),
                                     data_collator=CaptionCollator(tokenizer, processor.image_processor),
                                     processing_class=processor)

        from transformers import TrainerCallback

        class Kill(TrainerCallback):
            def __init__(self, step):
                self.step = step

            def on_step_begin(self, args, state, control, **kwargs):
                if state.global_step == self.step:
                    raise KeyboardInterrupt

        def killed(trainer, step):
            trainer.add_callback(Kill(step))
            try:
                trainer.train()
            except KeyboardInterrupt:
                trainer._finish_current_push()
            assert trainer.state.global_step == step

        def weights(model):
            return torch.cat([value.flatten() for value in model.state_dict().values()])
        """)
    return user


def head_of(text):
    return yaml.safe_load(text.split("---\n")[1])


def test_a_model_with_its_curriculum_and_card(hub, trainer, other_user):
    trainer.run("""
        one = make_captioner("captioner", hub_model_id="me/captioner", hub_token=os.environ["HF_TOKEN"])
        one.train()
        one.push_to_hub(license="mit", dataset_tags="me/whole", paper="babylm",
                        results=[{"metric": "CIDEr", "value": 0.5, "reference": 0.6, "source": "made up"},
                                 {"metric": "npi", "value": 0.75, "dataset": "nyu-mll/blimp", "task": "npi"}])
        """)
    files = hub.files("model", "me/captioner")
    assert {
        "README.md", "config.json", "curriculum.json", "figures/pool_growth.png", "figures/validation_loss.png",
        "model.safetensors", "training_facts.json",
    } <= set(files)  # fmt: skip
    entries = yaml.safe_load(files[".eval_results/nyu-mll--blimp.yaml"])
    assert entries == [{"dataset": {"id": "nyu-mll/blimp", "task_id": "npi"}, "value": 0.75}]
    told = json.loads(files["curriculum.json"])
    assert told["plan"]["curriculum"] == {"type": "phases", "num_phases": 2, "easy": "low"}
    text = files["README.md"].decode()
    head = head_of(text)
    assert head["license"] == "mit"
    assert head["datasets"] == ["me/whole"]
    assert head["pipeline_tag"] == "image-text-to-text"
    assert {"curriculum-learning", "hf_curriculum", "curriculum_git"} <= set(head["tags"])
    for words in (
        "import hf_curriculum  # makes the model known",
        'AutoModelForImageTextToText.from_pretrained("me/captioner")',
        "no code is taken from this repository",
        "@inproceedings{saha2024exploring",
        "| CIDEr | 0.5 | 0.6 | made up |",
        "| loss | ",
        "| examples trained on | 36 |",
        "| seed | 42 |",
        "| torch | ",
        "CaptionLength",
        "](figures/pool_growth.png)",
    ):
        assert words in text, words
    assert re.search(r"\nphase +rule +pool +new", text)
    facts = json.loads(files["training_facts.json"])
    assert facts["cost"]["examples"] == 36
    assert facts["decisions"] == []
    card = text.partition("```python\n")[2].partition("```")[0]
    reader = other_user("hf_readerTOKENreader")
    reader.run("""
        import os, tempfile
        from PIL import Image
        os.chdir(tempfile.mkdtemp())
        Image.new("RGB", (40, 30)).save("photo.jpg")
        """)
    reader.run(card)  # the lines of the card, as they stand there
    assert "CaptionGitForCausalLM GitProcessor" in reader.run("print(type(model).__name__, type(processor).__name__)")
    same = trainer.run("""
        from transformers import AutoModelForImageTextToText
        loaded = AutoModelForImageTextToText.from_pretrained("me/captioner")
        print(torch.equal(weights(loaded), weights(one.model)))
        """)
    assert same.split() == ["True"]


def test_a_captioner_on_regions_is_pushed_with_the_detector_that_reads_photos(hub, trainer, other_user):
    trainer.run("""
        from transformers import ViTConfig, ViTModel
        from hf_curriculum.data.regions.extract import extract_regions
        from hf_curriculum.data.tokenizer import train_word_tokenizer
        from hf_curriculum.tasks.captioning import UpDownConfig, UpDownForCausalLM
        torch.manual_seed(0)
        sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        ViTModel(ViTConfig(hidden_size=8, image_size=16, patch_size=8, **sizes)).save_pretrained("tower")
        make_image_processor(16).save_pretrained("tower")
        store = extract_regions(data, "tower", "regions", progress=False)
        words = train_word_tokenizer(data, min_count=1)
        net = UpDownForCausalLM(UpDownConfig(len(words), 8, 4, region_feature_size=8))
        args = arguments("updown", score_column="caption_length", hub_model_id="me/updown",
                         hub_token=os.environ["HF_TOKEN"])
        one = CurriculumTrainer(net, args, train_dataset=data, data_collator=CaptionCollator(words, regions=store))
        one.train()
        one.push_to_hub()
        """)
    files = hub.files("model", "me/updown")
    assert {"preprocessor_config.json", "tokenizer.json", "detector/config.json", "detector/model.safetensors"} <= set(
        files
    )
    text = files["README.md"].decode()
    assert "curriculum_updown" in head_of(text)["tags"]
    assert "| numbers per region | 8 |" in text
    reader = other_user("hf_readerTOKENreader")
    reader.run("""
        import os, tempfile
        from PIL import Image
        os.chdir(tempfile.mkdtemp())
        Image.new("RGB", (40, 30)).save("photo.jpg")
        """)
    reader.run(text.partition("```python\n")[2].partition("```")[0])
    assert reader.run("print(tuple(seen['region_features'].shape))").split() == ["(1,", "4,", "8)"]


CHECKPOINTS = {
    "end": [],
    "every_save": [],
    "checkpoint": ["last-checkpoint"],
    "all_checkpoints": ["checkpoint-3", "checkpoint-6", "checkpoint-9"],
}


@pytest.mark.parametrize("strategy", CHECKPOINTS)
def test_hub_strategies(hub, trainer, strategy):
    name = f"me/by-{strategy.replace('_', '-')}"
    trainer.run(f"""
        one = make("{strategy}", push_to_hub=True, hub_model_id="{name}", hub_strategy="{strategy}",
                   save_strategy="steps", save_steps=3, hub_always_push=True, hub_token=os.environ["HF_TOKEN"])
        one.train()
        """)
    files = hub.files("model", name)
    folders = sorted({path.partition("/")[0] for path in files if "checkpoint" in path.partition("/")[0]})
    assert folders == CHECKPOINTS[strategy]
    for folder in folders:
        assert {f"{folder}/curriculum.json", f"{folder}/trainer_state.json", f"{folder}/optimizer.pt"} <= set(files)
    assert ("curriculum.json" in files) == (strategy != "end")
    trainer.run("one.push_to_hub()")
    files = hub.files("model", name)
    assert {"curriculum.json", "README.md", "model.safetensors"} <= set(files)
    assert sorted({path.partition("/")[0] for path in files if "checkpoint" in path.partition("/")[0]}) == folders
    assert json.loads(files["curriculum.json"])["plan"]["num_steps"] == 9


def test_a_run_is_resumed_from_the_hub(hub, trainer):
    """The run that goes on from the Hub ends with the weights of one that was never stopped, bit for bit."""
    told = trainer.run("""
        whole = make("whole-run")
        whole.train()
        begun = make("begun", push_to_hub=True, hub_model_id="me/resumed", hub_strategy="all_checkpoints",
                     save_strategy="steps", save_steps=3, hub_always_push=True)
        killed(begun, 8)
        for name in (checkpoint_from_hub("me/resumed", step=3), "me/resumed", "me/resumed@main"):
            again = make("again")
            again.train(resume_from_checkpoint=name)
            print("\\n>", again.state.global_step, torch.equal(weights(again.model), weights(whole.model)))
        """)
    assert [line for line in told.splitlines() if line[:1] == ">"] == ["> 9 True"] * 3
    assert "checkpoint-6/trainer_state.json" in hub.files("model", "me/resumed")
    assert "checkpoint-9/trainer_state.json" not in hub.files("model", "me/resumed")


def test_losses_that_a_curriculum_orders_by_come_along(hub, trainer):
    trainer.run("""
        def paced(out, **given):
            return make(out, curriculum=SelfPaced(initial=0.5, epochs=4), score_column=None, **given)

        whole = paced("paced-whole")
        whole.train()
        begun = paced("paced", push_to_hub=True, hub_model_id="me/paced", hub_strategy="checkpoint",
                      save_strategy="steps", save_steps=5, hub_always_push=True)
        killed(begun, 12)
        """)
    files = hub.files("model", "me/paced")
    assert json.loads(files["last-checkpoint/trainer_state.json"])["global_step"] == 10
    assert "last-checkpoint/curriculum_losses.npy" in files
    assert json.loads(files["last-checkpoint/curriculum.json"])["log"]
    told = trainer.run("""
        last = paced("paced-again", hub_model_id="me/paced")
        last.train(resume_from_checkpoint="me/paced")
        print("\\n>", last.plan.log == whole.plan.log, torch.equal(weights(last.model), weights(whole.model)))
        last.push_to_hub()
        """)
    assert "> True True" in told.splitlines()
    assert "Decisions between rounds:" in hub.files("model", "me/paced")["README.md"].decode()


def test_what_cannot_be_resumed_is_said(hub, trainer, tmp_path):
    error = trainer.fails('checkpoint_from_hub("me/by-every-save")')
    assert error["type"] == "ValueError"
    assert "holds no checkpoint" in error["text"]
    assert 'hub_strategy="checkpoint"' in error["text"]
    error = trainer.fails('checkpoint_from_hub("me/by-all-checkpoints", step=4)')
    assert "holds no checkpoint of step 4; it holds those of [3, 6, 9]" in error["text"]
    error = trainer.fails('make("x").train(resume_from_checkpoint="me/no-such-model")')
    assert (error["type"], error["status"]) == ("HubError", 404)
    assert "Downloading a checkpoint of me/no-such-model failed" in error["text"]
    trainer.run('os.makedirs("out", exist_ok=True)')
    error = trainer.fails('make("x").train(resume_from_checkpoint="out/checkpoint-7")')
    assert error["type"] == "ValueError"
    assert "Can't find a valid checkpoint at out/checkpoint-7" in error["text"]
    hub.fail("storage", cut="within", times=1)
    told = trainer.run("""
        print(Path(checkpoint_from_hub("me/by-all-checkpoints", step=3, cache_dir="fresh")).name)
        """)
    assert told.split() == ["checkpoint-3"]
    hub.fail("resolve", 500, path="trainer_state.json")
    error = trainer.fails('checkpoint_from_hub("me/by-all-checkpoints", step=6, cache_dir="other")')
    assert error["type"] == "HubError", error["all"]
    assert "Nothing here has changed" in error["text"]


def test_failures_while_training_are_heard_of_and_training_goes_on(hub, trainer):
    hub.fail("commit", 403, message="not for hf_writerTOKENwriter")
    before = len(trainer.log())
    trainer.run("""
        one = make("stubborn", push_to_hub=True, hub_model_id="me/stubborn", hub_strategy="checkpoint",
                   save_strategy="steps", save_steps=3, hub_always_push=True)
        one.train()
        assert one.state.global_step == 9
        assert Path("stubborn/checkpoint-9/trainer_state.json").is_file()
        """)
    log = trainer.log()[before:]
    assert "A push while training failed: the Hub answered 403" in log
    assert "`trainer.push_to_hub()` sends what is missing" in log
    error = trainer.fails("one.push_to_hub()")
    assert (error["type"], error["status"]) == ("HubError", 403)
    assert "the model and its checkpoints are in stubborn" in error["text"].replace("./", "")
    hub.heal()
    sent = hub.uploads.copy()
    trainer.run("one.push_to_hub()")
    files = hub.repos["model", "me/stubborn"]
    model = files.commits[files.find("main")]["model.safetensors"].sha256
    assert hub.uploads[model] == sent[model] == 1
    hub.fail("create", 401)
    hub.fail("info", 401)
    error = trainer.fails('make("none", push_to_hub=True, hub_model_id="me/none")')
    assert (error["type"], error["status"]) == ("HubError", 401)
    hub.heal()
    hub.fail("commit", cut="before")
    error = trainer.fails("one.model.layers[0].bias.data += 1; one.push_to_hub()")
    assert "The connection was lost" in error["text"]


def test_a_private_model_needs_its_token(hub, trainer):
    trainer.run("""
        one = make("hidden", hub_model_id="me/hidden", hub_private_repo=True, hub_strategy="all_checkpoints",
                   push_to_hub=True, save_strategy="steps", save_steps=9)
        one.train()
        """)
    assert hub.repos["model", "me/hidden"].private
    for token, status in (("hf_strangerTOKENstranger", 404), ("hf_unknownTOKENunknown", 401)):
        error = trainer.fails(f"checkpoint_from_hub('me/hidden', token='{token}')")
        assert (error["type"], error["status"]) == ("HubError", status)
        assert token not in error["all"]
    found = trainer.run("print(checkpoint_from_hub('me/hidden', token='hf_readerTOKENreader'))")
    assert found.strip().endswith("checkpoint-9")


def test_no_token_was_pushed_or_logged(hub, trainer):
    """The last test of this file: it looks at everything that came before."""
    contents = b"".join(hub.blobs.values())
    assert b"training_args" in b"".join(path.encode() for path in hub.files("model", "me/captioner"))
    for token in SECRETS:
        assert token.encode() not in contents
        assert token not in trainer.log()
    assert hub.leaks == []
    assert "unknown" not in {route for _, route, _, _ in hub.requests}
