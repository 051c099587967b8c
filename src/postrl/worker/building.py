"""A rollout worker from a run's settings: the data loaded, the rewards resolved, what ends a turn found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from postrl.config import GRPOConfig
from postrl.config.checks import length_twice
from postrl.config.refuse import refuse
from postrl.data.prompts import NAMED_UNUSABLE, PromptSet, load_prompts
from postrl.errors import UsageError
from postrl.given import Given
from postrl.rewards.registry import RewardSpec, resolve, with_options
from postrl.rewards.rows import hidden_columns, scorable_rows, why_left_out
from postrl.rewards.runner import RewardRunner
from postrl.rollout.sampler import Sampler
from postrl.rollout.turn_end import TurnEnd, turn_end
from postrl.rows.tokens import check_vocabulary
from postrl.run.folder import RunFolder
from postrl.worker.worker import RolloutWorker


def build_worker(
    config: GRPOConfig,
    tokenizer: Any,
    sampler: Sampler,
    folder: RunFolder,
    *,
    given: Given | None = None,
    stop_token_ids: Sequence[int] = (),
    vocabulary: int | None = None,
) -> tuple[RolloutWorker, PromptSet]:
    """Load the data, resolve the rewards and put the worker together; what was left out of the data is noted.

    Args:
        stop_token_ids: the eos tokens, with which `sampler` ends every completion.
        vocabulary: tokens that the model knows; None: not known.

    Raises:
        DataError, UsageError: the data set or a reward cannot be used.
    """
    given = given or Given()
    train = load_prompts(config, tokenizer, split="train", raw=given.train)
    evaluate = None
    if given.evaluate is not None or config.eval_dataset:
        evaluate = load_prompts(config, tokenizer, split="eval", raw=given.evaluate)
    sets = [train, *([] if evaluate is None else [evaluate])]
    specs = _rewards(config, given, sets)
    for prompts in sets:
        if given.rewards:  # a script's functions score every row, also those of a data set with a reward of its own
            for prompt in prompts.prompts:
                prompt.rewards = ()
        _leave_unscorable(prompts, specs, folder.note)
    for line in dict.fromkeys(note for prompts in sets for note in prompts.notes):
        folder.note(line)
    if any(spec.kind == "builtin" and spec.payload == "code" for spec in specs):
        from postrl.rewards.code.sandbox import choose

        folder.note(f"model-written code runs in the sandbox {choose(config.sandbox).about}")
    prompts_of_all = [prompt for prompts in sets for prompt in prompts.prompts]
    if vocabulary and (said := check_vocabulary(prompts_of_all, tokenizer, vocabulary)):
        folder.note(said)
    turn = turn_end(tokenizer, prompts_of_all, stop_token_ids)
    if not any(map(turn.covers, prompts_of_all)):
        turn = TurnEnd(eos=turn.eos)
    elif said := turn.note(tokenizer):
        folder.note(said)
    rewards = RewardRunner.for_run(specs, config, log_path=folder.logs / "rewards.log")
    worker = RolloutWorker(
        config,
        train=train,
        evaluate=evaluate,
        sampler=sampler,
        rewards=rewards,
        tokenizer=tokenizer,
        note=folder.note,
        turn=turn,
    )
    for line in worker.production.stream.repeats(config.prompts_per_step):
        folder.note(line)
    return worker, train


def _leave_unscorable(prompts: PromptSet, specs: Sequence[RewardSpec], note: Callable[[str], None]) -> None:
    """Take the rows out that no reward can score, and say of what is left what a person should know."""
    loaded = prompts.prompts
    prompts.prompts, ids = scorable_rows(loaded, specs)
    prompts.num_unusable += len(ids)
    prompts.unusable = [*prompts.unusable, *ids][:NAMED_UNUSABLE]
    for said in (prompts.describe(), hidden_columns(prompts.prompts), why_left_out(loaded, ids, specs)):
        if said:
            note(said)


def _rewards(config: GRPOConfig, given: Given, sets: Sequence[PromptSet]) -> list[RewardSpec]:
    """The run's reward functions with their options: the script's, those of --reward, else the data sets' own."""
    own = dict.fromkeys(name for prompts in sets for name in prompts.default_reward)
    specs = given.rewards or [resolve(name) for name in config.reward or own]
    if not specs:
        raise UsageError(
            f"no reward is given, and {sets[0].name} has none of its own",
            hint="--reward math, --reward code or --reward file.py:function",
        )
    refuse(length_twice(config, [str(spec.payload) for spec in specs if spec.kind == "builtin"]))  # a script's, too
    return with_options(specs, config.reward_arg)
