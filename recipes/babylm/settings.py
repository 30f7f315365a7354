"""What an experiment of BabyLM is made of."""

from __future__ import annotations

import dataclasses

SCENES = "scenes"
"""Names the embedded data, as pictures and as text."""
POS_BERT = "pos_bert"
"""Names the tagger that is trained on the run's own text."""


@dataclasses.dataclass
class Settings:
    """What an experiment is made of.

    Args:
        data: "scenes" for the embedded pictures, or anything `load_captioned` reads.
        images: the pictures of a list of addresses: the output folder of img2dataset.
        num_examples: image-caption pairs of the embedded data.
        limit: most pairs used of each split of other data, the first ones; all if none.
        captions_per_image: captions of each embedded picture.
        scene_size: pixels along an edge of an embedded picture.
        mismatched: share of embedded captions that belong to another picture.
        validation: share held out.
        split_by: "image" holds all captions of a picture together, "row" does not (as released).
        split_seed: of the part held out; the run's own if none.
        text: a text corpus that `load_text` reads, "scenes" for the embedded one; captions alone if none.
        text_lines: lines of the embedded text.
        text_epochs: passes over the text before the captions; 0 reads it for tokenizer and tagger alone.
        text_batch_size: lines (or blocks) per optimizer step of the text stage, over all processes.
        text_at_once: lines (or blocks) that a process takes at once; a larger batch is taken in equal parts.
        text_max_length: tokens per line, the rest is cut off.
        text_blocks: cut the text into blocks of so many tokens instead of lines, if given.
        text_weight: train on text beside the captions, in one run, with this weight of its loss; no text stage then.
        text_eval: lines of the corpus's development part that the text stage is evaluated on; 0 evaluates nothing.
        word_limit: words that captions, and that text may have; counted alone if none.
        beyond_limit: "warn" or "error" where there are more.
        tagger: part-of-speech tagger of the noun count, see `NounCount`; "pos_bert" trains one on captions and text.
        tagger_training: how: `annotator`, `config` (of the BERT), `max_sentences`, and what `PosTagger.train` takes.
        noun_tags: tags that count as nouns, separated by "+"; all four noun tags if none.
        noun_words: count nouns within so many words of a caption; all if none.
        curriculum: which examples are shown when.
        control_curriculum: what `--compare` trains beside it, and `--control` in its place.
        model: "paper" or "small".
        model_options: further arguments of the model's builder.
        vision_weights: a checkpoint for the vision tower, "scenes_clip" for the shipped one; random if none.
        freeze_vision: leave the vision tower as it is.
        vision_features: a folder in which what the frozen tower makes of each picture is stored once, before training,
            and read in every epoch; computed in every step if none.
        lora_rank: rank of LoRA adapters, 0 for full training.
        image_size: pixels along an edge, as the model sees it.
        image_mean: per channel; ImageNet's if none.
        image_std: per channel; ImageNet's if none.
        vocab_size: most entries of the tokenizer.
        max_length: tokens per caption, the rest is cut off.
        train_on_padding: whether padding counts in the loss (as released).
        batch_size: pairs per optimizer step, over all processes.
        learning_rate: of Adam, in both stages.
        adam_beta1: of Adam.
        adam_beta2: of Adam.
        adam_epsilon: of Adam.
        weight_decay: of AdamW; 0 makes it Adam.
        lr_scheduler_type: learning-rate schedule over the whole run, in each stage.
        warmup_steps: steps of linear warm-up, in each stage.
        max_grad_norm: gradient norm that is clipped to; 0 clips nothing.
        precision: "fp32", "fp16" or "bf16".
        num_workers: data loader processes.
        eval_strategy: "epoch" evaluates after each pass over the pool, "steps" every `eval_steps`.
        eval_steps: steps between evaluations where the strategy is "steps".
        eval_images: validation pictures that captions are generated for, two or more.
        max_new_tokens: length of generated captions.
        num_beams: beams of generation.
    """

    data: str
    images: str | None
    num_examples: int
    limit: int | None
    captions_per_image: int
    scene_size: int
    mismatched: float
    validation: float
    split_by: str
    split_seed: int | None
    text: str | None
    text_lines: int
    text_epochs: float
    text_batch_size: int
    text_at_once: int
    text_max_length: int
    text_blocks: int | None
    text_weight: float | None
    text_eval: int
    word_limit: int | None
    beyond_limit: str
    tagger: str
    tagger_training: dict
    noun_tags: str | None
    noun_words: int | None
    curriculum: dict
    control_curriculum: dict
    model: str
    model_options: dict
    vision_weights: str | None
    freeze_vision: bool
    vision_features: str | None
    lora_rank: int
    image_size: int
    image_mean: list | None
    image_std: list | None
    vocab_size: int
    max_length: int
    train_on_padding: bool
    batch_size: int
    learning_rate: float
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    weight_decay: float
    lr_scheduler_type: str
    warmup_steps: int
    max_grad_norm: float
    precision: str
    num_workers: int
    eval_strategy: str
    eval_steps: int | None
    eval_images: int
    max_new_tokens: int
    num_beams: int

    def __post_init__(self) -> None:
        if self.eval_strategy not in ("epoch", "steps"):
            raise ValueError(
                f"eval_strategy={self.eval_strategy!r} was given. Without evaluation on the way the validation loss "
                "would be that of the model before training. Pass `epoch`, or `steps` with `--eval_steps`."
            )
        if self.eval_images < 2:
            raise ValueError(
                f"eval_images={self.eval_images} was given. The nouns of captions are counted against those of "
                "captions dealt to other pictures, which needs two or more. Pass `--eval_images 2` or more."
            )
        if self.text is None and self.text_weight is not None:
            raise ValueError(
                f"text_weight={self.text_weight} was given without text: there would be no second loss. Name a "
                "corpus, `--text PATH` (or `--text scenes`), or `--text_weight none`."
            )
        if self.vision_features is not None and not self.freeze_vision:
            raise ValueError(
                f"vision_features={self.vision_features!r} was given, but the vision tower learns: what it makes of a "
                "picture is another thing after every step. Pass `--freeze_vision true`, or leave vision_features out."
            )

    @property
    def has_text_stage(self) -> bool:
        """Whether text is trained on before the captions."""
        return self.text is not None and self.text_weight is None and self.text_epochs > 0

    @property
    def has_curriculum(self) -> bool:
        """Whether examples come in another order than the control's, or than at random."""
        return self.curriculum != self.control_curriculum and self.curriculum["type"] != "iid"

    @property
    def variant(self) -> str:
        """As the paper calls it: captions alone, or text and then captions; with "&", both at once."""
        if self.text_weight is not None:
            return "T&C"
        return "T+C" if self.has_text_stage else "C"
