"""From the prompt of a row to messages and to the text that the model reads.

A prompt is text, or a list of messages that the tokenizer's chat template formats (with the `tools` and
`chat_template_kwargs` of its row, where it has such columns). Keys that are null are left out first: rows from Parquet have
every key in every message, and templates take one that is there for one that is meant.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from postrl.errors import DataError
from postrl.rows.messages import content_text, in_form, of_columns, parsed_cell, read_cell, tool_call, without_nulls
from postrl.rows.tokens import special_texts
from postrl.types import Messages

ROLES = {"system", "developer", "user", "assistant", "tool", "function", "ipython"}
"""Roles that chat templates know."""
TAKEN = {"conversation", "tokenize", "add_generation_prompt", "continue_final_message", "chat_template", "tools"}
"""Arguments of a chat template that nobody sets."""
PROBE = "zqquestionzq"
"""What a user says to find out what a chat template writes around it."""
FORMS: tuple[tuple[bool, str | None], ...] = ((True, ""), (True, None), (False, ""), (False, None))
"""Of tool calls, see `in_form`: what templates want, the most common first."""
TEXT_PROMPTS = (
    "the prompts are text, and the model has a chat template: they are given as they are, without it. --chat makes each a "
    "user message; --no-chat: so it is meant"
)
SPELLED = (
    "the text of prompts spells out special tokens ({tokens}; first in {row}): the model reads them as such, and they are left "
    "as they are. Take them out of text that is not yours"
)


@dataclass
class Rendering:
    """How the prompts of one data set become text, and what there is to say about it."""

    tokenizer: Any
    template: str | None = None
    """A user message, in which {prompt} stands for a text prompt; None: text is a prompt as it is."""
    chat: bool | None = None
    """Whether text becomes a user message; None: where the data set has a template and the tokenizer too."""
    system_prompt: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Of the chat template, for all prompts; a row's own stand before them."""
    remarks: Counter[str] = field(default_factory=Counter)
    """What was noticed -> how many prompts it is about."""
    count: int = 0
    """Prompts that were rendered."""
    spelled: dict[str, str] = field(default_factory=dict)
    """Special token in the text of a prompt -> the first row that has it."""
    call_forms: dict[bool, tuple[tuple[bool, str | None], bool]] = field(default_factory=dict)
    """What `_call_form` found, without tools and with some."""

    def render(self, row_id: str, prompt: Any, row: Mapping[str, Any]) -> tuple[Messages | None, str]:
        """A prompt's messages (None: plain) and its text as the model reads it.

        Args:
            prompt: a plain value; row: the other columns.

        Raises:
            DataError: neither text nor messages, a text that has ended, or messages that the template refuses.
        """
        self.count += 1
        messages = self._messages(row_id, prompt)
        if messages is None:
            text = self.template.replace("{prompt}", prompt) if self.template else str(prompt)
            if not self._as_message(row_id, text):
                self._check_end(row_id, text)
                self._remark_on_text(text, row)
                if not self.rendered(text):
                    self._remark_on_special(row_id, [text.removeprefix(self.tokenizer.bos_token or "")])
                return None, text
            messages = [{"role": "user", "content": text}]
        if self.system_prompt is not None:
            own = [message for message in messages if message["role"] != "system"]
            messages = [{"role": "system", "content": self.system_prompt}, *own]
        self._remark_on_special(row_id, [str(message.get("content") or "") for message in messages])
        return messages, self._apply_template(row_id, messages, row)

    def notes(self, *, chat_is_likely: bool = True) -> list[str]:
        """A line for everything that was noticed, with how many prompts it is about unless it is all of them.

        Args:
            chat_is_likely: whether text prompts without the chat template deserve one.
        """
        told = {text: n for text, n in self.remarks.items() if chat_is_likely or text != TEXT_PROMPTS}
        lines = [text if n == self.count else f"{text} ({n} of {self.count} prompts)" for text, n in told.items()]
        names, row = ", ".join(self.spelled), next(iter(self.spelled.values()), "")
        return [line.replace("{tokens}", names).replace("{row}", row) for line in lines]

    # -- text ----------------------------------------------------------------------------------------------------------

    def _as_message(self, row_id: str, text: str) -> bool:
        """Whether a text prompt becomes a user message."""
        known = self.template is not None and self.chat is None and bool(self.tokenizer.chat_template)
        if not (self.chat or known or self.system_prompt is not None):
            return False
        if mark := self.rendered(text):
            why = "--chat" if self.chat else "--system-prompt" if self.system_prompt is not None else "this data set"
            raise DataError(
                f"{row_id}: the prompt was rendered with the chat template already (it has {mark!r}), and {why} makes it a "
                "message, which would be rendered again",
                hint=f"leave {why} out, or give the messages themselves",
            )
        return True

    def rendered(self, text: str, *, opened: bool = True) -> str | None:
        """What shows that a text was made by this tokenizer's chat template; None: nothing does.

        Args:
            opened: words that anyone may write, such as "User:", count where the text ends as the template opens a turn.
        """
        special, words, asks = self.marks
        if mark := next((mark for mark in special if mark in text), None):
            return mark
        return words if words and words in text and (not opened or text.rstrip().endswith(asks)) else None

    @cached_property
    def marks(self) -> tuple[tuple[str, ...], str, str]:
        """What the chat template writes around the turns of a conversation: special tokens, else added ones that open a user's
        turn; where there are none, the words that do, and those that open the assistant's."""
        text = self._probe(opened=True)
        ends = {self.tokenizer.bos_token, self.tokenizer.eos_token} - {None}
        special = [token for token in self.tokenizer.all_special_tokens if token in text]
        within = tuple(token for token in special if token not in ends or text.count(token) > 1)
        opening, _, asks = text.partition(PROBE)
        for token in ends:
            opening = opening.rpartition(token)[2]
        added = map(str, getattr(self.tokenizer, "added_tokens_decoder", {}).values())
        within = within or tuple(token for token in added if token.strip() and token in opening)
        words = opening.strip() if not within and len(opening.strip()) > 2 else ""
        return within, words, asks.strip()

    @cached_property
    def ends(self) -> tuple[str, ...]:
        """What a text prompt does not end with: the end of a text, and that of a turn where the template opens the next."""
        closed, opened = self._probe(opened=False), self._probe(opened=True)
        turn = closed.rpartition(PROBE)[2].strip() if opened != closed and opened.startswith(closed) else ""
        return tuple(end for end in dict.fromkeys((self.tokenizer.eos_token, turn)) if end)

    def _probe(self, *, opened: bool) -> str:
        """A user's message in the chat template, and the assistant's turn `opened` after it; "" where it is refused."""
        messages = [{"role": "user", "content": PROBE}]
        try:
            return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=opened))
        except Exception:  # no template, or one that wants other messages
            return ""

    def _check_end(self, row_id: str, text: str) -> None:
        said = text.rstrip()
        end = next((end for end in self.ends if said.endswith(end) and said.replace(end, "").strip()), None)
        if end and (end == self.tokenizer.eos_token or self.rendered(text, opened=False)):
            raise DataError(
                f"{row_id}: the prompt ends with {end}, the end of a text or a turn: the model would be asked to go on after it",
                hint="render rows with apply_chat_template(..., add_generation_prompt=True), or take it off",
            )

    def _remark_on_text(self, text: str, row: Mapping[str, Any]) -> None:
        if not getattr(self.tokenizer, "chat_template", None) or self.template is not None:
            return
        if self.chat is None and not self.rendered(text):
            self.remarks[TEXT_PROMPTS] += 1
        if ignored := [name for name in ("tools", "chat_template_kwargs") if row.get(name)]:
            self.remarks[
                f"text prompts take no {' and '.join(ignored)} from their rows: these go to rewards alone"
            ] += 1

    def _remark_on_special(self, row_id: str, texts: Iterable[str]) -> None:
        """Whose text has special tokens; whether that was meant cannot be told from it."""
        if found := [token for text in texts for token in self.special if token in text]:
            self.remarks[SPELLED] += 1
            for token in found:
                self.spelled.setdefault(token, row_id)

    @cached_property
    def special(self) -> tuple[str, ...]:
        return special_texts(self.tokenizer)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _messages(self, row_id: str, prompt: Any) -> Messages | None:
        """The messages of a conversational prompt, None for a text."""
        if isinstance(prompt, str):
            found = read_cell(prompt, row_id, "prompt") if prompt.lstrip().startswith("[") else None
            if not (isinstance(found, list) and found and all(isinstance(m, dict) and "role" in m for m in found)):
                return None
            prompt = found
            self.remarks["prompts are messages written as JSON, and are read as messages"] += 1
        if isinstance(prompt, dict) and {"role", "content"} <= prompt.keys():
            prompt = of_columns(prompt)
        if not isinstance(prompt, list) or not all(isinstance(message, dict) for message in prompt):
            raise DataError(
                f"{row_id}: the prompt is a {type(prompt).__name__}, expected text or a list of messages (role, content)",
                hint="choose the column with --prompt-column",
            )
        messages = [self._message(f"{row_id}: message {i}", message) for i, message in enumerate(prompt)]
        for role in sorted({message["role"] for message in messages} - ROLES):
            self.remarks[f"messages have the role {role!r}, which chat templates usually do not know"] += 1
        return messages

    def _message(self, where: str, message: dict[str, Any]) -> dict[str, Any]:
        """A message as templates want it: without nulls, its content text."""
        found: dict[str, Any] = without_nulls(message)
        if not isinstance(role := found.get("role"), str):
            raise DataError(
                f"{where} has no role; it has {', '.join(name for name in found if name != 'role') or 'nothing'}",
                hint='a message is {"role": "user", "content": "..."}',
            )
        if not found.get("tool_calls"):
            found.pop("tool_calls", None)  # an empty list is a tool call to some templates
        else:
            found["tool_calls"] = [tool_call(call) for call in found["tool_calls"]]
            found.setdefault("content", "")
        found["content"] = content_text(where, role, found.get("content"))
        return found

    def _apply_template(self, row_id: str, messages: Messages, row: Mapping[str, Any]) -> str:
        from jinja2 import TemplateError

        if not self.tokenizer.chat_template:
            raise DataError(
                "the prompts are conversations, and the model's tokenizer has no chat template",
                hint="choose an instruction-tuned model, or give a template with --chat-template FILE",
            )
        goes_on = messages[-1]["role"] == "assistant"  # the policy finishes a turn that the prompt begins
        if goes_on and not messages[-1]["content"].strip():
            raise DataError(
                f"{row_id}: the prompt ends with a message of the assistant that says nothing: there is no turn to finish",
                hint="leave that message out, or give the answer of the tool that it calls",
            )
        arguments = self._arguments(row_id, row)
        try:
            text = str(
                self.tokenizer.apply_chat_template(
                    self._as_called(messages, arguments.get("tools")),
                    tokenize=False,
                    add_generation_prompt=not goes_on,
                    continue_final_message=goes_on,
                    **arguments,
                )
            )
        except (TemplateError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise DataError(
                f"{row_id}: the chat template refuses the prompt: {error}",
                hint="--chat-template FILE replaces the template",
            ) from error
        end = self.tokenizer.eos_token
        if end and text.rstrip().endswith(end):
            self.remarks[f"the chat template opens no turn for the assistant: prompts end with {end}"] += 1
        return text

    def _as_called(self, messages: Messages, tools: Any) -> Messages:
        """The messages with tool calls in the form that the template writes."""
        if not any(message.get("tool_calls") for message in messages):
            return messages
        if bool(tools) not in self.call_forms:  # a template, or another one, may write calls only where there are tools
            self.call_forms[bool(tools)] = self._call_form(tools)
        form, shown = self.call_forms[bool(tools)]
        if not shown:
            self.remarks["messages have tool calls, and the chat template does not write them"] += 1
        return in_form(messages, *form)

    def _call_form(self, tools: Any) -> tuple[tuple[bool, str | None], bool]:
        """The form of tool calls that the template writes, see `in_form`; and False where it writes them in none."""
        call = {"id": "call00001", "type": "function", "function": {"name": PROBE, "arguments": {"a": "b"}}}
        talk: Messages = [
            {"role": "user", "content": "c"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "d", "tool_call_id": "call00001", "content": "e"},
        ]
        refused = True
        for form in FORMS:
            with suppress(Exception):  # of the template's code, on a conversation that the data may not hold
                if PROBE in str(self.tokenizer.apply_chat_template(in_form(talk, *form), tools=tools, tokenize=False)):
                    return form, True
                refused = False
        return FORMS[0], refused

    def _arguments(self, row_id: str, row: Mapping[str, Any]) -> dict[str, Any]:
        """What its template gets: the arguments of all prompts, and a row's own columns `tools` and `chat_template_kwargs`.

        Raises:
            DataError: the arguments are not a dict, or not the row's to choose.
        """
        tools, further = (parsed_cell(row, name, row_id) for name in ("tools", "chat_template_kwargs"))
        found: dict[str, Any] = dict(self.arguments)
        if tools and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
            self.remarks["the column tools is not a list of JSON schemas: it goes to rewards alone"] += 1
        elif tools:
            found["tools"] = (
                tools if isinstance(row["tools"], str) else without_nulls(tools)
            )  # JSON is as it was written
            if "tools" not in str(self.tokenizer.chat_template):
                self.remarks["rows have tools, and the chat template does not read any"] += 1
        if further:
            if not isinstance(further, dict) or TAKEN & further.keys():
                raise DataError(
                    f"{row_id}: the column chat_template_kwargs holds {json.dumps(further):.100}, expected a dict of arguments for "
                    f"the chat template, none of {', '.join(sorted(TAKEN))}",
                    hint='such as {"enable_thinking": false}',
                )
            found |= without_nulls(further)
        return found
