"""In the style of TRL's peft example: two weighted rewards, a LoraConfig, a callback, the main guard."""

import sys

from peft import LoraConfig
from transformers import TrainerCallback

from postrl import GRPOConfig, GRPOTrainer


def format_reward(prompts, completions, **kwargs):
    return [float(completion.endswith(".")) + 0.1 * completion.count("e") for completion in completions]


async def length_reward(completion_ids, **kwargs):
    return [len(ids) / 8 + ids[0] / 1000 for ids in completion_ids]


class StopAfterThree(TrainerCallback):
    """Prints what it is told, and ends the training early."""

    def on_train_begin(self, args, state, control, **kwargs):
        print("begin", state.max_steps, args.learning_rate)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "train_loss" in logs:  # the summary at the end
            return
        print("log", state.global_step, round(logs["reward/mean"], 6) == round(state.log_history[-1]["reward/mean"], 6))

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3:
            control.should_training_stop = True
        return control

    def on_save(self, args, state, control, **kwargs):
        print("save", state.global_step)


def main():
    model, output_dir = sys.argv[1:]
    dataset = [{"prompt": f"Say something about number {n}."} for n in range(10)]
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[format_reward, length_reward],
        args=GRPOConfig(
            output_dir=output_dir,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=8,
            max_steps=100,
            logging_steps=1,
            learning_rate=1e-3,
            reward_weights=[1.0, 0.5],
            report_to="none",
            bf16=False,
            use_vllm=False,
        ),
        train_dataset=dataset,
        peft_config=LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
        callbacks=[StopAfterThree()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
