from __future__ import annotations

import pytest

from postrl.rewards.math.extract import find_answer, last_boxed, read_gold


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{10}, no: that forgets two, so \boxed{12}", "12"),
        (r"\boxed{10}. That is too few, and so \boxed{12}", "12"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {5}", "5"),
        (r"\boxed 5", "5"),
        (r"$\boxed x$", "x"),
        (r"\boxed12.", "12"),
        (r"\boxed\frac{1}{\sqrt{2}} done", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed\frac12", r"\frac12"),
        (r"\fbox{42}", "42"),
        (r"\fbox {42}", "42"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"a } stray and a { open brace, \boxed{3}", "3"),
        (r"\boxed{12} and then \boxed{13", "12"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\boxed{42} ... #### 7", "42"),
        ("\\boxed{\n5\n}", "5"),
        ("first #### 5\n\nthen\n####72\nmore", "72"),
        ("The answer is 5. No, the answer is **73** in all.", "73 in all"),
        ("Answer: $18", "$18"),
        ("Answer: $18. I had $20.", "$18"),
        ("**Final Answer:** 3/4", "3/4"),
        ("**Final Answer**\n\n42\n", "42"),
        ("The answer is:\n\n42", "42"),
        (r"The final answer is \(\frac{3}{4}\).", r"\frac{3}{4}"),
        ("The final answer is: $$x^2$$", "x^2"),
        ("The answer is -7, altogether.", "-7"),
        ("The answer is 3.5.", "3.5"),
        ("the ANSWER IS 1,234.5 metres", "1,234.5 metres"),
        ("The answer is (B).", "(B)"),
        ("The answer is False.", "False"),
        ("The answer $42$ fits.", "42"),
        ("#### Step 1\n\nAdd.\n\n#### Conclusion\n\nThe answer is 7.", "7"),
        ("#### **72**", "72"),
        ("#### Answer: 72", "72"),
        ("Answer \\( 9 \\)", "9"),
        (r"so \\boxed{72}", "72"),
        (r"\[x\\\boxed{72}\]", "72"),
        (r"<think>\boxed{1}</think>\boxed{2}<|im_end|>", "2"),
        (r"\boxed{1}</think>\boxed{2}</think>\boxed{3}</s>", "3"),
        (r"[THINK]\boxed{1}[/THINK]\boxed{2}", "2"),
        (r"<|START_THINKING|>\boxed{1}<|END_THINKING|>\boxed{2}", "2"),
        (r"◁think▷\boxed{1}◁/think▷\boxed{2}", "2"),
        (r"<|channel|>analysis<|message|>\boxed{1}<|end|><|start|>assistant<|channel|>final<|message|>\boxed{2}", "2"),
    ],
)
def test_the_answer_is_found(completion, answer):
    assert find_answer(completion) == answer


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "42",
        "There were 73 of them",
        r"\boxed{}",
        r"\fbox{ }",
        r"\boxed{5} and finally \boxed{ }",
        r"the answer is 42, \boxed{42",
        r"I write it in \boxed format",
        r"<think>It is \boxed{42}, but",
        r"[THINK]It is \boxed{42}, but",
        r"◁think▷It is \boxed{42}, but",
        r"<|channel|>analysis<|message|>It is \boxed{42}, but",
        r"<think>\boxed{42}</think> ...",
        "I do not think that the answer is 42.",
        "It isn't true that the answer is 42.",
        "If the answer is 42, then we are done.",
        "I doubt the answer is 42.",
        "The answer is 42, which is wrong.",
        "The answer $42$ is not correct.",
        "The answer is 42, but that isn't so.",
        "The answer is $42$ or $43$.",
        "The answer is ",
        "####",
    ],
)
def test_no_answer_is_guessed(completion):
    assert find_answer(completion) is None


@pytest.mark.parametrize(
    ("completion", "answers"),
    [
        (r"\boxed{6} or \boxed{7}", "6, 7"),
        (r"$\boxed{6}$ or $\boxed{7}$", "6, 7"),
        (r"\boxed{6} \text{ or } \boxed{7}", "6, 7"),
        (r"\boxed{6}. Or \boxed{7}", "6, 7"),
        (r"\boxed{6} or maybe \boxed{7}", "6, 7"),
        (r"\boxed{6} (or perhaps \boxed{7})", "6, 7"),
        (r"\boxed{6} / \boxed{7}", "6, 7"),
        (r"\(\boxed{1}\), \(\boxed{2}\), and \(\boxed{3}\)", "1, 2, 3"),
        (r"\boxed{1} \quad \boxed{2} \\ \boxed{3}", "1, 2, 3"),
        (r"\boxed{1}; \fbox{2}", "1, 2"),
        ("\\boxed{5}\n\n\\boxed{5}", "5"),
    ],
)
def test_boxes_with_nothing_but_separators_between_them_are_one_list(completion, answers):
    assert find_answer(completion) == answers


def test_without_the_fallback_only_marked_answers_count():
    assert find_answer("The answer is 42.", anchored=False) is None
    assert find_answer("#### 42", anchored=False) == "42"


def test_the_reasoning_tags_can_be_chosen():
    text = r"[R]\boxed{1}[/R] \boxed{2}"
    assert find_answer(text + "[R]", reasoning=[("[R]", "[/R]")]) == "2"
    assert find_answer(r"[R]\boxed{1}", reasoning=[("[R]", "[/R]")]) is None


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\boxed{42}", "42"),
        (r"It takes three hours, hence \boxed{180} km.", "180"),
        ("48+24=<<48+24=72>>72 clips.\n#### 72", "72"),
        ("$42$", "$42$"),
        (42, "42"),
        (0.5, "0.5"),
        ("", None),
        (r"\boxed{}", None),
        ("####", None),
        (None, None),
        (float("nan"), None),
        (float("inf"), None),
        ([1, 2], None),
        ("7" * 1001, None),
    ],
)
def test_golds_are_read(gold, answer):
    assert read_gold(gold) == answer


@pytest.mark.parametrize(
    "piece",
    [
        r"\boxed{", "{", "}", r"\boxed ", r"\boxed\frac{1}", r"\boxed{1} or ", "answer: ", "answer is - ", "answer  ",
        "final answer\n", "final  ", "####", "$", "<think>", "</think>", "**", ". Or ", "\\", "\\text{ or }",
    ],
)  # fmt: skip
def test_a_megabyte_of_junk_is_read_in_one_pass(piece):
    find_answer(piece * (1_000_000 // len(piece)))


def test_the_last_of_many_nested_boxes_is_found():
    assert last_boxed(r"\boxed{" * 100_000 + "5" + "}" * 100_000) == "5"
