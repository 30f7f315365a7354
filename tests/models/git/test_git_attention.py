import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_curriculum import CaptionGitForCausalLM
from hf_curriculum.models.git.build import small_git_config
from hf_curriculum.models.git.layers import eager_attention, text_attention_mask

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
