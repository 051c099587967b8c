"""The mathematics: pure functions on tensors. Nothing here knows processes, ranks, models or configuration files.

    presets.py      an algorithm is a row of a table that names its parts (no torch)
    refused.py      combinations of settings that cannot be right (no torch)
    algorithm.py    a row with the settings of a run            parts.py        the parts that rows name
    resolve.py      from a name and settings to an algorithm
    objective.py    the one composition of the parts, for every preset
    advantages.py   rewards of a batch -> advantages            losses.py       log-probs, advantages -> token losses
    returns.py      rewards and values -> advantages by token   value.py        the critic's loss
    kl.py           distance to the reference                   corrections.py  sampler against learner: weights
    aggregate.py    token losses -> one number                  filters.py      who is trained on
    reduce.py       metrics over micro-batches and ranks        ratios.py       probability ratios that cannot overflow

Shapes in names: B rollouts, T completion tokens. Three rules hold everywhere:

1. A mask selects (`torch.where`) and never multiplies, and it selects before `exp`: 0 * inf is NaN.
2. Functions return sums, or divide by counts handed to them, so that no micro-batch or rank split changes the result.
3. Losses are to be minimised; metrics are `Mean(total, count)`, never quotients.
"""

from postrl.algorithms.presets import PRESETS, Preset, register

__all__ = ["PRESETS", "Preset", "register"]
