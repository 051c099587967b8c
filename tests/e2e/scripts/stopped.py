"""A script that is stopped: python stopped.py MODEL OUTPUT_DIR [resume]"""

import sys

from postrl import GRPOConfig, GRPOTrainer


def by_tokens(completion_ids, **columns):
    return [sum(token % 7 for token in tokens) / (7 * len(tokens)) for tokens in completion_ids]


if __name__ == "__main__":
    args = GRPOConfig(
        output_dir=sys.argv[2], dataset=["arithmetic"], engine="transformers", prompts_per_step=2, num_generations=4,
        max_completion_length=8, learning_rate=1e-2, max_steps=int(sys.argv[3]) if sys.argv[3:] else 5000,
    )  # fmt: skip
    trainer = GRPOTrainer(model=sys.argv[1], reward_funcs=by_tokens, args=args)
    trainer.train(resume_from_checkpoint=len(sys.argv) > 3)
