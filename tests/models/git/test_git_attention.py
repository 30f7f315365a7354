import pytest
import torch
from transformers import ViTConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_curriculum import CaptionGitForCausalLM
from hf_curriculum.models.git import model as git_model
from hf_curriculum.models.git.build import git_from_config, paper_git_config, small_git_config
from hf_curriculum.models.git.layers import eager_attention, text_attention_mask
from tests.helpers.dispatched import Dispatched

CPU = torch.device("cpu")


def visible(mask):
    return mask.int().tolist()


def test_text_sees_what_precedes_it_and_is_causal():
    mask = text_attention_mask(None, query_length=3, key_length=5, device=CPU)
    assert visible(mask) == [[[[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]]]


def test_padding_is_seen_by_itself_alone():
    padding = torch.tensor([[0, 1, 1], [1, 1, 0]])
    mask = text_attention_mask(padding, query_length=3, key_length=4, device=CPU)
    assert visible(mask[0, 0]) == [[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]
    assert visible(mask[1, 0]) == [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


def test_no_row_is_empty_even_for_padding_before_text_alone():
    mask = text_attention_mask(torch.tensor([[0, 0, 1]]), query_length=3, key_length=3, device=CPU)
    assert mask.any(-1).all()


def test_one_cached_step_needs_a_mask_only_for_padding():
    assert text_attention_mask(None, query_length=1, key_length=9, device=CPU) is None
    mask = text_attention_mask(torch.tensor([[0, 1, 1]]), query_length=1, key_length=5, device=CPU)
    assert visible(mask) == [[[[1, 1, 0, 1, 1]]]]


def test_text_alone_is_left_to_the_causal_rule_of_sdpa_but_not_of_others():
    assert text_attention_mask(None, 4, 4, CPU, "sdpa") is None
    assert visible(text_attention_mask(None, 2, 2, CPU, "eager")) == [[[[1, 0], [1, 1]]]]


def test_flash_kernels_get_the_padding_alone():
    assert text_attention_mask(None, 4, 6, CPU, "flash_attention_2") is None
    mask = text_attention_mask(torch.tensor([[1, 1, 0]]), 3, 5, CPU, "flash_attention_2")
    assert mask.tolist() == [[1, 1, 1, 1, 0]]


def test_eager_equals_sdpa():
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 6, 8), torch.randn(2, 3, 6, 8)
    mask = text_attention_mask(torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]]), 4, 6, CPU, "eager")
    mixed, weights = eager_attention(torch.nn.Module(), query, key, value, mask, scaling=8**-0.5)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2)
    torch.testing.assert_close(mixed, expected)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 4))
    assert weights[0, 0, 0, 3:].eq(0).all()


def test_eager_masks_are_safe_in_half_precision():
    query = torch.full((1, 1, 2, 8), 60.0, dtype=torch.float16)
    mask = text_attention_mask(None, 2, 2, CPU, "eager")
    mixed, weights = eager_attention(torch.nn.Module(), query, query, query, mask, scaling=8**-0.5)
    assert mixed.isfinite().all()
    assert weights[0, 0, 0].tolist() == [1, 0]


def aligned_at_the_end(module, query, key, value, attention_mask, dropout=0.0, scaling=1.0, is_causal=True, **kwargs):
    """What a flash kernel promises: padding removed, causal with the last query and the last key in line."""
    mixed = torch.zeros(query.shape[0], query.shape[2], query.shape[1], query.shape[3])
    valid = torch.ones(key.shape[0], key.shape[2]) if attention_mask is None else attention_mask
    for row in range(query.shape[0]):
        keys = valid[row].bool()
        queries = keys[-query.shape[2] :]
        q, k, v = query[row][:, queries], key[row][:, keys], value[row][:, keys]
        rule = torch.ones(q.shape[1], k.shape[1]).tril(k.shape[1] - q.shape[1]).bool() if is_causal else None
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=rule, scale=scaling)
        mixed[row][queries] = out.transpose(0, 1)
    return mixed, None


@pytest.mark.parametrize("padding", [None, [[1, 1, 1, 1], [1, 1, 0, 0]], [[1, 1, 1, 1], [0, 0, 1, 1]]])
@pytest.mark.parametrize("with_image", [True, False])
def test_a_flash_kernels_conventions_give_the_same_logits(monkeypatch, padding, with_image):
    torch.manual_seed(0)
    config = small_git_config(50, image_size=16, hidden_size=32, vision_layers=1, text_layers=2)
    model = CaptionGitForCausalLM(config).eval()
    ids = torch.randint(5, 50, (2, 4))
    inputs = {"input_ids": ids, "attention_mask": None if padding is None else torch.tensor(padding)}
    if with_image:
        inputs["image_features"] = torch.randn(2, 5, 32)
    expected = model(**inputs).logits
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "flash_stand_in", aligned_at_the_end)
    model.config._attn_implementation_internal = "flash_stand_in"
    logits = model(**inputs).logits
    kept = torch.ones(2, 4).bool() if padding is None else inputs["attention_mask"].bool()
    torch.testing.assert_close(logits[kept], expected[kept], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("padding", [None, torch.tensor([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]])])
def test_image_and_text_in_one_call_attend_as_in_two(monkeypatch, padding):
    torch.manual_seed(0)
    config = small_git_config(50, image_size=16, hidden_size=32, vision_layers=1, text_layers=2)
    model = CaptionGitForCausalLM(config).eval()
    ids, pixels = torch.randint(5, 50, (2, 5)), torch.randn(2, 3, 16, 16)
    seen = torch.ones(2, 5) if padding is None else padding
    found = {}
    for name in ("one", "two"):
        if name == "two":
            monkeypatch.setattr(git_model, "image_and_text_mask", lambda of_text, image_length: of_text)
        logits = model(ids, attention_mask=padding, pixel_values=pixels, use_cache=False).logits[seen == 1]
        found[name] = logits, *torch.autograd.grad(logits.square().sum(), list(model.parameters()), allow_unused=True)
    torch.testing.assert_close(found["one"], found["two"], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found["one"][0], found["two"][0], atol=1e-6, rtol=1e-6)


def test_a_step_of_the_papers_layers_takes_fifteen_hundred_kernels_at_most():
    shape = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 12, "num_attention_heads": 2}
    vision = ViTConfig(**shape, image_size=32, patch_size=16)
    torch.manual_seed(0)
    model = git_from_config(paper_git_config(500, vision_config=vision, **shape)).train()
    ids = torch.randint(5, 500, (2, 8))
    mask = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    batch = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
    counts = {}
    for dtype in (torch.float32, torch.bfloat16):
        model, pixels = model.to(dtype), torch.randn(2, 3, 32, 32, dtype=dtype)
        with Dispatched() as seen:
            model(**batch, pixel_values=pixels).loss.backward()
        model.zero_grad()
        counts[dtype] = sum(seen.kernels.values())
    assert 1000 < counts[torch.float32] <= counts[torch.bfloat16] <= 1500


def test_weights_of_bfloat16_have_the_loss_and_gradients_of_float32_but_for_their_rounding():
    torch.manual_seed(0)
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = small_git_config(50, image_size=16, hidden_size=32, vision_layers=1, text_layers=2, **still)
    model = git_from_config(config).train()
    ids, pixels = torch.randint(5, 50, (4, 6)), torch.randn(4, 3, 16, 16)
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        model = model.to(dtype)  # the second time its weights are those that bfloat16 holds
        model.zero_grad()
        loss = model(input_ids=ids, labels=ids, pixel_values=pixels.bfloat16().to(dtype)).loss
        loss.backward()
        gradients = torch.cat([weight.grad.float().flatten() for weight in model.parameters()])
        found.append((loss.float(), gradients))
    torch.testing.assert_close(found[0][0], found[1][0], atol=0, rtol=0.01)
    assert (found[0][1] - found[1][1]).norm() < 0.03 * found[1][1].norm()
