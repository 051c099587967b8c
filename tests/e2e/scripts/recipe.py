"""In the style of recipes for TRL's parser: settings from a YAML file and flags into a dataclass that inherits, and everything
that such scripts do after training."""

import logging
import os
import sys
from dataclasses import dataclass, field

from datasets import Dataset
from transformers import set_seed
from transformers.trainer_utils import get_last_checkpoint
from trl import ModelConfig, ScriptArguments, TrlParser, get_peft_config

from postrl import GRPOConfig, GRPOTrainer

logger = logging.getLogger(__name__)


@dataclass
class Settings(GRPOConfig):
    shortest: int = field(default=2, metadata={"help": "Completions of fewer tokens get nothing."})


def long_enough(shortest):
    def length(completion_ids, **kwargs):
        return [min(len(ids) - shortest, 6) / 6 + ids[0] / 1000 for ids in completion_ids]

    return length


def main(script_args, training_args, model_args):
    set_seed(training_args.seed)
    logger.info("training parameters %s", training_args)
    checkpoint = get_last_checkpoint(training_args.output_dir) if os.path.isdir(training_args.output_dir) else None
    dataset = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"{n} + {n}?"}], "answer": 2 * n} for n in range(8)]
    )
    trainer = GRPOTrainer(
        model=model_args.model_name_or_path,
        reward_funcs=[long_enough(training_args.shortest)],
        args=training_args,
        train_dataset=dataset,
        eval_dataset=dataset.select(range(2)) if training_args.eval_strategy != "no" else None,
        peft_config=get_peft_config(model_args),
    )
    result = trainer.train(resume_from_checkpoint=checkpoint)
    metrics = result.metrics
    metrics["train_samples"] = len(dataset)
    trainer.log_metrics("train", metrics)
    trainer.save_metrics("train", metrics)
    trainer.save_state()
    trainer.save_model(os.path.join(training_args.output_dir, "final"))
    if trainer.accelerator.is_main_process:
        trainer.create_model_card(dataset_name=script_args.dataset_name, tags=["recipe"])
        trainer.model.config.use_cache = True
    trainer.accelerator.wait_for_everyone()
    if training_args.push_to_hub:
        trainer.push_to_hub(dataset_name=script_args.dataset_name)
    print("loss", result.training_loss == result.metrics["train_loss"], "steps", result.global_step)


if __name__ == "__main__":
    model, output_dir = sys.argv[1:]
    with open(f"{output_dir}.yaml", "w") as recipe:
        recipe.write(
            f"model_name_or_path: {model}\ndataset_name: sums\nlearning_rate: 1.0e-3\nlr_scheduler_type: cosine\n"
            "warmup_ratio: 0.1\nper_device_train_batch_size: 4\nnum_generations: 4\nmax_steps: 2\nseed: 42\n"
            "max_completion_length: 8\nlogging_steps: 1\nreport_to: []\nuse_vllm: false\nbf16: false\n"
            "gradient_checkpointing: true\ngradient_checkpointing_kwargs: {use_reentrant: false}\n"
        )
    parser = TrlParser((ScriptArguments, Settings, ModelConfig))
    main(
        *parser.parse_args_and_config(["--config", f"{output_dir}.yaml", "--output_dir", output_dir, "--shortest", "1"])
    )
