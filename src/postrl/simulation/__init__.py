"""A run without a model: the real rollout worker over a simulated sampler, rewards and learner, in virtual time.

assumptions.py   what is assumed of lengths and speeds, and where each value comes from
calibrate.py     the same, measured in a finished run
loop.py          the loop, and what it reports
divisions.py     a number of GPUs, divided between servers and trainer ranks
engine.py        `postrl grpo --engine simulated`
"""
