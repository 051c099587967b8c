"""docs/from_trl.md from the tables of TRL's names: `python -m postrl.cli.trl_table > docs/from_trl.md`."""

from __future__ import annotations

import sys

from postrl.config.script_fields import COMPANIONS
from postrl.config.trl_counts import STEPS
from postrl.config.trl_names import DEFAULTS, TRLS
from postrl.config.trl_refused import COMMON, OLDER, REFUSED
from postrl.config.trl_rules import RULES
from postrl.scripts.metric_names import TRLS_METRICS
from postrl.scripts.names import TrainerNames

HEAD = """# From TRL

Generated from `postrl.config` by `python -m postrl.cli.trl_table`.

A script written for TRL keeps its `GRPOConfig(...)`; change the import to `from postrl import GRPOConfig, GRPOTrainer`. TRL's
names work in a `--config` file too; on the command line each is answered with the flag to type.

- **What is not set.** Where one of TRL's own names is among the settings (`per_device_train_batch_size`, `bf16`, `use_vllm`, ...),
  what is not set is as in TRL: {defaults}; 8 completions a process and optimizer step; the engine inside the trainer unless
  `use_vllm=True`, and with it a sequence mask up to 3 as importance correction. A script with postrl's names and common ones
  alone has postrl's defaults ([settings.md](settings.md)), and one with common names alone is told how they differ. The
  defaults of an algorithm ([presets.md](presets.md)) stand before TRL's.
- **What is printed.** One block: what each name became, what was filled in as in TRL, what was passed over, and what is not as in
  TRL. Everything that is refused is refused in one error, before anything starts.
- **Steps.** TRL counts optimizer steps, postrl batches of `minibatches x num_iterations` optimizer steps. Where the batch is given
  in TRL's names, {steps} are converted; `warmup_steps` are optimizer steps in both. A number that ends
  within a batch is rounded up, and the block says so. Below 1 a number is a share of all steps, as in TRL.
- **Epochs** end with a step that reaches into the next one; TRL leaves out prompts that fill no batch.
- **Loss and gradient** are compared with TRL's in [algorithms.md](algorithms.md#against-trl).
- **Parsers.** `TrlParser` and `HfArgumentParser` read `GRPOConfig` beside TRL's `ModelConfig` and `ScriptArguments`, whose names
  are left to those. A `@dataclass` that inherits from it has fields of its own. TRL's names can be read off `args` as they were
  given, and set later: `args.model_init_kwargs = {{...}}`.
- **Rewards** run in processes of their own: what they print is in RUN/logs/rewards.log, and lists or counters that they fill stay
  there. `log_metric` and `log_extra` come back.

## Trainer and callbacks

The trainer has TRL's names: {names}.
`train()` returns the metrics of the last step, with `.metrics`, `.training_loss` and `.global_step`. `trainer.model` loads a model
that was given by name; a module that was given is trained in place, so `model.merge_and_unload()` works on the script's own.
Overriding a method of TRL's that nothing would call (`compute_loss`, `_generate_and_score_completions`, ...) is refused when the
class is made, and arguments without a counterpart (`tools`, `rollout_func`, ...) when the trainer is.

Callbacks of transformers are called in the main process, with model, processing_class, optimizer and lr_scheduler; the data
loaders are None. `global_step` counts postrl's steps; `on_optimizer_step` comes for each optimizer step. `on_substep_end`,
`on_prediction_step` and `on_predict` do not come, and `should_epoch_stop` is not followed. `logs` and `metrics` have TRL's names
beside postrl's, every `logging_steps` steps:

| TRL | postrl |
|---|---|
{metrics}"""


def trl_table() -> str:
    """The page: each of TRL's fields with what becomes of it."""
    defaults = ", ".join(f"`{name}={value!r}`" for name, value in DEFAULTS.items())
    steps = ", ".join(f"`{name}`" for name in STEPS)
    own = ", ".join(f"`{name}`" for name in vars(TrainerNames) if not name.startswith(("_", "push_while")))
    metrics = "".join(f"| `{theirs}` | `{ours}` |\n" for theirs, ours in TRLS_METRICS.items())
    parts = [HEAD.format(defaults=defaults, steps=steps, names=own, metrics=metrics)]
    fields = TRLS | COMMON
    for title, names in (
        ("The fields of TRL 1.16's GRPOConfig", fields - COMPANIONS - OLDER),
        ("Of older versions", OLDER),
        ("Of TRL's command line and scripts", fields & COMPANIONS),
    ):
        rows = "".join(f"| `{name}` | {' | '.join(becomes(name))} |\n" for name in sorted(names))
        parts.append(f"\n## {title}\n\n| TRL | here | |\n|---|---|---|\n{rows}")
    return "".join(parts)


def becomes(name: str) -> tuple[str, str]:
    """What becomes of a field: converted, same, passed over or refused; and to what, or why."""
    if name in REFUSED:
        row = REFUSED[name]
        told = "; ".join(filter(None, (row.why, row.hint)))
        values = [repr(value) for value in row.same if value is not None]
        taken = f"; taken: {', '.join(values)}" if values and not row.passed and len(values) < 3 else ""
        return ("passed over" if row.passed else "refused"), told + taken
    if name in STEPS:
        return "same", "in batches: see above"
    told = next((row.ours for row in RULES if name in row.names), "")
    return ("same" if name in COMMON else "converted"), told


if __name__ == "__main__":
    sys.stdout.write(trl_table())
