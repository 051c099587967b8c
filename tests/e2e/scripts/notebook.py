"""In the style of notebooks: a loaded model and tokenizer, several rewards that print, AdamW's settings, a callback that is put
in later, and the adapter merged by hand in the end."""

import re
import sys

import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback

from postrl import GRPOConfig, GRPOTrainer

model_name, output_dir = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(model_name, dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(model_name)
tokenizer.pad_token = tokenizer.eos_token
dataset = [
    {"prompt": [{"role": "system", "content": "Be short."}, {"role": "user", "content": f"{n}?"}], "answer": str(n)}
    for n in range(6)
]


def correctness_reward_func(prompts, completions, answer, **kwargs) -> list[float]:
    responses = [completion[0]["content"] for completion in completions]
    print(
        "-" * 20, f"Question:\n{prompts[0][-1]['content']}", f"\nAnswer:\n{answer[0]}", f"\nResponse:\n{responses[0]}"
    )
    return [2.0 if a in r else 0.0 for r, a in zip(responses, answer)]


def soft_format_reward_func(completions, **kwargs) -> list[float]:
    return [0.5 if re.match(r"<answer>.*?</answer>", c[0]["content"]) else 0.0 for c in completions]


def count_reward_func(completions, **kwargs) -> list[float]:
    return [sum(map(ord, c[0]["content"])) % 7 / 7 for c in completions]


class Rewards(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        picked = {name: value for name, value in logs.items() if name in ("reward", "kl", "loss", "learning_rate")}
        if picked:
            print("step", state.global_step, "has", " ".join(sorted(picked)))


training_args = GRPOConfig(
    output_dir=output_dir,
    learning_rate=5e-6,
    adam_beta1=0.9,
    adam_beta2=0.99,
    weight_decay=0.1,
    warmup_ratio=0.1,
    lr_scheduler_type="cosine",
    optim="adamw_torch",
    logging_steps=1,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=1,
    num_generations=4,
    max_prompt_length=256,
    max_completion_length=8,
    max_steps=2,
    save_steps=2,
    max_grad_norm=0.1,
    beta=0.04,
    report_to="none",
)
trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=[correctness_reward_func, soft_format_reward_func, count_reward_func],
    args=training_args,
    train_dataset=dataset,
    peft_config=LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"),
)
trainer.remove_callback(PrinterCallback)
trainer.add_callback(Rewards())
print("batch", training_args.per_device_train_batch_size, "rewards", len(trainer.reward_funcs))
trainer.train()
merged = trainer.model.merge_and_unload()
ids = tokenizer("What is 1?", return_tensors="pt").input_ids
out = merged.generate(input_ids=ids, max_new_tokens=3, do_sample=False)
print(
    "generated",
    out.shape[1] > ids.shape[1],
    "logged",
    [entry["step"] for entry in trainer.state.log_history if "reward" in entry],
)
merged.save_pretrained(f"{output_dir}/by-hand")
