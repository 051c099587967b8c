"""What a simulation assumes: lengths, speeds, durations. Each value knows where it comes from.

Without better knowledge, speeds follow from the model's size P and the machine (`GPU`, `CPU`):

    decode step of n sequences   overhead + 2 P bytes / bandwidth + n 2 P / flops      (weights in 16 bits; roofline)
    prompt token                 2 P / flops
    update, a token              8 P / flops of training                               (backward with recomputation)
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from statistics import NormalDist
from typing import Any

from postrl.config import GRPOConfig
from postrl.errors import UsageError
from postrl.models.weights import parameter_count

DEFAULT_SLOTS = 256
"""vLLM's max_num_seqs on GPUs of up to 80 GB."""
DEFAULT_SIZE = 7e9
"""Parameters of a model whose size is not known."""
ADAPTER_PUSH = 0.5
"""Seconds of the push of a LoRA adapter, the canary with it."""
GUESS = "a guess"
NAMES = ("from", "gpus")
"""What `simulation_arg` takes beside the assumptions: a finished run, and the GPUs of the machine."""


@dataclass(frozen=True)
class Machine:
    """What one device does in a second, as far as a run gets it."""

    name: str
    bandwidth: float
    """Bytes of memory."""
    flops: float
    """Of generation."""
    train_flops: float
    overhead: float
    """Seconds of a decode step that have nothing to do with the model."""
    push: float
    """Bytes of new weights."""


GPU = Machine("H100s", 2e12, 4e14, 3.5e14, 0.003, 1e10)
"""From its data sheet: 60 % of 3.35 TB/s; 40 % and 35 % of 989 dense bf16 TFLOP/s. Not measured."""
CPU = Machine("a CPU core", 8e9, 7.2e10, 9.7e10, 0.0, 2e8)
"""As measured with smollm2-135m: 233 tokens/s of 64 sequences (vLLM 0.32), updates of 90 tokens/s, pushes of 1.4 s."""


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a server is, in seconds."""

    base: float
    """Of a decode step, however few sequences it has."""
    per_sequence: float = 0.0
    """More, for each sequence."""
    prefill: float = 0.0
    """Of one prompt token, and of one kept token whose keys and values are computed anew."""

    @classmethod
    def of(cls, lone: float, full: float, slots: int, prefill: float = math.inf) -> Speed:
        """From tokens a second: of a lone sequence, of `slots` sequences together, and of prompts.

        Raises:
            ValueError: `full` is not between `lone` and slots * lone: no curve of this kind has both.
        """
        if not lone <= full <= slots * lone:
            raise ValueError(f"{full:g} tokens/s of {slots} sequences, and {lone:g} tokens/s of one")
        if slots == 1:
            return cls(1 / lone, 0.0, 1 / prefill)
        per_sequence = (slots / full - 1 / lone) / (slots - 1)
        return cls(1 / lone - per_sequence, per_sequence, 1 / prefill)

    def step(self, running: int) -> float:
        """Seconds of one decode step."""
        return self.base + self.per_sequence * running


@dataclass(frozen=True)
class Lengths:
    """A distribution of lengths: `quantiles` evenly spaced from the shortest to the longest, or a lognormal.

    Args:
        mean: of the lognormal, before anything is cut.
        sigma: standard deviation of the logarithm; 0: all are `mean` long.
        quantiles: in place of it; two or more, such as the sorted lengths of a run.
        endless: share of completions, beside these, that never end by themselves.
    """

    mean: float = 0.0
    sigma: float = 0.0
    quantiles: tuple[float, ...] = ()
    endless: float = 0.0

    def draw(self, seed: object) -> float:
        """One length, at least 1; the same for the same seed."""
        rng = random.Random(str(seed))
        if rng.random() < self.endless:
            return math.inf
        u = rng.random()
        if self.quantiles:
            place = u * (len(self.quantiles) - 1)
            low = int(place)
            high = min(low + 1, len(self.quantiles) - 1)
            length = self.quantiles[low] + (place - low) * (self.quantiles[high] - self.quantiles[low])
        elif self.sigma:
            length = self.mean * math.exp(self.sigma * NormalDist().inv_cdf(max(u, 1e-12)) - self.sigma**2 / 2)
        else:
            length = self.mean
        return max(1.0, length)


def assumption(help: str, default: Any = None, low: float = 0.0, high: float = math.inf) -> Any:
    return field(default=default, metadata={"help": help, "low": low, "high": high})


@dataclass(frozen=True)
class Assumptions:
    """Numbers that a simulation takes for granted. Seconds and tokens; a rank is one trainer rank."""

    length_mean: float = assumption("mean tokens of a completion, before max_completion_length cuts it", 256.0, 1)
    length_sigma: float = assumption("spread of the lengths: sigma of their lognormal; 0: all alike", 0.6, 0, 5)
    length_quantiles: tuple[float, ...] = assumption(
        "lengths at evenly spaced quantiles, such as 20:100:400, in place of the two", ()
    )
    endless: float = assumption("share of completions, beside those, that never end by themselves", 0.0, 0, 1)
    prompt_tokens: float = assumption("tokens of a prompt", 256.0, 1)
    slots: float = assumption("sequences that a server runs at once (vLLM: max_num_seqs)", float(DEFAULT_SLOTS), 1)
    lone_tokens_per_s: float = assumption("completion tokens a second of a server that runs one sequence", 100.0, 1e-9)
    full_tokens_per_s: float = assumption("the same with all slots taken", 5000.0, 1e-9)
    prefill_tokens_per_s: float = assumption("prompt tokens a second of a server", 20000.0, 1e-9)
    train_tokens_per_s: float = assumption(
        "prompt and completion tokens a second of one rank's update, one pass", 5000.0, 1e-9
    )
    rank_efficiency: float = assumption("what each further rank adds, as a share of the first", 0.9, 0, 1)
    push_seconds: float = assumption("seconds of a push of weights", 2.0)
    reward_seconds: float = assumption("seconds until a group is scored", 0.0)
    other_seconds: float = assumption("seconds of a step for everything else, such as checkpoints", 0.0)
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where each value comes from."""

    def having(self, values: Mapping[str, Any], source: str) -> Assumptions:
        """With these values, which come from `source`."""
        return replace(self, **values, sources={**self.sources, **dict.fromkeys(values, source)})

    def lengths(self) -> Lengths:
        return Lengths(self.length_mean, self.length_sigma, self.length_quantiles, self.endless)

    def speed(self) -> Speed:
        """Of a server.

        Raises:
            UsageError: the two speeds of a server contradict each other.
        """
        try:
            return Speed.of(self.lone_tokens_per_s, self.full_tokens_per_s, int(self.slots), self.prefill_tokens_per_s)
        except ValueError as error:
            raise UsageError(
                f"full_tokens_per_s = {self.full_tokens_per_s:g} and lone_tokens_per_s = {self.lone_tokens_per_s:g} do not fit "
                f"slots = {self.slots:g}: together, sequences are faster than one, and at most slots times as fast",
                hint=f"set full_tokens_per_s between {self.lone_tokens_per_s:g} and {self.slots * self.lone_tokens_per_s:g}",
            ) from error

    def train_speed(self, ranks: int) -> float:
        """Tokens a second of an update on `ranks` ranks."""
        return self.train_tokens_per_s * (1 + self.rank_efficiency * (ranks - 1))


ASSUMPTIONS = {f.name: f for f in fields(Assumptions) if f.metadata}


def guessed(config: GRPOConfig, machine: Machine) -> Assumptions:
    """What can be known from the settings and the size of the model; the rest is a guess that says so."""
    size = model_size(config.model)
    known = f"{(size or DEFAULT_SIZE) / 1e9:.3g}B parameters" + ("" if size else " (unknown)")
    size = size or DEFAULT_SIZE
    slots = float(next(reversed([a.partition("=")[2] for a in config.vllm_arg if _is_slots(a)]), DEFAULT_SLOTS))
    devices = config.tensor_parallel_size
    base = machine.overhead + 2 * size / machine.bandwidth / devices
    each = 2 * size / machine.flops / devices
    push = ADAPTER_PUSH if sends_adapters(config) else 2 * size / machine.push
    guess = Assumptions().having(
        {"length_mean": config.max_completion_length / 2, "prompt_tokens": min(256.0, config.max_prompt_length)}, GUESS
    )
    guess = guess.having({"slots": slots}, "max-num-seqs of vllm_arg" if slots != DEFAULT_SLOTS else "vLLM's default")
    return guess.having(
        {
            "lone_tokens_per_s": 1 / (base + each),
            "full_tokens_per_s": slots / (base + slots * each),
            "prefill_tokens_per_s": 1 / each,
            "train_tokens_per_s": machine.train_flops / (8 * size),
            "push_seconds": push,
        },
        f"{GUESS} for {known} on {machine.name}",
    )


def sends_adapters(config: GRPOConfig) -> bool:
    """Whether a push is a LoRA adapter, which interrupts no server."""
    return config.lora_rank > 0 and config.weight_sync in ("auto", "lora")


def _is_slots(arg: str) -> bool:
    return arg.partition("=")[0].replace("_", "-").lstrip("-") == "max-num-seqs"


def model_size(model: str) -> float | None:
    """Parameters by a local folder's weights, else by a name such as Qwen2.5-7B."""
    if count := parameter_count(model):
        return float(count)
    if match := re.search(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)([BbMm])(?![A-Za-z])", model):
        return float(match[1]) * (1e9 if match[2] in "Bb" else 1e6)
    return None


def given(args: Mapping[str, str]) -> dict[str, Any]:
    """The assumptions among the settings `simulation_arg`, as numbers.

    Raises:
        UsageError: an unknown name, or a value out of its range.
    """
    values: dict[str, Any] = {}
    for name, text in args.items():
        if name in NAMES:
            continue
        if name not in ASSUMPTIONS:
            raise UsageError(f"simulation_arg names {name!r}", hint=f"choose among {', '.join([*NAMES, *ASSUMPTIONS])}")
        values[name] = _number(name, text)
    return values


def _number(name: str, text: str) -> Any:
    low, high = ASSUMPTIONS[name].metadata["low"], ASSUMPTIONS[name].metadata["high"]
    inside: Callable[[float], bool] = lambda x: low <= x <= high and x < math.inf  # noqa: E731
    try:
        numbers = tuple(float(part) for part in text.split(":"))
    except ValueError:
        numbers = (math.nan,)
    if name == "length_quantiles":
        if len(numbers) >= 2 and list(numbers) == sorted(numbers) and numbers[0] >= 1:
            return numbers
        raise UsageError(f"length_quantiles is {text!r}", hint="write two or more rising lengths, such as 20:100:400")
    if len(numbers) != 1 or not inside(numbers[0]):
        allowed = f"from {low:g} to {high:g}" if high < math.inf else f"{low:g} or more"
        raise UsageError(f"{name} is {text!r}, expected a number {allowed}", hint=ASSUMPTIONS[name].metadata["help"])
    return numbers[0]


def parse(args: list[str]) -> dict[str, str]:
    """`simulation_arg` as name -> text; names with dashes or underscores."""
    pairs = (arg.partition("=") for arg in args)
    return {name.strip().lstrip("-").replace("-", "_"): value.strip() for name, _, value in pairs}
