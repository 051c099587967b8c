"""Trains on the rollouts of an earlier run, on as many ranks as it is started with; its own folder has no name."""

import os
import sys

from postrl import GRPOConfig, GRPOTrainer

if __name__ == "__main__":
    model, run = sys.argv[1:]
    trainer = GRPOTrainer(model=model, args=GRPOConfig(replay=run, max_completion_length=8))
    trainer.train()
    print(os.environ["RANK"], trainer.args.output_dir)
