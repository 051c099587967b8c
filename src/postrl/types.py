"""The data that travels through the loop.

    prompt -> Rollout (one completion) -> Group (the rollouts of one prompt) -> Batch (what one step trains on)

A worked example, one prompt with two completions under weight version 3:

    Group(
        prompt_id="arithmetic:17",
        messages=[{"role": "user", "content": "What is 3 + 4? Answer with just the number."}],
        columns={"answer": "7"},
        rollouts=[
            Rollout(prompt_id="arithmetic:17", sample_index=0, prompt_ids=[1, 9, 2], completion_ids=[39, 2],
                    logps=[-0.1, -0.2], loss_mask=[1, 1], segments=[Segment("policy", 0, 2)],
                    version_spans=[VersionSpan(3, 0, 2)], finish_reason="stop", completion="7",
                    rewards={"arithmetic": 1.0}, statuses={"arithmetic": "correct"}, reward=1.0),
            Rollout(..., sample_index=1, completion="8", rewards={"arithmetic": 0.0}, reward=0.0),
        ],
    )

Shapes in names: B rollouts, T tokens of the longest completion, G groups, V vocabulary.
torch is imported for type checkers only: the launcher and the command line use these types without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    import torch

FinishReason = Literal["stop", "length", "abort"]
Messages = list[dict[str, Any]]

Kind = Literal["text", "int", "real", "flag", "tokens", "logps", "mask", "spans", "support", "by_name"]
"""What a field of a rollout holds. `run.messages` and `rollout.store` have a row for each kind, and list no field."""


def _is(kind: Kind, item: type | None = None) -> dict[str, Any]:
    """Metadata of a field. spans: `item` is what it is a list of. by_name: a value for each name, some of them None."""
    return {"kind": kind, "item": item}


NO_VERDICT = frozenset({"scored", "none", "infra_error", "gold_unscorable"})
"""Statuses of a score that say nothing about whether a completion is right; likewise any without a value."""
GREEDY = -1
"""Place in its group of the greedy completion, which is not one of its rollouts."""


class Mean(NamedTuple):
    """A metric that is an average, until it is reported: total and count are added up over micro-batches, ranks and calls
    and divided once, so that it is never a mean of means. In messages it is a list of the two."""

    total: float | torch.Tensor = 0.0
    """A tensor of the device while an update runs: no micro-batch waits for it."""
    count: float | torch.Tensor = 0.0  # type: ignore[assignment]

    @classmethod
    def of(cls, values: Iterable[float]) -> Mean:
        numbers = [float(value) for value in values]
        return cls(sum(numbers), float(len(numbers)))

    def __add__(self, more: tuple[float | torch.Tensor, float | torch.Tensor]) -> Mean:  # type: ignore[override]
        return Mean(self.total + more[0], self.count + more[1])

    @property
    def value(self) -> float | None:
        """None: nothing was counted."""
        return float(self.total) / float(self.count) if float(self.count) else None


Means = dict[str, Mean]
Metrics = dict[str, Mean | float]
"""By name: `postrl.run.metrics.METRICS` lists them."""


def reported(metrics: Mapping[str, Mean | float]) -> dict[str, float]:
    """Metrics as numbers; a mean for which nothing was counted is left out."""
    values = {name: metric.value if isinstance(metric, Mean) else metric for name, metric in metrics.items()}
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of completion tokens [start, end) with one author."""

    source: str
    """Who wrote it: "policy" (trained on) or what fed it to the policy, such as "tool" (loss mask 0)."""
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Completion tokens [start, end) were sampled under the weights of `version`."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a sampler wrote for one request, or a part of it; see `Rollout` for the fields. Empty: nothing."""

    completion_ids: list[int] = field(default_factory=list)
    """End-of-turn token or stop text included."""
    logps: list[float] = field(default_factory=list)
    version_spans: list[VersionSpan] = field(default_factory=list)
    finish_reason: FinishReason = "abort"
    """"abort": it was interrupted, or given up."""
    support: list[list[int]] | None = None

    def then(self, part: Sampled) -> Sampled:
        """With the part that was written after it, by a server that was sent what there was."""
        n, spans = len(self.completion_ids), list(self.version_spans)
        for span in part.version_spans:
            start = spans.pop().start if spans and spans[-1].version == span.version else n + span.start
            spans.append(VersionSpan(span.version, start, n + span.end))
        return Sampled(self.completion_ids + part.completion_ids, self.logps + part.logps, spans, part.finish_reason)


@dataclass(slots=True)
class Rollout:
    """One completion of one prompt, with everything needed to score, train on, store and replay it."""

    prompt_id: str = field(metadata=_is("text"))
    """Names the row of the data set: `<data set>:<row>`."""
    sample_index: int = field(metadata=_is("int"))
    """Place in its group, 0 .. num_generations - 1, part of the seed; GREEDY (-1): the prompt's greedy completion."""
    prompt_ids: list[int] = field(metadata=_is("tokens"))
    """Prompt tokens as the sampler saw them, chat template applied."""
    completion_ids: list[int] = field(metadata=_is("tokens"))
    """Completion tokens as the sampler produced them, end-of-turn token included. Never re-tokenised."""
    logps: list[float] = field(metadata=_is("logps"))
    """Log-probabilities of the completion tokens under the distribution they were sampled from (temperature
    applied). NaN: the sampler gave none."""
    version_spans: list[VersionSpan] = field(metadata=_is("spans", VersionSpan))
    """Which weights produced which tokens; contiguous, in order, covering the completion."""
    finish_reason: FinishReason = field(metadata=_is("text"))
    """"stop": the policy ended it; "length": cut at the token limit; "abort": cancelled."""
    loss_mask: list[int] = field(default_factory=list, metadata=_is("mask"))
    """1: written by the policy, trained on; 0: fed to it."""
    segments: list[Segment] = field(default_factory=list, metadata=_is("spans", Segment))
    """The same by author; one "policy" segment unless tools or environments speak."""
    completion: str = field(default="", metadata=_is("text"))
    """The completion decoded, special tokens removed: what rewards read."""
    rewards: dict[str, float | None] = field(default_factory=dict, metadata=_is("by_name"))
    """Score of each reward function. None: unscorable, left out of the group's statistics."""
    statuses: dict[str, str] = field(default_factory=dict, metadata=_is("by_name"))
    """How each score came about: correct, wrong, no_answer, scored, timeout, infra_error, ..."""
    reward: float | None = field(default=None, metadata=_is("real"))
    """Weighted sum of `rewards`; None when no function could score it, or one of them failed."""
    correct: bool | None = field(default=None, metadata=_is("flag"))
    """Whether it is right: all the reward functions of the task that give verdicts say so. None: none of them does."""
    extra: dict[str, Any] = field(default_factory=dict, metadata=_is("by_name"))
    """What reward functions gave to `log_extra` for it, by column; JSON values."""
    advantage: float = field(default=0.0, metadata=_is("real"))
    """Filled by the learner."""
    staleness: int = field(default=0, metadata=_is("int"))
    """Learner's version when the phase that trains it starts, minus `oldest_version`."""
    dropped: str | None = field(default=None, metadata=_is("text"))
    """Why it is not trained on; None when it is."""
    support: list[list[int]] | None = field(default=None, metadata=_is("support"))
    """The tokens that each of its tokens was drawn from, where sampling left some out (top-p, top-k): the learner's
    log-probs are those of the same distribution. None: the whole vocabulary."""

    def __post_init__(self) -> None:
        n = len(self.completion_ids)
        if not self.loss_mask:
            self.loss_mask = [1] * n
        if not self.segments:
            self.segments = [Segment("policy", 0, n)]

    def verdict(self, names: Iterable[str]) -> bool | None:
        """Whether all the reward functions of these names that give verdicts say that it is right; None: none does."""
        said = [self.statuses[name] for name in names if name in self.statuses and self.rewards.get(name) is not None]
        verdicts = [status == "correct" for status in said if status not in NO_VERDICT]
        return all(verdicts) if verdicts else None

    @property
    def oldest_version(self) -> int:
        return min((span.version for span in self.version_spans), default=0)

    @property
    def newest_version(self) -> int:
        return max((span.version for span in self.version_spans), default=0)


@dataclass(slots=True)
class Prompt:
    """One usable row of a data set."""

    prompt_id: str
    messages: Messages | None
    """Conversational prompts: the messages; None for a plain one."""
    text: str
    """The prompt as the model reads it: the chat template applied, or the plain text."""
    token_ids: list[int]
    columns: dict[str, Any] = field(default_factory=dict)
    """Every other column of the row, handed to reward functions by name."""
    rewards: tuple[str, ...] = ()
    """Names of the reward functions that score this row; empty: all of the run's."""


@dataclass(slots=True)
class Group:
    """The rollouts of one prompt: what a baseline compares."""

    prompt_id: str
    group_id: int
    """Unique in the run: the same prompt in a later epoch is another group."""
    prompt: str
    messages: Messages | None
    columns: dict[str, Any]
    rollouts: list[Rollout]
    rewards: tuple[str, ...] = ()
    """Names of the reward functions that score it; empty: all of the run's."""
    reward_versions: dict[str, str] = field(default_factory=dict)
    """Version of each function that scored it, such as "math 1, postrl 0.1.0"."""
    greedy: Rollout | None = None
    """The prompt's greedy completion, for algorithms that need it as a baseline; scored alone, never trained on."""

    @property
    def completions(self) -> list[Rollout]:
        """The rollouts, and the greedy completion after them."""
        return self.rollouts if self.greedy is None else [*self.rollouts, self.greedy]


def greedy_groups(groups: Iterable[Group]) -> list[Group]:
    """The greedy completions, each as a group of its own for what scores groups: rewards that compare the completions of
    a prompt are not to see it beside the others."""
    return [replace(group, rollouts=[group.greedy], greedy=None) for group in groups if group.greedy is not None]


@dataclass(slots=True)
class Batch:
    """What one step trains on, as tensors. Row b is `rollouts[b]`; columns are completion tokens, right-padded."""

    rollouts: list[Rollout]
    group_B: torch.Tensor
    """int64 [B]: group id carried with the rollout, never inferred from position."""
    rewards_B: torch.Tensor
    """float64 [B]: NaN where unscorable."""
    mask_BT: torch.Tensor
    """bool [B, T]: trainable tokens."""
    behav_BT: torch.Tensor
    """float32 [B, T]: the sampler's log-probs; NaN where missing."""
    version: int
    """Weight version the learner holds when the phase that trains this batch starts."""
    prox_BT: torch.Tensor | None = None
    """float32 [B, T]: log-probs at the start of the phase; None: one update, so they are the live ones, detached."""
    ref_BT: torch.Tensor | None = None
    """float32 [B, T]: log-probs of the reference; None when beta is 0."""
    values_BT: torch.Tensor | None = None
    """float32 [B, T]: what the critic expects at each completion token when the phase starts; None without a critic."""
    end_B: torch.Tensor | None = None
    """float32 [B]: what it expects after the last token of completions that were cut at the token limit, 0 for the others;
    None where no algorithm asks."""
    parts_BF: torch.Tensor | None = None
    """float64 [B, F]: the scores of each of the run's F reward functions, NaN where there is none."""
    greedy_B: torch.Tensor | None = None
    """float64 [B]: reward of the greedy completion of the same prompt; NaN where it was not scored. None: none was sampled."""
    correct_B: torch.Tensor | None = None
    """bool [B]: a verifier said that the completion is right."""
    kl_BT: torch.Tensor | None = None
    """float32 [B, T]: what is taken off the reward of each token for its distance to the reference, beta included."""
    advantages: torch.Tensor | None = None
    """float32 [B], broadcast over the tokens, or [B, T]."""
    returns_BT: torch.Tensor | None = None
    """float32 [B, T]: what the critic is to predict."""
    metrics: Means = field(default_factory=dict)
    """Gathered on the way."""

    def __len__(self) -> int:
        return len(self.rollouts)

    def rows(self, indices: list[int]) -> Batch:
        """The sub-batch of these rows, cut to its own longest completion."""
        width = max((len(self.rollouts[i].completion_ids) for i in indices), default=0)

        def take(name: str, x: torch.Tensor) -> torch.Tensor:
            by_token = name.endswith("_BT") or (name == "advantages" and x.dim() == 2)
            return x[indices, :width] if by_token else x[indices]

        tensors: dict[str, Any] = {name: take(name, x) for name in TENSORS if (x := getattr(self, name)) is not None}
        return replace(self, rollouts=[self.rollouts[i] for i in indices], metrics={}, **tensors)


TENSORS = tuple(f.name for f in fields(Batch) if "Tensor" in str(f.type))
"""The fields of a batch that have a row for each rollout."""
