"""A reward model: a sequence-classification model with one label, whose raw logit is the reward.

    postrl grpo --reward reward_model:org/model                                  in this reward's process, on the CPU
    postrl serve --reward-model org/model --vllm-arg port=8100                   or served by vLLM ...
    postrl grpo --reward reward_model:org/model --reward-arg reward_model.url=http://127.0.0.1:8100

Both ways the text is made, tokenised and cut here, by the reward model's own tokenizer and chat template, and both give
the same number: the served one is asked with token ids and without vLLM's activation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from postrl.errors import RewardError, UsageError
from postrl.host.text import read_text
from postrl.rewards.builtin import BUILTINS, cores
from postrl.rewards.endpoint import Endpoint, Refused, key_from
from postrl.rewards.score import Score
from postrl.rewards.text import broken_up, only, strip_end_of_turn, text_of
from postrl.rows.tokens import encode_whole, special_texts

VERSION = "reward_model 2"
CLASSIFY = "/classify"


def model_reward(
    prompts: list[Any],
    completions: list[Any],
    log_metric: Callable[..., None] | None = None,
    *,
    model: str,
    url: str = "",
    tokenizer: str = "",
    chat_template: str = "",
    max_length: int | None = None,
    batch_size: int = 8,
    api_key_env: str = "",
    timeout: float = 10.0,
) -> Awaitable[list[Score]] | list[Score]:
    """The raw logit that a reward model gives prompt and completion.

    A conversational prompt and its completion are messages that the reward model's chat template formats; of plain ones
    the text is prompt + completion, with the special tokens that its tokenizer adds, those before the text once. The logit has no bounds; groups are
    normalised all the same, and `--reward-weights` scales it beside other rewards.

    With no completions the model is loaded, or its server asked whether it is one, and there is nothing to await.

    Args:
        model: hub id or folder of a model with one label (`...ForSequenceClassification`, num_labels 1). With `url` only
            its config and tokenizer are read.
        url: of a server with this model (`postrl serve --reward-model`); default: in this process, float32, on half
            of the cores.
        tokenizer: hub id or folder of the tokenizer; default: the model's own.
        chat_template: Jinja file in place of the tokenizer's own template.
        max_length: tokens; of a longer text the beginning is left out (not its first special token), because the reward
            is read at the end. Default: what the model, and its server, can take.
        batch_size: texts at once in this process. A server chooses itself.
        api_key_env: environment variable with the token of the server; default: none is sent.
        timeout: seconds that the server may take for each completion of a prompt; it is asked twice more after that.

    Statuses: scored.
    Metrics: truncated, the share of texts that were cut.

    Raises:
        UsageError: an option that cannot be; no such model, or none with one label; no such server.
        RewardError: the server did not give scores.
    """
    texts = _texts(model, tokenizer or model, chat_template)
    key = key_from(api_key_env, "reward_model.api_key_env")
    server = Endpoint(url.rstrip("/"), key, timeout) if url else None
    if server and server.longest > (allowed := BUILTINS["reward_model"].seconds):
        raise UsageError(
            f"reward_model: with timeout = {timeout:g} a completion may take {server.longest:g} s; at most {allowed:g} s are "
            "allowed",
            hint="lower it with --reward-arg reward_model.timeout=...",
        )
    if batch_size < 1:
        raise UsageError(f"reward_model: batch_size = {batch_size}", hint="1 or more")
    longest = texts.limit(max_length, _served_length(server) if server else None)
    if server is None:
        _weights(model)
    if not completions:
        return []
    whole = [texts.ids(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]
    if log_metric:
        log_metric("truncated", sum(len(ids) > longest for ids in whole) / len(whole))
    cut = [texts.cut(ids, longest) for ids in whole]
    return _scores_of(server, cut) if server else _as_scores(_logits(_weights(model), cut, batch_size))


def _as_scores(logits: Sequence[float]) -> list[Score]:
    return [Score(logit, "scored") for logit in logits]


# -- text --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Texts:
    """Prompt and completion as the tokens that a reward model reads."""

    tokenizer: Any
    context: int | None
    """Tokens that the model can take; None: it does not say."""
    pad_token_id: int | None
    """As the model's config has it."""
    special: tuple[str, ...]
    """The texts that its tokenizer reads as one special token each."""

    def ids(self, prompt: Any, completion: Any) -> list[int]:
        """The tokens of the whole text, up to the one at which the reward is read.

        transformers reads it at the last token that is no padding, also where a template ends a turn with that token;
        vLLM reads it at the last one. Without the padding at the end both are the same.

        Raises:
            UsageError: a conversational prompt, and there is no chat template.
        """
        special = only(self.special)
        said = broken_up(strip_end_of_turn(text_of(completion)), special)
        if isinstance(prompt, str):
            ids = encode_whole(self.tokenizer, prompt + said)
        else:
            asked = [
                {**message, "content": broken_up(text, special)}
                if isinstance(text := message["content"], str)
                else message
                for message in prompt
            ]
            messages = [*asked, {"role": "assistant", "content": said}]
            text = self._template()(messages, tokenize=False)
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]  # the template has written them
        end = len(ids)
        while end > 1 and ids[end - 1] == self.pad_token_id:
            end -= 1
        if not end:
            raise RewardError("the reward model got a text without a token", hint="prompt and completion are empty")
        return list(ids[:end])

    def cut(self, ids: list[int], longest: int) -> list[int]:
        """The last `longest` tokens; the first of them is the one that begins every text, where the tokenizer has one."""
        if len(ids) <= longest:
            return ids
        begins = ids[0] in (self.tokenizer.bos_token_id, self.tokenizer.cls_token_id)
        return [*ids[:begins], *ids[len(ids) - longest + begins :]]

    def limit(self, asked: int | None, served: int | None) -> int:
        """Tokens of the longest text: what was asked for, else what the model and its server can take.

        Raises:
            UsageError: more than they can take, or less than two.
        """
        able = min((length for length in (self.context, served) if length), default=None)
        if asked is None:
            return able or 1 << 30
        if asked < 2 or (able is not None and asked > able):
            who = "the server" if able == served else "the model"
            most = f"; {who} can take {able} tokens" if able else ""
            raise UsageError(
                f"reward_model: max_length = {asked}{most}", hint="2 tokens or more, and no more than it can take"
            )
        return asked

    def _template(self) -> Callable[..., str]:
        if not self.tokenizer.chat_template:
            raise UsageError(
                "the prompts are conversations, and the tokenizer of the reward model has no chat template",
                hint="give one with --reward-arg reward_model.chat_template=FILE.jinja",
            )
        template: Callable[..., str] = self.tokenizer.apply_chat_template
        return template


@cache
def _texts(model: str, name: str, chat_template: str) -> Texts:
    """The tokenizer `name` of a reward model, and what its config says.

    Raises:
        UsageError: there is no such model, it does not have one label, or the template cannot be read.
    """
    from transformers import AutoConfig, AutoTokenizer

    try:
        config = AutoConfig.from_pretrained(_place(model))
        tokenizer = AutoTokenizer.from_pretrained(_place(name))
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise UsageError(
            f"the reward model {model} cannot be read: {type(error).__name__}: {first}",
            hint="give a folder with config.json and a tokenizer, or a hub id",
        ) from None
    _check_kind(model, config)
    if chat_template:
        tokenizer.chat_template = read_text(chat_template, "reward_model's chat template", "give a Jinja file")
    inner = config.get_text_config()
    lengths = (getattr(inner, "max_position_embeddings", None), tokenizer.model_max_length)
    known = [int(length) for length in lengths if length and length < 1 << 30]  # 1e30: the tokenizer does not say
    return Texts(tokenizer, min(known, default=None), inner.pad_token_id, special_texts(tokenizer))


def _check_kind(model: str, config: Any) -> None:
    kinds = getattr(config, "architectures", None) or ["a model of no architecture"]
    if not kinds[0].endswith("ForSequenceClassification"):
        raise UsageError(
            f"{model} is {kinds[0]}, expected a model for sequence classification",
            hint="a reward model is saved by AutoModelForSequenceClassification, with num_labels = 1",
        )
    if config.num_labels != 1:
        raise UsageError(
            f"{model} has {config.num_labels} labels, expected 1: the reward is one logit",
            hint="for a classifier, write a reward function that says what its labels are worth",
        )


def _place(model: str) -> str:
    """A hub id, or a folder."""
    folder = Path(model).expanduser()
    return str(folder) if folder.exists() else model


# -- in this process ---------------------------------------------------------------------------------------------------


@cache
def _weights(model: str) -> Any:
    """The model itself, in float32 on the CPU.

    Raises:
        UsageError: its weights cannot be read, or have no head, which would be a random one.
    """
    import torch
    from transformers import AutoModelForSequenceClassification

    torch.set_num_threads(max(1, cores() // 2))  # samplers and other rewards work at the same time
    try:
        found, report = AutoModelForSequenceClassification.from_pretrained(
            _place(model), dtype=torch.float32, output_loading_info=True
        )
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise UsageError(
            f"the weights of the reward model {model} cannot be loaded: {type(error).__name__}: {first}",
            hint="does transformers load it? AutoModelForSequenceClassification.from_pretrained(...)",
        ) from None
    if missing := sorted(report["missing_keys"]):
        raise UsageError(
            f"the weights of the reward model {model} lack {', '.join(missing[:3])}: it would score at random",
            hint="was it trained and saved as a model for sequence classification?",
        )
    return found.eval()


def _logits(model: Any, texts: Sequence[list[int]], batch_size: int) -> list[float]:
    """The logit of each text. Texts of about the same length are read together."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    found: dict[int, float] = {}
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        found.update(zip(chosen, _read_batch(model, [texts[i] for i in chosen])))
    return [found[i] for i in range(len(texts))]


def _read_batch(model: Any, batch: Sequence[list[int]]) -> list[float]:
    import torch

    # transformers finds the end of a text by the padding's id, so it has to be one that no text ends with.
    ends = {ids[-1] for ids in batch}
    padding = next(token for token in range(len(ends) + 1) if token not in ends)
    model.config.get_text_config().pad_token_id = padding
    longest = max(map(len, batch))
    with torch.inference_mode():
        ids = torch.tensor([[*text, *[padding] * (longest - len(text))] for text in batch])
        mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in batch])
        logits: list[float] = model(input_ids=ids, attention_mask=mask).logits[:, 0].float().tolist()
    return logits


# -- served ------------------------------------------------------------------------------------------------------------


async def _scores_of(server: Endpoint, texts: Sequence[list[int]]) -> list[Score]:
    """What a server says to one request with all texts.

    Raises:
        RewardError: it did not say it in the time that the call has.
    """
    seconds = BUILTINS["reward_model"].seconds * len(texts)
    patient = replace(server, timeout=server.timeout * len(texts))
    try:
        async with asyncio.timeout(seconds), patient.client() as client:
            return _as_scores(
                await patient.ask(client, CLASSIFY, lambda: _request(texts), lambda r: _read(r, len(texts)))
            )
    except TimeoutError:
        raise RewardError(f"{server.url}{CLASSIFY}: no scores of {len(texts)} texts within {seconds:g} s") from None


def _request(texts: Sequence[list[int]]) -> dict[str, Any]:
    return {"input": list(texts), "use_activation": False}  # the logit itself, not its sigmoid


def _read(reply: Any, count: int) -> list[float]:
    """The logits of an answer to /classify.

    Raises:
        ValueError: not one number for each text.
    """
    rows = sorted(reply["data"], key=lambda row: row["index"])
    if [row["index"] for row in rows] != list(range(count)) or any(len(row["probs"]) != 1 for row in rows):
        raise ValueError(f"{len(rows)} scores of {len(rows[0]['probs']) if rows else 0} labels for {count} texts")
    return [float(row["probs"][0]) for row in rows]


@cache
def _served_length(server: Endpoint) -> int | None:
    """Tokens that a server can take, after it has shown that it gives one logit.

    Raises:
        UsageError: it does not answer, or is not the server of a reward model.
    """

    async def ask() -> int | None:
        async with server.client() as client:
            cards = await server.ask(client, "/v1/models", lambda: None, lambda reply: list(reply["data"]))
            await server.ask(client, CLASSIFY, lambda: _request([[1]]), lambda reply: _read(reply, 1))
            return next((int(card["max_model_len"]) for card in cards if card.get("max_model_len")), None)

    start = "start it with postrl serve --reward-model MODEL"
    try:
        return asyncio.run(ask())
    except Refused as error:
        raise UsageError(
            f"{server.url} is not the server of a reward model: {error.message}",
            hint=f"{start}; one with a token wants reward_model.api_key_env",
        ) from None
    except RewardError as error:
        raise UsageError(f"the server of the reward model cannot be used: {error.message}", hint=start) from None
