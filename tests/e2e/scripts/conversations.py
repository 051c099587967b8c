"""In the style of TRL's examples with columns: conversations, a reward that reads a column, evaluation, a module."""

import re
import sys

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from postrl import GRPOConfig, GRPOTrainer

path, output_dir = sys.argv[1:]

SYSTEM_PROMPT = "Think first. Then answer in <answer></answer>."


def make_conversation(example):
    return {
        "prompt": [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": example["problem"]},
        ],
    }


def accuracy_reward(completions, solution, **kwargs):
    """1 for the right digit anywhere in the answer, and a little for digits at all."""
    contents = [completion[0]["content"] for completion in completions]
    return [
        1.0 if truth in content else 0.1 * len(re.findall(r"\d", content)) + 0.01 * len(content)
        for content, truth in zip(contents, solution)
    ]


rows = Dataset.from_dict(
    {"problem": [f"What is {n} + {n}?" for n in range(8)], "solution": [str(2 * n) for n in range(8)]}
)
dataset = rows.map(make_conversation).train_test_split(test_size=2, seed=0)

tokenizer = AutoTokenizer.from_pretrained(path)
model = AutoModelForCausalLM.from_pretrained(path)

training_args = GRPOConfig(
    output_dir=output_dir,
    per_device_train_batch_size=8,
    num_generations=4,
    max_prompt_length=256,
    max_completion_length=8,
    num_train_epochs=1,
    eval_strategy="steps",
    eval_steps=2,
    temperature=0.9,
    beta=0.04,
    learning_rate=1e-3,
    report_to=[],
    engine="transformers",
    dtype="float32",
)
trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=[accuracy_reward],
    args=training_args,
    train_dataset=dataset["train"],
    eval_dataset=dataset["test"],
)
print("before", trainer.evaluate()["eval/eval/reward"])
trainer.train()
print("after", trainer.evaluate()["eval/eval/reward"])
trainer.save_model(f"{output_dir}/final")
