"""What ends the policy's turn in a conversation, read off what the chat template writes behind an assistant message.

Settings of eos tokens do not tell: those of a base model name the end of a text, and its template ends turns with a token
of its own. A policy that ends its turn there and is made to go on invents the next turns.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from postrl.rollout.sampler import Sampling
from postrl.types import Messages, Prompt

REPLY, NEXT, ANSWER = "zqreplyzq", "zqnextzq", "zqanswerzq"
"""Words that no template contains: what an assistant says, what the user says next, and what a tool answers."""
CLOSING_TAG = re.compile(r"</[\w:-]+>")
"""Ends something within a message, such as a tool call, unless it is a special token."""


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """What ends a completion of a conversation, beside the eos tokens."""

    tokens: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    """Where the template marks the end with no token of its own. Not part of what the policy said."""
    opening: str = ""
    """What the template writes before a completion."""
    unmistakable: bool = True
    """Whether `opening` has a control token: then a text prompt that holds it is a rendered conversation; else one that ends
    with it."""
    eos: tuple[int, ...] = ()
    """The tokens that end any completion, by the settings of model and tokenizer."""

    def covers(self, prompt: Prompt) -> bool:
        """Whether the completions of a prompt are turns of a conversation."""
        if prompt.messages is not None or not self.opening:
            return prompt.messages is not None
        return self.opening in prompt.text if self.unmistakable else prompt.text.rstrip().endswith(self.opening)

    def sampling(self, sampling: Sampling, prompt: Prompt) -> Sampling:
        """The same for this prompt."""
        if not self.covers(prompt):
            return sampling
        return replace(sampling, stop=(*sampling.stop, *self.texts), stop_token_ids=self.tokens)

    def said(self, tokenizer: Any, token_ids: Sequence[int], prompt: Prompt) -> str:
        """A completion as rewards, logs and stored rollouts have it: the one place where its tokens become text.

        All that the policy wrote is in it, special tokens too, since they may be the tags of its reasoning; except what only
        marks where a text begins or ends (eos, bos, padding) and the end of the turn. Blanks stay as they were written: what
        some tokenizers clean up is code.
        """
        ends = self.covers(prompt)
        if ends and token_ids and token_ids[-1] in self.tokens:  # which need not be special to the tokenizer
            token_ids = token_ids[:-1]
        silent = {*self.eos, tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id}
        kept = [token for token in token_ids if token not in silent]
        text = str(tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False))
        for end in self.texts if ends else ():
            text = text.partition(end)[0]
        return text

    def note(self, tokenizer: Any) -> str:
        """One line for people; empty where the eos tokens end a turn anyway."""
        eos = self.eos
        new = [token for token in self.tokens if token not in eos]
        if new:
            return (
                f"completions of conversations end at {_names(tokenizer, new)}: the chat template ends a turn with it, and "
                f"the eos settings name {_names(tokenizer, eos) or 'no token'}"
            )
        if self.texts:
            return (
                f"completions of conversations end at the text {self.texts[0]!r}, and rewards do not see it: the chat template "
                "ends a turn with no token"
            )
        if not self.tokens:
            return (
                "the chat template does not show what ends a turn: completions of conversations end at "
                f"{_names(tokenizer, eos) or 'no token'}, a text of --stop or max_completion_length"
            )
        return ""


def _names(tokenizer: Any, ids: Sequence[int]) -> str:
    return ", ".join(map(str, tokenizer.convert_ids_to_tokens(list(ids))))


def turn_end(tokenizer: Any, prompts: Sequence[Prompt], eos: Iterable[int] = ()) -> TurnEnd:
    """What ends a turn in the conversations among these prompts, beside the `eos` tokens.

    Asked is the template itself: with conversations of the data, since it may refuse others, else with plain ones. What it
    cannot render is left out, so nothing that is asked here ends a run.
    """
    if not getattr(tokenizer, "chat_template", None):
        return TurnEnd(eos=tuple(eos))
    template = _Template(tokenizer)
    own = [end for talk in _own(prompts) if (end := template.turn_end(talk)) is not None]
    found = own or [end for talk in PLAIN if (end := template.turn_end(talk)) is not None][:1]
    if not found:
        return TurnEnd(eos=tuple(eos))
    return TurnEnd(
        tuple(dict.fromkeys(token for end in found for token in end.tokens)),
        tuple(dict.fromkeys(text for end in found for text in end.texts)),
        found[0].opening,
        found[0].unmistakable,
        tuple(eos),
    )


@dataclass(frozen=True)
class _Talk:
    """A conversation up to the policy's turn, and what its row gives to the template beside it."""

    messages: Messages
    arguments: dict[str, Any] = field(default_factory=dict)

    def says(self, text: str) -> Any:
        """A text in the form that the contents of these messages have: a string, or a list of parts."""
        parts = isinstance(self.messages[-1].get("content"), list)
        return [{"type": "text", "text": text}] if parts else text


_HI: dict[str, Any] = {"role": "user", "content": "Hi"}
PLAIN = (
    _Talk([_HI]),
    _Talk([{"role": "system", "content": "Answer."}, _HI]),
    _Talk([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]),
)
MOST_KINDS = 8


def _own(prompts: Sequence[Prompt]) -> list[_Talk]:
    """The first conversation of each kind: rows may have tools and arguments for the template."""
    kinds: dict[str, _Talk] = {}
    for prompt in prompts:
        begun = prompt.messages or []
        if begun and begun[-1]["role"] == "assistant":  # the policy goes on from it
            begun = begun[:-1]
        if not begun or len(kinds) == MOST_KINDS:
            continue
        tools, further = (_parsed(prompt.columns.get(name)) for name in ("tools", "chat_template_kwargs"))
        arguments = dict(further) if isinstance(further, dict) else {}
        if tools and isinstance(tools, list):
            arguments["tools"] = tools
        kinds.setdefault(repr((bool(tools), further)), _Talk(begun, arguments))
    return list(kinds.values())


def _parsed(cell: Any) -> Any:
    """A cell, read where it is JSON."""
    try:
        return json.loads(cell) if isinstance(cell, str) else cell
    except ValueError:
        return None


class _Template:
    """A tokenizer's chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.added: dict[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
        self.special = set(tokenizer.all_special_ids)

    def turn_end(self, talk: _Talk) -> TurnEnd | None:
        """What ends a turn of this conversation; None when the template does not show one."""
        found = self.after_reply(talk)
        if found is None:
            return None
        tokens, texts = found
        opening = self.opening(talk)
        marked = bool(self._control(opening))
        return TurnEnd(
            (*tokens, *self.after_tool_call(talk)), texts, opening if marked or len(opening) > 2 else "", marked
        )

    def after_reply(self, talk: _Talk) -> tuple[tuple[int, ...], tuple[str, ...]] | None:
        """(tokens, texts) that end a message of the assistant; None when the template does not show one."""
        reply = {"role": "assistant", "content": talk.says(REPLY)}
        closing = self._behind(talk, [reply], REPLY)
        following = self._behind(talk, [reply, {"role": "user", "content": talk.says(NEXT)}], REPLY)
        between = following.partition(NEXT)[0] if following is not None and NEXT in following else None
        if closing is None and between is None:
            return None
        if closing and between:
            if shared := self._control(_common(closing, between)):
                whole = between.startswith(closing.rstrip())  # else what they share may begin the next message
                return (shared[-1 if whole else 0],), ()  # the last one, where several always follow each other
            if not self._ends(closing, between, talk):
                closing = ""
        if closing and (found := self._first(closing)):
            return (found[1],), ()
        if closing and closing.strip():
            return (), (_line(closing),)
        found = self._first(between or "")
        if found and not found[0].strip():  # nothing ends the message, but a token begins the next one
            return (found[1],), ()
        text = found[0] if found else between or ""
        return (), ((_line(text),) if text.strip() else ())

    def _ends(self, closing: str, between: str, talk: _Talk) -> bool:
        """Whether what stands behind the last message ends it: not where it only asks for the next one of the assistant,
        as templates do that ask whether they are told to or not."""
        found = self._first(closing)
        if found is None:
            return closing.strip() in between
        return found[1] in self._control(between) or found[1] not in self._control(self._render(talk, []) or "")

    def after_tool_call(self, talk: _Talk) -> tuple[int, ...]:
        """The token that ends a message of tool calls: the last one, as each call may end with one as well. Where none does,
        the one that begins the answer of the tool."""
        for plain in (True, False):  # arguments are an object, or JSON
            for values in ((NEXT, REPLY), (REPLY,)):
                call = {"role": "assistant", "content": talk.says(""), "tool_calls": [_call(v, plain) for v in values]}
                closing = self._behind(talk, [call], REPLY)
                if closing is None:
                    continue
                ids = self._control(closing) or self._before_answer(talk, call)
                whole = self._behind(talk, [call], NEXT) if len(values) > 1 else None
                each = set(self._control(whole.partition(REPLY)[0])) if whole else set()
                return tuple(ids[-1:]) if ids and ids[-1] not in each else ()
        return ()

    def _before_answer(self, talk: _Talk, call: dict[str, Any]) -> list[int]:
        """The first control token between a message of tool calls and the answer of the tool."""
        answer = {"role": "tool", "name": "look", "tool_call_id": "call00001", "content": talk.says(ANSWER)}
        text = self._behind(talk, [call, answer], REPLY) or ""
        return self._control(text.partition(ANSWER)[0])[:1] if ANSWER in text else []

    def opening(self, talk: _Talk) -> str:
        """What it writes between the user's words and a completion, as far as messages of the assistant begin with it: what
        follows, such as `<think>`, rows may have or not."""
        asked = replace(talk, messages=[*talk.messages[:-1], {"role": "user", "content": talk.says(NEXT)}])
        opening = self._behind(asked, [], NEXT, open=True) or ""
        answered = self._behind(asked, [{"role": "assistant", "content": talk.says(REPLY)}], NEXT) or ""
        before = answered.partition(REPLY)[0] if REPLY in answered else opening
        return _common(opening, before).strip() or opening.strip()

    def _behind(self, talk: _Talk, said: Messages, word: str, open: bool = False) -> str | None:
        """What it writes behind the last place of a word; `open`: and before a completion."""
        text = self._render(talk, said, open)
        return None if text is None or word not in text else text.rpartition(word)[2]

    def _render(self, talk: _Talk, said: Messages, open: bool = False) -> str | None:
        try:
            text = self.tokenizer.apply_chat_template(
                [*talk.messages, *said], tokenize=False, add_generation_prompt=open, **talk.arguments
            )
        except Exception:  # of the template's own code, on a conversation that the data may not hold
            return None
        return str(text)

    def _control(self, text: str) -> list[int]:
        """The control tokens in a text, in their order."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return [token for token in ids if self._is_control(token)]

    def _is_control(self, token: int) -> bool:
        if token in self.special:
            return bool(token != self.tokenizer.unk_token_id)
        added = self.added.get(token)
        if added is None:
            return False
        name = str(added).strip()
        return bool(added.special or (name and not CLOSING_TAG.fullmatch(name)))

    def _first(self, text: str) -> tuple[str, int] | None:
        """The first control token in a text, and what stands before it."""
        token = next(iter(self._control(text)), None)
        if token is None:
            return None
        return text.partition(str(self.tokenizer.convert_ids_to_tokens(token)))[0], token


def _call(value: str, plain: bool) -> dict[str, Any]:
    arguments: Any = {"value": value} if plain else f'{{"value": "{value}"}}'
    return {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": arguments}}


def _common(a: str, b: str) -> str:
    """What two texts begin with."""
    return "".join(x for x, y in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b)))


def _line(text: str) -> str:
    """The text that shows the end: from the line on that it begins with, without the blanks around it."""
    before, shown = text[: len(text) - len(text.lstrip())], text.strip()
    return ("\n" if "\n" in before else before) + shown
