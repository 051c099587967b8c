"""The mathematics: pure functions on tensors. Nothing here knows processes, ranks, models or configuration files.

    presets.py      an algorithm is a row of a table that names its parts; `resolve` applies the user's settings
    objective.py    the one composition of the parts, for every preset
    advantages.py   rewards of a batch -> advantages            losses.py       log-probs, advantages -> token losses
    kl.py           distance to the reference                   corrections.py  sampler against learner: weights
    aggregate.py    token losses -> one number                  filters.py      who is trained on
    reduce.py       (sum, count) metrics -> values              ratios.py       probability ratios that cannot overflow

Shapes in names: B rollouts, T completion tokens. Three rules hold everywhere:

1. A mask selects (`torch.where`) and never multiplies, and it selects before `exp`: 0 * inf is NaN.
2. Functions return sums, or divide by counts handed to them, so that no micro-batch or rank split changes the result.
3. Losses are to be minimised; metrics are (sum, count) pairs, never means.
"""
