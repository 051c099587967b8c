"""In the style of TRL's quick start: text prompts, a local reward function, a model given by its path."""

import sys

from datasets import Dataset

from postrl import GRPOConfig, GRPOTrainer


def main():
    model, output_dir = sys.argv[1:]
    dataset = Dataset.from_dict({"prompt": [f"Write {n} words about the sea." for n in range(2, 10)]})
    target = 12

    def reward_len(completions, **kwargs):
        return [-abs(target - len(completion)) / target for completion in completions]

    training_args = GRPOConfig(
        output_dir=output_dir,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=8,
        max_steps=2,
        learning_rate=1e-4,
        logging_steps=1,
        report_to="none",
        bf16=False,
        use_vllm=False,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward_len,
        args=training_args,
        train_dataset=dataset,
    )
    trainer.train()
    trainer.save_model(f"{output_dir}/final")


if __name__ == "__main__":
    main()
