"""A captioner trained on a crawl in buckets, which lie on a disk or in object storage.

    accelerate launch recipes/examples/crawl.py --train_dataset s3://crawls/buckets --output_dir run --max_steps 500000

`hf-curriculum score --in-place` and `hf-curriculum bucket` make the buckets. Run it again after a kill: it goes on.
"""

from dataclasses import dataclass, field
from itertools import islice

from transformers import HfArgumentParser, set_seed

from hf_curriculum import (
    BucketedStream,
    CaptionCollator,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    make_image_processor,
    train_wordpiece,
)
from hf_curriculum.models.git.build import git_from_config, paper_git_config, small_git_config
from hf_curriculum.studies.recipe import resume_point
from hf_curriculum.training.setup import close_process_group


@dataclass
class Crawl:
    train_dataset: str = field(metadata={"help": "The folder of buckets, or its address."})
    small: bool = field(default=False, metadata={"help": "A small GIT and small images, to try it out."})
    captions: int = field(default=100_000, metadata={"help": "Captions of the easiest that the tokenizer is made of."})


PARSER = HfArgumentParser((Crawl, CurriculumTrainingArguments))


def main() -> None:
    crawl, args = PARSER.parse_args_into_dataclasses()
    set_seed(args.seed)
    stream = BucketedStream(crawl.train_dataset, columns=["caption"])
    captions = [row["caption"] for row in islice(stream, crawl.captions) if row["caption"]]
    tokenizer = train_wordpiece(captions, vocab_size=500 if crawl.small else 30_000)
    size, config = (64, small_git_config) if crawl.small else (224, paper_git_config)
    trainer = CurriculumTrainer(
        model=git_from_config(config(len(tokenizer), tokenizer=tokenizer)),
        args=args,
        train_dataset=crawl.train_dataset,
        data_collator=CaptionCollator(tokenizer, make_image_processor(size)),
        processing_class=tokenizer,
    )
    if trainer.is_world_process_zero():
        print(trainer.plan.describe())
    trainer.train(resume_from_checkpoint=resume_point(args))
    trainer.save_model()


if __name__ == "__main__":
    main()
    close_process_group()
