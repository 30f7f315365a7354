import subprocess
import sys
import textwrap

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText, GenerationConfig

from hf_curriculum import CaptionGitForCausalLM, train_wordpiece
from hf_curriculum.models.git.build import git_from_config, small_git_config
from hf_curriculum.models.git.config import CaptionGitConfig
from hf_curriculum.models.git.model import CaptionGitModel
from hf_curriculum.names import MODELS

CAPTIONS = ["a red ball on a table", "two blue cubes", "a ball and a cube"]


def small(**fields):
    torch.manual_seed(0)
    return git_from_config(
        small_git_config(60, image_size=16, hidden_size=32, vision_layers=1, text_layers=2, **fields)
    ).eval()


def inputs():
    torch.manual_seed(1)
    return {"input_ids": torch.randint(5, 60, (2, 6)), "pixel_values": torch.randn(2, 3, 16, 16)}


def test_models_by_name():
    assert MODELS["git"] is CaptionGitForCausalLM


@pytest.mark.parametrize("fields", [{}, {"tie_word_embeddings": False, "output_bias": True, "vision_pooler": True}])
@pytest.mark.parametrize("auto", [AutoModelForCausalLM, AutoModelForImageTextToText, CaptionGitForCausalLM])
def test_saved_and_loaded(tmp_path, auto, fields):
    model = small(**fields)
    model.generation_config.max_new_tokens = 7
    model.save_pretrained(tmp_path)
    loaded, report = auto.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is CaptionGitForCausalLM
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    torch.testing.assert_close(loaded(**inputs()).logits, model(**inputs()).logits)
    assert loaded.generation_config.max_new_tokens == 7
    written = loaded.generate(pixel_values=inputs()["pixel_values"])
    assert torch.equal(written, model.generate(pixel_values=inputs()["pixel_values"]))


def test_the_decoder_alone(tmp_path):
    model = small()
    model.save_pretrained(tmp_path)
    bare = AutoModel.from_pretrained(tmp_path)
    assert type(bare) is CaptionGitModel
    expected = model.output(bare(**inputs()).last_hidden_state)
    torch.testing.assert_close(expected, model(**inputs()).logits)


def test_from_a_config():
    assert type(AutoConfig.for_model("curriculum_git")) is CaptionGitConfig
    assert type(AutoModelForCausalLM.from_config(small().config)) is CaptionGitForCausalLM


def test_generation_starts_at_cls_and_ends_at_sep():
    generation = small().generation_config
    assert isinstance(generation, GenerationConfig)
    assert (generation.bos_token_id, generation.eos_token_id, generation.pad_token_id) == (2, 3, 0)


def test_eager_attention_is_kept_by_from_pretrained(tmp_path):
    small().save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    assert loaded.config._attn_implementation == "eager"
    assert loaded.git.image_encoder.config._attn_implementation == "eager"


def test_a_model_that_was_resized_works():
    model = small()
    model.resize_token_embeddings(64)
    assert model.output.weight is model.git.embeddings.word_embeddings.weight
    assert model.eval()(**inputs(), labels=inputs()["input_ids"]).logits.shape == (2, 6, 64)


@pytest.mark.slow
def test_processor_without_torchvision(tmp_path):
    """Model, tokenizer and image processor in one folder, read back by the Auto classes without torchvision."""
    tokenizer = train_wordpiece(CAPTIONS, 60, max_length=20)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    script = f"""
        import sys
        sys.modules["torchvision"] = None
        import torch
        from PIL import Image
        from transformers import AutoModelForCausalLM, AutoProcessor, AutoTokenizer, GitProcessor
        import hf_curriculum.models
        from hf_curriculum import make_image_processor
        from hf_curriculum.models.git.build import git_from_config, small_git_config

        folder = {str(tmp_path)!r}
        tokenizer = AutoTokenizer.from_pretrained(folder + "/tokenizer")
        GitProcessor(make_image_processor(16), tokenizer).save_pretrained(folder + "/model")
        config = small_git_config(60, tokenizer=tokenizer, image_size=16, hidden_size=32)
        git_from_config(config).save_pretrained(folder + "/model")

        processor = AutoProcessor.from_pretrained(folder + "/model")
        model = AutoModelForCausalLM.from_pretrained(folder + "/model")
        assert type(processor) is GitProcessor, type(processor)
        assert processor.tokenizer.get_vocab() == tokenizer.get_vocab()
        batch = processor(images=[Image.new("RGB", (30, 20))], text=["a red ball"], return_tensors="pt")
        assert sorted(batch) == ["attention_mask", "input_ids", "pixel_values"], sorted(batch)
        assert batch["pixel_values"].shape == (1, 3, 16, 16)
        assert processor.tokenizer.decode(batch["input_ids"][0]) == "[CLS] a red ball [SEP]"
        assert model(**batch, labels=batch["input_ids"]).loss.isfinite()
        print("ok", processor.batch_decode(model.generate(pixel_values=batch["pixel_values"], max_new_tokens=3)))
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    assert "ok ['[CLS]" in run.stdout
